/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matching.c - see matching.h. A hash table whose chains run through the peers; `lock` (innermost)
 * guards it and the two fields of each peer that belong to it, `matching_next` and `matching_key`.
 */
#include "bmi/connection/matching.h"

#include <errno.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
enum { LEAST = 64, MOST = 1 << 20, FULL = 4 };

struct bmi__matching {
    pthread_mutex_t lock;
    struct peer **table;       /* lock */
    uint32_t table_size, used; /* lock; table_size is a power of two */
};

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

static struct peer **bucket_locked(struct bmi__matching *matching, uint32_t key)
{
    return &matching->table[key & (matching->table_size - 1)];
}

static void grow_locked(struct bmi__matching *matching)
{
    uint32_t old_size = matching->table_size,
             size = matching->table_size == 0 ? LEAST : matching->table_size * 4;
    if (matching->used < FULL * matching->table_size || size > MOST)
        return;
    struct peer **wider = calloc(size, sizeof(struct peer *)), **old = matching->table;
    if (wider == NULL)
        return;
    matching->table = wider;
    matching->table_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        for (struct peer *peer = old[i], *next; peer != NULL; peer = next) {
            struct peer **place = bucket_locked(matching, peer->matching_key);
            next = peer->matching_next;
            peer->matching_next = *place;
            *place = peer;
        }
    free(old);
}

static void remove_locked(struct peer *peer)
{
    struct bmi__matching *matching = peer->instance->matching;
    if (peer->matching_key == 0 || matching->table == NULL)
        return;
    struct peer **place = bucket_locked(matching, peer->matching_key);
    while (*place != peer)
        place = &(*place)->matching_next;
    *place = peer->matching_next;
    peer->matching_next = NULL;
    peer->matching_key = 0;
    matching->used--;
}

void bmi__matching_set_locked(struct peer *peer, enum matching kind, const void *bytes, size_t size)
{
    struct bmi__matching *matching = peer->instance->matching;
    uint32_t key = key_of(kind, bytes, size);
    pthread_mutex_lock(&matching->lock);
    remove_locked(peer);
    grow_locked(matching);
    if (matching->table != NULL) {
        struct peer **place = bucket_locked(matching, key);
        peer->matching_key = key;
        peer->matching_next = *place;
        *place = peer;
        matching->used++;
    }
    pthread_mutex_unlock(&matching->lock);
}

void bmi__matching_clear_locked(struct peer *peer)
{
    struct bmi__matching *matching = peer->instance->matching;
    pthread_mutex_lock(&matching->lock);
    remove_locked(peer);
    pthread_mutex_unlock(&matching->lock);
}

unsigned bmi__matching_find(struct bmi_instance *instance, enum matching kind, const void *bytes,
                            size_t size, struct peer **found, unsigned most)
{
    struct bmi__matching *matching = instance->matching;
    uint32_t key = key_of(kind, bytes, size);
    unsigned count = 0;
    pthread_mutex_lock(&matching->lock);
    if (matching->table != NULL)
        for (struct peer *peer = *bucket_locked(matching, key); peer != NULL && count < most;
             peer = peer->matching_next)
            if (peer->matching_key == key)
                found[count++] = peer;
    pthread_mutex_unlock(&matching->lock);
    return count;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__matching_open(struct bmi_instance *instance)
{
    struct bmi__matching *matching = calloc(1, sizeof *matching);
    if (matching == NULL)
        return -ENOMEM;
    pthread_mutex_init(&matching->lock, NULL);
    instance->matching = matching;
    return 0;
}

void bmi__matching_close(struct bmi_instance *instance)
{
    if (instance->matching != NULL)
        free(instance->matching->table);
    free(instance->matching);
    instance->matching = NULL;
}
