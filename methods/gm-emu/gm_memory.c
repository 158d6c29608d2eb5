/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_memory.c - memory that the NIC may touch: blocks of BMI_memalloc, registrations of plain
 * memory, and grants to peers.
 *
 * A block of BMI_memalloc is the NIC's dma_malloc: registered from the start, and mapped by peers,
 * so a put into it is one copy by the processor. Blocks are known by their addresses, in an array
 * that outlives the port: a program may free one after the library has ended, though its memory has
 * gone with the port.
 *
 * Plain memory is registered through the core's cache. A registration with this NIC stands for
 * addresses (peers write by address, or the owner copies), so the cache may keep it.
 */
#include <stdlib.h>
#include <time.h>

#include "gm.h"

/* ---- blocks --------------------------------------------------------------------------------- */

struct block {
    uintptr_t address;
    size_t length;
    bool gone; /* its port was closed */
};

static struct {
    struct bmi_lock lock;
    struct block *array; /* by address */
    size_t count, room;
} blocks;

/* Index of the first block that ends behind the address. */
static size_t block_behind_locked(uintptr_t address)
{
    size_t low = 0, high = blocks.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks.array[middle].address + blocks.array[middle].length > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void block_remove_locked(size_t at)
{
    blocks.count--;
    memmove(&blocks.array[at], &blocks.array[at + 1], (blocks.count - at) * sizeof *blocks.array);
}

static bool block_insert(uintptr_t address, size_t length)
{
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked(address);
    while (at < blocks.count && blocks.array[at].address < address + length)
        block_remove_locked(at); /* gone, and its addresses are used anew */
    if (blocks.count == blocks.room) {
        size_t room = blocks.room > 0 ? 2 * blocks.room : 64;
        struct block *more = realloc(blocks.array, room * sizeof *more);
        if (more == NULL) {
            gm_unlock(&blocks.lock);
            return false;
        }
        blocks.array = more;
        blocks.room = room;
    }
    memmove(&blocks.array[at + 1], &blocks.array[at], (blocks.count - at) * sizeof *blocks.array);
    blocks.array[at] = (struct block){.address = address, .length = length};
    blocks.count++;
    gm_unlock(&blocks.lock);
    return true;
}

/* Removes the block that starts there. Returns false if there is none. */
static bool block_take(uintptr_t address, bool *gone)
{
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked(address);
    bool found = at < blocks.count && blocks.array[at].address == address;
    if (found) {
        *gone = blocks.array[at].gone;
        block_remove_locked(at);
    }
    gm_unlock(&blocks.lock);
    return found;
}

bool gm_memory_is_ours(const void *memory, size_t length)
{
    uintptr_t address = (uintptr_t)memory;
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked(address);
    const struct block *block = &blocks.array[at];
    bool ours = at < blocks.count && !block->gone && block->address <= address &&
                length <= block->length - (address - block->address);
    gm_unlock(&blocks.lock);
    return ours;
}

static int block_allocate(struct gm_state *state, struct bmi_method_memory *memory)
{
    errno = 0;
    void *buffer = nic_dma_malloc(state->port, (uint64_t)memory->size);
    if (buffer == NULL)
        return errno != 0 ? -errno : -ENOMEM;
    if (!block_insert((uintptr_t)buffer, (size_t)memory->size)) {
        nic_dma_free(state->port, buffer);
        return -ENOMEM;
    }
    memset(buffer, 0, (size_t)memory->size); /* another block may have had it before */
    memory->buffer = buffer;
    return 0;
}

int gm_memory_option(struct gm_state *state, struct bmi_method_memory *memory, bool set)
{
    bool gone;
    if (!set)
        return block_allocate(state, memory);
    if (!block_take((uintptr_t)memory->buffer, &gone))
        return -ENOENT;
    if (!gone && state != NULL)
        nic_dma_free(state->port, memory->buffer);
    return 0;
}

void gm_memory_stop(void)
{
    gm_lock(&blocks.lock);
    for (size_t i = 0; i < blocks.count; i++)
        blocks.array[i].gone = true;
    if (blocks.count == 0) {
        free(blocks.array);
        blocks.array = NULL;
        blocks.room = 0;
    }
    gm_unlock(&blocks.lock);
}

/* ---- the registrar of the core's cache ------------------------------------------------------ */

static int registrar_enter(void *owner, uintptr_t address, size_t length, void **handle)
{
    struct gm_state *state = owner;
    *handle = NULL;
    int status = nic_register_memory(state->port, (void *)address, length);
    return status == -ENOSPC ? -ENOBUFS : status;
}

static void registrar_leave(void *owner, uintptr_t address, size_t length, void *handle)
{
    struct gm_state *state = owner;
    (void)handle;
    nic_deregister_memory(state->port, (void *)address, length);
}

const struct bmi_registrar gm_registrar = {
    .enter = registrar_enter,
    .leave = registrar_leave,
    .follows_mapping = true,
};

/* ---- grants --------------------------------------------------------------------------------- */

struct granted {
    uint64_t key;
    void *memory;
    size_t length;
    struct bmi_registration *registration; /* NULL: memory of BMI_memalloc */
    bool revoked;                          /* nic_revoke_begin was called */
    bool ended;
};

/* Memory of one operation. On its link's list, under send_lock, until it is ended. */
struct gm_enrolled {
    struct gm_enrolled *next, **to_me; /* to_me NULL: ended with its link */
    uint64_t since_ms;                 /* the peer is waited for; 0: it is not */
    size_t count;
    struct granted list[];
};

static int granted_begin(struct gm_link *link, const struct iovec *iov, struct granted *granted)
{
    struct gm_state *state = gm_state_of(link);
    *granted = (struct granted){.memory = iov->iov_base, .length = iov->iov_len};
    int status = 0;
    if (!gm_memory_is_ours(iov->iov_base, iov->iov_len))
        status =
            bmi_method_cache_get(state->cache, iov->iov_base, iov->iov_len, &granted->registration);
    if (status != 0)
        return status;
    status = nic_grant(state->port, link->peer, iov->iov_base, iov->iov_len, &granted->key);
    if (status != 0 && granted->registration != NULL)
        bmi_method_cache_put(state->cache, granted->registration, iov->iov_base, iov->iov_len);
    return status;
}

static uint64_t now_ms(void)
{
    return bmi_method_now_ns() / 1000000;
}

/* The rest of the time to wait for a peer, over all its memory: its claim may move from one
 * piece to the next. *until_ms is 0 until the first wait. */
static uint32_t wait_left_ms(enum gm_patience patience, uint64_t *until_ms)
{
    uint32_t whole = patience == GM_WAIT ? GM_STOP_MS : patience == GM_BRIEFLY ? GM_PIECE_MS : 0;
    if (whole == 0)
        return 0;
    uint64_t now = now_ms();
    if (*until_ms == 0)
        *until_ms = now + whole;
    return *until_ms > now ? (uint32_t)(*until_ms - now) : 0;
}

static void grants_revoke(struct gm_link *link, struct gm_enrolled *enrolled)
{
    for (size_t i = 0; i < enrolled->count; i++)
        if (!enrolled->list[i].revoked)
            nic_revoke_begin(gm_state_of(link)->port, enrolled->list[i].key);
    for (size_t i = 0; i < enrolled->count; i++)
        enrolled->list[i].revoked = true;
}

/* Ends a revoked grant. false: a peer is still writing there, and the caller must try again
 * later. */
static bool granted_end(struct gm_link *link, struct granted *granted, enum gm_patience patience,
                        uint64_t *until_ms)
{
    struct gm_state *state = gm_state_of(link);
    if (granted->ended)
        return true;
    int status = nic_revoke_end(state->port, granted->key, 0);
    uint32_t left_ms = status == -EBUSY ? wait_left_ms(patience, until_ms) : 0;
    if (left_ms > 0)
        status = nic_revoke_end(state->port, granted->key, left_ms);
    if (status == -EBUSY && patience == GM_LATER)
        return false;
    if (status == -EBUSY)
        bmi_method_log(BMI_LOG_WARN, NULL,
                       "gm: a peer that is stopped may still write to %zu bytes at %p",
                       granted->length, granted->memory);
    if (status == -EBUSY && patience == GM_BRIEFLY)
        gm_link_fail_locked(link, -EPROTO);
    if (status == -EBUSY) /* else its link is down, or ends together with all others */
        nic_revoke_leave(state->port, granted->key);
    if (granted->registration != NULL)
        bmi_method_cache_put(state->cache, granted->registration, granted->memory, granted->length);
    granted->ended = true;
    return true;
}

static bool enrolled_end_locked(struct gm_link *link, struct gm_enrolled *enrolled,
                                enum gm_patience patience, uint64_t *until_ms)
{
    bool ended = true;
    grants_revoke(link, enrolled);
    for (size_t i = 0; i < enrolled->count; i++)
        if (!granted_end(link, &enrolled->list[i], patience, until_ms))
            ended = false;
    if (!ended)
        return false;
    *enrolled->to_me = enrolled->next;
    if (enrolled->next != NULL)
        enrolled->next->to_me = enrolled->to_me;
    enrolled->to_me = NULL;
    return true;
}

/* The peer is still writing: its connection ends when that takes too long. */
static void stopped_locked(struct gm_link *link, struct gm_enrolled *enrolled)
{
    uint64_t now = now_ms();
    if (enrolled->since_ms == 0)
        enrolled->since_ms = now;
    if (now - enrolled->since_ms < GM_STOPPED_MS || link->given_up)
        return;
    link->given_up = true;
    gm_link_fail_locked(link, -ETIMEDOUT);
}

static int enrolled_begin_locked(struct gm_link *link, struct gm_enrolled *enrolled,
                                 const struct iovec *iov, size_t count, struct bmi_region *regions)
{
    int status = link->phase == GM_UP ? 0 : -ENOTCONN;
    uint64_t until_ms = 0;
    enrolled->next = link->enrolled;
    enrolled->to_me = &link->enrolled;
    if (enrolled->next != NULL)
        enrolled->next->to_me = &enrolled->next;
    link->enrolled = enrolled;
    for (enrolled->count = 0; enrolled->count < count && status == 0;) {
        size_t i = enrolled->count;
        status = granted_begin(link, &iov[i], &enrolled->list[i]);
        if (status != 0)
            break;
        regions[i] = (struct bmi_region){.length = iov[i].iov_len, .key = enrolled->list[i].key};
        enrolled->count++;
    }
    if (status != 0)
        enrolled_end_locked(link, enrolled, GM_BRIEFLY, &until_ms);
    return status;
}

int gm_enroll(struct bmi_link *base, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle)
{
    struct gm_link *link = gm_link_of(base);
    struct iovec iov[GM_REGIONS];
    size_t covered, most = *count < GM_REGIONS ? *count : GM_REGIONS;
    size_t segments = bmi_segments_window(memory, iov, most, SIZE_MAX, &covered);
    if (covered < (size_t)memory->left)
        return -EMSGSIZE;
    struct gm_enrolled *enrolled = malloc(sizeof *enrolled + segments * sizeof *enrolled->list);
    if (enrolled == NULL)
        return -ENOMEM;
    enrolled->since_ms = 0;
    gm_lock(&link->send_lock);
    int status = enrolled_begin_locked(link, enrolled, iov, segments, regions);
    gm_unlock(&link->send_lock);
    if (status != 0) {
        free(enrolled);
        return status;
    }
    *count = (uint32_t)segments;
    *handle = enrolled;
    return 0;
}

bool gm_release(struct bmi_link *base, void *handle, bool wait)
{
    struct gm_link *link = gm_link_of(base);
    struct gm_enrolled *enrolled = handle;
    uint64_t until_ms = 0;
    gm_lock(&link->send_lock);
    bool ended = enrolled->to_me == NULL ||
                 enrolled_end_locked(link, enrolled, wait ? GM_BRIEFLY : GM_LATER, &until_ms);
    if (!ended)
        stopped_locked(link, enrolled);
    gm_unlock(&link->send_lock);
    if (ended)
        free(enrolled);
    return ended;
}

bool gm_grants_end(struct gm_link *link, enum gm_patience patience)
{
    uint64_t once_ms = 0, *until_ms = patience == GM_WAIT ? &gm_state_of(link)->stop_ms : &once_ms;
    gm_lock(&link->send_lock);
    for (struct gm_enrolled *at = link->enrolled, *next; at != NULL; at = next) {
        next = at->next;
        enrolled_end_locked(link, at, link->given_up ? GM_GIVE_UP : patience, until_ms);
    }
    bool ended = link->enrolled == NULL;
    gm_unlock(&link->send_lock);
    return ended;
}
