/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm.c - the gm method: its table, start and stop, the port's events. See gm.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "gm.h"
#include "methods/ip/hosts.h"

static const struct bmi_setting_spec settings[] = {
    {"gm_send_tokens", BMI_SETTING_NUMBER, 256, 2, 65536, "sends that the NIC has at a time"},
    {"gm_receive_tokens", BMI_SETTING_NUMBER, 256, 2, 65536,
     "receive buffers that the NIC has at a time, at most"},
    {"gm_myrinet2000", BMI_SETTING_SWITCH, 0, 0, 1, "take the time that a Myrinet 2000 took"},
    {"gm_vm_write", BMI_SETTING_SWITCH, 1, 0, 1,
     "write into plain memory of peers by process_vm_writev; off: by way of shared memory"},
    {"gm_mapping", BMI_SETTING_SWITCH, 1, 0, 1,
     "map what peers allocated by BMI_memalloc, to write into it directly"},
    {"gm_pages", BMI_SETTING_NUMBER, 0, 0, INT64_C(1) << 40,
     "pages that may be registered; 0: half of the memory"},
    {"gm_other_users", BMI_SETTING_SWITCH, 0, 0, 1, "talk to processes of other users"},
    {"gm_resend_timeout_ms", BMI_SETTING_NUMBER, 30000, 1, 86400000,
     "a message that finds no buffer that long at a peer that polls fails"},
    {"gm_drop_every", BMI_SETTING_NUMBER, 0, 0, 1 << 30,
     "for tests: each nth message is lost once; 0: none"},
    {0}};

/* ---- start ---------------------------------------------------------------------------------- */

static void log_write(void *context, enum nic_log_level level, const char *text)
{
    static const enum bmi_log_level levels[] = {
        [NIC_LOG_ERROR] = BMI_LOG_ERROR,
        [NIC_LOG_WARN] = BMI_LOG_WARN,
        [NIC_LOG_INFO] = BMI_LOG_INFO,
        [NIC_LOG_DEBUG] = BMI_LOG_DEBUG,
    };
    bmi_method_log(context, levels[level], NULL, "gm: %s", text);
}

static void options_fill(struct bmi_instance *instance, struct nic_options *options)
{
    nic_options_default(options);
    if (bmi_method_setting(instance, "gm_myrinet2000") != 0)
        nic_options_preset(options, "myrinet2000");
    options->send_tokens = (uint32_t)bmi_method_setting(instance, "gm_send_tokens");
    options->receive_tokens = (uint32_t)bmi_method_setting(instance, "gm_receive_tokens");
    options->max_size[NIC_LOW_PRIORITY] = GM_SIZE;
    options->max_size[NIC_HIGH_PRIORITY] = NIC_MIN_SIZE; /* not used */
    if (bmi_method_setting(instance, "gm_pages") != 0)
        options->registered_pages_max = (uint64_t)bmi_method_setting(instance, "gm_pages");
    options->resend_timeout_ms = (uint32_t)bmi_method_setting(instance, "gm_resend_timeout_ms");
    options->connect_timeout_ms = (uint32_t)bmi_method_setting(instance, "connect_timeout_ms");
    options->revoke_timeout_ms = GM_STOP_MS; /* each exposure's end was waited for before its link
                                              * ended */
    options->allow_other_users = bmi_method_setting(instance, "gm_other_users") != 0;
    options->refuse_vm_write = bmi_method_setting(instance, "gm_vm_write") == 0;
    options->refuse_mapping = bmi_method_setting(instance, "gm_mapping") == 0;
    options->log = log_write;
    options->log_context = instance;
}

/* Provides as many receive buffers as there are tokens, up to GM_BUFFERS. */
static int receive_start(struct gm_state *state, uint32_t tokens)
{
    uint32_t count = tokens < GM_BUFFERS ? tokens : GM_BUFFERS;
    uint8_t *memory = nic_dma_malloc(state->port, (uint64_t)count << GM_SIZE);
    int status = memory == NULL ? -errno : 0;
    for (size_t i = 0; i < count && status == 0; i++)
        status = nic_provide_receive_buffer(state->port, memory + (i << GM_SIZE), GM_SIZE,
                                            NIC_LOW_PRIORITY);
    return status;
}

static void port_ready(struct bmi_watch *watch, uint32_t events);

static void faults_set(struct gm_state *state)
{
    int64_t every = bmi_method_setting(state->instance, "gm_drop_every");
    nic_set_faults(state->port, NULL, &(struct nic_faults){.drop_every = (uint32_t)every});
}

/* How many of the directed sends one link may have: where there are few, a quarter of them. */
static uint32_t link_share(uint32_t puts_most)
{
    uint32_t share = puts_most / 4 < GM_LINK_PUTS ? puts_most / 4 : GM_LINK_PUTS;
    return share > 0 ? share : 1;
}

/* After the calls that were deferred before the stop: they find no work. */
static void state_free(struct bmi_deferred *deferred)
{
    free(gm_container(deferred, struct gm_state, gone));
}

static int gm_start(struct bmi_instance *instance, void **out)
{
    struct gm_state *state = calloc(1, sizeof *state);
    struct nic_options options;
    if (state == NULL)
        return -ENOMEM;
    state->instance = instance;
    state->counters = bmi_method_counters(instance, &bmi__method_gm);
    options_fill(instance, &options);
    state->puts_most = options.send_tokens / 2;
    state->link_puts_most = link_share(state->puts_most);
    for (int want = 0; want < GM_WANTS; want++)
        state->starved_tail[want] = &state->starved[want];
    state->retry.run = gm_starved_retry;
    state->ending_timer.expired = gm_ending_retry;
    int status = nic_open(&options, &state->port);
    if (status != 0)
        goto undo_state;
    status =
        bmi_method_cache_create(instance, &bmi__method_gm, &gm_registrar, state, &state->cache);
    if (status != 0)
        goto undo_port;
    status = receive_start(state, options.receive_tokens);
    if (status != 0)
        goto undo_cache;
    state->watch = (struct bmi_watch){.ready = port_ready, .fd = nic_descriptor(state->port)};
    status = bmi_method_watch_add(instance, &state->watch, EPOLLIN);
    if (status != 0)
        goto undo_cache;
    faults_set(state);
    *out = state;
    return 0;

undo_cache:
    bmi_method_cache_destroy(state->cache);
undo_port:
    nic_close(state->port);
undo_state:
    free(state);
    return status;
}

/* Logs how data was sent, and the refusals, which may explain a low speed. */
static void statistics_log(const struct gm_state *state)
{
    struct nic_statistics of;
    nic_statistics(state->port, &of);
    bmi_method_log(state->instance, BMI_LOG_INFO, NULL,
                   "gm: sent %" PRIu64 " (%" PRIu64 " bytes), received %" PRIu64 " (%" PRIu64
                   " bytes), mapped %" PRIu64 " (%" PRIu64 " bytes), vm_written %" PRIu64
                   " (%" PRIu64 " bytes), bounced %" PRIu64 " (%" PRIu64
                   " bytes), waited_for_buffer %" PRIu64 ", timed_out %" PRIu64
                   ", doorbells %" PRIu64 ", sleeps %" PRIu64 ", refused %" PRIu64
                   ", broken_peers %" PRIu64,
                   of.sent, of.sent_bytes, of.received, of.received_bytes, of.mapped,
                   of.mapped_bytes, of.vm_written, of.vm_written_bytes, of.bounced,
                   of.bounced_bytes, of.waited_for_buffer, of.timed_out, of.doorbells, of.sleeps,
                   of.refused, of.broken_peers);
}

static void gm_stop(void *argument)
{
    struct gm_state *state = argument;
    gm_starved_drop(state);
    while (state->links.next != NULL) {
        struct gm_link *link = cds_hlist_entry(state->links.next, struct gm_link, listed);
        gm_close(&link->base, false);
        gm_link_end(link, NULL, 0, GM_WAIT);
    }
    bmi_method_timer_clear(state->instance, &state->ending_timer);
    gm_starved_drop(state);
    bmi_method_watch_remove(state->instance, &state->watch);
    bmi_method_cache_destroy(state->cache);
    gm_memory_stop(state);
    statistics_log(state);
    nic_close(state->port);
    gm_puts_free(state);
    state->gone.run = state_free;
    bmi_method_defer(state->instance, &state->gone);
}

/* ---- listening ------------------------------------------------------------------------------ */

/* Listens as the host, and as this machine, unless another port does. A free number is to be free
 * under both names. */
static int listen_everywhere(struct gm_state *state, const char *host, uint16_t *number)
{
    enum { TRIES = 8 };
    uint16_t here = *number;
    int status = -EADDRINUSE;
    for (int i = 0; i < TRIES && *number == 0 && status == -EADDRINUSE; i++) {
        here = 0;
        status = nic_listen(state->port, NIC_THIS_HOST, &here);
        if (status == 0)
            status = nic_listen(state->port, host, &here);
    }
    if (*number == 0) {
        *number = here;
        return status;
    }
    status = nic_listen(state->port, host, number);
    if (status == 0 && nic_listen(state->port, NIC_THIS_HOST, &here) == -EADDRINUSE)
        bmi_method_log(state->instance, BMI_LOG_INFO, NULL,
                       "gm: %s:%u is another's: reached as %s only", NIC_THIS_HOST, here, host);
    return status;
}

/* Whether the address names a port, before its path. */
static bool has_number(const char *text)
{
    const char *host_end = text[0] == '[' ? strchr(text, ']') : text;
    size_t length = host_end != NULL ? strcspn(host_end, "/") : 0;
    return length > 0 && memchr(host_end, ':', length) != NULL;
}

/* Without BMI_TCP_BIND_SPECIFIC the host is one of this machine's names. */
static int gm_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct gm_state *state = argument;
    struct gm_address address;
    const char *reason;
    int status = gm_address_parse(text, &address, &reason);
    if (status != 0) {
        bmi_method_log(state->instance, BMI_LOG_ERROR, NULL, "gm: cannot listen on %s: %s", text,
                       reason);
        return status;
    }
    if (!has_number(text))
        address.number = 0; /* a free one */
    bool exact = (flags & BMI_TCP_BIND_SPECIFIC) || address.host[0] == '\0' ||
                 strcmp(address.host, NIC_THIS_HOST) == 0;
    status = exact ? nic_listen(state->port, address.host, &address.number)
                   : listen_everywhere(state, address.host, &address.number);
    if (status != 0) {
        bmi_method_log(state->instance, BMI_LOG_ERROR, NULL, "gm: cannot listen on %s: %s", text,
                       strerror(-status));
        return status;
    }
    if (atomic_load(&state->number) == 0)
        atomic_store(&state->number, address.number);
    if (address.host[0] == '\0' && gethostname(address.host, sizeof address.host - 1) < 0)
        strcpy(address.host, "localhost");
    return gm_address_format(&address, bound, size);
}

/* ---- events --------------------------------------------------------------------------------- */

static void message_handle(struct gm_state *state, struct nic_event *event)
{
    struct gm_link *link = nic_peer_context(event->peer);
    int status = link != NULL ? gm_message_arrived(link, event->message, event->length) : 0;
    if (status < 0)
        gm_link_fail(link, status);
    nic_unknown(state->port, event); /* provides the buffer again */
}

static void down_handle(struct nic_event *event)
{
    struct gm_link *link = nic_peer_context(event->peer);
    if (link != NULL)
        gm_link_end(link, event->peer, event->status, GM_LATER);
    else
        nic_peer_release(event->peer);
}

static void event_handle(struct gm_state *state, struct nic_event *event)
{
    switch (event->type) {
    case NIC_RECV_EVENT:
    case NIC_FAST_RECV_EVENT:
        message_handle(state, event);
        break;
    case NIC_PEER_ACCEPTED_EVENT:
        gm_link_accepted(state, event->peer);
        break;
    case NIC_PEER_UP_EVENT:
        gm_link_up(nic_peer_context(event->peer), event->peer);
        break;
    case NIC_PEER_DOWN_EVENT:
        down_handle(event);
        break;
    case NIC_CROWDED_EVENT:
        bmi_method_idle_close(state->instance, &bmi__method_gm, NULL);
        break;
    default:
        nic_unknown(state->port, event);
    }
}

/* Whether to acknowledge at once. With several links, one pass at the end of the look does that
 * for all: each acknowledgement may wake a process, and with more processes than processors that
 * costs a sixth of the throughput. */
static bool is_word_due(struct gm_state *state, const struct nic_event *event)
{
    return event->type == NIC_SENT_EVENT &&
           atomic_load_explicit(&state->puts_out, memory_order_relaxed) <= state->link_puts_most;
}

static int gm_progress(void *argument)
{
    struct gm_state *state = argument;
    struct nic_event *event;
    int count = 0;
    bool streams = state->busy;
    while (count < GM_PASS_EVENTS && (count == 0 || (streams && nic_pending(state->port))) &&
           (event = nic_receive(state->port))->type != NIC_NO_RECV_EVENT) {
        event_handle(state, event);
        count++;
        /* other methods have their turn */
        if (is_word_due(state, event))
            break;
    }
    state->busy = count > 0;
    if (count == 0)
        return 0;
    if (atomic_load(&state->any_starved[GM_WANT_MESSAGE]) ||
        atomic_load(&state->any_starved[GM_WANT_PUT]))
        gm_starved_retry(&state->retry);
    return count;
}

static void port_ready(struct bmi_watch *watch, uint32_t events)
{
    (void)events;
    gm_progress(gm_container(watch, struct gm_state, watch));
}

static bool gm_arm(void *argument)
{
    struct gm_state *state = argument;
    return nic_arm(state->port);
}

static int gm_option(struct bmi_instance *instance, void *argument, struct bmi_link *link,
                     int option, void *value, bool set)
{
    struct gm_state *state = argument;
    (void)instance;
    (void)link;
    if (option == BMI_TCP_GET_PORT && !set) {
        *(int *)value = atomic_load(&state->number);
        return 1; /* programs ask for tcp's */
    }
    return option == BMI_METHOD_MEMORY ? gm_memory_option(state, value, set) : -ENOSYS;
}

const struct bmi_method bmi__method_gm = {
    .name = "bmi_gm",
    .schemes = "gm",
    .description = "processes of one host, over a software NIC with GM's rules",
    .limits = {.eager_max = GM_EAGER_MAX,
               .unexpected_max = GM_EAGER_MAX,
               .frame_max = GM_FRAME_MAX,
               .segments_max = GM_PUT_IOVECS,
               .regions_max = GM_REGIONS,
               .put = true,
               .registration = true},
    .settings = settings,
    .hosts = &ip_hosts,
    .start = gm_start,
    .stop = gm_stop,
    .listen = gm_listen,
    .parse = gm_parse,
    .connect = gm_connect,
    .send = gm_send,
    .flush = gm_flush,
    .withdraw = gm_withdraw,
    .retract = gm_retract,
    .close = gm_close,
    .progress = gm_progress,
    .arm = gm_arm,
    .option = gm_option,
    .expose = gm_expose,
    .release = gm_release,
    .transfer = gm_transfer,
    .send_now = gm_send_now,
};
