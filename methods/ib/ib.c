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

static const char *const rdma_providers[] = {"verbs;ofi_rxm", "efa", "psm3", "psm2", NULL};
static const char *const tcp_providers[] = {"tcp;ofi_rxm", "tcp", NULL};
static const char *const shm_providers[] = {"shm", NULL};
static const char *const verbs_providers[] = {"verbs;ofi_rxm", NULL};

static const struct ib_kind kind_ib = {
    "ib", rdma_providers,
    "Is the device up (ibv_devinfo), its port active, its network interface given an address? "
    "Without RDMA hardware, use tcp://"};
static const struct ib_kind kind_tcp = {
    "ofi+tcp", tcp_providers, "Is FI_PROVIDER set to others, or no network interface up?"};
static const struct ib_kind kind_shm = {"ofi+shm", shm_providers,
                                        "Is FI_PROVIDER set to others, or /dev/shm missing?"};
static const struct ib_kind kind_verbs = {
    "ofi+verbs", verbs_providers,
    "Is the device up (ibv_devinfo), its port active, its network interface given an address?"};

static const struct bmi_setting_spec settings[] = {
    {"ofi_register_all", BMI_SETTING_SWITCH, 0, 0, 1,
     "register all memory of transfers as for an RDMA device, also for ofi+tcp, ofi+shm: a test"},
    IP_SETTINGS,
    {0}};

/* If connections cannot be cut, no peer may access the program's memory: bytes that are under way
 * could arrive when the memory is the program's again. */
static void puts_allow(struct bmi_method *method, struct ib_state *state)
{
    bool safe = ib_library.cuts || !ib_provider_connects(state->provider);
    bool shm = strcmp(state->provider, "shm") == 0;
    state->reads = shm && ib_reads_allowed();
    method->limits.put = safe && !shm;
    method->limits.get = shm ? state->reads : safe;
    if (!safe)
        bmi_method_log(BMI_LOG_WARN, NULL,
                       "%s: no puts and gets: this program has called libfabric before, without "
                       "FI_AV_REMOVE_CLEANUP=1 in its environment",
                       state->kind->scheme);
}

/* `state` is static: a deferred call may run after the stop, and then finds nothing to do. */
static int ib_start_kind(struct bmi_method *method, const struct ib_kind *kind,
                         struct ib_state *state, void **out)
{
    memset(state, 0, sizeof(*state));
    state->method = method;
    state->counters = bmi_method_counters(method);
    state->kind = kind;
    state->kick.run = ib_kicked;
    state->retry.expired = ib_retry_expired;
    *out = state;
    struct bmi_method_choice choice = {.provider = ""};
    int error = ib_provider_choose(kind, &choice);
    memcpy(state->provider, choice.provider, sizeof(state->provider));
    bmi_method_log(error ? BMI_LOG_ERROR : BMI_LOG_INFO, NULL, "%s: %s%s%s%s", kind->scheme,
                   error ? "" : "provider ", choice.provider, error ? "" : ": ", choice.reason);
    if (error == 0)
        puts_allow(method, state);
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
    bmi_method_timer_clear(&state->retry);
    ib_fabric_close(state);
    ib_doorbell_free(state->doorbell);
    state->doorbell = NULL;
    free(state->tokens);
    state->tokens = NULL;
    state->token_count = 0;
}

static int ib_option(void *argument, struct bmi_link *link, int option, void *value, bool set)
{
    struct ib_state *state = argument;
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

_Static_assert(sizeof(((struct bmi_method_choice *)0)->provider) == IB_PROVIDER_BYTES,
               "a provider's name has one size");

static int ib_option_of(const struct ib_kind *kind, void *state, struct bmi_link *link, int option,
                        void *value, bool set)
{
    if (option == BMI_METHOD_CHOICE && !set)
        return ib_provider_choose(kind, value);
    return ib_option(state, link, option, value, set);
}

#define IB_TABLE(symbol, title, scheme_, text, kind_)                                       \
    extern struct bmi_method symbol;                                                        \
    static int start_##symbol(void **out)                                                   \
    {                                                                                       \
        static struct ib_state state;                                                       \
        return ib_start_kind(&symbol, &kind_, &state, out);                                 \
    }                                                                                       \
    static int option_##symbol(void *state, struct bmi_link *link, int option, void *value, \
                               bool set)                                                    \
    {                                                                                       \
        return ib_option_of(&kind_, state, link, option, value, set);                       \
    }                                                                                       \
    struct bmi_method symbol = {.name = title,                                              \
                                .schemes = scheme_,                                         \
                                .description = text,                                        \
                                .limits = {.eager_max = EAGER_MAX,                          \
                                           .unexpected_max = UNEXPECTED_MAX,                \
                                           .frame_max = FRAME_MAX,                          \
                                           .segments_max = IB_IOVECS,                       \
                                           .regions_max = IB_REGIONS,                       \
                                           .put = true,                                     \
                                           .get = true,                                     \
                                           .registration = true},                           \
                                .settings = settings,                                       \
                                .hosts = &ip_hosts,                                         \
                                .start = start_##symbol,                                    \
                                .stop = ib_stop,                                            \
                                .listen = ib_listen,                                        \
                                .parse = ip_parse,                                          \
                                .connect = ib_connect,                                      \
                                .send = ib_send,                                            \
                                .send_now = ib_send_now,                                    \
                                .flush = ib_flush,                                          \
                                .withdraw = ib_withdraw,                                    \
                                .retract = ib_retract,                                      \
                                .close = ib_close,                                          \
                                .progress = ib_progress,                                    \
                                .arm = ib_arm,                                              \
                                .option = option_##symbol,                                  \
                                .expose = ib_expose,                                        \
                                .release = ib_release,                                      \
                                .transfer = ib_transfer}

IB_TABLE(bmi__method_ib, "bmi_ib", "ib",
         "RDMA through libfabric: the best of verbs, efa, psm3, psm2", kind_ib);
IB_TABLE(bmi__method_ofi_tcp, "bmi_ofi_tcp", "ofi+tcp", "libfabric's tcp provider", kind_tcp);
IB_TABLE(bmi__method_ofi_shm, "bmi_ofi_shm", "ofi+shm", "libfabric's shm provider, within a host",
         kind_shm);
IB_TABLE(bmi__method_ofi_verbs, "bmi_ofi_verbs", "ofi+verbs",
         "libfabric's verbs provider: InfiniBand, RoCE, iWARP", kind_verbs);
