/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.c - outgoing messages: tokens, the way into the ring, callbacks, resend time-outs.
 *
 * A message that finds its ring free, with nothing before it, is written by the posting thread,
 * under peer->lock. Else it waits in `waiting`; the poller goes on with it when the peer has
 * consumed. Unbuffered ones are in `flying` from then on, until the peer took them. When the peer
 * has no buffer for a message, it marks the message in `stall`; only a marked one can be given up,
 * and the side that changes the mark first decides whether it was received or failed, so that it is
 * never both.
 */
#include <errno.h>

#include "internal.h"

void nic__queue_init(struct nic_queue *queue)
{
    queue->head = NULL;
    queue->tail = &queue->head;
}

void nic__queue_add(struct nic_queue *queue, struct nic_send *send)
{
    send->next = NULL;
    *queue->tail = send;
    queue->tail = &send->next;
}

/* Removes the send that `link`, the head or a `next`, points to. */
static struct nic_send *queue_remove(struct nic_queue *queue, struct nic_send **link)
{
    struct nic_send *send = *link;
    *link = send->next;
    if (*link == NULL)
        queue->tail = link;
    return send;
}

struct nic_send *nic__queue_take(struct nic_queue *queue)
{
    return queue->head != NULL ? queue_remove(queue, &queue->head) : NULL;
}

struct nic_send *nic__token_take(struct nic_port *port)
{
    bmi_lock_take(&port->token_lock);
    struct nic_send *send = port->token_free;
    if (send != NULL) {
        port->token_free = send->next;
        atomic_fetch_sub_explicit(&port->tokens_left, 1, memory_order_relaxed);
    }
    bmi_lock_give(&port->token_lock);
    if (send != NULL)
        memset(send, 0, sizeof(*send));
    return send;
}

void nic__token_return(struct nic_port *port, struct nic_send *send)
{
    bmi_lock_take(&port->token_lock);
    send->next = port->token_free;
    port->token_free = send;
    atomic_fetch_add_explicit(&port->tokens_left, 1, memory_order_relaxed);
    bmi_lock_give(&port->token_lock);
}

uint32_t nic_num_send_tokens(const struct nic_port *port)
{
    return atomic_load_explicit(&port->tokens_left, memory_order_relaxed);
}

/* peer->lock held. From the first send on the peer reports its position, asleep or not. */
void nic__busy_add(struct nic_peer *peer)
{
    if (atomic_fetch_add_explicit(&peer->busy, 1, memory_order_relaxed) == 0)
        atomic_store_explicit(&peer->mine->wants, 1, memory_order_relaxed);
}

static void busy_drop(struct nic_peer *peer)
{
    if (atomic_fetch_sub_explicit(&peer->busy, 1, memory_order_relaxed) == 1)
        atomic_store_explicit(&peer->mine->wants, 0, memory_order_relaxed);
}

void nic__send_done(struct nic_peer *peer, struct nic_send *send, int status)
{
    struct nic_port *port = peer->port;
    busy_drop(peer);
    send->status = status;
    bmi_lock_take(&port->token_lock);
    nic__queue_add(&port->completed, send);
    atomic_fetch_add_explicit(&port->completed_count, 1, memory_order_relaxed);
    bmi_lock_give(&port->token_lock);
}

void nic__send_timed_out(struct nic_peer *peer, struct nic_send *send)
{
    nic__count(&peer->port->counters.timed_out, 1);
    nic__send_done(peer, send, -ETIMEDOUT);
}

void nic__doorbell(struct nic_peer *peer)
{
    bmi_fence();
    if (atomic_load_explicit(&peer->their_port->asleep, memory_order_relaxed) == 0)
        return;
    nic__count(&peer->port->counters.doorbells, 1);
    int status = nic__ring(peer->doorbell);
    if (status != 0)
        nic__log(peer->port, NIC_LOG_WARN, "cannot ring the doorbell of a gm peer (pid %d): %s",
                 peer->pid, strerror(-status));
}

unsigned nic_min_size_for_length(uint64_t length)
{
    unsigned size = NIC_MIN_SIZE;
    while (size < 63 && length > 1ull << size)
        size++;
    return size;
}

uint64_t nic_max_length_for_size(unsigned size)
{
    return 1ull << size;
}

/* The sum of the segments; more than `limit` if it is more. */
static uint64_t message_length(const struct iovec *iov, size_t count, uint64_t limit)
{
    uint64_t length = 0;
    for (size_t i = 0; i < count && length <= limit; i++)
        length = iov[i].iov_len > limit ? limit + 1 : length + iov[i].iov_len;
    return length;
}

void nic__gather(uint8_t *to, const struct iovec *iov, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (iov[i].iov_len == 0)
            continue;
        memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
}

struct message {
    const struct iovec *iov;
    size_t count;
    uint64_t length;
    uint8_t size;
    enum nic_priority priority;
};

/* peer->lock held. */
static void sent_count(struct nic_peer *peer, uint64_t length)
{
    uint64_t sent = atomic_load_explicit(&peer->sent, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&peer->sent_bytes, memory_order_relaxed);
    atomic_store_explicit(&peer->unsettled, true, memory_order_relaxed);
    atomic_store_explicit(&peer->sent, sent + 1, memory_order_relaxed);
    atomic_store_explicit(&peer->sent_bytes, bytes + length, memory_order_relaxed);
}

/* Reads how much of a ring the peer has consumed. False: invalid. peer->lock held. */
static bool consumed_read(struct nic_peer *peer, int priority)
{
    bool good = nic__ring_refresh(&peer->out[priority], &peer->theirs->consumed[priority]);
    if (!good)
        nic__peer_broken(peer);
    return good;
}

uint8_t *nic__out_reserve(struct nic_peer *peer, int priority, uint64_t length)
{
    uint8_t *place = nic__ring_reserve(&peer->out[priority], length);
    if (place == NULL && consumed_read(peer, priority))
        place = nic__ring_reserve(&peer->out[priority], length);
    return place;
}

/* Writes the message into the ring, if there is room. peer->lock held. */
static bool message_put(struct nic_peer *peer, const struct message *message)
{
    uint8_t *place = nic__out_reserve(peer, (int)message->priority, message->length);
    if (place == NULL)
        return false;
    nic__gather(place, message->iov, message->count);
    uint64_t due_ns = 0, next_ns;
    if (peer->port->timed)
        due_ns = nic__wire_reserve(peer, message->length, nic__now(), &next_ns);
    nic__ring_publish(&peer->out[message->priority], message->length, NIC_RECORD_MESSAGE,
                      message->size, due_ns);
    sent_count(peer, message->length);
    return true;
}

/* Puts a waiting message into the ring. False: it cannot go yet. */
static bool waiting_put(struct nic_peer *peer, struct nic_send *send, uint64_t now)
{
    struct message message = {send->iov, send->count, send->length, send->size, send->priority};
    if (peer->faults.dead_link || now < send->retry_ns)
        return false;
    if (!send->lost_once && nic__fault_drops(peer)) {
        send->lost_once = true;
        send->retry_ns = now + peer->port->options.resend_ms * 1000000ull;
        return false;
    }
    send->ring_full = !message_put(peer, &message);
    send->full_at = peer->out[send->priority].seen;
    if (send->ring_full)
        return false;
    send->begin = peer->out[send->priority].position - nic__record_span(send->length);
    send->end = peer->out[send->priority].position;
    return true;
}

/* Puts as many waiting messages as possible. Returns whether any went. peer->lock held. */
static bool waiting_progress(struct nic_peer *peer, int priority, uint64_t now)
{
    struct nic_queue *queue = &peer->waiting[priority];
    bool any = false;
    while (queue->head != NULL && waiting_put(peer, queue->head, now)) {
        struct nic_send *send = nic__queue_take(queue);
        any = true;
        if (send->buffered)
            nic__send_done(peer, send, 0);
        else
            nic__queue_add(&peer->flying[priority], send);
    }
    return any;
}

static int send_check(struct nic_peer *peer, const struct message *message)
{
    if ((unsigned)message->priority >= NIC_PRIORITIES || message->size < NIC_MIN_SIZE ||
        message->size > NIC_MAX_SIZE)
        return -EINVAL;
    if (atomic_load_explicit(&peer->state, memory_order_acquire) != NIC_UP)
        return -ENOTCONN;
    if (message->length > 1ull << message->size ||
        message->length > peer->max_length[message->priority])
        return -EMSGSIZE;
    return 0;
}

/* Queues the message with a token. peer->lock held. */
static int send_queue(struct nic_peer *peer, const struct message *message, bool buffered,
                      nic_callback *callback, void *context)
{
    struct nic_send *send = nic__token_take(peer->port);
    if (send == NULL)
        return -EAGAIN;
    send->iov = message->iov;
    send->count = message->count;
    send->length = message->length;
    send->size = message->size;
    send->priority = (uint8_t)message->priority;
    send->buffered = buffered;
    send->callback = callback;
    send->context = context;
    send->since_ns = nic__now();
    nic__busy_add(peer);
    atomic_store_explicit(&peer->unsettled, true, memory_order_relaxed);
    nic__queue_add(&peer->waiting[message->priority], send);
    waiting_progress(peer, (int)message->priority, send->since_ns);
    return 0;
}

int nic_send_with_callback(struct nic_peer *peer, const struct iovec *iov, size_t count,
                           unsigned size, enum nic_priority priority, unsigned flags,
                           nic_callback *callback, void *context)
{
    struct nic_port *port = peer->port;
    struct message message = {iov, count, message_length(iov, count, 1u << NIC_MAX_SIZE),
                              size > NIC_MAX_SIZE ? 0 : (uint8_t)size, priority};
    bool buffered = (flags & NIC_BUFFERED) != 0, done = false;
    int status = send_check(peer, &message);
    if (status != 0)
        return status;
    if (port->timed)
        nic__spend(port->options.timing.host_send_ns);
    bmi_lock_take(&peer->lock);
    if (atomic_load_explicit(&peer->state, memory_order_relaxed) != NIC_UP) {
        bmi_lock_give(&peer->lock);
        return -ENOTCONN;
    }
    if (buffered && peer->waiting[priority].head == NULL && !peer->faults.dead_link &&
        peer->faults.drop_every == 0)
        done = message_put(peer, &message);
    if (!done)
        status = send_queue(peer, &message, buffered, callback, context);
    bmi_lock_give(&peer->lock);
    if (status != 0)
        return status;
    nic__doorbell(peer);
    if (done)
        return 1;
    nic__wake(port); /* the poller may have to wait for the peer, or for a time-out */
    return 0;
}

/* No message waits, and the ring has room by the last known position, which is not read anew.
 * peer->lock held. */
static bool send_now(struct nic_peer *peer, const void *head, const void *body, size_t length,
                     unsigned size)
{
    enum { LOW = NIC_LOW_PRIORITY };
    uint64_t all = NIC_HEAD + length;
    if (atomic_load_explicit(&peer->state, memory_order_relaxed) != NIC_UP || peer->port->timed ||
        peer->waiting[LOW].head != NULL || peer->faults.dead_link || peer->faults.drop_every != 0 ||
        all > peer->max_length[LOW] || all > 1ull << size)
        return false;
    uint8_t *place = nic__ring_reserve(&peer->out[LOW], all);
    if (place == NULL)
        return false;
    memcpy(place, head, NIC_HEAD);
    memcpy(place + NIC_HEAD, body, length);
    nic__ring_publish(&peer->out[LOW], all, NIC_RECORD_MESSAGE, (uint8_t)size, 0);
    sent_count(peer, all);
    return true;
}

bool nic_send_now(struct nic_peer *peer, const void *head, const void *body, size_t length,
                  unsigned size)
{
    bmi_lock_take(&peer->lock);
    bool sent =
        size >= NIC_MIN_SIZE && size <= NIC_MAX_SIZE && send_now(peer, head, body, length, size);
    bmi_lock_give(&peer->lock);
    if (sent)
        nic__doorbell(peer);
    return sent;
}

/* ---- the poller's part
 * ------------------------------------------------------------------------ */

/* Completes the messages that the peer has taken. peer->lock held. */
static void flying_reap(struct nic_peer *peer, int priority)
{
    struct nic_queue *queue = &peer->flying[priority];
    if (queue->head == NULL || !consumed_read(peer, priority))
        return;
    while (queue->head != NULL && queue->head->end <= peer->out[priority].seen)
        nic__send_done(peer, nic__queue_take(queue), 0);
}

void nic__send_progress(struct nic_peer *peer, uint64_t now)
{
    bool any = false;
    bmi_lock_take(&peer->lock);
    for (int i = NIC_PRIORITIES; i-- > 0;) {
        flying_reap(peer, i);
        any |= waiting_progress(peer, i, now);
    }
    bmi_lock_give(&peer->lock);
    if (any)
        nic__doorbell(peer);
}

/* The first record of the ring has found no buffer for too long: gives it up, unless the peer takes
 * it just now. Returns whether the connection has to end: its sender does not wait for an answer.
 */
static bool stall_give_up(struct nic_peer *peer, int priority, uint64_t position)
{
    uint64_t stalled = position | NIC_STALLED;
    if (!atomic_compare_exchange_strong(&peer->theirs->stall[priority], &stalled,
                                        position | NIC_GIVEN_UP))
        return false;
    struct nic_send **link = &peer->flying[priority].head;
    while (*link != NULL && (*link)->begin != position)
        link = &(*link)->next;
    if (*link == NULL)
        return true;
    nic__send_timed_out(peer, queue_remove(&peer->flying[priority], link));
    return false;
}

static bool stall_check(struct nic_peer *peer, int priority, uint64_t now, uint64_t limit_ns)
{
    struct nic_ring *ring = &peer->out[priority];
    uint64_t stall = atomic_load_explicit(&peer->theirs->stall[priority], memory_order_acquire);
    uint64_t position = stall & ~(uint64_t)NIC_STALL_BITS;
    if ((stall & NIC_STALL_BITS) != NIC_STALLED || position < ring->seen ||
        position >= ring->position) {
        peer->stall_since_ns[priority] = 0;
        return false;
    }
    if (peer->stall_since_ns[priority] == 0 || peer->stall_position[priority] != position) {
        peer->stall_position[priority] = position;
        peer->stall_since_ns[priority] = now;
        return false;
    }
    return now - peer->stall_since_ns[priority] >= limit_ns &&
           stall_give_up(peer, priority, position);
}

/* Fails messages that wait for a dead link. */
static bool waiting_check(struct nic_peer *peer, int priority, uint64_t now, uint64_t limit_ns)
{
    struct nic_queue *queue = &peer->waiting[priority];
    bool end = false;
    while (peer->faults.dead_link && queue->head != NULL &&
           now - queue->head->since_ns >= limit_ns) {
        end |= queue->head->buffered;
        nic__send_timed_out(peer, nic__queue_take(queue));
    }
    return end;
}

static bool all_settled(const struct nic_peer *peer)
{
    for (int i = 0; i < NIC_PRIORITIES; i++)
        if (peer->out[i].position != peer->out[i].seen || peer->waiting[i].head != NULL)
            return false;
    return true;
}

void nic__send_timeouts(struct nic_peer *peer, uint64_t now)
{
    uint64_t limit_ns = peer->port->options.resend_timeout_ms * 1000000ull;
    bool end = false, bad = false;
    bmi_lock_take(&peer->lock);
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        bad |= peer->out[i].position != peer->out[i].seen && !consumed_read(peer, i);
        end |= stall_check(peer, i, now, limit_ns);
        end |= waiting_check(peer, i, now, limit_ns);
    }
    if (all_settled(peer))
        atomic_store_explicit(&peer->unsettled, false, memory_order_relaxed);
    bmi_lock_give(&peer->lock);
    if (end && !bad) {
        nic__log(peer->port, NIC_LOG_WARN, "peer (pid %d) had no buffer for a message in %u ms",
                 peer->pid, peer->port->options.resend_timeout_ms);
        nic__peer_end(peer, -ETIMEDOUT);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t nic__send_deadline(struct nic_peer *peer, uint64_t now)
{
    uint64_t limit_ns = peer->port->options.resend_timeout_ms * 1000000ull, due = UINT64_MAX;
    bmi_lock_take(&peer->lock);
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        struct nic_send *first = peer->waiting[i].head;
        if (first != NULL && first->retry_ns > now)
            due = earlier(due, first->retry_ns);
        if (first != NULL && peer->faults.dead_link)
            due = earlier(due, first->since_ns + limit_ns);
        if (peer->stall_since_ns[i] != 0)
            due = earlier(due, peer->stall_since_ns[i] + limit_ns);
    }
    struct nic_send *directed = peer->directed.head, *landing = peer->landing.head;
    if (directed != NULL && peer->faults.dead_link)
        due = earlier(due, directed->since_ns + limit_ns);
    else if (directed != NULL && directed->retry_ns > now)
        due = earlier(due, directed->retry_ns);
    else if (directed != NULL && peer->directed_next_ns > now)
        due = earlier(due, peer->directed_next_ns);
    if (landing != NULL)
        due = earlier(due, landing->due_ns);
    bmi_lock_give(&peer->lock);
    return due;
}

bool nic__send_runnable(struct nic_peer *peer, uint64_t now)
{
    bool runnable = false;
    bmi_lock_take(&peer->lock);
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        const struct nic_send *first = peer->waiting[i].head, *flying = peer->flying[i].head;
        uint64_t consumed = atomic_load_explicit(&peer->theirs->consumed[i], memory_order_acquire);
        if (first != NULL && !first->ring_full && first->retry_ns <= now && !peer->faults.dead_link)
            runnable = true;
        runnable |= first != NULL && first->ring_full && consumed != first->full_at;
        runnable |= flying != NULL && consumed >= flying->end;
    }
    bmi_lock_give(&peer->lock);
    return runnable;
}

void nic__send_fail_all(struct nic_peer *peer, int status)
{
    struct nic_send *send;
    bmi_lock_take(&peer->lock);
    for (int i = 0; i < NIC_PRIORITIES; i++) {
        flying_reap(peer, i);
        while ((send = nic__queue_take(&peer->flying[i])) != NULL ||
               (send = nic__queue_take(&peer->waiting[i])) != NULL)
            nic__send_done(peer, send, status);
    }
    bmi_lock_give(&peer->lock);
}

static bool cancel_from(struct nic_peer *peer, struct nic_queue *queue, const void *context)
{
    struct nic_send **link = &queue->head;
    while (*link != NULL && (*link)->context != context)
        link = &(*link)->next;
    if (*link == NULL)
        return false;
    busy_drop(peer);
    nic__token_return(peer->port, queue_remove(queue, link));
    return true;
}

bool nic_cancel_send(struct nic_peer *peer, const void *context)
{
    bmi_lock_take(&peer->directed_lock); /* no piece is being written from here on */
    bmi_lock_take(&peer->lock);
    bool found = cancel_from(peer, &peer->waiting[NIC_LOW_PRIORITY], context) ||
                 cancel_from(peer, &peer->waiting[NIC_HIGH_PRIORITY], context) ||
                 cancel_from(peer, &peer->directed, context) ||
                 cancel_from(peer, &peer->answering, context);
    bool left = peer->directed.head != NULL;
    bmi_lock_give(&peer->lock);
    bmi_lock_give(&peer->directed_lock);
    if (left)
        nic__wake(peer->port);
    return found;
}
