/* SPDX-License-Identifier: BSD-3-Clause
 *
 * descriptors_gm_fault.c - a gm server runs out of descriptors (EMFILE).
 *
 * More clients come than it has descriptors for. The others wait in a queue: none of their
 * operations fails. Each gets the place of a client whose connection is idle, which connects again
 * when it next sends. The server does not spin meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { CLIENTS = 5, SPARE = 8, OF_A_CLIENT = 3, TAG = 7 };

static unsigned requests;

/* One request and its answer. */
static void exchange(BMI_addr_t server)
{
    struct noted request, answer;
    char byte;
    note_receive(&answer, server, &byte, 1, TAG);
    note_sendunexpected(&request, server, "", 1, TAG);
    noted_good(&request, "the request");
    noted_good(&answer, "the answer");
}

static int client(void *argument, int channel)
{
    (void)argument;
    BMI_addr_t server = client_open(channel);
    for (int i = 0; i < 2; i++) {
        exchange(server);
        tell_number(channel, i);
        hear_number(channel);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void answered(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    (void)size;
    CHECK(status == 0, "an answer: %s", status_name(status));
    free(operation);
}

static void answer(const struct BMI_unexpected_info *info)
{
    struct operation *operation = malloc(sizeof *operation);
    bmi_op_id_t id;
    *operation = (struct operation){.done = answered};
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    requests++;
    operation_posted(operation,
                     BMI_post_send(&id, info->addr, "", 1, BMI_EXT_ALLOC, info->tag, operation,
                                   test_context, NULL),
                     1);
}

/* Processor time over a second in which clients wait for a place. */
static double waiting_share(void)
{
    uint64_t start = now_ns(), used = cpu_ns();
    while (now_ns() - start < UINT64_C(1000000000))
        operations_step(100);
    return (double)(cpu_ns() - used) / (double)(now_ns() - start);
}

static void requests_wait(unsigned number)
{
    while (requests < number)
        operations_step(10);
}

int main(void)
{
    test_begin("descriptors_gm_fault", 40);
    setenv("BMI_CONNECT_TIMEOUT_MS", "60000", 1); /* how long clients wait in the queue */
    struct child clients[CLIENTS];
    char listening[BMI_MAX_ADDR_LEN];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = child_start("client", client, NULL);
    serve("gm://server", 0, listening);
    operations_open();
    test_unexpected = answer;

    unsigned usual = descriptors_allow(1024);
    descriptors_limit(descriptors_open() + SPARE);
    for (int i = 0; i < CLIENTS; i++)
        tell(clients[i].channel, listening, sizeof listening);
    requests_wait(1);
    double share = waiting_share();
    unsigned at_once = requests;
    printf("  %u of %d clients are served at once; %.1f %% of a processor is used meanwhile\n",
           at_once, CLIENTS, share * 100);
    CHECK(at_once <= SPARE / OF_A_CLIENT + 1, "the descriptors did not run out");
    CHECK(share < 0.2 * test_slowness(), "the server spins");

    requests_wait(CLIENTS); /* idle connections end */
    descriptors_limit(usual);
    for (int i = 0; i < CLIENTS; i++) {
        CHECK(hear_number(clients[i].channel) == 0, "the first exchange");
        tell_number(clients[i].channel, 0);
    }
    requests_wait(2 * CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        while (!heard(clients[i].channel, 0))
            operations_step(10);
        CHECK(hear_number(clients[i].channel) == 1, "the second exchange");
        tell_number(clients[i].channel, 0);
        child_end(&clients[i]);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
