/* SPDX-License-Identifier: BSD-3-Clause
 *
 * uring.h - the io_uring engine's ring, which its receives (engine_uring.c) and its sends
 * (uring_send.c) share. The poller calls each function, with no lock held, except where said.
 */
#ifndef STREAM_URING_H
#define STREAM_URING_H

#include <liburing.h>

#include "stream.h"

struct uring_slot;

struct uring_sends {
    struct uring_slot *slots;

    /* stream_uring's lock */
    struct uring_slot *free;
    struct uring_slot *waiting, **waiting_last; /* copied, not in the submission queue yet */
    unsigned used;                              /* slots that are not free */
    unsigned unsubmitted;                       /* taken since the last submission */
    bool armed;                                 /* the poller may block, or there is none */

    struct bmi_deferred submits; /* in the poller */
    bool stopped;                /* poller: `submits` frees all */

    /* Sends that the last look's bytes should lead to. The poller sets it, each send counts. */
    atomic_uint expected;

    /* poller: of the present look */
    const struct stream_link *brought;
    unsigned brought_links;
};

struct stream_uring {
    struct io_uring ring; /* lock: submissions; poller: completions */
    struct bmi_lock lock;
    struct bmi_watch watch;
    struct stream_state *state;
    unsigned forks; /* before it was made */
    struct uring_sends sends;

    /* poller */
    struct io_uring_buf_ring *buffers; /* behind them their memory */
    uint8_t *memory;
    unsigned requests; /* to receive, that have not ended */
    bool taking;       /* completions: requests are submitted afterwards, together */
    bool abandoned;
};

/* ---- engine_uring.c ------------------------------------------------------------------------- */

/* Whether this process is a child of the ring's owner. Any thread. */
bool stream_uring_is_parents(const struct stream_uring *uring);
/* Returns NULL if the queue is full, and the kernel takes nothing. Any thread, the ring's lock. */
struct io_uring_sqe *stream_uring_entry_locked(struct stream_uring *uring);
/* What the kernel does not take now is submitted again by `arm`. Any thread, the ring's lock. */
void stream_uring_submit_locked(struct stream_uring *uring);
/* Submits, then cancels the request. Any thread, the ring's lock. */
void stream_uring_cancel_locked(struct stream_uring *uring, uint64_t request);
/* A request that the kernel has not taken would act on the next socket of the same number: it
 * becomes one that does nothing. Any thread, the ring's lock. */
void stream_uring_forget_locked(struct stream_uring *uring, uint64_t request);
/* Whether a request's result says nothing of the socket: it is made again. The kernel reports
 * ECANCELED or EFAULT if the thread that submitted it has ended. */
bool stream_uring_says_nothing(int result);

/* ---- uring_send.c --------------------------------------------------------------------------- */

/* Returns 0 or an errno. At the stop no link is up, and the ring is closed; frees `uring`. */
int stream_uring_sends_start(struct stream_uring *uring);
void stream_uring_sends_stop(struct stream_uring *uring);
/* As `send` of struct stream_engine. */
bool stream_uring_send(struct stream_link *link, const struct iovec *iov, size_t count,
                       size_t wanted);
/* Puts the slots that wait into the submission queue. Any thread, the ring's lock. */
void stream_uring_sends_queue_locked(struct stream_uring *uring);
/* Whether a request is a send; its completion. */
bool stream_uring_is_send(uint64_t request);
void stream_uring_sent(struct stream_uring *uring, uint64_t request, int result);
/* The link ends: its bytes are sent now or not at all. */
void stream_uring_send_cancel(struct stream_link *link);
/* The same in a child of the ring's owner. */
void stream_uring_send_forget(struct stream_link *link);

/* The poller begins to look; has bytes of a link; has taken what there was. */
void stream_uring_pass_begin(struct stream_uring *uring);
void stream_uring_link_brought(struct stream_uring *uring, const struct stream_link *link);
void stream_uring_look_end(struct stream_uring *uring);

#endif
