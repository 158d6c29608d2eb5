/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deliver.c - a link's turn: finds its peer, or moves its frames and transfers into the peer.
 *
 * Runs in the poller only. A turn ends when nothing is left, after LOOP_PASS_FRAMES frames or
 * LOOP_PASS_BYTES bytes, or where a test delays or holds the direction. The poller copies bodies
 * from the sender's memory straight to the sink, and holds the receiver's receive_lock for each
 * step. The frames go back to their sender's core at the end of the turn, with no lock held.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

enum {
    FRAME_HELLO = 1,      /* type of the core's first frame on a link, in header[0] */
    INCARNATION_SIZE = 16 /* bytes at the start of its body */
};

/* One turn of one link. */
struct turn {
    bool closing, linger; /* as at its begin */
    int doom;
    enum loop_phase phase;
    unsigned delay_ms;
    bool strangers;
    size_t bytes_left;
    unsigned frames_left;
    unsigned frames_moved;
    size_t bytes_moved;             /* headers included */
    struct bmi_frame *done, **tail; /* frames that go back to the sender */
    int status;                     /* the reason for which the pair must end */
    bool receiver_fault;            /* and which end caused it */
};

static void turn_begin(struct loop_link *link, struct turn *turn)
{
    struct loop_network *network = link->network;
    memset(turn, 0, sizeof *turn);
    turn->tail = &turn->done;
    turn->frames_left = LOOP_PASS_FRAMES;
    pthread_mutex_lock(&network->lock);
    turn->closing = link->closing;
    turn->linger = link->linger;
    turn->doom = link->doom;
    turn->phase = link->phase;
    turn->delay_ms = network->hooks.delay_ms;
    turn->strangers = network->hooks.strangers;
    turn->bytes_left = network->hooks.piece > 0 ? network->hooks.piece : LOOP_PASS_BYTES;
    pthread_mutex_unlock(&network->lock);
}

/* ---- finding the peer ----------------------------------------------------------------------- */

/* Makes the accepted end and shows it to the core. */
static int peer_make(struct loop_link *link)
{
    if (!loop_name_known(link->network, link->address))
        return -ECONNREFUSED;
    struct loop_link *peer = loop_link_new(link->network, false);
    if (peer == NULL)
        return -ENOMEM;
    int status = bmi_method_link_accepted(&peer->base);
    if (status != 0) {
        loop_link_forget(peer);
        return -ECONNRESET;
    }
    link->peer = peer;
    peer->peer = link;
    return 0;
}

static void link_open(struct loop_link *link)
{
    int status = peer_make(link);
    if (status != 0) {
        loop_pair_end(link, status, 0);
        return;
    }
    pthread_mutex_lock(&link->network->lock);
    link->phase = LOOP_UP;
    loop_link_flush_locked(link);
    loop_link_ready_locked(link);
    pthread_mutex_unlock(&link->network->lock);
    link->counted = link->peer->counted = true;
    bmi_method_count(link->base.instance, link->base.method, BMI_COUNT_LINKS, 2);
    bmi_method_count(link->base.instance, link->base.method, BMI_COUNT_LINKS_OPENED, 1);
    bmi_method_count(link->base.instance, link->base.method, BMI_COUNT_LINKS_ACCEPTED, 1);
    bmi_method_link_up(&link->base);
}

/* ---- one step ------------------------------------------------------------------------------- */

static unsigned direction(const struct loop_link *link)
{
    return link->dialled ? 0 : 1;
}

/* How many of `want` body bytes a hold lets pass; they count as moved. */
static size_t allowance_take(struct loop_link *link, size_t want)
{
    struct loop_hooks *hooks = &link->network->hooks;
    unsigned way = direction(link);
    pthread_mutex_lock(&link->network->lock);
    if (hooks->held[way]) {
        if (want > hooks->allowed[way])
            want = (size_t)hooks->allowed[way];
        hooks->allowed[way] -= want;
    }
    pthread_mutex_unlock(&link->network->lock);
    return want;
}

/* The body bytes of this step: no more than the turn, the body, and a hold allow. */
static size_t step_size(struct loop_link *link, const struct turn *turn, uint64_t left)
{
    return allowance_take(link, left < turn->bytes_left ? (size_t)left : turn->bytes_left);
}

static bool link_closing(struct loop_link *link)
{
    pthread_mutex_lock(&link->network->lock);
    bool closing = link->closing;
    pthread_mutex_unlock(&link->network->lock);
    return closing;
}

/* Shows the header to the receiver. The body of a frame for a closing link is discarded. */
static int header_arrive_locked(struct loop_link *to, struct loop_delivery *delivery)
{
    const struct bmi_method *method = to->base.method;
    delivery->header_gone = true;
    to->sink = (struct bmi_sink){.length = delivery->length};
    to->retracted = link_closing(to);
    if (!to->retracted) {
        int status = bmi_method_frame_arrived(&to->base, delivery->header, &to->sink);
        if (status < 0) {
            bmi_method_count(to->base.instance, method, BMI_COUNT_BAD_FRAMES, 1);
            return status;
        }
    }
    if (to->sink.length != delivery->length) {
        bmi_method_log(to->base.instance, BMI_LOG_ERROR, &to->base,
                       "%s: the header says %llu bytes, the body has %llu", method->name,
                       (unsigned long long)to->sink.length, (unsigned long long)delivery->length);
        bmi_method_count(to->base.instance, method, BMI_COUNT_BAD_FRAMES, 1);
        return -EPROTO;
    }
    to->receiving = to->sink.length > 0;
    return 0;
}

/* Copies `bytes` of the body to the sink, or past its end to nowhere. */
static void body_copy(struct bmi_sink *sink, struct bmi_segments *body, size_t bytes)
{
    while (bytes > 0) {
        struct iovec window[LOOP_WINDOW];
        size_t covered;
        size_t count = bmi_segments_window(body, window, LOOP_WINDOW, bytes, &covered);
        for (size_t i = 0; i < count; i++)
            bmi_segments_scatter(&sink->body, window[i].iov_base, window[i].iov_len);
        bmi_segments_advance(body, covered);
        bytes -= covered;
    }
}

/* Copies the part of a HELLO's incarnation that these bytes hold, altered. Returns its size. */
static size_t incarnation_copy(struct bmi_sink *sink, struct bmi_segments *body, uint64_t done,
                               size_t bytes)
{
    uint8_t altered[INCARNATION_SIZE];
    if (done >= INCARNATION_SIZE)
        return 0;
    size_t count = (size_t)(INCARNATION_SIZE - done);
    count = bmi_segments_gather(body, altered, count < bytes ? count : bytes);
    for (size_t i = 0; i < count; i++)
        altered[i] ^= 0x5a;
    bmi_segments_scatter(&sink->body, altered, count);
    return count;
}

/* Moves `bytes` of the body; the frame stays where it is meanwhile, though it may be withdrawn
 * before and after. No lock is taken while it is copied. Receive lock of `to` held. */
static void body_move_locked(struct loop_link *link, struct loop_link *to, const struct turn *turn,
                             size_t bytes)
{
    struct loop_network *network = link->network;
    struct loop_delivery *delivery = &link->delivery;
    if (!to->retracted && to->receiving && link_closing(to))
        loop_sink_drop_locked(to);
    pthread_mutex_lock(&network->lock);
    struct bmi_segments *body = delivery->body;
    delivery->copying = true;
    pthread_mutex_unlock(&network->lock);

    size_t altered = 0;
    if (turn->strangers && delivery->header[0] == FRAME_HELLO)
        altered = incarnation_copy(&to->sink, body, delivery->length - delivery->left, bytes);
    body_copy(&to->sink, body, bytes - altered);
    delivery->left -= bytes;

    pthread_mutex_lock(&network->lock);
    delivery->copying = false;
    pthread_cond_broadcast(&network->copied);
    pthread_mutex_unlock(&network->lock);
}

/* Moves the header, a piece of the body, or both. Returns why the receiver fails, or 0. */
static int frame_step(struct loop_link *link, struct turn *turn)
{
    struct loop_link *to = link->peer;
    struct loop_delivery *delivery = &link->delivery;
    size_t bytes = step_size(link, turn, delivery->left);
    size_t header = delivery->header_gone ? 0 : bmi_frame_header_size(delivery->header[0]);
    int status = 0;

    pthread_mutex_lock(&to->receive_lock);
    if (header > 0)
        status = header_arrive_locked(to, delivery);
    if (status >= 0 && bytes > 0)
        body_move_locked(link, to, turn, bytes);
    if (status >= 0 && delivery->left == 0 && to->receiving) {
        to->receiving = false;
        if (!to->retracted)
            status = bmi_method_body_arrived(&to->base, &to->sink);
    }
    pthread_mutex_unlock(&to->receive_lock);
    atomic_fetch_add_explicit(&to->base.bytes_in, header + bytes, memory_order_relaxed);
    turn->bytes_left -= bytes;
    turn->bytes_moved += header + bytes;
    return status < 0 ? status : 0;
}

void loop_delivery_end_locked(struct loop_delivery *delivery)
{
    free(delivery->kept);
    delivery->kept = NULL;
    delivery->frame = NULL;
    delivery->active = false;
}

/* Gives a frame that has arrived whole back to its sender, at the turn's end, unless it was taken
 * back before. */
static void frame_finish(struct loop_link *link, struct turn *turn)
{
    pthread_mutex_lock(&link->network->lock);
    struct bmi_frame *frame = link->delivery.frame;
    loop_delivery_end_locked(&link->delivery);
    pthread_mutex_unlock(&link->network->lock);
    if (frame != NULL) {
        frame->next = NULL;
        frame->status = 0;
        *turn->tail = frame;
        turn->tail = &frame->next;
    }
    turn->frames_moved++;
    turn->frames_left--;
}

static void frame_move(struct loop_link *link, struct turn *turn)
{
    turn->status = frame_step(link, turn);
    turn->receiver_fault = turn->status != 0;
    if (link->delivery.left == 0)
        frame_finish(link, turn);
}

static void transfer_move(struct loop_link *link, struct turn *turn)
{
    struct bmi_transfer *transfer = link->moving;
    int status = loop_transfer_doom(transfer);
    if (status == 0) {
        bmi_size_t moved =
            loop_transfer_move(link, step_size(link, turn, (uint64_t)transfer->local.left));
        if (moved >= 0)
            turn->bytes_left -= (size_t)moved;
        else
            status = (int)moved;
    }
    if (status != 0 || transfer->local.left == 0) {
        link->moving = NULL;
        turn->frames_left--;
        bmi_method_transfer_done(&link->base, transfer, status);
    }
}

/* ---- the next item -------------------------------------------------------------------------- */

void loop_delay_expired(struct bmi_timer *timer)
{
    struct loop_link *link =
        (struct loop_link *)((char *)timer - offsetof(struct loop_link, delay));
    link->delaying = false;
    link->delay_served = true;
    loop_link_ready(link);
}

/* Whether a new frame or transfer has to wait first. */
static bool delay_wait(struct loop_link *link, const struct turn *turn)
{
    if (turn->delay_ms == 0 || link->delay_served)
        return false;
    if (!link->delaying) {
        link->delaying = true;
        bmi_method_timer_set(link->base.instance, &link->delay, turn->delay_ms);
    }
    return true;
}

static bool link_waiting_locked(const struct loop_link *link)
{
    return link->flight.first != NULL || link->transfers != NULL;
}

static bool link_under_way(const struct loop_link *link)
{
    return link->delivery.active || link->moving != NULL;
}

/* Whether something is under way or waits, and may move now. */
static bool link_movable(struct loop_link *link)
{
    const struct loop_hooks *hooks = &link->network->hooks;
    unsigned way = direction(link);
    pthread_mutex_lock(&link->network->lock);
    bool movable = link_under_way(link) || link_waiting_locked(link);
    if (hooks->held[way] && hooks->allowed[way] == 0)
        movable = false;
    pthread_mutex_unlock(&link->network->lock);
    return movable;
}

/* Takes the first frame in flight, if there is one; one that shall fail ends the turn. */
static void frame_take_locked(struct loop_link *link, struct turn *turn)
{
    struct loop_delivery *delivery = &link->delivery;
    struct bmi_frame *frame = link->flight.first;
    if (frame == NULL)
        return;
    if (frame->status != 0) {
        turn->status = frame->status;
        return;
    }
    loop_queue_pop(&link->flight);
    frame->header_sent = bmi_frame_header_size(frame->header[0]);
    delivery->active = true;
    delivery->header_gone = false;
    memcpy(delivery->header, frame->header, frame->header_sent);
    delivery->length = delivery->left = (uint64_t)frame->body.left;
    delivery->frame = frame;
    delivery->body = &frame->body;
}

/* Makes sure that something is under way: the next transfer, or else the next frame. false: there
 * is nothing that may move now. */
static bool item_take(struct loop_link *link, struct turn *turn)
{
    if (!link_movable(link))
        return false;
    if (link_under_way(link))
        return true;
    if (delay_wait(link, turn))
        return false;
    link->delay_served = false;
    pthread_mutex_lock(&link->network->lock);
    link->moving = link->transfers;
    if (link->moving == NULL)
        frame_take_locked(link, turn);
    else if ((link->transfers = link->moving->next) == NULL)
        link->transfers_tail = &link->transfers;
    pthread_mutex_unlock(&link->network->lock);
    return link_under_way(link);
}

/* Returns whether something is left that may move at once. */
static bool items_move(struct loop_link *link, struct turn *turn)
{
    while (turn->status == 0) {
        if (turn->frames_left == 0 || turn->bytes_left == 0)
            return true;
        if (!item_take(link, turn))
            return false;
        if (link->moving != NULL)
            transfer_move(link, turn);
        else
            frame_move(link, turn);
    }
    return false;
}

static void turn_count(const struct loop_link *link, const struct turn *turn)
{
    const struct bmi_method *method = link->base.method;
    if (turn->bytes_moved == 0)
        return;
    bmi_method_count(link->base.instance, method, BMI_COUNT_FRAMES_SENT, turn->frames_moved);
    bmi_method_count(link->base.instance, method, BMI_COUNT_FRAMES_RECEIVED, turn->frames_moved);
    bmi_method_count(link->base.instance, method, BMI_COUNT_BYTES_SENT, (int64_t)turn->bytes_moved);
    bmi_method_count(link->base.instance, method, BMI_COUNT_BYTES_RECEIVED,
                     (int64_t)turn->bytes_moved);
    bmi_method_count(link->base.instance, method, BMI_COUNT_WRITES, 1);
    bmi_method_count(link->base.instance, method, BMI_COUNT_READS, 1);
}

static bool link_drained_locked(const struct loop_link *link)
{
    return !link_under_way(link) && !link_waiting_locked(link);
}

/* Whether a lingering link may end: it has nothing left, nor has a peer that lingers as well. */
static bool linger_over(struct loop_link *link)
{
    const struct loop_link *peer = link->peer;
    pthread_mutex_lock(&link->network->lock);
    bool over =
        link_drained_locked(link) && (!peer->closing || !peer->linger || link_drained_locked(peer));
    pthread_mutex_unlock(&link->network->lock);
    return over;
}

/* The failed receiver ends with the reason; the other one sees it disconnect. */
static void pair_fail(struct loop_link *link, const struct turn *turn)
{
    if (turn->receiver_fault)
        loop_pair_end(link->peer, turn->status, -ECONNRESET);
    else
        loop_pair_end(link, turn->status, -ECONNRESET);
}

void loop_link_pump(struct loop_link *link)
{
    struct turn turn;
    turn_begin(link, &turn);
    if (turn.phase == LOOP_DOWN)
        return;
    if (turn.doom != 0) {
        loop_pair_end(link, turn.doom, turn.doom);
        return;
    }
    if (turn.closing && !turn.linger) {
        bool torn = link->delivery.active;
        loop_pair_end(link, 0, torn ? -ECONNRESET : 0);
        return;
    }
    if (turn.phase == LOOP_DIALLED) {
        link_open(link);
        return;
    }
    bool more = items_move(link, &turn);
    turn_count(link, &turn);
    if (turn.done != NULL)
        bmi_method_frames_sent(&link->base, turn.done);
    if (turn.status != 0)
        pair_fail(link, &turn);
    else if (more)
        loop_link_ready(link);
    else if (turn.closing && linger_over(link))
        loop_pair_end(link, 0, 0);
}
