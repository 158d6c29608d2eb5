/* SPDX-License-Identifier: BSD-3-Clause
 *
 * book.c - the address book: the slots of addresses, and the table of strings. See book.h.
 */
#include "bmi/connection/book.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/connection/option.h"

enum { CHUNK = 256, CHUNKS = 1 << 16 };

static _Atomic(struct address *) chunks[CHUNKS];
static atomic_uint chunk_count;
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER; /* innermost */
static struct address *free_list;                              /* slots_lock */
/* The first generation of each slot. It is past every generation used before the slots were last
 * freed, so a handle of an earlier initialization never matches. */
static uint32_t first_generation; /* slots_lock */

struct bmi__book {
    pthread_mutex_t lock;
    struct address **table;          /* lock: looked up, by string */
    uint32_t table_size, table_used; /* lock */
};

void bmi__book_lock(struct bmi_instance *instance)
{
    struct bmi__book *book = instance->book;
    pthread_mutex_lock(&book->lock);
}

void bmi__book_unlock(struct bmi_instance *instance)
{
    struct bmi__book *book = instance->book;
    pthread_mutex_unlock(&book->lock);
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

struct bmi_instance *bmi__address_instance(BMI_addr_t handle)
{
    struct address *address = bmi__book_find(handle);
    struct bmi_instance *instance = address != NULL ? atomic_load(&address->instance) : NULL;
    return instance != NULL ? instance : &bmi__default;
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

struct address *bmi__book_take_locked(struct bmi_instance *instance)
{
    pthread_mutex_lock(&slots_lock);
    struct address *address = NULL;
    if (free_list != NULL || slots_grow_locked()) {
        address = free_list;
        free_list = address->hash_next;
        address->hash_next = NULL;
        atomic_store(&address->instance, instance);
        address->in_use = true;
    }
    pthread_mutex_unlock(&slots_lock);
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
    atomic_store(&address->peer, NULL); /* it may have one if its instance ends */
    address->losses = 0;
    address->alternatives = NULL;
    address->alternative_count = 0;
    address->string = NULL;
    address->alias_next = NULL;
    address->references = 0;
    address->cause = 0;
    address->dead = address->in_use = address->dropped = false;
    address->slot = slot;
    atomic_store(&address->instance, NULL);
    pthread_mutex_lock(&slots_lock);
    address->hash_next = free_list;
    free_list = address;
    pthread_mutex_unlock(&slots_lock);
}

/* ---- strings -------------------------------------------------------------------------------- */

static uint32_t hash(const char *string)
{
    uint32_t value = 2166136261u;
    for (; *string != '\0'; string++)
        value = (value ^ (uint8_t)*string) * 16777619u;
    return value;
}

static void table_grow_locked(struct bmi__book *book)
{
    uint32_t size = book->table_size == 0 ? 64 : book->table_size * 4;
    struct address **wider = calloc(size, sizeof(struct address *));
    if (wider == NULL)
        return;
    for (uint32_t i = 0; i < book->table_size; i++)
        for (struct address *a = book->table[i], *next; a != NULL; a = next) {
            uint32_t bucket = hash(a->string) & (size - 1);
            next = a->hash_next;
            a->hash_next = wider[bucket];
            wider[bucket] = a;
        }
    free(book->table);
    book->table = wider;
    book->table_size = size;
}

static void table_remove_locked(struct address *address)
{
    struct bmi__book *book = address->instance->book;
    struct address **place = &book->table[hash(address->string) & (book->table_size - 1)];
    while (*place != NULL && *place != address)
        place = &(*place)->hash_next;
    if (*place == NULL)
        return;
    *place = address->hash_next;
    book->table_used--;
}

int bmi__book_string_add_locked(struct address *address)
{
    struct bmi__book *book = address->instance->book;
    if (book->table_used >= 2 * book->table_size)
        table_grow_locked(book);
    if (book->table_size == 0)
        return -ENOMEM;
    uint32_t bucket = hash(address->string) & (book->table_size - 1);
    address->hash_next = book->table[bucket];
    book->table[bucket] = address;
    book->table_used++;
    return 0;
}

struct address *bmi__book_string_find_locked(struct bmi_instance *instance, const char *string)
{
    struct bmi__book *book = instance->book;
    if (book->table_size == 0)
        return NULL;
    struct address *address = book->table[hash(string) & (book->table_size - 1)];
    while (address != NULL && strcmp(address->string, string) != 0)
        address = address->hash_next;
    return address;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__book_open(struct bmi_instance *instance)
{
    struct bmi__book *book = calloc(1, sizeof *book);
    if (book == NULL)
        return -ENOMEM;
    pthread_mutex_init(&book->lock, NULL);
    instance->book = book;
    return 0;
}

void bmi__book_close(struct bmi_instance *instance)
{
    if (instance->book == NULL)
        return;
    unsigned count = atomic_load(&chunk_count);
    for (unsigned c = 0; c < count; c++) {
        struct address *chunk = atomic_load(&chunks[c]);
        for (int i = 0; i < CHUNK; i++)
            if (atomic_load(&chunk[i].instance) == instance)
                bmi__book_give_locked(&chunk[i]);
    }
    free(instance->book->table);
    free(instance->book);
    instance->book = NULL;
}

void bmi__address_slots_free(void)
{
    unsigned count = atomic_load(&chunk_count);
    uint32_t used = 0;
    for (unsigned c = 0; c < count; c++) {
        struct address *chunk = atomic_load(&chunks[c]);
        for (int i = 0; i < CHUNK; i++) {
            uint32_t here = bmi__book_generation(&chunk[i]) - first_generation;
            used = here > used ? here : used;
        }
    }
    first_generation += used;
    atomic_store(&chunk_count, 0);
    for (unsigned c = 0; c < count; c++)
        free(atomic_exchange(&chunks[c], NULL));
    free_list = NULL;
}
