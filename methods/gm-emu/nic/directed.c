/* SPDX-License-Identifier: BSD-3-Clause
 *
 * directed.c - directed sends: writing into memory that a peer exposed.
 *
 * They are done in order, piece by piece, by one thread at a time (peer->directed_lock): the
 * poller, or a thread in nic_push. For each piece the writer first stores its claim (the key), then
 * reads the exposure; the owner first clears the exposure, then waits for claims. So nothing is
 * written after a revocation has returned, and an entry does not change while it is claimed. Three
 * ways, best first:
 *   mapped    the memory is of the peer's nic_dma_malloc, and mapped here: copied (copy.c)
 *   written   process_vm_writev, after the nonce was read again: the process is still the one of
 *             the handshake, and has not become another program meanwhile
 *   bounced   through the ring of low priority; the peer's poller checks and copies, then answers
 * A long one from plain to plain memory is bounced rather than written where that is faster
 * (bounce.c); a piece that finds no room then is written. A send whose data is all in the ring
 * waits for its answer in `answering`, and the next one goes on.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

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
size_t nic__source_window(const struct nic_send *send, struct iovec window[NIC_WINDOW],
                          uint64_t limit, uint64_t *bytes)
{
    size_t count = 0, offset = send->index_offset;
    *bytes = 0;
    for (size_t i = send->index; i < send->count && count < NIC_WINDOW && *bytes < limit; i++) {
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

void nic__source_advance(struct nic_send *send, uint64_t bytes)
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

/* The exposure that the key names, perhaps of another key by now; NULL: there is no such place. */
const struct nic_shared_exposure *nic__exposure_named(const struct nic_peer *peer, uint64_t key)
{
    uint64_t place = key & ((1u << NIC_EXPOSURE_BITS) - 1);
    uint64_t bytes = peer->their_port_size - sizeof(struct nic_shared_port);
    if (place >= bytes / sizeof(struct nic_shared_exposure) || key == 0)
        return NULL;
    return &peer->their_port->exposure[place];
}

/* Claims the exposure, and reads it: 0, or -EACCES. The claim stays either way. */
static int exposure_claim(struct nic_peer *peer, const struct nic_send *send,
                          struct nic_shared_exposure *exposure)
{
    const struct nic_shared_exposure *shared = nic__exposure_named(peer, send->key);
    if (shared == NULL)
        return -EACCES;
    atomic_store_explicit(&peer->mine->claim, send->key, memory_order_relaxed);
    bmi_fence();
    if (atomic_load_explicit(&shared->key, memory_order_acquire) != send->key)
        return -EACCES;
    const volatile struct nic_shared_exposure *once = shared;
    exposure->link = once->link;
    exposure->address = once->address;
    exposure->length = once->length;
    exposure->arena = once->arena;
    exposure->arena_offset = once->arena_offset;
    nic__fence_read();
    /* If this writer was stopped here for so long that its claim was given up, it has read
     * another exposure. */
    if (atomic_load_explicit(&shared->key, memory_order_relaxed) != send->key)
        return -EACCES;
    if ((exposure->link != 0 && exposure->link != peer->link_name) ||
        send->offset > exposure->length || send->length > exposure->length - send->offset)
        return -EACCES;
    return 0;
}

static void exposure_unclaim(struct nic_peer *peer)
{
    atomic_store_explicit(&peer->mine->claim, 0, memory_order_release);
    bmi_fence();
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
    nic__copy_all(to, window, count);
    nic__count(&peer->port->counters.mapped, 1);
    nic__count(&peer->port->counters.mapped_bytes, bytes);
}

/* Writes by process_vm_writev. Returns the bytes written, 0 if the kernel refuses that, or an
 * errno. */
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
    struct nic_shared_exposure exposure;
    struct iovec window[NIC_WINDOW];
    uint64_t bytes, offset = send->offset + send->done;
    size_t count = nic__source_window(send, window, limit, &bytes);
    int64_t written = exposure_claim(peer, send, &exposure);
    if (written == 0 && bytes > 0) {
        uint8_t *place =
            exposure.arena_offset <= UINT64_MAX - offset
                ? nic__mapped(peer, exposure.arena, exposure.arena_offset + offset, bytes)
                : NULL;
        if (place == NULL) {
            written = vm_write(peer, exposure.address + offset, window, count, bytes);
        } else {
            mapped_write(peer, place, window, count, bytes);
            written = (int64_t)bytes;
        }
    }
    exposure_unclaim(peer);
    return written;
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

static enum nic_step step_do(struct nic_peer *peer, struct nic_send *send, uint64_t now,
                             int *status)
{
    struct nic_port *port = peer->port;
    uint64_t limit = port->timed ? NIC_TIMED_PIECE : NIC_PIECE, before = send->done;
    enum nic_step step = NIC_STEP_BLOCKED;
    *status = 0;
    if (send->done == 0 && send->number == 0)
        nic__bounce_choose(peer, send);
    if (send->bounced && nic__receiver_looks(peer)) {
        step = nic__bounce_step(peer, send, limit);
        if (step != NIC_STEP_BLOCKED)
            return step;
        if (limit > NIC_BOUNCE_PIECE) /* no room in the ring: this piece is written directly */
            limit = NIC_BOUNCE_PIECE;
    }
    if (send->number == 0 || (send->bounced && send->done < send->length)) {
        int64_t written = piece_write(peer, send, limit);
        if (written < 0) {
            *status = (int)written;
            return NIC_STEP_FINISHED;
        }
        nic__source_advance(send, (uint64_t)written);
        send->ring_full = send->ring_full && written == 0;
        step = send->done == send->length && send->number == 0 ? NIC_STEP_FINISHED : NIC_STEP_MORE;
    }
    if (send->done == before && send->length > 0) /* the ring is the only way */
        step = nic__bounce_step(peer, send, limit);
    if (port->timed && send->done > before)
        piece_time(peer, send, send->done - before, now);
    return step;
}

static void finish_locked(struct nic_peer *peer, struct nic_send *send, int status)
{
    if (status == 0 && send->due_ns != 0)
        nic__queue_add(&peer->landing, send);
    else
        nic__send_done(peer, send, status);
}

/* Ends the sends that the peer has answered. peer->lock held. */
static void answers_take_locked(struct nic_peer *peer)
{
    int status;
    while (peer->answering.head != NULL && nic__answered(peer, peer->answering.head, &status))
        finish_locked(peer, nic__queue_take(&peer->answering), status);
}

/* The send to go on with; NULL: none now. peer->lock held. */
static struct nic_send *next_locked(struct nic_peer *peer, uint64_t now)
{
    uint64_t limit_ns = peer->port->options.resend_timeout_ms * 1000000ull;
    struct nic_send *send = peer->directed.head, *landed;
    answers_take_locked(peer);
    while ((landed = peer->landing.head) != NULL && landed->due_ns <= now)
        nic__send_done(peer, nic__queue_take(&peer->landing), 0);
    if (send == NULL || atomic_load(&peer->state) != NIC_UP)
        return NULL;
    if (peer->faults.dead_link && now - send->since_ns >= limit_ns)
        nic__send_timed_out(peer, nic__queue_take(&peer->directed));
    if (peer->faults.dead_link || now < send->retry_ns || now < peer->directed_next_ns)
        return NULL;
    if (send->done == 0 && !send->lost_once && nic__fault_drops(peer)) {
        send->lost_once = true;
        send->retry_ns = now + peer->port->options.resend_ms * 1000000ull;
        return NULL;
    }
    return send;
}

/* Returns how many of `bytes` are left, or 0 when nothing can go on now. directed_lock held. */
static uint64_t run_locked(struct nic_peer *peer, uint64_t bytes, uint64_t now)
{
    while (bytes > 0) {
        int status;
        bmi_lock_take(&peer->lock);
        struct nic_send *send = next_locked(peer, now);
        bmi_lock_give(&peer->lock);
        if (send == NULL)
            return bytes;
        uint64_t before = send->done;
        enum nic_step step = step_do(peer, send, now, &status);
        uint64_t moved = send->done - before;
        bytes = moved < bytes ? bytes - moved : 0;
        if (step == NIC_STEP_FINISHED || step == NIC_STEP_TOLD) {
            bmi_lock_take(&peer->lock);
            nic__queue_take(&peer->directed);
            if (step == NIC_STEP_TOLD)
                nic__queue_add(&peer->answering, send);
            else
                finish_locked(peer, send, status);
            bmi_lock_give(&peer->lock);
        } else if (step == NIC_STEP_BLOCKED) {
            return 0;
        }
        if (peer->port->timed) /* otherwise only injected faults use the time */
            now = nic__now();
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
               (answering != NULL && nic__answered(peer, answering, &status));
    bool ours = send != NULL && atomic_load(&peer->state) == NIC_UP &&
                !bmi_lock_held(&peer->directed_lock); /* the thread that holds it wakes us */
    if (ours && peer->faults.dead_link) {
        runnable |= now - send->since_ns >= peer->port->options.resend_timeout_ms * 1000000ull;
    } else if (ours && now >= send->retry_ns && now >= peer->directed_next_ns) {
        bool blocked = send->ring_full &&
                       (nic__answers_full_locked(peer) ||
                        atomic_load(&peer->theirs->consumed[NIC_LOW_PRIORITY]) == send->full_at);
        runnable |= !blocked;
    }
    bmi_lock_give(&peer->lock);
    return runnable;
}

bool nic__directed_run(struct nic_peer *peer, uint64_t bytes, uint64_t now)
{
    for (;;) {
        if (!nic__lock_try(&peer->directed_lock))
            return true;
        bytes = run_locked(peer, bytes, now);
        bmi_lock_give(&peer->directed_lock);
        bmi_fence();
        if (atomic_load(&peer->state) != NIC_UP) {
            nic__attention(peer->port); /* the peer's end may have waited for us */
            return false;
        }
        bmi_lock_take(&peer->lock);
        bool left = peer->directed.head != NULL;
        bmi_lock_give(&peer->lock);
        /* No other thread handles a send that came while we held the lock. */
        if (peer->port->timed)
            now = nic__now();
        if (!left || bytes == 0 || !nic__directed_runnable(peer, now))
            return left;
    }
}

bool nic__directed_fail_all(struct nic_peer *peer, int status)
{
    struct nic_send *send;
    if (!nic__lock_try(&peer->directed_lock))
        return false;
    bmi_lock_take(&peer->lock);
    while ((send = nic__queue_take(&peer->landing)) != NULL) /* all was written */
        nic__send_done(peer, send, 0);
    while ((send = nic__queue_take(&peer->answering)) != NULL ||
           (send = nic__queue_take(&peer->directed)) != NULL)
        nic__send_done(peer, send, status);
    bmi_lock_give(&peer->lock);
    bmi_lock_give(&peer->directed_lock);
    return true;
}

bool nic_push(struct nic_peer *peer, uint64_t bytes)
{
    if (atomic_load_explicit(&peer->state, memory_order_acquire) != NIC_UP)
        return false;
    bool left = nic__directed_run(peer, bytes, nic__now());
    nic__wake(peer->port); /* for the callbacks, and for the sends that are left */
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
