/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loan.h - a store's own memory, lent to a flow, so that no byte is copied between store and
 * network: what is read is sent from where the store has it, and what is written is received into
 * blank memory, which the write then makes a part of the stream.
 *
 * Nobody sees what is in blank memory before it is written, and what is lent for reading does not
 * change: a write meanwhile replaces it. A store need not lend: none but mem does, and that only
 * whole ranges which are there (reading), or whole blocks (writing). A store where faults are
 * injected lends nothing to read, so that its operations are counted as if there were no loans.
 *
 * A loan belongs to one thread at a time, or to the write that has it; zeroed, it is empty. It is
 * returned before its store is closed.
 */
#ifndef TROVE_LOAN_H
#define TROVE_LOAN_H

#include "trove-stub/blocks.h"
#include "trove-stub/store.h"

struct trove_loan {
    struct bmi_trove_store *store;
    struct trove_block **blocks; /* NULL: was written, and there was none before */
    void **buffers;              /* the memory, in the order of the ranges */
    bmi_size_t *sizes;
    int count, room;
    int next; /* of those that were not written yet the first */
};

/* Lend what these ranges of a stream have, or as much blank memory. false: nothing is lent. The
 * loan is empty before. */
bool bmi__trove_lend(struct trove_loan *loan, const struct bmi_trove_place *place,
                     const bmi_size_t *offsets, const bmi_size_t *sizes, int count);
bool bmi__trove_lend_blank(struct trove_loan *loan, const struct bmi_trove_place *place,
                           const bmi_size_t *offsets, const bmi_size_t *sizes, int count);
/* bmi_trove_post_write_list, of memory of which some is lent; the loan is lent to it. */
int bmi__trove_post_write_lent(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                               const void *const *buffers, const bmi_size_t *sizes, int count,
                               const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                               int stream_count, bmi_size_t *actual, struct trove_loan *loan,
                               void *user_ptr, bmi_trove_context_id_t context);
/* Empties it. */
void bmi__trove_loan_return(struct trove_loan *loan);
/* Empties it, and frees what it has of its own. */
void bmi__trove_loan_free(struct trove_loan *loan);

/* For the backend: adds a block, with a use of it that is the loan's then. false: no memory. */
bool bmi__loan_add(struct trove_loan *loan, struct trove_block *block, bmi_size_t from,
                   bmi_size_t size);
/* For the backend: where the loan has the block that begins there; NULL: it has none. loan NULL:
 * none. */
struct trove_block **bmi__loan_find(struct trove_loan *loan, const void *bytes);

#endif
