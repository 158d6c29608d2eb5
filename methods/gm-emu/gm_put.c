/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_put.c - remote writes: a transfer is one or more directed sends, one after another, each from
 * up to GM_PUT_IOVECS segments to one region. Their memory stays registered meanwhile.
 *
 * A transfer gets a record when it begins, so that waiting transfers use no resources.
 *
 * Directed sends of all links use at most half of the send tokens, so that messages always find
 * one; further ones wait until others are done. One link has a few of them at most, and only one
 * once half of them are in use: a stopped peer keeps its directed sends until its connection ends,
 * and other links need some. Only the poller reports the end to the core: another thread records
 * its failure and kicks the poller.
 */
#include <stdlib.h>

#include "gm.h"

struct gm_put {
    struct gm_put *next, **to_me; /* send_lock */
    struct gm_link *link;
    struct bmi_transfer *transfer;
    uint32_t region;     /* the present one */
    uint64_t offset;     /* how far in it */
    int status;          /* the error that stops it */
    bool out;            /* the NIC has a piece */
    size_t count, bytes; /* the piece */
    struct iovec iov[GM_PUT_IOVECS];
    struct bmi_registration *registrations[GM_PUT_IOVECS]; /* NULL: memory of BMI_memalloc */
};

static void put_unlink_locked(struct gm_put *put)
{
    *put->to_me = put->next;
    if (put->next != NULL)
        put->next->to_me = put->to_me;
    else
        put->link->puts_tail = put->to_me;
}

static void put_append_locked(struct gm_link *link, struct gm_put *put)
{
    put->to_me = link->puts_tail;
    *link->puts_tail = put;
    link->puts_tail = &put->next;
}

bool gm_puts_left_locked(const struct gm_link *link)
{
    gm_assert_locked(&((struct gm_link *)(uintptr_t)link)->send_lock);
    return link->puts != NULL || link->waiting != NULL;
}

/* ---- records -------------------------------------------------------------------------------- */

static struct gm_put *record_take(struct gm_state *state)
{
    gm_lock(&state->lock);
    struct gm_put *put = state->put_free;
    if (put != NULL) {
        state->put_free = put->next;
        state->put_free_count--;
    }
    gm_unlock(&state->lock);
    return put != NULL ? put : malloc(sizeof *put);
}

static void record_give(struct gm_state *state, struct gm_put *put)
{
    gm_lock(&state->lock);
    bool keep = state->put_free_count < GM_FREE_PUTS;
    if (keep) {
        put->next = state->put_free;
        state->put_free = put;
        state->put_free_count++;
    }
    gm_unlock(&state->lock);
    if (!keep)
        free(put);
}

void gm_puts_free(struct gm_state *state)
{
    while (state->put_free != NULL) {
        struct gm_put *put = state->put_free;
        state->put_free = put->next;
        free(put);
    }
}

static struct bmi_transfer *waiting_take_locked(struct gm_link *link)
{
    struct bmi_transfer *transfer = link->waiting;
    if (transfer != NULL)
        link->waiting = transfer->next;
    return transfer;
}

static void refuse_locked(struct gm_link *link, struct bmi_transfer *transfer, int status)
{
    transfer->method_private[0] = (void *)(intptr_t)status;
    transfer->next = link->refused;
    link->refused = transfer;
}

/* Begins the next one that waits. NULL: there is none, or no memory for it, and it is refused. */
static struct gm_put *put_begin_locked(struct gm_link *link)
{
    struct bmi_transfer *transfer = waiting_take_locked(link);
    struct gm_put *put = transfer != NULL ? record_take(gm_state_of(link)) : NULL;
    if (put != NULL) { /* the rest of its 480 bytes is filled as it is used */
        put->link = link;
        put->transfer = transfer;
        put->region = 0;
        put->offset = 0;
        put->status = 0;
        put->out = false;
        put->count = 0;
        put->next = NULL;
        put_append_locked(link, put);
    } else if (transfer != NULL) {
        refuse_locked(link, transfer, -ENOMEM);
    }
    return put;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static void piece_release(struct gm_put *put)
{
    struct bmi_registration_cache *cache = gm_state_of(put->link)->cache;
    for (size_t i = 0; i < put->count; i++)
        if (put->registrations[i] != NULL)
            bmi_method_cache_put(cache, put->registrations[i], put->iov[i].iov_base,
                                 put->iov[i].iov_len);
    put->count = 0;
}

/* Registers the piece's segments, as many as possible. Returns 0, or the error of the first. */
static int piece_register(struct gm_put *put, size_t count)
{
    struct bmi_registration_cache *cache = gm_state_of(put->link)->cache;
    int status = 0;
    put->count = put->bytes = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const struct iovec *iov = &put->iov[i];
        put->registrations[i] = NULL;
        if (!gm_memory_is_ours(gm_state_of(put->link), iov->iov_base, iov->iov_len))
            status =
                bmi_method_cache_get(cache, iov->iov_base, iov->iov_len, &put->registrations[i]);
        if (status == 0) {
            put->count++;
            put->bytes += iov->iov_len;
        }
    }
    return put->count > 0 ? 0 : status;
}

/* The region that the next byte goes to; NULL: there is none, or it lies. */
static const struct bmi_region *region_present(struct gm_put *put)
{
    const struct bmi_transfer *transfer = put->transfer;
    while (put->region < transfer->remote_count &&
           put->offset >= transfer->remote[put->region].length) {
        put->region++;
        put->offset = 0;
    }
    const struct bmi_region *region = &transfer->remote[put->region];
    bool good =
        put->region < transfer->remote_count && region->address <= UINT64_MAX - region->length;
    return good ? region : NULL;
}

static void put_sent(struct nic_port *port, void *context, int status);

/* Gives the NIC the next piece. Returns 0, -EAGAIN without a token, or another errno. */
static int piece_start_locked(struct gm_put *put)
{
    const struct bmi_region *region = region_present(put);
    if (region == NULL)
        return -EACCES;
    size_t count = bmi_segments_window(&put->transfer->local, put->iov, GM_PUT_IOVECS,
                                       (size_t)(region->length - put->offset), NULL);
    int status = piece_register(put, count);
    if (status != 0)
        return status == -EAGAIN ? -ENOBUFS : status;
    put->out = true;
    put->link->puts_out++;
    status = nic_directed_send_with_callback(put->link->peer, put->iov, put->count, region->key,
                                             region->address + put->offset, put_sent, put);
    if (status != 0) {
        put->out = false;
        put->link->puts_out--;
        piece_release(put);
    }
    return status;
}

/* The limit of one link. A link at its limit goes on when one of its own sends is done. */
static uint32_t link_may_have(const struct gm_state *state)
{
    return atomic_load(&state->puts_out) < state->puts_most / 2 ? state->link_puts_most : 1;
}

/* Whether one more directed send may be under way. */
static bool token_reserve(struct gm_state *state)
{
    if (atomic_fetch_add(&state->puts_out, 1) < state->puts_most)
        return true;
    atomic_fetch_sub(&state->puts_out, 1);
    return false;
}

void gm_puts_start(struct gm_link *link)
{
    struct gm_state *state = gm_state_of(link);
    bool starved = false, failed = false;
    gm_lock(&link->send_lock);
    struct gm_put *put = link->puts, *next;
    bool open = link->phase == GM_UP && !link->closed;
    for (; open && !starved && link->puts_out < link_may_have(state); put = next) {
        if (put == NULL)
            put = put_begin_locked(link);
        if (put == NULL)
            break;
        next = put->next;
        if (put->out || put->status != 0)
            continue;
        starved = !token_reserve(state);
        int status = starved ? -EAGAIN : piece_start_locked(put);
        if (status == 0)
            continue;
        if (!starved)
            atomic_fetch_sub(&state->puts_out, 1);
        starved = status == -EAGAIN;
        if (!starved && status != -ENOTCONN) {
            put->status = status;
            failed = true;
        }
    }
    failed = failed || link->refused != NULL;
    gm_unlock(&link->send_lock);
    if (starved)
        gm_link_starve(link, GM_WANT_PUT);
    if (failed)
        gm_link_kick(link);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Reports the end to the core. The put is off its link's list already, so no thread starts it
 * again. */
static void put_end(struct gm_put *put, int status)
{
    struct gm_link *link = put->link;
    struct bmi_transfer *transfer = put->transfer;
    record_give(gm_state_of(link), put);
    if (status == 0)
        gm_count(link, BMI_COUNT_PUTS, 1);
    bmi_method_transfer_done(&link->base, transfer, status);
}

/* Accounts for the piece. Returns whether the put is over; then it is off the list. */
static bool piece_end_locked(struct gm_put *put, int status)
{
    size_t bytes = put->bytes;
    piece_release(put);
    put->out = false;
    put->link->puts_out--;
    if (status == 0) {
        bmi_segments_advance(&put->transfer->local, bytes);
        put->offset += bytes;
    }
    if (status == 0 && put->transfer->local.left > 0)
        return false;
    put_unlink_locked(put);
    return true;
}

/* A put is done: the waiting puts of this link are next, but after waiting links. */
static void puts_next(struct gm_link *link, bool same)
{
    gm_lock(&link->send_lock);
    bool more = gm_puts_left_locked(link);
    gm_unlock(&link->send_lock);
    if (more && !same && atomic_load(&gm_state_of(link)->any_starved[GM_WANT_PUT]))
        gm_link_starve(link, GM_WANT_PUT);
    else if (more)
        gm_puts_start(link);
}

static void put_sent(struct nic_port *port, void *context, int status)
{
    struct gm_put *put = context;
    struct gm_link *link = put->link;
    size_t bytes = put->bytes;
    (void)port;
    atomic_fetch_sub(&gm_state_of(link)->puts_out, 1);
    gm_lock(&link->send_lock);
    bool over = piece_end_locked(put, status);
    bool last = link->closing == GM_CLOSE_LINGERING && gm_link_idle_locked(link);
    gm_unlock(&link->send_lock);
    if (status == 0)
        gm_count(link, BMI_COUNT_PUT_BYTES, (int64_t)bytes);
    if (over)
        put_end(put, status);
    puts_next(link, !over);
    if (last)
        gm_link_kick(link);
}

static struct bmi_transfer *refused_take(struct gm_link *link)
{
    gm_lock(&link->send_lock);
    struct bmi_transfer *transfer = link->refused;
    if (transfer != NULL)
        link->refused = transfer->next;
    gm_unlock(&link->send_lock);
    return transfer;
}

/* Takes the first that has failed, or the first of all, off the list. */
static struct gm_put *put_take(struct gm_link *link, bool failed)
{
    gm_lock(&link->send_lock);
    struct gm_put *put = link->puts;
    while (put != NULL && failed && put->status == 0)
        put = put->next;
    if (put != NULL)
        put_unlink_locked(put);
    gm_unlock(&link->send_lock);
    return put;
}

void gm_puts_refuse(struct gm_link *link)
{
    struct bmi_transfer *transfer;
    struct gm_put *put;
    while ((transfer = refused_take(link)) != NULL)
        bmi_method_transfer_done(&link->base, transfer, (int)(intptr_t)transfer->method_private[0]);
    while ((put = put_take(link, true)) != NULL)
        put_end(put, put->status);
}

static struct bmi_transfer *transfer_take(struct gm_link *link)
{
    gm_lock(&link->send_lock);
    struct bmi_transfer *transfer = waiting_take_locked(link);
    gm_unlock(&link->send_lock);
    return transfer;
}

void gm_puts_end(struct gm_link *link, int status)
{
    struct bmi_transfer *transfer;
    struct gm_put *put;
    gm_puts_refuse(link);
    while ((put = put_take(link, false)) != NULL) {
        if (put->out)
            atomic_fetch_sub(&gm_state_of(link)->puts_out, 1);
        piece_release(put);
        put_end(put, status);
    }
    while ((transfer = transfer_take(link)) != NULL)
        bmi_method_transfer_done(&link->base, transfer, status);
}

void gm_transfer(struct bmi_link *base, struct bmi_transfer *transfer)
{
    struct gm_link *link = gm_link_of(base);
    gm_lock(&link->send_lock);
    if (transfer->get) {
        refuse_locked(link, transfer, -EOPNOTSUPP);
    } else {
        transfer->next = NULL;
        if (link->waiting != NULL)
            link->waiting_last->next = transfer;
        else
            link->waiting = transfer;
        link->waiting_last = transfer;
    }
    gm_unlock(&link->send_lock);
    gm_link_kick(link);
}
