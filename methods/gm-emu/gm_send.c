/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_send.c - outgoing frames: cut into messages, given to the NIC.
 *
 * Usually the NIC copies a message at once: its frames are then sent. If the peer's ring is full
 * the message is pending, and the link waits for its callback; frames stay in the queue meanwhile.
 * If there is no send token the link is starved, and tried again when a token comes back. Each link
 * has one pending message at most, and a receiver gives each buffer back as soon as it has looked
 * at the message in it, whatever else it waits for: so as few as two tokens keep everything moving,
 * if no peer is stopped. Peers that are stopped may hold tokens until their connections end.
 */
#include "gm.h"

enum { FLUSH_BYTES = 1 << 20 }; /* then others have their turn */

/* One message, gathered in link->iov. */
struct message {
    size_t count, bytes;
    struct bmi_frame *last; /* whose bytes are in it */
};

void gm_send(struct bmi_link *base, struct bmi_frame *frames)
{
    struct gm_link *link = gm_link_of(base);
    gm_lock(&link->send_lock);
    bmi_frame_queue_append(&link->queue, frames);
    gm_unlock(&link->send_lock);
}

/* ---- gathering ------------------------------------------------------------------------------ */

static bool frame_gather_locked(struct gm_link *link, struct message *message,
                                struct bmi_frame *frame, size_t limit)
{
    size_t header = bmi_frame_header_left(frame), body = 0;
    if (message->count + 2 > GM_IOVECS || limit - message->bytes <= header)
        return false;
    message->last = frame;
    if (header > 0)
        link->iov[message->count++] =
            (struct iovec){.iov_base = frame->header + frame->header_sent, .iov_len = header};
    message->bytes += header;
    if (frame->body.left == 0)
        return true;
    message->count +=
        bmi_segments_window(&frame->body, link->iov + message->count, GM_IOVECS - message->count,
                            limit - message->bytes, &body);
    message->bytes += body;
    return body == (size_t)frame->body.left;
}

/* Gathers from the front of the queue. */
static void gather_locked(struct gm_link *link, struct message *message)
{
    gm_assert_locked(&link->send_lock);
    *message = (struct message){.count = 0};
    struct bmi_frame *frame = link->queue.first;
    while (frame != NULL && frame_gather_locked(link, message, frame, link->message_max))
        frame = frame->next;
}

/* Takes `bytes` off the front of the queue; frames that are complete go to the end of `done`. */
static struct bmi_frame **consume_locked(struct gm_link *link, size_t bytes,
                                         struct bmi_frame **done)
{
    int64_t count;
    done = bmi_frame_queue_sent(&link->queue, bytes, done, &count);
    gm_count(link, BMI_COUNT_FRAMES_SENT, count);
    return done;
}

/* ---- to the NIC ----------------------------------------------------------------------------- */

static void message_sent(struct nic_port *port, void *context, int status)
{
    struct gm_link *link = context;
    struct bmi_frame *done = NULL;
    (void)port;
    gm_lock(&link->send_lock);
    link->pending = false;
    if (status == 0)
        consume_locked(link, link->pending_bytes, &done);
    gm_unlock(&link->send_lock);
    if (done != NULL)
        bmi_method_frames_sent(&link->base, done);
    if (status == 0)
        gm_flush(&link->base);
}

/* Returns 1: it was sent; 0: it is pending; or an errno. */
static int message_give_locked(struct gm_link *link, struct message *message)
{
    int result = nic_send_with_callback(link->peer, link->iov, message->count, GM_SIZE,
                                        NIC_LOW_PRIORITY, NIC_BUFFERED, message_sent, link);
    if (result == 0) {
        link->pending = true;
        link->pending_bytes = message->bytes;
        link->pending_last = message->last;
    }
    return result;
}

static bool may_send_locked(const struct gm_link *link)
{
    return link->phase == GM_UP && link->queue.first != NULL && !link->pending && !link->closed;
}

/* Sends as much as possible now. Returns the bytes sent. */
static size_t queue_send_locked(struct gm_link *link, struct bmi_frame **done)
{
    struct message message;
    size_t bytes = 0;
    int result = 1;
    while (may_send_locked(link) && bytes < FLUSH_BYTES) {
        gather_locked(link, &message);
        result = message_give_locked(link, &message);
        if (result < 0)
            break;
        gm_count(link, BMI_COUNT_WRITES, 1);
        gm_count(link, BMI_COUNT_BYTES_SENT, (int64_t)message.bytes);
        if (result == 0)
            break;
        done = consume_locked(link, message.bytes, done);
        bytes += message.bytes;
    }
    if (result == -EAGAIN)
        gm_link_starve(link, GM_WANT_MESSAGE);
    else if (result < 0 && result != -ENOTCONN)
        gm_link_fail_locked(link, result);
    return bytes;
}

void gm_flush(struct bmi_link *base)
{
    struct gm_link *link = gm_link_of(base);
    struct bmi_frame *done = NULL;
    gm_lock(&link->send_lock);
    size_t bytes = queue_send_locked(link, &done);
    bool again = (bytes >= FLUSH_BYTES && may_send_locked(link)) ||
                 (link->closing == GM_CLOSE_LINGERING && gm_link_idle_locked(link));
    bool puts = gm_puts_left_locked(link);
    gm_unlock(&link->send_lock);
    if (done != NULL)
        bmi_method_frames_sent(base, done);
    if (puts)
        gm_puts_start(link);
    if (again)
        gm_link_kick(link);
}

static_assert((int)BMI_FRAME_SHORT == (int)NIC_HEAD,
              "a small message is a short header and its body");

bool gm_send_now(struct bmi_link *base, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                 size_t bytes)
{
    struct gm_link *link = gm_link_of(base);
    gm_lock(&link->send_lock);
    bool sent = link->phase == GM_UP && link->queue.first == NULL && !link->pending &&
                !link->closed && nic_send_now(link->peer, header, body, bytes, GM_SIZE);
    gm_unlock(&link->send_lock);
    if (!sent)
        return false;
    gm_count(link, BMI_COUNT_FRAMES_SENT, 1);
    gm_count(link, BMI_COUNT_WRITES, 1);
    gm_count(link, BMI_COUNT_BYTES_SENT, (int64_t)(NIC_HEAD + bytes));
    return true;
}

/* ---- withdrawing ---------------------------------------------------------------------------- */

bool gm_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct gm_link *link = gm_link_of(base);
    bool pending;
    gm_lock(&link->send_lock);
    bool found = bmi_frame_queue_has(&link->queue, frame, link->pending_last, &pending);
    if (found && pending && link->pending) {
        found = link->phase == GM_UP && nic_cancel_send(link->peer, link); /* false: too late */
        link->pending = !found;
    }
    found = found && bmi_frame_queue_withdraw(&link->queue, frame, replacement);
    gm_unlock(&link->send_lock);
    gm_link_kick(link); /* to send the frames behind it, or to end */
    return found;
}
