/* SPDX-License-Identifier: BSD-3-Clause
 *
 * link.c - the operations on links of the loop method, and a link's end.
 *
 * Operations only move frames between lists under network->lock and mark the link ready; the poller
 * does the rest (deliver.c). A link is in network->links from its creation to its end. The ready
 * list holds references, so a link that has ended meanwhile still exists when its turn comes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

/* ---- queues --------------------------------------------------------------------------------- */

static void queue_clear(struct loop_queue *queue)
{
    queue->first = NULL;
    queue->tail = &queue->first;
}

/* Appends all of `from` to `to`. */
static void queue_splice(struct loop_queue *to, struct loop_queue *from)
{
    if (from->first == NULL)
        return;
    *to->tail = from->first;
    to->tail = from->tail;
    queue_clear(from);
}

struct bmi_frame *loop_queue_pop(struct loop_queue *queue)
{
    struct bmi_frame *frame = queue->first;
    if (frame == NULL)
        return NULL;
    queue->first = frame->next;
    if (queue->first == NULL)
        queue_clear(queue);
    return frame;
}

/* Puts `replacement`, or nothing, into the frame's place. false: it is not in this queue. */
static bool queue_replace(struct loop_queue *queue, const struct bmi_frame *frame,
                          struct bmi_frame *replacement)
{
    struct bmi_frame **place = &queue->first;
    while (*place != NULL && *place != frame)
        place = &(*place)->next;
    if (*place == NULL)
        return false;
    *place = frame->next;
    if (replacement != NULL) {
        replacement->next = frame->next;
        replacement->status = frame->status;
        *place = replacement;
        place = &replacement->next;
    }
    if (frame->next == NULL)
        queue->tail = place;
    return true;
}

/* ---- making --------------------------------------------------------------------------------- */

static void link_destroy(struct bmi_link *base)
{
    struct loop_link *link = loop_link_of(base);
    loop_registrations_free(link);
    pthread_mutex_destroy(&link->receive_lock);
    free(link);
}

struct loop_link *loop_link_new(struct loop_network *network, bool dialled)
{
    struct loop_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return NULL;
    link->base.method = network->table;
    link->base.instance = network->instance;
    link->base.state = network;
    link->base.destroy = link_destroy;
    atomic_init(&link->base.references, 1);
    link->network = network;
    link->dialled = dialled;
    link->phase = dialled ? LOOP_DIALLED : LOOP_UP;
    link->delay.expired = loop_delay_expired;
    pthread_mutex_init(&link->receive_lock, NULL);
    queue_clear(&link->queued);
    queue_clear(&link->flight);
    link->transfers_tail = &link->transfers;

    pthread_mutex_lock(&network->lock);
    link->next = network->links;
    link->link_to_me = &network->links;
    if (link->next != NULL)
        link->next->link_to_me = &link->next;
    network->links = link;
    pthread_mutex_unlock(&network->lock);
    return link;
}

/* Counts a test hook down. Returns the status that the nth use fails with, else 0. */
int loop_failure_strike_locked(struct loop_network *network, enum bmi__loop_failure place)
{
    struct loop_failure *failure = &network->hooks.failures[place];
    return failure->countdown > 0 && --failure->countdown == 0 ? failure->status : 0;
}

int loop_connect(void *state, const char *canonical, void *owner, struct bmi_link **made)
{
    struct loop_network *network = state;
    pthread_mutex_lock(&network->lock);
    int now = loop_failure_strike_locked(network, BMI__LOOP_CONNECT_NOW);
    int later = loop_failure_strike_locked(network, BMI__LOOP_CONNECT);
    pthread_mutex_unlock(&network->lock);
    if (now != 0)
        return now;
    if (strlen(canonical) >= LOOP_ADDRESS_MAX)
        return -ENAMETOOLONG;
    struct loop_link *link = loop_link_new(network, true);
    if (link == NULL)
        return -ENOMEM;
    strcpy(link->address, canonical);
    link->base.owner = owner;
    *made = &link->base;

    pthread_mutex_lock(&network->lock);
    link->doom = later;
    loop_link_ready_locked(link);
    pthread_mutex_unlock(&network->lock);
    return 0;
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Makes the poller look at the link, once for all events until then. */
void loop_link_ready_locked(struct loop_link *link)
{
    struct loop_network *network = link->network;
    if (link->is_ready || link->phase == LOOP_DOWN || !network->running)
        return;
    bmi_link_ref(&link->base);
    link->is_ready = true;
    link->ready_next = NULL;
    *network->ready_tail = link;
    network->ready_tail = &link->ready_next;
    bmi_method_defer(link->base.instance, &network->work->deferred);
}

void loop_link_ready(struct loop_link *link)
{
    pthread_mutex_lock(&link->network->lock);
    loop_link_ready_locked(link);
    pthread_mutex_unlock(&link->network->lock);
}

void loop_send(struct bmi_link *base, struct bmi_frame *frames)
{
    struct loop_link *link = loop_link_of(base);
    pthread_mutex_lock(&link->network->lock);
    while (frames != NULL) {
        struct bmi_frame *frame = frames;
        frames = frame->next;
        frame->next = NULL;
        frame->status = loop_failure_strike_locked(link->network, BMI__LOOP_SEND);
        *link->queued.tail = frame;
        link->queued.tail = &frame->next;
    }
    pthread_mutex_unlock(&link->network->lock);
}

void loop_link_flush_locked(struct loop_link *link)
{
    if (link->queued.first == NULL || link->phase == LOOP_DOWN)
        return;
    queue_splice(&link->flight, &link->queued);
    loop_link_ready_locked(link);
}

void loop_flush(struct bmi_link *base)
{
    struct loop_link *link = loop_link_of(base);
    pthread_mutex_lock(&link->network->lock);
    loop_link_flush_locked(link);
    pthread_mutex_unlock(&link->network->lock);
}

/* Detaches a frame that is being delivered: the rest of its body goes on from a copy. false: it
 * is another frame, it was delivered already, or there is no memory. */
static bool delivery_detach_locked(struct loop_link *link, struct bmi_frame *frame)
{
    struct loop_delivery *delivery = &link->delivery;
    while (delivery->frame == frame && delivery->copying)
        pthread_cond_wait(&link->network->copied, &link->network->lock);
    if (delivery->frame != frame || frame->body.left == 0)
        return false;
    delivery->kept_size = frame->body.left;
    delivery->kept = malloc((size_t)delivery->kept_size);
    if (delivery->kept == NULL)
        return false;
    bmi_segments_gather(&frame->body, delivery->kept, (size_t)delivery->kept_size);
    delivery->kept_body = (struct bmi_segments){.buffers = &delivery->kept,
                                                .sizes = &delivery->kept_size,
                                                .count = 1,
                                                .left = delivery->kept_size};
    delivery->body = &delivery->kept_body;
    delivery->frame = NULL;
    return true;
}

/* A frame in flight is still untouched; the poller dequeues it before its header moves. */
bool loop_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct loop_link *link = loop_link_of(base);
    pthread_mutex_lock(&link->network->lock);
    bool found = queue_replace(&link->queued, frame, replacement) ||
                 queue_replace(&link->flight, frame, replacement) ||
                 delivery_detach_locked(link, frame);
    if (found) {
        frame->next = NULL;
        frame->status = 0;
    }
    pthread_mutex_unlock(&link->network->lock);
    return found;
}

/* ---- receiving ------------------------------------------------------------------------------ */

void loop_sink_drop_locked(struct loop_link *link)
{
    link->sink.owner = NULL;
    link->sink.body.left = 0;
    link->retracted = true;
}

bool loop_retract(struct bmi_link *base, void *owner)
{
    struct loop_link *link = loop_link_of(base);
    pthread_mutex_lock(&link->receive_lock);
    bool found = link->receiving && !link->retracted && link->sink.owner == owner;
    if (found)
        loop_sink_drop_locked(link);
    pthread_mutex_unlock(&link->receive_lock);
    return found;
}

/* ---- the end -------------------------------------------------------------------------------- */

void loop_close(struct bmi_link *base, bool linger)
{
    struct loop_link *link = loop_link_of(base);
    pthread_mutex_lock(&link->network->lock);
    if (linger)
        loop_link_flush_locked(link);
    link->linger = linger && (!link->closing || link->linger);
    link->closing = true;
    loop_link_ready_locked(link);
    pthread_mutex_unlock(&link->network->lock);
}

static struct bmi_frame *frames_take_locked(struct loop_link *link)
{
    struct loop_queue all;
    queue_clear(&all);
    if (link->delivery.active && link->delivery.frame != NULL) {
        all.first = link->delivery.frame;
        all.first->next = NULL;
        all.tail = &all.first->next;
    }
    loop_delivery_end_locked(&link->delivery);
    queue_splice(&all, &link->flight);
    queue_splice(&all, &link->queued);
    return all.first;
}

static struct bmi_transfer *transfers_take_locked(struct loop_link *link)
{
    struct bmi_transfer *first = link->transfers;
    if (link->moving != NULL) {
        link->moving->next = first;
        first = link->moving;
    }
    link->moving = link->transfers = NULL;
    link->transfers_tail = &link->transfers;
    return first;
}

/* Gives back with `status` everything that the core has lent. */
static void link_return(struct loop_link *link, int status)
{
    pthread_mutex_lock(&link->network->lock);
    struct bmi_frame *frames = frames_take_locked(link);
    struct bmi_transfer *transfers = transfers_take_locked(link);
    pthread_mutex_unlock(&link->network->lock);

    for (struct bmi_frame *frame = frames; frame != NULL; frame = frame->next)
        frame->status = status;
    if (frames != NULL)
        bmi_method_frames_sent(&link->base, frames);
    while (transfers != NULL) {
        struct bmi_transfer *transfer = transfers;
        transfers = transfer->next;
        bmi_method_transfer_done(&link->base, transfer, status);
    }
}

/* From here on nothing moves on the link. Returns the status for the frames and transfers that
 * go back. */
static int link_stop(struct loop_link *link, int status)
{
    struct loop_network *network = link->network;
    bmi_method_timer_clear(link->base.instance, &link->delay);
    if (link->counted)
        bmi_method_count(link->base.instance, network->table, BMI_COUNT_LINKS, -1);
    pthread_mutex_lock(&link->receive_lock);
    link->receiving = false;
    pthread_mutex_unlock(&link->receive_lock);

    pthread_mutex_lock(&network->lock);
    link->phase = LOOP_DOWN;
    *link->link_to_me = link->next;
    if (link->next != NULL)
        link->next->link_to_me = link->link_to_me;
    bool closing = link->closing;
    pthread_mutex_unlock(&network->lock);
    return closing ? -ECANCELED : status != 0 ? status : -ECONNRESET;
}

/* Reports the end to the core and drops the method's reference. Frames that another thread sent
 * while link_down was on its way to the core go back afterwards; the core ensures that there are
 * no later ones. */
static void link_end(struct loop_link *link, int status)
{
    int returned = link_stop(link, status);
    link_return(link, returned);
    if (status != 0)
        bmi_method_count(link->base.instance, link->base.method, BMI_COUNT_LINKS_FAILED, 1);
    bmi_method_link_down(&link->base, status);
    link_return(link, returned);
    bmi_link_unref(&link->base);
}

void loop_link_forget(struct loop_link *link)
{
    link_return(link, link_stop(link, -ECONNRESET));
    bmi_link_unref(&link->base);
}

void loop_pair_end(struct loop_link *link, int status, int peer_status)
{
    struct loop_link *peer = link->peer;
    link->peer = NULL;
    if (peer != NULL)
        peer->peer = NULL;
    link_end(link, status);
    if (peer != NULL)
        link_end(peer, peer_status);
}
