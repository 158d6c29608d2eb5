/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.c - a peer's life: created, up, ending, down, released, freed. All but creating, requesting
 * the end, and releasing runs in the poller; other threads set a flag and call nic__attention.
 *
 * The end has an order: no more sends are accepted; outstanding sends get their callbacks; messages
 * that arrived are handed out; only then the event reports that the peer is down. The socket is
 * hung up when no thread of ours writes into the peer's memory, because the peer takes that for the
 * end of such writing. Likewise, where the peer claims to write into our memory, the poller waits
 * for the end of its socket, for revoke_timeout_ms at most.
 *
 * A peer leaves the port's lists under port->lock, and the poller frees it afterwards. So a thread
 * that holds that lock may use each peer that it finds there, and none of them once it has released
 * the lock; the poller always may.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

struct nic_peer *nic__peer_new(struct nic_port *port)
{
    struct nic_peer *peer = aligned_alloc(NIC_LINE, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    memset(peer, 0, sizeof(*peer));
    peer->port = port;
    peer->doorbell = -1;
    peer->socket = (struct nic_source){.kind = NIC_SOURCE_SOCKET, .fd = -1, .owner = peer};
    peer->process = (struct nic_source){.kind = NIC_SOURCE_PROCESS, .fd = -1, .owner = peer};
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        nic__queue_init(&peer->waiting[i]);
        nic__queue_init(&peer->flying[i]);
    }
    nic__queue_init(&peer->directed);
    nic__queue_init(&peer->answering);
    nic__queue_init(&peer->landing);
    peer->deadline_ns = nic__now() + port->options.connect_timeout_ms * 1000000ull;
    return peer;
}

void nic__peer_add(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    bmi_lock_take(&port->lock);
    peer->faults = port->faults;
    peer->next = port->peers;
    port->peers = peer;
    bmi_lock_give(&port->lock);
}

void nic__peer_free(struct nic_peer *peer)
{
    nic__source_remove(peer->port, &peer->socket);
    nic__source_remove(peer->port, &peer->process);
    if (peer->doorbell >= 0)
        close(peer->doorbell);
    for (int i = 0; i < NIC_ARENAS_MAX; i++) {
        struct nic_mapping *mapping = atomic_load(&peer->arenas[i]);
        if (mapping != NULL)
            munmap(mapping->base, mapping->length);
        free(mapping);
    }
    peer->port->arena_bytes -= peer->arena_bytes;
    if (peer->their_wire != NULL)
        munmap(peer->their_wire, sizeof(*peer->their_wire));
    if (peer->their_port != NULL)
        munmap(peer->their_port, peer->their_port_size);
    if (peer->link_memory != NULL)
        munmap(peer->link_memory, peer->link_size);
    free(peer);
}

static struct nic_peer **names_locked(struct nic_port *port, uint64_t link)
{
    return &port->named[(link >> 1) % NIC_NAMES]; /* all are odd */
}

struct nic_peer *nic__exposed_locked(struct nic_port *port, uint64_t link,
                                     const struct nic_peer *before)
{
    if (link == 0)
        return before == NULL ? port->peers : before->next;
    struct nic_peer *peer = before == NULL ? *names_locked(port, link) : before->named_next;
    while (peer != NULL && peer->link_name != link)
        peer = peer->named_next;
    return peer;
}

static void name_add(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    bmi_lock_take(&port->lock);
    struct nic_peer **first = names_locked(port, peer->link_name);
    peer->named_next = *first;
    *first = peer;
    bmi_lock_give(&port->lock);
}

/* It may never have been up. */
static void lists_leave_locked(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    struct nic_peer **at = &port->peers, **named = names_locked(port, peer->link_name);
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    while (*named != NULL && *named != peer)
        named = &(*named)->named_next;
    if (*named != NULL)
        *named = peer->named_next;
}

int nic_connect(struct nic_port *port, const char *host, uint16_t number, void *context,
                struct nic_peer **result)
{
    if (strlen(host) >= NIC_NODE_MAX)
        return -ENAMETOOLONG;
    if (number == 0)
        return -EINVAL;
    struct nic_peer *peer = nic__peer_new(port);
    if (peer == NULL)
        return -ENOMEM;
    strcpy(peer->host, host);
    peer->number = number;
    peer->context = context;
    peer->announced = true;
    *result = peer;
    nic__peer_add(peer);
    nic__attention(port);
    return 0;
}

void nic_peer_close(struct nic_peer *peer)
{
    atomic_store(&peer->close_asked, true);
    nic__attention(peer->port);
}

void nic_peer_release(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    atomic_store(&peer->released, true); /* the poller may free it from now on */
    nic__attention(port);
}

void *nic_peer_context(const struct nic_peer *peer)
{
    return peer->context;
}

void nic_peer_set_context(struct nic_peer *peer, void *context)
{
    peer->context = context;
}

void nic_peer_process(const struct nic_peer *peer, int *pid, unsigned *uid)
{
    *pid = peer->pid;
    *uid = peer->uid;
}

uint64_t nic_peer_max_length(const struct nic_peer *peer, enum nic_priority priority)
{
    return peer->max_length[priority];
}

/* ---- events --------------------------------------------------------------------------------- */

static void event_queue(struct nic_peer *peer, bool down)
{
    struct nic_port *port = peer->port;
    bmi_lock_take(&port->lock);
    if (down)
        peer->event_down = true;
    else
        peer->event_up = true;
    if (!peer->event_queued) {
        peer->event_queued = true;
        peer->event_next = NULL;
        *port->event_last = peer;
        port->event_last = &peer->event_next;
        atomic_fetch_add(&port->event_count, 1);
    }
    bmi_lock_give(&port->lock);
}

bool nic__peer_event(struct nic_port *port, struct nic_event *event)
{
    if (atomic_load_explicit(&port->event_count, memory_order_relaxed) == 0)
        return false;
    if (port->crowded) {
        port->crowded = false;
        atomic_fetch_sub(&port->event_count, 1);
        event->type = NIC_CROWDED_EVENT;
        return true;
    }
    bmi_lock_take(&port->lock);
    struct nic_peer *peer = port->event_first;
    event->peer = peer;
    if (peer->event_up) {
        peer->event_up = false;
        event->type = peer->accepted ? NIC_PEER_ACCEPTED_EVENT : NIC_PEER_UP_EVENT;
    } else if (atomic_load(&port->completed_count) != 0) {
        event->type = NIC_SENT_EVENT; /* its callbacks come before its end */
    } else {
        peer->event_down = false;
        event->type = NIC_PEER_DOWN_EVENT;
        event->status = peer->status;
    }
    if (!peer->event_up && !peer->event_down) {
        peer->event_queued = false;
        port->event_first = peer->event_next;
        if (port->event_first == NULL)
            port->event_last = &port->event_first;
        atomic_fetch_sub(&port->event_count, 1);
    }
    bmi_lock_give(&port->lock);
    return true;
}

/* ---- the table of polled peers
 * ---------------------------------------------------------------- */

static int table_add(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    if (port->table_count == port->table_room) {
        uint32_t room = port->table_room == 0 ? 16 : 2 * port->table_room;
        struct nic_peer **table = realloc(port->table, room * sizeof(*table));
        if (table == NULL)
            return -ENOMEM;
        port->table = table;
        port->table_room = room;
    }
    port->table[port->table_count++] = peer;
    peer->in_table = true;
    return 0;
}

static void table_remove(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    if (!peer->in_table)
        return;
    peer->in_table = peer->hot = false;
    for (uint32_t i = 0; i < port->table_count; i++)
        if (port->table[i] == peer)
            port->table[i] = port->table[--port->table_count];
    for (uint32_t i = 0; i < port->hot_count; i++)
        if (port->hot[i] == peer)
            port->hot[i] = port->hot[--port->hot_count];
    port->cold_cursor = port->hot_cursor = 0;
}

int nic__peer_up(struct nic_peer *peer)
{
    int status = table_add(peer);
    if (status != 0)
        return status;
    name_add(peer);
    bmi_lock_take(&peer->lock);
    atomic_store(&peer->state, NIC_UP);
    bmi_lock_give(&peer->lock);
    peer->announced = true;
    nic__arenas_tell(peer);
    event_queue(peer, false);
    return 0;
}

/* ---- the end ----------------------------------------------------------------------------------
 */

void nic__peer_end(struct nic_peer *peer, int status)
{
    bmi_lock_take(&peer->lock);
    int state = atomic_load(&peer->state);
    if (state < NIC_ENDING) {
        peer->status = status;
        atomic_store(&peer->state, NIC_ENDING);
    }
    bmi_lock_give(&peer->lock);
    if (state >= NIC_ENDING)
        return;
    if (status == -EPROTO)
        nic__count_own(&peer->port->counters.broken_peers, 1);
    peer->stall_until_ns = nic__now() + peer->port->options.resend_timeout_ms * 1000000ull;
    nic__attention(peer->port);
}

void nic__peer_broken(struct nic_peer *peer)
{
    atomic_store(&peer->broken, true);
    nic__attention(peer->port);
}

bool nic__last_messages(struct nic_peer *peer)
{
    if (peer->closed_by_us || atomic_load_explicit(&peer->broken, memory_order_relaxed) ||
        peer->status == -EPROTO || !peer->in_table)
        return false;
    bool any = false, all_stalled = true;
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        struct nic_record_head head;
        const uint8_t *payload;
        bool bad = false;
        if (!nic__ring_head(&peer->in[i], &head, &payload, &bad))
            continue;
        any |= !bad;
        all_stalled &= peer->stalled[i];
    }
    /* A killed peer does not send again; one that closed in good order left its messages here. */
    return any && (!all_stalled || (peer->said_bye && nic__now() < peer->stall_until_ns));
}

/* Hangs up. Until the peer is freed its own end is still watched for: it may be writing to our
 * memory, and perhaps no other event shows that it was killed. */
static void socket_hang_up(struct nic_peer *peer)
{
    struct nic_handshake bye;
    if (peer->socket.fd < 0 || peer->hung_up)
        return;
    if (peer->mine != NULL && peer->closed_by_us) {
        nic__hello_fill(peer->port, &bye, NIC_BYE);
        nic__handshake_send(peer->socket.fd, &bye, NULL, 0);
    }
    peer->hung_up = peer->mine != NULL && shutdown(peer->socket.fd, SHUT_WR) == 0;
    if (!peer->hung_up)
        nic__source_remove(peer->port, &peer->socket);
}

void nic__peer_drain(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    if (atomic_load(&peer->state) != NIC_ENDING)
        return;
    int status = peer->closed_by_us ? -ECANCELED : peer->status != 0 ? peer->status : -ECONNRESET;
    if (!nic__directed_fail_all(peer, status)) /* a thread is writing: it calls nic__attention
                                                * later */
        return;
    if (peer->mine != NULL)
        nic__send_fail_all(peer, status);
    socket_hang_up(peer);
    if (nic__last_messages(peer) || port->held == peer)
        return;
    table_remove(peer);
    peer->deadline_ns = nic__now() + port->options.revoke_timeout_ms * 1000000ull;
    atomic_store(&peer->state, NIC_DOWN);
    if (peer->announced)
        event_queue(peer, true);
    else
        atomic_store(&peer->released, true);
}

/* Whether it claims to write into our memory, and has time left for that: the claim may be to a
 * exposure to all, so it is still checked. The application uses the peer no more, so the one
 * descriptor that shows its end is enough. */
static bool is_waited_for(struct nic_peer *peer, uint64_t now)
{
    if (!nic__claimed(peer))
        return false;
    if (peer->doorbell >= 0)
        close(peer->doorbell);
    peer->doorbell = -1;
    if (peer->process.fd >= 0)
        nic__source_remove(peer->port, &peer->socket);
    return now < peer->deadline_ns;
}

/* Frees a released peer, unless its process still writes into our memory. */
static bool try_free(struct nic_peer *peer, uint64_t now)
{
    struct nic_port *port = peer->port;
    if (!atomic_load(&peer->released) || atomic_load(&peer->state) != NIC_DOWN ||
        peer->event_queued || port->held == peer || is_waited_for(peer, now))
        return false;
    bmi_lock_take(&port->lock);
    lists_leave_locked(peer);
    nic__exposures_left_look_locked(port, peer->link_name);
    bmi_lock_give(&port->lock);
    nic__count(&port->counters.sent, atomic_load(&peer->sent));
    nic__count(&port->counters.sent_bytes, atomic_load(&peer->sent_bytes));
    nic__peer_free(peer);
    return true;
}

/* It sent invalid data; its later messages are not handed out, even if it has ended meanwhile. */
static void rubbish_seen(struct nic_peer *peer)
{
    if (peer->status == -EPROTO)
        return;
    nic__log(peer->port, NIC_LOG_WARN, "peer (pid %d) wrote rubbish: closed", peer->pid);
    if (atomic_load(&peer->state) == NIC_UP) {
        nic__peer_end(peer, -EPROTO);
        return;
    }
    bmi_lock_take(&peer->lock);
    peer->status = -EPROTO;
    bmi_lock_give(&peer->lock);
    nic__count_own(&peer->port->counters.broken_peers, 1);
}

/* The backlog was full, or too many descriptors were in transit: no event shows when that ends. */
static void handshake_again(struct nic_peer *peer, uint64_t now)
{
    enum { RETRY_NS = 2000000 };
    if (now < peer->retry_ns)
        return;
    peer->retry_ns = now + RETRY_NS;
    int status = atomic_load(&peer->state) == NIC_DIALLING ? nic__dial(peer) : nic__welcome(peer);
    if (status != 0 && status != -EAGAIN)
        nic__peer_end(peer, status);
}

static void peer_look(struct nic_peer *peer, uint64_t now)
{
    int state = atomic_load(&peer->state);
    if (state == NIC_DOWN)
        return;
    if (atomic_load_explicit(&peer->close_asked, memory_order_relaxed)) {
        peer->closed_by_us = true;
        nic__peer_end(peer, 0); /* unless it is ending already */
    } else if (atomic_load_explicit(&peer->broken, memory_order_relaxed) && state >= NIC_UP) {
        rubbish_seen(peer);
    }
    state = atomic_load(&peer->state);
    if (state == NIC_DIALLING || (state == NIC_HANDSHAKE && peer->crowded))
        handshake_again(peer, now);
    state = atomic_load(&peer->state);
    if (state <= NIC_HANDSHAKE && now >= peer->deadline_ns) {
        if (peer->line_ns != 0)
            nic__log(peer->port, NIC_LOG_WARN, "%s:%u had no descriptor for us in %u ms",
                     peer->host, peer->number, peer->port->options.connect_timeout_ms);
        nic__peer_end(peer, peer->crowded ? -ETOOMANYREFS : -ETIMEDOUT);
    }
    if (state == NIC_UP) {
        if (peer->arenas_told <
            atomic_load_explicit(&peer->port->arena_count, memory_order_acquire))
            nic__arenas_tell(peer);
        if (atomic_load_explicit(&peer->unsettled, memory_order_relaxed))
            nic__send_timeouts(peer, now);
    }
    nic__peer_drain(peer);
}

void nic__peers_look(struct nic_port *port, uint64_t now)
{
    atomic_exchange(&port->attention, false);
    bmi_lock_take(&port->lock);
    struct nic_peer *peer = port->peers;
    bmi_lock_give(&port->lock);
    while (peer != NULL) { /* only the poller removes from the list */
        struct nic_peer *next = peer->next;
        peer_look(peer, now);
        try_free(peer, now);
        peer = next;
    }
}
