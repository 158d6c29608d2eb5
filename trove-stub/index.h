/* SPDX-License-Identifier: BSD-3-Clause
 *
 * index.h - an ordered table in memory: byte strings to pointers, in memcmp order. A skip list. The
 * owner does the locking.
 */
#ifndef TROVE_INDEX_H
#define TROVE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INDEX_LEVELS = 20 };

struct index_entry {
    void *value;
    size_t key_size;
    unsigned char *key;         /* after next[] */
    struct index_entry *next[]; /* one for each of its levels */
};

struct index_table {
    struct index_entry *first[INDEX_LEVELS];
    size_t count;
    uint32_t seed;
};

/* A number as a key, whose order is the number's. */
static inline void bmi__number_put(unsigned char *to, uint64_t number, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        to[i] = (unsigned char)number;
}

/* The first entry whose key is at least this one; NULL: none. */
struct index_entry *bmi__index_at_least(const struct index_table *table, const void *key,
                                        size_t key_size);
/* The entry of this key; NULL: none. */
struct index_entry *bmi__index_find(const struct index_table *table, const void *key,
                                    size_t key_size);
/* Adds a key that is absent. false: no memory. */
bool bmi__index_add(struct index_table *table, const void *key, size_t key_size, void *value);
/* Takes a key out; returns its value, or NULL. */
void *bmi__index_remove(struct index_table *table, const void *key, size_t key_size);

#endif
