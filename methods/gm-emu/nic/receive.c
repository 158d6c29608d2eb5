/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive.c - incoming messages: the poller polls the rings, gives each message the oldest buffer
 * of its class and priority, and returns an event. All of it runs in the poller, except that any
 * thread may provide buffers.
 *
 * A record's header is copied before it is checked. A message of up to NIC_MEMORIZED bytes is
 * copied to its buffer; a longer one is handed out in the ring, and consumed when the next event is
 * asked for. The consumer reports its position seldom: when a ring is found empty, or a quarter of
 * it was consumed.
 *
 * Buffers are provided under buffer_lock, by any thread. The token of the buffer that an event
 * hands out is kept until the next event, so that nic_unknown can provide the buffer again without
 * the lock: to the poller's own list, which is searched first.
 */
#include <errno.h>

#include "internal.h"

/* ---- buffers ----------------------------------------------------------------------------------
 */

void nic__buffers_init(struct nic_port *port)
{
    for (uint32_t i = port->options.receive_tokens; i-- > 0;) {
        port->buffers[i].next = port->buffer_free;
        port->buffer_free = &port->buffers[i];
    }
    for (int i = 0; i < NIC_PRIORITIES; i++)
        for (int size = 0; size <= NIC_MAX_SIZE; size++)
            port->ready_last[i][size] = &port->ready[i][size];
}

static void ready_count_add_locked(struct nic_port *port, int priority, unsigned size,
                                   uint32_t amount)
{
    _Atomic uint32_t *count = &port->ready_count[priority][size];
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

int nic_provide_receive_buffer(struct nic_port *port, void *memory, unsigned size,
                               enum nic_priority priority)
{
    if ((unsigned)priority >= NIC_PRIORITIES || size < NIC_MIN_SIZE || size > NIC_MAX_SIZE)
        return -EINVAL;
    if (!nic__registered(port, memory, nic_max_length_for_size(size)))
        return -EFAULT;
    bmi_lock_take(&port->buffer_lock);
    struct nic_buffer *buffer = port->buffer_free;
    if (buffer != NULL)
        port->buffer_free = buffer->next;
    if (buffer != NULL) {
        buffer->memory = memory;
        buffer->next = NULL;
        *port->ready_last[priority][size] = buffer;
        port->ready_last[priority][size] = &buffer->next;
        ready_count_add_locked(port, (int)priority, size, 1);
    }
    bmi_lock_give(&port->buffer_lock);
    if (buffer == NULL)
        return -EAGAIN;
    nic__wake(port); /* a message may be waiting for it */
    return 0;
}

static bool has_buffer(struct nic_port *port, int priority, unsigned size)
{
    return port->own[priority][size] != NULL ||
           atomic_load_explicit(&port->ready_count[priority][size], memory_order_relaxed) != 0;
}

/* The caller has seen that there is one. */
static void *buffer_take(struct nic_port *port, int priority, unsigned size)
{
    struct nic_buffer *buffer = port->own[priority][size];
    if (buffer != NULL) {
        port->own[priority][size] = buffer->next;
    } else {
        bmi_lock_take(&port->buffer_lock);
        buffer = port->ready[priority][size]; /* only the poller takes any */
        port->ready[priority][size] = buffer->next;
        if (buffer->next == NULL)
            port->ready_last[priority][size] = &port->ready[priority][size];
        ready_count_add_locked(port, priority, size, UINT32_MAX);
        bmi_lock_give(&port->buffer_lock);
    }
    port->event_buffer = buffer;
    return buffer->memory;
}

/* The last event's buffer was not provided again by nic_unknown. */
static void event_buffer_return(struct nic_port *port)
{
    struct nic_buffer *buffer = port->event_buffer;
    if (buffer == NULL)
        return;
    port->event_buffer = NULL;
    bmi_lock_take(&port->buffer_lock);
    buffer->next = port->buffer_free;
    port->buffer_free = buffer;
    bmi_lock_give(&port->buffer_lock);
}

static void buffer_provide_again(struct nic_port *port, const struct nic_event *event)
{
    struct nic_buffer *buffer = port->event_buffer;
    assert(buffer != NULL);
    port->event_buffer = NULL;
    buffer->next = port->own[event->priority][event->size];
    port->own[event->priority][event->size] = buffer;
}

/* ---- rings ------------------------------------------------------------------------------------
 */

void nic__told(struct nic_peer *peer, int priority)
{
    struct nic_ring *ring = &peer->in[priority];
    if (ring->seen == ring->position)
        return;
    ring->seen = ring->position;
    atomic_store_explicit(&peer->mine->consumed[priority], ring->position, memory_order_release);
    bmi_fence();
    if (atomic_load_explicit(&peer->theirs->wants, memory_order_relaxed) != 0)
        nic__doorbell(peer);
}

/* The ring is empty: a sender that is not blocked gets the position at the next look, when the
 * last messages may have been answered. */
static void told_soon(struct nic_peer *peer, int priority)
{
    struct nic_ring *ring = &peer->in[priority];
    if (ring->seen == ring->position)
        return;
    if (ring->looked || atomic_load_explicit(&peer->theirs->wants, memory_order_relaxed) != 0)
        nic__told(peer, priority);
    ring->looked = true;
}

static void consume(struct nic_peer *peer, int priority, uint64_t end)
{
    struct nic_ring *ring = &peer->in[priority];
    ring->position = end;
    ring->looked = false;
    if (ring->position - ring->seen >= ring->size / 4)
        nic__told(peer, priority);
}

void nic__hold_finish(struct nic_port *port)
{
    if (port->held == NULL)
        return;
    consume(port->held, (int)port->held_priority, port->held_end);
    port->held = NULL;
}

/* The first record waits for a buffer. Marks it and notifies the sender, which counts the time. */
static void stall_mark(struct nic_peer *peer, int priority)
{
    peer->stalled[priority] = true;
    nic__count_own(&peer->port->counters.waited_for_buffer, 1);
    atomic_store(&peer->mine->stall[priority], peer->in[priority].position | NIC_STALLED);
    nic__told(peer, priority);
    nic__doorbell(peer);
}

static bool given_up(struct nic_peer *peer, int priority)
{
    return (atomic_load_explicit(&peer->mine->stall[priority], memory_order_acquire) &
            NIC_STALL_BITS) != NIC_STALLED;
}

/* There is a buffer for a marked record: true if the sender has not given it up meanwhile. */
static bool stall_end(struct nic_peer *peer, int priority)
{
    uint64_t mark = peer->in[priority].position | NIC_STALLED;
    peer->stalled[priority] = false;
    if (atomic_compare_exchange_strong(&peer->mine->stall[priority], &mark, 0))
        return true;
    atomic_store(&peer->mine->stall[priority], 0);
    return false;
}

enum taken { TAKEN_NOTHING, TAKEN_MESSAGE, TAKEN_AGAIN };

static void message_show(struct nic_peer *peer, int priority, const struct nic_record_head *head,
                         const uint8_t *payload, void *buffer, struct nic_event *event)
{
    struct nic_port *port = peer->port;
    uint64_t end = peer->in[priority].position + nic__record_span(head->length);
    event->priority = (enum nic_priority)priority;
    event->peer = peer;
    event->size = head->size;
    event->buffer = buffer;
    event->length = head->length;
    nic__count_own(&port->counters.received, 1);
    nic__count_own(&port->counters.received_bytes, head->length);
    if (head->length <= NIC_MEMORIZED) {
        memcpy(buffer, payload, head->length);
        event->type = NIC_RECV_EVENT;
        event->message = buffer;
        consume(peer, priority, end);
    } else {
        event->type = NIC_FAST_RECV_EVENT;
        event->message = payload;
        port->held = peer;
        port->held_priority = (enum nic_priority)priority;
        port->held_end = end;
    }
    if (port->timed)
        nic__spend(port->options.timing.host_receive_ns);
}

static enum taken message_take(struct nic_peer *peer, int priority,
                               const struct nic_record_head *head, const uint8_t *payload,
                               struct nic_event *event)
{
    uint64_t end = peer->in[priority].position + nic__record_span(head->length);
    if (head->size < NIC_MIN_SIZE || head->size > NIC_MAX_SIZE ||
        head->length > nic_max_length_for_size(head->size)) {
        nic__peer_broken(peer);
        return TAKEN_NOTHING;
    }
    if (!has_buffer(peer->port, priority, head->size)) {
        if (!peer->stalled[priority]) {
            stall_mark(peer, priority);
            return TAKEN_NOTHING;
        }
        if (!given_up(peer, priority))
            return TAKEN_NOTHING;
        peer->stalled[priority] = false;
        atomic_store(&peer->mine->stall[priority], 0);
        consume(peer, priority, end);
        return TAKEN_AGAIN;
    }
    if (peer->stalled[priority] && !stall_end(peer, priority)) {
        consume(peer, priority, end);
        return TAKEN_AGAIN;
    }
    void *buffer = buffer_take(peer->port, priority, head->size);
    message_show(peer, priority, head, payload, buffer, event);
    return TAKEN_MESSAGE;
}

/* Whether the timing model lets a record be seen. A due time too far off is invalid: seen at
 * once. */
static bool is_due(const struct nic_record_head *head, uint64_t *due_ns)
{
    const uint64_t FAR_NS = 20000000000u;
    if (head->due_ns == 0)
        return true;
    uint64_t now = nic__now();
    if (head->due_ns <= now || head->due_ns - now > FAR_NS)
        return true;
    if (head->due_ns < *due_ns)
        *due_ns = head->due_ns;
    return false;
}

static enum taken record_take(struct nic_peer *peer, int priority, struct nic_event *event)
{
    struct nic_record_head head;
    const uint8_t *payload;
    bool bad = false;
    uint64_t due_ns = UINT64_MAX;
    if (!nic__ring_head(&peer->in[priority], &head, &payload, &bad)) {
        told_soon(peer, priority);
        return TAKEN_NOTHING;
    }
    if (bad || head.length > peer->max_length[priority]) {
        nic__peer_broken(peer);
        return TAKEN_NOTHING;
    }
    if (!is_due(&head, &due_ns)) {
        nic__told(peer, priority);
        return TAKEN_NOTHING;
    }
    if (head.kind == NIC_RECORD_MESSAGE)
        return message_take(peer, priority, &head, payload, event);
    if (head.kind != NIC_RECORD_BOUNCE || !nic__bounce_arrived(peer, payload, head.length)) {
        nic__peer_broken(peer);
        return TAKEN_NOTHING;
    }
    consume(peer, priority, peer->in[priority].position + nic__record_span(head.length));
    return TAKEN_AGAIN;
}

static bool rings_poll(struct nic_peer *peer, struct nic_event *event)
{
    enum { TURN = 8 };
    for (int priority = NIC_PRIORITIES; priority-- > 0;) {
        enum taken taken = TAKEN_AGAIN;
        for (int i = 0; i < TURN && taken == TAKEN_AGAIN; i++)
            taken = record_take(peer, priority, event);
        if (taken == TAKEN_MESSAGE)
            return true;
    }
    return false;
}

bool nic__peer_poll(struct nic_peer *peer, struct nic_event *event)
{
    int state = atomic_load_explicit(&peer->state, memory_order_relaxed);
    if (state == NIC_UP && atomic_load_explicit(&peer->busy, memory_order_relaxed) != 0) {
        uint64_t now = nic__now();
        nic__send_progress(peer, now);
        nic__directed_run(peer, NIC_PIECE, now);
    }
    if (peer->closed_by_us || atomic_load_explicit(&peer->broken, memory_order_relaxed))
        return false;
    if (rings_poll(peer, event))
        return true;
    if (state == NIC_ENDING && !nic__last_messages(peer))
        nic__attention(peer->port);
    return false;
}

bool nic__peer_ready(struct nic_peer *peer, uint64_t now, uint64_t *due_ns)
{
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        struct nic_record_head head;
        const uint8_t *payload;
        bool bad = false;
        if (!nic__ring_head(&peer->in[i], &head, &payload, &bad)) {
            nic__told(peer, i);
            continue;
        }
        if (bad || (is_due(&head, due_ns) &&
                    (!peer->stalled[i] || given_up(peer, i) ||
                     has_buffer(peer->port, i, head.size <= NIC_MAX_SIZE ? head.size : 0))))
            return true;
    }
    if (atomic_load_explicit(&peer->busy, memory_order_relaxed) == 0)
        return false;
    return nic__send_runnable(peer, now) || nic__directed_runnable(peer, now);
}

/* ---- events -----------------------------------------------------------------------------------
 */

void *nic_memorize_message(struct nic_event *event)
{
    if (event->type == NIC_FAST_RECV_EVENT && event->message != event->buffer) {
        memcpy(event->buffer, event->message, event->length);
        event->message = event->buffer;
    }
    return event->buffer;
}

void nic__hot_add(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    if (peer->hot)
        return;
    uint32_t place = port->hot_count;
    if (place < NIC_HOT) {
        port->hot_count++;
    } else {
        place = port->hot_cursor = (port->hot_cursor + 1) % NIC_HOT;
        port->hot[place]->hot = false;
    }
    port->hot[place] = peer;
    peer->hot = true;
}

static bool hot_poll(struct nic_port *port, struct nic_event *event)
{
    enum { BURST = 16 }; /* events of one peer in a row */
    for (uint32_t i = 0; i < port->hot_count; i++) {
        struct nic_peer *peer = port->hot[port->hot_cursor % port->hot_count];
        if (port->hot_burst < BURST && nic__peer_poll(peer, event)) {
            port->hot_burst++;
            return true;
        }
        port->hot_burst = 0;
        port->hot_cursor = (port->hot_cursor + 1) % port->hot_count;
    }
    return false;
}

static bool cold_poll(struct nic_port *port, struct nic_event *event)
{
    uint32_t count = port->table_count < NIC_COLD ? port->table_count : NIC_COLD;
    if (port->table_count == port->hot_count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        port->cold_cursor = (port->cold_cursor + 1) % port->table_count;
        struct nic_peer *peer = port->table[port->cold_cursor];
        if (peer->hot || !nic__peer_poll(peer, event))
            continue;
        nic__hot_add(peer);
        return true;
    }
    return false;
}

/* Whether one of the recently active peers sends, while no other peer is looked at. */
static bool hot_speaks(const struct nic_port *port)
{
    for (uint32_t i = 0; i < port->hot_count; i++)
        for (int priority = 0; priority < NIC_PRIORITIES; priority++)
            if (nic__ring_speaks(&port->hot[i]->in[priority]))
                return true;
    return false;
}

/* A caller that waits for the answer of one peer, or of few, sees it sooner here than in the
 * next call. */
static bool hot_watch(struct nic_port *port, struct nic_event *event)
{
    enum { FEW = 4, LOOKS = 16 };
    if (hot_poll(port, event))
        return true;
    for (uint32_t i = 0; port->hot_count <= FEW && i < LOOKS; i += port->hot_count + 1)
        if (hot_speaks(port))
            return hot_poll(port, event);
    return false;
}

static bool peers_poll(struct nic_port *port, struct nic_event *event)
{
    enum { COLD_EVERY = 16 }; /* busy peers must not keep the others waiting */
    if (port->calls % COLD_EVERY == 0 && cold_poll(port, event))
        return true;
    return hot_watch(port, event) || cold_poll(port, event);
}

static bool sent_event(struct nic_port *port, struct nic_event *event)
{
    if (atomic_load_explicit(&port->completed_count, memory_order_relaxed) == 0)
        return false;
    event->type = NIC_SENT_EVENT;
    return true;
}

struct nic_event *nic_receive(struct nic_port *port)
{
    enum { CLOCK_EVERY = 64 };
    struct nic_event *event = &port->event;
    bool sent_last = event->type == NIC_SENT_EVENT;
    nic__hold_finish(port);
    event_buffer_return(port);
    *event = (struct nic_event){.type = NIC_NO_RECV_EVENT};
    port->calls++;
    nic__turn(port);
    if (port->armed)
        nic__disarm(port);
    else if (port->calls % CLOCK_EVERY == 0 || port->timed ||
             atomic_load_explicit(&port->attention, memory_order_relaxed))
        nic__look(port, nic__now());
    if (nic__peer_event(port, event)) /* a peer's UP comes before its messages */
        return event;
    if (sent_last && peers_poll(port, event)) /* neither kind may keep the other waiting */
        return event;
    if (sent_event(port, event) || (!sent_last && peers_poll(port, event)))
        return event;
    sent_event(port, event);
    return event;
}

/* Whether a recently active peer has sends of ours to go on with. */
static bool hot_busy(const struct nic_port *port)
{
    for (uint32_t i = 0; i < port->hot_count; i++)
        if (atomic_load_explicit(&port->hot[i]->busy, memory_order_relaxed) != 0)
            return true;
    return false;
}

bool nic_pending(const struct nic_port *port)
{
    return atomic_load_explicit(&port->completed_count, memory_order_relaxed) != 0 ||
           hot_busy(port) || hot_speaks(port);
}

static void callbacks_call(struct nic_port *port)
{
    bmi_lock_take(&port->token_lock);
    struct nic_send *done = port->completed.head;
    nic__queue_init(&port->completed);
    atomic_store_explicit(&port->completed_count, 0, memory_order_relaxed);
    bmi_lock_give(&port->token_lock);
    for (struct nic_send *send = done, *next; send != NULL; send = next) {
        next = send->next;
        nic_callback *callback = send->callback;
        void *context = send->context;
        int status = send->status;
        nic__token_return(port, send);
        if (callback != NULL)
            callback(port, context, status);
    }
}

void nic_unknown(struct nic_port *port, struct nic_event *event)
{
    switch (event->type) {
    case NIC_SENT_EVENT:
        callbacks_call(port);
        break;
    case NIC_RECV_EVENT:
    case NIC_FAST_RECV_EVENT:
        buffer_provide_again(port, event);
        break;
    case NIC_NO_RECV_EVENT:
    case NIC_CROWDED_EVENT:
    case NIC_PEER_ACCEPTED_EVENT:
    case NIC_PEER_UP_EVENT:
    case NIC_PEER_DOWN_EVENT:
        break;
    }
}
