/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocks.h - the memory of streams of a store in memory: blocks with a count of users.
 *
 * A block belongs to one chunk of a stream, or to a lease; a thread that reads it while others may
 * write to the stream counts as a user, too. Only a single user writes to a block: a shared block
 * is replaced by a copy. The pool keeps some unused blocks for reuse.
 */
#ifndef TROVE_BLOCKS_H
#define TROVE_BLOCKS_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { BLOCK_SIZE = 64 * 1024 };

struct trove_block {
    atomic_uint users;
    struct trove_block *next; /* the next kept block */
    alignas(64) char bytes[BLOCK_SIZE];
};

struct block_pool {
    pthread_mutex_t lock;
    struct trove_block *kept; /* lock: `count` of them */
    unsigned count;
};

void bmi__blocks_open(struct block_pool *pool);
/* All blocks must have been put. */
void bmi__blocks_close(struct block_pool *pool);
/* A block with one user and undefined contents. NULL: no memory. */
struct trove_block *bmi__block_get(struct block_pool *pool);
/* Ends one use; NULL is allowed. */
void bmi__block_put(struct block_pool *pool, struct trove_block *block);

/* Adds a user. The caller has a use itself, or the lock of a stream that has one. */
static inline struct trove_block *bmi__block_share(struct trove_block *block)
{
    atomic_fetch_add_explicit(&block->users, 1, memory_order_relaxed);
    return block;
}

/* Whether others than the caller use it: if not, and no other thread can reach it, that does not
 * change. */
static inline bool bmi__block_shared(struct trove_block *block)
{
    return atomic_load_explicit(&block->users, memory_order_acquire) > 1;
}

#endif
