/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_memory.c - memory that the NIC may touch: blocks of BMI_memalloc, registrations of plain
 * memory, and exposures to peers.
 *
 * A block of BMI_memalloc is the NIC's dma_malloc: registered from the start, and mapped by peers,
 * so a put into it is one copy by the processor. Blocks are known by their addresses, in an array
 * that outlives the port: a program may free one after its instance has ended. Until then it stays
 * mapped, so that no other block gets its address; for that, each has pages of its own.
 *
 * Plain memory is registered through the core's cache. A registration with this NIC stands for
 * addresses (peers write by address, or the owner copies), so the cache may keep it.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "gm.h"

/* ---- blocks --------------------------------------------------------------------------------- */

enum { BLOCK_MIN = 4096 };

struct block {
    uintptr_t address;
    size_t length;
    struct gm_state *state; /* NULL: its port was closed */
};

/* Of all ports of the process: memory may be freed after its port was closed. */
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

static bool block_insert(struct gm_state *state, uintptr_t address, size_t length)
{
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked(address);
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
    blocks.array[at] = (struct block){.address = address, .length = length, .state = state};
    blocks.count++;
    gm_unlock(&blocks.lock);
    return true;
}

/* Under the lock to the end: the owner's port cannot close meanwhile. */
static int block_free(void *buffer)
{
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked((uintptr_t)buffer);
    bool found = at < blocks.count && blocks.array[at].address == (uintptr_t)buffer;
    if (found) {
        struct block block = blocks.array[at];
        block_remove_locked(at);
        if (block.state != NULL)
            nic_dma_free(block.state->port, buffer);
        else
            munmap(buffer, block.length);
    }
    gm_unlock(&blocks.lock);
    return found ? 0 : -ENOENT;
}

bool gm_memory_is_ours(const struct gm_state *state, const void *memory, size_t length)
{
    uintptr_t address = (uintptr_t)memory;
    gm_lock(&blocks.lock);
    size_t at = block_behind_locked(address);
    const struct block *block = at < blocks.count ? &blocks.array[at] : NULL;
    bool ours = block != NULL && block->state == state && block->address <= address &&
                length <= block->length - (address - block->address);
    gm_unlock(&blocks.lock);
    return ours;
}

static int block_allocate(struct gm_state *state, struct bmi_method_memory *memory)
{
    uint64_t size = memory->size < BLOCK_MIN ? BLOCK_MIN : (uint64_t)memory->size;
    errno = 0;
    void *buffer = nic_dma_malloc(state->port, size);
    if (buffer == NULL)
        return errno != 0 ? -errno : -ENOMEM;
    if (!block_insert(state, (uintptr_t)buffer, (size_t)size)) {
        nic_dma_free(state->port, buffer);
        return -ENOMEM;
    }
    memset(buffer, 0, (size_t)memory->size); /* another block may have had it before */
    memory->buffer = buffer;
    return 0;
}

int gm_memory_option(struct gm_state *state, struct bmi_method_memory *memory, bool set)
{
    return set ? block_free(memory->buffer) : block_allocate(state, memory);
}

void gm_memory_stop(struct gm_state *state)
{
    gm_lock(&blocks.lock);
    for (size_t i = 0; i < blocks.count; i++)
        if (blocks.array[i].state == state) {
            nic_dma_keep(state->port, (void *)blocks.array[i].address);
            blocks.array[i].state = NULL;
        }
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

/* ---- exposures ------------------------------------------------------------------------------- */

struct piece {
    uint64_t key;
    void *memory;
    size_t length;
    struct bmi_registration *registration; /* NULL: memory of BMI_memalloc */
    bool revoked;                          /* nic_revoke_begin was called */
    bool ended;
};

/* Memory of one operation. On its link's list, under send_lock, until it is ended. */
struct gm_exposed {
    struct cds_hlist_node listed;
    bool ended;        /* with its link, perhaps */
    uint64_t since_ms; /* the peer is waited for; 0: it is not */
    size_t count;
    struct piece list[];
};

static int piece_begin(struct gm_link *link, const struct iovec *iov, struct piece *piece)
{
    struct gm_state *state = gm_state_of(link);
    *piece = (struct piece){.memory = iov->iov_base, .length = iov->iov_len};
    int status = 0;
    if (!gm_memory_is_ours(state, iov->iov_base, iov->iov_len))
        status =
            bmi_method_cache_get(state->cache, iov->iov_base, iov->iov_len, &piece->registration);
    if (status != 0)
        return status;
    status = nic_expose(state->port, link->peer, iov->iov_base, iov->iov_len, &piece->key);
    if (status != 0 && piece->registration != NULL)
        bmi_method_cache_put(state->cache, piece->registration, iov->iov_base, iov->iov_len);
    return status;
}

static uint64_t now_ms(struct bmi_instance *instance)
{
    return bmi_method_now_ns(instance) / 1000000;
}

/* The rest of the time to wait for a peer, over all its memory: its claim may move from one
 * piece to the next. *until_ms is 0 until the first wait. */
static uint32_t wait_left_ms(struct bmi_instance *instance, enum gm_patience patience,
                             uint64_t *until_ms)
{
    uint32_t whole = patience == GM_WAIT ? GM_STOP_MS : patience == GM_BRIEFLY ? GM_PIECE_MS : 0;
    if (whole == 0)
        return 0;
    uint64_t now = now_ms(instance);
    if (*until_ms == 0)
        *until_ms = now + whole;
    return *until_ms > now ? (uint32_t)(*until_ms - now) : 0;
}

static void exposures_revoke(struct gm_link *link, struct gm_exposed *exposed)
{
    for (size_t i = 0; i < exposed->count; i++)
        if (!exposed->list[i].revoked)
            nic_revoke_begin(gm_state_of(link)->port, exposed->list[i].key);
    for (size_t i = 0; i < exposed->count; i++)
        exposed->list[i].revoked = true;
}

/* Ends a revoked exposure. false: a peer is still writing there, and the caller must try again
 * later. */
static bool piece_end(struct gm_link *link, struct piece *piece, enum gm_patience patience,
                      uint64_t *until_ms)
{
    struct gm_state *state = gm_state_of(link);
    if (piece->ended)
        return true;
    int status = nic_revoke_end(state->port, piece->key, 0);
    uint32_t left_ms = status == -EBUSY ? wait_left_ms(link->base.instance, patience, until_ms) : 0;
    if (left_ms > 0)
        status = nic_revoke_end(state->port, piece->key, left_ms);
    if (status == -EBUSY && patience == GM_LATER)
        return false;
    if (status == -EBUSY)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, NULL,
                       "gm: a peer that is stopped may still write to %zu bytes at %p",
                       piece->length, piece->memory);
    if (status == -EBUSY && patience == GM_BRIEFLY)
        gm_link_fail_locked(link, -EPROTO);
    if (status == -EBUSY) /* else its link is down, or ends together with all others */
        nic_revoke_leave(state->port, piece->key);
    if (piece->registration != NULL)
        bmi_method_cache_put(state->cache, piece->registration, piece->memory, piece->length);
    piece->ended = true;
    return true;
}

static bool exposed_end_locked(struct gm_link *link, struct gm_exposed *exposed,
                               enum gm_patience patience, uint64_t *until_ms)
{
    bool ended = true;
    exposures_revoke(link, exposed);
    for (size_t i = 0; i < exposed->count; i++)
        if (!piece_end(link, &exposed->list[i], patience, until_ms))
            ended = false;
    if (!ended)
        return false;
    cds_hlist_del(&exposed->listed);
    exposed->ended = true;
    return true;
}

/* The peer is still writing: its connection ends when that takes too long. */
static void stopped_locked(struct gm_link *link, struct gm_exposed *exposed)
{
    uint64_t now = now_ms(link->base.instance);
    if (exposed->since_ms == 0)
        exposed->since_ms = now;
    if (now - exposed->since_ms < GM_STOPPED_MS || link->given_up)
        return;
    link->given_up = true;
    gm_link_fail_locked(link, -ETIMEDOUT);
}

static int exposed_begin_locked(struct gm_link *link, struct gm_exposed *exposed,
                                const struct iovec *iov, size_t count, struct bmi_region *regions)
{
    int status = link->phase == GM_UP ? 0 : -ENOTCONN;
    uint64_t until_ms = 0;
    cds_hlist_add_head(&exposed->listed, &link->exposed);
    for (size_t i = 0; i < count && status == 0; i++) {
        status = piece_begin(link, &iov[i], &exposed->list[i]);
        if (status != 0)
            break;
        regions[i] = (struct bmi_region){.length = iov[i].iov_len, .key = exposed->list[i].key};
        exposed->count++;
    }
    if (status != 0)
        exposed_end_locked(link, exposed, GM_BRIEFLY, &until_ms);
    return status;
}

int gm_expose(struct bmi_link *base, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle)
{
    struct gm_link *link = gm_link_of(base);
    struct iovec iov[GM_REGIONS];
    size_t covered, most = *count < GM_REGIONS ? *count : GM_REGIONS;
    size_t segments = bmi_segments_window(memory, iov, most, SIZE_MAX, &covered);
    if (covered < (size_t)memory->left)
        return -EMSGSIZE;
    struct gm_exposed *exposed = malloc(sizeof *exposed + segments * sizeof *exposed->list);
    if (exposed == NULL)
        return -ENOMEM;
    *exposed = (struct gm_exposed){0};
    gm_lock(&link->send_lock);
    int status = exposed_begin_locked(link, exposed, iov, segments, regions);
    gm_unlock(&link->send_lock);
    if (status != 0) {
        free(exposed);
        return status;
    }
    *count = (uint32_t)segments;
    *handle = exposed;
    return 0;
}

bool gm_release(struct bmi_link *base, void *handle, bool wait)
{
    struct gm_link *link = gm_link_of(base);
    struct gm_exposed *exposed = handle;
    uint64_t until_ms = 0;
    gm_lock(&link->send_lock);
    bool ended = exposed->ended ||
                 exposed_end_locked(link, exposed, wait ? GM_BRIEFLY : GM_LATER, &until_ms);
    if (!ended)
        stopped_locked(link, exposed);
    gm_unlock(&link->send_lock);
    if (ended)
        free(exposed);
    return ended;
}

bool gm_exposures_end(struct gm_link *link, enum gm_patience patience)
{
    uint64_t once_ms = 0, *until_ms = patience == GM_WAIT ? &gm_state_of(link)->stop_ms : &once_ms;
    gm_lock(&link->send_lock);
    struct gm_exposed *at, *next;
    cds_hlist_for_each_entry_safe_2(at, next, &link->exposed, listed)
        exposed_end_locked(link, at, link->given_up ? GM_GIVE_UP : patience, until_ms);
    bool ended = link->exposed.next == NULL;
    gm_unlock(&link->send_lock);
    return ended;
}
