/* SPDX-License-Identifier: BSD-3-Clause
 *
 * link.c - a link's life: created, opened, closed, taken down, freed.
 *
 * Any thread may request something (a close, the end after a failed write, another write): it notes
 * the request under send_lock and kicks the link. The poller then runs tcp_link_step, the only
 * function that decides which work is due. The poller takes a link down once, never while a thread
 * writes: it closes the socket, gives the frames back, reports the end to the core, and drops the
 * method's reference. A pending kick holds a reference of its own, so it may run after the end, and
 * after the method has stopped; it then finds a link that is down.
 */
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp.h"

enum { LINGER_WAIT_MAX_MS = 64 };

static void link_destroy(struct bmi_link *base)
{
    struct tcp_link *link = tcp_link_of(base);
    free(link);
}

static void link_deferred(struct bmi_deferred *deferred)
{
    struct tcp_link *link = tcp_container(deferred, struct tcp_link, deferred);
    atomic_store(&link->kicked, false);
    tcp_link_step(link);
    bmi_link_unref(&link->base);
}

static void link_expired(struct bmi_timer *timer)
{
    struct tcp_link *link = tcp_container(timer, struct tcp_link, timer);
    if (link->phase == TCP_DIALLING)
        tcp_dial_expired(link);
    else
        tcp_link_step(link);
}

static void list_insert(struct tcp_state *state, struct tcp_link *link)
{
    tcp_lock(&state->list_lock);
    link->list_next = state->links;
    link->list_to_me = &state->links;
    if (state->links)
        state->links->list_to_me = &link->list_next;
    state->links = link;
    tcp_unlock(&state->list_lock);
}

static void list_remove(struct tcp_state *state, struct tcp_link *link)
{
    tcp_lock(&state->list_lock);
    *link->list_to_me = link->list_next;
    if (link->list_next)
        link->list_next->list_to_me = link->list_to_me;
    tcp_unlock(&state->list_lock);
}

struct tcp_link *tcp_link_new(struct tcp_state *state, int fd)
{
    struct tcp_link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->base.method = &bmi__method_tcp;
    link->base.state = state;
    link->base.destroy = link_destroy;
    atomic_init(&link->base.references, 1);
    link->watch.fd = fd;
    link->watch.ready = tcp_receive_ready;
    link->deferred.run = link_deferred;
    link->timer.expired = link_expired;
    list_insert(state, link);
    return link;
}

void tcp_link_forget(struct tcp_link *link)
{
    tcp_lock(&link->send_lock);
    link->phase = TCP_DOWN;
    tcp_unlock(&link->send_lock);
    list_remove(tcp_state_of(link), link);
    close(link->watch.fd);
    bmi_link_unref(&link->base);
}

void tcp_link_kick(struct tcp_link *link)
{
    if (atomic_exchange(&link->kicked, true))
        return;
    bmi_link_ref(&link->base);
    bmi_method_defer(&link->deferred);
}

void tcp_link_open(struct tcp_link *link)
{
    tcp_lock(&link->send_lock);
    link->phase = TCP_UP;
    tcp_unlock(&link->send_lock);
    tcp_count(BMI_COUNT_LINKS, 1);
    ip_socket_settle(link->watch.fd);

    int error = bmi_method_watch_add(&link->watch, TCP_WATCHED);
    if (error) {
        tcp_link_end(link, error);
        return;
    }
    link->watched = true;
    tcp_flush(&link->base);
    tcp_link_step(link);
}

void tcp_close(struct bmi_link *base, bool linger)
{
    struct tcp_link *link = tcp_link_of(base);
    enum tcp_closing wanted = linger ? TCP_CLOSE_LINGERING : TCP_CLOSE_NOW;

    tcp_lock(&link->send_lock);
    bool news = link->phase != TCP_DOWN && link->closing < wanted;
    if (news) {
        link->closing = wanted;
        atomic_store_explicit(&link->closed, true, memory_order_release);
    }
    tcp_unlock(&link->send_lock);
    if (news)
        tcp_link_kick(link);
}

/* All is written. Our direction is ended; the socket is closed when the peer's kernel has
 * everything, since closing one that holds unread data would reset the connection under it. */
static void link_linger(struct tcp_link *link)
{
    int unacknowledged = 0;

    if (!link->shut) {
        tcp_lock(&link->send_lock);
        link->shut = true;
        tcp_unlock(&link->send_lock);
        shutdown(link->watch.fd, SHUT_WR);
        link->linger_wait_ms = 1;
    }
    if (ioctl(link->watch.fd, SIOCOUTQ, &unacknowledged) < 0 || unacknowledged == 0) {
        tcp_link_end(link, 0);
        return;
    }
    bmi_method_timer_set(&link->timer, link->linger_wait_ms);
    if (link->linger_wait_ms < LINGER_WAIT_MAX_MS)
        link->linger_wait_ms = (uint8_t)(link->linger_wait_ms * 2);
}

void tcp_link_step(struct tcp_link *link)
{
    tcp_lock(&link->send_lock);
    enum tcp_phase phase = link->phase;
    enum tcp_closing closing = link->closing;
    int failure = link->failure, end_status = link->end_status;
    bool ending = link->ending, go_on = link->go_on, idle = !link->queue && !link->writing;
    link->go_on = false;
    tcp_unlock(&link->send_lock);

    if (phase == TCP_DOWN)
        return;
    if (ending) {
        tcp_link_end(link, end_status);
    } else if (closing == TCP_CLOSE_NOW) {
        tcp_link_end(link, 0);
    } else if (failure) {
        tcp_receive_rest(link); /* reads the data that the peer sent before it closed */
        tcp_link_end(link, failure);
    } else if (closing == TCP_CLOSE_LINGERING && idle && phase != TCP_UP) {
        tcp_link_end(link, 0);
    } else if (closing == TCP_CLOSE_LINGERING && idle) {
        link_linger(link);
    } else if (phase == TCP_NEW) {
        tcp_dial_start(link);
    } else if (go_on) {
        tcp_flush(&link->base);
    }
}

/* Shuts the link down: from here on no thread queues, writes or reads. Returns false if a thread
 * is writing; it kicks the link later. Sets *status to the link's final status. */
static bool link_shut_down(struct tcp_link *link, int *status, bool *was_up)
{
    bool now = false;
    tcp_lock(&link->send_lock);
    if (link->phase != TCP_DOWN && link->writing) {
        link->ending = true;
        link->end_status = *status;
    } else if (link->phase != TCP_DOWN) {
        *was_up = link->phase == TCP_UP;
        if (link->closing == TCP_CLOSE_NOW)
            *status = 0;
        else if (link->failure)
            *status = link->failure;
        link->phase = TCP_DOWN;
        now = true;
    }
    tcp_unlock(&link->send_lock);
    return now;
}

/* Stops reading: after invalid bytes the following ones are invalid, too, and the engine would
 * report the stream's end again and again. */
static void link_ignore(struct tcp_link *link)
{
    struct tcp_state *state = tcp_state_of(link);

    if (state->hot == link)
        state->hot = NULL;
    if (link->watched)
        bmi_method_watch_remove(&link->watch);
    link->watched = false;
}

static void link_release_socket(struct tcp_link *link)
{
    struct tcp_state *state = tcp_state_of(link);

    bmi_method_timer_clear(&link->timer);
    tcp_dial_free(link);
    if (link->watch.fd >= 0) {
        tcp_engine_forget(link);
        close(link->watch.fd);
        link->watch.fd = -1;
        tcp_listen_resume(state);
    }

    tcp_lock(&link->receive_lock);
    link->body_left = 0;
    link->sink.owner = NULL;
    link->sink.body.left = 0;
    tcp_unlock(&link->receive_lock);
}

static void link_give_back_frames(struct tcp_link *link, int status)
{
    tcp_lock(&link->send_lock);
    struct bmi_frame *frames = tcp_send_strip_locked(link, link->queue);
    link->queue = NULL;
    if (link->closing == TCP_CLOSE_NOW)
        status = -ECANCELED;
    else if (status == 0)
        status = -ECONNRESET; /* the peer closed in good order, but these frames did not reach it */
    tcp_unlock(&link->send_lock);

    for (struct bmi_frame *at = frames; at; at = at->next)
        at->status = status;
    if (frames)
        bmi_method_frames_sent(&link->base, frames);
}

void tcp_link_end(struct tcp_link *link, int status)
{
    bool was_up = false;
    bool now = link_shut_down(link, &status, &was_up);
    link_ignore(link);
    if (!now)
        return;

    link_release_socket(link);
    link_give_back_frames(link, status);
    if (was_up)
        tcp_count(BMI_COUNT_LINKS, -1);
    if (status)
        tcp_count(BMI_COUNT_LINKS_FAILED, 1);
    bmi_method_link_down(&link->base, status);
    /* Frames of a thread that sent before the core could notify it of the end. */
    link_give_back_frames(link, status);
    list_remove(tcp_state_of(link), link);
    bmi_link_unref(&link->base);
}
