/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lease.c - see lease.h.
 */
#include "trove-stub/lease.h"

#include <stdlib.h>

static bool lease_grow(struct trove_lease *lease)
{
    int room = lease->room > 0 ? lease->room * 2 : 8;
    size_t count = (size_t)room;
    struct trove_block **blocks = realloc(lease->blocks, count * sizeof(struct trove_block *));
    if (blocks != NULL)
        lease->blocks = blocks;
    void **buffers = realloc(lease->buffers, count * sizeof *buffers);
    if (buffers != NULL)
        lease->buffers = buffers;
    bmi_size_t *sizes = realloc(lease->sizes, count * sizeof *sizes);
    if (sizes != NULL)
        lease->sizes = sizes;
    if (blocks == NULL || buffers == NULL || sizes == NULL)
        return false;
    lease->room = room;
    return true;
}

bool bmi__lease_add(struct trove_lease *lease, struct trove_block *block, bmi_size_t from,
                    bmi_size_t size)
{
    if (lease->count == lease->room && !lease_grow(lease))
        return false;
    lease->blocks[lease->count] = block;
    lease->buffers[lease->count] = block->bytes + from;
    lease->sizes[lease->count++] = size;
    return true;
}

struct trove_block **bmi__lease_find(struct trove_lease *lease, const void *bytes)
{
    for (int i = lease != NULL ? lease->next : 0; lease != NULL && i < lease->count; i++)
        if (lease->buffers[i] == bytes) {
            lease->next = i + 1;
            return &lease->blocks[i];
        }
    return NULL;
}

void bmi__trove_lease_return(struct trove_lease *lease)
{
    for (int i = 0; i < lease->count; i++)
        lease->store->backend->lease_return(lease->store, lease->blocks[i]);
    lease->count = lease->next = 0;
}

void bmi__trove_lease_free(struct trove_lease *lease)
{
    bmi__trove_lease_return(lease);
    free(lease->blocks);
    free(lease->buffers);
    free(lease->sizes);
    *lease = (struct trove_lease){0};
}

typedef bool lend_function(struct trove_lease *lease, const struct bmi_trove_place *place,
                           bmi_size_t offset, bmi_size_t size);

static bool lend_all(lend_function *lend, struct trove_lease *lease,
                     const struct bmi_trove_place *place, const bmi_size_t *offsets,
                     const bmi_size_t *sizes, int count)
{
    if (lend == NULL)
        return false;
    lease->store = place->store;
    for (int i = 0; i < count; i++)
        if (offsets[i] < 0 || !lend(lease, place, offsets[i], sizes[i])) {
            bmi__trove_lease_return(lease);
            return false;
        }
    return lease->count > 0;
}

static bool reads_fail(struct bmi_trove_store *store)
{
    pthread_mutex_lock(&store->lock);
    bool fail = (store->fault.kinds & BMI_TROVE_READS) != 0;
    pthread_mutex_unlock(&store->lock);
    return fail;
}

bool bmi__trove_lend(struct trove_lease *lease, const struct bmi_trove_place *place,
                     const bmi_size_t *offsets, const bmi_size_t *sizes, int count)
{
    struct bmi_trove_store *store = place->store;
    if (store->backend->lend == NULL || reads_fail(store) ||
        !lend_all(store->backend->lend, lease, place, offsets, sizes, count))
        return false;
    uint64_t bytes = 0;
    for (int i = 0; i < lease->count; i++)
        bytes += (uint64_t)lease->sizes[i];
    atomic_fetch_add(&store->counts.operations, 1);
    atomic_fetch_add(&store->counts.immediate, 1);
    atomic_fetch_add(&store->counts.reads, 1);
    atomic_fetch_add(&store->counts.read_bytes, bytes);
    atomic_fetch_add(&store->counts.lent_bytes, bytes);
    return true;
}

bool bmi__trove_lend_blank(struct trove_lease *lease, const struct bmi_trove_place *place,
                           const bmi_size_t *offsets, const bmi_size_t *sizes, int count)
{
    return lend_all(place->store->backend->lend_blank, lease, place, offsets, sizes, count);
}
