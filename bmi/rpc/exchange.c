/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.c - see exchange.h.
 */
#include "bmi/rpc/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/base/probe.h"
#include "bmi/connection/join.h"
#include "bmi/connection/peer_end.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/work.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/op_end.h"
#include "bmi/state/context.h"
#include "bmi/state/liveness.h"

static void part_done_locked(struct peer *peer, struct op *op);

struct bmi__exchanges {
    /* Of parts, and of operations that only keep an exchange in its peer's list. */
    struct context parts_context;
};

void bmi__exchange_init(struct bmi_instance *instance, struct exchange *exchange, bool is_call,
                        int32_t number, void (*step)(struct bmi_deferred *work),
                        void (*late)(struct bmi_deferred *late))
{
    memset(exchange, 0, sizeof *exchange);
    exchange->work.run = step;
    exchange->late.run = late;
    exchange->is_call = is_call;
    exchange->number = number;
    exchange->instance = instance;
}

struct exchange *bmi__exchange_of_late(struct bmi_deferred *late)
{
    return (struct exchange *)((char *)late - offsetof(struct exchange, late));
}

void bmi__exchange_late(struct exchange *exchange, unsigned late_work)
{
    exchange->late_work |= late_work;
    bmi_method_defer(exchange->instance, &exchange->late);
}

void bmi__exchange_posted_locked(struct exchange *exchange, struct op *op)
{
    if (exchange->op == NULL)
        exchange->op = op;
}

struct peer *bmi__exchange_lock(struct exchange *exchange)
{
    for (;;) {
        struct peer *peer = exchange->op->peer;
        if (peer == NULL)
            continue; /* it is being moved */
        peer_lock(peer);
        if (exchange->op->peer == peer)
            return peer;
        peer_unlock(peer); /* moved to the peer that is the same process */
    }
}

void bmi__exchange_unlock(struct peer *peer)
{
    bool over = peer->state == PEER_GONE && peer->op_count == 0;
    peer_unlock(peer);
    if (over)
        bmi__peer_bury(peer);
}

struct exchange *bmi__exchange_find_locked(struct peer *peer, bool is_call, int32_t number)
{
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next) {
        struct exchange *exchange = op->kind == OP_EXCHANGE ? op->buffer : NULL;
        if (exchange != NULL && exchange->is_call == is_call && exchange->number == number)
            return exchange;
    }
    return NULL;
}

void bmi__exchange_absent_locked(struct peer *peer, struct exchange *exchange, wire_tag tag,
                                 uint32_t parts)
{
    for (int i = PART_STREAM; i < PARTS; i++) {
        const struct part *in = exchange != NULL ? &exchange->in[i] : NULL;
        bool discarded = in == NULL || (in->started && in->op == NULL && in->error < 0);
        if ((parts & PART_BIT(i)) && discarded)
            bmi__tombstone_remove_locked(peer, tag, i == PART_BODY);
    }
    if (exchange != NULL)
        exchange->absent |= parts;
}

int bmi__exchange_tombstones_locked(const struct peer *peer)
{
    int count = 0;
    for (const struct op *op = peer->ops_first; op != NULL; op = op->peer_next)
        count += (op->flags & OP_TOMBSTONE) && wire_tag_space(op->tag) != SPACE_PROGRAM;
    return count;
}

void bmi__exchange_soon(struct exchange *exchange)
{
    bmi__work_soon(exchange->instance, &exchange->work);
}

static struct op *op_make(struct bmi_instance *instance, enum op_kind kind, wire_tag tag)
{
    struct op *op = bmi__op_take(instance);
    if (op == NULL)
        return NULL;
    op->kind = (uint8_t)kind;
    op->tag = tag;
    atomic_store_explicit(&op->context, &instance->exchanges->parts_context, memory_order_release);
    atomic_store(&op->state, OP_PENDING);
    return op;
}

bool bmi__exchange_adopt_locked(struct peer *peer, struct exchange *exchange)
{
    struct op *op = op_make(peer->instance, OP_EXCHANGE, 0);
    if (op == NULL)
        return false;
    op->buffer = exchange;
    exchange->op = op;
    bmi__peer_adopt_locked(peer, op);
    return true;
}

void bmi__exchange_leave_locked(struct peer *peer, struct exchange *exchange)
{
    struct op *op = exchange->op;
    bmi__op_detach_locked(peer, op);
    bmi__op_give(op);
    exchange->op = NULL;
    exchange->over = true;
}

bool bmi__exchange_idle(struct exchange *exchange)
{
    return atomic_load(&exchange->work.next) == NULL && atomic_load(&exchange->late.next) == NULL;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static struct part *part_of(struct exchange *exchange, const struct op *op)
{
    for (int i = 0; i < PARTS; i++) {
        if (exchange->out[i].op == op)
            return &exchange->out[i];
        if (exchange->in[i].op == op)
            return &exchange->in[i];
    }
    return NULL;
}

static void part_done_locked(struct peer *peer, struct op *op)
{
    struct exchange *exchange = op->user_ptr;
    struct part *part = part_of(exchange, op);
    bool any_size = part == &exchange->in[PART_HEAD] || op->kind != OP_RECV;
    (void)peer;
    part->op = NULL;
    part->done = true;
    part->error = op->error;
    if (op->error == 0 && !any_size && op->actual != op->total)
        part->error = -EPROTO; /* less than its header announced */
    part->size = op->actual;
    exchange->outstanding--;
    bmi__op_give(op);
    bmi__exchange_soon(exchange);
}

static void part_start_locked(struct peer *peer, struct exchange *exchange, struct part *part,
                              struct op *op)
{
    part->started = true;
    /* A part belongs to the connection of its header, and does not wait for the next one. */
    bool closing = (peer->flags & PEER_CLOSING) != 0;
    if (op == NULL || closing) {
        part->done = true;
        part->error = closing ? -ECONNRESET : -ENOMEM;
        if (op != NULL)
            bmi__op_give(op);
        else if (!closing && !exchange->is_call) /* its caller would wait for the reply */
            bmi__peer_fail_locked(peer, -ENOMEM, "no memory for a reply");
        bmi__exchange_soon(exchange);
        return;
    }
    op->user_ptr = exchange;
    part->op = op;
    exchange->outstanding++;
    BMI_PROBE(6, post, op, peer, op->actual /* 0, and no constant */, op->kind, op->tag, op->total);
    bmi__op_begin_locked(peer, op);
    if (peer->link != NULL && peer->state == PEER_UP)
        bmi__progress_dirty(peer->link);
}

static void list_set(struct op *op, void *const *buffers, const bmi_size_t *sizes, uint32_t count,
                     bmi_size_t total)
{
    op->total = op->size = total;
    op->list = (struct bmi_segments){.buffers = &op->buffer, .sizes = &op->size, .count = 1};
    op->list.left = total;
    if (count == 1)
        op->buffer = buffers[0];
    if (count <= 1)
        return;
    op->list.buffers = buffers;
    op->list.sizes = sizes;
    op->list.count = count;
}

void bmi__part_send_locked(struct peer *peer, struct exchange *exchange, int which,
                           void *const *buffers, const bmi_size_t *sizes, uint32_t count,
                           bmi_size_t total)
{
    bool head = which == PART_HEAD && exchange->is_call;
    enum wire_space space = exchange->is_call ? SPACE_REQUEST : SPACE_REPLY;
    struct op *op = op_make(peer->instance, head ? OP_SEND_UNEXPECTED : OP_SEND,
                            wire_tag_of(space, exchange->number));
    if (op != NULL) {
        list_set(op, buffers, sizes, count, total);
        op->flags = head ? 0 : OP_UNASKED;
    }
    part_start_locked(peer, exchange, &exchange->out[which], op);
}

/* Sends `count` entries of the message's list from `first` on. */
static void entries_send_locked(struct peer *peer, struct exchange *exchange, int which,
                                const struct bmi_message *message, uint32_t first, uint32_t count)
{
    bmi_size_t total = 0;
    for (uint32_t i = first; i < first + count; i++)
        total += message->sizes[i];
    bmi__part_send_locked(peer, exchange, which, &message->buffers[first], &message->sizes[first],
                          count, total);
}

void bmi__message_head_send_locked(struct peer *peer, struct exchange *exchange,
                                   const struct bmi_message *message, uint32_t flags)
{
    uint32_t count = message->count;
    if (flags & RPC_BODY_APART)
        count = MESSAGE_BODY;
    if (flags & RPC_STREAM_APART)
        count = MESSAGE_STREAM;
    entries_send_locked(peer, exchange, PART_HEAD, message, MESSAGE_HEAD, count);
}

void bmi__message_rest_send_locked(struct peer *peer, struct exchange *exchange,
                                   const struct bmi_message *message, uint32_t flags)
{
    if (flags & RPC_STREAM_APART)
        entries_send_locked(peer, exchange, PART_STREAM, message, MESSAGE_STREAM, 1);
    if (flags & RPC_BODY_APART)
        entries_send_locked(peer, exchange, PART_BODY, message, MESSAGE_BODY,
                            message->count - MESSAGE_BODY);
}

void bmi__part_receive_locked(struct peer *peer, struct exchange *exchange, int which,
                              void *const *buffers, const bmi_size_t *sizes, uint32_t count,
                              bmi_size_t total)
{
    enum wire_space space = exchange->is_call ? SPACE_REPLY : SPACE_REQUEST;
    struct op *op = op_make(peer->instance, OP_RECV, wire_tag_of(space, exchange->number));
    if (op != NULL)
        list_set(op, buffers, sizes, count, total);
    part_start_locked(peer, exchange, &exchange->in[which], op);
}

int bmi__parts_list_locked(const struct part parts[PARTS], int first, bmi_op_id_t ids[2 * PARTS],
                           int count)
{
    for (int i = first; i < PARTS; i++)
        if (parts[i].op != NULL)
            ids[count++] = bmi__op_id(parts[i].op);
    return count;
}

void bmi__parts_cancel(const bmi_op_id_t *ids, int count, bool discard)
{
    for (int i = 0; i < count; i++) {
        struct op *op = bmi__op_find(ids[i]);
        if (op != NULL && discard)
            bmi__discard(op, ids[i]);
        else if (op != NULL)
            bmi__cancel(op, ids[i]);
    }
}

bool bmi__absent_awaited_locked(const struct exchange *exchange)
{
    uint32_t absent = exchange->absent & ~exchange->withdrawn;
    for (int i = 0; i < PARTS; i++)
        if ((absent & PART_BIT(i)) && exchange->in[i].op != NULL)
            return true;
    return false;
}

void bmi__absent_withdraw(struct exchange *exchange)
{
    bmi_op_id_t ids[PARTS];
    int count = 0;
    struct peer *peer = bmi__exchange_lock(exchange);
    for (int i = 0; i < PARTS; i++)
        if ((exchange->absent & PART_BIT(i)) && exchange->in[i].op != NULL)
            ids[count++] = bmi__op_id(exchange->in[i].op);
    exchange->withdrawn = exchange->absent;
    peer_unlock(peer);
    bmi__parts_cancel(ids, count, false);
}

bool bmi__parts_none_locked(const struct part parts[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        if (parts[i].op != NULL)
            return false;
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void bmi__exchange_end_locked(struct op *op, int error)
{
    struct exchange *exchange = op->buffer;
    bmi__exchange_posted_locked(exchange, op);
    if (!exchange->ended)
        exchange->end_error = error;
    exchange->ended = true;
    bmi__exchange_soon(exchange);
}

static void free_one(struct op *op, void *argument)
{
    (void)argument;
    if (op->kind != OP_EXCHANGE || op->buffer == NULL)
        return;
    struct exchange *exchange = op->buffer;
    op->buffer = NULL;
    if (exchange->is_call)
        bmi__call_free(exchange);
    else
        bmi__request_free(exchange);
}

void bmi__exchanges_free(struct bmi_instance *instance)
{
    bmi__op_each(instance, free_one, NULL);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__exchanges_open(struct bmi_instance *instance)
{
    struct bmi__exchanges *exchanges = calloc(1, sizeof *exchanges);
    if (exchanges == NULL)
        return -ENOMEM;
    exchanges->parts_context.instance = instance;
    exchanges->parts_context.direct = part_done_locked;
    instance->exchanges = exchanges;
    return 0;
}

void bmi__exchanges_close(struct bmi_instance *instance)
{
    free(instance->exchanges);
    instance->exchanges = NULL;
}
