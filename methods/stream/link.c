/* SPDX-License-Identifier: BSD-3-Clause
 *
 * link.c - a link's life: created, opened, closed, taken down, freed.
 *
 * Any thread may request something (a close, the end after a failed write, another write): it notes
 * the request under send_lock and kicks the link. The poller then runs stream_link_step, the only
 * function that decides which work is due. The poller takes a link down once, never while a thread
 * writes: it closes the socket, gives the frames back, reports the end to the core, and drops the
 * method's reference. A pending kick holds a reference of its own, so it may run after the end, and
 * after the method has stopped; it then finds a link that is down.
 */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stream.h"

enum {
    LINGER_WAIT_MAX_MS = 64, /* between two looks */
    LINGER_LAST_MS = 128     /* while the peer's end is awaited the waits grow to this: some 6 s */
};

static void link_step(struct stream_link *link);

static void link_destroy(struct bmi_link *base)
{
    struct stream_link *link = stream_link_of(base);
    free(link);
}

static void link_deferred(struct bmi_deferred *deferred)
{
    struct stream_link *link = stream_container(deferred, struct stream_link, deferred);
    atomic_store(&link->kicked, false);
    link_step(link);
    if (link->unread)
        stream_receive_more(link);
    bmi_link_unref(&link->base);
}

static void link_expired(struct bmi_timer *timer)
{
    struct stream_link *link = stream_container(timer, struct stream_link, timer);
    if (link->phase == STREAM_DIALLING)
        stream_state_of(link)->socket->dial_expired(link);
    else if (link->phase == STREAM_SECURING)
        stream_secure_expired(link);
    else
        link_step(link);
}

static void list_insert(struct stream_state *state, struct stream_link *link)
{
    stream_lock(&state->list_lock);
    link->list_next = state->links;
    link->list_to_me = &state->links;
    if (state->links)
        state->links->list_to_me = &link->list_next;
    state->links = link;
    stream_unlock(&state->list_lock);
}

static void list_remove(struct stream_state *state, struct stream_link *link)
{
    stream_lock(&state->list_lock);
    *link->list_to_me = link->list_next;
    if (link->list_next)
        link->list_next->list_to_me = link->list_to_me;
    stream_unlock(&state->list_lock);
}

struct stream_link *stream_link_new(struct stream_state *state, int fd)
{
    struct stream_link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->base.method = state->socket->method;
    link->base.instance = state->instance;
    link->base.state = state;
    link->base.destroy = link_destroy;
    atomic_init(&link->base.references, 1);
    link->watch.fd = fd;
    link->watch.ready = stream_receive_ready;
    link->deferred.run = link_deferred;
    link->timer.expired = link_expired;
    list_insert(state, link);
    return link;
}

void stream_link_forget(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    link->phase = STREAM_DOWN;
    stream_unlock(&link->send_lock);
    list_remove(stream_state_of(link), link);
    bmi_method_link_host(&link->base, NULL, 0);
    close(link->watch.fd);
    bmi_link_unref(&link->base);
}

void stream_link_kick(struct stream_link *link)
{
    if (atomic_exchange(&link->kicked, true))
        return;
    bmi_link_ref(&link->base);
    bmi_method_defer(link->base.instance, &link->deferred);
}

void stream_link_open(struct stream_link *link)
{
    const struct stream_socket *socket = stream_state_of(link)->socket;
    stream_lock(&link->send_lock);
    link->phase = STREAM_UP;
    stream_unlock(&link->send_lock);
    stream_count(link, BMI_COUNT_LINKS, 1);
    if (socket->settle)
        socket->settle(link->base.instance, link->watch.fd);

    int error = stream_state_of(link)->engine->watch(link);
    if (error) {
        stream_link_end(link, error);
        return;
    }
    link->unread = link->layer != NULL; /* it may have read bytes behind the handshake */
    if (link->unread)
        stream_link_kick(link);
    stream_flush(&link->base);
    link_step(link);
}

void stream_close(struct bmi_link *base, bool linger)
{
    struct stream_link *link = stream_link_of(base);
    enum stream_closing wanted = linger ? STREAM_CLOSE_LINGERING : STREAM_CLOSE_NOW;

    stream_lock(&link->send_lock);
    bool news = link->phase != STREAM_DOWN && link->closing < wanted;
    if (news) {
        link->closing = wanted;
        atomic_store_explicit(&link->closed, true, memory_order_release);
    }
    stream_unlock(&link->send_lock);
    if (news)
        stream_link_kick(link);
}

/* The layer queues the end of our direction. Returns whether that was done before; else the link is
 * kicked as soon as it is written. */
static bool layer_ended(struct stream_link *link)
{
    if (!link->layer || link->ended)
        return true;
    link->ended = true;
    stream_bytes_of(link)->end(link);
    stream_lock(&link->send_lock);
    link->unsent = true;
    stream_unlock(&link->send_lock);
    stream_flush(&link->base);
    return false;
}

/* All is written. Our direction is ended; the socket is closed when the peer's kernel has
 * everything, since closing one that holds unread data would reset the connection under it. Where
 * the socket does not tell when it has written all, the peer closes first: its end of the stream
 * ends the link. */
static void link_linger(struct stream_link *link)
{
    const struct stream_socket *socket = stream_state_of(link)->socket;
    const struct stream_bytes *bytes = stream_bytes_of(link);

    if (!layer_ended(link))
        return;
    bool peer_first = bytes->peer_first && bytes->peer_first(link);
    if (!link->shut) {
        stream_lock(&link->send_lock);
        link->shut = true;
        stream_unlock(&link->send_lock);
        if (!peer_first)
            shutdown(link->watch.fd, SHUT_WR);
        link->linger_wait_ms = 1;
    }
    if (peer_first ? link->linger_wait_ms >= LINGER_LAST_MS
                   : !socket->delivered || socket->delivered(link->watch.fd)) {
        stream_link_end(link, 0);
        return;
    }
    bmi_method_timer_set(link->base.instance, &link->timer, link->linger_wait_ms);
    if (link->linger_wait_ms < LINGER_WAIT_MAX_MS)
        link->linger_wait_ms = (uint8_t)(link->linger_wait_ms * 2);
    else if (peer_first)
        link->linger_wait_ms++;
}

static void dial_start(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    link->phase = STREAM_DIALLING;
    stream_unlock(&link->send_lock);
    stream_state_of(link)->socket->dial(link);
}

static void link_step(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    enum stream_phase phase = link->phase;
    enum stream_closing closing = link->closing;
    int failure = link->failure, end_status = link->end_status;
    bool ending = link->ending, go_on = link->go_on,
         idle = !link->queue.first && !link->unsent && !link->writing &&
                !atomic_load_explicit(&link->sending, memory_order_relaxed);
    link->go_on = false;
    stream_unlock(&link->send_lock);

    if (phase == STREAM_DOWN)
        return; /* the method may have stopped */
    const struct stream_engine *engine = stream_state_of(link)->engine;
    if (ending) {
        stream_link_end(link, end_status);
    } else if (closing == STREAM_CLOSE_NOW) {
        stream_link_end(link, 0);
    } else if (failure && engine->settle && !engine->settle(link)) {
        return; /* until all that the engine has received was taken */
    } else if (failure) {
        /* reads the data that the peer sent before it closed, perhaps why it did */
        int rest = stream_receive_rest(link);
        stream_link_end(link, rest == -EACCES ? rest : failure);
    } else if (closing == STREAM_CLOSE_LINGERING && idle && phase != STREAM_UP) {
        stream_link_end(link, 0);
    } else if (closing == STREAM_CLOSE_LINGERING && idle) {
        link_linger(link);
    } else if (phase == STREAM_NEW) {
        dial_start(link);
    } else if (phase == STREAM_SECURING) {
        stream_secure_step(link);
    } else if (go_on) {
        stream_flush(&link->base);
    }
}

/* Whether the status of the receive side is the cause of a write's failure: the peer's refusal, or
 * the socket's error, which the kernel reports once. */
static bool is_cause(int status, int failure)
{
    return status == -EACCES || (status != 0 && failure == -EPIPE);
}

/* Shuts the link down: from here on no thread queues, writes or reads. Returns false if a thread
 * is writing; it kicks the link later. Sets *status to the link's final status. */
static bool link_shut_down(struct stream_link *link, int *status, bool *was_up)
{
    bool now = false;
    stream_lock(&link->send_lock);
    if (link->phase != STREAM_DOWN && link->writing) {
        link->ending = true;
        link->end_status = *status;
    } else if (link->phase != STREAM_DOWN) {
        *was_up = link->phase == STREAM_UP;
        if (link->closing == STREAM_CLOSE_NOW)
            *status = 0;
        else if (link->failure && !is_cause(*status, link->failure))
            *status = link->failure;
        link->phase = STREAM_DOWN;
        now = true;
    }
    stream_unlock(&link->send_lock);
    return now;
}

void stream_link_dial_free(struct stream_link *link)
{
    void *dial = link->dial;
    stream_lock(&link->send_lock);
    link->dial = NULL;
    stream_unlock(&link->send_lock);
    if (dial)
        stream_state_of(link)->socket->dial_free(dial);
}

static void link_release_socket(struct stream_link *link)
{
    struct stream_state *state = stream_state_of(link);

    bmi_method_timer_clear(link->base.instance, &link->timer);
    stream_link_dial_free(link);
    if (link->has_handshake)
        stream_secure_free(link);
    if (link->layer)
        stream_bytes_of(link)->free(link);
    if (link->watch.fd >= 0) {
        stream_room_forget(link);
        close(link->watch.fd);
        link->watch.fd = -1;
        stream_acceptor_resume(&state->acceptor);
    }

    stream_lock(&link->receive_lock);
    link->body_left = 0;
    link->sink.owner = NULL;
    link->sink.body.left = 0;
    stream_unlock(&link->receive_lock);
}

static void link_give_back_frames(struct stream_link *link, int status)
{
    stream_lock(&link->send_lock);
    struct bmi_frame *frames = bmi_frame_queue_take(&link->queue);
    if (link->closing == STREAM_CLOSE_NOW)
        status = -ECANCELED;
    else if (status == 0)
        status = -ECONNRESET; /* the peer closed in good order, but these frames did not reach it */
    stream_unlock(&link->send_lock);

    for (struct bmi_frame *at = frames; at; at = at->next)
        at->status = status;
    if (frames)
        bmi_method_frames_sent(&link->base, frames);
}

void stream_link_end(struct stream_link *link, int status)
{
    bool was_up = false;
    bool now = link_shut_down(link, &status, &was_up);
    /* After invalid bytes the following ones are invalid, too, and the engine would report the
     * stream's end again and again. */
    stream_state_of(link)->engine->ignore(link);
    if (!now)
        return;

    link_release_socket(link);
    link_give_back_frames(link, status);
    if (was_up)
        stream_count(link, BMI_COUNT_LINKS, -1);
    if (status)
        stream_count(link, BMI_COUNT_LINKS_FAILED, 1);
    if (link->known)
        bmi_method_link_down(&link->base, status);
    else
        bmi_method_link_host(&link->base, NULL, 0);
    /* Frames of a thread that sent before the core could notify it of the end. */
    link_give_back_frames(link, status);
    list_remove(stream_state_of(link), link);
    bmi_link_unref(&link->base);
}
