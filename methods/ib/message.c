/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message.c - incoming messages: finds their link, and handles the frames in them.
 *
 * The token of a message's prefix is one of ours, sent to one peer over one exchange: an index and
 * 40 random bits. So a message from another process, or for a link that has gone, has no link and
 * is dropped. The sequence numbers of a link have no gaps; if one is missing, the provider has lost
 * a message, and the link ends.
 *
 * If the provider reports sources, each message must come from the endpoint that the link's
 * handshake named: no process can send in another's name, or cause another's link to be cut.
 *
 * A message without frames is the end of stream, the last one of its side (link.c).
 *
 * A header is never cut; a body may continue in later messages. Messages lie in our buffers, which
 * no process writes while they are read, and bodies are copied out of them.
 */
#include <endian.h>
#include <openssl/rand.h>

#include "ib.h"

enum { INDEX_BITS = 24, TOKENS_GROW = 64 };
static const uint64_t index_mask = (UINT64_C(1) << INDEX_BITS) - 1;

/* ---- tokens ---------------------------------------------------------------------------------- */

struct ib_link *ib_token_find(const struct ib_state *state, uint64_t token)
{
    uint64_t index = token & index_mask;
    struct ib_link *link = index < state->token_count ? state->tokens[index] : NULL;
    return link && link->token == token ? link : NULL;
}

static bool tokens_grow(struct ib_state *state)
{
    uint32_t count = state->token_count > 0 ? state->token_count * 2 : TOKENS_GROW;
    if (count > index_mask)
        return false;
    struct ib_link **more = realloc(state->tokens, count * sizeof(*more));
    if (!more)
        return false;
    memset(more + state->token_count, 0, (count - state->token_count) * sizeof(*more));
    state->tokens = more;
    state->token_count = count;
    return true;
}

int ib_token_make(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    uint64_t number;
    if (RAND_bytes((uint8_t *)&number, sizeof(number)) != 1)
        return -EIO;
    uint32_t index = 0;
    while (index < state->token_count && state->tokens[index])
        index++;
    if (index == state->token_count && !tokens_grow(state))
        return -ENOMEM;
    uint64_t token = (number & ~index_mask) | index;
    if (token == 0)
        token = UINT64_C(1) << INDEX_BITS;
    ib_lock(&link->send_lock);
    link->token = token;
    ib_unlock(&link->send_lock);
    state->tokens[index] = link;
    return 0;
}

void ib_token_drop(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    uint64_t index = link->token & index_mask;
    if (link->token && index < state->token_count && state->tokens[index] == link)
        state->tokens[index] = NULL;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* These three take the present body, a small message, or a header. They return how many bytes they
 * took, or the errno that ends the link. */
static int body_take(struct ib_link *link, const uint8_t *at, size_t left)
{
    size_t taken = link->body_left < left ? (size_t)link->body_left : left;
    size_t copied = bmi_segments_scatter(&link->sink.body, at, taken);
    if (!link->base.arriving) /* the program's memory, not the core's own */
        ib_count(ib_state_of(link), BMI_COUNT_COPIED_BYTES, (int64_t)copied);
    link->body_left -= taken;
    int status = 0;
    if (link->body_left == 0 && !link->retracted)
        status = bmi_method_body_arrived(&link->base, &link->sink);
    return status < 0 ? status : (int)taken;
}

/* 0: there is none. */
static int whole_take(struct ib_link *link, const uint8_t *at, size_t left)
{
    size_t header = bmi_frame_header_size(*at);
    int taken = bmi_method_frame_whole(&link->base, at, at + header, left - header);
    if (taken <= 0)
        return taken;
    ib_count(ib_state_of(link), BMI_COUNT_FRAMES_RECEIVED, 1);
    if ((size_t)taken > header) {
        ib_count(ib_state_of(link), BMI_COUNT_COPIES, 1);
        ib_count(ib_state_of(link), BMI_COUNT_COPIED_BYTES, taken - (int)header);
    }
    return taken;
}

static int header_take(struct ib_link *link, const uint8_t *at, size_t left)
{
    size_t header = bmi_frame_header_size(*at);
    if (left < header)
        return -EPROTO;
    int taken = whole_take(link, at, left);
    if (taken != 0)
        return taken;
    int status = bmi_method_frame_arrived(&link->base, at, &link->sink);
    if (status < 0)
        return status;
    link->body_left = link->sink.length;
    link->retracted = false;
    ib_count(ib_state_of(link), BMI_COUNT_FRAMES_RECEIVED, 1);
    ib_count(ib_state_of(link), BMI_COUNT_COPIES, link->body_left > 0 && !link->base.arriving);
    return (int)header;
}

static int frames_take_locked(struct ib_link *link, const uint8_t *at, size_t left)
{
    int taken;
    ib_assert_locked(&link->receive_lock);
    for (; left > 0; at += taken, left -= (size_t)taken) {
        taken = link->body_left > 0 ? body_take(link, at, left) : header_take(link, at, left);
        if (taken < 0)
            return taken;
    }
    return 0;
}

/* Handles one message of the link. Returns 0 or the errno that ends the link. */
static int message_take(struct ib_link *link, uint32_t sequence, const uint8_t *at, size_t size)
{
    int status = 0;
    ib_lock(&link->send_lock);
    bool shown = link->closing == IB_OPEN; /* to the core */
    ib_unlock(&link->send_lock);
    ib_lock(&link->receive_lock);
    if (link->bye_seen) {
        status = -EPROTO;
    } else if (sequence != link->sequence_in) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "%s sent message %u where %u was due", ib_host_of(link), sequence,
                       link->sequence_in);
        status = -ECONNRESET;
    } else {
        link->sequence_in++;
        link->bye_seen = size == 0;
        if (shown)
            status = frames_take_locked(link, at, size);
    }
    ib_unlock(&link->receive_lock);
    return status;
}

/* The side that dialled sends first. Its first message shows that it has our hello, and that the
 * provider's connection is made. */
static void ready_set(struct ib_link *link)
{
    if (link->ready)
        return;
    ib_lock(&link->send_lock);
    link->ready = true;
    ib_unlock(&link->send_lock);
    ib_flush(&link->base);
}

static void message_deliver(struct ib_link *link, uint32_t sequence, const uint8_t *at, size_t size)
{
    uint64_t before = atomic_load_explicit(&link->base.bytes_in, memory_order_relaxed);
    atomic_store_explicit(&link->base.bytes_in, before + IB_PREFIX + size, memory_order_relaxed);
    int status = message_take(link, sequence, at, size);
    if (status < 0) {
        ib_count(ib_state_of(link), BMI_COUNT_BAD_FRAMES, 1);
        ib_link_end(link, status);
    } else {
        ready_set(link);
        if (link->bye_seen)
            ib_bye_take(link);
    }
}

static void source_refuse(struct ib_link *link)
{
    bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                   "%s named one endpoint in its handshake, and sends from another",
                   ib_host_of(link));
    ib_count(ib_state_of(link), BMI_COUNT_BAD_FRAMES, 1);
    ib_link_end(link, -EPROTO);
}

void ib_message_arrived(struct ib_state *state, fi_addr_t from, const uint8_t *bytes, size_t size)
{
    struct ib_prefix prefix;
    if (size < sizeof(prefix)) {
        ib_count(state, BMI_COUNT_BAD_FRAMES, 1);
        return;
    }
    memcpy(&prefix, bytes, sizeof(prefix));
    uint32_t length = le32toh(prefix.length);
    ib_count(state, BMI_COUNT_READS, 1);
    ib_count(state, BMI_COUNT_BYTES_RECEIVED, (int64_t)size);
    struct ib_link *link = ib_token_find(state, le64toh(prefix.token));
    if (!link || link->phase != IB_UP || length > size - sizeof(prefix)) {
        bmi_method_log(state->instance, BMI_LOG_DEBUG, NULL,
                       "%s: a message of %zu bytes that is no link's", state->kind->scheme, size);
        return;
    }
    bmi_link_ref(&link->base);
    if (state->fabric->tells_source && from != link->peer->address)
        source_refuse(link);
    else
        message_deliver(link, le32toh(prefix.sequence), bytes + sizeof(prefix), length);
    bmi_link_unref(&link->base);
}

bool ib_retract(struct bmi_link *base, void *owner)
{
    struct ib_link *link = ib_link_of(base);

    ib_lock(&link->receive_lock);
    bool ours = owner && link->body_left > 0 && link->sink.owner == owner;
    if (ours) {
        link->sink.owner = NULL;
        link->sink.body.left = 0;
        link->retracted = true;
    }
    ib_unlock(&link->receive_lock);
    return ours;
}
