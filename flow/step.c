/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.c - a flow's step: accounts for completions, and begins all operations that can begin.
 *
 * Chunks have numbers. `ended` <= `sent` <= `begun`: begun to be filled, begun to be emptied, and
 * done. A flow fails at the first chunk that fails (`broken_at`): earlier chunks still go to the
 * destination, later ones do not. The flow always waits for outstanding operations, since they use
 * its memory.
 */
#include "flow/internal.h"

/* Limits of one step: if no operation blocks, a step would be the whole flow; if a request has
 * millions of blocks on other servers, a step would check all of them. */
enum { BEGUN_MOST = 64, BLOCKS_MOST = 4096 };

static struct flow_chunk *chunk_at(struct flow *flow, uint64_t number)
{
    return &flow->chunks[number % flow->what.buffer_count];
}

/* ---- failing --------------------------------------------------------------------------------- */

static void cancel_under_way(struct flow *flow, bool fills, bool empties)
{
    for (uint64_t number = flow->ended; number < flow->begun; number++) {
        struct flow_chunk *chunk = chunk_at(flow, number);
        if ((chunk->state == CHUNK_FILLING && fills) || (chunk->state == CHUNK_EMPTYING && empties))
            bmi__chunk_cancel(chunk);
    }
}

static void flow_fail(struct flow *flow, uint64_t number, bmi_error_code_t error)
{
    if (flow->error == 0)
        flow->error = error;
    if (number < flow->broken_at)
        flow->broken_at = number;
}

static void source_failed(struct flow *flow, uint64_t number, bmi_error_code_t error)
{
    flow_fail(flow, number, error);
    if (flow->filling_ended)
        return;
    flow->filling_ended = true;
    flow->must_tell = flow->what.destination.kind == BMI_FLOW_NETWORK;
    cancel_under_way(flow, true, false);
}

static void destination_failed(struct flow *flow, uint64_t number, bmi_error_code_t error)
{
    bool network = flow->what.destination.kind == BMI_FLOW_NETWORK;
    flow_fail(flow, number, error);
    flow->must_tell = flow->must_tell && !network;
    if (flow->filling_ended || flow->draining)
        return;
    flow->draining = !network && flow->what.source.kind == BMI_FLOW_NETWORK &&
                     (flow->what.flags & BMI_FLOW_DRAIN) != 0;
    if (flow->draining)
        return;
    flow->filling_ended = true;
    cancel_under_way(flow, true, network);
}

static void flow_killed(struct flow *flow, bmi_error_code_t cause)
{
    flow->killed = flow->filling_ended = true;
    flow->must_tell = false;
    if (flow->error == 0)
        flow->error = cause;
    cancel_under_way(flow, true, true);
    if (flow->end_of_stream.state == CHUNK_EMPTYING)
        bmi__chunk_cancel(&flow->end_of_stream);
}

/* ---- results of a chunk's operation ---------------------------------------------------------- */

/* An operation that succeeded with fewer bytes than requested. Returns an error, or 0: continue. */
static bmi_error_code_t short_result(const struct flow_chunk *chunk, bmi_size_t actual)
{
    if (chunk->on_network)
        return actual == 0 ? -BMI_EPIPE : -BMI_EPROTO;
    if (actual == 0)
        return chunk->state == CHUNK_FILLING ? -BMI_ENODATA : -BMI_EIO;
    return chunk->flow->killed ? -BMI_ECANCEL : 0;
}

static void chunk_failed(struct flow *flow, struct flow_chunk *chunk, bmi_error_code_t error,
                         bmi_size_t actual)
{
    bool filling = chunk->state == CHUNK_FILLING;
    bool into_place = !chunk->on_network && (!filling || !flow->needs_buffers);
    chunk->partial = into_place ? chunk->moved + actual : 0;
    chunk->failed = true;
    chunk->state = CHUNK_DONE;
    if (filling)
        source_failed(flow, chunk->number, error);
    else
        destination_failed(flow, chunk->number, error);
}

/* Accounts for a chunk's operation. Returns true if the rest of a short one remains to be done. */
static bool chunk_result(struct flow *flow, struct flow_chunk *chunk, bmi_error_code_t error,
                         bmi_size_t actual)
{
    bool filling = chunk->state == CHUNK_FILLING, rest = false;
    if (error == -BMI_EMSGSIZE && filling && chunk->on_network)
        error = -BMI_EPROTO;
    if (error == 0 && actual < chunk->size - chunk->moved) {
        error = short_result(chunk, actual);
        rest = error == 0;
    }
    atomic_fetch_add(filling ? &flow->taken : &flow->delivered, actual);
    if (rest) {
        bmi__chunk_skip(chunk, actual);
    } else if (error != 0) {
        chunk_failed(flow, chunk, error, actual);
    } else {
        chunk->moved = 0;
        chunk->state = filling ? CHUNK_FULL : CHUNK_DONE;
    }
    return rest;
}

/* Cancels the operation that was posted to the network: the flow does not exist on the connection
 * that it is for. */
static void chunk_lost(struct flow *flow, struct flow_chunk *chunk, bmi_error_code_t cause)
{
    bool filling = chunk->state == CHUNK_FILLING;
    bmi__chunk_cancel(chunk);
    if (filling)
        source_failed(flow, chunk->number, cause);
    else
        destination_failed(flow, chunk->number, cause);
}

/* Begins a chunk's operation. Returns 0: it is under way, and *lost is not 0 if it was posted to
 * another connection than the flow's; 1: done; <0: it failed. A message that had arrived already
 * came over the connection from before the post, even if that has ended since: its sender may have
 * finished. */
static int chunk_post(struct flow_chunk *chunk, bmi_error_code_t *lost)
{
    bool filling = chunk->state == CHUNK_FILLING;
    *lost = filling ? bmi__chunk_lost(chunk) : 0;
    if (*lost != 0)
        return *lost;
    int result = filling ? bmi__chunk_fill(chunk) : bmi__chunk_empty(chunk);
    *lost = bmi__chunk_lost(chunk);
    return *lost != 0 && result != 0 && !(result > 0 && filling) ? *lost : result;
}

/* Fills or empties a chunk, depending on its state. */
static void chunk_run(struct flow *flow, struct flow_chunk *chunk)
{
    bool rest;
    do {
        bmi_error_code_t lost;
        chunk->actual = 0;
        int result = chunk_post(chunk, &lost);
        if (result == 0) {
            flow->operations++;
            if (lost != 0)
                chunk_lost(flow, chunk, lost);
            return;
        }
        bmi_size_t actual = result < 0 && chunk->on_network ? 0 : chunk->actual;
        rest = chunk_result(flow, chunk, result < 0 ? result : 0, actual);
    } while (rest);
}

/* ---- the last operation ---------------------------------------------------------------------- */

static void last_result(struct flow *flow, bmi_error_code_t error)
{
    bool flush = !flow->end_of_stream.on_network;
    flow->end_of_stream.state = CHUNK_DONE;
    if (flush && error != 0) {
        atomic_store(&flow->good, 0); /* no byte is known to be on disk */
        flow_fail(flow, 0, error);
    }
}

/* When all chunks have ended: sends the receiver an empty message, the end of the data, or
 * flushes. */
static void last_begin(struct flow *flow)
{
    const struct bmi_flow_endpoint *end = &flow->what.destination;
    bool flush = flow->error == 0 && !flow->killed && end->kind == BMI_FLOW_STORAGE &&
                 (end->u.storage.flags & BMI_TROVE_SYNC) != 0;
    if (flow->last_begun || !(flush || flow->must_tell))
        return;
    flow->last_begun = true;
    flow->end_of_stream.state = CHUNK_EMPTYING;
    if (!flush && bmi__chunk_lost(&flow->end_of_stream) != 0) {
        flow->end_of_stream.state = CHUNK_DONE;
        return;
    }
    int result = flush ? bmi__chunk_flush(&flow->end_of_stream)
                       : bmi__chunk_end_of_stream(&flow->end_of_stream);
    if (result == 0)
        flow->operations++;
    else
        last_result(flow, result < 0 ? result : 0);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void take_arrived(struct flow *flow)
{
    pthread_mutex_lock(&flow->lock);
    struct flow_chunk *chunk = flow->arrived;
    flow->arrived = NULL;
    flow->arrived_end = &flow->arrived;
    pthread_mutex_unlock(&flow->lock);
    for (struct flow_chunk *next; chunk != NULL; chunk = next) {
        next = chunk->next_arrived;
        flow->operations--;
        if (chunk == &flow->end_of_stream)
            last_result(flow, chunk->error);
        else if (chunk_result(flow, chunk, chunk->error, chunk->actual))
            chunk_run(flow, chunk);
    }
}

/* Begins the next chunk. Returns whether there is one. */
static bool chunk_begin(struct flow *flow)
{
    struct flow_chunk *chunk = chunk_at(flow, flow->begun);
    int cut = bmi__chunk_cut(flow, chunk);
    if (cut == 0 || cut == CHUNK_CUT_LATER)
        return false;
    chunk->number = flow->begun++;
    flow->walked_bytes += chunk->size;
    chunk->state = CHUNK_FILLING;
    chunk->on_network = flow->what.source.kind == BMI_FLOW_NETWORK;
    if (cut < 0)
        chunk_failed(flow, chunk, cut, 0);
    else
        chunk_run(flow, chunk);
    return true;
}

static bool fill_some(struct flow *flow, int *budget)
{
    bool any = false;
    while (!flow->filling_ended && !flow->walked && *budget > 0 &&
           flow->begun < flow->ended + flow->what.buffer_count && chunk_begin(flow)) {
        any = true;
        (*budget)--;
    }
    return any;
}

static bool empty_some(struct flow *flow)
{
    bool any = false;
    for (; flow->sent < flow->begun; any = true) {
        struct flow_chunk *chunk = chunk_at(flow, flow->sent);
        if (chunk->state == CHUNK_FILLING)
            break;
        uint64_t number = flow->sent++;
        if (chunk->state != CHUNK_FULL)
            continue; /* it failed */
        if (flow->killed || number > flow->broken_at) {
            chunk->state = CHUNK_DONE;
            chunk->failed = true;
            chunk->partial = 0;
            flow_fail(flow, number, -BMI_ECANCEL);
        } else {
            chunk->state = CHUNK_EMPTYING;
            chunk_run(flow, chunk);
        }
    }
    return any;
}

static bool end_some(struct flow *flow)
{
    bool any = false;
    for (; flow->ended < flow->sent; any = true, flow->ended++) {
        struct flow_chunk *chunk = chunk_at(flow, flow->ended);
        if (chunk->state != CHUNK_DONE)
            break;
        if (flow->ended <= flow->broken_at)
            atomic_fetch_add(&flow->good, chunk->failed ? chunk->partial : chunk->size);
        bmi__trove_lease_return(&chunk->lease); /* its store may be closed before the end
                                                 is reported */
        chunk->state = CHUNK_IDLE;
    }
    return any;
}

static void tell_progress(struct flow *flow)
{
    atomic_store(&flow->in_flight, (uint32_t)(flow->begun - flow->ended));
    if (flow->walked && flow->total < 0)
        atomic_store(&flow->total, flow->walked_bytes);
}

void bmi__flow_advance(struct flow *flow)
{
    int budget = BEGUN_MOST;
    bmi_error_code_t cause = atomic_load(&flow->kill);
    take_arrived(flow);
    if (cause != 0 && !flow->killed)
        flow_killed(flow, cause);
    bool any;
    flow->walk.budget = BLOCKS_MOST;
    do {
        any = fill_some(flow, &budget);
        any = empty_some(flow) || any;
        any = end_some(flow) || any;
    } while (any && budget > 0);
    flow->more = any || (flow->cutting && !flow->filling_ended);
    tell_progress(flow);
    bool over = flow->ended == flow->begun && (flow->walked || flow->filling_ended) && !any;
    if (over)
        last_begin(flow);
    flow->finished = over && flow->operations == 0;
}
