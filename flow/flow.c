/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow.c - posts, tests, and the making of flows. See internal.h for the rules.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/connection/address.h"
#include "bmi/state/library.h"
#include "flow/engine.h"

static void flow_cancel(struct bmi__posted *posted)
{
    bmi__flow_kill((struct flow *)posted, -BMI_ECANCEL);
}

static void flow_free(struct flow *flow)
{
    for (uint32_t i = 0; i < flow->what.buffer_count; i++)
        bmi__chunk_free(&flow->chunks[i]);
    bmi__flow_place_end(flow);
    pthread_mutex_destroy(&flow->lock);
    free(flow->chunks);
    free(flow);
}

static void flow_destroy(struct bmi__posted *posted)
{
    flow_free((struct flow *)posted);
}

struct bmi__space bmi__flow_space = {
    .progress = bmi__engine_poll,
    .source = bmi__engine_source,
    .cancel = flow_cancel,
    .destroy = flow_destroy,
    .sleeps = bmi__engine_sleeps,
    .sleep = bmi__engine_sleep,
    .wake = bmi__engine_wake,
    .fd_used = bmi__engine_fd_used,
    .lock = BMI__SPACE_LOCK,
};

/* ---- making a flow --------------------------------------------------------------------------- */

static int memory_check(const struct bmi_flow_endpoint *end, bmi_size_t total)
{
    bmi_size_t size = 0;
    if (end->u.memory.count < 0 ||
        (end->u.memory.count > 0 && (end->u.memory.buffers == NULL || end->u.memory.sizes == NULL)))
        return -BMI_EINVAL;
    for (int i = 0; i < end->u.memory.count && size < total; i++) {
        bmi_size_t region = end->u.memory.sizes[i];
        if (region < 0 || (region > 0 && end->u.memory.buffers[i] == NULL) ||
            __builtin_add_overflow(size, region, &size))
            return -BMI_EINVAL;
    }
    return size >= total ? 0 : -BMI_EINVAL;
}

/* The instance is that of the flow's context. */
static int network_check(struct bmi_instance *instance, BMI_addr_t address)
{
    const struct bmi_instance *other = bmi_instance_of_addr(address);
    if (other == NULL || other == instance)
        return bmi__running(instance) ? 0 : -BMI_EINVAL;
    bmi__log(instance, BMI_LOG_ERROR,
             "a flow has a context of instance \"%s\" and an address of instance \"%s\"",
             bmi_instance_name(instance), bmi_instance_name(other));
    return -BMI_EINVAL;
}

static int endpoint_check(struct bmi_instance *instance, const struct bmi_flow_endpoint *end,
                          bmi_size_t total)
{
    switch (end->kind) {
    case BMI_FLOW_NETWORK:
        return network_check(instance, end->u.network.address);
    case BMI_FLOW_MEMORY:
        return memory_check(end, total);
    case BMI_FLOW_STORAGE:
        return end->u.storage.place.store != NULL &&
                       (end->u.storage.flags & ~(unsigned)BMI_TROVE_SYNC) == 0
                   ? 0
                   : -BMI_EINVAL;
    default:
        return -BMI_EINVAL;
    }
}

static int description_check(struct bmi_instance *instance, const struct bmi_flow_description *what)
{
    const bmi_size_t largest = (bmi_size_t)1 << 30;
    bmi_size_t total = bmi__flow_request_total(what->extents, what->extent_count);
    if (total < 0)
        return (int)total;
    if (what->source.kind == BMI_FLOW_STORAGE && what->destination.kind == BMI_FLOW_STORAGE)
        return -BMI_EINVAL;
    if ((what->flags & ~(unsigned)(BMI_FLOW_DRAIN | BMI_FLOW_ZEROS)) != 0 || what->timeout_ms < 0 ||
        what->server >= what->servers || !bmi__flow_distribution_valid(what->distribution) ||
        what->buffer_count > 1024 || what->buffer_size < 1 || what->buffer_size > largest)
        return -BMI_EINVAL;
    int source = endpoint_check(instance, &what->source, total);
    return source != 0 ? source : endpoint_check(instance, &what->destination, total);
}

static void description_default(struct bmi_flow_description *what)
{
    if (what->distribution == NULL)
        what->distribution = &bmi_flow_contiguous;
    if (what->servers == 0)
        what->servers = 1;
    if (what->buffer_count == 0)
        what->buffer_count = BMI_FLOW_BUFFERS;
    if (what->buffer_size == 0)
        what->buffer_size = BMI_FLOW_BUFFER_SIZE;
}

static struct flow_memory memory_of(const struct bmi_flow_endpoint *end)
{
    struct flow_memory memory = {0};
    if (end->kind == BMI_FLOW_MEMORY) {
        memory.buffers = end->u.memory.buffers;
        memory.sizes = end->u.memory.sizes;
        memory.count = end->u.memory.count;
    }
    return memory;
}

static uint32_t losses_of(struct bmi_instance *instance, const struct bmi_flow_endpoint *end)
{
    bmi_error_code_t cause;
    return end->kind == BMI_FLOW_NETWORK
               ? bmi__address_losses(instance, end->u.network.address, &cause)
               : 0;
}

/* Whether an end handles memory of malloc as fast as that of BMI_memalloc. */
static bool any_memory(struct bmi_instance *instance, const struct bmi_flow_endpoint *end)
{
    return end->kind != BMI_FLOW_NETWORK ||
           bmi__address_any_memory(instance, end->u.network.address);
}

/* The bytes of the flow, if the request alone determines them; otherwise -1: the walk
 * finds them. */
static bmi_size_t total_of(const struct bmi_flow_description *what)
{
    bmi_size_t total = bmi__flow_request_total(what->extents, what->extent_count);
    if (what->servers == 1)
        return total;
    if (what->distribution == &bmi_flow_contiguous)
        return what->server == 0 ? total : 0;
    return -1;
}

/* Checks the description and sets the flow up by it. Its context is known. */
static int flow_describe(struct flow *flow, const struct bmi_flow_description *what)
{
    struct bmi_instance *instance = flow->engine->instance;
    int result = description_check(instance, what);
    if (result != 0)
        return result;
    flow->chunks = calloc(what->buffer_count, sizeof *flow->chunks);
    if (flow->chunks == NULL)
        return -BMI_ENOMEM;
    for (uint32_t i = 0; i < what->buffer_count; i++)
        flow->chunks[i].flow = flow;
    flow->what = *what;
    flow->walk = (struct flow_walk){.extents = what->extents,
                                    .extent_count = what->extent_count,
                                    .distribution = what->distribution,
                                    .parameters = what->distribution_parameters,
                                    .server = what->server,
                                    .servers = what->servers};
    flow->source_memory = memory_of(&what->source);
    flow->destination_memory = memory_of(&what->destination);
    flow->needs_buffers =
        what->source.kind != BMI_FLOW_MEMORY && what->destination.kind != BMI_FLOW_MEMORY;
    flow->any_memory =
        any_memory(instance, &what->source) && any_memory(instance, &what->destination);
    flow->source_losses = losses_of(instance, &what->source);
    flow->destination_losses = losses_of(instance, &what->destination);
    flow->total = total_of(what);
    return 0;
}

static struct flow *flow_make(void)
{
    struct flow *flow = calloc(1, sizeof *flow);
    if (flow == NULL)
        return NULL;
    flow->space = &bmi__flow_space;
    flow->end_of_stream.flow = flow;
    flow->broken_at = UINT64_MAX;
    flow->arrived_end = &flow->arrived;
    pthread_mutex_init(&flow->lock, NULL);
    return flow;
}

/* For a flow that uses the network. */
static int network_open(struct flow_engine *engine)
{
    if (bmi__engine_sleeps(engine))
        return 0;
    int result = bmi__engine_network_open(engine);
    if (result == 0) /* from now on they sleep in the network's wait */
        bmi__space_wake(&bmi__flow_space, engine);
    return result;
}

static int flow_begin(struct flow *flow, const struct bmi_flow_description *what)
{
    struct flow_engine *engine = flow->engine;
    int result = flow_describe(flow, what);
    if (result == 0 &&
        (what->source.kind == BMI_FLOW_NETWORK || what->destination.kind == BMI_FLOW_NETWORK))
        result = network_open(engine);
    if (result != 0)
        return result;
    bmi__flow_place(flow);
    flow->network = bmi__engine_network(engine);
    flow->storage = bmi__engine_storage(engine);
    if (what->timeout_ms > 0)
        bmi__deadline_add(flow);
    bmi__flow_start(flow);
    return 0;
}

int bmi_flow_post(bmi_flow_id_t *id, const struct bmi_flow_description *description, void *user_ptr,
                  bmi_flow_context_id_t context)
{
    if (id != NULL)
        *id = 0;
    if (id == NULL || description == NULL)
        return -BMI_EINVAL;
    struct bmi_flow_description what = *description;
    description_default(&what);
    struct flow *flow = flow_make();
    if (flow == NULL)
        return -BMI_ENOMEM;
    int result = bmi__posted_begin(&bmi__flow_space, &flow->posted, context, user_ptr, id);
    if (result != 0) {
        flow_free(flow);
        return bmi__error(result);
    }
    flow->engine = bmi__posted_owner(&flow->posted); /* the context cannot close meanwhile */
    result = flow_begin(flow, &what);
    if (result == 0)
        return bmi__posted_end(&bmi__flow_space, &flow->posted, POSTED_IMMEDIATE_SUCCESS, id);
    bmi__posted_complete(&bmi__flow_space, &flow->posted, result, 0);
    return bmi__posted_end(&bmi__flow_space, &flow->posted, POSTED_IMMEDIATE_ALWAYS, id);
}

/* ---- contexts, tests, questions -------------------------------------------------------------- */

static void after_fork_child(void)
{
    bmi__space_forget(&bmi__flow_space);
    bmi__engines_forget();
    bmi__buffers_forget();
    bmi__flow_steps_forget();
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

int bmi__flow_context_open(struct bmi_instance *instance, bmi_flow_context_id_t *context)
{
    static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
    struct flow_engine *engine;
    pthread_once(&fork_once, fork_watch);
    int result = bmi__engine_open(instance, &engine);
    if (result != 0)
        return result;
    bmi__flow_place_prepare();
    result = bmi__space_open_context(&bmi__flow_space, engine, context);
    if (result != 0)
        bmi__engine_close(engine);
    return result;
}

/* Flows between memory and storage need no running BMI. */
int bmi_flow_context_open(bmi_flow_context_id_t *context)
{
    return context != NULL ? bmi__flow_context_open(&bmi__default, context) : -BMI_EINVAL;
}

int bmi_instance_flow_context_open(struct bmi_instance *instance, bmi_flow_context_id_t *context)
{
    if (instance == NULL || context == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    return bmi__flow_context_open(instance, context);
}

int bmi_flow_context_close(bmi_flow_context_id_t context)
{
    struct flow_engine *engine = bmi__space_context_owner(&bmi__flow_space, context);
    int result = bmi__space_close_context(&bmi__flow_space, context);
    if (result == 0)
        bmi__engine_close(engine);
    return result;
}

bmi_trove_context_id_t bmi__flow_context_storage(bmi_flow_context_id_t context)
{
    return bmi__engine_storage(bmi__space_context_owner(&bmi__flow_space, context));
}

int bmi_flow_context_fd(bmi_flow_context_id_t context)
{
    return bmi__space_context_fd(&bmi__flow_space, context);
}

int bmi_flow_context_notify(bmi_flow_context_id_t context, void (*notify)(void *argument),
                            void *argument)
{
    return bmi__space_context_notify(&bmi__flow_space, context, notify, argument);
}

int bmi_flow_test(bmi_flow_id_t flow, int *outcount, bmi_error_code_t *error, bmi_size_t *actual,
                  void **user_ptr, int max_idle_ms, bmi_flow_context_id_t context)
{
    if (flow == 0 && outcount != NULL)
        *outcount = 0;
    return flow == 0 ? -BMI_EINVAL
                     : bmi__space_test(&bmi__flow_space, 1, &flow, outcount, NULL, error, actual,
                                       user_ptr, max_idle_ms, context);
}

int bmi_flow_testsome(int incount, const bmi_flow_id_t *flows, int *outcount, int *index,
                      bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                      int max_idle_ms, bmi_flow_context_id_t context)
{
    if (incount > 0 && index == NULL)
        return -BMI_EINVAL;
    return bmi__space_test(&bmi__flow_space, incount, flows, outcount, index, errors, actuals,
                           user_ptrs, max_idle_ms, context);
}

int bmi_flow_testcontext(int incount, bmi_flow_id_t *flows, int *outcount, bmi_error_code_t *errors,
                         bmi_size_t *actuals, void **user_ptrs, int max_idle_ms,
                         bmi_flow_context_id_t context)
{
    return bmi__space_testcontext(&bmi__flow_space, incount, flows, outcount, errors, actuals,
                                  user_ptrs, max_idle_ms, context);
}

int bmi_flow_cancel(bmi_flow_id_t flow, bmi_flow_context_id_t context)
{
    return bmi__space_cancel(&bmi__flow_space, flow, context);
}

static void progress_look(struct bmi__posted *posted, void *argument)
{
    const struct flow *flow = (const struct flow *)posted;
    struct bmi_flow_progress *progress = argument;
    *progress = (struct bmi_flow_progress){
        .total = atomic_load(&flow->total),
        .taken = atomic_load(&flow->taken),
        .delivered = atomic_load(&flow->delivered),
        .good = atomic_load(&flow->good),
        .copied = atomic_load(&flow->copied),
        .in_flight = atomic_load(&flow->in_flight),
    };
}

int bmi_flow_progress(bmi_flow_id_t flow, struct bmi_flow_progress *progress,
                      bmi_flow_context_id_t context)
{
    if (progress == NULL)
        return -BMI_EINVAL;
    return bmi__space_look(&bmi__flow_space, flow, context, progress_look, progress);
}
