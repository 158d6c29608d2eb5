/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.c - completions, and when the poller may sleep.
 *
 * A pass reads completions under fabric_lock and handles them without it. A link that has as many
 * messages under way as it may have is flushed when one of them completes. A link whose message
 * found no room is listed and flushed again in each pass that had a completion. If no completion
 * reports room (a provider's connection is being made, another process's queue is full), a timer
 * retries after 1 ms, then 2, up to 16.
 */
#include <poll.h>

#include "ib.h"

/* ---- links that wait for room ---------------------------------------------------------------- */

/* Puts the link on the list of blocked ones, with a reference. Returns false if it was there. */
static bool blocked_put(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    if (atomic_exchange(&link->is_blocked, true))
        return false;
    bmi_link_ref(&link->base);
    link->blocked_next = atomic_load(&state->blocked);
    while (!atomic_compare_exchange_weak(&state->blocked, &link->blocked_next, link))
        continue;
    return true;
}

void ib_blocked_flush(struct ib_state *state, bool flush)
{
    struct ib_link *list = atomic_exchange(&state->blocked, NULL), *next;
    for (; list; list = next) {
        next = list->blocked_next;
        atomic_store(&list->is_blocked, false);
        if (flush)
            ib_flush(&list->base);
        bmi_link_unref(&list->base);
    }
}

void ib_link_block_locked(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    ib_assert_locked(&link->send_lock);
    ib_ring_locked(link); /* the first message asks the other side for a connection */
    if (blocked_put(link))
        bmi_method_defer(link->base.instance, &state->kick);
}

/* Whether work is pending that no event may report. */
static bool untold(struct ib_state *state)
{
    const struct ib_endpoint *at = state->fabric ? state->fabric->endpoints : NULL;
    while (at && at->unposted == 0)
        at = at->next;
    return at || atomic_load(&state->blocked);
}

/* If so, sets the timer for a retry. */
static void retry_set(struct ib_state *state, uint32_t ms)
{
    if (state->retry_ms > 0 || !untold(state))
        return;
    state->retry_ms = ms < IB_RETRY_MOST_MS ? ms : IB_RETRY_MOST_MS;
    bmi_method_timer_set(state->instance, &state->retry, state->retry_ms);
}

void ib_kicked(struct bmi_deferred *deferred)
{
    retry_set(ib_container(deferred, struct ib_state, kick), IB_RETRY_LEAST_MS);
}

void ib_retry_expired(struct bmi_timer *timer)
{
    struct ib_state *state = ib_container(timer, struct ib_state, retry);
    int events = ib_progress(state);
    uint32_t next = events > 0 ? IB_RETRY_LEAST_MS : state->retry_ms * 2;
    ib_blocked_flush(state, true);
    state->retry_ms = 0;
    retry_set(state, next);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* The network has returned a message or a piece. */
static void operation_done(struct ib_state *state, struct ib_operation *operation, int status)
{
    struct ib_link *link = ib_token_find(state, operation->token);
    if (operation->kind == IB_OPERATION_PIECE) {
        ib_piece_done(state, link, operation, status);
        return;
    }
    bool wanted = ib_slot_back(state, link, ib_container(operation, struct ib_slot, operation));
    if (link && status)
        ib_link_end(link, status);
    else if (wanted)
        blocked_put(link); /* this pass flushes it */
}

static void buffer_repost(struct ib_state *state, struct ib_buffer *buffer)
{
    ib_lock(&state->fabric_lock);
    int status = ib_buffer_post_locked(buffer);
    ib_unlock(&state->fabric_lock);
    if (status && !buffer->unposted)
        bmi_method_log(state->instance, BMI_LOG_INFO, NULL, "%s: cannot post a buffer yet: %s",
                       state->kind->scheme, strerror(-status));
    buffer->endpoint->unposted += (uint32_t)(status != 0) - buffer->unposted;
    buffer->unposted = status != 0;
}

/* Posts again the buffers that the provider did not take. Messages that found no buffer may have
 * used up the entries that posting needs, so that no buffer could ever be posted. Then the reserve
 * receive is cancelled, which frees an entry: the first buffer posted takes some of the messages.
 */
static void buffers_repost(struct ib_state *state, struct ib_endpoint *endpoint)
{
    if (endpoint->unposted == endpoint->buffer_count && endpoint->reserve_posted) {
        endpoint->reserve_posted = false;
        ib_lock(&state->fabric_lock);
        fi_cancel(&endpoint->id->fid, &endpoint->reserve.context);
        ib_unlock(&state->fabric_lock);
    }
    for (uint32_t i = 0; i < endpoint->buffer_count && endpoint->unposted > 0; i++)
        if (endpoint->buffers[i].unposted)
            buffer_repost(state, &endpoint->buffers[i]);
    if (endpoint->unposted == 0 && state->fabric->shared && !endpoint->reserve_posted) {
        ib_lock(&state->fabric_lock);
        ib_reserve_post_locked(endpoint);
        ib_unlock(&state->fabric_lock);
    }
}

static void completion_handle(struct ib_state *state, const struct fi_cq_data_entry *entry,
                              fi_addr_t from)
{
    struct ib_operation *operation = entry->op_context;
    if (!operation)
        return;
    switch (operation->kind) {
    case IB_OPERATION_RECEIVE:
        if (entry->buf && entry->len > 0 && (entry->flags & FI_RECV))
            ib_message_arrived(state, from, entry->buf, entry->len);
        if (entry->flags & FI_MULTI_RECV)
            buffer_repost(state, ib_container(operation, struct ib_buffer, operation));
        break;
    case IB_OPERATION_SEND:
    case IB_OPERATION_PIECE:
        operation_done(state, operation, 0);
        break;
    case IB_OPERATION_RESERVE: /* another process sends to tags */
        ib_container(operation, struct ib_endpoint, reserve)->reserve_posted = false;
        break;
    }
}

/* Reads a failed operation. The provider's own text goes to the log. */
static bool error_read(struct ib_state *state, struct fi_cq_err_entry *error, char *text,
                       size_t size)
{
    struct ib_fabric *fabric = state->fabric;
    memset(error, 0, sizeof(*error));
    ib_lock(&state->fabric_lock);
    ssize_t got = fi_cq_readerr(fabric->queue, error, 0);
    const char *said =
        got == 1 ? fi_cq_strerror(fabric->queue, error->prov_errno, error->err_data, text, size)
                 : NULL;
    if (said && said != text) {
        strncpy(text, said, size - 1);
        text[size - 1] = '\0';
    }
    ib_unlock(&state->fabric_lock);
    return got == 1;
}

bool ib_link_hung_up(const struct ib_link *link)
{
    struct pollfd polled = {.fd = link->watch.fd, .events = POLLRDHUP};
    return polled.fd >= 0 && poll(&polled, 1, 0) == 1;
}

/* Returns a failed operation to its owner. If the peer has ended the link, a put that was refused
 * (EIO) fails with ECONNRESET instead. */
static void operation_fail(struct ib_state *state, struct ib_operation *operation, int status)
{
    struct ib_link *link = ib_token_find(state, operation->token);
    struct ib_peer *peer = link && state->fabric->breaks ? link->peer : NULL;
    if (status == -EIO && link && ib_link_hung_up(link))
        status = -ECONNRESET;
    if (peer)
        peer->users++;
    operation_done(state, operation, status);
    if (peer) {
        ib_peer_break(state, peer, status);
        ib_peer_put(state, peer);
    }
}

static void error_handle(struct ib_state *state)
{
    struct fi_cq_err_entry error;
    char text[128] = "";
    if (!error_read(state, &error, text, sizeof(text)))
        return;
    struct ib_operation *operation = error.op_context;
    bool cancelled = error.err == FI_ECANCELED;
    static const char *const names[] = {"a receive", "a message", "a put or get",
                                        "a reserve receive"};
    bmi_method_log(state->instance, cancelled ? BMI_LOG_DEBUG : BMI_LOG_WARN, NULL,
                   "%s: %s failed: %s (provider: %d, %s)", state->kind->scheme,
                   operation ? names[operation->kind] : "an operation",
                   ib_library.strerror(error.err), error.prov_errno, text);
    if (!operation || operation->kind == IB_OPERATION_RESERVE)
        return;
    if (operation->kind != IB_OPERATION_RECEIVE)
        operation_fail(state, operation, cancelled ? -ECONNRESET : ib_error(-error.err));
    else if (!cancelled)
        buffer_repost(state, ib_container(operation, struct ib_buffer, operation));
}

/* Reads and handles a batch. Returns the number of completions. */
static int batch_run(struct ib_state *state)
{
    struct fi_cq_data_entry entries[IB_BATCH];
    fi_addr_t from[IB_BATCH] = {0};
    ib_lock(&state->fabric_lock);
    ssize_t count = state->fabric->tells_source
                        ? fi_cq_readfrom(state->fabric->queue, entries, IB_BATCH, from)
                        : fi_cq_read(state->fabric->queue, entries, IB_BATCH);
    ib_unlock(&state->fabric_lock);
    if (count == -FI_EAVAIL) {
        error_handle(state);
        return 1;
    }
    for (ssize_t i = 0; i < count; i++)
        completion_handle(state, &entries[i], from[i]);
    return count > 0 ? (int)count : 0;
}

int ib_progress(void *argument)
{
    struct ib_state *state = argument;
    int events = 0, count = 0;
    if (!state->fabric)
        return 0;
    if (state->armed) {
        state->armed = false;
        ib_doorbell_sleep(state->doorbell, false);
    }
    for (struct ib_endpoint *at = state->fabric->endpoints; at; at = at->next)
        if (at->unposted > 0)
            buffers_repost(state, at);
    for (int i = 0; i < IB_PASS_BATCHES; i++) {
        count = batch_run(state);
        events += count;
        if (count < IB_BATCH)
            break;
    }
    /* Over shm no completion reports room. */
    if ((events > 0 || state->doorbell) && atomic_load(&state->blocked))
        ib_blocked_flush(state, true);
    retry_set(state, IB_RETRY_LEAST_MS);
    return events;
}

void ib_drain(struct ib_state *state)
{
    enum { PASSES = 256 };
    for (int i = 0; i < PASSES && ib_progress(state) > 0; i++)
        continue;
}

void ib_wait_ready(struct bmi_watch *watch, uint32_t events)
{
    (void)events;
    ib_progress(ib_container(watch, struct ib_state, wait_watch));
}

/* Handles completions that are there already: a waiting thread checks its own context once more,
 * and not the network's queue. */
bool ib_arm(void *argument)
{
    struct ib_state *state = argument;
    if (!state->fabric || state->armed)
        return true;
    if (state->fabric->wait_fd >= 0) {
        struct fid *ids[] = {&state->fabric->queue->fid};
        ib_lock(&state->fabric_lock);
        int status = fi_trywait(state->fabric->fabric, ids, 1);
        ib_unlock(&state->fabric_lock);
        if (status)
            ib_progress(state);
        return status == 0;
    }
    ib_doorbell_sleep(state->doorbell, true);
    if (ib_progress(state) > 0) {
        ib_doorbell_sleep(state->doorbell, false);
        return false;
    }
    state->armed = true;
    return true;
}
