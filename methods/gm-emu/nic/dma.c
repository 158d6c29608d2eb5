/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dma.c - nic_dma_malloc: memory that peers can map, cut from arenas.
 *
 * An arena is a memfd that all peers get. Arenas are only ever added, so that a range can be looked
 * up without a lock; an unused arena gives its pages back, but stays. The lists of used and free
 * extents are kept beside the memory, never in it, since peers can write there. First fit, in order
 * of addresses; free neighbours are merged.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

enum { PAGE = 4096, ARENA_FIRST = 4 << 20, ARENA_DOUBLINGS = 8 };

uint32_t nic__arena_of(struct nic_port *port, const void *memory, uint64_t length, uint64_t *offset)
{
    uint32_t count = atomic_load_explicit(&port->arena_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        *offset = (uintptr_t)memory - (uintptr_t)port->arenas[i].base;
        if (*offset < port->arenas[i].length && length <= port->arenas[i].length - *offset)
            return i;
    }
    return NIC_NO_ARENA;
}

/* Cuts an extent in two at `length`. */
static bool extent_split(struct nic_extent *extent, uint64_t length)
{
    struct nic_extent *rest = malloc(sizeof(*rest));
    if (rest == NULL)
        return false;
    *rest = (struct nic_extent){.next = extent->next,
                                .previous = extent,
                                .offset = extent->offset + length,
                                .length = extent->length - length};
    if (rest->next != NULL)
        rest->next->previous = rest;
    extent->next = rest;
    extent->length = length;
    return true;
}

/* Merges the following extent into this one. */
static void extent_join(struct nic_extent *extent)
{
    struct nic_extent *next = extent->next;
    extent->length += next->length;
    extent->next = next->next;
    if (extent->next != NULL)
        extent->next->previous = extent;
    free(next);
}

static void *arena_take(struct nic_arena *arena, uint64_t length, uint64_t alignment)
{
    if (arena->length - arena->used < length)
        return NULL;
    for (struct nic_extent *extent = arena->first; extent != NULL; extent = extent->next) {
        uint64_t gap = -extent->offset & (alignment - 1);
        if (extent->used || extent->length < gap + length)
            continue;
        if (gap > 0) {
            if (!extent_split(extent, gap))
                return NULL;
            extent = extent->next;
        }
        if (extent->length > length && !extent_split(extent, length))
            return NULL;
        extent->used = true;
        arena->used += length;
        return arena->base + extent->offset;
    }
    return NULL;
}

/* Adds an arena for at least `length` bytes. port->lock held. */
static int arena_add(struct nic_port *port, uint64_t length)
{
    uint32_t count = atomic_load(&port->arena_count);
    struct nic_arena *arena = &port->arenas[count];
    uint64_t size = (uint64_t)ARENA_FIRST << (count < ARENA_DOUBLINGS ? count : ARENA_DOUBLINGS);
    void *memory;
    if (count == NIC_ARENAS_MAX)
        return -ENOMEM;
    if (size < length)
        size = (length + PAGE - 1) / PAGE * PAGE;
    struct nic_extent *whole = calloc(1, sizeof(*whole));
    int status = whole == NULL ? -ENOMEM : nic__memory_make(size, false, &arena->fd, &memory);
    if (status != 0) {
        free(whole);
        return status;
    }
    whole->length = size;
    arena->base = memory;
    arena->length = size;
    arena->used = 0;
    arena->first = whole;
    atomic_store_explicit(&port->arena_count, count + 1, memory_order_release);
    return 0;
}

void *nic_dma_malloc(struct nic_port *port, uint64_t length)
{
    uint64_t alignment = length >= PAGE ? (uint64_t)sysconf(_SC_PAGESIZE) : NIC_LINE;
    if (length == 0 || length >> NIC_ARENA_BITS != 0) {
        errno = length == 0 ? EINVAL : ENOMEM;
        return NULL;
    }
    length = (length + alignment - 1) / alignment * alignment;
    int status = nic__dma_count(port, length);
    void *memory = NULL;
    bmi_lock_take(&port->lock);
    uint32_t count = atomic_load(&port->arena_count);
    for (uint32_t i = 0; status == 0 && i < count && memory == NULL; i++)
        memory = arena_take(&port->arenas[i], length, alignment);
    if (status == 0 && memory == NULL) {
        status = arena_add(port, length);
        if (status == 0)
            memory = arena_take(&port->arenas[count], length, alignment);
        if (status == 0 && memory == NULL)
            status = -ENOMEM;
        if (status != 0)
            atomic_fetch_sub(&port->dma_bytes, length);
    }
    bmi_lock_give(&port->lock);
    if (atomic_load(&port->arena_count) != count)
        nic__attention(port); /* announces the arena to the peers */
    if (status != 0)
        errno = -status;
    else if (port->timed)
        nic__spend(port->options.timing.register_ns +
                   (length + PAGE - 1) / PAGE * port->options.timing.register_page_ns);
    return memory;
}

static void extent_free(struct nic_arena *arena, struct nic_extent *extent)
{
    extent->used = false;
    arena->used -= extent->length;
    if (extent->next != NULL && !extent->next->used)
        extent_join(extent);
    if (extent->previous != NULL && !extent->previous->used)
        extent_join(extent->previous);
}

static struct nic_extent *extent_find(struct nic_arena *arena, uint64_t offset)
{
    struct nic_extent *extent = arena->first;
    while (extent != NULL && (extent->offset != offset || !extent->used))
        extent = extent->next;
    return extent;
}

void nic_dma_free(struct nic_port *port, void *memory)
{
    uint64_t offset, length = 0;
    if (memory == NULL)
        return;
    uint32_t index = nic__arena_of(port, memory, 1, &offset);
    if (index == NIC_NO_ARENA) {
        nic__log(port, NIC_LOG_ERROR, "nic_dma_free of %p, which is not of nic_dma_malloc", memory);
        return;
    }
    struct nic_arena *arena = &port->arenas[index];
    bmi_lock_take(&port->lock);
    struct nic_extent *extent = extent_find(arena, offset);
    if (extent != NULL) {
        length = extent->length;
        extent_free(arena, extent);
        if (arena->used == 0 && index > 0) /* the first is likely to be needed again soon */
            madvise(arena->base, arena->length, MADV_REMOVE);
    }
    bmi_lock_give(&port->lock);
    atomic_fetch_sub(&port->dma_bytes, length);
    if (length == 0)
        nic__log(port, NIC_LOG_ERROR, "nic_dma_free of %p, which is not allocated", memory);
    else if (port->timed)
        nic__spend(port->options.timing.deregister_ns +
                   (length + PAGE - 1) / PAGE * port->options.timing.deregister_page_ns);
}

void nic_dma_keep(struct nic_port *port, void *memory)
{
    uint64_t offset;
    uint32_t index = nic__arena_of(port, memory, 1, &offset);
    if (index == NIC_NO_ARENA)
        return;
    bmi_lock_take(&port->lock);
    struct nic_extent *extent = extent_find(&port->arenas[index], offset);
    if (extent != NULL)
        extent->kept = true;
    bmi_lock_give(&port->lock);
}

static void arena_unmap(struct nic_arena *arena, uint64_t from, uint64_t to)
{
    if (from < to)
        munmap(arena->base + from, to - from);
}

void nic__arenas_free(struct nic_port *port)
{
    uint32_t count = atomic_load(&port->arena_count);
    for (uint32_t i = 0; i < count; i++) {
        struct nic_arena *arena = &port->arenas[i];
        uint64_t from = 0;
        while (arena->first != NULL) {
            struct nic_extent *extent = arena->first;
            if (extent->kept) {
                arena_unmap(arena, from, extent->offset);
                from = extent->offset + extent->length;
            }
            arena->first = extent->next;
            free(extent);
        }
        arena_unmap(arena, from, arena->length);
        close(arena->fd);
    }
}
