/* SPDX-License-Identifier: BSD-3-Clause
 *
 * operation.c - posts, completions, and the rules that hold for each of them: 0 is pending and its
 * id positive, 1 is done and its id 0, below 0 is refused and its id 0; a completion returns its
 * own id and user_ptr, once; a failed operation moved no bytes.
 */
#define HARNESS_INTERNAL
#include "harness.h"

#include <string.h>

enum { BATCH = 64, WAIT_MS = 60000, LEAST_BYTES_MS = 10000 };

/* Hints are ignored: every other tag has one, an invalid pointer. */
static bmi_hint hint_of(bmi_msg_tag_t tag)
{
    return (bmi_hint)(uintptr_t)(tag & 1);
}

/* ---- post ---------------------------------------------------------------------------------- */

static void op_begin(struct op *op, enum post_kind kind, bmi_size_t size)
{
    *op = (struct op){.id = -77, .sends = kind != POST_RECEIVE, .size = size, .actual = -1};
}

static void op_posted(struct rank *rank, struct op *op, int returned)
{
    op->posted = returned;
    if (returned == 0) {
        if (op->id <= 0)
            rank_fail_here(rank, true, "pending, but its id is %lld", (long long)op->id);
        rank->pending++;
        return;
    }
    op->done = true;
    if (op->id != 0)
        rank_fail_here(rank, false, "the post returned %d, but the id is %lld", returned,
                       (long long)op->id);
    if (returned < 0) {
        op->error = returned;
        op->actual = 0;
        return;
    }
    if (returned != 1)
        rank_fail_here(rank, true, "the post returned %d", returned);
    if (!rank->may_be_immediate)
        rank_fail_here(rank, true, "the post completed at once with BMI_IMMEDIATE=off");
    if (op->sends)
        op->actual = op->size;
    else if (op->actual < 0 || op->actual > op->size)
        rank_fail_here(rank, true, "immediate receive of %lld bytes into %lld",
                       (long long)op->actual, (long long)op->size);
}

void op_post(struct rank *rank, struct op *op, enum post_kind kind, BMI_addr_t peer, void *buffer,
             bmi_size_t size, bmi_msg_tag_t tag)
{
    int status;
    op_begin(op, kind, size);
    if (kind == POST_RECEIVE)
        status = BMI_post_recv(&op->id, peer, buffer, size, &op->actual, BMI_EXT_ALLOC, tag, op,
                               rank->context, hint_of(tag));
    else if (kind == POST_SEND)
        status = BMI_post_send(&op->id, peer, buffer, size, BMI_EXT_ALLOC, tag, op, rank->context,
                               hint_of(tag));
    else
        status = BMI_post_sendunexpected(&op->id, peer, buffer, size, BMI_EXT_ALLOC, tag, op,
                                         rank->context, hint_of(tag));
    op_posted(rank, op, status);
}

void op_post_list(struct rank *rank, struct op *op, enum post_kind kind, BMI_addr_t peer,
                  const struct list *list, bmi_msg_tag_t tag)
{
    const void *const *sources = (const void *const *)list->buffers;
    int status;
    op_begin(op, kind, list->total);
    if (kind == POST_RECEIVE)
        status =
            BMI_post_recv_list(&op->id, peer, list->buffers, list->sizes, list->count, list->total,
                               &op->actual, BMI_EXT_ALLOC, tag, op, rank->context, hint_of(tag));
    else if (kind == POST_SEND)
        status = BMI_post_send_list(&op->id, peer, sources, list->sizes, list->count, list->total,
                                    BMI_EXT_ALLOC, tag, op, rank->context, hint_of(tag));
    else
        status = BMI_post_sendunexpected_list(&op->id, peer, sources, list->sizes, list->count,
                                              list->total, BMI_EXT_ALLOC, tag, op, rank->context,
                                              hint_of(tag));
    op_posted(rank, op, status);
}

/* The post itself, which must not be refused. */
static void op_accepted(struct rank *rank, const struct op *op)
{
    if (op->posted < 0)
        rank_fail_here(rank, true, "the post was refused: %s", bmi_status_string(op->posted));
}

void op_send(struct rank *rank, struct op *op, const void *buffer, bmi_size_t size,
             bmi_msg_tag_t tag)
{
    op_post(rank, op, POST_SEND, rank->peer, (void *)(uintptr_t)buffer, size, tag);
    op_accepted(rank, op);
}

void op_receive(struct rank *rank, struct op *op, void *buffer, bmi_size_t size, bmi_msg_tag_t tag)
{
    op_post(rank, op, POST_RECEIVE, rank->peer, buffer, size, tag);
    op_accepted(rank, op);
}

void op_send_unexpected(struct rank *rank, struct op *op, const void *buffer, bmi_size_t size,
                        bmi_msg_tag_t tag)
{
    op_post(rank, op, POST_UNEXPECTED, rank->peer, (void *)(uintptr_t)buffer, size, tag);
    op_accepted(rank, op);
}

void op_send_list(struct rank *rank, struct op *op, const struct list *list, bmi_msg_tag_t tag)
{
    op_post_list(rank, op, POST_SEND, rank->peer, list, tag);
    op_accepted(rank, op);
}

void op_receive_list(struct rank *rank, struct op *op, const struct list *list, bmi_msg_tag_t tag)
{
    op_post_list(rank, op, POST_RECEIVE, rank->peer, list, tag);
    op_accepted(rank, op);
}

/* ---- completion ---------------------------------------------------------------------------- */

static void op_reported(struct rank *rank, struct op *op, bmi_op_id_t id, bmi_error_code_t error,
                        bmi_size_t actual)
{
    if (!op)
        rank_fail_here(rank, true, "a completion without its user_ptr");
    if (op->done || op->id != id)
        rank_fail_here(rank, true, "operation %lld is reported %s with id %lld", (long long)op->id,
                       op->done ? "again" : "first", (long long)id);
    op->done = true;
    op->reports++;
    op->error = error;
    op->actual = actual;
    rank->reported++;
    if (error > 0)
        rank_fail_here(rank, false, "a positive error code %d", error);
    if (error != 0 && actual != 0)
        rank_fail_here(rank, false, "failed (%s), but %lld bytes are reported",
                       bmi_status_string(error), (long long)actual);
    if (error == 0 && (op->sends ? actual != op->size : actual < 0 || actual > op->size))
        rank_fail_here(rank, false, "%s of %lld bytes reports %lld",
                       op->sends ? "a send" : "a receive", (long long)op->size, (long long)actual);
}

int op_collect(struct rank *rank, int ms)
{
    bmi_op_id_t ids[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *user_ptrs[BATCH];
    int count = -1;
    int returned =
        BMI_testcontext(BATCH, ids, &count, errors, actuals, user_ptrs, ms, rank->context);
    if (returned < 0)
        rank_fail_here(rank, true, "BMI_testcontext: %s", bmi_status_string(returned));
    if (count < 0 || count > BATCH || returned != (count > 0))
        rank_fail_here(rank, true, "BMI_testcontext returns %d with outcount %d", returned, count);
    for (int i = 0; i < count; i++)
        op_reported(rank, user_ptrs[i], ids[i], errors[i], actuals[i]);
    return count;
}

/* Gigabytes get more time: several such tests may share two CPUs. */
void op_wait(struct rank *rank, struct op *op)
{
    int64_t wait_ms = WAIT_MS + (int64_t)op->size / LEAST_BYTES_MS;
    int64_t deadline = now_ms() + wait_ms * patience();
    while (!op->done) {
        int64_t left = deadline - now_ms();
        if (left <= 0)
            rank_fail_here(rank, true, "a %s of %lld bytes did not complete",
                           op->sends ? "send" : "receive", (long long)op->size);
        op_collect(rank, left > 1000 ? 1000 : (int)left);
    }
}

void op_finish(struct rank *rank, struct op *op, bmi_size_t size)
{
    op_wait(rank, op);
    if (op->error != 0)
        rank_fail_here(rank, true, "a %s of %lld bytes failed: %s", op->sends ? "send" : "receive",
                       (long long)op->size, bmi_status_string(op->error));
    if (op->actual != size)
        rank_fail_here(rank, true, "%lld bytes were moved, not %lld", (long long)op->actual,
                       (long long)size);
}

void op_finish_error(struct rank *rank, struct op *op, bmi_error_code_t error)
{
    op_wait(rank, op);
    if (op->error != -error)
        rank_fail_here(rank, true, "a %s of %lld bytes ended with %s, not with %s",
                       op->sends ? "send" : "receive", (long long)op->size,
                       bmi_status_string(op->error), bmi_status_string(error));
}

void op_cancel(struct rank *rank, struct op *op, bool may_succeed)
{
    if (!op->done) {
        int status = BMI_cancel(op->id, rank->context);
        if (status != 0)
            rank_fail_here(rank, true, "BMI_cancel: %s", bmi_status_string(status));
    }
    op_wait(rank, op);
    if (op->error != -BMI_ECANCEL && !(may_succeed && op->error == 0))
        rank_fail_here(rank, true, "cancelled, the %s ended with %s",
                       op->sends ? "send" : "receive", bmi_status_string(op->error));
}

void none_unmatched(struct rank *rank)
{
    struct bmi_statistics now = statistics_of(rank, 0);
    for (int64_t until = now_ms() + 10000; now.unmatched_messages > 0 && now_ms() < until;) {
        op_collect(rank, 10);
        now = statistics_of(rank, 0);
    }
    CHECK_EQUAL(rank, now.unmatched_messages, 0);
}

bool error_is_loss(bmi_error_code_t error)
{
    static const int losses[] = {BMI_ECONNRESET,  BMI_ECONNREFUSED, BMI_ETIMEDOUT, BMI_EHOSTUNREACH,
                                 BMI_ENETUNREACH, BMI_EHOSTDOWN,    BMI_ENETRESET};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        if (error == -losses[i])
            return true;
    }
    return false;
}

/* ---- unexpected ---------------------------------------------------------------------------- */

void unexpected_take(struct rank *rank, struct BMI_unexpected_info *info)
{
    int64_t deadline = now_ms() + (int64_t)WAIT_MS * patience();
    int count = 0;
    while (count == 0) {
        if (now_ms() >= deadline)
            rank_fail_here(rank, true, "no unexpected message came");
        count = -1;
        int returned = BMI_testunexpected(1, &count, info, 100);
        if (returned < 0)
            rank_fail_here(rank, true, "BMI_testunexpected: %s", bmi_status_string(returned));
        if (count < 0 || count > 1 || returned != count)
            rank_fail_here(rank, true, "BMI_testunexpected returns %d with outcount %d", returned,
                           count);
        if (count == 0 && rank->context)
            op_collect(rank, 0);
    }
    if (info->error_code != 0 || info->addr == 0 || info->size < 0)
        rank_fail_here(rank, true, "unexpected message: error %d, addr %lld, size %lld",
                       info->error_code, (long long)info->addr, (long long)info->size);
}

void unexpected_give_back(struct rank *rank, struct BMI_unexpected_info *info)
{
    int status = BMI_unexpected_free(info->addr, info->buffer);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_unexpected_free: %s", bmi_status_string(status));
    info->buffer = NULL;
}

/* ---- one message --------------------------------------------------------------------------- */

static void message_send(struct rank *rank, bmi_size_t size, bmi_msg_tag_t tag,
                         enum message_order order)
{
    struct op op;
    void *buffer = memory_take(rank, size);
    pattern_fill(buffer, size, (uint64_t)tag);
    if (order == RECEIVE_FIRST)
        rank_barrier(rank);
    op_send(rank, &op, buffer, size, tag);
    if (order == SEND_FIRST)
        rank_barrier(rank);
    op_finish(rank, &op, size);
    memory_give_back(buffer);
}

static void message_receive(struct rank *rank, bmi_size_t size, bmi_msg_tag_t tag,
                            enum message_order order)
{
    struct op op;
    char *buffer = memory_take(rank, size);
    if (order == SEND_FIRST)
        rank_barrier(rank);
    op_receive(rank, &op, buffer, size, tag);
    if (order == RECEIVE_FIRST)
        rank_barrier(rank);
    op_finish(rank, &op, size);
    if (!pattern_holds(buffer, size, (uint64_t)tag))
        rank_fail_here(rank, false, "the %lld bytes of tag %d are wrong", (long long)size, tag);
    memory_give_back(buffer);
}

void message_pass(struct rank *rank, bmi_size_t size, bmi_msg_tag_t tag, enum message_order order)
{
    if (rank->role == SENDER)
        message_send(rank, size, tag, order);
    else
        message_receive(rank, size, tag, order);
}

void rank_warm_up(struct rank *rank)
{
    struct op send, receive;
    char byte = 'w', other;
    op_receive(rank, &receive, &other, 1, 0x77000000 + rank_other(rank));
    op_send(rank, &send, &byte, 1, 0x77000000 + rank->role);
    op_finish(rank, &send, 1);
    op_finish(rank, &receive, 1);
    rank_barrier(rank);
}

void message_pass_self(struct rank *rank)
{
    struct op send, receive;
    char from[100], to[sizeof from];
    pattern_fill(from, sizeof from, 99);
    op_receive(rank, &receive, to, sizeof to, 99);
    op_send(rank, &send, from, sizeof from, 99);
    op_finish(rank, &send, sizeof from);
    op_finish(rank, &receive, sizeof to);
    if (!pattern_holds(to, sizeof to, 99))
        rank_fail_here(rank, false, "a small message to itself is wrong");
}
