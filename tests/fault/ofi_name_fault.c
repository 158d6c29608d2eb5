/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_name_fault.c - a peer whose handshake has the name of another's endpoint, over ofi+tcp.
 *
 * Its link would share the provider's connection of the named one, and end that when it fails. It
 * cannot: its first message comes from another endpoint, and ends its link alone. The other client
 * continues, and the liar's messages are never delivered. If the name has another address than the
 * liar's handshake came from, the log names both.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/progress/methods.h"
#include "methods/ib/ib.h"
#include "serve.h"

enum { TRUE_TAG = 6, LIE_TAG, TURNS = 3 };

static char listening[BMI_MAX_ADDR_LEN];

static struct ib_fabric *fabric_here(void)
{
    struct ib_state *state = bmi__method_of_scheme(&bmi__default, "ofi+tcp", 7)->state;
    return state->fabric;
}

/* An honest client, which sends the name of its endpoint and calls until the order to end. */
static int honest(void *argument, int channel)
{
    struct echo_report *report = argument;
    BMI_addr_t server = client_open(channel);
    echo_hello(server);
    tell(channel, fabric_here()->endpoints->name, IB_NAME_BYTES);
    for (uint64_t i = 0; !heard(channel, 0); i++) {
        echo_call(server, i, 1000);
        atomic_fetch_add(&report->exchanges, 1);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void closed(BMI_addr_t server)
{
    BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL);
    while (method_statistics("bmi_ofi_tcp").links > 0)
        operations_step(5);
}

static const char elsewhere[] = "127.0.0.77";

/* The endpoint's name with another host. */
static void name_move(uint8_t *name)
{
    struct sockaddr_in address;
    memcpy(&address, name, sizeof address);
    CHECK(address.sin_family == AF_INET, "the endpoint has no IPv4 address");
    CHECK(inet_pton(AF_INET, elsewhere, &address.sin_addr) == 1, "inet_pton");
    memcpy(name, &address, sizeof address);
}

/* Connects under its own name; then, repeatedly, under the name that it receives, and reports when
 * that has failed. */
static int liar(void *argument, int channel)
{
    uint8_t name[IB_NAME_BYTES];
    struct noted noted;
    (void)argument;
    BMI_addr_t server = client_open(channel);
    hear(channel, name, sizeof name);
    note_sendunexpected(&noted, server, "", 0, TRUE_TAG);
    noted_good(&noted, "a message under its own name");
    closed(server);
    memcpy(fabric_here()->endpoints->name, name, sizeof name);
    for (int i = 0; i < TURNS; i++) {
        struct noted answer;
        char byte;
        note_receive(&answer, server, &byte, 1, LIE_TAG);
        note_sendunexpected(&noted, server, "", 0, LIE_TAG);
        CHECK(noted_wait(&answer, 1, TEST_BOUND_MS), "the lie is borne");
        printf("  the liar's link: %s\n", status_name(answer.status));
        CHECK(answer.status == -BMI_ECONNRESET, "its link has waited for the end of its time");
        tell_number(channel, i);
    }
    name_move(fabric_here()->endpoints->name);
    note_sendunexpected(&noted, server, "", 0, LIE_TAG);
    while (!heard(channel, 0)) /* the server's log has both addresses */
        operations_step(5);
    _exit(0); /* without closing the connection in good order */
}

static bool true_seen, lie_seen, both_logged;

static void log_read(void *argument, enum bmi_log_level level, const char *text)
{
    (void)argument;
    (void)level;
    if (strstr(text, "127.0.0.1") != NULL && strstr(text, elsewhere) != NULL)
        both_logged = true;
}

static void note_unexpected(const struct BMI_unexpected_info *info)
{
    true_seen |= info->tag == TRUE_TAG;
    lie_seen |= info->tag == LIE_TAG;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void goes_on(struct echo_report *report, const char *when)
{
    unsigned long before = atomic_load(&report->exchanges);
    uint64_t start = now_ns();
    while (atomic_load(&report->exchanges) < before + 20) {
        operations_step(5);
        CHECK(now_ns() - start < TEST_BOUND_MS * UINT64_C(1000000), "%s: the other stands still",
              when);
    }
}

int main(void)
{
    static struct bmi_log_callback callback = {.write = log_read, .level = BMI_LOG_WARN};
    uint8_t name[IB_NAME_BYTES];
    test_begin("ofi_name_fault", 90);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child client = child_start("honest client", honest, report);
    struct child bad = child_start("liar", liar, NULL);
    setenv("BMI_TEST_METHOD", "ofi+tcp", 1);
    serve_here(0, listening);
    operations_open();
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    test_unexpected = note_unexpected;
    tell(client.channel, listening, sizeof listening);
    while (!heard(client.channel, 0))
        operations_step(5);
    hear(client.channel, name, sizeof name);
    goes_on(report, "alone");
    tell(bad.channel, listening, sizeof listening);
    tell(bad.channel, name, sizeof name);
    for (int i = 0; i < TURNS; i++) {
        while (!heard(bad.channel, 0))
            operations_step(5);
        hear_number(bad.channel);
        goes_on(report, "beside a liar");
    }
    uint64_t start = now_ns();
    while (!both_logged) {
        operations_step(5);
        CHECK(now_ns() - start < TEST_BOUND_MS * UINT64_C(1000000), "the log lacks an address");
    }
    tell_number(bad.channel, 0);
    child_end(&bad);
    CHECK(true_seen && !lie_seen, "%s", lie_seen ? "a lie is borne" : "no liar was here");
    tell_number(client.channel, 0);
    while (echo_sessions() > 0)
        operations_step(5);
    child_end(&client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
