/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream.c - connections, made and accepted; start and stop.
 */
#include "stream.h"

#include <stdlib.h>
#include <unistd.h>

int stream_connect(struct stream_state *state, void *dial, void *owner, struct bmi_link **out)
{
    struct stream_link *link = stream_link_new(state, -1);
    if (!link)
        return -ENOMEM;
    link->base.owner = owner;
    link->known = true;
    link->dial = dial;
    *out = &link->base;
    stream_link_kick(link);
    return 0;
}

void stream_dial_socket_locked(struct stream_link *link, int fd)
{
    stream_assert_locked(&link->send_lock);
    link->watch.fd = fd;
    link->room_watched = true;
}

int stream_dial_watch(struct stream_link *link)
{
    int error = stream_room_watch(link); /* reports at once if the connection is
                                                 * established already */
    if (error)
        stream_dial_close(link);
    return error;
}

void stream_dial_close(struct stream_link *link)
{
    if (link->watch.fd < 0)
        return;
    stream_room_forget(link);
    stream_lock(&link->send_lock);
    close(link->watch.fd);
    link->watch.fd = -1;
    link->room_watched = false;
    stream_unlock(&link->send_lock);
}

void stream_dial_done(struct stream_link *link)
{
    bmi_method_timer_clear(link->base.instance, &link->timer);
    if (stream_bytes_of(link)->start)
        stream_secure_start(link);
    else
        stream_dialled(link);
}

void stream_dialled(struct stream_link *link)
{
    stream_link_dial_free(link);
    stream_count(link, BMI_COUNT_LINKS_OPENED, 1);
    bmi_method_link_up(&link->base);
    stream_link_open(link);
}

/* There is no memory for a connection. */
static void refuse(const struct stream_state *state, int fd)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    bmi_method_log(state->instance, BMI_LOG_WARN, NULL, "%s: no memory for a connection",
                   state->socket->method->name);
    bmi_method_refusal(bytes);
    (void)!send(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void accepted(struct stream_acceptor *acceptor, int fd, const struct sockaddr_storage *from)
{
    struct stream_state *state = stream_container(acceptor, struct stream_state, acceptor);
    struct stream_link *link = stream_link_new(state, fd);
    if (!link) {
        refuse(state, fd);
        close(fd);
        return;
    }
    if (state->socket->accept(link, from)) {
        stream_link_forget(link);
        return;
    }
    link->accepted = true;
    if (state->socket->bytes->start)
        stream_secure_start(link);
    else if (bmi_method_link_accepted(&link->base) < 0) {
        refuse(state, fd);
        stream_link_forget(link);
    } else {
        stream_accepted(link);
    }
}

void stream_accepted(struct stream_link *link)
{
    link->known = true;
    stream_count(link, BMI_COUNT_LINKS_ACCEPTED, 1);
    stream_link_open(link);
}

int stream_listen(struct stream_state *state, int fd)
{
    return stream_acceptor_add(&state->acceptor, fd);
}

/* ---- the whole ------------------------------------------------------------------------------ */

int stream_method_start(struct bmi_instance *instance, size_t size,
                        const struct stream_socket *socket, const struct stream_engine *engine,
                        void **out)
{
    int error = -ENOMEM;
    if (engine->send && socket->bytes != &stream_plain)
        return -EINVAL; /* it sends a frame's bytes as they are */
    struct stream_state *state = calloc(1, size);
    if (!state)
        return error;
    state->instance = instance;
    state->socket = socket;
    state->engine = engine;
    state->counters = bmi_method_counters(instance, socket->method);
    state->acceptor.instance = instance;
    state->acceptor.method = socket->method;
    state->acceptor.accepted = accepted;
    state->acceptor.evicts = true;
    state->ahead = aligned_alloc(64, STREAM_AHEAD_BYTES + STREAM_SCRATCH_BYTES);
    if (!state->ahead)
        goto undo_state;
    state->scratch = state->ahead + STREAM_AHEAD_BYTES;
    error = stream_room_start(state);
    if (error)
        goto undo_ahead;
    if (engine->start)
        error = engine->start(state);
    if (error)
        goto undo_room;
    if (socket->bytes->start) {
        error = stream_secure_begin(&state->securing);
        if (error)
            goto undo_engine;
        state->acceptor.may = stream_secure_may_accept;
        state->acceptor.give_way = stream_secure_give_way;
    }
    *out = state;
    return 0;

undo_engine:
    if (engine->stop)
        engine->stop(state);
undo_room:
    stream_room_stop(state);
undo_ahead:
    free(state->ahead);
undo_state:
    free(state);
    return error;
}

void stream_method_stop(void *argument)
{
    struct stream_state *state = argument;
    bool layered = state->socket->bytes->start != NULL;
    stream_acceptor_stop(&state->acceptor);
    if (layered)
        stream_secure_quiesce(&state->securing);
    while (state->links) {
        struct stream_link *link = state->links;
        stream_lock(&link->send_lock);
        link->closing = STREAM_CLOSE_NOW;
        stream_unlock(&link->send_lock);
        stream_link_end(link, 0);
    }
    if (layered)
        stream_secure_end(&state->securing);
    if (state->engine->stop)
        state->engine->stop(state);
    stream_room_stop(state);
    free(state->ahead);
    free(state);
}

int stream_progress(void *argument)
{
    struct stream_state *state = argument;
    return state->engine->progress(state);
}

bool stream_arm(void *argument)
{
    struct stream_state *state = argument;
    return state->engine->arm(state);
}

int stream_option(struct bmi_instance *instance, void *state, struct bmi_link *base, int option,
                  void *value, bool set)
{
    (void)instance;
    (void)state;
    (void)value;
    if (option != BMI_TCP_CLOSE_SOCKET)
        return -ENOSYS;
    if (!set)
        return -EINVAL;
    if (base)
        stream_close(base, false);
    return 0;
}
