/* SPDX-License-Identifier: BSD-3-Clause
 *
 * index.c - see index.h. After Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees"
 * (1990), with a quarter of the entries of each level on the next.
 */
#include "trove-stub/index.h"

#include <stdlib.h>
#include <string.h>

static int compare(const struct index_entry *entry, const void *key, size_t key_size)
{
    size_t common = entry->key_size < key_size ? entry->key_size : key_size;
    int order = memcmp(entry->key, key, common);
    if (order != 0 || entry->key_size == key_size)
        return order;
    return entry->key_size < key_size ? -1 : 1;
}

/* Fills links[level] with the place that points to the first entry >= key on that level. */
static void search(struct index_table *table, const void *key, size_t key_size,
                   struct index_entry **links[INDEX_LEVELS])
{
    struct index_entry **next = table->first;
    for (int level = INDEX_LEVELS - 1; level >= 0; level--) {
        while (next[level] != NULL && compare(next[level], key, key_size) < 0)
            next = next[level]->next;
        links[level] = &next[level];
    }
}

struct index_entry *bmi__index_at_least(const struct index_table *table, const void *key,
                                        size_t key_size)
{
    struct index_entry *const *next = table->first;
    for (int level = INDEX_LEVELS - 1; level >= 0; level--)
        while (next[level] != NULL && compare(next[level], key, key_size) < 0)
            next = next[level]->next;
    return next[0];
}

struct index_entry *bmi__index_find(const struct index_table *table, const void *key,
                                    size_t key_size)
{
    struct index_entry *entry = bmi__index_at_least(table, key, key_size);
    return entry != NULL && compare(entry, key, key_size) == 0 ? entry : NULL;
}

static int levels_random(struct index_table *table)
{
    int levels = 1;
    table->seed = table->seed * 1664525 + 1013904223;
    for (uint32_t bits = table->seed >> 8; (bits & 3) == 0 && levels < INDEX_LEVELS - 1; bits >>= 2)
        levels++;
    return levels;
}

bool bmi__index_add(struct index_table *table, const void *key, size_t key_size, void *value)
{
    struct index_entry **links[INDEX_LEVELS];
    int levels = levels_random(table);
    size_t head = sizeof(struct index_entry) + (size_t)levels * sizeof(struct index_entry *);
    struct index_entry *entry = malloc(head + key_size);
    if (entry == NULL)
        return false;
    entry->value = value;
    entry->key_size = key_size;
    entry->key = (unsigned char *)entry + head;
    memcpy(entry->key, key, key_size);
    search(table, key, key_size, links);
    for (int level = 0; level < levels; level++) {
        entry->next[level] = *links[level];
        *links[level] = entry;
    }
    table->count++;
    return true;
}

void *bmi__index_remove(struct index_table *table, const void *key, size_t key_size)
{
    struct index_entry **links[INDEX_LEVELS];
    search(table, key, key_size, links);
    struct index_entry *entry = *links[0];
    if (entry == NULL || compare(entry, key, key_size) != 0)
        return NULL;
    for (int level = 0; level < INDEX_LEVELS && *links[level] == entry; level++)
        *links[level] = entry->next[level];
    void *value = entry->value;
    free(entry);
    table->count--;
    return value;
}
