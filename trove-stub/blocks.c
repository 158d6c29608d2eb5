/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocks.c - see blocks.h. The pool's lock is innermost.
 */
#include "trove-stub/blocks.h"

#include <stdlib.h>

enum { KEPT = 256 }; /* 16 MiB */

void bmi__blocks_open(struct block_pool *pool)
{
    *pool = (struct block_pool){0};
    pthread_mutex_init(&pool->lock, NULL);
}

void bmi__blocks_close(struct block_pool *pool)
{
    for (struct trove_block *block = pool->kept, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    pthread_mutex_destroy(&pool->lock);
}

struct trove_block *bmi__block_get(struct block_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct trove_block *block = pool->kept;
    if (block != NULL) {
        pool->kept = block->next;
        pool->count--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (block == NULL)
        block = aligned_alloc(alignof(struct trove_block), sizeof *block);
    if (block != NULL)
        atomic_init(&block->users, 1);
    return block;
}

void bmi__block_put(struct block_pool *pool, struct trove_block *block)
{
    if (block == NULL || atomic_fetch_sub_explicit(&block->users, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->count < KEPT;
    if (keep) {
        block->next = pool->kept;
        pool->kept = block;
        pool->count++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        free(block);
}
