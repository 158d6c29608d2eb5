/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocks.h - the memory of streams of a store in memory: blocks that are counted by who uses them.
 *
 * A block belongs to one chunk of a stream, or to a loan; who reads it while others may write to
 * the stream counts as a user, too. It is written to by its only user: a block that more have is
 * replaced by a copy. Some that nobody uses are kept, so that memory which is there is used again.
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
    struct trove_block *next; /* of those that are kept */
    alignas(64) char bytes[BLOCK_SIZE];
};

struct block_pool {
    pthread_mutex_t lock;
    struct trove_block *kept; /* lock: as `count` */
    unsigned count;
};

void bmi__blocks_open(struct block_pool *pool);
/* All blocks have been put. */
void bmi__blocks_close(struct block_pool *pool);
/* One user's; what is in it is undefined. NULL: no memory. */
struct trove_block *bmi__block_get(struct block_pool *pool);
/* One user less; NULL is fine. */
void bmi__block_put(struct block_pool *pool, struct trove_block *block);

/* Another user. By one who has a use, or the lock of the stream that has one. */
static inline struct trove_block *bmi__block_share(struct trove_block *block)
{
    atomic_fetch_add_explicit(&block->users, 1, memory_order_relaxed);
    return block;
}

/* Whether others than the caller use it: once not, and nobody can get at it, it stays so. */
static inline bool bmi__block_shared(struct trove_block *block)
{
    return atomic_load_explicit(&block->users, memory_order_acquire) > 1;
}

#endif
