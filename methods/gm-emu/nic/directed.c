/* SPDX-License-Identifier: BSD-3-Clause
 *
 * directed.c - directed sends: writing into memory that a peer granted.
 *
 * They are done in order, piece by piece, by one thread at a time (peer->directed_lock): the
 * driver, or whoever pushes. For each piece the writer first stores its claim (the key), then reads
 * the grant; the owner first clears the grant, then waits for claims. So nothing is written after a
 * revocation has returned, and an entry does not change while it is claimed. Three ways, best
 * first:
 *   mapped    the memory is of the peer's nic_dma_malloc, and mapped here: copied (copy.c)
 *   written   process_vm_writev, after the nonce was read again: the process is the one that
 *             greeted us, and has not become another program meanwhile
 *   bounced   through the ring of low priority; the peer's driver checks and copies, then answers
 * Of a long one the peer's driver copies a part, if it has nothing else to do (help.c).
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

enum {
    WINDOW = 64,            /* segments of one piece */
    STAGE_MIN = 64 << 10,   /* what is shorter goes the plain way */
    STAGE_PIECE = 28 << 10, /* of what goes through the ring: whole pages, within a message */
    STAGE_PATIENCE = 4      /* pieces without a sign of the receiver */
};

enum step { STEP_MORE, STEP_FINISHED, STEP_TOLD, STEP_BLOCKED };

bool nic__process_is_peer(const struct nic_peer *peer)
{
    uint64_t nonce[2];
    struct iovec here = {.iov_base = nonce, .iov_len = sizeof(nonce)};
    struct iovec there = {.iov_base = (void *)(uintptr_t)peer->nonce_address,
                          .iov_len = sizeof(nonce)};
    return process_vm_readv(peer->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof(nonce) &&
           nonce[0] == peer->nonce[0] && nonce[1] == peer->nonce[1];
}

/* ---- source -----------------------------------------------------------------------------------
 */

/* The next segments, at most `limit` bytes. Returns how many; *bytes is their sum. */
static size_t source_window(const struct nic_send *send, struct iovec window[WINDOW],
                            uint64_t limit, uint64_t *bytes)
{
    size_t count = 0, offset = send->index_offset;
    *bytes = 0;
    for (size_t i = send->index; i < send->count && count < WINDOW && *bytes < limit; i++) {
        size_t length = send->iov[i].iov_len - offset;
        if (length > limit - *bytes)
            length = limit - *bytes;
        if (length > 0)
            window[count++] = (struct iovec){(char *)send->iov[i].iov_base + offset, length};
        *bytes += length;
        offset = 0;
    }
    return count;
}

static void source_advance(struct nic_send *send, uint64_t bytes)
{
    send->done += bytes;
    while (bytes > 0) {
        uint64_t left = send->iov[send->index].iov_len - send->index_offset;
        if (bytes < left) {
            send->index_offset += bytes;
            return;
        }
        bytes -= left;
        send->index++;
        send->index_offset = 0;
    }
}

/* ---- claims -----------------------------------------------------------------------------------
 */

/* The grant that the key names, perhaps of another key by now; NULL: there is no such place. */
static const struct nic_shared_grant *grant_named(const struct nic_peer *peer, uint64_t key)
{
    uint64_t place = key & ((1u << NIC_GRANT_BITS) - 1);
    uint64_t bytes = peer->their_port_size - sizeof(struct nic_shared_port);
    if (place >= bytes / sizeof(struct nic_shared_grant) || key == 0)
        return NULL;
    return &peer->their_port->grant[place];
}

/* Claims the grant, and reads it: 0, or -EACCES. The claim stays either way. */
static int grant_claim(struct nic_peer *peer, const struct nic_send *send,
                       struct nic_shared_grant *grant)
{
    const struct nic_shared_grant *shared = grant_named(peer, send->key);
    if (shared == NULL)
        return -EACCES;
    atomic_store_explicit(&peer->mine->claim, send->key, memory_order_relaxed);
    nic__fence();
    if (atomic_load_explicit(&shared->key, memory_order_acquire) != send->key)
        return -EACCES;
    const volatile struct nic_shared_grant *once = shared;
    grant->link = once->link;
    grant->address = once->address;
    grant->length = once->length;
    grant->arena = once->arena;
    grant->arena_offset = once->arena_offset;
    if ((grant->link != 0 && grant->link != peer->link_name) || send->offset > grant->length ||
        send->length > grant->length - send->offset)
        return -EACCES;
    return 0;
}

static void grant_unclaim(struct nic_peer *peer)
{
    atomic_store_explicit(&peer->mine->claim, 0, memory_order_release);
    nic__fence();
    if (atomic_load_explicit(&peer->theirs->claim_waits, memory_order_relaxed) == 0)
        return;
    atomic_fetch_add(&peer->mine->claim_turn, 1);
    syscall(SYS_futex, &peer->mine->claim_turn, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- the three ways ---------------------------------------------------------------------------
 */

uint8_t *nic__mapped(struct nic_peer *peer, uint32_t arena, uint64_t offset, uint64_t bytes)
{
    if (arena >= NIC_ARENAS_MAX)
        return NULL;
    const struct nic_mapping *mapping =
        atomic_load_explicit(&peer->arenas[arena], memory_order_acquire);
    if (mapping == NULL || offset > mapping->length || bytes > mapping->length - offset)
        return NULL;
    return mapping->base + offset;
}

static void mapped_write(struct nic_peer *peer, uint8_t *to, const struct iovec *window,
                         size_t count, uint64_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        nic__copy(&peer->port->put_copier, to, window[i].iov_base, window[i].iov_len);
        to += window[i].iov_len;
    }
    nic__count(&peer->port->counters.mapped, 1);
    nic__count(&peer->port->counters.mapped_bytes, bytes);
}

/* Returns the bytes written, 0 where this way is closed, or an errno. */
static int64_t vm_write(struct nic_peer *peer, uint64_t address, const struct iovec *window,
                        size_t count, uint64_t bytes)
{
    struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
    if (!peer->vm_write || atomic_load_explicit(&peer->vm_refused, memory_order_relaxed))
        return 0;
    ssize_t written = -1;
    if (nic__process_is_peer(peer))
        written = process_vm_writev(peer->pid, window, count, &there, 1, 0);
    else
        errno = EPERM;
    if (written < 0 && errno == EFAULT)
        return -EFAULT;
    if (written < 0) {
        atomic_store_explicit(&peer->vm_refused, true, memory_order_relaxed);
        return 0;
    }
    nic__count(&peer->port->counters.vm_written, 1);
    nic__count(&peer->port->counters.vm_written_bytes, (uint64_t)written);
    return written;
}

/* Writes a piece into the peer's memory. Returns as vm_write. */
static int64_t piece_write(struct nic_peer *peer, struct nic_send *send, uint64_t limit)
{
    struct nic_shared_grant grant;
    struct iovec window[WINDOW];
    uint64_t bytes, offset = send->offset + send->done;
    size_t count = source_window(send, window, limit, &bytes);
    int64_t written = grant_claim(peer, send, &grant);
    if (written == 0 && bytes > 0) {
        uint8_t *place = grant.arena_offset <= UINT64_MAX - offset
                             ? nic__mapped(peer, grant.arena, grant.arena_offset + offset, bytes)
                             : NULL;
        if (place == NULL) {
            written = vm_write(peer, grant.address + offset, window, count, bytes);
        } else {
            mapped_write(peer, place, window, count, bytes);
            written = (int64_t)bytes;
        }
    }
    grant_unclaim(peer);
    return written;
}

/* Whether another one could not be told apart from those that wait for an answer. */
static bool answers_full_locked(const struct nic_peer *peer)
{
    const struct nic_send *oldest = peer->answering.head;
    return oldest != NULL && peer->bounces + 1 - oldest->number >= NIC_ANSWERS;
}

/* Puts the next piece into the ring. peer->lock held. */
static enum step bounce_put(struct nic_peer *peer, struct nic_send *send, uint64_t limit)
{
    struct nic_ring *ring = &peer->out[NIC_LOW_PRIORITY];
    struct iovec window[WINDOW];
    send->ring_full = send->number == 0 && answers_full_locked(peer);
    if (send->ring_full)
        return STEP_BLOCKED;
    uint64_t bytes, most = peer->max_length[NIC_LOW_PRIORITY] - sizeof(struct nic_bounce);
    if (most > STAGE_PIECE)
        most = STAGE_PIECE;
    size_t count = source_window(send, window, limit < most ? limit : most, &bytes);
    uint8_t *place = nic__ring_reserve(ring, sizeof(struct nic_bounce) + bytes);
    if (place == NULL && nic__ring_refresh(ring, &peer->theirs->consumed[NIC_LOW_PRIORITY]))
        place = nic__ring_reserve(ring, sizeof(struct nic_bounce) + bytes);
    send->ring_full = place == NULL;
    if (place == NULL)
        return STEP_BLOCKED;
    while (send->number == 0)
        send->number = ++peer->bounces;
    send->answer_wanted = send->done + bytes == send->length;
    struct nic_bounce bounce = {.key = send->key,
                                .offset = send->offset + send->done,
                                .number = send->number,
                                .last = send->answer_wanted};
    memcpy(place, &bounce, sizeof(bounce));
    nic__gather(place + sizeof(bounce), window, count);
    nic__ring_publish(ring, sizeof(bounce) + bytes, NIC_RECORD_BOUNCE, 0, 0);
    atomic_store_explicit(&peer->unsettled, true, memory_order_relaxed);
    source_advance(send, bytes);
    nic__count(&peer->port->counters.bounced, 1);
    nic__count(&peer->port->counters.bounced_bytes, bytes);
    return send->answer_wanted ? STEP_TOLD : STEP_MORE;
}

/* Whether the peer has answered; its errno goes to *status. */
static bool bounce_answer(struct nic_peer *peer, const struct nic_send *send, int *status)
{
    uint64_t answer = atomic_load_explicit(&peer->theirs->bounced[send->number % NIC_ANSWERS],
                                           memory_order_acquire);
    uint32_t error = (uint32_t)answer;
    if ((uint32_t)(answer >> 32) != send->number)
        return false;
    *status = error < 4096 ? -(int)error : -EPROTO;
    return true;
}

static enum step bounce_step(struct nic_peer *peer, struct nic_send *send, uint64_t limit)
{
    uint64_t before = send->done;
    bmi_lock_take(&peer->lock);
    enum step step = bounce_put(peer, send, limit);
    bmi_lock_give(&peer->lock);
    peer->unrung += send->done - before;
    if (step != STEP_MORE || peer->unrung >= peer->out[NIC_LOW_PRIORITY].size / 2) {
        peer->unrung = 0;
        nic__doorbell(peer);
    }
    return step;
}

bool nic__bounce_arrived(struct nic_peer *peer, const uint8_t *payload, uint64_t length)
{
    struct nic_bounce bounce;
    if (length < sizeof(bounce))
        return false;
    memcpy(&bounce, payload, sizeof(bounce));
    if (bounce.number != peer->bounce_number) {
        peer->bounce_number = bounce.number;
        peer->bounce_status = 0;
    }
    if (peer->bounce_status == 0)
        peer->bounce_status =
            nic__grant_write(peer->port, peer->link_name, bounce.key, bounce.offset,
                             payload + sizeof(bounce), length - sizeof(bounce));
    nic__turn(peer->port);
    if (bounce.last == 0)
        return true;
    atomic_store_explicit(&peer->mine->bounced[bounce.number % NIC_ANSWERS],
                          (uint64_t)bounce.number << 32 | (uint32_t)-peer->bounce_status,
                          memory_order_release);
    nic__fence();
    if (atomic_load_explicit(&peer->theirs->wants, memory_order_relaxed) != 0)
        nic__doorbell(peer);
    return true;
}

/* ---- the stage --------------------------------------------------------------------------------
 */

/* Whether it is outside of arenas, here and there: hints, and of a list its first. */
static bool is_plain(struct nic_peer *peer, const struct nic_send *send)
{
    uint64_t offset;
    const struct nic_shared_grant *grant = grant_named(peer, send->key);
    return grant != NULL && grant->arena == NIC_NO_ARENA &&
           nic__arena_of(peer->port, send->iov->iov_base, send->iov->iov_len, &offset) ==
               NIC_NO_ARENA;
}

static void stage_choose(struct nic_peer *peer, struct nic_send *send)
{
    send->staged = send->length >= STAGE_MIN && !peer->port->timed && peer->vm_write &&
                   peer->faults.drop_every == 0 && is_plain(peer, send);
}

/* Whether the receiver has looked at its rings lately: what is put there it copies at once. */
static bool receiver_looks(struct nic_peer *peer)
{
    uint32_t turns = atomic_load_explicit(&peer->their_port->turns, memory_order_relaxed);
    if (turns != peer->turns_seen)
        peer->turns_same = 0;
    else if (atomic_load_explicit(&peer->their_port->asleep, memory_order_relaxed) != 0)
        peer->turns_same = 0;
    else if (peer->turns_same < STAGE_PATIENCE)
        peer->turns_same++;
    peer->turns_seen = turns;
    return peer->turns_same < STAGE_PATIENCE;
}

/* ---- running ----------------------------------------------------------------------------------
 */

/* Takes time on the links for a piece. */
static void piece_time(struct nic_peer *peer, struct nic_send *send, uint64_t bytes, uint64_t now)
{
    uint64_t next_ns, due_ns = nic__wire_reserve(peer, bytes, now, &next_ns);
    bmi_lock_take(&peer->lock);
    peer->directed_next_ns = next_ns;
    bmi_lock_give(&peer->lock);
    send->due_ns = due_ns + peer->port->options.timing.latency_ns; /* the answer's way back */
}

/* Asks for help at the start of a send; then takes a chunk for each step. True: that was all. */
static bool help_ends_step(struct nic_peer *peer, struct nic_send *send, enum step *step,
                           int *status)
{
    if (send->done == 0 && send->help == 0 && send->number == 0) {
        stage_choose(peer, send);
        if (!send->staged)
            nic__help_ask(peer, send);
    }
    if (send->chunks == 0 || (send->status == 0 && send->done < send->taken))
        return false;
    enum nic_help_step help = nic__help_take(peer, send, status);
    bool all = send->done == send->length && send->number == 0;
    *step = help == NIC_HELP_WAITS ? STEP_BLOCKED : STEP_FINISHED;
    return help == NIC_HELP_WAITS || (help == NIC_HELP_OVER && (*status != 0 || all));
}

static enum step step_do(struct nic_peer *peer, struct nic_send *send, uint64_t now, int *status)
{
    struct nic_port *port = peer->port;
    uint64_t limit = port->timed ? NIC_TIMED_PIECE : NIC_PIECE, before = send->done;
    enum step step = STEP_BLOCKED;
    *status = 0;
    if (help_ends_step(peer, send, &step, status))
        return step;
    if (send->chunks != 0 && send->taken - send->done < limit)
        limit = send->taken - send->done;
    if (send->length - send->done < limit) /* what is behind is the receiver's share */
        limit = send->length - send->done;
    if (send->staged && receiver_looks(peer)) {
        step = bounce_step(peer, send, limit);
        if (step != STEP_BLOCKED)
            return step;
        if (limit > STAGE_PIECE) /* no room: meanwhile one by ourselves */
            limit = STAGE_PIECE;
    }
    if (send->number == 0 || (send->staged && send->done < send->length)) {
        int64_t written = piece_write(peer, send, limit);
        if (written < 0 && send->chunks != 0 && !nic__help_stop(peer, send, (int)written))
            return STEP_BLOCKED;
        if (written < 0) {
            *status = (int)written;
            return STEP_FINISHED;
        }
        source_advance(send, (uint64_t)written);
        send->ring_full = send->ring_full && written == 0;
        step = send->done == send->length && send->number == 0 ? STEP_FINISHED : STEP_MORE;
    }
    if (send->done == before && send->length > 0) /* no way but through the ring */
        step = bounce_step(peer, send, limit);
    if (port->timed && send->done > before)
        piece_time(peer, send, send->done - before, now);
    return step;
}

static void finish_locked(struct nic_peer *peer, struct nic_send *send, int status)
{
    if (status == 0 && send->due_ns != 0) {
        nic__queue_add(&peer->landing, send);
        return;
    }
    nic__busy_drop(peer);
    nic__send_done(peer->port, send, status);
}

/* Ends those that the peer has answered. peer->lock held. */
static void answers_take_locked(struct nic_peer *peer)
{
    int status;
    while (peer->answering.head != NULL && bounce_answer(peer, peer->answering.head, &status))
        finish_locked(peer, nic__queue_take(&peer->answering), status);
}

/* The one to go on with; NULL: none now. peer->lock held. */
static struct nic_send *next_locked(struct nic_peer *peer, uint64_t now)
{
    uint64_t limit_ns = peer->port->options.resend_timeout_ms * 1000000ull;
    struct nic_send *send = peer->directed.head, *landed;
    answers_take_locked(peer);
    while ((landed = peer->landing.head) != NULL && landed->due_ns <= now) {
        nic__busy_drop(peer);
        nic__send_done(peer->port, nic__queue_take(&peer->landing), 0);
    }
    if (send == NULL || atomic_load(&peer->state) != NIC_UP)
        return NULL;
    if (peer->faults.dead_link && now - send->since_ns >= limit_ns) {
        nic__count(&peer->port->counters.timed_out, 1);
        nic__busy_drop(peer);
        nic__send_done(peer->port, nic__queue_take(&peer->directed), -ETIMEDOUT);
    }
    if (peer->faults.dead_link || now < send->retry_ns || now < peer->directed_next_ns)
        return NULL;
    if (send->done == 0 && !send->lost_once && nic__fault_drops(peer)) {
        send->lost_once = true;
        send->retry_ns = now + peer->port->options.resend_ms * 1000000ull;
        return NULL;
    }
    return send;
}

/* Returns what is left of `bytes`, or 0 when nothing can go on now. directed_lock held. */
static uint64_t run_locked(struct nic_peer *peer, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t now = nic__now();
        int status;
        bmi_lock_take(&peer->lock);
        struct nic_send *send = next_locked(peer, now);
        bmi_lock_give(&peer->lock);
        if (send == NULL)
            return bytes;
        uint64_t before = send->done;
        enum step step = step_do(peer, send, now, &status);
        uint64_t moved = send->done - before;
        bytes = moved < bytes ? bytes - moved : 0;
        if (step == STEP_FINISHED || step == STEP_TOLD) {
            bmi_lock_take(&peer->lock);
            nic__queue_take(&peer->directed);
            if (step == STEP_TOLD)
                nic__queue_add(&peer->answering, send);
            else
                finish_locked(peer, send, status);
            bmi_lock_give(&peer->lock);
        } else if (step == STEP_BLOCKED) {
            return 0;
        }
    }
    return 0;
}

bool nic__directed_runnable(struct nic_peer *peer, uint64_t now)
{
    int status;
    bool runnable;
    bmi_lock_take(&peer->lock);
    struct nic_send *send = peer->directed.head, *landing = peer->landing.head;
    struct nic_send *answering = peer->answering.head;
    runnable = (landing != NULL && landing->due_ns <= now) ||
               (answering != NULL && bounce_answer(peer, answering, &status));
    if (send == NULL || atomic_load(&peer->state) != NIC_UP ||
        bmi_lock_held(&peer->directed_lock)) { /* who holds it wakes us */
        runnable = runnable || false;
    } else if (peer->faults.dead_link) {
        runnable =
            runnable || now - send->since_ns >= peer->port->options.resend_timeout_ms * 1000000ull;
    } else if (now >= send->retry_ns && now >= peer->directed_next_ns) {
        bool blocked = send->ring_full &&
                       (answers_full_locked(peer) ||
                        atomic_load(&peer->theirs->consumed[NIC_LOW_PRIORITY]) ==
                            peer->out[NIC_LOW_PRIORITY].seen);
        runnable = runnable || (!blocked && !nic__help_waits(peer, send));
    }
    bmi_lock_give(&peer->lock);
    return runnable;
}

bool nic__directed_run(struct nic_peer *peer, uint64_t bytes)
{
    for (;;) {
        if (!nic__lock_try(&peer->directed_lock))
            return true;
        bytes = run_locked(peer, bytes);
        bmi_lock_give(&peer->directed_lock);
        nic__fence();
        if (atomic_load(&peer->state) != NIC_UP) {
            nic__attention(peer->port); /* its end may have waited for us */
            return false;
        }
        bmi_lock_take(&peer->lock);
        bool left = peer->directed.head != NULL;
        bmi_lock_give(&peer->lock);
        /* One that came while we held the lock has nobody else. */
        if (!left || bytes == 0 || !nic__directed_runnable(peer, nic__now()))
            return left;
    }
}

bool nic__directed_fail_all(struct nic_peer *peer, int status)
{
    struct nic_send *send;
    if (!nic__lock_try(&peer->directed_lock))
        return false;
    bmi_lock_take(&peer->lock);
    while ((send = nic__queue_take(&peer->landing)) != NULL) { /* all was written */
        nic__busy_drop(peer);
        nic__send_done(peer->port, send, 0);
    }
    while ((send = nic__queue_take(&peer->answering)) != NULL ||
           (send = nic__queue_take(&peer->directed)) != NULL) {
        nic__busy_drop(peer);
        nic__send_done(peer->port, send, status);
    }
    bmi_lock_give(&peer->lock);
    bmi_lock_give(&peer->directed_lock);
    return true;
}

bool nic_push(struct nic_peer *peer, uint64_t bytes)
{
    if (atomic_load_explicit(&peer->state, memory_order_acquire) != NIC_UP)
        return false;
    bool left = nic__directed_run(peer, bytes);
    nic__wake(peer->port); /* for the callbacks, and for what is left */
    return left;
}

int nic_directed_send_with_callback(struct nic_peer *peer, const struct iovec *source, size_t count,
                                    uint64_t key, uint64_t offset, nic_callback *callback,
                                    void *context)
{
    struct nic_port *port = peer->port;
    uint64_t length = 0;
    for (size_t i = 0; i < count; i++)
        if (__builtin_add_overflow(length, source[i].iov_len, &length))
            return -EINVAL;
    if (atomic_load_explicit(&peer->state, memory_order_acquire) != NIC_UP)
        return -ENOTCONN;
    if (!nic__registered_all(port, source, count))
        return -EFAULT;
    if (port->timed)
        nic__spend(port->options.timing.host_send_ns);
    int status = -ENOTCONN;
    bmi_lock_take(&peer->lock);
    if (atomic_load_explicit(&peer->state, memory_order_relaxed) == NIC_UP) {
        struct nic_send *send = nic__token_take(port);
        status = send == NULL ? -EAGAIN : 0;
        if (send != NULL) {
            send->iov = source;
            send->count = count;
            send->length = length;
            send->key = key;
            send->offset = offset;
            send->callback = callback;
            send->context = context;
            send->since_ns = nic__now();
            nic__busy_add(peer);
            nic__queue_add(&peer->directed, send);
        }
    }
    bmi_lock_give(&peer->lock);
    if (status == 0)
        nic__wake(port);
    return status;
}
