/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matching.c - see matching.h. A hash table whose chains run through the peers; `lock` (innermost)
 * guards it and the two fields of each peer that belong to it, `matching_next` and `matching_key`.
 */
#include "bmi/connection/matching.h"

#include <stdlib.h>

enum { LEAST = 64, MOST = 1 << 20, FULL = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer **table;       /* lock */
static uint32_t table_size, used; /* lock; table_size is a power of two */

/* Never 0, which says that a peer is in no chain. */
static uint32_t key_of(enum matching kind, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    uint64_t value = (14695981039346656037u ^ (uint64_t)kind) * 1099511628211u;
    for (size_t i = 0; i < size; i++)
        value = (value ^ at[i]) * 1099511628211u;
    uint32_t key = (uint32_t)(value ^ value >> 32);
    return key != 0 ? key : 1;
}

static struct peer **bucket_locked(uint32_t key)
{
    return &table[key & (table_size - 1)];
}

static void grow_locked(void)
{
    uint32_t old_size = table_size, size = table_size == 0 ? LEAST : table_size * 4;
    if (used < FULL * table_size || size > MOST)
        return;
    struct peer **wider = calloc(size, sizeof(struct peer *)), **old = table;
    if (wider == NULL)
        return;
    table = wider;
    table_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        for (struct peer *peer = old[i], *next; peer != NULL; peer = next) {
            struct peer **place = bucket_locked(peer->matching_key);
            next = peer->matching_next;
            peer->matching_next = *place;
            *place = peer;
        }
    free(old);
}

static void remove_locked(struct peer *peer)
{
    if (peer->matching_key == 0 || table == NULL)
        return;
    struct peer **place = bucket_locked(peer->matching_key);
    while (*place != peer)
        place = &(*place)->matching_next;
    *place = peer->matching_next;
    peer->matching_next = NULL;
    peer->matching_key = 0;
    used--;
}

void bmi__matching_set_locked(struct peer *peer, enum matching kind, const void *bytes, size_t size)
{
    uint32_t key = key_of(kind, bytes, size);
    pthread_mutex_lock(&lock);
    remove_locked(peer);
    grow_locked();
    if (table != NULL) {
        struct peer **place = bucket_locked(key);
        peer->matching_key = key;
        peer->matching_next = *place;
        *place = peer;
        used++;
    }
    pthread_mutex_unlock(&lock);
}

void bmi__matching_clear_locked(struct peer *peer)
{
    pthread_mutex_lock(&lock);
    remove_locked(peer);
    pthread_mutex_unlock(&lock);
}

unsigned bmi__matching_find(enum matching kind, const void *bytes, size_t size, struct peer **found,
                            unsigned most)
{
    uint32_t key = key_of(kind, bytes, size);
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    if (table != NULL)
        for (struct peer *peer = *bucket_locked(key); peer != NULL && count < most;
             peer = peer->matching_next)
            if (peer->matching_key == key)
                found[count++] = peer;
    pthread_mutex_unlock(&lock);
    return count;
}

void bmi__matching_stop(void)
{
    pthread_mutex_lock(&lock);
    free(table);
    table = NULL;
    table_size = used = 0;
    pthread_mutex_unlock(&lock);
}
