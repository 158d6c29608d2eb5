/* SPDX-License-Identifier: BSD-3-Clause
 *
 * depot_client.c - puts bytes, gets them back, and is refused: docs/request-reply.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "depot.h"

static struct bmi_job_context *context;
static BMI_addr_t server;

struct call {
    struct depot_request request;
    struct depot_reply replies[2];
    bmi_job_id_t ids[2];
    struct bmi_job_status statuses[2];
    int posted[2];
};

/* Waits for a reply; `ms` 0 cancels its receive. Returns the reply's result. */
static int reply(struct call *call, int which, int ms)
{
    int result =
        bmi_job_wait(context, call->ids[which], &call->statuses[which], call->posted[which], ms);
    return result < 0 ? result : call->replies[which].error;
}

/* Posts the receives of `count` replies, sends the request, waits for the first reply. */
static int ask(struct call *call, int count)
{
    bmi_job_id_t id;
    struct bmi_job_status status;
    call->request.tag = bmi_tag_take(server);
    for (int i = 0; i < count; i++)
        call->posted[i] =
            bmi_job_recv(context, server, &call->replies[i], sizeof *call->replies, BMI_EXT_ALLOC,
                         call->request.tag, NULL, &call->ids[i], &call->statuses[i]);
    int sent = bmi_job_sendunexpected(context, server, &call->request, sizeof call->request,
                                      BMI_EXT_ALLOC, 1, NULL, &id, &status);
    sent = bmi_job_wait(context, id, &status, sent, DEPOT_MS);
    int result = reply(call, 0, sent < 0 ? 0 : DEPOT_MS);
    return sent < 0 ? sent : result;
}

static int move(struct call *call, void *bytes, bmi_size_t size)
{
    const struct bmi_flow_extent all = {.size = size, .count = 1};
    struct bmi_flow_endpoint peer = {.kind = BMI_FLOW_NETWORK}, memory = {.kind = BMI_FLOW_MEMORY};
    bmi_job_id_t id;
    struct bmi_job_status status;
    peer.u.network.address = server;
    peer.u.network.tag = call->request.tag;
    memory.u.memory.buffers = &bytes;
    memory.u.memory.sizes = &size;
    memory.u.memory.count = 1;
    struct bmi_flow_description what = call->request.operation == DEPOT_PUT
                                           ? depot_flow(memory, peer, &all)
                                           : depot_flow(peer, memory, &all);
    int posted = bmi_job_flow(context, &what, NULL, &id, &status);
    return bmi_job_wait(context, id, &status, posted, DEPOT_MS);
}

static int put(char *bytes, bmi_size_t size, uint64_t *number)
{
    struct call call = {.request = {.operation = DEPOT_PUT, .size = size}};
    int result = ask(&call, 2);
    if (result == 0)
        result = move(&call, bytes, size);
    int last = reply(&call, 1, result < 0 ? 0 : DEPOT_MS);
    bmi_tag_give(server, call.request.tag);
    *number = call.replies[1].number;
    return result < 0 ? result : last;
}

static int get(uint64_t number, char **bytes, bmi_size_t *size)
{
    struct call call = {.request = {.operation = DEPOT_GET, .number = number}};
    int result = ask(&call, 1);
    *size = call.replies[0].size; /* known now */
    *bytes = result == 0 ? malloc((size_t)*size + 1) : NULL;
    if (result == 0)
        result = *bytes != NULL ? move(&call, *bytes, *size) : -BMI_ENOMEM;
    bmi_tag_give(server, call.request.tag);
    return result;
}

int main(int argc, char **argv)
{
    static char bytes[3000000];
    char *back = NULL, *none = NULL;
    uint64_t number;
    bmi_size_t size;
    memset(bytes, 'x', sizeof bytes);
    if (argc != 2 || BMI_initialize(NULL, NULL, 0) < 0 || BMI_addr_lookup(&server, argv[1]) < 0 ||
        bmi_job_context_open(0, &context) < 0)
        return 1;
    int result = put(bytes, sizeof bytes, &number);
    printf("put: %s\n", bmi_status_string(result));
    if (result == 0)
        result = get(number, &back, &size);
    bool same = result == 0 && size == sizeof bytes && memcmp(bytes, back, sizeof bytes) == 0;
    printf("get: %s, %s\n", bmi_status_string(result), same ? "the same" : "another");
    printf("get of nothing: %s\n", bmi_status_string(get(number + 1, &none, &size)));
    printf("put of too much: %s\n", bmi_status_string(put(bytes, DEPOT_MAX + 1, &number)));
    free(back);
    bmi_job_context_close(context);
    return BMI_finalize() < 0 || !same;
}
