/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ib.c - the ib method: frames over libfabric. Its operations, its start and its end.
 *
 * Four tables from one source, which differ in the providers that they take: "ib" the best one for
 * RDMA that this host has, "ofi+..." one by name. Each is a network of its own, with an endpoint of
 * its own.
 */
#include "ib.h"
#include "methods/ip/ip.h"

enum { EAGER_MAX = 16384, UNEXPECTED_MAX = 65536, FRAME_MAX = 262144 };

_Static_assert(sizeof(struct ib_link) <= 512, "an idle link stays small");

static struct ib_kind kind_ib = {
    .scheme = "ib",
    .providers = {"verbs;ofi_rxm", "efa", "psm3", "psm2"},
    .advice =
        "Is the device up (ibv_devinfo), its port active, its network interface given an address? "
        "Without RDMA hardware, use tcp://"};
static struct ib_kind kind_tcp = {.scheme = "ofi+tcp",
                                  .providers = {"tcp;ofi_rxm", "tcp"},
                                  .advice =
                                      "Is FI_PROVIDER set to others, or no network interface up?"};
static struct ib_kind kind_shm = {.scheme = "ofi+shm",
                                  .providers = {"shm"},
                                  .advice = "Is FI_PROVIDER set to others, or /dev/shm missing?"};
static struct ib_kind kind_verbs = {
    .scheme = "ofi+verbs",
    .providers = {"verbs;ofi_rxm"},
    .advice =
        "Is the device up (ibv_devinfo), its port active, its network interface given an address?"};

static const struct bmi_setting_spec settings[] = {
    {"ofi_register_all", BMI_SETTING_SWITCH, 0, 0, 1,
     "register all memory of transfers as for an RDMA device, also for ofi+tcp, ofi+shm: a test"},
    IP_SETTINGS,
    {0}};

static struct bmi_lock limits_lock;

/* The table's limits are of all instances: the first one that runs sets them. Others keep to them,
 * though they might do more; one that must do less does not start. */
static int limits_take(struct bmi_method *method, struct ib_kind *kind, bool put, bool get)
{
    struct bmi_method_limits *limits = &method->limits;
    int status = 0;
    ib_lock(&limits_lock);
    if (kind->running > 0 && ((limits->put && !put) || (limits->get && !get)))
        status = -EBUSY;
    if (kind->running == 0 && limits->put != put)
        limits->put = put;
    if (kind->running == 0 && limits->get != get)
        limits->get = get;
    if (status == 0)
        kind->running++;
    ib_unlock(&limits_lock);
    return status;
}

static void limits_give(struct ib_kind *kind)
{
    ib_lock(&limits_lock);
    kind->running--;
    ib_unlock(&limits_lock);
}

/* If connections cannot be cut, no peer may access the program's memory: bytes that are under way
 * could arrive when the memory is the program's again. */
static int puts_allow(struct bmi_method *method, struct ib_state *state)
{
    bool safe = ib_library.cuts || !ib_provider_connects(state->provider);
    bool shm = strcmp(state->provider, "shm") == 0;
    bool put = safe && !shm, get = shm ? ib_reads_allowed(state->instance) : safe;
    int status = limits_take(method, state->kind, put, get);
    if (status) {
        bmi_method_log(state->instance, BMI_LOG_ERROR, NULL,
                       "%s: another instance of this process has puts or gets, this one cannot",
                       state->kind->scheme);
        return status;
    }
    state->reads = shm && method->limits.get;
    if (!safe)
        bmi_method_log(state->instance, BMI_LOG_WARN, NULL,
                       "%s: no puts and gets: this program has called libfabric before, without "
                       "FI_AV_REMOVE_CLEANUP=1 in its environment",
                       state->kind->scheme);
    return 0;
}

/* After the calls that were deferred before the stop: they find nothing to do. */
static void state_free(struct bmi_deferred *deferred)
{
    free(ib_container(deferred, struct ib_state, gone));
}

static int ib_start_kind(struct bmi_instance *instance, struct bmi_method *method,
                         struct ib_kind *kind, void **out)
{
    struct bmi_method_choice choice = {.provider = ""};
    struct ib_state *state = calloc(1, sizeof(*state));
    if (!state)
        return -ENOMEM;
    state->instance = instance;
    state->method = method;
    state->counters = bmi_method_counters(instance, method);
    state->kind = kind;
    state->kick.run = ib_kicked;
    state->gone.run = state_free;
    state->retry.expired = ib_retry_expired;
    int error = ib_provider_choose(kind, &choice);
    memcpy(state->provider, choice.provider, sizeof(state->provider));
    bmi_method_log(instance, error ? BMI_LOG_ERROR : BMI_LOG_INFO, NULL, "%s: %s%s%s%s",
                   kind->scheme, error ? "" : "provider ", choice.provider, error ? "" : ": ",
                   choice.reason);
    if (error == 0)
        error = puts_allow(method, state);
    if (error)
        free(state);
    else
        *out = state;
    return error;
}

static void ib_stop(void *argument)
{
    struct ib_state *state = argument;
    ib_listen_stop(state);
    while (state->links.next)
        ib_link_cut(cds_hlist_entry(state->links.next, struct ib_link, listed));
    ib_blocked_flush(state, false);
    ib_drain(state); /* messages for links that were cut: see link.c */
    bmi_method_timer_clear(state->instance, &state->retry);
    ib_fabric_close(state);
    ib_doorbell_free(state->doorbell);
    state->doorbell = NULL;
    free(state->tokens);
    state->tokens = NULL;
    state->token_count = 0;
    limits_give(state->kind);
    bmi_method_defer(state->instance, &state->gone);
}

_Static_assert(sizeof(((struct bmi_method_choice *)0)->provider) == IB_PROVIDER_BYTES,
               "a provider's name has one size");

static int ib_option(const struct ib_kind *kind, struct ib_state *state, struct bmi_link *link,
                     int option, void *value, bool set)
{
    if (option == BMI_METHOD_CHOICE && !set)
        return ib_provider_choose(kind, value);
    if (option == BMI_METHOD_MEMORY)
        return ib_memory_option(state, value, set);
    if (option == BMI_TCP_GET_PORT && !set && value) {
        *(int *)value = atomic_load(&state->port);
        return 1; /* programs ask for tcp's */
    }
    if (option == BMI_TCP_CLOSE_SOCKET && set) {
        if (link)
            ib_close(link, false);
        return 0;
    }
    return option == BMI_TCP_GET_PORT || option == BMI_TCP_CLOSE_SOCKET ? -EINVAL : -ENOSYS;
}

#define IB_TABLE(symbol, title, scheme_, text, kind_)                                             \
    extern struct bmi_method symbol;                                                              \
    static int start_##symbol(struct bmi_instance *instance, void **out)                          \
    {                                                                                             \
        return ib_start_kind(instance, &symbol, &kind_, out);                                     \
    }                                                                                             \
    static int option_##symbol(struct bmi_instance *instance, void *state, struct bmi_link *link, \
                               int option, void *value, bool set)                                 \
    {                                                                                             \
        (void)instance;                                                                           \
        return ib_option(&kind_, state, link, option, value, set);                                \
    }                                                                                             \
    struct bmi_method symbol = {.name = title,                                                    \
                                .schemes = scheme_,                                               \
                                .description = text,                                              \
                                .limits = {.eager_max = EAGER_MAX,                                \
                                           .unexpected_max = UNEXPECTED_MAX,                      \
                                           .frame_max = FRAME_MAX,                                \
                                           .segments_max = IB_IOVECS,                             \
                                           .regions_max = IB_REGIONS,                             \
                                           .put = true,                                           \
                                           .get = true,                                           \
                                           .registration = true},                                 \
                                .settings = settings,                                             \
                                .hosts = &ip_hosts,                                               \
                                .start = start_##symbol,                                          \
                                .stop = ib_stop,                                                  \
                                .listen = ib_listen,                                              \
                                .parse = ip_parse,                                                \
                                .connect = ib_connect,                                            \
                                .send = ib_send,                                                  \
                                .send_now = ib_send_now,                                          \
                                .flush = ib_flush,                                                \
                                .withdraw = ib_withdraw,                                          \
                                .retract = ib_retract,                                            \
                                .close = ib_close,                                                \
                                .progress = ib_progress,                                          \
                                .arm = ib_arm,                                                    \
                                .option = option_##symbol,                                        \
                                .expose = ib_expose,                                              \
                                .release = ib_release,                                            \
                                .transfer = ib_transfer}

IB_TABLE(bmi__method_ib, "bmi_ib", "ib",
         "RDMA through libfabric: the best of verbs, efa, psm3, psm2", kind_ib);
IB_TABLE(bmi__method_ofi_tcp, "bmi_ofi_tcp", "ofi+tcp", "libfabric's tcp provider", kind_tcp);
IB_TABLE(bmi__method_ofi_shm, "bmi_ofi_shm", "ofi+shm", "libfabric's shm provider, within a host",
         kind_shm);
IB_TABLE(bmi__method_ofi_verbs, "bmi_ofi_verbs", "ofi+verbs",
         "libfabric's verbs provider: InfiniBand, RoCE, iWARP", kind_verbs);
