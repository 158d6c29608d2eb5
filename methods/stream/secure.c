/* SPDX-License-Identifier: BSD-3-Clause
 *
 * secure.c - the handshake of a link's layer (struct stream_bytes), between the connected socket
 * and the first frame.
 *
 * A handshake's steps compute signatures, so they run as tasks on the blocking pool, a few at a
 * time (`steps_most`), while the poller serves the links that are up. Between two steps the
 * handshake has no thread: the poller watches its socket. So thousands of slow ones cost memory
 * only, which `handshakes_max` bounds for accepted connections, and `handshake_timeout_ms` in time.
 *
 * Threads: everything runs in the poller except step_run. While a step runs, link->writing is set:
 * the task alone uses socket and layer, and stream_link_end waits for it as for a writer. The task
 * ends with a kick of the link, after which it touches neither link nor handshake. `state` of a
 * handshake: the task changes it under send_lock, from STEP_RUNS to STEP_ENDED.
 */
#include <stdlib.h>
#include <sys/socket.h>

#include "bmi/task.h"
#include "stream.h"

enum {
    STEPS_MOST = 4,        /* tasks at a time, and at most one for each two CPUs */
    SLOW_NS = 1000000000,  /* a handshake that waits for its peer so long gives way to a new one */
    LOOKED_AT = 8,         /* of the oldest ones, for that */
    REFUSED_WAIT_MS = 1000 /* for the end of a refused peer's stream */
};

enum step_state {
    STEP_QUEUED,
    STEP_RUNS,
    STEP_ENDED,
    STEP_WAITS, /* for bytes */
    STEP_FULL,  /* for room in the socket */
    STEP_REFUSED
};

struct stream_handshake {
    struct stream_link *link;
    struct stream_handshake *queue_next;         /* while STEP_QUEUED */
    struct stream_handshake *next, **link_to_me; /* of accepted links, the oldest first */
    uint64_t since_ns;                           /* its present wait for the peer began */
    _Atomic enum step_state state;
    int result; /* of the step that ended, or what the link ends with */
    bool room;  /* the engine reported room during a step */
    struct bmi_task task;
};

/* ---- steps ---------------------------------------------------------------------------------- */

static enum bmi_task_status step_finish(struct stream_handshake *handshake, int result)
{
    struct stream_link *link = handshake->link;
    struct stream_securing *securing = &stream_state_of(link)->securing;

    stream_lock(&link->send_lock);
    handshake->state = STEP_ENDED;
    handshake->result = result;
    link->writing = false;
    stream_unlock(&link->send_lock);
    stream_link_kick(link);
    bmi_link_unref(&link->base);
    pthread_mutex_lock(&securing->lock);
    securing->tasks--;
    pthread_cond_signal(&securing->changed);
    pthread_mutex_unlock(&securing->lock);
    return BMI_TASK_GONE;
}

static enum bmi_task_status step_run(struct bmi_task *task, void *argument)
{
    struct stream_handshake *handshake = argument;
    (void)task;
    return step_finish(handshake, stream_bytes_of(handshake->link)->handshake(handshake->link));
}

static enum bmi_task_status step_cancelled(struct bmi_task *task, void *argument)
{
    (void)task;
    return step_finish(argument, -ECANCELED);
}

/* The task is prepared for each step, since it ends each time as if its memory were freed: the
 * poller may have freed it before the function returns. */
static int task_submit(struct stream_handshake *handshake)
{
    const struct bmi_task_attributes attributes = {.function = step_run,
                                                   .argument = handshake,
                                                   .options = BMI_TASK_MAY_BLOCK,
                                                   .cancelled = step_cancelled};
    int status = bmi_task_prepare(&handshake->task, NULL, &attributes);
    return status < 0 ? status : bmi_task_submit(&handshake->task);
}

static void step_start(struct stream_handshake *handshake)
{
    struct stream_link *link = handshake->link;
    struct stream_securing *securing = &stream_state_of(link)->securing;

    bmi_link_ref(&link->base);
    stream_lock(&link->send_lock);
    handshake->state = STEP_RUNS;
    link->writing = true;
    stream_unlock(&link->send_lock);
    securing->running++;
    pthread_mutex_lock(&securing->lock);
    securing->tasks++;
    pthread_mutex_unlock(&securing->lock);
    int status = task_submit(handshake);
    if (status < 0) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "no thread for a handshake: %s", bmi_status_string(status));
        step_finish(handshake, -ENOMEM);
    }
}

static void steps_start(struct stream_securing *securing)
{
    while (securing->queue && securing->running < securing->most) {
        struct stream_handshake *first = securing->queue;
        securing->queue = first->queue_next;
        step_start(first);
    }
}

static void step_queue(struct stream_handshake *handshake)
{
    struct stream_securing *securing = &stream_state_of(handshake->link)->securing;

    handshake->state = STEP_QUEUED;
    handshake->room = false;
    handshake->queue_next = NULL;
    if (securing->queue)
        securing->queue_last->queue_next = handshake;
    else
        securing->queue = handshake;
    securing->queue_last = handshake;
    steps_start(securing);
}

static void queue_remove(struct stream_securing *securing, const struct stream_handshake *handshake)
{
    struct stream_handshake *before = NULL, *at = securing->queue;
    for (; at != handshake; at = at->queue_next)
        before = at;
    if (before)
        before->queue_next = at->queue_next;
    else
        securing->queue = at->queue_next;
    if (securing->queue_last == at)
        securing->queue_last = before;
}

/* ---- a handshake's life --------------------------------------------------------------------- */

/* The step's place is free for another one. */
static void step_collect(struct stream_securing *securing)
{
    securing->running--;
    steps_start(securing);
}

void stream_secure_free(struct stream_link *link)
{
    struct stream_handshake *handshake = link->handshake;
    struct stream_state *state = stream_state_of(link);

    link->has_handshake = false;
    if (handshake->state == STEP_QUEUED)
        queue_remove(&state->securing, handshake);
    if (link->accepted) {
        *handshake->link_to_me = handshake->next;
        if (handshake->next)
            handshake->next->link_to_me = handshake->link_to_me;
        else
            state->securing.last = handshake->link_to_me;
        state->securing.accepted--;
        stream_acceptor_resume(&state->acceptor);
    }
    if (handshake->state == STEP_ENDED)
        step_collect(&state->securing);
    free(handshake);
}

static void list_append(struct stream_securing *securing, struct stream_handshake *handshake)
{
    if (!securing->last)
        securing->last = &securing->first;
    handshake->link_to_me = securing->last;
    *securing->last = handshake;
    securing->last = &handshake->next;
    securing->accepted++;
}

static void expired(struct stream_link *link)
{
    bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                   "%s:%u does not complete its handshake", link->base.host ? link->base.host : "?",
                   (unsigned)link->base.host_number);
    stream_link_end(link, -ETIMEDOUT);
}

bool stream_secure_may_accept(struct stream_acceptor *acceptor)
{
    struct stream_state *state = stream_container(acceptor, struct stream_state, acceptor);
    return state->securing.accepted <
           (uint32_t)bmi_method_setting(acceptor->instance, "handshakes_max");
}

/* A peer in its handshake has proved nothing yet, so it goes before any that is connected. */
bool stream_secure_give_way(struct stream_acceptor *acceptor)
{
    struct stream_state *state = stream_container(acceptor, struct stream_state, acceptor);
    struct stream_handshake *at = state->securing.first;
    uint64_t now_ns = bmi_method_now_ns(acceptor->instance);
    bool any = at != NULL;

    for (int i = 0; at && i < LOOKED_AT; i++, at = at->next)
        if ((at->state == STEP_WAITS || at->state == STEP_FULL) &&
            now_ns - at->since_ns > SLOW_NS) {
            expired(at->link);
            break;
        }
    return any;
}

/* Waits for bytes. */
static void watch(struct stream_link *link)
{
    link->handshake->since_ns = bmi_method_now_ns(link->base.instance);
    int error = bmi_method_watch_add(link->base.instance, &link->watch, EPOLLIN);
    if (error)
        stream_link_end(link, error);
    else
        link->watched = true;
}

static int handshake_make(struct stream_link *link)
{
    struct stream_handshake *handshake = calloc(1, sizeof(*handshake));
    if (!handshake)
        return -ENOMEM;
    handshake->link = link;
    handshake->state = STEP_WAITS;
    link->handshake = handshake;
    link->has_handshake = true;
    if (link->accepted)
        list_append(&stream_state_of(link)->securing, handshake);
    return 0;
}

void stream_secure_start(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    link->phase = STREAM_SECURING;
    stream_unlock(&link->send_lock);
    int error = stream_bytes_of(link)->start(link);
    stream_link_dial_free(link);
    if (!error)
        error = handshake_make(link);
    if (error) {
        stream_link_end(link, error);
        return;
    }
    bmi_method_timer_set(link->base.instance, &link->timer,
                         (uint64_t)bmi_method_setting(link->base.instance, "handshake_timeout_ms"));
    if (link->accepted)
        watch(link); /* the peer speaks first */
    else
        step_queue(link->handshake);
}

/* ---- what happens to it --------------------------------------------------------------------- */

static void wait_for_room(struct stream_link *link)
{
    int error = 0;
    if (link->handshake->room) {
        step_queue(link->handshake);
        return;
    }
    stream_lock(&link->send_lock);
    bool joins = !link->room_watched;
    link->room_watched = true;
    stream_unlock(&link->send_lock);
    link->handshake->since_ns = bmi_method_now_ns(link->base.instance);
    link->handshake->state = STEP_FULL;
    if (joins)
        error = stream_room_watch(link);
    if (error)
        stream_link_end(link, error);
}

/* The reason is on its way to the peer. A socket that is closed with unread data would reset the
 * connection under it, so the peer's own end of the stream is awaited, for a while. */
static void refuse(struct stream_link *link, int error)
{
    if (!link->accepted) {
        stream_link_end(link, error);
        return;
    }
    link->handshake->state = STEP_REFUSED;
    link->handshake->result = error;
    shutdown(link->watch.fd, SHUT_WR);
    bmi_method_timer_set(link->base.instance, &link->timer, REFUSED_WAIT_MS);
    watch(link);
}

static void refused_ready(struct stream_link *link)
{
    struct stream_state *state = stream_state_of(link);
    ssize_t have = 1;
    for (int i = 0; have > 0 && i < STREAM_PASS_READS; i++)
        have = recv(link->watch.fd, state->scratch, STREAM_SCRATCH_BYTES, MSG_DONTWAIT);
    if (have == 0 || (have < 0 && errno != EAGAIN && errno != EINTR))
        stream_link_end(link, link->handshake->result);
}

static void complete(struct stream_link *link)
{
    bmi_method_timer_clear(link->base.instance, &link->timer);
    stream_secure_free(link);
    if (!link->accepted)
        stream_dialled(link);
    else if (bmi_method_link_accepted(&link->base) < 0)
        stream_link_end(link, -ENOMEM);
    else
        stream_accepted(link);
}

void stream_secure_step(struct stream_link *link)
{
    struct stream_handshake *handshake = link->handshake;
    stream_lock(&link->send_lock);
    bool ended = handshake->state == STEP_ENDED;
    int result = handshake->result;
    if (ended)
        handshake->state = STEP_WAITS;
    stream_unlock(&link->send_lock);
    if (!ended)
        return;
    step_collect(&stream_state_of(link)->securing);
    if (result == 0)
        complete(link);
    else if (result == -EAGAIN)
        watch(link);
    else if (result == -ENOBUFS)
        wait_for_room(link);
    else
        refuse(link, result);
}

void stream_secure_ready(struct stream_link *link)
{
    if (link->handshake->state == STEP_REFUSED) {
        refused_ready(link);
        return;
    }
    bmi_method_watch_remove(link->base.instance, &link->watch);
    link->watched = false;
    step_queue(link->handshake);
}

void stream_secure_room(struct stream_link *link)
{
    stream_lock(&link->send_lock);
    bool waits = link->handshake->state == STEP_FULL;
    stream_unlock(&link->send_lock);
    if (waits)
        step_queue(link->handshake);
    else
        link->handshake->room = true;
}

void stream_secure_expired(struct stream_link *link)
{
    if (link->handshake->state == STEP_REFUSED)
        stream_link_end(link, link->handshake->result);
    else
        expired(link);
}

/* ---- the whole ------------------------------------------------------------------------------ */

int stream_secure_begin(struct stream_securing *securing)
{
    int status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return -EAGAIN;
    int most = bmi_task_cpus(NULL, NULL) / 2;
    securing->most = (uint32_t)(most < 1 ? 1 : most > STEPS_MOST ? STEPS_MOST : most);
    pthread_mutex_init(&securing->lock, NULL);
    pthread_cond_init(&securing->changed, NULL);
    return 0;
}

/* Steps do not wait for peers, so they end soon. */
void stream_secure_quiesce(struct stream_securing *securing)
{
    securing->most = 0; /* no further one begins */
    pthread_mutex_lock(&securing->lock);
    while (securing->tasks > 0)
        pthread_cond_wait(&securing->changed, &securing->lock);
    pthread_mutex_unlock(&securing->lock);
}

void stream_secure_end(struct stream_securing *securing)
{
    pthread_mutex_destroy(&securing->lock);
    pthread_cond_destroy(&securing->changed);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
}
