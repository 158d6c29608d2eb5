/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loan.c - see loan.h.
 */
#include "trove-stub/loan.h"

#include <stdlib.h>

static bool loan_grow(struct trove_loan *loan)
{
    int room = loan->room > 0 ? loan->room * 2 : 8;
    size_t count = (size_t)room;
    struct trove_block **blocks = realloc(loan->blocks, count * sizeof(struct trove_block *));
    if (blocks != NULL)
        loan->blocks = blocks;
    void **buffers = realloc(loan->buffers, count * sizeof *buffers);
    if (buffers != NULL)
        loan->buffers = buffers;
    bmi_size_t *sizes = realloc(loan->sizes, count * sizeof *sizes);
    if (sizes != NULL)
        loan->sizes = sizes;
    if (blocks == NULL || buffers == NULL || sizes == NULL)
        return false;
    loan->room = room;
    return true;
}

bool bmi__loan_add(struct trove_loan *loan, struct trove_block *block, bmi_size_t from,
                   bmi_size_t size)
{
    if (loan->count == loan->room && !loan_grow(loan))
        return false;
    loan->blocks[loan->count] = block;
    loan->buffers[loan->count] = block->bytes + from;
    loan->sizes[loan->count++] = size;
    return true;
}

struct trove_block **bmi__loan_find(struct trove_loan *loan, const void *bytes)
{
    for (int i = loan != NULL ? loan->next : 0; loan != NULL && i < loan->count; i++)
        if (loan->buffers[i] == bytes) {
            loan->next = i + 1;
            return &loan->blocks[i];
        }
    return NULL;
}

void bmi__trove_loan_return(struct trove_loan *loan)
{
    for (int i = 0; i < loan->count; i++)
        loan->store->backend->loan_return(loan->store, loan->blocks[i]);
    loan->count = loan->next = 0;
}

void bmi__trove_loan_free(struct trove_loan *loan)
{
    bmi__trove_loan_return(loan);
    free(loan->blocks);
    free(loan->buffers);
    free(loan->sizes);
    *loan = (struct trove_loan){0};
}

typedef bool lend_function(struct trove_loan *loan, const struct bmi_trove_place *place,
                           bmi_size_t offset, bmi_size_t size);

static bool lend_all(lend_function *lend, struct trove_loan *loan,
                     const struct bmi_trove_place *place, const bmi_size_t *offsets,
                     const bmi_size_t *sizes, int count)
{
    if (lend == NULL)
        return false;
    loan->store = place->store;
    for (int i = 0; i < count; i++)
        if (offsets[i] < 0 || !lend(loan, place, offsets[i], sizes[i])) {
            bmi__trove_loan_return(loan);
            return false;
        }
    return loan->count > 0;
}

static bool reads_fail(struct bmi_trove_store *store)
{
    pthread_mutex_lock(&store->lock);
    bool fail = (store->fault.kinds & BMI_TROVE_READS) != 0;
    pthread_mutex_unlock(&store->lock);
    return fail;
}

bool bmi__trove_lend(struct trove_loan *loan, const struct bmi_trove_place *place,
                     const bmi_size_t *offsets, const bmi_size_t *sizes, int count)
{
    struct bmi_trove_store *store = place->store;
    if (store->backend->lend == NULL || reads_fail(store) ||
        !lend_all(store->backend->lend, loan, place, offsets, sizes, count))
        return false;
    uint64_t bytes = 0;
    for (int i = 0; i < loan->count; i++)
        bytes += (uint64_t)loan->sizes[i];
    atomic_fetch_add(&store->counts.operations, 1);
    atomic_fetch_add(&store->counts.immediate, 1);
    atomic_fetch_add(&store->counts.reads, 1);
    atomic_fetch_add(&store->counts.read_bytes, bytes);
    atomic_fetch_add(&store->counts.lent_bytes, bytes);
    return true;
}

bool bmi__trove_lend_blank(struct trove_loan *loan, const struct bmi_trove_place *place,
                           const bmi_size_t *offsets, const bmi_size_t *sizes, int count)
{
    return lend_all(place->store->backend->lend_blank, loan, place, offsets, sizes, count);
}
