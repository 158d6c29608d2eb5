/* SPDX-License-Identifier: BSD-3-Clause
 *
 * depot_server.c - stores bytes under numbers that it assigns: docs/request-reply.md. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "depot.h"

static struct bmi_trove_place depot = {.collection = 1};

struct work {
    struct bmi_job_accepted accepted; /* first */
    struct depot_request request;
    struct depot_reply reply;
    struct bmi_trove_place place;
    struct bmi_flow_extent all;
};

static int answer(struct bmi_sm *machine, struct work *work)
{
    return bmi_job_send(bmi_sm_context(machine), work->accepted.message.addr, &work->reply,
                        sizeof work->reply, BMI_EXT_ALLOC, work->request.tag, BMI_SM_MINE(machine),
                        NULL, NULL);
}

static int move(struct bmi_sm *machine, struct work *work)
{
    struct bmi_flow_endpoint peer = {.kind = BMI_FLOW_NETWORK}, disk = {.kind = BMI_FLOW_STORAGE};
    peer.u.network.address = work->accepted.message.addr;
    peer.u.network.tag = work->request.tag;
    disk.u.storage.place = work->place;
    work->all = (struct bmi_flow_extent){.size = work->reply.size, .count = 1};
    struct bmi_flow_description what = work->request.operation == DEPOT_PUT
                                           ? depot_flow(peer, disk, &work->all)
                                           : depot_flow(disk, peer, &work->all);
    return bmi_job_flow(bmi_sm_context(machine), &what, BMI_SM_MINE(machine), NULL, NULL);
}

static int begin(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    if (work->accepted.message.size != sizeof work->request)
        return -BMI_EPROTO;
    memcpy(&work->request, work->accepted.message.buffer, sizeof work->request);
    bmi_sm_set_deadline(machine, bmi_job_deadline(DEPOT_MS));
    work->place = depot;
    work->place.object = work->request.number;
    work->reply.size = work->request.size;
    if (work->request.operation == DEPOT_GET)
        return DEPOT_GET;
    return work->request.size >= 0 && work->request.size <= DEPOT_MAX ? DEPOT_PUT : -BMI_EFBIG;
}

static int create(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_create(bmi_sm_context(machine), &depot, &work->reply.number,
                                              0, BMI_SM_MINE(machine), NULL, NULL));
}

static int receive(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    work->place.object = work->reply.number;
    int flow = move(machine, work); /* posted before the client is asked to begin */
    int sent = flow < 0 ? flow : answer(machine, work);
    return sent < 0 ? sent : BMI_SM_DEFERRED;
}

static int size(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_size(bmi_sm_context(machine), &work->place,
                                            &work->reply.size, BMI_SM_MINE(machine), NULL, NULL));
}

static int send(struct bmi_sm *machine, void *data)
{
    int sent = answer(machine, data), flow = sent < 0 ? sent : move(machine, data);
    return flow < 0 ? flow : BMI_SM_DEFERRED;
}

static int finish(struct bmi_sm *machine, void *data) /* the last reply of a put, or a refusal */
{
    struct work *work = data;
    work->reply.error = bmi_sm_last(machine);
    bmi_sm_set_deadline(machine, bmi_job_deadline(DEPOT_MS));
    return bmi_sm_posted(answer(machine, work));
}

enum { BEGIN, CREATE, RECEIVE, SIZE, SEND, FINISH };
static const struct bmi_sm_state states[] = {
    [BEGIN] = {.name = "begin",
               .action = begin,
               .choices = 2,
               .on = {BMI_SM_ON(DEPOT_PUT, CREATE), BMI_SM_ON(DEPOT_GET, SIZE),
                      BMI_SM_FAIL(FINISH)}},
    [CREATE] = {.name = "create",
                .action = create,
                .on = {BMI_SM_OK(RECEIVE), BMI_SM_FAIL(FINISH)}},
    [RECEIVE] = {.name = "receive", .action = receive, .on = {BMI_SM_ELSE(FINISH)}},
    [SIZE] = {.name = "size", .action = size, .on = {BMI_SM_OK(SEND), BMI_SM_FAIL(FINISH)}},
    [SEND] = {.name = "send", .action = send, .on = {BMI_SM_ELSE(BMI_SM_END)}},
    [FINISH] = {.name = "finish", .action = finish, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table requests = BMI_SM_TABLE("request", states);

int main(void)
{
    char url[BMI_MAX_ADDR_LEN];
    struct bmi_job_context *context;
    struct bmi_job_status status;
    bmi_job_id_t interrupt;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before BMI has threads */
    if (BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER) < 0 ||
        bmi_trove_open(&depot.store, "mem:", NULL, NULL, 0) < 0 ||
        bmi_trove_collection_create(depot.store, depot.collection) < 0 ||
        bmi_job_context_open(0, &context) < 0 ||
        bmi_job_accept(context, &requests, 64, sizeof(struct work), NULL, NULL, NULL) < 0 ||
        bmi_job_signal(context, SIGINT, NULL, &interrupt, NULL) < 0)
        return 1;
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
    printf("%s\n", url);
    fflush(stdout);
    int result = bmi_job_wait(context, interrupt, &status, 0, -1); /* serves meanwhile */
    bmi_job_context_close(context);
    bmi_trove_close(depot.store);
    return BMI_finalize() < 0 || result < 0;
}
