/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine_uring.c - the engine that does not ask which sockets are readable: the kernel receives
 * small messages into buffers that all links share, and reports them in a ring (io_uring).
 *
 * A link is served in one of two ways, by what it expects next:
 *   small messages  One request of the link stays in the ring and receives again and again
 *                   ("multishot"), each time into the next free buffer of the pool. The poller
 *                   takes the bytes in the order of completions, and gives the buffer back.
 *   large bodies    The link is served as by the epoll engine: system calls read straight into the
 *                   user's memory. So no memory of the user is ever lent to the ring.
 * A link begins with small messages. A thread that writes while a large body is expected first
 * cancels the request, so the body stays in the socket. After the request's last completion the
 * poller watches the socket. After UNTIL_SMALL passes of reads without a large body the link gets
 * a request again.
 *
 * A request ends with its last completion: after a cancellation, without a free buffer, after the
 * end of the thread that submitted it, at the stream's end. Until then it holds a reference of the
 * link. Only the poller makes requests and takes completions. uring_send.c has the sends.
 *
 * uring->lock guards the submission queue and changes of link->ring; innermost. The ring's
 * descriptor is in the core's epoll set, and wakes the poller. So is the socket, for its end alone.
 *
 * The child of a fork leaves its parent's ring alone. If it takes the connections over, those that
 * the ring served end, since the parent may have received bytes of theirs; new ones use epoll.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"

#if BMI_WITH_URING
#include "uring.h"

enum {
    SUBMISSIONS = 256, /* requests made in one system call, at most */
    COMPLETIONS = 2048,
    BUFFERS = 128, /* a power of two */
    BUFFER_BYTES = 8192,
    TAKEN_MOST = 256, /* completions taken before the poller looks elsewhere */
    UNTIL_SMALL = 32,
    STOP_WAIT_S = 2
};

/* link->ring; a request moves down this list only, and then to RING_NONE */
enum {
    RING_NONE,    /* no request: read by system calls */
    RING_SMALL,   /* its request receives */
    RING_STOPS,   /* cancelled, for large bodies or to be made anew */
    RING_SETTLES, /* cancelled; when it has ended the link is kicked */
    RING_IGNORED  /* cancelled; its bytes are dropped */
};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static unsigned forks; /* that led to this process */

static void after_fork_child(void)
{
    forks++;
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

static size_t pool_bytes(void)
{
    return 4096 + (size_t)BUFFERS * BUFFER_BYTES;
}

bool stream_uring_is_parents(const struct stream_uring *uring)
{
    return uring->forks != forks;
}

/* ---- requests ------------------------------------------------------------------------------- */

struct io_uring_sqe *stream_uring_entry_locked(struct stream_uring *uring)
{
    stream_assert_locked(&uring->lock);
    struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);
    if (entry)
        return entry;
    io_uring_submit(&uring->ring);
    return io_uring_get_sqe(&uring->ring);
}

void stream_uring_submit_locked(struct stream_uring *uring)
{
    stream_uring_sends_queue_locked(uring);
    if (io_uring_sq_ready(&uring->ring) > 0)
        io_uring_submit(&uring->ring);
}

static bool request_make_locked(struct stream_uring *uring, struct stream_link *link)
{
    struct io_uring_sqe *entry = stream_uring_entry_locked(uring);
    if (!entry)
        return false;
    io_uring_prep_recv_multishot(entry, link->watch.fd, NULL, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    io_uring_sqe_set_data(entry, link);
    return true;
}

/* When it returns the request takes no further bytes out of the socket; its last completion may
 * still be to come. */
void stream_uring_cancel_locked(struct stream_uring *uring, uint64_t request)
{
    struct io_uring_sync_cancel_reg cancel = {.addr = request,
                                              .fd = -1,
                                              .timeout = {.tv_sec = -1, .tv_nsec = -1}};
    stream_uring_submit_locked(uring);
    io_uring_register_sync_cancel(&uring->ring, &cancel);
}

void stream_uring_forget_locked(struct stream_uring *uring, uint64_t request)
{
    const struct io_uring_sq *queue = &uring->ring.sq;
    stream_assert_locked(&uring->lock);
    for (unsigned at = queue->sqe_tail - io_uring_sq_ready(&uring->ring); at != queue->sqe_tail;
         at++) {
        struct io_uring_sqe *entry = &queue->sqes[at & queue->ring_mask];
        if (entry->user_data != request)
            continue;
        io_uring_prep_nop(entry);
        io_uring_sqe_set_data64(entry, request);
    }
}

/* Makes the link's request, unless it expects large bodies. `large` in another thread counts what
 * is expected, then looks for the request. */
static bool request_make(struct stream_uring *uring, struct stream_link *link)
{
    bool made = false;
    stream_lock(&uring->lock);
    atomic_store(&link->ring, RING_SMALL);
    bmi_fence();
    if (!stream_expects_large(link))
        made = request_make_locked(uring, link);
    if (!made)
        atomic_store(&link->ring, RING_NONE);
    if (made && !uring->taking)
        stream_uring_submit_locked(uring);
    stream_unlock(&uring->lock);
    if (!made)
        return false;
    bmi_link_ref(&link->base);
    uring->requests++;
    return true;
}

/* Cancels a request if it receives. Any thread. */
static void request_stop(struct stream_uring *uring, struct stream_link *link, uint8_t then)
{
    stream_lock(&uring->lock);
    uint8_t now = atomic_load(&link->ring);
    if (now != RING_NONE && now < then)
        atomic_store(&link->ring, then);
    if (now == RING_SMALL)
        stream_uring_cancel_locked(uring, (uintptr_t)link);
    if (then == RING_IGNORED)
        stream_uring_forget_locked(uring, (uintptr_t)link);
    stream_unlock(&uring->lock);
}

/* The peer has ended its direction, or the connection: the next request sees that at once. */
static void hangup_ready(struct bmi_watch *watch, uint32_t events)
{
    struct stream_link *link = stream_container(watch, struct stream_link, watch);
    struct stream_uring *uring = stream_state_of(link)->uring;
    (void)events;
    stream_engine_epoll.ignore(link);
    if (stream_uring_is_parents(uring))
        stream_link_end(link, -ECONNRESET);
    else
        request_stop(uring, link, RING_STOPS);
}

static int watch_for(struct stream_link *link, void (*ready)(struct bmi_watch *, uint32_t),
                     uint32_t events)
{
    if (link->watched && link->watch.ready == ready)
        return 0;
    stream_engine_epoll.ignore(link);
    link->watch.ready = ready;
    int error = bmi_method_watch_add(link->base.instance, &link->watch, events);
    link->watched = error == 0;
    return error;
}

/* The end of the stream is watched beside the request: a kernel (6.18, for one) that receives the
 * last bytes after it has seen the end does not look for the end again. */
static int receive_somehow(struct stream_uring *uring, struct stream_link *link)
{
    link->small_passes = 0;
    if (!stream_uring_is_parents(uring) && request_make(uring, link))
        return watch_for(link, hangup_ready, EPOLLRDHUP);
    return watch_for(link, stream_receive_ready, STREAM_WATCHED);
}

/* The request's reference is dropped by the caller. */
static void request_ended(struct stream_uring *uring, struct stream_link *link)
{
    uint8_t was = atomic_exchange(&link->ring, RING_NONE);

    uring->requests--;
    if (was == RING_SETTLES)
        stream_link_kick(link);
    if (was == RING_SETTLES || was == RING_IGNORED)
        return;
    int error = receive_somehow(uring, link);
    if (error)
        stream_link_end(link, error);
}

/* ---- completions ---------------------------------------------------------------------------- */

static void buffer_give_back(struct stream_uring *uring, unsigned number)
{
    io_uring_buf_ring_add(uring->buffers, uring->memory + (size_t)number * BUFFER_BYTES,
                          BUFFER_BYTES, (unsigned short)number, io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(uring->buffers, 1);
}

bool stream_uring_says_nothing(int result)
{
    return result == -ECANCELED || result == -ENOBUFS || result == -EFAULT || result == -EAGAIN ||
           result == -EINTR;
}

static void receive_handle(struct stream_uring *uring, const struct io_uring_cqe *cqe)
{
    struct stream_link *link = io_uring_cqe_get_data(cqe);
    unsigned number = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    bool ignored = atomic_load(&link->ring) == RING_IGNORED;

    if (cqe->res > 0)
        stream_uring_link_brought(uring, link);
    if (cqe->res > 0 && !ignored)
        stream_receive_given(link, uring->memory + (size_t)number * BUFFER_BYTES, (size_t)cqe->res);
    if (cqe->flags & IORING_CQE_F_BUFFER)
        buffer_give_back(uring, number);
    if (cqe->res == 0 && !ignored)
        stream_receive_given(link, NULL, 0);
    else if (cqe->res < 0 && !ignored && !stream_uring_says_nothing(cqe->res))
        stream_link_end(link, cqe->res);

    if (!(cqe->flags & IORING_CQE_F_MORE)) {
        request_ended(uring, link);
        bmi_link_unref(&link->base);
    } else if (stream_expects_large(link) && atomic_load(&link->ring) == RING_SMALL) {
        request_stop(uring, link, RING_STOPS);
    }
}

static void completion_handle(struct stream_uring *uring, const struct io_uring_cqe *cqe)
{
    if (stream_uring_is_send(cqe->user_data))
        stream_uring_sent(uring, cqe->user_data, cqe->res);
    else
        receive_handle(uring, cqe);
}

static bool completion_take(struct stream_uring *uring, struct io_uring_cqe *copy)
{
    struct io_uring_cqe *cqe;
    if (io_uring_peek_cqe(&uring->ring, &cqe) != 0)
        return false;
    *copy = *cqe;
    io_uring_cqe_seen(&uring->ring, cqe);
    return true;
}

/* A bounded number, so that a peer that floods keeps the poller neither from other links' sockets
 * nor from timers. Returns how many there were. */
static int completions_take(struct stream_uring *uring)
{
    uint64_t until_ns = 0;
    struct io_uring_cqe cqe;
    int count = 0;

    uring->taking = true;
    while (count < TAKEN_MOST && completion_take(uring, &cqe)) {
        completion_handle(uring, &cqe);
        if (++count % 16 == 0 && stream_pass_is_long(uring->state->instance, &until_ns))
            break;
    }
    uring->taking = false;
    stream_uring_look_end(uring);
    if (count > 0) {
        stream_lock(&uring->lock);
        stream_uring_submit_locked(uring);
        stream_unlock(&uring->lock);
    }
    return count;
}

static void ring_ready(struct bmi_watch *watch, uint32_t events)
{
    struct stream_uring *uring = stream_container(watch, struct stream_uring, watch);
    (void)events;
    if (!stream_uring_is_parents(uring))
        completions_take(uring);
}

/* ---- the engine ----------------------------------------------------------------------------- */

/* System calls on the socket never block: all say MSG_DONTWAIT. The kernel would not wait for bytes
 * of a socket that is set not to block. */
static int uring_watch(struct stream_link *link)
{
    fcntl(link->watch.fd, F_SETFL, O_RDWR);
    return receive_somehow(stream_state_of(link)->uring, link);
}

/* As the child of the ring's owner: nothing was submitted by this process. */
static void ring_forget(struct stream_link *link)
{
    stream_uring_send_forget(link);
    if (atomic_exchange(&link->ring, RING_NONE) != RING_NONE)
        bmi_link_unref(&link->base);
}

static void uring_ignore(struct stream_link *link)
{
    struct stream_uring *uring = stream_state_of(link)->uring;

    stream_engine_epoll.ignore(link);
    if (stream_uring_is_parents(uring))
        ring_forget(link);
    else if (atomic_load(&link->ring) != RING_NONE)
        request_stop(uring, link, RING_IGNORED);
    if (!stream_uring_is_parents(uring))
        stream_uring_send_cancel(link);
}

static bool uring_settle(struct stream_link *link)
{
    struct stream_uring *uring = stream_state_of(link)->uring;

    if (stream_uring_is_parents(uring))
        ring_forget(link);
    else if (atomic_load(&link->ring) != RING_NONE)
        request_stop(uring, link, RING_SETTLES);
    return atomic_load(&link->ring) == RING_NONE;
}

static void uring_large(struct stream_link *link)
{
    struct stream_uring *uring = stream_state_of(link)->uring;

    bmi_fence();
    if (atomic_load(&link->ring) == RING_SMALL && !stream_uring_is_parents(uring))
        request_stop(uring, link, RING_STOPS);
}

static void uring_read(struct stream_link *link)
{
    struct stream_uring *uring = stream_state_of(link)->uring;

    if (stream_uring_is_parents(uring) || atomic_load(&link->ring) != RING_NONE ||
        ++link->small_passes < UNTIL_SMALL)
        return;
    if (uring->state->hot == link)
        uring->state->hot = NULL;
    int error = receive_somehow(uring, link);
    if (error)
        stream_link_end(link, error);
}

/* This process has taken its parent's connections over. */
static void abandon(struct stream_uring *uring)
{
    uring->abandoned = true;
    bmi_method_watch_remove(uring->state->instance, &uring->watch);
    stream_lock(&uring->state->list_lock);
    struct stream_link *at = uring->state->links; /* other threads only insert before it */
    stream_unlock(&uring->state->list_lock);
    for (; at; at = at->list_next)
        if (atomic_load(&at->ring) != RING_NONE || atomic_load(&at->sending)) {
            stream_lock(&at->send_lock);
            at->failure = -ECONNRESET;
            stream_unlock(&at->send_lock);
            stream_link_kick(at);
        }
}

static int uring_progress(struct stream_state *state)
{
    struct stream_uring *uring = state->uring;
    int count = 0;

    stream_uring_pass_begin(uring);
    if (!stream_uring_is_parents(uring))
        count = completions_take(uring);
    else if (!uring->abandoned)
        abandon(uring);
    return count + stream_engine_epoll.progress(state);
}

static bool uring_arm(struct stream_state *state)
{
    struct stream_uring *uring = state->uring;

    bool armed = stream_engine_epoll.arm(state);
    if (stream_uring_is_parents(uring))
        return armed && uring->abandoned;
    stream_lock(&uring->lock);
    uring->sends.armed = true;
    stream_uring_submit_locked(uring);
    bool submitted = io_uring_sq_ready(&uring->ring) == 0 && !uring->sends.waiting;
    stream_unlock(&uring->lock);
    return armed && submitted && io_uring_cq_ready(&uring->ring) == 0;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int pool_make(struct stream_uring *uring)
{
    void *memory =
        mmap(NULL, pool_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    struct io_uring_buf_reg pool = {.ring_addr = (uintptr_t)memory, .ring_entries = BUFFERS};
    int error = io_uring_register_buf_ring(&uring->ring, &pool, 0);
    if (error) {
        munmap(memory, pool_bytes());
        return error;
    }
    uring->buffers = memory;
    uring->memory = (uint8_t *)memory + 4096;
    io_uring_buf_ring_init(uring->buffers);
    for (unsigned i = 0; i < BUFFERS; i++)
        buffer_give_back(uring, i);
    return 0;
}

/* Multishot receives, and cancellation that waits, came with Linux 6.0, as this operation did. */
static bool is_recent(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool recent = probe && io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
    io_uring_free_probe(probe);
    return recent;
}

/* The kernel does a completion's work in the thread that made the request. Without COOP_TASKRUN it
 * interrupts that thread at each arrival, by an interrupt between CPUs, which costs a server more
 * than the system calls that the ring saves. With it the thread does the work when it enters the
 * kernel next, at the timer's tick at the latest; TASKRUN_FLAG lets liburing enter for that. */
static int ring_open(struct stream_uring *uring)
{
    struct io_uring_params parameters = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                                                  IORING_SETUP_COOP_TASKRUN |
                                                  IORING_SETUP_TASKRUN_FLAG,
                                         .cq_entries = COMPLETIONS};
    int error = io_uring_queue_init_params(SUBMISSIONS, &uring->ring, &parameters);
    if (error == -EINVAL)
        return -EOPNOTSUPP; /* such a flag is unknown to it */
    if (error)
        return error;
    error = is_recent(&uring->ring) ? pool_make(uring) : -EOPNOTSUPP;
    if (error)
        io_uring_queue_exit(&uring->ring);
    return error;
}

static void ring_close(struct stream_uring *uring)
{
    io_uring_queue_exit(&uring->ring);
    munmap(uring->buffers, pool_bytes());
}

static int uring_start(struct stream_state *state)
{
    struct stream_uring *uring = calloc(1, sizeof(*uring));
    if (!uring)
        return -ENOMEM;
    pthread_once(&fork_once, fork_watch);
    uring->forks = forks;
    uring->state = state;
    int error = ring_open(uring);
    if (error)
        goto undo_memory;
    uring->watch.fd = uring->ring.ring_fd;
    uring->watch.ready = ring_ready;
    error = stream_uring_sends_start(uring);
    if (error)
        goto undo_ring;
    error = bmi_method_watch_add(state->instance, &uring->watch, EPOLLIN);
    if (error)
        goto undo_sends;
    state->uring = uring;
    return 0;

undo_sends:
    free(uring->sends.slots);
undo_ring:
    ring_close(uring);
undo_memory:
    free(uring);
    return error;
}

/* Each link has cancelled its request; the threads that submitted them may have to run first. */
static void requests_await(struct stream_uring *uring)
{
    struct __kernel_timespec most = {.tv_sec = STOP_WAIT_S};
    struct io_uring_cqe *cqe, copy;
    while (uring->requests + uring->sends.used > 0 &&
           io_uring_wait_cqe_timeout(&uring->ring, &cqe, &most) != -ETIME)
        while (completion_take(uring, &copy))
            completion_handle(uring, &copy);
}

static void uring_stop(struct stream_state *state)
{
    struct stream_uring *uring = state->uring;

    if (!stream_uring_is_parents(uring))
        requests_await(uring);
    bmi_method_watch_remove(state->instance, &uring->watch);
    ring_close(uring);
    stream_uring_sends_stop(uring);
}

const struct stream_engine stream_engine_uring = {
    .name = "io_uring",
    .start = uring_start,
    .stop = uring_stop,
    .watch = uring_watch,
    .ignore = uring_ignore,
    .settle = uring_settle,
    .large = uring_large,
    .read = uring_read,
    .send = stream_uring_send,
    .progress = uring_progress,
    .arm = uring_arm,
};

bool stream_uring_usable(char why[STREAM_WHY])
{
    struct stream_uring *uring = calloc(1, sizeof(*uring));
    int error = uring ? ring_open(uring) : -ENOMEM;
    const char *reason = error == -ENOSYS ? "the system lacks it, or a filter forbids it (ENOSYS)"
                         : error == -EPERM
                             ? "sysctl kernel.io_uring_disabled or a filter forbids it (EPERM)"
                         : error == -EOPNOTSUPP ? "it needs Linux 6.0"
                                                : strerror(-error);
    if (error == 0)
        ring_close(uring);
    else
        snprintf(why, STREAM_WHY, "%s", reason);
    free(uring);
    return error == 0;
}

#else

const struct stream_engine stream_engine_uring = {.name = "io_uring"};

bool stream_uring_usable(char why[STREAM_WHY])
{
    snprintf(why, STREAM_WHY, "this library was built without liburing");
    return false;
}
#endif
