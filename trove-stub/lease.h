/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lease.h - a store's own memory, lent to a flow (a lease), so that no byte is copied between store
 * and network: a read is sent from the store's memory, and a write is received into blank memory,
 * which then becomes a part of the stream.
 *
 * No other thread sees blank memory before the write, and memory lent for reading does not change:
 * a write meanwhile replaces the block. A store need not lend: only mem does, and only ranges
 * without holes (reading), or whole blocks (writing). A store with injected faults lends nothing
 * for reading, so that its operations are counted as without leases.
 *
 * A lease belongs to one thread at a time, or to the write that uses it; zeroed, it is empty. It
 * must be returned before its store is closed.
 */
#ifndef TROVE_LEASE_H
#define TROVE_LEASE_H

#include "trove-stub/blocks.h"
#include "trove-stub/store.h"

struct trove_lease {
    struct bmi_trove_store *store;
    struct trove_block **blocks; /* NULL: was written, and there was no block before */
    void **buffers;              /* the memory, in the order of the ranges */
    bmi_size_t *sizes;
    int count, room;
    int next; /* the first that was not written yet */
};

/* Lend the memory of these ranges of a stream, or as much blank memory. false: no memory is lent.
 * The lease must be empty. */
bool bmi__trove_lend(struct trove_lease *lease, const struct bmi_trove_place *place,
                     const bmi_size_t *offsets, const bmi_size_t *sizes, int count);
bool bmi__trove_lend_blank(struct trove_lease *lease, const struct bmi_trove_place *place,
                           const bmi_size_t *offsets, const bmi_size_t *sizes, int count);
/* bmi_trove_post_write_list, of memory that is partly lent; the lease is lent to the operation. */
int bmi__trove_post_write_lent(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                               const void *const *buffers, const bmi_size_t *sizes, int count,
                               const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                               int stream_count, bmi_size_t *actual, struct trove_lease *lease,
                               void *user_ptr, bmi_trove_context_id_t context);
/* Empties the lease. */
void bmi__trove_lease_return(struct trove_lease *lease);
/* Empties the lease, and frees its own memory. */
void bmi__trove_lease_free(struct trove_lease *lease);

/* For the backend: adds a block, whose use passes to the lease. false: no memory. */
bool bmi__lease_add(struct trove_lease *lease, struct trove_block *block, bmi_size_t from,
                    bmi_size_t size);
/* For the backend: the lease's entry of the block that begins there; NULL: none. `lease` may
 * be NULL. */
struct trove_block **bmi__lease_find(struct trove_lease *lease, const void *bytes);

#endif
