/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.c - the server's side.
 *
 * A request's header comes as an unexpected message of its space, and is charged to its sender
 * until the request ends. The step decodes it, lets the service unpack, receives what travels apart
 * to the places that unpacking named, and lets the service run. Each request of a call gets one
 * reply: the service's, or one of the library with an error; a cancelled one at once. Whatever the
 * sender has announced is received, or discarded, before the request ends, or its CANCEL says that
 * it will not come.
 *
 * The service's time-out bounds each time in which the library waits for the caller: for the
 * stream, for the body, and for the end of the reply. The step sets the timer when the wait begins,
 * and clears it at its end. The timer notes under the peer's lock that it has expired, and queues
 * the step. So the poller alone handles it. A stream or a body that did not come is discarded when
 * it comes, and the call fails with ETIMEDOUT. The messages of a reply that have not gone are
 * withdrawn without a lock, as if cancelled, and a CANCEL informs the caller of them. The header is
 * the last: it stays if anything of a later message, an RTS too, may have been queued behind it. If
 * a message has not ended after a second time-out and cancel_grace_ms, the connection ends.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/unexpected.h"
#include "bmi/protocol/frames.h"
#include "bmi/rpc/exchange.h"
#include "bmi/rpc/request.h"
#include "bmi/rpc/serve.h"
#include "bmi/rpc/services.h"
#include "bmi/state/liveness.h"
#include "bmi/task.h"

enum action { NOTHING, AGAIN, READ_HEAD, CALL_ARRIVED, RUN };

enum { LATE_CANCELLED = 1, LATE_WITHDRAW = 2, LATE_END = 4, LATE_FORWARD = 8, LATE_TIMED_OUT = 16 };

static void request_step(struct bmi_deferred *work);
static void request_late(struct bmi_deferred *late);

/* ---- arrival --------------------------------------------------------------------------------- */

void bmi__request_cancelled_locked(struct peer *peer, int32_t number, uint8_t flags)
{
    struct exchange *exchange = bmi__exchange_find_locked(peer, false, number);
    struct bmi_rpc_request *request = (struct bmi_rpc_request *)exchange;
    bmi__exchange_absent_locked(peer, exchange, wire_tag_of(SPACE_REQUEST, number), flags);
    if (request == NULL)
        return; /* it ended before */
    request->cancel_arrived = true;
    atomic_store(&request->is_cancelled, true);
    bmi__exchange_soon(&request->exchange);
}

static struct bmi_rpc_request *request_make_locked(struct peer *peer, int32_t number)
{
    struct bmi_rpc_request *request = malloc(sizeof *request);
    if (request == NULL)
        return NULL;
    memset(request, 0, sizeof *request);
    bmi__exchange_init(peer->instance, &request->exchange, false, number, request_step,
                       request_late);
    bmi__message_init(&request->arguments);
    if (bmi__exchange_adopt_locked(peer, &request->exchange))
        return request;
    free(request);
    return NULL;
}

bool bmi__request_arrived_locked(struct peer *peer, int32_t number, void *buffer, bmi_size_t size)
{
    struct rpc_head head;
    int length = bmi__rpc_head_decode(buffer, (size_t)size, &head);
    struct bmi_rpc_request *request = NULL;
    if (length > 0 && head.kind == RPC_REQUEST)
        request = request_make_locked(peer, number);
    if (request != NULL) {
        request->address = bmi__peer_handle_locked(peer);
        request->bytes = buffer;
        request->head = head;
        request->head_length = length;
        BMI_PROBE(2, serve_begin, request, request->head.name);
        bmi__exchange_soon(&request->exchange);
        return true;
    }
    if (length > 0 && head.kind == RPC_REQUEST)
        bmi__peer_fail_locked(peer, -ENOMEM, "no memory for a request");
    else
        bmi__peer_fail_locked(peer, -EPROTO, "a bad header of a request");
    return false;
}

static void request_free(struct bmi_rpc_request *request)
{
    if (request->service != NULL) {
        atomic_fetch_sub(&request->service->running, 1);
        bmi__service_put(request->exchange.instance, request->service);
    }
    if (request->forwarding != NULL)
        request->forwarding->release(request->forwarding);
    bmi__message_clear(&request->arguments);
    bmi_message_free(request->reply);
    free(request->stream);
    free(request);
}

/* The service frees its own memory also where the instance ends first. */
void bmi__request_free(struct exchange *exchange)
{
    struct bmi_rpc_request *request = (struct bmi_rpc_request *)exchange;
    if (request->service_knows && request->service->calls.ended != NULL)
        request->service->calls.ended(request, -BMI_ECANCEL);
    request_free(request);
}

/* ---- the reply ------------------------------------------------------------------------------- */

static bool apart(const struct bmi_rpc_request *request, uint32_t flag)
{
    return (request->head.flags & flag) != 0;
}

static bool is_alive(const struct peer *peer, const struct bmi_rpc_request *request)
{
    return bmi__exchange_up_locked(peer, &request->exchange);
}

/* Sends the one reply of the request: a message, or none with a status. */
static void reply_send_locked(struct peer *peer, struct bmi_rpc_request *request, int status,
                              struct bmi_message *reply)
{
    struct exchange *exchange = &request->exchange;
    bool silent = request->answered || apart(request, RPC_ONE_WAY) || !is_alive(peer, request);
    request->answered = true;
    if (silent)
        return;
    struct rpc_head head = {.kind = RPC_REPLY, .status = bmi__error(status)};
    if (reply == NULL || status < 0) {
        void *buffer = request->reply_head;
        bmi_size_t size = (bmi_size_t)bmi__rpc_head_encode(request->reply_head, &head);
        bmi__part_send_locked(peer, exchange, PART_HEAD, &buffer, &size, 1, size);
        return;
    }
    uint64_t room = request->head.reply_room > RPC_HEAD ? request->head.reply_room - RPC_HEAD : 0;
    head.stream = reply->stream_size;
    head.body = (uint64_t)reply->body;
    bmi__rpc_head_split(&head, room, room);
    reply->buffers[MESSAGE_HEAD] = request->reply_head;
    reply->sizes[MESSAGE_HEAD] = (bmi_size_t)bmi__rpc_head_encode(request->reply_head, &head);
    bmi__message_head_send_locked(peer, exchange, reply, head.flags);
    bmi__message_rest_send_locked(peer, exchange, reply, head.flags);
    if (request->service != NULL)
        atomic_fetch_add(&request->service->bytes_out, head.stream + head.body);
}

static void end_locked(struct peer *peer, struct bmi_rpc_request *request, int status,
                       struct bmi_message *reply)
{
    bool lost = request->answered || !is_alive(peer, request);
    request->reply = reply;
    request->stage = ENDING;
    request->status = lost ? BMI__CANCELLED : status;
    reply_send_locked(peer, request, status, reply);
    bmi__exchange_soon(&request->exchange);
}

/* The service ends the request. */
static int request_end(struct bmi_rpc_request *request, int status, struct bmi_message *reply)
{
    if (request == NULL || atomic_exchange(&request->taken, true)) {
        bmi_message_free(reply);
        return -BMI_EINVAL; /* it may have no operation any more */
    }
    if (reply != NULL && status == 0)
        status = bmi__message_close(reply);
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    bool can = request->stage == RUNNING;
    atomic_store(&request->taken, can);
    if (can)
        end_locked(peer, request, status, reply);
    bmi__exchange_unlock(peer);
    if (!can)
        bmi_message_free(reply);
    return can ? 0 : -BMI_EINVAL;
}

int bmi_rpc_reply(struct bmi_rpc_request *request, struct bmi_message *reply)
{
    return request_end(request, 0, reply);
}

int bmi_rpc_fail(struct bmi_rpc_request *request, bmi_error_code_t error)
{
    if (error >= 0)
        return -BMI_EINVAL;
    return request_end(request, error, NULL);
}

int bmi__request_forward(struct bmi_rpc_request *request, struct forwarding *forwarding)
{
    if (atomic_exchange(&request->taken, true))
        return -BMI_EINVAL;
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    bool can = request->stage == RUNNING;
    atomic_store(&request->taken, can);
    if (can) {
        request->stage = FORWARDED;
        request->forwarding = forwarding;
        bmi__message_restore(&request->arguments);
    }
    bmi__exchange_unlock(peer);
    return can ? 0 : -BMI_EINVAL;
}

void bmi__request_forwarded(struct bmi_rpc_request *request, int status, struct bmi_message *reply)
{
    if (reply != NULL && status == 0)
        status = bmi__message_close(reply);
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    end_locked(peer, request, status, reply);
    bmi__exchange_unlock(peer);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Begins `run`, unless the request was cancelled first. */
static void run_now(struct bmi_rpc_request *request)
{
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    bool go = !request->cancel_arrived && !request->exchange.ended;
    request->stage = go ? RUNNING : ENDING;
    if (!go) {
        reply_send_locked(peer, request, BMI__CANCELLED, NULL);
        request->status = BMI__CANCELLED;
        bmi__exchange_soon(&request->exchange);
    } else {
        request->service_knows = true;
    }
    bmi__exchange_unlock(peer);
    if (go)
        request->service->calls.run(request);
}

static void run_deferred(struct bmi_deferred *deferred)
{
    run_now((struct bmi_rpc_request *)((char *)deferred - offsetof(struct bmi_rpc_request, run)));
}

static enum bmi_task_status run_task(struct bmi_task *task, void *argument)
{
    struct bmi_rpc_request *request = argument;
    struct bmi_instance *instance = request->exchange.instance;
    (void)task;
    run_now(request);
    bmi__requests_add(instance, -1);
    return BMI_TASK_GONE; /* it may have ended, and be freed */
}

/* The manager stops. */
static enum bmi_task_status run_cancelled(struct bmi_task *task, void *argument)
{
    const struct bmi_rpc_request *request = argument;
    (void)task;
    bmi__requests_add(request->exchange.instance, -1);
    return BMI_TASK_GONE;
}

static void run_queue(struct bmi_rpc_request *request)
{
    const struct bmi_task_attributes attributes = {.function = run_task,
                                                   .argument = request,
                                                   .options = BMI_TASK_MAY_BLOCK,
                                                   .cancelled = run_cancelled};
    if ((request->service->calls.options & BMI_RPC_BLOCKING) &&
        bmi_task_prepare(&request->task, NULL, &attributes) == 0) {
        bmi__requests_add(request->exchange.instance, 1);
        if (bmi_task_submit(&request->task) == 0)
            return;
        bmi__requests_add(request->exchange.instance, -1);
    }
    request->run = (struct bmi_deferred){.run = run_deferred};
    bmi_method_defer(request->exchange.instance, &request->run);
}

/* ---- the time-out ---------------------------------------------------------------------------- */

/* The time goes by in steps. While there was no poller, no thread read what the caller has sent:
 * such a time counts as one step only. A peer that leaves many messages of requests that timed out
 * unsent loses its connection. */
enum { STEPS = 8, TOMBSTONES_MOST = 64 };

/* In ms; 0: no bound. */
static uint64_t step_time(const struct bmi_rpc_request *request)
{
    int64_t wait_ms = request->service != NULL ? request->service->calls.timeout_ms : 0;
    if (wait_ms > 0 && request->reply_withdrawn) /* the grace of receives, and its ticks */
        wait_ms += bmi__setting(request->exchange.instance, SETTING_CANCEL_GRACE) * 5 / 4 + 5;
    return (uint64_t)(wait_ms + STEPS - 1) / STEPS;
}

static void timer_expired(struct bmi_timer *timer)
{
    struct bmi_rpc_request *request =
        (struct bmi_rpc_request *)((char *)timer - offsetof(struct bmi_rpc_request, timer));
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    if (++request->steps < STEPS) {
        bmi_method_timer_set(request->exchange.instance, timer, step_time(request));
    } else {
        request->timed_out = true;
        bmi__exchange_soon(&request->exchange);
    }
    peer_unlock(peer);
}

/* The request waits for its caller, in this stage. */
static enum action wait_locked(struct bmi_rpc_request *request)
{
    uint64_t time_ms = step_time(request);
    if (time_ms > 0 && request->waits_in != request->stage) {
        request->waits_in = request->stage;
        request->steps = 0;
        request->timer.expired = timer_expired;
        bmi_method_timer_set(request->exchange.instance, &request->timer, time_ms);
    }
    return NOTHING;
}

static void wait_over_locked(struct bmi_rpc_request *request)
{
    if (request->waits_in != ARRIVED)
        bmi_method_timer_clear(request->exchange.instance, &request->timer);
    request->waits_in = ARRIVED;
    request->timed_out = false;
}

/* The library ends the request with an error. */
static void give_up_locked(struct peer *peer, struct bmi_rpc_request *request, int status)
{
    if (request->stage == ENDING)
        return;
    request->stage = ENDING;
    request->status = status;
    reply_send_locked(peer, request, status, NULL);
}

static enum action timed_out_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    bool late = request->waits_in != request->stage; /* it was cancelled meanwhile */
    wait_over_locked(request);
    if (late || !is_alive(peer, request))
        return AGAIN; /* without a link its parts end, too */
    if (request->reply_withdrawn) {
        bmi__peer_fail_locked(peer, -ETIMEDOUT, "messages of a request do not end");
        return NOTHING;
    }
    if (bmi__exchange_tombstones_locked(peer) > TOMBSTONES_MOST) {
        bmi__peer_fail_locked(peer, -ETIMEDOUT, "messages of many requests do not come");
        return NOTHING;
    }
    request->reply_withdrawn = request->stage == ENDING;
    give_up_locked(peer, request, -ETIMEDOUT);
    bmi__exchange_late(&request->exchange, LATE_TIMED_OUT);
    return NOTHING;
}

static bool is_asked(const struct part *part)
{
    return part->op != NULL && part->op->stage == SEND_RTS;
}

static void parts_withdraw(struct bmi_rpc_request *request)
{
    bmi_op_id_t ids[2 * PARTS], head = 0;
    struct exchange *exchange = &request->exchange;
    const struct part *out = exchange->out;
    bool reply = request->reply_withdrawn;
    struct peer *peer = bmi__exchange_lock(exchange);
    uint32_t asked = peer->counters.rendezvous_sent;
    bool behind = is_asked(&out[PART_STREAM]) || is_asked(&out[PART_BODY]);
    int ins = bmi__parts_list_locked(exchange->in, PART_HEAD, ids, 0);
    int count = reply ? bmi__parts_list_locked(out, PART_STREAM, ids, ins) : ins;
    peer_unlock(peer);
    bmi__parts_cancel(ids, ins, true);
    bmi__parts_cancel(ids + ins, count - ins, false);
    peer = bmi__exchange_lock(exchange);
    behind |= out[PART_STREAM].op != NULL || out[PART_BODY].op != NULL ||
              peer->counters.rendezvous_sent != asked; /* meanwhile, perhaps by these */
    if (reply && !behind && out[PART_HEAD].op != NULL)
        head = bmi__op_id(out[PART_HEAD].op);
    peer_unlock(peer);
    bmi__parts_cancel(&head, head != 0, false);
}

/* The caller of a reply that was withdrawn learns which of its messages will not come. */
static void withdrawn_send_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    const struct exchange *exchange = &request->exchange;
    struct wire_header cancel = {.type = WIRE_CANCEL,
                                 .tag = wire_tag_of(SPACE_REPLY, exchange->number)};
    for (int i = 0; i < PARTS; i++)
        if (exchange->out[i].error < 0)
            cancel.flags = (uint8_t)(cancel.flags | PART_BIT(i));
    if (cancel.flags != 0 && is_alive(peer, request))
        bmi__control_send_locked(peer, cancel, NULL, 0);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void head_look(struct bmi_rpc_request *request)
{
    request->service = bmi__service_get(request->exchange.instance, request->head.name);
    if (request->service == NULL)
        return;
    atomic_fetch_add(&request->service->requests, 1);
    atomic_fetch_add(&request->service->running, 1);
    atomic_fetch_add(&request->service->bytes_in, request->head.stream + request->head.body);
}

/* The streams of a peer's requests that travel apart stay within the bound for its memory, but one
 * may always come. */
static bool stream_fits_locked(const struct peer *peer, const struct bmi_rpc_request *request)
{
    uint64_t held = 0;
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next) {
        const struct bmi_rpc_request *other = op->kind == OP_EXCHANGE ? op->buffer : NULL;
        if (other != NULL && !other->exchange.is_call && other->stream != NULL)
            held += other->head.stream;
    }
    return held == 0 || held + request->head.stream <=
                            (uint64_t)bmi__setting(peer->instance, SETTING_PEER_MEMORY);
}

/* A stream's memory went back, or was enough: the oldest request that waits for some looks again.
 */
static void streams_look_locked(struct peer *peer)
{
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next) {
        struct bmi_rpc_request *other = op->kind == OP_EXCHANGE ? op->buffer : NULL;
        if (other == NULL || other->exchange.is_call || other->stage != STREAM ||
            other->exchange.in[PART_STREAM].started)
            continue;
        bmi__exchange_soon(&other->exchange);
        return;
    }
}

static enum action stream_receive_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    if (!stream_fits_locked(peer, request))
        return NOTHING; /* for memory of other requests, each of which has its time-out */
    request->stream = malloc((size_t)request->head.stream);
    request->list_buffer = request->stream;
    request->list_size = (bmi_size_t)request->head.stream;
    if (request->stream == NULL)
        give_up_locked(peer, request, -ENOMEM);
    else
        bmi__part_receive_locked(peer, &request->exchange, PART_STREAM, &request->list_buffer,
                                 &request->list_size, 1, request->list_size);
    streams_look_locked(peer);
    return AGAIN;
}

/* What the service has unpacked is received. */
static void body_receive_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    struct bmi_message *arguments = &request->arguments;
    request->stage = BODY;
    if (apart(request, RPC_BODY_APART) && !(request->exchange.absent & PART_BIT(PART_BODY)))
        bmi__part_receive_locked(peer, &request->exchange, PART_BODY,
                                 &arguments->buffers[MESSAGE_BODY], &arguments->sizes[MESSAGE_BODY],
                                 arguments->count - MESSAGE_BODY, arguments->body);
}

static void arguments_open(struct bmi_rpc_request *request)
{
    const uint8_t *here = (const uint8_t *)request->bytes + request->head_length;
    bool stream_apart = apart(request, RPC_STREAM_APART);
    const uint8_t *stream = stream_apart ? request->stream : here;
    const uint8_t *body = stream_apart ? here : here + request->head.stream;
    bmi__message_open(&request->arguments, stream, (size_t)request->head.stream,
                      apart(request, RPC_BODY_APART) ? NULL : body, (bmi_size_t)request->head.body);
}

/* The poller, without a peer's lock. */
static void arrived_call(struct bmi_rpc_request *request)
{
    const struct bmi_rpc_service *calls = &request->service->calls;
    int status = 0;
    arguments_open(request);
    if (calls->arrived != NULL) {
        request->service_knows = true;
        status = calls->arrived(request, &request->arguments);
    }
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    if (status == BMI_RPC_LATER && !request->resumed) {
        request->stage = DEFERRED;
    } else {
        int placed = bmi__message_placed(&request->arguments);
        if (status >= 0)
            status = placed;
        if (status < 0)
            give_up_locked(peer, request, status);
        else
            body_receive_locked(peer, request);
    }
    bmi__exchange_unlock(peer);
}

int bmi_rpc_resume(struct bmi_rpc_request *request)
{
    if (request == NULL)
        return -BMI_EINVAL;
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    bool deferred = request->stage == DEFERRED;
    bool early = request->stage == UNPACKING && !request->resumed;
    request->resumed |= early;
    if (deferred) {
        int status = bmi__message_placed(&request->arguments);
        if (request->cancel_arrived || request->exchange.ended)
            status = BMI__CANCELLED;
        if (status < 0)
            give_up_locked(peer, request, status);
        else
            body_receive_locked(peer, request);
        bmi__exchange_soon(&request->exchange);
    }
    bmi__exchange_unlock(peer);
    return deferred || early ? 0 : -BMI_EINVAL;
}

/* Discards the announced messages that have no receive. */
static void rest_discard_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    static const uint32_t flags[PARTS] = {0, RPC_STREAM_APART, RPC_BODY_APART};
    struct exchange *exchange = &request->exchange;
    for (int i = PART_STREAM; i < PARTS; i++)
        if (apart(request, flags[i]) && !(exchange->absent & PART_BIT(i)) &&
            !exchange->in[i].started && is_alive(peer, request))
            bmi__part_receive_locked(peer, exchange, i, NULL, NULL, 0, 0);
}

/* The request's caller has cancelled it, or has gone. */
static void cancelled_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    atomic_store(&request->is_cancelled, true);
    if (request->stage == RUNNING || request->stage == DEFERRED || request->stage == FORWARDED) {
        reply_send_locked(peer, request, BMI__CANCELLED, NULL);
        if (!request->told && request->stage == FORWARDED)
            bmi__exchange_late(&request->exchange, LATE_FORWARD);
        else if (!request->told && request->service->calls.cancelled != NULL)
            bmi__exchange_late(&request->exchange, LATE_CANCELLED);
        request->told = true;
    } else if (request->stage != READY) { /* the run, which is queued, sees it */
        give_up_locked(peer, request,
                       request->exchange.ended ? request->exchange.end_error : BMI__CANCELLED);
    }
}

static enum action ending_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    rest_discard_locked(peer, request);
    if (request->exchange.outstanding > 0)
        return wait_locked(request);
    wait_over_locked(request);
    for (int i = 0; i < PARTS; i++)
        if (request->status == 0 && request->exchange.out[i].error < 0)
            request->status =
                request->reply_withdrawn ? -ETIMEDOUT : request->exchange.out[i].error;
    if (request->reply_withdrawn)
        withdrawn_send_locked(peer, request);
    bmi__exchange_leave_locked(peer, &request->exchange);
    if (apart(request, RPC_STREAM_APART))
        streams_look_locked(peer);
    bmi__exchange_late(&request->exchange, LATE_END);
    return NOTHING;
}

static enum action next_locked(struct peer *peer, struct bmi_rpc_request *request)
{
    const struct part *in = request->exchange.in;
    if (bmi__absent_awaited_locked(&request->exchange)) {
        bmi__exchange_late(&request->exchange, LATE_WITHDRAW);
        return NOTHING;
    }
    if ((request->cancel_arrived || request->exchange.ended) && request->stage != ENDING) {
        cancelled_locked(peer, request);
        if (request->stage != ENDING)
            return NOTHING;
    }
    if (request->timed_out)
        return timed_out_locked(peer, request);
    switch (request->stage) {
    case ARRIVED:
        request->stage = STREAM;
        return READ_HEAD;
    case STREAM:
        if (request->service == NULL)
            give_up_locked(peer, request, -BMI_ENOSYS);
        else if (apart(request, RPC_STREAM_APART) && !in[PART_STREAM].started)
            return stream_receive_locked(peer, request);
        else if (in[PART_STREAM].op != NULL)
            return wait_locked(request);
        else if (in[PART_STREAM].error < 0)
            give_up_locked(peer, request, in[PART_STREAM].error);
        else
            request->stage = UNPACK;
        return AGAIN;
    case UNPACK:
        wait_over_locked(request);
        request->stage = UNPACKING;
        return CALL_ARRIVED;
    case BODY:
        if (in[PART_BODY].op != NULL)
            return wait_locked(request);
        wait_over_locked(request);
        if (in[PART_BODY].error < 0) {
            give_up_locked(peer, request, in[PART_BODY].error);
            return AGAIN;
        }
        request->stage = READY;
        return RUN;
    case ENDING:
        return ending_locked(peer, request);
    default:
        return NOTHING;
    }
}

/* The operation is gone: nobody else knows the request. */
static void request_over(struct bmi_rpc_request *request)
{
    struct service *service = request->service;
    bmi_error_code_t status = bmi__error(request->status);
    BMI_PROBE(2, serve_end, request, request->status);
    if (service != NULL && status == -BMI_ECANCEL)
        atomic_fetch_add(&service->cancelled, 1);
    else if (service != NULL && status < 0)
        atomic_fetch_add(&service->failed, 1);
    if (request->service_knows && service->calls.ended != NULL)
        service->calls.ended(request, status);
    bmi__unexpected_release(request->bytes);
    request->bytes = NULL;
}

static void request_step(struct bmi_deferred *work)
{
    struct bmi_rpc_request *request = (struct bmi_rpc_request *)work;
    enum action action = request->exchange.over ? NOTHING : AGAIN;
    while (action != NOTHING && action != RUN) {
        struct peer *peer = bmi__exchange_lock(&request->exchange);
        action = next_locked(peer, request);
        bmi__exchange_unlock(peer);
        if (action == READ_HEAD)
            head_look(request);
        else if (action == CALL_ARRIVED)
            arrived_call(request);
        else if (action == RUN)
            run_queue(request);
    }
}

/* The service may have ended the request since its cancel was noticed. */
static bool is_with_service(struct bmi_rpc_request *request)
{
    struct peer *peer = bmi__exchange_lock(&request->exchange);
    bool is = request->stage == RUNNING || request->stage == DEFERRED;
    bmi__exchange_unlock(peer);
    return is;
}

static void request_late(struct bmi_deferred *late)
{
    struct bmi_rpc_request *request = (struct bmi_rpc_request *)bmi__exchange_of_late(late);
    unsigned work = request->exchange.late_work;
    request->exchange.late_work = 0;
    if ((work & LATE_CANCELLED) && !request->exchange.over && is_with_service(request))
        request->service->calls.cancelled(request);
    if ((work & LATE_FORWARD) && !request->exchange.over)
        request->forwarding->cancel(request->forwarding);
    if (request->exchange.over) {
        if (request->bytes != NULL)
            request_over(request);
        if (bmi__exchange_idle(&request->exchange))
            request_free(request);
        else
            bmi__exchange_late(&request->exchange, 0); /* after a step that is queued */
        return;
    }
    if (work & LATE_WITHDRAW)
        bmi__absent_withdraw(&request->exchange);
    if (work & LATE_TIMED_OUT)
        parts_withdraw(request);
    if (work & (LATE_WITHDRAW | LATE_TIMED_OUT))
        bmi__exchange_soon(&request->exchange);
}
