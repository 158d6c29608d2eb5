/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.c - connections a second: the client connects, exchanges a request and its
 * acknowledgement, and closes the connection, one after the other.
 *
 * Over tls the size tells how the two sides authenticate: 0, by their certificates each time; 1, by
 * the ticket of the connection before.
 */
#include "bmi_side.h"

#include <string.h>

static void handshake_serve(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    acknowledge_and_await(side, client, work, NULL);
}

/* Ends the process if the connection did not authenticate as it should. */
static void connection_check(BMI_addr_t server, bool by_ticket)
{
    struct bmi_peer_identity identity;
    bool proved = BMI_get_info(server, BMI_PEER_IDENTITY, &identity) == 0;
    bool resumed = proved && strstr(identity.protection, "resumed") != NULL;
    if (by_ticket && !proved)
        die("this method has no tickets: --size 0");
    if (by_ticket != resumed)
        die("a connection is %s", resumed ? "resumed" : "not resumed");
}

static void tickets_set(bool by_ticket)
{
    char name[] = "tls_session_s", text[64];
    struct bmi_setting setting = {.name = name};
    if (BMI_get_info(0, BMI_SETTING, &setting) < 0)
        return; /* built without tls */
    format_text(text, sizeof text, "%s=%d", name, by_ticket ? 3600 : 0);
    bmi_check(BMI_set_info(0, BMI_SETTING, text), text);
}

static double handshake_run(struct bmi_client *client, const struct work *work)
{
    bool by_ticket = work->size > 0;
    BMI_addr_t server = client->servers[0];
    tickets_set(by_ticket);
    for (int i = 0; i < 2; i++) { /* the second one finds a ticket */
        bmi_check(BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
        client_ask(client, 0, work);
    }
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < work->amount; i++) {
        bmi_check(BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
        client_ask(client, 0, work);
    }
    double seconds = seconds_since(start);
    connection_check(server, by_ticket);
    return seconds;
}

const struct pattern pattern_handshake = {
    .name = "handshake",
    .summary = "connections a second; over tls by certificates and by tickets",
    .unit = "1/s",
    .size_name = "tickets",
    .sizes = "0",
    .empty_messages = true,
    .amount = "200",
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES,
    .contenders = BIT(CONTENDER_BMI),
    .value = value_rate,
    .serve_bmi = handshake_serve,
    .run_bmi = handshake_run,
};
