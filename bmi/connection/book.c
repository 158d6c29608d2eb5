/* SPDX-License-Identifier: BSD-3-Clause
 *
 * book.c - the address book: the slots of addresses, and the table of strings. See book.h.
 */
#include "bmi/connection/book.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/connection/address.h"
#include "bmi/connection/option.h"

enum { CHUNK = 256, CHUNKS = 1 << 16 };

static pthread_mutex_t book = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct address *) chunks[CHUNKS];
static atomic_uint chunk_count;
static struct address *free_list; /* book */
/* The first generation of each slot. It is past every generation used before the book was last
 * freed, so a handle of an earlier initialization never matches. */
static uint32_t first_generation;       /* book */
static struct address **table;          /* book: looked up, by string */
static uint32_t table_size, table_used; /* book */

void bmi__book_lock(void)
{
    pthread_mutex_lock(&book);
}

void bmi__book_unlock(void)
{
    pthread_mutex_unlock(&book);
}

/* ---- slots ---------------------------------------------------------------------------------- */

BMI_addr_t bmi__address_handle(const struct address *address)
{
    uint64_t generation = atomic_load_explicit(&address->generation, memory_order_relaxed);
    return (BMI_addr_t)((uint64_t)(address->slot + 1) << 32 | generation);
}

struct address *bmi__book_find(BMI_addr_t handle)
{
    uint32_t slot = (uint32_t)((uint64_t)handle >> 32) - 1;
    if (handle <= 0 || slot / CHUNK >= atomic_load_explicit(&chunk_count, memory_order_acquire))
        return NULL;
    struct address *chunk = atomic_load_explicit(&chunks[slot / CHUNK], memory_order_relaxed);
    struct address *address = &chunk[slot % CHUNK];
    return bmi__book_generation(address) == (uint32_t)handle ? address : NULL;
}

struct address *bmi__address_find_locked(BMI_addr_t handle)
{
    struct address *address = bmi__book_find(handle);
    return address != NULL && address->in_use ? address : NULL;
}

struct address *bmi__address_of_locked(BMI_addr_t handle)
{
    return bmi__book_find(handle);
}

static bool slots_grow_locked(void)
{
    unsigned count = atomic_load(&chunk_count);
    struct address *chunk = count < CHUNKS ? calloc(CHUNK, sizeof *chunk) : NULL;
    if (chunk == NULL)
        return false;
    for (uint32_t i = CHUNK; i-- > 0;) {
        chunk[i].slot = count * CHUNK + i;
        atomic_init(&chunk[i].generation, first_generation);
        chunk[i].hash_next = free_list;
        free_list = &chunk[i];
    }
    atomic_store(&chunks[count], chunk);
    atomic_store_explicit(&chunk_count, count + 1, memory_order_release);
    return true;
}

struct address *bmi__book_take_locked(void)
{
    if (free_list == NULL && !slots_grow_locked())
        return NULL;
    struct address *address = free_list;
    free_list = address->hash_next;
    address->hash_next = NULL;
    address->in_use = true;
    return address;
}

static void table_remove_locked(struct address *address);

static void hosts_free(struct address *address)
{
    for (struct host *host = address->host, *former; host != NULL; host = former) {
        former = host->former;
        free(host);
    }
    address->host = NULL;
}

void bmi__book_give_locked(struct address *address)
{
    if (address->string != NULL)
        table_remove_locked(address);
    bmi__options_free(address);
    for (uint32_t i = 0; i < address->alternative_count; i++) {
        free(address->alternatives[i].canonical);
        free(address->alternatives[i].url);
    }
    free(address->alternatives);
    free(address->string);
    hosts_free(address);
    uint32_t slot = address->slot;
    atomic_fetch_add(&address->generation, 1);
    address->losses = 0;
    address->alternatives = NULL;
    address->alternative_count = 0;
    address->string = NULL;
    address->alias_next = NULL;
    address->references = 0;
    address->cause = 0;
    address->dead = address->in_use = address->dropped = false;
    address->slot = slot;
    address->hash_next = free_list;
    free_list = address;
}

/* ---- strings -------------------------------------------------------------------------------- */

static uint32_t hash(const char *string)
{
    uint32_t value = 2166136261u;
    for (; *string != '\0'; string++)
        value = (value ^ (uint8_t)*string) * 16777619u;
    return value;
}

static void table_grow_locked(void)
{
    uint32_t size = table_size == 0 ? 64 : table_size * 4;
    struct address **wider = calloc(size, sizeof(struct address *));
    if (wider == NULL)
        return;
    for (uint32_t i = 0; i < table_size; i++)
        for (struct address *a = table[i], *next; a != NULL; a = next) {
            uint32_t bucket = hash(a->string) & (size - 1);
            next = a->hash_next;
            a->hash_next = wider[bucket];
            wider[bucket] = a;
        }
    free(table);
    table = wider;
    table_size = size;
}

static void table_remove_locked(struct address *address)
{
    struct address **place = &table[hash(address->string) & (table_size - 1)];
    while (*place != NULL && *place != address)
        place = &(*place)->hash_next;
    if (*place == NULL)
        return;
    *place = address->hash_next;
    table_used--;
}

int bmi__book_string_add_locked(struct address *address)
{
    if (table_used >= 2 * table_size)
        table_grow_locked();
    if (table_size == 0)
        return -ENOMEM;
    uint32_t bucket = hash(address->string) & (table_size - 1);
    address->hash_next = table[bucket];
    table[bucket] = address;
    table_used++;
    return 0;
}

struct address *bmi__book_string_find_locked(const char *string)
{
    if (table_size == 0)
        return NULL;
    struct address *address = table[hash(string) & (table_size - 1)];
    while (address != NULL && strcmp(address->string, string) != 0)
        address = address->hash_next;
    return address;
}

/* ---- the end -------------------------------------------------------------------------------- */

void bmi__book_free_locked(void)
{
    unsigned count = atomic_load(&chunk_count);
    uint32_t used = 0;
    for (unsigned c = 0; c < count; c++) {
        struct address *chunk = atomic_load(&chunks[c]);
        for (int i = 0; i < CHUNK; i++) {
            if (chunk[i].in_use)
                bmi__book_give_locked(&chunk[i]);
            uint32_t here = bmi__book_generation(&chunk[i]) - first_generation;
            used = here > used ? here : used;
        }
    }
    first_generation += used;
    atomic_store(&chunk_count, 0);
    for (unsigned c = 0; c < count; c++)
        free(atomic_exchange(&chunks[c], NULL));
    free(table);
    table = NULL;
    table_size = table_used = 0;
    free_list = NULL;
}
