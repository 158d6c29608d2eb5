/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_core.c - see fake_core.h. One thread polls; others may send, flush, withdraw and close.
 */
#include "fake_core.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

extern const struct bmi_method bmi__method_tcp;

const struct bmi_method *fake_method = &bmi__method_tcp;
const char *fake_host = "127.0.0.1";
void (*fake_on_transfer)(struct bmi_transfer *transfer, int status);
void *fake_state;
struct fake_owner fake_accepted[FAKE_OWNERS];
int fake_accepted_count;
_Atomic int64_t fake_counters[BMI_COUNT_COUNTERS];
char fake_logged[256];
int64_t fake_send_buffer;
int64_t fake_peer_timeout_ms = 30000;
int64_t fake_connect_timeout_ms = 10000;

const char *fake_tls_psk = "";
int64_t fake_tls_key_records = 1 << 24;
int64_t fake_tls_session_s; /* 0: no tickets, which contain the time */
bool fake_quiet;
const char *fake_tcp_engine = "";

static int epoll_fd;
static struct bmi_deferred end; /* of the list of deferred calls */
static _Atomic(struct bmi_deferred *) deferred = &end;
static struct bmi_timer *timers;
static char pending_host[64]; /* of a link that has no owner yet */
static uint8_t pending_ends[2 * BMI_LINK_END];
static int links_made, links_gone;

uint64_t bmi_method_now_ns(struct bmi_instance *instance)
{
    (void)instance;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t fake_now_ms(void)
{
    return (int64_t)(bmi_method_now_ns(NULL) / 1000000);
}

/* ---- services ------------------------------------------------------------------------------- */

void bmi_method_refusal(uint8_t bytes[BMI_FRAME_HEADER])
{
    memset(bytes, 0, BMI_FRAME_HEADER);
}

int bmi_method_link_accepted(struct bmi_link *link)
{
    if (fake_accepted_count == FAKE_OWNERS)
        return -ENOMEM;
    struct fake_owner *owner = &fake_accepted[fake_accepted_count++];
    uint8_t *into = owner->into;
    fake_owner_init(owner, into);
    owner->link = link;
    link->owner = owner;
    memcpy(owner->host, pending_host, sizeof(owner->host));
    memcpy(owner->ends, pending_ends, sizeof(owner->ends));
    bmi_link_ref(link);
    links_made++;
    return 0;
}

void bmi_method_link_up(struct bmi_link *link)
{
    struct fake_owner *owner = link->owner;
    owner->ups++;
}

void bmi_method_link_down(struct bmi_link *link, int status)
{
    struct fake_owner *owner = link->owner;
    owner->downs++;
    owner->status = status;
    owner->link = NULL;
    links_gone++;
    bmi_link_unref(link); /* fails under a sanitizer if the method has dropped its own before */
}

int bmi_method_frame_arrived(struct bmi_link *link, const uint8_t *bytes, struct bmi_sink *sink)
{
    struct fake_owner *owner = link->owner;
    struct fake_header header;
    if (!fake_header_read(bytes, &header))
        return -EPROTO;

    owner->last = header;
    owner->frames++;
    if (owner->on_frame)
        owner->on_frame(owner);
    uint8_t *place = owner->into != NULL ? owner->into + owner->received : NULL;
    *sink = (struct bmi_sink){.length = header.length, .owner = place};
    if (owner->list.count > 0) {
        sink->body = owner->list;
        owner->list.count = 0;
    } else {
        owner->one_buffer = place;
        owner->one_size = (bmi_size_t)header.keep;
        sink->body = (struct bmi_segments){.buffers = &owner->one_buffer,
                                           .sizes = &owner->one_size,
                                           .count = 1};
        owner->received += header.keep;
    }
    sink->body.left = (bmi_size_t)header.keep;
    return 0;
}

void bmi_method_body_place(struct bmi_link *link, struct bmi_sink *sink)
{
    (void)link;
    (void)sink;
}

int bmi_method_body_arrived(struct bmi_link *link, struct bmi_sink *sink)
{
    struct fake_owner *owner = link->owner;
    if (sink->body.left != 0)
        abort();
    owner->bodies++;
    return 0;
}

bool bmi_method_idle_close(struct bmi_instance *instance, const struct bmi_method *method,
                           const char *host)
{
    (void)instance;
    (void)method;
    (void)host;
    return false;
}

int bmi_method_header_begun(struct bmi_link *link, const uint8_t *bytes, size_t have)
{
    (void)link;
    return have > 0 && bytes[0] == 'H' ? -EPROTO : 0; /* no frame of the tests begins so */
}

int bmi_method_frame_whole(struct bmi_link *link, const uint8_t *bytes, const uint8_t *body,
                           size_t have)
{
    const struct fake_owner *owner = link->owner;
    struct fake_header header;
    struct bmi_sink sink;
    if (!owner->takes_whole || !fake_header_read(bytes, &header) || header.length > have)
        return 0;
    int status = bmi_method_frame_arrived(link, bytes, &sink);
    if (status == 0 && header.length > 0) {
        bmi_segments_scatter(&sink.body, body, (size_t)header.length);
        status = bmi_method_body_arrived(link, &sink);
    }
    return status < 0 ? status : (int)(bmi_frame_header_size(bytes[0]) + header.length);
}

void bmi_method_frames_sent(struct bmi_link *link, struct bmi_frame *frames)
{
    struct fake_owner *owner = link->owner;
    while (frames) {
        struct bmi_frame *next = frames->next;
        pthread_mutex_lock(&owner->lock);
        if (frames->status == 0)
            owner->sent++;
        else
            owner->failed++;
        if (frames->status)
            owner->last_error = frames->status;
        pthread_mutex_unlock(&owner->lock);
        if (owner->on_sent)
            owner->on_sent(owner, frames);
        frames = next;
    }
}

void bmi_method_transfer_done(struct bmi_link *link, struct bmi_transfer *transfer, int status)
{
    (void)link;
    if (!fake_on_transfer)
        abort();
    fake_on_transfer(transfer, status);
}

int bmi_method_watch_add(struct bmi_instance *instance, struct bmi_watch *watch, uint32_t events)
{
    (void)instance;
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

void bmi_method_watch_remove(struct bmi_instance *instance, struct bmi_watch *watch)
{
    (void)instance;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL) < 0)
        abort();
}

void bmi_method_timer_clear(struct bmi_instance *instance, struct bmi_timer *timer)
{
    (void)instance;
    if (!timer->link_to_me)
        return;
    *timer->link_to_me = timer->next;
    if (timer->next)
        timer->next->link_to_me = timer->link_to_me;
    timer->link_to_me = NULL;
}

void bmi_method_timer_set(struct bmi_instance *instance, struct bmi_timer *timer, uint64_t delay_ms)
{
    bmi_method_timer_clear(instance, timer);
    timer->due_ns = ((uint64_t)fake_now_ms() + delay_ms) * 1000000u;
    timer->next = timers;
    timer->link_to_me = &timers;
    if (timers)
        timers->link_to_me = &timer->next;
    timers = timer;
}

void bmi_method_defer(struct bmi_instance *instance, struct bmi_deferred *node)
{
    (void)instance;
    struct bmi_deferred *none = NULL, *first = atomic_load(&deferred);
    if (!atomic_compare_exchange_strong(&node->next, &none, &end))
        return;
    do
        atomic_store(&node->next, first);
    while (!atomic_compare_exchange_weak(&deferred, &first, node));
}

int64_t bmi_method_setting(struct bmi_instance *instance, const char *name)
{
    (void)instance;
    static const struct {
        const char *name;
        int64_t value;
    } settings[] = {{"tcp_rcvbuf", 0},
                    {"tcp_keepalive_s", 60},
                    {"tcp_backlog", 64},
                    {"tcp_host_links", 0},
                    {"tcp_local_reno", 1},
                    {"registration_bytes", 1 << 30},
                    {"registration_count", 1024},
                    {"registration_keep", 0},
                    {"ofi_register_all", 0},
                    {"handshake_timeout_ms", 10000},
                    {"handshakes_max", 64},
                    {"tls_kernel_send", 0}};
    if (strcmp(name, "tcp_sndbuf") == 0)
        return fake_send_buffer;
    if (strcmp(name, "peer_timeout_ms") == 0)
        return fake_peer_timeout_ms;
    if (strcmp(name, "connect_timeout_ms") == 0)
        return fake_connect_timeout_ms;
    if (strcmp(name, "tls_key_records") == 0)
        return fake_tls_key_records;
    if (strcmp(name, "tls_session_s") == 0)
        return fake_tls_session_s;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (strcmp(settings[i].name, name) == 0)
            return settings[i].value;
    fprintf(stderr, "no setting %s\n", name);
    abort();
}

const char *bmi_method_setting_text(struct bmi_instance *instance, const char *name)
{
    (void)instance;
    if (strcmp(name, "tcp_engine") == 0)
        return fake_tcp_engine;
    return strcmp(name, "tls_psk") == 0 ? fake_tls_psk : "";
}

void bmi_method_log(struct bmi_instance *instance, enum bmi_log_level level,
                    const struct bmi_link *link, const char *format, ...)
{
    (void)instance;
    va_list arguments;
    (void)link;
    va_start(arguments, format);
    vsnprintf(fake_logged, sizeof(fake_logged), format, arguments);
    va_end(arguments);
    if (!fake_quiet)
        fprintf(stderr, "[log %d] %s\n", (int)level, fake_logged);
}

_Atomic int64_t *bmi_method_counters(struct bmi_instance *instance, const struct bmi_method *method)
{
    (void)instance;
    (void)method;
    return fake_counters;
}

/* All threads count in the first one, which the tests read. */
unsigned bmi_method_counter_stripe(void)
{
    return 0;
}

void bmi_method_count(struct bmi_instance *instance, const struct bmi_method *method,
                      enum bmi_method_counter counter, int64_t amount)
{
    bmi_counter_add(bmi_method_counters(instance, method), counter, amount);
}

void bmi_method_link_host(struct bmi_link *link, const char *host, uint32_t number)
{
    (void)number;
    struct fake_owner *owner = link->owner;
    if (!host)
        return; /* the link goes */
    snprintf(owner ? owner->host : pending_host, sizeof(pending_host), "%s", host);
}

void bmi_method_link_ends(struct bmi_link *link, const void *dialler, const void *accepter,
                          size_t size)
{
    if (size > BMI_LINK_END)
        abort();
    uint8_t *ends = link->owner ? ((struct fake_owner *)link->owner)->ends : pending_ends;
    memcpy(ends, dialler, size);
    memcpy(ends + size, accepter, size);
}

/* ---- driving -------------------------------------------------------------------------------- */

static void deferred_run(void)
{
    struct bmi_deferred *list = atomic_exchange(&deferred, &end);
    while (list != &end) {
        struct bmi_deferred *next = atomic_exchange(&list->next, NULL);
        list->run(list);
        list = next;
    }
}

static void timers_run(void)
{
    uint64_t now = (uint64_t)fake_now_ms() * 1000000u;
    struct bmi_timer *timer = timers;
    while (timer) {
        if (timer->due_ns > now) {
            timer = timer->next;
            continue;
        }
        bmi_method_timer_clear(NULL, timer);
        timer->expired(timer);
        timer = timers; /* the list may have changed */
    }
}

void fake_drive(int wait_ms)
{
    struct epoll_event event;
    deferred_run();
    if (wait_ms > 0 && fake_method->arm && !fake_method->arm(fake_state))
        wait_ms = 0;
    if (atomic_load(&deferred) != &end)
        wait_ms = 0;
    /* One event a pass: a callback may remove any other watch. */
    if (epoll_wait(epoll_fd, &event, 1, wait_ms) == 1) {
        struct bmi_watch *watch = event.data.ptr;
        watch->ready(watch, event.events);
    }
    deferred_run();
    timers_run();
}

void fake_start(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    fake_accepted_count = links_made = links_gone = 0;
    memset(fake_accepted, 0, sizeof(fake_accepted));
    memset(fake_counters, 0, sizeof(fake_counters));
    if (fake_method->start(NULL, &fake_state) < 0)
        abort();
}

int fake_stop(void)
{
    fake_method->stop(fake_state);
    deferred_run();
    close(epoll_fd);
    if (timers)
        abort();
    return links_made - links_gone;
}

void fake_owner_init(struct fake_owner *owner, uint8_t *into)
{
    memset(owner, 0, sizeof(*owner));
    owner->into = into;
    pthread_mutex_init(&owner->lock, NULL);
}

void fake_header_write(uint8_t header[BMI_FRAME_HEADER], uint32_t sequence, uint64_t length,
                       uint64_t keep)
{
    struct fake_short brief = {.magic = FAKE_MAGIC_SHORT,
                               .sequence = sequence,
                               .length = (uint32_t)length,
                               .keep = (uint32_t)keep};
    struct fake_header fake = {.magic = FAKE_MAGIC,
                               .sequence = sequence,
                               .length = length,
                               .keep = keep};
    _Static_assert(sizeof(fake) == BMI_FRAME_HEADER, "fills the header");
    _Static_assert(sizeof(brief) == BMI_FRAME_SHORT, "fills the header");
    if (sequence % 4 == 3 && length <= UINT16_MAX)
        memcpy(header, &brief, sizeof(brief));
    else
        memcpy(header, &fake, sizeof(fake));
}

bool fake_header_read(const uint8_t *bytes, struct fake_header *header)
{
    struct fake_short brief;
    memcpy(&brief, bytes, sizeof(brief));
    if (bmi_frame_header_size(bytes[0]) == BMI_FRAME_SHORT)
        *header = (struct fake_header){.magic = brief.magic & ~0x80U,
                                       .sequence = brief.sequence,
                                       .length = brief.length,
                                       .keep = brief.keep};
    else
        memcpy(header, bytes, sizeof(*header));
    return header->magic == FAKE_MAGIC;
}

int fake_listen(char *bound, size_t size)
{
    int port = 0;
    char address[100];
    snprintf(address, sizeof(address), "%s:0", fake_host);
    if (fake_method->listen(fake_state, address, BMI_TCP_BIND_SPECIFIC, bound, size) < 0)
        abort();
    if (fake_method->option(NULL, fake_state, NULL, BMI_TCP_GET_PORT, &port, false) < 0)
        abort();
    return port;
}

int fake_dial(const char *address, struct fake_owner *owner, uint8_t *into)
{
    fake_owner_init(owner, into);
    int error = fake_method->connect(fake_state, address, owner, &owner->link);
    if (error)
        return error;
    bmi_link_ref(owner->link); /* dropped at link_down */
    links_made++;
    return 0;
}

int fake_raw_peer(int port, struct fake_owner **owner, uint8_t *into)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int before = fake_accepted_count;
    fake_accepted[before].into = into;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        abort();
    if (!FAKE_UNTIL(fake_accepted_count > before))
        abort();
    *owner = &fake_accepted[before];
    return fd;
}
