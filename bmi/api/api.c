/* SPDX-License-Identifier: BSD-3-Clause
 *
 * api.c - the post functions and cancel. A post checks its arguments, takes an operation, locks the
 * peer, and starts the protocol. Then it writes the queued frames, or leaves them to the poller.
 */
#include "bmi/api/api.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/handshake.h"
#include "bmi/progress/background.h"
#include "bmi/progress/offload.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/wakeup.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/ping.h"
#include "bmi/protocol/send.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"

/* At most this many small frames are gathered into one write. */
enum { COALESCE_FRAMES = 64 };

/* ---- flushing queued frames ---------------------------------------------------------------- */

/* The first send between two passes of progress is written at once. Later sends are left for the
 * next test, which gathers them into one write. They are flushed earlier if they become many, or if
 * only a blocked poller could write them. Called with the lock held. If a link is to be flushed,
 * the function returns it with a reference. */
static struct bmi_link *flush_wanted_locked(struct peer *peer, enum op_kind kind)
{
    struct bmi_link *link = peer->link;
    if (link == NULL || peer->state != PEER_UP)
        return NULL;
    if (kind == OP_RECV) { /* at most an announcement, which the next test or send writes */
        if (!atomic_load(&link->dirty) || !bmi__progress_asleep(peer->instance))
            return NULL;
        bmi_link_ref(link);
        return link;
    }
    uint32_t now = bmi__progress_pass(peer->instance);
    bool first = peer->flush_pass != now;
    peer->flush_pass = now;
    peer->flush_frames = first ? 0 : (uint8_t)(peer->flush_frames + 1);
    if (!first && bmi__setting(peer->instance, SETTING_COALESCE) != 0 &&
        peer->flush_frames < COALESCE_FRAMES) {
        bmi__progress_dirty(link);
        if (!bmi__progress_asleep(peer->instance))
            return NULL;
    }
    peer->flush_frames = 0;
    bmi_link_ref(link);
    return link;
}

static void flush_and_drop(struct bmi_link *link)
{
    if (link == NULL)
        return;
    if (!bmi__offload_on(link->instance) || !bmi__offload_flush(link))
        link->method->flush(link);
    bmi_link_unref(link);
}

/* ---- posting -------------------------------------------------------------------------------- */

static void op_fill(struct op *op, const struct post *post, struct context *context)
{
    op->kind = (uint8_t)post->kind;
    /* BMI_cancel relies on this order: a stale id is detected by its generation */
    atomic_store_explicit(&op->context, context, memory_order_release);
    op->user_ptr = post->user_ptr;
    op->tag = post->tag;
    op->total = post->total;
    op->buffer = post->buffer;
    op->size = post->total;
    op->list = (struct bmi_segments){.buffers = &op->buffer,
                                     .sizes = &op->size,
                                     .count = 1,
                                     .left = post->total};
    if (post->buffers != NULL) {
        op->list.buffers = post->buffers;
        op->list.sizes = post->sizes;
        op->list.count = post->count;
    }
}

static bool too_large(const struct peer *peer, const struct op *op)
{
    bmi_size_t most = peer->link != NULL ? peer->link->method->limits.unexpected_max : INT64_MAX;
    if (peer->state == PEER_UP && (bmi_size_t)peer->unexpected_max < most)
        most = (bmi_size_t)peer->unexpected_max;
    return op->kind == OP_SEND_UNEXPECTED && op->total > most;
}

/* Whether a post is for the peer's next connection: the present one is being closed, and the handle
 * was looked up, so that it can be dialled again. Either side may have made the present one. */
static bool is_for_the_next(const struct peer *peer, BMI_addr_t handle)
{
    if (!(peer->flags & PEER_CLOSING))
        return false;
    return !(peer->flags & PEER_ACCEPTED) || bmi__address_of_locked(handle)->string != NULL;
}

/* The peer's lock is held. <0: refused. */
static int start_locked(struct peer *peer, struct op *op, BMI_addr_t handle)
{
    int status = peer->state == PEER_IDLE ? bmi__dial_locked(peer) : 0;
    if (status < 0 && op->kind == OP_EXCHANGE)
        return status; /* it has not begun, so nothing would complete it */
    if (status < 0) {
        bmi__peer_adopt_locked(peer, op);
        bmi__op_complete_locked(op, status, 0);
        return 0;
    }
    if (too_large(peer, op))
        return -EMSGSIZE;
    bmi__peer_adopt_locked(peer, op);
    if (is_for_the_next(peer, handle)) {
        op->stage = STAGE_NEXT;
        if (op->kind == OP_EXCHANGE)
            peer->instance->upcalls->exchange_start_locked(peer, op);
        return 0;
    }
    if (op->kind == OP_SEND)
        bmi__send_start_locked(peer, op);
    else if (op->kind == OP_SEND_UNEXPECTED)
        bmi__unexpected_start_locked(peer, op);
    else if (op->kind == OP_PING)
        bmi__ping_start_locked(peer, op);
    else if (op->kind == OP_EXCHANGE)
        peer->instance->upcalls->exchange_start_locked(peer, op);
    else
        status = bmi__receive_start_locked(peer, op, true);
    if (status < 0)
        bmi__op_detach_locked(peer, op);
    return status;
}

/* The operation was started. Returns whether it is pending or already complete. */
static int outcome(struct op *op, const struct post *post, bmi_op_id_t *id)
{
    struct context *context = op->context;
    *id = bmi__op_id(op);
    if (bmi__op_is_first(op, OP_PENDING))
        return 0;
    bool immediate = op->kind != OP_PING && op->kind != OP_EXCHANGE;
    if (op->error != 0 || !immediate || bmi__setting(op->instance, SETTING_IMMEDIATE) == 0) {
        atomic_store(&op->state, OP_PENDING);
        bmi__context_complete(op);
        return 0;
    }
    *id = 0;
    if (post->actual != NULL)
        *post->actual = op->actual;
    bmi__context_immediate(context);
    bmi__op_give(op);
    return 1;
}

/* Whether the message was sent without an operation. Such a message is written at once, so it must
 * be the first send between two passes, or gathering must be off. */
static bool sent_now_locked(struct peer *peer, const struct post *post)
{
    uint32_t now = bmi__progress_pass(peer->instance);
    if (post->kind != OP_SEND || post->buffers != NULL ||
        (peer->flush_pass == now && bmi__setting(peer->instance, SETTING_COALESCE) != 0) ||
        bmi__setting(peer->instance, SETTING_IMMEDIATE) == 0 || bmi__offload_on(peer->instance) ||
        !bmi__send_now_locked(peer, post->tag, post->buffer, post->total))
        return false;
    peer->flush_pass = now;
    peer->flush_frames = 0;
    return true;
}

/* A program that posts after a long pause may not have called a test function meanwhile. If the
 * peer closed its idle connection or was restarted, this process has not noticed. A message written
 * to that connection would be lost and yet reported as sent. So, if there is no poller, this makes
 * a few passes first. */
static void catch_up(struct bmi_instance *instance, enum op_kind kind)
{
    enum { PAUSE_MS = 100 };
    /* a receive was posted: the number of the pass, and whose */
    static _Thread_local uint32_t received;
    static _Thread_local const struct bmi_instance *received_by;
    uint32_t pass = bmi__progress_pass(instance) | 1;
    struct timespec now;
    /* A send that comes with a receive, as requests and replies do, does not read the clock. */
    bool alone = received != pass || received_by != instance;
    received = kind == OP_RECV ? pass : 0;
    received_by = instance;
    if (!alone && kind != OP_RECV)
        return;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint32_t now_ms = (uint32_t)now.tv_sec * 1000 + (uint32_t)(now.tv_nsec / 1000000);
    uint32_t before = atomic_load_explicit(&instance->posted_ms, memory_order_relaxed);
    if (now_ms == before)
        return;
    atomic_store_explicit(&instance->posted_ms, now_ms, memory_order_relaxed);
    bmi__background_posted(instance);
    if (now_ms - before > PAUSE_MS)
        bmi__progress_catch_up(instance);
}

static void mixed_log(struct bmi_instance *instance, BMI_addr_t address)
{
    const struct bmi_instance *other = bmi_instance_of_addr(address);
    if (other != NULL && other != instance)
        bmi__log(instance, BMI_LOG_ERROR,
                 "a post has a context of instance \"%s\" and an address of instance \"%s\"",
                 instance->name, other->name);
}

int bmi__post(const struct post *post, bmi_op_id_t *id)
{
    struct peer *peer;
    *id = 0;
    struct context *context =
        post->internal != NULL ? post->internal : running_context(post->context);
    if (context == NULL)
        return -BMI_EINVAL;
    struct bmi_instance *instance = context->instance;
    catch_up(instance, post->kind);
    int status = bmi__address_lock(instance, post->address, &peer);
    if (status < 0) {
        mixed_log(instance, post->address);
        return bmi__error(status);
    }
    if (sent_now_locked(peer, post)) {
        BMI_PROBE(4, sent_now, peer, post->address, post->tag, post->total);
        peer_unlock(peer);
        bmi__context_immediate(context);
        return 1;
    }
    struct op *op = bmi__op_take(instance);
    if (op == NULL) {
        peer_unlock(peer);
        return -BMI_ENOMEM;
    }
    op_fill(op, post, context);
    BMI_PROBE(6, post, op, peer, post->address, op->kind, op->tag, op->total);
    status = start_locked(peer, op, post->address);
    struct bmi_link *link = flush_wanted_locked(peer, post->kind);
    peer_unlock(peer);
    if (status < 0) {
        BMI_PROBE(6, complete, op, peer, op->kind, op->tag, status, op->actual);
        bmi__op_give(op);
    }
    flush_and_drop(link);
    return status < 0 ? bmi__error(status) : outcome(op, post, id);
}

/* ---- arguments ------------------------------------------------------------------------------ */

/* The total of a list must equal the sum of its sizes. */
static bool list_valid(const void *const *buffers, const bmi_size_t *sizes, int count,
                       bmi_size_t total)
{
    bmi_size_t sum = 0;
    if (buffers == NULL || sizes == NULL || count < 1)
        return false;
    for (int i = 0; i < count; i++)
        if (sizes[i] < 0 || (sizes[i] > 0 && buffers[i] == NULL) ||
            __builtin_add_overflow(sum, sizes[i], &sum))
            return false;
    return sum == total;
}

static bool arguments_valid(bmi_op_id_t *id, enum bmi_buffer_type type, const struct post *post)
{
    if (id == NULL)
        return false;
    *id = 0;
    return (type == BMI_PRE_ALLOC || type == BMI_EXT_ALLOC) &&
           (post->kind != OP_RECV || post->actual != NULL);
}

/* `post` is passed by its address. A copy would load in wide pieces the fields that were just
 * stored in narrow ones, and the processor would stall until all earlier stores are done. */
static int post_single(bmi_op_id_t *id, enum bmi_buffer_type type, const struct post *post)
{
    if (!arguments_valid(id, type, post) || post->total < 0 ||
        (post->buffer == NULL && post->total > 0))
        return -BMI_EINVAL;
    return bmi__post(post, id);
}

static int post_list(bmi_op_id_t *id, enum bmi_buffer_type type, const struct post *post)
{
    const void *const *buffers = (const void *const *)post->buffers;
    if (!arguments_valid(id, type, post) ||
        !list_valid(buffers, post->sizes, (int)post->count, post->total))
        return -BMI_EINVAL;
    return bmi__post(post, id);
}

/* ---- the functions of bmi.h ------------------------------------------------------------------ */

int BMI_post_send(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                  enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                  bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_single(id, buffer_type,
                       &(struct post){.kind = OP_SEND,
                                      .address = dest,
                                      .buffer = (void *)(uintptr_t)buffer,
                                      .total = size,
                                      .tag = tag,
                                      .user_ptr = user_ptr,
                                      .context = context_id});
}

int BMI_post_sendunexpected(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                            enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                            bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_single(id, buffer_type,
                       &(struct post){.kind = OP_SEND_UNEXPECTED,
                                      .address = dest,
                                      .buffer = (void *)(uintptr_t)buffer,
                                      .total = size,
                                      .tag = tag,
                                      .user_ptr = user_ptr,
                                      .context = context_id});
}

int BMI_post_recv(bmi_op_id_t *id, BMI_addr_t src, void *buffer, bmi_size_t expected_size,
                  bmi_size_t *actual_size, enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                  void *user_ptr, bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_single(id, buffer_type,
                       &(struct post){.kind = OP_RECV,
                                      .address = src,
                                      .buffer = buffer,
                                      .total = expected_size,
                                      .actual = actual_size,
                                      .tag = tag,
                                      .user_ptr = user_ptr,
                                      .context = context_id});
}

int BMI_post_send_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                       bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_list(id, buffer_type,
                     &(struct post){.kind = OP_SEND,
                                    .address = dest,
                                    .buffers = (void *const *)(uintptr_t)buffer_list,
                                    .sizes = size_list,
                                    .count = (uint32_t)list_count,
                                    .total = total_size,
                                    .tag = tag,
                                    .user_ptr = user_ptr,
                                    .context = context_id});
}

int BMI_post_recv_list(bmi_op_id_t *id, BMI_addr_t src, void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_expected_size,
                       bmi_size_t *total_actual_size, enum bmi_buffer_type buffer_type,
                       bmi_msg_tag_t tag, void *user_ptr, bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_list(id, buffer_type,
                     &(struct post){.kind = OP_RECV,
                                    .address = src,
                                    .buffers = buffer_list,
                                    .sizes = size_list,
                                    .count = (uint32_t)list_count,
                                    .total = total_expected_size,
                                    .actual = total_actual_size,
                                    .tag = tag,
                                    .user_ptr = user_ptr,
                                    .context = context_id});
}

int BMI_post_sendunexpected_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                                 const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                                 enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                                 void *user_ptr, bmi_context_id context_id, bmi_hint hints)
{
    (void)hints;
    return post_list(id, buffer_type,
                     &(struct post){.kind = OP_SEND_UNEXPECTED,
                                    .address = dest,
                                    .buffers = (void *const *)(uintptr_t)buffer_list,
                                    .sizes = size_list,
                                    .count = (uint32_t)list_count,
                                    .total = total_size,
                                    .tag = tag,
                                    .user_ptr = user_ptr,
                                    .context = context_id});
}

int BMI_cancel(bmi_op_id_t id, bmi_context_id context_id)
{
    struct context *context = running_context(context_id);
    struct op *op = context != NULL ? bmi__op_find(id) : NULL;
    if (op == NULL && context != NULL && bmi__op_is_over(id))
        return 0; /* programs cancel all ids of a transfer, including stale ones */
    if (op == NULL)
        return -BMI_EINVAL;
    if (op->context != context) /* of another context, or reused meanwhile */
        return bmi__op_id(op) == id ? -BMI_EINVAL : 0;
    return bmi__error(bmi__cancel(op, id));
}
