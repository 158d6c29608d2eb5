/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.c - outgoing frames. Many threads append; one at a time writes, as many waiting frames as
 * possible in each system call. stream.h says which thread writes.
 *
 * Frames stay in the queue until they are written: the writer gathers from its front under
 * send_lock, writes without the lock, and removes the written frames under it again. Meanwhile the
 * writer uses the frames from the front to `write_last`: withdraw waits for the write to end. The
 * writer signals before it calls the core, because withdraw's caller may hold the core's peer lock.
 *
 * A full socket is left alone until the engine reports room: `blocked` marks it, and `room` records
 * a report that came while a thread was writing.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stream.h"

/* The frames of one system call. */
struct writing {
    struct iovec iov[STREAM_IOVECS];
    size_t count, wanted;
    ssize_t moved; /* or an errno */
};

void stream_send(struct bmi_link *base, struct bmi_frame *frames)
{
    struct stream_link *link = stream_link_of(base);

    stream_lock(&link->send_lock);
    bmi_frame_queue_append(&link->queue, frames);
    stream_unlock(&link->send_lock);
}

/* ---- withdrawing ---------------------------------------------------------------------------- */

/* Waits for the write under way to end. A futex, since a condition variable in each link would take
 * a tenth of its memory; send_lock orders everything. */
static void write_wait_locked(struct stream_link *link)
{
    unsigned seen = atomic_load_explicit(&link->write_ended, memory_order_relaxed);

    stream_assert_locked(&link->send_lock);
    link->withdrawing++;
    stream_unlock(&link->send_lock);
    syscall(SYS_futex, &link->write_ended, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    stream_lock(&link->send_lock);
    link->withdrawing--;
}

static void write_end_locked(struct stream_link *link)
{
    stream_assert_locked(&link->send_lock);
    link->write_last = NULL;
    if (link->withdrawing == 0)
        return;
    atomic_fetch_add_explicit(&link->write_ended, 1, memory_order_relaxed);
    syscall(SYS_futex, &link->write_ended, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

bool stream_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct stream_link *link = stream_link_of(base);
    bool being_written;

    stream_lock(&link->send_lock);
    while (bmi_frame_queue_has(&link->queue, frame, link->write_last, &being_written) &&
           being_written)
        write_wait_locked(link);
    bool found = bmi_frame_queue_withdraw(&link->queue, frame, replacement);
    bool last = found && !link->queue.first && link->closing != STREAM_OPEN;
    stream_unlock(&link->send_lock);

    if (last)
        stream_link_kick(link);
    return found;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Gathers from the front of the queue. */
static void writing_gather_locked(struct stream_link *link, struct writing *writing)
{
    stream_assert_locked(&link->send_lock);
    writing->count = writing->wanted = 0;
    for (struct bmi_frame *at = link->queue.first; at; at = at->next) {
        if (writing->count + 1 >= STREAM_IOVECS || writing->wanted >= STREAM_WRITE_BYTES)
            break;
        link->write_last = at;
        size_t header = bmi_frame_header_left(at);
        if (header > 0) {
            writing->iov[writing->count++] =
                (struct iovec){.iov_base = at->header + at->header_sent, .iov_len = header};
            writing->wanted += header;
        }
        if (at->body.left == 0)
            continue;
        size_t body = 0;
        writing->count +=
            bmi_segments_window(&at->body, writing->iov + writing->count,
                                STREAM_IOVECS - writing->count, STREAM_WRITE_BYTES, &body);
        writing->wanted += body;
        if (body < (size_t)at->body.left)
            break;
    }
}

static ssize_t write_or_hand_over(struct stream_link *link, struct writing *writing)
{
    const struct stream_engine *engine = stream_state_of(link)->engine;
    if (engine->send && engine->send(link, writing->iov, writing->count, writing->wanted))
        return (ssize_t)writing->wanted;
    return stream_bytes_of(link)->write(link, writing->iov, writing->count);
}

/* Writes the gathered bytes, removes them from the queue, gives complete frames back. */
static void writing_do(struct stream_link *link, struct writing *writing)
{
    const struct stream_bytes *bytes = stream_bytes_of(link);
    struct bmi_frame *done = NULL;
    int64_t frames = 0;
    stream_announce_large(link);
    writing->moved = write_or_hand_over(link, writing);

    stream_lock(&link->send_lock);
    link->unsent = bytes->unsent && bytes->unsent(link);
    if (writing->moved > 0)
        bmi_frame_queue_sent(&link->queue, (size_t)writing->moved, &done, &frames);
    write_end_locked(link);
    stream_unlock(&link->send_lock);

    if (writing->moved <= 0)
        return;
    stream_count(link, BMI_COUNT_WRITES, 1);
    stream_count(link, BMI_COUNT_BYTES_SENT, writing->moved);
    stream_count(link, BMI_COUNT_FRAMES_SENT, frames);
    if (done)
        bmi_method_frames_sent(&link->base, done);
}

static bool may_write_locked(struct stream_link *link)
{
    stream_assert_locked(&link->send_lock);
    return link->phase == STREAM_UP && (link->queue.first || link->unsent) && !link->blocked &&
           !atomic_load_explicit(&link->sending, memory_order_relaxed) && !link->failure &&
           !link->ending && !link->shut && link->closing != STREAM_CLOSE_NOW;
}

/* Records the result of a write. Returns whether the writer goes on with the queue. */
static bool writing_goes_on_locked(struct stream_link *link, const struct writing *writing,
                                   int64_t *budget)
{
    bool full =
        writing->moved == -EAGAIN || (size_t)writing->moved < writing->wanted || link->unsent;

    stream_assert_locked(&link->send_lock);
    if (writing->moved < 0 && writing->moved != -EAGAIN) {
        link->failure = (int)writing->moved;
    } else if (full && !link->room) {
        link->blocked = true;
        if (!link->room_watched) {
            link->room_watched = true;
            link->failure = stream_room_watch(link);
        }
    } else if (writing->moved > 0) {
        *budget -= writing->moved;
        link->go_on = *budget <= 0 && link->queue.first;
    }
    return !link->go_on && may_write_locked(link);
}

void stream_flush(struct bmi_link *base)
{
    struct stream_link *link = stream_link_of(base);
    struct writing writing;
    int64_t budget = STREAM_FLUSH_BYTES;

    stream_lock(&link->send_lock);
    if (link->writing || !may_write_locked(link)) {
        stream_unlock(&link->send_lock);
        return;
    }
    link->writing = true;
    do {
        link->room = false;
        writing_gather_locked(link, &writing);
        stream_unlock(&link->send_lock);
        writing_do(link, &writing);
        stream_lock(&link->send_lock);
    } while (writing_goes_on_locked(link, &writing, &budget));
    link->writing = false;
    bool kick = link->go_on || link->failure || link->ending || link->closing != STREAM_OPEN;
    stream_unlock(&link->send_lock);

    if (kick)
        stream_link_kick(link);
}

void stream_send_room(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    link->room = true;
    link->blocked = false;
    stream_unlock(&link->send_lock);
    stream_flush(&link->base);
}
