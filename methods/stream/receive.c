/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive.c - incoming frames: the header, the sink that the core returns for the body, the body.
 *
 * Between bodies a link reads ahead into a buffer of the poller (`ahead`), and takes all frames out
 * of it. If a body is not whole there, its rest is read straight into the sink; the same call reads
 * the bytes after it into the buffer, or into the next header. While the core expects large bodies
 * (large_expected), nothing is read beyond a long header, so that no byte of them is copied. A read
 * of a long header may get a short header and the first bytes of a small message instead; these
 * are taken from there.
 *
 * The read-ahead buffer is empty between two reads: all its bytes were taken, and a cut header is
 * kept in the link. A read that returns less than was asked for has emptied the socket: the link is
 * not read again until the engine reports bytes.
 */
#include <sys/epoll.h>
#include <time.h>

#include "stream.h"

enum { PASS_MORE = 1, PASS_DRAINED = 2 }; /* of a read; 0: stream's end, <0: an errno */

/* One read: the bytes that it asks for, and their places. */
struct reading {
    struct iovec iov[STREAM_IOVECS + 1];
    size_t count;
    size_t wanted;
    size_t body;    /* bytes asked for of the present body */
    size_t in_list; /* the first of them, which go to the sink's list */
    bool to_ahead;  /* bytes after the body go to the read-ahead buffer, else to the header */
};

static void reading_add(struct reading *reading, void *to, size_t bytes)
{
    reading->iov[reading->count++] = (struct iovec){.iov_base = to, .iov_len = bytes};
    reading->wanted += bytes;
}

/* Asks for the rest of the body; bytes without a place all go to the one scratch. */
static void reading_add_body(struct stream_link *link, struct reading *reading)
{
    struct stream_state *state = stream_state_of(link);

    reading->count = bmi_segments_window(&link->sink.body, reading->iov, STREAM_IOVECS,
                                         STREAM_READ_BYTES, &reading->in_list);
    reading->wanted = reading->in_list;
    if (reading->in_list == (size_t)link->sink.body.left) {
        uint64_t unwanted = link->body_left - reading->in_list;
        while (unwanted > 0 && reading->count < STREAM_IOVECS) {
            size_t part = unwanted < STREAM_SCRATCH_BYTES ? (size_t)unwanted : STREAM_SCRATCH_BYTES;
            reading_add(reading, state->scratch, part);
            unwanted -= part;
        }
    }
    reading->body = reading->wanted;
}

static bool closed(const struct stream_link *link)
{
    return atomic_load_explicit(&link->closed, memory_order_acquire);
}

static void reading_plan(struct stream_link *link, struct reading *reading)
{
    /* A large body is often followed by another one. */
    bool exact = stream_expects_large(link);

    reading->count = reading->wanted = reading->body = reading->in_list = 0;
    reading->to_ahead = !exact;
    if (exact)
        link->small_passes = 0;
    if (link->body_left > 0 && !closed(link))
        bmi_method_body_place(&link->base, &link->sink);
    if (link->body_left > 0)
        reading_add_body(link, reading);
    if (reading->body < link->body_left)
        return;
    if (exact)
        reading_add(reading, link->header + link->header_have,
                    (size_t)(BMI_FRAME_HEADER - link->header_have));
    else
        reading_add(reading, stream_state_of(link)->ahead, STREAM_AHEAD_BYTES);
}

static int body_finish(struct stream_link *link)
{
    bool retracted = link->retracted;
    link->retracted = false;
    int error = retracted ? 0 : bmi_method_body_arrived(&link->base, &link->sink);
    if (error < 0)
        stream_count(link, BMI_COUNT_BAD_FRAMES, 1);
    return error;
}

/* The core has closed the link, and gets no more frames. Further data is still read and discarded,
 * as the body of a frame without end: closing a socket with unread data would reset the connection,
 * and the other side could lose the last data that we sent. */
static void drain_begin(struct stream_link *link)
{
    link->sink = (struct bmi_sink){.length = UINT64_MAX};
    link->body_left = UINT64_MAX;
    link->body_direct = false;
}

/* The core wants no more of a link that it has closed at once: the body's owner may be gone, with
 * the other end of a link to ourselves. */
static void closed_forget_body_locked(struct stream_link *link)
{
    stream_assert_locked(&link->receive_lock);
    if (!link->sink.owner || !closed(link))
        return;
    stream_lock(&link->send_lock);
    bool now = link->closing == STREAM_CLOSE_NOW;
    stream_unlock(&link->send_lock);
    if (now && link->body_left > 0) {
        link->sink.owner = NULL;
        link->sink.body.left = 0;
        link->retracted = true;
    }
}

/* Shows the core a header. Returns 0, or the errno that ends the link. */
static int frame_begin(struct stream_link *link, const uint8_t *header)
{
    if (closed(link)) {
        drain_begin(link);
        return 0;
    }
    stream_state_of(link)->tally.frames++;
    int error = bmi_method_frame_arrived(&link->base, header, &link->sink);
    if (error < 0) {
        stream_count(link, BMI_COUNT_BAD_FRAMES, 1);
        return error;
    }
    link->any_frame = true;
    link->body_left = link->sink.length;
    link->body_direct = true;
    return 0;
}

/* Takes bytes of the body out of the read-ahead buffer. Returns their number, or the errno. */
static ssize_t ahead_take_body(struct stream_link *link, const uint8_t *bytes, size_t count)
{
    struct stream_tally *tally = &stream_state_of(link)->tally;
    size_t taken = link->body_left < count ? (size_t)link->body_left : count;
    size_t copied = bmi_segments_scatter(&link->sink.body, bytes, taken);

    tally->copied_bytes += (int64_t)copied;
    if (copied > 0 && link->body_direct) {
        link->body_direct = false;
        tally->copies++;
    }
    link->body_left -= taken;
    int error = link->body_left == 0 ? body_finish(link) : 0;
    return error < 0 ? error : (ssize_t)taken;
}

/* Takes a header out of the read-ahead buffer, or the part of it that is there. `bytes` may also
 * point into the link's own header, behind a short header that was taken out of it. */
static ssize_t ahead_take_header(struct stream_link *link, const uint8_t *bytes, size_t count)
{
    size_t size = bmi_frame_header_size(link->header_have > 0 ? link->header[0] : bytes[0]);
    size_t missing = size - link->header_have;
    const uint8_t *header = bytes;

    if (missing < size || count < missing) {
        size_t taken = count < missing ? count : missing;
        memmove(link->header + link->header_have, bytes, taken);
        link->header_have = (uint8_t)(link->header_have + taken);
        if (taken < missing) {
            int error = link->any_frame
                            ? 0
                            : bmi_method_header_begun(&link->base, link->header, link->header_have);
            return error < 0 ? error : (ssize_t)taken;
        }
        link->header_have = 0;
        header = link->header;
    }
    int error = frame_begin(link, header);
    return error < 0 ? error : (ssize_t)missing;
}

/* Takes a small message that is whole in the read-ahead buffer, in one step. Returns its bytes; 0:
 * there is none; or the errno. */
static ssize_t ahead_take_whole(struct stream_link *link, const uint8_t *bytes, size_t count)
{
    struct stream_tally *tally = &stream_state_of(link)->tally;

    size_t header = bmi_frame_header_size(bytes[0]);
    if (link->header_have > 0 || count < header || closed(link))
        return 0;
    int taken = bmi_method_frame_whole(&link->base, bytes, bytes + header, count - header);
    if (taken == 0)
        return 0;
    tally->frames++;
    if (taken < 0) {
        stream_count(link, BMI_COUNT_BAD_FRAMES, 1);
    } else if ((size_t)taken > header) {
        tally->copies++;
        tally->copied_bytes += taken - (int)header;
    }
    return taken;
}

static int ahead_take(struct stream_link *link, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t taken = link->body_left == 0 ? ahead_take_whole(link, bytes, count) : 0;
        if (taken == 0)
            taken = link->body_left > 0 ? ahead_take_body(link, bytes, count)
                                        : ahead_take_header(link, bytes, count);
        if (taken < 0)
            return (int)taken;
        bytes += taken;
        count -= (size_t)taken;
    }
    return 0;
}

/* Accounts for `moved` bytes that a read brought. Returns 0 or the errno that ends the link. */
static int reading_done(struct stream_link *link, const struct reading *reading, size_t moved)
{
    int error = 0;
    if (reading->body > 0) {
        size_t body = moved < reading->body ? moved : reading->body;
        bmi_segments_advance(&link->sink.body, body < reading->in_list ? body : reading->in_list);
        link->body_left -= body;
        moved -= body;
        if (link->body_left == 0)
            error = body_finish(link);
    }
    if (error < 0 || moved == 0)
        return error;
    if (reading->to_ahead)
        return ahead_take(link, stream_state_of(link)->ahead, moved);

    moved += link->header_have;
    link->header_have = 0;
    return ahead_take(link, link->header, moved);
}

/* Reads once. Returns PASS_MORE, PASS_DRAINED, 0 at the stream's end, or an errno. */
static int read_once_locked(struct stream_link *link, int64_t *bytes)
{
    struct reading reading;

    stream_assert_locked(&link->receive_lock);
    reading_plan(link, &reading);
    ssize_t moved = stream_bytes_of(link)->read(link, reading.iov, reading.count);
    if (moved <= 0)
        return moved == -EAGAIN ? PASS_DRAINED : (int)moved;

    *bytes += moved;
    int error = reading_done(link, &reading, (size_t)moved);
    if (error < 0)
        return error;
    return (size_t)moved < reading.wanted ? PASS_DRAINED : PASS_MORE;
}

/* A pass has brought so many bytes. */
static void tally_tell(struct stream_link *link, int64_t bytes)
{
    uint64_t before = atomic_load_explicit(&link->base.bytes_in, memory_order_relaxed);
    atomic_store_explicit(&link->base.bytes_in, before + (uint64_t)bytes, memory_order_relaxed);

    struct stream_state *state = stream_state_of(link);
    struct stream_tally tally = state->tally;
    state->tally = (struct stream_tally){0};
    stream_count(link, BMI_COUNT_READS, tally.reads);
    stream_count(link, BMI_COUNT_BYTES_RECEIVED, bytes);
    if (tally.frames > 0)
        stream_count(link, BMI_COUNT_FRAMES_RECEIVED, tally.frames);
    if (tally.copies > 0) {
        stream_count(link, BMI_COUNT_COPIES, tally.copies);
        stream_count(link, BMI_COUNT_COPIED_BYTES, tally.copied_bytes);
    }
}

/* ---- passes --------------------------------------------------------------------------------- */

bool stream_pass_is_long(struct bmi_instance *instance, uint64_t *until_ns)
{
    uint64_t now_ns = bmi_method_now_ns(instance);
    if (*until_ns == 0)
        *until_ns = now_ns + STREAM_PASS_NS;
    return now_ns >= *until_ns;
}

/* Whether the last read brought a frame without a body alone, as a request is. The next one of a
 * burst has probably arrived, too; the answers to all of them then share a write. */
static bool brought_header_only(const struct stream_link *link, int64_t moved)
{
    return link->body_left == 0 && moved > 0 && moved <= BMI_FRAME_HEADER;
}

/* A layer may have made bytes to send, as an answer to some of its own, and may have bytes left
 * that the socket does not report. */
static void layer_follow(struct stream_link *link, int result)
{
    const struct stream_bytes *bytes = stream_bytes_of(link);

    if (bytes->unsent && bytes->unsent(link)) {
        stream_lock(&link->send_lock);
        link->unsent = true;
        stream_unlock(&link->send_lock);
        stream_flush(&link->base);
    }
    if (result > 0 && bytes->unread && bytes->unread(link)) {
        link->unread = true;
        stream_link_kick(link);
    }
}

/* The status of a stream that ends here. */
static int end_status(const struct stream_link *link)
{
    bool within = link->body_left > 0 || link->header_have > 0;
    return within && !closed(link) ? -ECONNRESET : 0;
}

/* Reads up to `reads` times; up to STREAM_PASS_READS headers without a body are not counted.
 * `to_end`: the socket has failed or ended, so a short read does not stop. Returns PASS_MORE or
 * PASS_DRAINED, 0 at the stream's end, or an errno. */
static int receive_pass(struct stream_link *link, int reads, bool to_end, int64_t *bytes)
{
    struct stream_state *state = stream_state_of(link);
    uint64_t until_ns = 0;
    int64_t last;
    int result, headers = 0;

    *bytes = 0;
    stream_lock(&link->receive_lock);
    closed_forget_body_locked(link);
    do {
        last = *bytes;
        result = read_once_locked(link, bytes);
        if (*bytes > last)
            state->tally.reads++;
        if (result == PASS_DRAINED && to_end && *bytes > last)
            result = PASS_MORE;
        if (!brought_header_only(link, *bytes - last) || headers++ >= STREAM_PASS_READS)
            reads--;
    } while (result == PASS_MORE && reads > 0 && *bytes < STREAM_PASS_BYTES &&
             state->tally.frames < STREAM_PASS_FRAMES &&
             !stream_pass_is_long(link->base.instance, &until_ns));
    if (result == 0)
        result = end_status(link);
    stream_unlock(&link->receive_lock);

    if (*bytes > 0) {
        if (state->hot != link)
            stream_hot_set(link);
        tally_tell(link, *bytes);
    }
    if (link->layer)
        layer_follow(link, result);
    return result;
}

/* Follows a pass: it may have been the link's last one, or the engine may find another way to
 * receive. */
static void pass_follow(struct stream_link *link, int result, int64_t bytes)
{
    const struct stream_engine *engine = stream_state_of(link)->engine;
    if (result <= 0)
        stream_link_end(link, result);
    else if (bytes > 0 && engine->read)
        engine->read(link);
}

void stream_receive_ready(struct bmi_watch *watch, uint32_t events)
{
    struct stream_link *link = stream_container(watch, struct stream_link, watch);
    bool to_end = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    int64_t bytes;

    if (link->phase == STREAM_SECURING) {
        stream_secure_ready(link);
        return;
    }
    int result = receive_pass(link, STREAM_PASS_READS, to_end, &bytes);
    pass_follow(link, result, bytes);
}

void stream_receive_more(struct stream_link *link)
{
    int64_t bytes;

    link->unread = false;
    if (link->phase != STREAM_UP)
        return;
    int result = receive_pass(link, STREAM_PASS_READS, false, &bytes);
    pass_follow(link, result, bytes);
}

int stream_receive_rest(struct stream_link *link)
{
    int64_t bytes, all = 0;
    int result;
    do { /* no more than a socket can have held, should the peer be sending still */
        result = receive_pass(link, STREAM_PASS_READS, true, &bytes);
        all += bytes;
    } while (result == PASS_MORE && bytes > 0 && all < STREAM_REST_BYTES);
    return result < 0 ? result : 0;
}

int64_t stream_receive_poll(struct stream_link *link)
{
    int64_t bytes;
    int result = receive_pass(link, link->layer ? STREAM_PASS_READS : 1, false, &bytes);
    pass_follow(link, result, bytes);
    return result <= 0 ? -1 : bytes;
}

void stream_receive_given(struct stream_link *link, const uint8_t *bytes, size_t count)
{
    int result = 0;

    stream_lock(&link->receive_lock);
    closed_forget_body_locked(link);
    if (link->body_left > 0 && !closed(link))
        bmi_method_body_place(&link->base, &link->sink);
    if (count > 0)
        result = ahead_take(link, bytes, count);
    else
        result = end_status(link);
    stream_unlock(&link->receive_lock);

    stream_state_of(link)->tally.reads += count > 0;
    tally_tell(link, (int64_t)count);
    if (count == 0 || result < 0)
        stream_link_end(link, result);
}

bool stream_retract(struct bmi_link *base, void *owner)
{
    struct stream_link *link = stream_link_of(base);

    stream_lock(&link->receive_lock);
    bool ours = owner && link->body_left > 0 && link->sink.owner == owner;
    if (ours) {
        link->sink.owner = NULL;
        link->sink.body.left = 0;
        link->retracted = true;
    }
    stream_unlock(&link->receive_lock);
    return ours;
}
