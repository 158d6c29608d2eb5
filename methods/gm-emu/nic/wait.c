/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wait.c - how the poller sleeps and wakes: the descriptor, and deadlines.
 *
 * No wake-up is lost: the poller stores `asleep`, then looks at everything; a thread that stores
 * something for it looks at `asleep` afterwards and rings if it is set. Sequentially consistent on
 * both sides, across processes as well as threads. One timer, set to the earliest deadline, covers
 * all timed events.
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "internal.h"

static void source_ready(struct nic_port *port, struct nic_source *source, uint32_t events)
{
    switch (source->kind) {
    case NIC_SOURCE_DOORBELL:
    case NIC_SOURCE_TIMER: /* the wake-up was its only purpose */
        break;
    case NIC_SOURCE_LISTENER:
        nic__listener_ready(port, source->owner);
        break;
    case NIC_SOURCE_SOCKET:
        nic__socket_ready(source->owner, events);
        break;
    case NIC_SOURCE_PROCESS:
        nic__process_ended(source->owner);
        break;
    }
}

static void descriptors_look(struct nic_port *port)
{
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    int count = epoll_wait(port->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        struct nic_source *source = events[i].data.ptr;
        if (source->fd >= 0) /* an event before this one may have ended it */
            source_ready(port, source, events[i].events);
    }
}

void nic__look(struct nic_port *port, uint64_t now)
{
    bool attention = atomic_load_explicit(&port->attention, memory_order_relaxed);
    if (!attention && now - port->looked_ns < NIC_LOOK_NS)
        return;
    if (now - port->looked_ns >= NIC_LOOK_NS) {
        port->looked_ns = now;
        descriptors_look(port);
    }
    nic__listeners_resume(port, now);
    nic__peers_look(port, now);
}

void nic__disarm(struct nic_port *port)
{
    port->armed = false;
    atomic_store_explicit(&port->shared->asleep, 0, memory_order_relaxed);
    descriptors_look(port);
    nic__look(port, nic__now());
}

/* Whether there is something to do at once; else *due_ns is when there may be. */
static bool has_work(struct nic_port *port, uint64_t now, uint64_t *due_ns)
{
    *due_ns = UINT64_MAX;
    if (atomic_load(&port->attention) || atomic_load(&port->completed_count) != 0 ||
        atomic_load(&port->event_count) != 0)
        return true;
    if (port->accept_ns != 0 && port->accept_ns < *due_ns)
        *due_ns = port->accept_ns;
    bmi_lock_take(&port->lock);
    struct nic_peer *peer = port->peers;
    bmi_lock_give(&port->lock);
    for (; peer != NULL; peer = peer->next) {
        int state = atomic_load(&peer->state);
        uint64_t due = UINT64_MAX;
        if (peer->in_table && nic__peer_ready(peer, now, due_ns)) {
            nic__hot_add(peer); /* else it is polled in turn with many others */
            return true;
        }
        if (state <= NIC_HANDSHAKE)
            due = state == NIC_DIALLING || peer->crowded ? peer->retry_ns : peer->deadline_ns;
        else if (state == NIC_ENDING) {
            if (!nic__last_messages(peer)) { /* the last one was handed out meanwhile */
                atomic_store(&port->attention, true);
                return true;
            }
            due = peer->stall_until_ns;
        } else if (state == NIC_UP) {
            if (atomic_load_explicit(&peer->unsettled, memory_order_relaxed))
                nic__send_timeouts(peer, now);
            if (atomic_load_explicit(&peer->unsettled, memory_order_relaxed) ||
                atomic_load_explicit(&peer->busy, memory_order_relaxed) != 0)
                due = nic__send_deadline(peer, now);
        } else if (atomic_load(&peer->released)) { /* it claims to write */
            due = peer->deadline_ns;
        }
        if (due < *due_ns)
            *due_ns = due;
    }
    return *due_ns <= now || atomic_load(&port->attention) ||
           atomic_load(&port->completed_count) != 0;
}

static void timer_set(struct nic_port *port, uint64_t now, uint64_t due_ns)
{
    if (due_ns == UINT64_MAX || (port->timer_ns > now && port->timer_ns <= due_ns))
        return; /* a timer that expires too early causes one needless wake-up */
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(due_ns / 1000000000u),
                                           .tv_nsec = (long)(due_ns % 1000000000u)}};
    timerfd_settime(port->timer.fd, TFD_TIMER_ABSTIME, &when, NULL);
    port->timer_ns = due_ns;
}

bool nic_arm(struct nic_port *port)
{
    enum { NEAR_NS = 60000 }; /* for sooner events of the timing model the poller polls */
    uint64_t due_ns, now = nic__now();
    nic__hold_finish(port);
    atomic_store(&port->shared->asleep, 1);
    bmi_fence();
    if (has_work(port, now, &due_ns) || (port->timed && due_ns - now < NEAR_NS)) {
        atomic_store_explicit(&port->shared->asleep, 0, memory_order_relaxed);
        return false;
    }
    timer_set(port, now, due_ns);
    port->armed = true;
    nic__count_own(&port->counters.sleeps, 1);
    return true;
}

struct nic_event *nic_blocking_receive(struct nic_port *port, int timeout_ms)
{
    uint64_t end = timeout_ms < 0 ? UINT64_MAX : nic__now() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        struct nic_event *event = nic_receive(port);
        uint64_t now = nic__now();
        if (event->type != NIC_NO_RECV_EVENT || now >= end)
            return event;
        if (!nic_arm(port))
            continue;
        struct pollfd wait = {.fd = port->epoll, .events = POLLIN};
        uint64_t left_ms = (end - now + 999999) / 1000000;
        if (poll(&wait, 1, timeout_ms < 0 ? -1 : (int)left_ms) < 0 && errno != EINTR)
            return event;
    }
}
