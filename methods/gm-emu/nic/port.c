/* SPDX-License-Identifier: BSD-3-Clause
 *
 * port.c - opens and closes ports: options, shared memory, descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

uint64_t nic__now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void nic__log(struct nic_port *port, enum nic_log_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (port->options.log == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    port->options.log(port->options.log_context, level, text);
}

int nic__ring(int doorbell)
{
    uint64_t one = 1, count;
    for (int i = 0; i < 2; i++) {
        if (write(doorbell, &one, sizeof(one)) >= 0)
            return 0;
        if (errno != EAGAIN || (read(doorbell, &count, sizeof(count)) < 0 && errno != EAGAIN))
            return -errno;
    }
    return 0; /* full again: the process that filled it has rung the doorbell */
}

void nic__wake(struct nic_port *port)
{
    bmi_fence();
    if (atomic_load_explicit(&port->shared->asleep, memory_order_relaxed) == 0)
        return;
    int status = nic__ring(port->doorbell.fd);
    if (status != 0)
        nic__log(port, NIC_LOG_ERROR, "cannot ring the own doorbell: %s", strerror(-status));
}

void nic__attention(struct nic_port *port)
{
    atomic_store(&port->attention, true);
    nic__wake(port);
}

void nic_options_default(struct nic_options *options)
{
    memset(options, 0, sizeof(*options));
    options->send_tokens = 256;
    options->receive_tokens = 256;
    options->max_size[NIC_LOW_PRIORITY] = 15;
    options->max_size[NIC_HIGH_PRIORITY] = 12;
    options->registered_pages_max = (uint64_t)sysconf(_SC_PHYS_PAGES) / 2;
    options->exposures_max = 65536;
    options->resend_timeout_ms = 30000;
    options->resend_ms = 1;
    options->connect_timeout_ms = 10000;
    options->revoke_timeout_ms = 10000;
}

/* The first option that is out of its range, or NULL. */
static const char *option_bad(const struct nic_options *options)
{
    enum { TOKENS_MAX = 1 << 20 };
    if (options->send_tokens < 2 || options->send_tokens > TOKENS_MAX)
        return "send_tokens";
    if (options->receive_tokens < 2 || options->receive_tokens > TOKENS_MAX)
        return "receive_tokens";
    for (int i = 0; i < NIC_PRIORITIES; i++)
        if (options->max_size[i] < NIC_MIN_SIZE || options->max_size[i] > NIC_MAX_SIZE)
            return "max_size";
    if (options->exposures_max == 0 || options->exposures_max > 1u << NIC_EXPOSURE_BITS)
        return "exposures_max";
    if (options->resend_timeout_ms == 0)
        return "resend_timeout_ms";
    if (options->resend_ms == 0)
        return "resend_ms";
    return options->connect_timeout_ms == 0 ? "connect_timeout_ms" : NULL;
}

int nic__source_add(struct nic_port *port, struct nic_source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = source}};
    return epoll_ctl(port->epoll, EPOLL_CTL_ADD, source->fd, &event) == 0 ? 0 : -errno;
}

void nic__source_remove(struct nic_port *port, struct nic_source *source)
{
    if (source->fd < 0)
        return;
    epoll_ctl(port->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    close(source->fd);
    source->fd = -1;
}

static int descriptors_open(struct nic_port *port)
{
    port->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (port->epoll < 0)
        return -errno;
    port->reserve_fd =
        fcntl(port->epoll, F_DUPFD_CLOEXEC, 0); /* needs no file: there may be no /dev */
    if (port->reserve_fd < 0)
        return -errno;
    port->doorbell.kind = NIC_SOURCE_DOORBELL;
    port->doorbell.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    port->timer.kind = NIC_SOURCE_TIMER;
    port->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (port->doorbell.fd < 0 || port->timer.fd < 0)
        return -errno;
    /* Edge-triggered: the counter of a doorbell is read only by a process that finds it full
     * (nic__ring). */
    int status = nic__source_add(port, &port->doorbell, EPOLLIN | EPOLLET);
    return status != 0 ? status : nic__source_add(port, &port->timer, EPOLLIN | EPOLLET);
}

static int shared_make(struct nic_port *port)
{
    void *memory;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    port->shared_size =
        (sizeof(struct nic_shared_port) +
         port->options.exposures_max * sizeof(struct nic_shared_exposure) + page - 1) /
        page * page;
    int status = nic__memory_make(port->shared_size, true, &port->shared_fd, &memory);
    if (status != 0)
        return status;
    port->shared = memory;
    port->shared->magic = NIC_MAGIC;
    port->shared->exposures = port->options.exposures_max;
    if (port->options.timing.link_bytes_per_s == 0)
        return 0;
    status = nic__memory_make(page, false, &port->wire_fd, &memory);
    port->wire = status == 0 ? memory : NULL;
    return status;
}

static int tokens_make(struct nic_port *port)
{
    port->tokens = calloc(port->options.send_tokens, sizeof(*port->tokens));
    port->buffers = calloc(port->options.receive_tokens, sizeof(*port->buffers));
    if (port->tokens == NULL || port->buffers == NULL)
        return -ENOMEM;
    for (uint32_t i = port->options.send_tokens; i-- > 0;) {
        port->tokens[i].next = port->token_free;
        port->token_free = &port->tokens[i];
    }
    atomic_store(&port->tokens_left, port->options.send_tokens);
    nic__queue_init(&port->completed);
    nic__buffers_init(port);
    return nic__exposures_init(port);
}

/* Releases the port's own resources. */
static void port_free(struct nic_port *port)
{
    for (struct nic_listener *listener = port->listeners, *next; listener != NULL;
         listener = next) {
        next = listener->next;
        nic__source_remove(port, &listener->source);
        free(listener);
    }
    nic__arenas_free(port);
    int fds[] = {port->shared_fd, port->wire_fd, port->doorbell.fd,
                 port->timer.fd,  port->epoll,   port->reserve_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (port->shared != NULL)
        munmap(port->shared, port->shared_size);
    if (port->wire != NULL)
        munmap(port->wire, (size_t)sysconf(_SC_PAGESIZE));
    free(port->tokens);
    free(port->buffers);
    free(port->exposure_free);
    free(port->registrations);
    free(port->table);
    free(port);
}

int nic_open(const struct nic_options *options, struct nic_port **result)
{
    struct nic_port *port = aligned_alloc(NIC_LINE, sizeof(*port));
    if (port == NULL)
        return -ENOMEM;
    memset(port, 0, sizeof(*port));
    port->options = *options;
    port->shared_fd = port->wire_fd = port->epoll = port->doorbell.fd = port->timer.fd = -1;
    port->reserve_fd = -1;
    port->event_last = &port->event_first;
    const struct nic_timing off = {0};
    port->timed = memcmp(&options->timing, &off, sizeof(off)) != 0;
    int status = 0;
    const char *bad = option_bad(options);
    if (bad != NULL) {
        nic__log(port, NIC_LOG_ERROR, "port: option %s is out of its range", bad);
        status = -EINVAL;
    }
    if (status == 0 && RAND_bytes((uint8_t *)port->nonce, sizeof(port->nonce)) != 1)
        status = -EIO;
    if (status == 0)
        status = descriptors_open(port);
    if (status == 0)
        status = shared_make(port);
    if (status == 0)
        status = tokens_make(port);
    if (status == 0) {
        *result = port;
        return 0;
    }
    if (bad == NULL)
        nic__log(port, NIC_LOG_ERROR, "cannot open a gm port: %s", strerror(-status));
    port_free(port);
    return status;
}

void nic_close(struct nic_port *port)
{
    nic__hold_finish(port);
    nic__exposures_end(port);
    while (port->peers != NULL) {
        struct nic_peer *peer = port->peers;
        port->peers = peer->next;
        if (peer->socket.fd >= 0 && atomic_load(&peer->state) >= NIC_UP) {
            struct nic_handshake bye;
            nic__hello_fill(port, &bye, NIC_BYE);
            nic__handshake_send(peer->socket.fd, &bye, NULL, 0);
        }
        nic__peer_free(peer);
    }
    port_free(port);
}

int nic_descriptor(const struct nic_port *port)
{
    return port->epoll;
}

void nic_statistics(const struct nic_port *port, struct nic_statistics *statistics)
{
    struct nic_port *counted = (struct nic_port *)(uintptr_t)port;
    uint64_t sent = 0, sent_bytes = 0;
    bmi_lock_take(&counted->lock);
    for (struct nic_peer *peer = counted->peers; peer != NULL; peer = peer->next) {
        sent += atomic_load_explicit(&peer->sent, memory_order_relaxed);
        sent_bytes += atomic_load_explicit(&peer->sent_bytes, memory_order_relaxed);
    }
    bmi_lock_give(&counted->lock);
#define NIC_READ(field) .field = atomic_load_explicit(&port->counters.field, memory_order_relaxed)
    *statistics = (struct nic_statistics){
        NIC_READ(received),     NIC_READ(received_bytes), NIC_READ(waited_for_buffer),
        NIC_READ(timed_out),    NIC_READ(lost),           NIC_READ(mapped),
        NIC_READ(mapped_bytes), NIC_READ(vm_written),     NIC_READ(vm_written_bytes),
        NIC_READ(bounced),      NIC_READ(bounced_bytes),  NIC_READ(doorbells),
        NIC_READ(sleeps),       NIC_READ(refused),        NIC_READ(broken_peers),
        NIC_READ(sent),         NIC_READ(sent_bytes)};
#undef NIC_READ
    statistics->sent += sent;
    statistics->sent_bytes += sent_bytes;
}
