/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.c - bmi_job_serve: a machine for each request of a service (bmi/rpc.h), and bmi_job_rpc.
 *
 * A request has a struct served, with the machine's data behind it, from its arrival until both the
 * request and its machine are over. A struct serve, of the job, lives until its job and all of
 * these have gone. Only a machine keeps the job pending, and with it the context: a request whose
 * body does not come does not hold up the end of a server.
 *
 * Locks. A serve's lock guards its counts, and the marked members of its requests. It is taken
 * within a context's lock, and before a peer's: a machine that ends calls bmi_rpc_fail under it,
 * since the request may end at any time. The poller alone calls the functions of the service.
 */
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>

#include "bmi/instance.h"
#include "job/internal.h"

struct bmi__serve {
    struct bmi_job_context *context; /* while the job is pending */
    struct bmi__job *job;            /* the same */
    struct bmi_job_service service;
    void *user_ptr;
    pthread_mutex_t lock;
    /* below: lock */
    unsigned users; /* the job, the service, and requests */
    unsigned machines;
    uint64_t started;
    bool stopping;
    char name[BMI_RPC_NAME_MAX];
};

struct served {
    struct bmi__serve *serve;
    bmi_job_id_t machine;                             /* poller */
    bool running;                                     /* serve's lock: its machine is alive */
    bool over;                                        /* serve's lock: the request has ended */
    alignas(max_align_t) struct bmi_job_request data; /* data_size bytes */
};

static struct served *served_of(void *data)
{
    return (struct served *)((char *)data - offsetof(struct served, data));
}

/* ---- life ------------------------------------------------------------------------------------ */

static void serve_put(struct bmi__serve *serve)
{
    pthread_mutex_lock(&serve->lock);
    bool last = --serve->users == 0;
    pthread_mutex_unlock(&serve->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&serve->lock);
    free(serve);
}

/* The request and its machine are over. */
static void served_free(struct served *served)
{
    struct bmi__serve *serve = served->serve;
    if (serve->service.release != NULL)
        serve->service.release(&served->data);
    free(served);
    serve_put(serve);
}

/* Ends the job after its last machine. The caller keeps the context by `runners`. */
static void job_end(struct bmi_job_context *context, struct bmi__serve *serve)
{
    struct bmi__job_ends ends = {0};
    bmi_lock_take(&context->lock);
    bmi__job_end_locked(context, serve->job, -BMI_ECANCEL, (bmi_size_t)serve->started, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    serve_put(serve);
}

void bmi__job_serve_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                                  struct bmi__job_ends *ends)
{
    struct bmi__serve *serve = job->serve;
    pthread_mutex_lock(&serve->lock);
    bool first = !serve->stopping, over = first && serve->machines == 0;
    serve->stopping = true;
    pthread_mutex_unlock(&serve->lock);
    if (first)
        bmi_instance_rpc_unregister(context->instance, serve->name);
    if (!over)
        return;
    bmi__job_end_locked(context, job, -BMI_ECANCEL, (bmi_size_t)serve->started, ends);
    serve_put(serve);
}

/* ---- machines -------------------------------------------------------------------------------- */

/* A machine that did not end its request has failed to. */
static void request_end(struct bmi_rpc_request *request, int result)
{
    if (result < 0)
        bmi_rpc_fail(request, result);
    else if (bmi_rpc_is_one_way(request))
        bmi_rpc_reply(request, NULL);
    else
        bmi_rpc_fail(request, -BMI_EREMOTE);
}

void bmi__job_served_end(struct bmi_job_context *context, void *data, int result)
{
    struct served *served = served_of(data);
    struct bmi__serve *serve = served->serve;
    pthread_mutex_lock(&serve->lock);
    if (!served->over)
        request_end(served->data.request, result); /* refused if an action has ended it */
    served->running = false;
    bool gone = served->over, last = --serve->machines == 0 && serve->stopping;
    pthread_mutex_unlock(&serve->lock);
    if (gone)
        served_free(served);
    if (last)
        job_end(context, serve);
}

/* ---- the service, called by the poller ------------------------------------------------------- */

static int serve_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct bmi__serve *serve = bmi_rpc_argument(request);
    struct served *served = calloc(1, offsetof(struct served, data) + serve->service.data_size);
    if (served == NULL)
        return -BMI_ENOMEM;
    served->serve = serve;
    served->data = (struct bmi_job_request){.request = request, .user_ptr = serve->user_ptr};
    pthread_mutex_lock(&serve->lock);
    serve->users++;
    bool stopping = serve->stopping;
    pthread_mutex_unlock(&serve->lock);
    bmi_rpc_set_data(request, &served->data);
    if (stopping)
        return -BMI_ENOSYS;
    return serve->service.arrived != NULL ? serve->service.arrived(request, arguments) : 0;
}

/* Counts a machine to be started; then the context stays. Returns whether the job goes on. */
static bool machine_reserve(struct served *served)
{
    struct bmi__serve *serve = served->serve;
    pthread_mutex_lock(&serve->lock);
    bool going = !serve->stopping;
    if (going) {
        atomic_fetch_add(&serve->context->runners, 1);
        serve->machines++;
        serve->started++;
        served->running = true;
    }
    pthread_mutex_unlock(&serve->lock);
    return going;
}

static void serve_run(struct bmi_rpc_request *request)
{
    struct served *served = served_of(bmi_rpc_data(request));
    struct bmi__serve *serve = served->serve;
    struct bmi_job_context *context = serve->context;
    if (!machine_reserve(served)) {
        bmi_rpc_fail(request, -BMI_ENOSYS);
        return;
    }
    int result = bmi__sm_start_owned(context, serve->service.table, &served->data, SM_SERVED,
                                     &served->machine);
    if (result < 0)
        bmi__job_served_end(context, &served->data, result);
    atomic_fetch_sub(&context->runners, 1); /* the last access to it */
}

/* Cancels the machine. While it is alive, so is the context. */
static void serve_cancelled(struct bmi_rpc_request *request)
{
    struct served *served = served_of(bmi_rpc_data(request));
    struct bmi__serve *serve = served->serve;
    struct bmi_job_context *context = NULL;
    pthread_mutex_lock(&serve->lock);
    if (served->running) {
        context = serve->context;
        atomic_fetch_add(&context->runners, 1);
    }
    pthread_mutex_unlock(&serve->lock);
    if (context == NULL)
        return;
    bmi_job_cancel(context, served->machine);
    atomic_fetch_sub(&context->runners, 1);
}

static void serve_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    void *data = bmi_rpc_data(request);
    (void)status;
    if (data == NULL)
        return;
    struct served *served = served_of(data);
    struct bmi__serve *serve = served->serve;
    pthread_mutex_lock(&serve->lock);
    served->over = true;
    bool gone = !served->running;
    pthread_mutex_unlock(&serve->lock);
    if (gone)
        served_free(served);
}

static void serve_withdrawn(void *argument)
{
    serve_put(argument);
}

/* ---- posting --------------------------------------------------------------------------------- */

static struct bmi__serve *serve_new(struct bmi_job_context *context, struct bmi__job *job,
                                    const char *name, const struct bmi_job_service *service)
{
    struct bmi__serve *serve = calloc(1, sizeof *serve);
    if (serve == NULL)
        return NULL;
    *serve = (struct bmi__serve){
        .context = context, .job = job, .service = *service, .user_ptr = job->user_ptr, .users = 2};
    if (service->data_size == 0)
        serve->service.data_size = sizeof(struct bmi_job_request);
    snprintf(serve->name, sizeof serve->name, "%s", name);
    pthread_mutex_init(&serve->lock, NULL);
    job->serve = serve;
    return serve;
}

static int service_valid(const struct bmi_job_context *context, const char *name,
                         const struct bmi_job_service *service,
                         const struct bmi_job_options *options)
{
    if (name == NULL || service == NULL || service->table == NULL ||
        (service->data_size > 0 && service->data_size < sizeof(struct bmi_job_request)) ||
        (options != NULL && options->machine != NULL))
        return -BMI_EINVAL;
    int frames = bmi__sm_frames(context, service->table);
    return frames < 0 ? frames : 0;
}

int bmi_job_serve(struct bmi_job_context *context, const char *name,
                  const struct bmi_job_service *service, const struct bmi_job_options *options,
                  bmi_job_id_t *id, struct bmi_job_status *status)
{
    struct bmi_rpc_service calls = {.arrived = serve_arrived,
                                    .run = serve_run,
                                    .cancelled = serve_cancelled,
                                    .ended = serve_ended,
                                    .withdrawn = serve_withdrawn};
    calls.timeout_ms = service != NULL ? service->timeout_ms : 0;
    int result = service_valid(context, name, service, options);
    if (id != NULL)
        *id = 0;
    if (result < 0)
        return result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_SERVE, options, id, status, &result);
    if (job == NULL)
        return result;
    struct bmi__serve *serve = serve_new(context, job, name, service);
    calls.argument = serve;
    result =
        serve != NULL ? bmi_instance_rpc_register(context->instance, name, &calls) : -BMI_ENOMEM;
    if (result < 0 && serve != NULL) {
        serve_put(serve); /* the service's */
        serve_put(serve);
    }
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_rpc(struct bmi_job_context *context, BMI_addr_t server, const char *service,
                struct bmi_message *request, bmi_rpc_unpack unpack, void *unpack_argument,
                const struct bmi_rpc_options *call, const struct bmi_job_options *options,
                bmi_job_id_t *id, struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_RPC, options, id, status, &result);
    if (job == NULL) {
        bmi_message_free(request);
        return result;
    }
    result = bmi_rpc_call(&job->op, server, service, request, unpack, unpack_argument, call, job,
                          context->bmi);
    return bmi__job_posted(context, job, result, id, status);
}
