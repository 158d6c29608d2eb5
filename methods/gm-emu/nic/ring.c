/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ring.c - rings of records between two processes: one producer, one consumer.
 *
 * The producer keeps its position to itself; a record's stamp shows that it is complete, which
 * costs the consumer one cache line for a small message instead of two. The consumer reports its
 * position seldom (nic__told in receive.c). Neither side trusts the other: the producer checks the
 * position that it reads, the consumer each length. The caller has the lock of its side.
 */
#include "internal.h"

static struct nic_record *record_at(const struct nic_ring *ring, uint64_t position)
{
    return (struct nic_record *)(void *)(ring->base + (position & (ring->size - 1)));
}

/* The place behind a record must be free too, for its stamp is cleared. */
static bool has_room(const struct nic_ring *ring, uint64_t bytes)
{
    return ring->position + bytes + NIC_LINE - ring->seen <= ring->size;
}

static void stamp(struct nic_ring *ring, uint64_t span)
{
    struct nic_record *record = record_at(ring, ring->position);
    uint32_t value = nic__stamp(ring->position);
    ring->position += span;
    if (ring->position != ring->cleared)
        atomic_store_explicit(&record_at(ring, ring->position)->stamp, 0, memory_order_relaxed);
    atomic_store_explicit(&record->stamp, value, memory_order_release);
}

/* The next record is likely to be as long: clears the stamp behind it now, when no process
 * waits. Until a record covers the place it is not written to, and then no record can end there. */
static void clear_ahead(struct nic_ring *ring, uint64_t span)
{
    if (!has_room(ring, span) || ring->position + span == ring->cleared)
        return;
    ring->cleared = ring->position + span;
    atomic_store_explicit(&record_at(ring, ring->cleared)->stamp, 0, memory_order_relaxed);
}

uint8_t *nic__ring_reserve(struct nic_ring *ring, uint64_t length)
{
    uint64_t span = nic__record_span(length);
    uint64_t left = ring->size - (ring->position & (ring->size - 1));
    if (span > left) {
        if (!has_room(ring, left + span))
            return NULL;
        record_at(ring, ring->position)->what = nic__record_what(0, NIC_RECORD_PAD, 0);
        stamp(ring, left);
    } else if (!has_room(ring, span)) {
        return NULL;
    }
    return (uint8_t *)record_at(ring, ring->position) + sizeof(struct nic_record);
}

void nic__ring_publish(struct nic_ring *ring, uint64_t length, uint8_t kind, uint8_t size,
                       uint64_t due_ns)
{
    struct nic_record *record = record_at(ring, ring->position);
    record->what = nic__record_what((uint32_t)length, kind, size);
    record->due_ns = due_ns;
    stamp(ring, nic__record_span(length));
    clear_ahead(ring, nic__record_span(length));
}

bool nic__ring_refresh(struct nic_ring *ring, const _Atomic uint64_t *consumed)
{
    uint64_t now = atomic_load_explicit(consumed, memory_order_acquire);
    if (now < ring->seen || now > ring->position || now % NIC_LINE != 0)
        return false;
    ring->seen = now;
    return true;
}

bool nic__ring_speaks(const struct nic_ring *ring)
{
    const struct nic_record *record = record_at(ring, ring->position);
    return atomic_load_explicit(&record->stamp, memory_order_relaxed) == nic__stamp(ring->position);
}

bool nic__ring_head(struct nic_ring *ring, struct nic_record_head *head, const uint8_t **payload,
                    bool *bad)
{
    for (;;) {
        volatile struct nic_record *record = record_at(ring, ring->position);
        uint64_t offset = ring->position & (ring->size - 1);
        if (atomic_load_explicit(&record->stamp, memory_order_acquire) !=
            nic__stamp(ring->position))
            return false;
        *head = nic__record_head(record->what, record->due_ns);
        if (head->kind != NIC_RECORD_PAD) {
            *payload = (const uint8_t *)record + sizeof(*record);
            *bad = nic__record_span(head->length) > ring->size - offset;
            return true;
        }
        if (offset == 0) { /* no producer of ours begins a ring with padding */
            *bad = true;
            return true;
        }
        ring->position += ring->size - offset;
    }
}
