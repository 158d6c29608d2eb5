/* SPDX-License-Identifier: BSD-3-Clause
 *
 * call.c - the caller's side.
 *
 * A call first posts a receive for the reply's header, then the request's header, and behind it the
 * stream and the body, if they travel apart. The server sends one reply to each request, whatever
 * happens to it, or a CANCEL of its reply; so the receive for the header ends, at the latest with
 * the link. When the reply's header is there, the program unpacks its stream, and the body is
 * received to the places that it names. The step looks at the parts that have ended and does the
 * next thing.
 *
 * A call that has to end early withdraws what it has not sent. It is reported once no memory of the
 * program is lent any more. If the request's header has gone, the server gets a CANCEL, and the
 * call lives on, as an orphan, until the reply has come: its messages are discarded.
 */
#include "bmi/rpc/call.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/clock.h"
#include "bmi/base/crypto.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/probe.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/op_end.h"
#include "bmi/state/liveness.h"

struct call {
    struct exchange exchange; /* first */
    struct call *spare_next;  /* while it is kept for a later call */
    struct bmi_message *request;
    struct bmi_message reply;
    struct bmi_timer deadline;
    bmi_rpc_unpack unpack;
    void *argument;
    bmi_size_t reply_max;
    uint64_t due_ns;
    int error;              /* why it ends: a negated errno, or a BMI error; 0 */
    uint32_t request_flags; /* enum rpc_flags */
    struct rpc_head reply_head;
    uint8_t *reply_stream; /* that travelled apart */
    bool one_way;
    bool head_read, stream_read; /* of the reply */
    bool withdrawn;              /* the parts under way were cancelled */
    bool withdrawn_all;          /* the receive for the reply as well */
    bool reported;
    bool cancel_sent;
    uint8_t head[RPC_HEAD_MAX]; /* the request's */
    void *list_buffer;          /* of the part that is one piece of memory */
    bmi_size_t list_size;
    _Alignas(8) uint8_t reply_bytes[RPC_MESSAGE_MAX];
};

/* What the step has to do without the lock. */
enum action {
    NOTHING,
    AGAIN,
    READ_HEAD,
    READ_STREAM,
    WITHDRAW_ABSENT,
    WITHDRAW,
    WITHDRAW_ALL,
    FREE
};

enum { LATE_WITHDRAW = 1, LATE_WITHDRAW_ALL = 2 };

static void call_step(struct bmi_deferred *work);
static void call_late(struct bmi_deferred *late);

static struct call *call_of(struct exchange *exchange)
{
    return (struct call *)exchange;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Calls are kept for the next ones: to free the memory of many makes malloc return it to the
 * system, which costs more than the calls. */
enum { SPARES = 128 };

struct bmi__calls {
    atomic_uint numbers;        /* of the next call; begins at a random one */
    pthread_mutex_t spare_lock; /* innermost */
    struct call *spares;        /* spare_lock; by spare_next */
    unsigned spare_count;       /* spare_lock */
};

static struct call *call_take(struct bmi__calls *calls)
{
    pthread_mutex_lock(&calls->spare_lock);
    struct call *call = calls->spares;
    if (call != NULL) {
        calls->spares = call->spare_next;
        calls->spare_count--;
    }
    pthread_mutex_unlock(&calls->spare_lock);
    return call != NULL ? call : malloc(sizeof *call);
}

static void call_give(struct call *call)
{
    struct bmi__calls *calls = call->exchange.instance->calls;
    pthread_mutex_lock(&calls->spare_lock);
    bool keep = calls->spare_count < SPARES;
    if (keep) {
        call->spare_next = calls->spares;
        calls->spares = call;
        calls->spare_count++;
    }
    pthread_mutex_unlock(&calls->spare_lock);
    if (!keep)
        free(call);
}

int bmi__calls_open(struct bmi_instance *instance)
{
    struct bmi__calls *calls = calloc(1, sizeof *calls);
    if (calls == NULL)
        return -ENOMEM;
    unsigned first = 0;
    pthread_mutex_init(&calls->spare_lock, NULL);
    instance->calls = calls;
    int status = bmi__random(instance, &first, sizeof first);
    atomic_init(&calls->numbers, first);
    return status;
}

void bmi__calls_close(struct bmi_instance *instance)
{
    struct bmi__calls *calls = instance->calls;
    while (calls != NULL && calls->spares != NULL) {
        struct call *call = calls->spares;
        calls->spares = call->spare_next;
        free(call);
    }
    free(calls);
    instance->calls = NULL;
}

static void call_release(struct call *call)
{
    bmi_message_free(call->request);
    bmi__message_clear(&call->reply);
    free(call->reply_stream);
    call_give(call);
}

void bmi__call_free(struct exchange *exchange)
{
    call_release(call_of(exchange));
}

void bmi__call_refused(struct call *call, int status)
{
    (void)status;
    BMI_PROBE(2, call_end, call, status);
    call_release(call);
}

/* Writes the request's header, and decides what travels with it. */
static void head_write(struct call *call, const char *service)
{
    struct bmi_message *request = call->request;
    struct rpc_head head = {.kind = RPC_REQUEST,
                            .flags = call->one_way ? RPC_ONE_WAY : 0,
                            .stream = request->stream_size,
                            .body = (uint64_t)request->body,
                            .reply_room = sizeof call->reply_bytes};
    strncpy(head.name, service, sizeof head.name - 1);
    bmi__rpc_head_split(&head, RPC_REQUEST_EXPRESS_MAX, RPC_MESSAGE_MAX - RPC_HEAD_MAX);
    call->request_flags = head.flags;
    request->buffers[MESSAGE_HEAD] = call->head;
    request->sizes[MESSAGE_HEAD] = (bmi_size_t)bmi__rpc_head_encode(call->head, &head);
}

int bmi__call_make(struct bmi_instance *instance, const char *service, struct bmi_message *request,
                   bmi_rpc_unpack unpack, void *argument, const struct bmi_rpc_options *options,
                   struct call **result)
{
    struct bmi__calls *calls = instance->calls;
    if (service == NULL || service[0] == '\0')
        return -BMI_EINVAL;
    if (strnlen(service, BMI_RPC_NAME_MAX) == BMI_RPC_NAME_MAX)
        return -BMI_ENAMETOOLONG;
    if (options != NULL && (options->timeout_ms < 0 || options->reply_max < 0))
        return -BMI_EINVAL;
    int status = request != NULL ? bmi__message_close(request) : 0;
    if (status < 0)
        return status;
    struct call *call = call_take(calls);
    if (call == NULL)
        return -BMI_ENOMEM;
    memset(call, 0, offsetof(struct call, reply_bytes));
    bmi__message_init(&call->reply);
    bmi__exchange_init(instance, &call->exchange, true,
                       (int32_t)atomic_fetch_add(&calls->numbers, 1), call_step, call_late);
    call->request = request != NULL ? request : bmi_message_new();
    call->unpack = unpack;
    call->argument = argument;
    if (options != NULL) {
        call->reply_max = options->reply_max;
        call->one_way = options->one_way;
        call->due_ns = options->timeout_ms > 0 ? bmi__instance_now_ns(instance) +
                                                     (uint64_t)options->timeout_ms * 1000000u
                                               : 0;
    }
    if (call->request == NULL || (request == NULL && bmi__message_close(call->request) < 0)) {
        call_release(call);
        return -BMI_ENOMEM;
    }
    head_write(call, service);
    BMI_PROBE(2, call_begin, call, service);
    *result = call;
    return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool rest_wanted(const struct call *call)
{
    const struct part *out = call->exchange.out;
    return ((call->request_flags & RPC_STREAM_APART) && !out[PART_STREAM].started) ||
           ((call->request_flags & RPC_BODY_APART) && !out[PART_BODY].started);
}

/* The poller, which clears the timer before it frees the call. */
static void deadline_expired(struct bmi_timer *timer)
{
    struct call *call = (struct call *)((char *)timer - offsetof(struct call, deadline));
    struct peer *peer = bmi__exchange_lock(&call->exchange);
    bmi__exchange_end_locked(call->exchange.op, -ETIMEDOUT);
    peer_unlock(peer);
}

static void deadline_set(struct call *call)
{
    if (call->due_ns == 0)
        return;
    uint64_t now = bmi__instance_now_ns(call->exchange.instance);
    call->deadline.expired = deadline_expired;
    bmi_method_timer_set(call->exchange.instance, &call->deadline,
                         call->due_ns > now ? (call->due_ns - now + 999999) / 1000000 : 0);
}

/* A header that has no credit yet is not on its way: the rest waits for it, so that the server can
 * place the rest when it comes. */
void bmi__call_start_locked(struct peer *peer, struct op *op)
{
    struct call *call = op->buffer;
    struct exchange *exchange = &call->exchange;
    bmi__exchange_posted_locked(exchange, op);
    if (!exchange->is_call || exchange->out[PART_HEAD].started || exchange->ended)
        return; /* moved to another peer, with its parts; or cancelled before */
    deadline_set(call);
    if (op->stage == STAGE_NEXT)
        return;
    call->list_buffer = call->reply_bytes;
    call->list_size = sizeof call->reply_bytes;
    if (!call->one_way)
        bmi__part_receive_locked(peer, exchange, PART_HEAD, &call->list_buffer, &call->list_size, 1,
                                 call->list_size);
    bmi__message_head_send_locked(peer, exchange, call->request, call->request_flags);
    const struct op *head = exchange->out[PART_HEAD].op;
    bool gone = exchange->out[PART_HEAD].done && exchange->out[PART_HEAD].error == 0;
    if (peer->state == PEER_UP && (gone || (head != NULL && head->stage == SEND_FRAME)))
        bmi__message_rest_send_locked(peer, exchange, call->request, call->request_flags);
}

/* ---- the reply ------------------------------------------------------------------------------- */

static void error_note(struct call *call, int error)
{
    if (call->error == 0)
        call->error = error;
}

/* The stream is there, and the body if it came with it: the program unpacks. */
static void unpack(struct call *call, const uint8_t *stream, const uint8_t *body)
{
    const struct rpc_head *head = &call->reply_head;
    bmi__message_open(&call->reply, stream, (size_t)head->stream, body, (bmi_size_t)head->body);
    int status = 0;
    if (call->unpack != NULL)
        status = call->unpack(&call->reply, call->argument);
    int placed = bmi__message_placed(&call->reply);
    if (status >= 0)
        status = placed;
    if (status >= 0 && call->reply.cursor != call->reply.end)
        status = -BMI_EBADMSG; /* pieces are left */
    error_note(call, status < 0 ? status : 0);
    call->stream_read = true;
}

/* The poller, without a lock. */
static void head_read(struct call *call)
{
    struct rpc_head *head = &call->reply_head;
    const struct part *part = &call->exchange.in[PART_HEAD];
    size_t size = part->error == 0 ? (size_t)part->size : 0;
    int length = bmi__rpc_head_decode(call->reply_bytes, size, head);
    if (length < 0 || head->kind != RPC_REPLY) {
        *head = (struct rpc_head){0};
        error_note(call, -BMI_EPROTO);
        return;
    }
    if (call->error == 0 && head->status < 0)
        error_note(call, bmi__error(head->status));
    if (call->error == 0 && call->reply_max > 0 &&
        head->stream + head->body > (uint64_t)call->reply_max)
        error_note(call, -BMI_EMSGSIZE);
    if (call->error != 0 || (head->flags & RPC_STREAM_APART))
        return;
    const uint8_t *stream = call->reply_bytes + length;
    unpack(call, stream, head->flags & RPC_BODY_APART ? NULL : stream + head->stream);
}

static void stream_receive_locked(struct peer *peer, struct call *call)
{
    size_t size = (size_t)call->reply_head.stream;
    call->reply_stream = malloc(size);
    call->list_buffer = call->reply_stream;
    call->list_size = (bmi_size_t)size;
    if (call->reply_stream == NULL)
        error_note(call, -BMI_ENOMEM);
    else
        bmi__part_receive_locked(peer, &call->exchange, PART_STREAM, &call->list_buffer,
                                 &call->list_size, 1, call->list_size);
}

static void body_receive_locked(struct peer *peer, struct call *call)
{
    struct bmi_message *reply = &call->reply;
    bmi__part_receive_locked(peer, &call->exchange, PART_BODY, &reply->buffers[MESSAGE_BODY],
                             &reply->sizes[MESSAGE_BODY], reply->count - MESSAGE_BODY, reply->body);
}

/* Of the reply's messages that travel apart, the one that is to be received next. */
static bool wanted(const struct call *call, int which, uint32_t flag)
{
    const struct exchange *exchange = &call->exchange;
    return (call->reply_head.flags & flag) && !exchange->in[which].started &&
           !(exchange->absent & PART_BIT(which));
}

void bmi__reply_withdrawn_locked(struct peer *peer, int32_t number, uint8_t flags)
{
    struct exchange *exchange = bmi__exchange_find_locked(peer, true, number);
    bmi__exchange_absent_locked(peer, exchange, wire_tag_of(SPACE_REPLY, number), flags);
    if (exchange == NULL)
        return; /* it ended before */
    bmi__exchange_end_locked(exchange->op, -ETIMEDOUT);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* The error of the call where the receive of a part has failed. */
static int part_error(int error)
{
    if (error == BMI__CANCELLED)
        return -ETIMEDOUT; /* the server has withdrawn it; a CANCEL comes */
    return error == -EMSGSIZE ? -EPROTO : error;
}

static void errors_collect_locked(struct call *call)
{
    struct exchange *exchange = &call->exchange;
    if (exchange->ended)
        error_note(call, exchange->end_error);
    for (int i = 0; i < PARTS; i++) {
        if (exchange->out[i].done && exchange->out[i].error < 0)
            error_note(call, exchange->out[i].error);
        if (exchange->in[i].done && exchange->in[i].error < 0)
            error_note(call, part_error(exchange->in[i].error));
    }
}

/* Hands the result to the program. */
static void report_locked(struct call *call, struct op *op)
{
    bmi_size_t size =
        call->error == 0 ? (bmi_size_t)(call->reply_head.stream + call->reply_head.body) : 0;
    call->reported = true;
    BMI_PROBE(2, call_end, call, call->error);
    op->buffer = NULL;
    if (call->due_ns != 0)
        bmi_method_timer_clear(call->exchange.instance, &call->deadline);
    bmi__op_complete_locked(op, call->error, size);
}

static enum action going_on_locked(struct peer *peer, struct call *call)
{
    struct exchange *exchange = &call->exchange;
    if (rest_wanted(call) && exchange->out[PART_HEAD].done) {
        bmi__message_rest_send_locked(peer, exchange, call->request, call->request_flags);
        return AGAIN;
    }
    if (exchange->in[PART_HEAD].done && !call->head_read)
        return READ_HEAD;
    if (call->head_read && wanted(call, PART_STREAM, RPC_STREAM_APART)) {
        stream_receive_locked(peer, call);
        return AGAIN;
    }
    if (exchange->in[PART_STREAM].done && !call->stream_read)
        return READ_STREAM;
    if (call->stream_read && wanted(call, PART_BODY, RPC_BODY_APART)) {
        body_receive_locked(peer, call);
        return AGAIN;
    }
    if (exchange->outstanding > 0 || (!call->one_way && !call->head_read))
        return NOTHING;
    report_locked(call, exchange->op);
    exchange->over = true;
    return FREE;
}

/* Whether the request's header is with the server. */
static bool is_known(const struct call *call)
{
    const struct part *head = &call->exchange.out[PART_HEAD];
    return head->done && head->error == 0;
}

static bool was_withdrawn(const struct call *call, int which, uint32_t flag)
{
    const struct part *part = &call->exchange.out[which];
    return (call->request_flags & flag) && (!part->started || part->error < 0);
}

/* The server learns that the call is cancelled, and which of its messages will not come. That needs
 * no credit: requests for which the server has none may wait for it. */
static void cancel_send_locked(struct peer *peer, struct call *call)
{
    struct exchange *exchange = &call->exchange;
    struct wire_header cancel = {.type = WIRE_CANCEL,
                                 .tag = wire_tag_of(SPACE_REQUEST, exchange->number)};
    cancel.flags |= was_withdrawn(call, PART_STREAM, RPC_STREAM_APART) ? WIRE_NO_STREAM : 0;
    cancel.flags |= was_withdrawn(call, PART_BODY, RPC_BODY_APART) ? WIRE_NO_BODY : 0;
    call->cancel_sent = true;
    bool answered =
        exchange->in[PART_HEAD].done || call->one_way || (exchange->absent & PART_BIT(PART_HEAD));
    if (bmi__exchange_up_locked(peer, exchange) && (!answered || cancel.flags != 0))
        bmi__control_send_locked(peer, cancel, NULL, 0);
}

/* The program has its result. Receives what the server still sends, and drops it. */
static enum action orphan_locked(struct peer *peer, struct call *call)
{
    struct exchange *exchange = &call->exchange;
    if (is_known(call) && !call->cancel_sent) {
        cancel_send_locked(peer, call);
        return AGAIN;
    }
    if (exchange->in[PART_HEAD].done && !call->head_read)
        return READ_HEAD;
    bool up = bmi__exchange_up_locked(peer, exchange) && exchange->in[PART_HEAD].error == 0;
    if (up && call->head_read && wanted(call, PART_STREAM, RPC_STREAM_APART)) {
        bmi__part_receive_locked(peer, exchange, PART_STREAM, NULL, NULL, 0, 0);
        return AGAIN;
    }
    if (up && call->head_read && wanted(call, PART_BODY, RPC_BODY_APART)) {
        bmi__part_receive_locked(peer, exchange, PART_BODY, NULL, NULL, 0, 0);
        return AGAIN;
    }
    if (exchange->outstanding > 0)
        return NOTHING;
    bmi__exchange_leave_locked(peer, exchange);
    return FREE;
}

/* Whether something is to be done after the program has its result. */
static bool orphan_wanted_locked(const struct peer *peer, const struct call *call)
{
    bool reply = !call->one_way && !call->exchange.in[PART_HEAD].done;
    bool more = was_withdrawn(call, PART_STREAM, RPC_STREAM_APART) ||
                was_withdrawn(call, PART_BODY, RPC_BODY_APART) || reply ||
                wanted(call, PART_STREAM, RPC_STREAM_APART) ||
                wanted(call, PART_BODY, RPC_BODY_APART);
    return call->exchange.outstanding > 0 || (more && is_known(call) && peer->state == PEER_UP);
}

static enum action ending_locked(struct peer *peer, struct call *call)
{
    struct exchange *exchange = &call->exchange;
    if (exchange->in[PART_HEAD].done && !call->head_read)
        return READ_HEAD; /* it announces the messages to discard */
    bool failed_there = exchange->in[PART_HEAD].done && !exchange->ended;
    bool lent = !bmi__parts_none_locked(exchange->out) || exchange->in[PART_STREAM].op != NULL ||
                exchange->in[PART_BODY].op != NULL;
    if (lent && !call->withdrawn && !failed_there) {
        call->withdrawn = true;
        return WITHDRAW;
    }
    if (lent)
        return NOTHING; /* a failed request's messages are discarded by the server */
    if (exchange->in[PART_HEAD].op != NULL && !is_known(call)) {
        bool asked = call->withdrawn_all;
        call->withdrawn_all = true;
        return asked ? NOTHING : WITHDRAW_ALL; /* nothing has gone, so no reply will come */
    }
    struct op *op = exchange->op;
    bool orphan = orphan_wanted_locked(peer, call);
    if (orphan && !bmi__exchange_adopt_locked(peer, exchange)) {
        bmi__peer_fail_locked(peer, -ENOMEM, "no memory to end a call");
        return NOTHING; /* the parts end with the link */
    }
    report_locked(call, op);
    exchange->over = !orphan;
    bmi_message_free(call->request); /* no part of it is under way */
    call->request = NULL;
    return orphan ? AGAIN : FREE;
}

static enum action next_locked(struct peer *peer, struct call *call)
{
    if (!call->reported)
        errors_collect_locked(call);
    if (bmi__absent_awaited_locked(&call->exchange))
        return WITHDRAW_ABSENT;
    if (call->reported)
        return orphan_locked(peer, call);
    return call->error == 0 ? going_on_locked(peer, call) : ending_locked(peer, call);
}

/* Without its header the server would not know the rest: once that has begun, the header goes. */
static void parts_withdraw(struct call *call, bool all)
{
    bmi_op_id_t ids[2 * PARTS];
    struct exchange *exchange = &call->exchange;
    struct peer *peer = bmi__exchange_lock(exchange);
    bool begun = exchange->out[PART_STREAM].started || exchange->out[PART_BODY].started;
    int count = bmi__parts_list_locked(exchange->out, begun ? PART_STREAM : PART_HEAD, ids, 0);
    count = bmi__parts_list_locked(exchange->in, all ? PART_HEAD : PART_STREAM, ids, count);
    peer_unlock(peer);
    bmi__parts_cancel(ids, count, !all);
}

static void call_step(struct bmi_deferred *work)
{
    struct call *call = (struct call *)work;
    struct exchange *exchange = &call->exchange;
    enum action action = exchange->over ? FREE : AGAIN;
    while (action != NOTHING && action != FREE) {
        struct peer *peer = bmi__exchange_lock(exchange);
        action = next_locked(peer, call);
        bmi__exchange_unlock(peer);
        if (action == READ_HEAD) {
            call->head_read = true;
            head_read(call);
        } else if (action == READ_STREAM) {
            bool apart = (call->reply_head.flags & RPC_BODY_APART) != 0;
            unpack(call, call->reply_stream, apart ? NULL : call->reply_bytes + RPC_HEAD);
        } else if (action == WITHDRAW_ABSENT || action == WITHDRAW || action == WITHDRAW_ALL) {
            bmi__exchange_late(exchange, action == WITHDRAW       ? LATE_WITHDRAW
                                         : action == WITHDRAW_ALL ? LATE_WITHDRAW_ALL
                                                                  : 0);
            action = NOTHING;
        }
    }
    if (action == FREE && bmi__exchange_idle(exchange))
        call_release(call);
}

static void call_late(struct bmi_deferred *late)
{
    struct exchange *exchange = bmi__exchange_of_late(late);
    struct call *call = call_of(exchange);
    unsigned work = exchange->late_work;
    exchange->late_work = 0;
    if (!exchange->over) {
        bmi__absent_withdraw(exchange);
        if (work != 0)
            parts_withdraw(call, (work & LATE_WITHDRAW_ALL) != 0);
        bmi__exchange_soon(exchange);
    } else if (bmi__exchange_idle(exchange)) {
        call_release(call);
    }
}
