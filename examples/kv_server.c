/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kv_server.c - a key/value server: values of up to 64 MB, each in an object of its own, which a
 * state machine for each request moves between network and storage. docs/request-reply.md explains
 * it. SIGINT or SIGTERM ends it.
 *
 *     kv_server tcp://127.0.0.1:0 mem:
 */
#include <bmi/job.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "kv.h"

enum { MACHINES = 64, INDEX = 1 };

static struct bmi_trove_place keys = {.collection = 1, .object = INDEX};

struct work {
    struct bmi_job_accepted accepted; /* first */
    struct kv_request request;
    struct kv_reply reply;
    struct bmi_trove_place value;
    bmi_trove_object_id_t object, former; /* the key's values are object numbers */
    struct bmi_trove_pair pair, old;
    struct bmi_flow_extent all;
};

static int reply(struct bmi_sm *machine, struct work *work, int error)
{
    work->reply.error = error;
    return bmi_job_send(bmi_sm_context(machine), work->accepted.message.addr, &work->reply,
                        sizeof work->reply, BMI_EXT_ALLOC, work->request.tag, BMI_SM_MINE(machine),
                        NULL, NULL);
}

/* Moves the value between its object and the client. */
static int move(struct bmi_sm *machine, struct work *work, bool in)
{
    struct bmi_flow_endpoint client = {.kind = BMI_FLOW_NETWORK},
                             store = {.kind = BMI_FLOW_STORAGE};
    client.u.network.address = work->accepted.message.addr;
    client.u.network.tag = work->request.tag;
    store.u.storage.place = work->value;
    work->all = (struct bmi_flow_extent){.size = work->reply.size, .count = 1};
    struct bmi_flow_description what = {.source = in ? client : store,
                                        .destination = in ? store : client,
                                        .extents = &work->all,
                                        .extent_count = 1,
                                        .flags = in ? BMI_FLOW_DRAIN : 0};
    return bmi_job_flow(bmi_sm_context(machine), &what, BMI_SM_MINE(machine), NULL, NULL);
}

static int begin(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    struct kv_request *request = &work->request;
    if (work->accepted.message.size != sizeof *request)
        return -BMI_EPROTO;
    memcpy(request, work->accepted.message.buffer, sizeof *request);
    request->key[KV_KEY_MAX] = '\0';
    bmi_sm_set_deadline(machine, bmi_job_deadline(KV_DEADLINE_MS));
    work->value = keys;
    work->pair = (struct bmi_trove_pair){.key = request->key,
                                         .key_size = (bmi_size_t)strlen(request->key),
                                         .value = &work->object,
                                         .value_size = sizeof work->object};
    work->old = (struct bmi_trove_pair){.value = &work->former, .value_size = sizeof work->former};
    if (request->operation == KV_PUT && (request->size < 0 || request->size > KV_VALUE_MAX))
        return -BMI_EFBIG;
    return request->operation == KV_PUT ? KV_PUT : KV_GET;
}

/* ---- put ------------------------------------------------------------------------------------- */

static int create(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_create(bmi_sm_context(machine), &work->value, &work->object,
                                              0, BMI_SM_MINE(machine), NULL, NULL));
}

static int receive(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    work->value.object = work->object;
    work->reply.size = work->request.size;
    int flow = move(machine, work, true); /* before the client may begin */
    int sent = flow >= 0 ? reply(machine, work, 0) : flow;
    return sent < 0 ? sent : BMI_SM_DEFERRED;
}

static int swap(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_exchange(bmi_sm_context(machine), &keys, &work->pair, NULL,
                                                &work->old, 1, 0, BMI_SM_MINE(machine), NULL,
                                                NULL));
}

/* Answers, and removes the former value when its readers have finished. */
static int put_answer(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    struct bmi_trove_place former = work->value;
    former.object = work->former;
    bmi_sm_set_deadline(machine, 0);
    if (work->old.error == 0)
        bmi_job_trove_remove(bmi_sm_context(machine), &former, BMI_TROVE_WHEN_RELEASED,
                             BMI_SM_MINE(machine), NULL, NULL);
    reply(machine, work, 0);
    return BMI_SM_DEFERRED;
}

static int drop(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    int why = bmi_sm_last(machine);
    bmi_sm_set_deadline(machine, bmi_job_deadline(KV_DEADLINE_MS));
    bmi_job_trove_remove(bmi_sm_context(machine), &work->value, 0, BMI_SM_MINE(machine), NULL,
                         NULL);
    reply(machine, work, why);
    return BMI_SM_DEFERRED;
}

/* ---- get ------------------------------------------------------------------------------------- */

static int look(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_get(bmi_sm_context(machine), &keys, &work->pair, 1,
                                           BMI_SM_MINE(machine), NULL, NULL));
}

enum { HELD = 0, REPLACED = 1 };

static int hold(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    (void)machine;
    if (work->pair.error != 0)
        return work->pair.error;
    work->value.object = work->object;
    int result = bmi_trove_hold(&work->value);
    return result == -BMI_ENOENT ? REPLACED : result;
}

static int size(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    return bmi_sm_posted(bmi_job_trove_size(bmi_sm_context(machine), &work->value,
                                            &work->reply.size, BMI_SM_MINE(machine), NULL, NULL));
}

static int send(struct bmi_sm *machine, void *data)
{
    int sent = reply(machine, data, 0);
    int flow = sent >= 0 ? move(machine, data, false) : sent;
    return flow < 0 ? flow : BMI_SM_DEFERRED;
}

static int release(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    int result = bmi_sm_last(machine);
    bmi_trove_release(&work->value);
    return result == -BMI_ENOENT ? REPLACED : result; /* removed between look and hold */
}

static int refuse(struct bmi_sm *machine, void *data)
{
    return bmi_sm_posted(reply(machine, data, bmi_sm_last(machine)));
}

enum {
    BEGIN,
    CREATE,
    RECEIVE,
    SWAP,
    PUT_ANSWER,
    DROP,
    LOOK,
    HOLD,
    SIZE,
    SEND,
    UNDO,
    RELEASE,
    REFUSE
};
#define STATE(function, ...)                                         \
    {                                                                \
        .name = #function, .action = function, .on = { __VA_ARGS__ } \
    }
static const struct bmi_sm_state states[] = {
    [BEGIN] = {.name = "begin",
               .action = begin,
               .choices = 2,
               .on = {BMI_SM_ON(KV_PUT, CREATE), BMI_SM_ON(KV_GET, LOOK), BMI_SM_FAIL(REFUSE)}},
    [CREATE] = STATE(create, BMI_SM_OK(RECEIVE), BMI_SM_FAIL(REFUSE)),
    [RECEIVE] = STATE(receive, BMI_SM_OK(SWAP), BMI_SM_FAIL(DROP)),
    [SWAP] = STATE(swap, BMI_SM_OK(PUT_ANSWER), BMI_SM_FAIL(DROP)),
    [PUT_ANSWER] = STATE(put_answer, BMI_SM_ELSE(BMI_SM_END)),
    [DROP] = STATE(drop, BMI_SM_ELSE(BMI_SM_END)),
    [LOOK] = STATE(look, BMI_SM_OK(HOLD), BMI_SM_FAIL(REFUSE)),
    [HOLD] = {.name = "hold",
              .action = hold,
              .choices = 2,
              .on = {BMI_SM_ON(HELD, SIZE), BMI_SM_ON(REPLACED, LOOK), BMI_SM_FAIL(REFUSE)}},
    [SIZE] = STATE(size, BMI_SM_OK(SEND), BMI_SM_FAIL(UNDO)),
    [SEND] = STATE(send, BMI_SM_ELSE(RELEASE)),
    [UNDO] = {.name = "undo",
              .action = release,
              .choices = 2,
              .on = {BMI_SM_ON(REPLACED, LOOK), BMI_SM_ELSE(REFUSE)}},
    [RELEASE] = STATE(release, BMI_SM_ELSE(BMI_SM_END)),
    [REFUSE] = STATE(refuse, BMI_SM_ELSE(BMI_SM_END)),
};
static struct bmi_sm_table requests = BMI_SM_TABLE("kv request", states);

/* ---- the program ----------------------------------------------------------------------------- */

/* Opens the store and makes the object whose keys are the index. */
static int store_open(struct bmi_job_context *context, const char *where)
{
    char why[256];
    bmi_trove_object_id_t index = INDEX;
    bmi_job_id_t id;
    struct bmi_job_status status;
    int result = bmi_trove_open(&keys.store, where, &(struct bmi_trove_settings){.create = true},
                                why, sizeof why);
    if (result < 0) {
        fprintf(stderr, "kv_server: %s\n", why);
        return result;
    }
    bmi_trove_collection_create(keys.store, keys.collection);
    int posted = bmi_job_trove_create(context, &keys, &index, 0, NULL, &id, &status);
    result = bmi_job_wait(context, id, &status, posted, -1);
    return result == -BMI_EEXIST ? 0 : result;
}

/* Serves until a signal comes. */
static int serve(struct bmi_job_context *context)
{
    struct bmi_job_status status;
    int count = 0;
    int result =
        bmi_job_accept(context, &requests, MACHINES, sizeof(struct work), NULL, NULL, NULL);
    if (result == 0)
        result = bmi_job_signal(context, SIGINT, NULL, NULL, NULL);
    if (result == 0)
        result = bmi_job_signal(context, SIGTERM, NULL, NULL, NULL);
    while (result == 0)
        result = bmi_job_testcontext(context, 1, &count, &status, 1000000);
    return result < 0 ? result : status.error;
}

int main(int argc, char **argv)
{
    char url[BMI_MAX_ADDR_LEN];
    struct bmi_job_context *context;
    sigset_t ends;
    if (argc != 3) {
        fprintf(stderr, "usage: kv_server ADDRESS STORE\n");
        return 2;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    int result = BMI_initialize("bmi_tcp", argv[1], BMI_INIT_SERVER);
    if (result < 0)
        goto out;
    result = bmi_job_context_open(0, &context);
    if (result < 0)
        goto undo_bmi;
    result = store_open(context, argv[2]);
    if (result == 0) {
        BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
        printf("%s\n", url);
        fflush(stdout);
        result = serve(context);
    }
    bmi_job_context_close(context);
    bmi_trove_close(keys.store);
undo_bmi:
    BMI_finalize();
out:
    if (result < 0)
        fprintf(stderr, "kv_server: %s\n", bmi_status_string(result));
    return result < 0;
}
