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
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stream.h"

/* The frames of one system call. */
struct writing {
    struct iovec iov[STREAM_IOVECS];
    size_t count, wanted;
    ssize_t moved; /* or an errno */
    int64_t frames;
};

/* The rest of a half-sent frame that the core took back. It is the method's own frame, and
 * always the first of the queue. */
struct stream_remainder {
    struct bmi_frame frame;
    void *buffer;
    bmi_size_t size;
    uint8_t bytes[];
};

void stream_send(struct bmi_link *base, struct bmi_frame *frames)
{
    struct stream_link *link = stream_link_of(base);
    struct bmi_frame *last = frames;
    while (last->next)
        last = last->next;

    stream_lock(&link->send_lock);
    if (link->queue)
        link->queue_last->next = frames;
    else
        link->queue = frames;
    link->queue_last = last;
    stream_unlock(&link->send_lock);
}

/* ---- withdrawing ---------------------------------------------------------------------------- */

/* Finds a frame: its place in the queue, and whether it is being written. Returns false if it
 * was written. */
static bool queue_find_locked(struct stream_link *link, const struct bmi_frame *frame,
                              struct bmi_frame ***place, struct bmi_frame **before,
                              bool *being_written)
{
    stream_assert_locked(&link->send_lock);
    *being_written = link->write_last != NULL;
    *before = NULL;
    for (*place = &link->queue; **place; *place = &(**place)->next) {
        if (**place == frame)
            return true;
        if (**place == link->write_last)
            *being_written = false;
        *before = **place;
    }
    return false;
}

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

/* Puts `instead` (may be NULL) into the place of `frame`. */
static void queue_replace_locked(struct stream_link *link, struct bmi_frame **place,
                                 struct bmi_frame *before, struct bmi_frame *instead)
{
    struct bmi_frame *frame = *place;

    stream_assert_locked(&link->send_lock);
    *place = instead ? instead : frame->next;
    if (instead)
        instead->next = frame->next;
    if (link->queue_last == frame)
        link->queue_last = instead ? instead : before;
    frame->next = NULL;
}

/* Copies the rest of a partly sent frame. Returns NULL without memory. */
static struct bmi_frame *remainder_make(struct stream_link *link, struct bmi_frame *frame)
{
    struct stream_remainder *remainder = malloc(sizeof(*remainder) + (size_t)frame->body.left);
    if (!remainder)
        return NULL;
    remainder->frame = *frame;
    remainder->buffer = remainder->bytes;
    remainder->size = frame->body.left;
    remainder->frame.body = (struct bmi_segments){.buffers = &remainder->buffer,
                                                  .sizes = &remainder->size,
                                                  .count = 1,
                                                  .left = frame->body.left};
    bmi_segments_gather(&frame->body, remainder->bytes, (size_t)frame->body.left);
    link->remainder = remainder;
    return &remainder->frame;
}

/* Prepares a chain that leaves the queue: removes the remainder, which the core does not know. */
struct bmi_frame *stream_send_strip_locked(struct stream_link *link, struct bmi_frame *chain)
{
    stream_assert_locked(&link->send_lock);
    if (!link->remainder || chain != &link->remainder->frame)
        return chain;
    chain = chain->next;
    free(link->remainder);
    link->remainder = NULL;
    return chain;
}

bool stream_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct stream_link *link = stream_link_of(base);
    struct bmi_frame **place, *before;
    bool found, being_written;

    stream_lock(&link->send_lock);
    while ((found = queue_find_locked(link, frame, &place, &before, &being_written)) &&
           being_written)
        write_wait_locked(link);
    if (found && frame->header_sent > 0)
        replacement = remainder_make(link, frame);
    if (found && frame->header_sent > 0 && !replacement)
        found = false;
    if (found)
        queue_replace_locked(link, place, before, replacement);
    bool last = found && !link->queue && link->closing != STREAM_OPEN;
    stream_unlock(&link->send_lock);

    if (last)
        stream_link_kick(link);
    return found;
}

/* ---- writing -------------------------------------------------------------------------------- */

static size_t frame_left(const struct bmi_frame *frame)
{
    return bmi_frame_header_left(frame) + (size_t)frame->body.left;
}

/* Gathers from the front of the queue. */
static void writing_gather_locked(struct stream_link *link, struct writing *writing)
{
    stream_assert_locked(&link->send_lock);
    writing->count = writing->wanted = 0;
    for (struct bmi_frame *at = link->queue; at; at = at->next) {
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

/* Removes the written bytes from the queue. Returns the frames that are complete, a chain. */
static struct bmi_frame *writing_consume_locked(struct stream_link *link, struct writing *writing)
{
    size_t bytes = writing->moved > 0 ? (size_t)writing->moved : 0;
    struct bmi_frame *done = link->queue, *last = NULL, *at = link->queue;

    stream_assert_locked(&link->send_lock);
    writing->frames = 0;
    for (; at && bytes >= frame_left(at); at = at->next) {
        bytes -= frame_left(at);
        at->header_sent = bmi_frame_header_size(at->header[0]);
        at->status = 0;
        last = at;
        writing->frames++;
    }
    link->queue = at;
    if (at && bytes > 0) {
        size_t header = bmi_frame_header_left(at);
        if (header > bytes)
            header = bytes;
        at->header_sent += (uint32_t)header;
        bmi_segments_advance(&at->body, bytes - header);
    }
    if (!last)
        return NULL;
    last->next = NULL;
    return stream_send_strip_locked(link, done);
}

/* Writes the gathered bytes, removes them from the queue, gives complete frames back. */
static void writing_do(struct stream_link *link, struct writing *writing)
{
    const struct stream_bytes *bytes = stream_bytes_of(link);
    writing->moved = bytes->write(link, writing->iov, writing->count);

    stream_lock(&link->send_lock);
    link->unsent = bytes->unsent && bytes->unsent(link);
    struct bmi_frame *done = writing_consume_locked(link, writing);
    write_end_locked(link);
    stream_unlock(&link->send_lock);

    if (writing->moved <= 0)
        return;
    stream_count(link, BMI_COUNT_WRITES, 1);
    stream_count(link, BMI_COUNT_BYTES_SENT, writing->moved);
    stream_count(link, BMI_COUNT_FRAMES_SENT, writing->frames);
    if (done)
        bmi_method_frames_sent(&link->base, done);
}

static bool may_write_locked(struct stream_link *link)
{
    stream_assert_locked(&link->send_lock);
    return link->phase == STREAM_UP && (link->queue || link->unsent) && !link->blocked &&
           !link->failure && !link->ending && !link->shut && link->closing != STREAM_CLOSE_NOW;
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
            link->failure = stream_engine_watch_room(link);
        }
    } else if (writing->moved > 0) {
        *budget -= writing->moved;
        link->go_on = *budget <= 0 && link->queue;
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
