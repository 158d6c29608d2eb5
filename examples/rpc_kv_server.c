/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_kv_server.c - a key/value server over remote procedure calls, with values of up to 16 MiB.
 * SIGINT or SIGTERM ends it.
 *
 *     rpc_kv_server tcp://127.0.0.1:0 mem:
 *
 * service    request                   reply
 * kv.put     key, value (cheaper)      -
 * kv.get     key                       value (cheaper)
 * kv.delete  key                       -
 *
 * A value is read from the network straight into memory that put_arrived allocates once it knows
 * the size. One thread does everything: `run` posts an operation of storage as a job whose user
 * pointer is the request, and the loop in `serve` ends the request when the job has ended.
 */
#include <bmi/job.h>
#include <bmi/rpc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 1 };

static struct bmi_trove_place keys = {.collection = 1, .object = KEYS};
static struct bmi_job_context *context;
static int alive; /* requests */

struct work {
    struct bmi_rpc_request *request;
    const char *service;
    struct bmi_trove_pair pair; /* the key is in the request, the value in memory of our own */
};

/* ---- requests arrive ------------------------------------------------------------------------- */

static int key_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    const char *key;
    struct work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return -BMI_ENOMEM;
    alive++;
    *work = (struct work){.request = request, .service = bmi_rpc_argument(request)};
    bmi_rpc_set_data(request, work);
    int result = bmi_unpack_string(arguments, &key);
    if (result == 0) {
        work->pair.key = (void *)(uintptr_t)key;
        work->pair.key_size = (bmi_size_t)strlen(key);
    }
    return result;
}

static int put_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    int result = key_arrived(request, arguments);
    if (result < 0)
        return result;
    struct work *work = bmi_rpc_data(request);
    struct bmi_trove_pair *pair = &work->pair;
    result = bmi_unpack_size(arguments, &pair->value_size);
    if (result == 0 && pair->value_size > BMI_TROVE_VALUE_MAX)
        result = -BMI_EFBIG;
    if (result < 0)
        return result;
    pair->value = malloc((size_t)pair->value_size + 1);
    if (pair->value == NULL)
        return -BMI_ENOMEM;
    return bmi_unpack(arguments, pair->value, pair->value_size, BMI_UNPACK_CHEAPER);
}

static void ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    struct work *work = bmi_rpc_data(request);
    (void)status;
    if (work == NULL)
        return;
    free(work->pair.value); /* a reply with it has been sent */
    free(work);
    alive--;
}

/* ---- and run --------------------------------------------------------------------------------- */

static int post(struct work *work)
{
    const struct bmi_job_options options = {.user_ptr = work};
    if (strcmp(work->service, "kv.put") == 0)
        return bmi_job_trove_put(context, &keys, &work->pair, 1, 0, &options, NULL, NULL);
    if (strcmp(work->service, "kv.get") == 0)
        return bmi_job_trove_get(context, &keys, &work->pair, 1, &options, NULL, NULL);
    return bmi_job_trove_remove_keys(context, &keys, &work->pair, 1, 0, &options, NULL, NULL);
}

/* A get had too little room, at first none: it is repeated with as much as the value needs. */
static int grow(struct work *work)
{
    free(work->pair.value);
    work->pair.value = malloc((size_t)work->pair.value_size + 1);
    return work->pair.value != NULL ? post(work) : -BMI_ENOMEM;
}

/* The request's operation has ended: replies with its result. */
static void finish(struct work *work, int result)
{
    while (result == 0 && work->pair.error == -BMI_EMSGSIZE) {
        result = grow(work);
        if (result == 0)
            return; /* pending */
        result = result > 0 ? 0 : result;
    }
    result = result < 0 ? result : work->pair.error;
    if (result < 0) {
        bmi_rpc_fail(work->request, result);
        return;
    }
    struct bmi_message *reply = NULL; /* an empty one */
    if (strcmp(work->service, "kv.get") == 0) {
        reply = bmi_message_new();
        bmi_pack(reply, work->pair.value, work->pair.value_size,
                 BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    }
    bmi_rpc_reply(work->request, reply);
}

static void run(struct bmi_rpc_request *request)
{
    struct work *work = bmi_rpc_data(request);
    int posted = post(work);
    if (posted != 0)
        finish(work, posted < 0 ? posted : 0);
}

/* ---- the program ----------------------------------------------------------------------------- */

static int services_register(void)
{
    struct bmi_rpc_service put = {.arrived = put_arrived,
                                  .run = run,
                                  .ended = ended,
                                  .argument = "kv.put"};
    struct bmi_rpc_service get = {.arrived = key_arrived,
                                  .run = run,
                                  .ended = ended,
                                  .argument = "kv.get"};
    struct bmi_rpc_service delete = {.arrived = key_arrived,
                                     .run = run,
                                     .ended = ended,
                                     .argument = "kv.delete"};
    int result = bmi_rpc_register("kv.put", &put);
    if (result == 0)
        result = bmi_rpc_register("kv.get", &get);
    return result < 0 ? result : bmi_rpc_register("kv.delete", &delete);
}

/* Opens the store and makes the object that holds the keys. */
static int store_open(const char *where)
{
    char why[256];
    bmi_trove_object_id_t object = KEYS;
    bmi_job_id_t id;
    struct bmi_job_status status;
    int result = bmi_trove_open(&keys.store, where, &(struct bmi_trove_settings){.create = true},
                                why, sizeof why);
    if (result < 0) {
        fprintf(stderr, "rpc_kv_server: %s\n", why);
        return result;
    }
    bmi_trove_collection_create(keys.store, keys.collection);
    int posted = bmi_job_trove_create(context, &keys, &object, 0, NULL, &id, &status);
    result = bmi_job_wait(context, id, &status, posted, -1);
    return result == -BMI_EEXIST ? 0 : result;
}

static void services_unregister(void)
{
    bmi_rpc_unregister("kv.put");
    bmi_rpc_unregister("kv.get");
    bmi_rpc_unregister("kv.delete");
}

/* Serves until a signal comes, and ends the requests that have arrived. */
static int serve(void)
{
    struct bmi_job_status status;
    int result = services_register(), count;
    if (result == 0)
        result = bmi_job_signal(context, SIGINT, NULL, NULL, NULL);
    if (result == 0)
        result = bmi_job_signal(context, SIGTERM, NULL, NULL, NULL);
    for (bool ending = false; result >= 0 && (!ending || alive > 0);) {
        result = bmi_job_testcontext(context, 1, &count, &status, ending ? 10 : 1000000);
        if (result <= 0)
            continue;
        if (status.kind == BMI_JOB_TROVE) {
            finish(status.user_ptr, status.error);
        } else {
            ending = true;
            services_unregister();
        }
    }
    return result < 0 ? result : 0;
}

int main(int argc, char **argv)
{
    char url[BMI_MAX_ADDR_LEN];
    sigset_t ends;
    if (argc != 3) {
        fprintf(stderr, "usage: rpc_kv_server ADDRESS STORE\n");
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
    result = store_open(argv[2]);
    if (result == 0) {
        BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
        printf("%s\n", url);
        fflush(stdout);
        result = serve();
    }
    bmi_job_context_close(context);
    bmi_trove_close(keys.store);
undo_bmi:
    BMI_finalize();
out:
    if (result < 0)
        fprintf(stderr, "rpc_kv_server: %s\n", bmi_status_string(result));
    return result < 0;
}
