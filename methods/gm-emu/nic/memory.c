/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - registered memory: which ranges the NIC may touch, counted in pages.
 *
 * Ranges stand in a table ordered by their begin; each knows the furthest end of all up to it, so
 * that a look-up stops where nothing before can reach. Memory of nic_dma_malloc is registered by
 * being in an arena and does not stand here.
 */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

enum { PAGE_SHIFT = 12 };

static uint64_t pages_of(uint64_t begin, uint64_t length)
{
    return ((begin + length - 1) >> PAGE_SHIFT) - (begin >> PAGE_SHIFT) + 1;
}

static uint64_t dma_pages(uint64_t bytes)
{
    return (bytes + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT;
}

uint64_t nic_registered_pages(const struct nic_port *port)
{
    return atomic_load(&port->registered_pages) + dma_pages(atomic_load(&port->dma_bytes));
}

/* The first entry that begins after `address`. memory_lock held. */
static size_t upper_bound(const struct nic_port *port, uint64_t address)
{
    size_t low = 0, high = port->registration_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (port->registrations[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool covered_locked(struct nic_port *port, uint64_t begin, uint64_t end)
{
    for (size_t i = upper_bound(port, begin); i-- > 0;) {
        if (port->registrations[i].end >= end)
            return true;
        if (port->registrations[i].furthest < end)
            return false;
    }
    return false;
}

bool nic__registered(struct nic_port *port, const void *memory, uint64_t length)
{
    uint64_t offset, begin = (uintptr_t)memory;
    if (length == 0 || nic__arena_of(port, memory, length, &offset) != NIC_NO_ARENA)
        return true;
    if (begin + length < begin)
        return false;
    bmi_lock_take(&port->memory_lock);
    bool found = covered_locked(port, begin, begin + length);
    bmi_lock_give(&port->memory_lock);
    return found;
}

bool nic__registered_all(struct nic_port *port, const struct iovec *iov, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!nic__registered(port, iov[i].iov_base, iov[i].iov_len))
            return false;
    return true;
}

static void furthest_update(struct nic_port *port, size_t from)
{
    uint64_t furthest = from == 0 ? 0 : port->registrations[from - 1].furthest;
    for (size_t i = from; i < port->registration_count; i++) {
        if (port->registrations[i].end > furthest)
            furthest = port->registrations[i].end;
        port->registrations[i].furthest = furthest;
    }
}

static int insert_locked(struct nic_port *port, uint64_t begin, uint64_t end)
{
    if (port->registration_count == port->registration_room) {
        size_t room = port->registration_room == 0 ? 64 : 2 * port->registration_room;
        struct nic_registration *table = realloc(port->registrations, room * sizeof(*table));
        if (table == NULL)
            return -ENOMEM;
        port->registrations = table;
        port->registration_room = room;
    }
    size_t place = upper_bound(port, begin);
    memmove(&port->registrations[place + 1], &port->registrations[place],
            (port->registration_count - place) * sizeof(*port->registrations));
    port->registrations[place] = (struct nic_registration){.begin = begin, .end = end};
    port->registration_count++;
    furthest_update(port, place);
    return 0;
}

static int pages_check(struct nic_port *port, uint64_t pages)
{
    uint64_t used = nic_registered_pages(port);
    if (pages <= port->options.registered_pages_max &&
        used <= port->options.registered_pages_max - pages)
        return 0;
    nic__log(port, NIC_LOG_WARN,
             "registration of %llu pages refused: %llu of at most %llu are registered",
             (unsigned long long)pages, (unsigned long long)used,
             (unsigned long long)port->options.registered_pages_max);
    return -ENOSPC;
}

int nic__dma_count(struct nic_port *port, uint64_t bytes)
{
    bmi_lock_take(&port->memory_lock);
    int status = pages_check(port, dma_pages(bytes));
    if (status == 0)
        atomic_fetch_add(&port->dma_bytes, bytes);
    bmi_lock_give(&port->memory_lock);
    return status;
}

int nic_register_memory(struct nic_port *port, void *memory, uint64_t length)
{
    uint64_t begin = (uintptr_t)memory, pages;
    if (length == 0 || begin + length < begin)
        return -EINVAL;
    pages = pages_of(begin, length);
    bmi_lock_take(&port->memory_lock);
    int status = pages_check(port, pages);
    if (status == 0)
        status = insert_locked(port, begin, begin + length);
    if (status == 0)
        atomic_fetch_add(&port->registered_pages, pages);
    bmi_lock_give(&port->memory_lock);
    if (status == 0 && port->timed)
        nic__spend(port->options.timing.register_ns +
                   pages * port->options.timing.register_page_ns);
    return status;
}

int nic_deregister_memory(struct nic_port *port, void *memory, uint64_t length)
{
    uint64_t begin = (uintptr_t)memory, end = begin + length, pages = 0;
    int status = -ENOENT;
    bmi_lock_take(&port->memory_lock);
    size_t i = upper_bound(port, begin);
    while (i > 0 && port->registrations[i - 1].begin == begin &&
           port->registrations[i - 1].end != end)
        i--;
    if (i > 0 && length > 0 && port->registrations[i - 1].begin == begin) {
        memmove(&port->registrations[i - 1], &port->registrations[i],
                (port->registration_count - i) * sizeof(*port->registrations));
        port->registration_count--;
        furthest_update(port, i - 1);
        pages = pages_of(begin, length);
        atomic_fetch_sub(&port->registered_pages, pages);
        status = 0;
    }
    bmi_lock_give(&port->memory_lock);
    if (status == 0 && port->timed)
        nic__spend(port->options.timing.deregister_ns +
                   pages * port->options.timing.deregister_page_ns);
    return status;
}
