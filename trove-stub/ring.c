/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ring.c - reads and writes of open files by io_uring: one ring for each store, one descriptor for
 * all rings, which is readable when a ring has a completion.
 *
 * One piece of an operation at a time is in the ring; the thread that reaps it sends the next. If
 * the ring is full, or io_uring cannot do an operation (or its submitting thread has ended: the
 * system cancels those), a task that may block does it, and returns the true error.
 *
 * `lock` of a ring guards both its queues; operations are submitted under it, so a thread that
 * reaps sees the submitter's writes. No thread holds it when it completes an operation.
 * `rings_lock` guards the list and is taken first; a thread that finds it taken leaves the reaping
 * to the holder. The holder may have checked that ring already, and the core watches the descriptor
 * by edges (bmi/progress/progress.h): so it is signalled when the lock is released.
 */
#include "trove-stub/store.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "trove-stub/files.h"
#include "trove-stub/limit.h"

static pthread_mutex_t source_lock = PTHREAD_MUTEX_INITIALIZER;
static int source = -1; /* source_lock until created, then constant */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void rings_forget(void);

/* A child has its parent's rings and descriptor, too: the parent would wait for completions that
 * the child takes out of them. So the child starts without any. */
static void after_fork_child(void)
{
    pthread_mutex_init(&source_lock, NULL);
    if (source >= 0)
        close(source);
    source = -1;
    rings_forget();
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

int bmi__rings_source(void)
{
    pthread_once(&fork_once, fork_watch);
    pthread_mutex_lock(&source_lock);
    if (source < 0)
        source = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int result = source < 0 ? -errno : source;
    pthread_mutex_unlock(&source_lock);
    return result;
}

#if BMI_WITH_URING
#include <liburing.h>

enum { BATCH = 32 };

struct trove_ring {
    struct io_uring uring; /* lock */
    pthread_mutex_t lock;
    unsigned entries;
    unsigned forks;          /* number of forks before it was opened */
    unsigned in_flight;      /* lock */
    struct trove_ring *next; /* rings_lock */
};

static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct trove_ring *rings;
static atomic_uint ring_count;  /* open ones; rings_lock to write */
static unsigned forks;          /* number of forks that led to this process; a ring with a lower
                                   number is its parent's */
static atomic_bool reap_wanted; /* a thread has read the descriptor, and found rings_lock taken */
static atomic_bool
    told_again; /* written again since the descriptor was read; perhaps there is no ring any more */

static void rings_forget(void)
{
    pthread_mutex_init(&rings_lock, NULL);
    forks++;
    rings = NULL;
    atomic_store(&ring_count, 0);
    atomic_store(&reap_wanted, false);
    atomic_store(&told_again, false);
}

/* Releases the lock. A thread that wants to reap sets reap_wanted before it tries the lock: either
 * it gets the lock, or its flag is seen here, after the release. (To take the lock again in its
 * place could starve that thread.)
 */
static void rings_give(void)
{
    pthread_mutex_unlock(&rings_lock);
    if (!atomic_exchange(&reap_wanted, false))
        return;
    eventfd_write(source, 1);
    atomic_store(&told_again, true); /* after the write: a thread that sees it reads that event */
}

struct trove_ring *bmi__ring_open(unsigned entries)
{
    int fd = bmi__rings_source();
    struct trove_ring *ring = fd >= 0 ? calloc(1, sizeof *ring) : NULL;
    if (ring == NULL)
        return NULL;
    if (io_uring_queue_init(entries, &ring->uring, IORING_SETUP_CLAMP) != 0) {
        free(ring);
        return NULL;
    }
    if (io_uring_register_eventfd(&ring->uring, fd) != 0) {
        io_uring_queue_exit(&ring->uring);
        free(ring);
        return NULL;
    }
    ring->entries = ring->uring.sq.ring_entries;
    ring->forks = forks;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_mutex_lock(&rings_lock);
    ring->next = rings;
    rings = ring;
    atomic_fetch_add(&ring_count, 1);
    rings_give();
    return ring;
}

void bmi__ring_close(struct trove_ring *ring)
{
    eventfd_t value;
    pthread_mutex_lock(&rings_lock);
    struct trove_ring **link = &rings;
    while (*link != NULL && *link != ring)
        link = &(*link)->next;
    bool listed = *link != NULL;
    if (listed)
        *link = ring->next;
    io_uring_queue_exit(&ring->uring);
    if (listed && atomic_fetch_sub(&ring_count, 1) == 1)
        eventfd_read(source, &value); /* without rings no thread reads it */
    rings_give();
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

/* The next thread that reaps submits again the entries that the kernel did not take. The kernel
 * does writes that do not block on the submitting thread. */
static void submit_locked(struct trove_ring *ring)
{
    if (io_uring_sq_ready(&ring->uring) == 0)
        return;
    struct size_guard guard = bmi__size_guard();
    if (io_uring_submit(&ring->uring) <= 0)
        eventfd_write(source, 1);
    bmi__size_unguard(&guard);
}

/* Submits the operation's present piece, or its flush. false: no room. */
static bool ring_send(struct trove_ring *ring, struct trove_op *op)
{
    const struct trove_piece *piece = op->piece;
    pthread_mutex_lock(&ring->lock);
    struct io_uring_sqe *entry =
        ring->in_flight < ring->entries ? io_uring_get_sqe(&ring->uring) : NULL;
    if (entry != NULL) {
        ring->in_flight++;
        if (op->syncing)
            io_uring_prep_fsync(entry, op->ring_fd, IORING_FSYNC_DATASYNC);
        else if (op->what == TROVE_READ)
            io_uring_prep_readv(entry, op->ring_fd, piece->memory, (unsigned)piece->count,
                                (uint64_t)piece->offset);
        else
            io_uring_prep_writev(entry, op->ring_fd, piece->memory, (unsigned)piece->count,
                                 (uint64_t)piece->offset);
        io_uring_sqe_set_data(entry, op);
        submit_locked(ring);
    }
    pthread_mutex_unlock(&ring->lock);
    return entry != NULL;
}

/* The next step of an operation that is not in the ring: a piece, the flush, or its end. Returns
 * false if the ring is full and no step was begun. */
static bool op_step(struct trove_ring *ring, struct trove_op *op)
{
    if (bmi__trove_piece_next(op, op->piece))
        return ring_send(ring, op);
    if (op->what == TROVE_WRITE && (op->flags & BMI_TROVE_SYNC) != 0 && !op->syncing) {
        op->syncing = true;
        return ring_send(ring, op);
    }
    bmi__trove_finish(op, 0);
    return true;
}

/* Errors that may be the ring's rather than the file's: a blocking call finds out. */
static bool ring_failed(const struct trove_op *op, int result)
{
    return result == -EAGAIN || result == -EINTR || result == -EINVAL || result == -EOPNOTSUPP ||
           (result == -ECANCELED && !atomic_load(&op->cancelled));
}

static void op_advance(struct trove_ring *ring, struct trove_op *op, int result)
{
    atomic_fetch_add_explicit(&op->place.store->counts.uring, 1, memory_order_relaxed);
    if (ring_failed(op, result)) {
        bmi__trove_by_task(op);
        return;
    }
    int error = op->syncing ? bmi__file_flushed(op->object, result < 0 ? result : 0)
                            : bmi__trove_piece_done(op, op->piece, result);
    if (error != 0)
        bmi__trove_finish(op, error);
    else if (!op_step(ring, op))
        bmi__trove_by_task(op);
}

struct reaped {
    struct trove_op *op;
    int result;
};

static unsigned ring_take(struct trove_ring *ring, struct reaped reaped[BATCH])
{
    struct io_uring_cqe *entries[BATCH];
    pthread_mutex_lock(&ring->lock);
    submit_locked(ring);
    unsigned count = io_uring_peek_batch_cqe(&ring->uring, entries, BATCH);
    for (unsigned i = 0; i < count; i++)
        reaped[i] =
            (struct reaped){.op = io_uring_cqe_get_data(entries[i]), .result = entries[i]->res};
    io_uring_cq_advance(&ring->uring, count);
    ring->in_flight -= count;
    pthread_mutex_unlock(&ring->lock);
    return count;
}

static void ring_reap(struct trove_ring *ring)
{
    struct reaped reaped[BATCH];
    unsigned count;
    do {
        count = ring_take(ring, reaped);
        for (unsigned i = 0; i < count; i++)
            op_advance(ring, reaped[i].op, reaped[i].result);
    } while (count == BATCH);
}

/* Data in the page cache is read at once: then the post can report completion. */
bool bmi__ring_start(struct trove_ring *ring, struct trove_op *op, int fd)
{
    if (ring->forks != forks)
        return false;
    op->piece = malloc(sizeof *op->piece);
    op->ring_fd = fd;
    if (op->piece == NULL || !op_step(ring, op))
        return false;
    ring_reap(ring);
    return true;
}

void bmi__rings_reap(void)
{
    eventfd_t value;
    if (atomic_load(&ring_count) == 0 && !atomic_load(&told_again))
        return;
    atomic_store(&told_again, false);
    eventfd_read(source, &value);
    atomic_store(&reap_wanted, true);
    if (pthread_mutex_trylock(&rings_lock) != 0)
        return;
    atomic_exchange(&reap_wanted, false); /* completions that other threads were notified of are
                                             seen now */
    for (struct trove_ring *ring = rings; ring != NULL; ring = ring->next)
        ring_reap(ring);
    rings_give();
}

#else

static void rings_forget(void)
{
}

struct trove_ring *bmi__ring_open(unsigned entries)
{
    (void)entries;
    return NULL;
}

void bmi__ring_close(struct trove_ring *ring)
{
    (void)ring;
}

bool bmi__ring_start(struct trove_ring *ring, struct trove_op *op, int fd)
{
    (void)ring, (void)op, (void)fd;
    return false;
}

void bmi__rings_reap(void)
{
}

#endif
