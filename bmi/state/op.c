/* SPDX-License-Identifier: BSD-3-Clause
 *
 * op.c - the table of operations: chunks that never move, a free list under `lock`, and a cache of
 * free slots for each thread, so that a post takes no lock and calls no malloc. A cache belongs to
 * its thread; it is valid for one `epoch` of the table.
 */
#include "bmi/state/op.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, CHUNKS = 1 << 17, BATCH = 32, CACHE_MOST = 96, GENERATION_MAX = 0x7fffffff };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct op *) chunks[CHUNKS]; /* untouched memory of the program's until used */
static atomic_uint chunk_count;             /* grows under lock */
static struct op *free_list;                /* under lock */
static atomic_uint epoch = 1;
/* The first generation of each slot. It is past every generation used before the table was last
 * freed, so an id of an earlier initialization never matches. Changes under lock. */
static atomic_uint first_generation = 1;

struct cache {
    struct op *first;
    unsigned count, epoch;
    bool registered;
};
static _Thread_local struct cache cache;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void cache_return(struct cache *from, unsigned keep)
{
    pthread_mutex_lock(&lock);
    bool current = from->epoch == atomic_load(&epoch);
    while (current && from->count > keep) {
        struct op *op = from->first;
        from->first = op->next;
        from->count--;
        op->next = free_list;
        free_list = op;
    }
    pthread_mutex_unlock(&lock);
}

static void thread_exits(void *argument)
{
    cache_return(argument, 0);
}

static void exit_key_make(void)
{
    pthread_key_create(&exit_key, thread_exits);
}

/* lock held. Makes one more chunk; false: no memory. */
static bool chunk_add_locked(void)
{
    unsigned count = atomic_load(&chunk_count);
    if (count == CHUNKS)
        return false;
    struct op *chunk = calloc(CHUNK, sizeof *chunk);
    if (chunk == NULL)
        return false;
    for (unsigned i = CHUNK; i-- > 0;) {
        chunk[i].slot = count * CHUNK + i;
        atomic_init(&chunk[i].generation, atomic_load(&first_generation));
        chunk[i].next = free_list;
        free_list = &chunk[i];
    }
    atomic_store_explicit(&chunks[count], chunk, memory_order_release);
    atomic_store_explicit(&chunk_count, count + 1, memory_order_release);
    return true;
}

static bool cache_fill(void)
{
    pthread_once(&exit_once, exit_key_make);
    pthread_mutex_lock(&lock);
    if (cache.epoch != atomic_load(&epoch)) {
        cache.first = NULL;
        cache.count = 0;
        cache.epoch = atomic_load(&epoch);
    }
    for (int i = 0; i < BATCH && (free_list != NULL || chunk_add_locked()); i++) {
        struct op *op = free_list;
        free_list = op->next;
        op->next = cache.first;
        cache.first = op;
        cache.count++;
    }
    pthread_mutex_unlock(&lock);
    if (!cache.registered) {
        pthread_setspecific(exit_key, &cache);
        cache.registered = true;
    }
    return cache.first != NULL;
}

struct op *bmi__op_take(struct bmi_instance *instance)
{
    bool stale = cache.epoch != atomic_load_explicit(&epoch, memory_order_relaxed);
    if ((stale || cache.first == NULL) && !cache_fill())
        return NULL;
    struct op *op = cache.first;
    cache.first = op->next;
    cache.count--;
    op->next = NULL;
    atomic_store_explicit(&op->instance, instance, memory_order_relaxed);
    atomic_store_explicit(&op->state, OP_POSTING, memory_order_release);
    return op;
}

/* Clears the fields that must be zero for the next user; slot and generation stay. */
static void op_clear(struct op *op)
{
    op->next = op->previous = NULL;
    op->peer_next = op->peer_previous = NULL;
    atomic_store_explicit(&op->peer, NULL, memory_order_relaxed);
    op->actual = op->expected = 0;
    op->remote = 0;
    op->held = NULL;
    op->memory = NULL;
    op->error = 0;
    op->flags = 0;
    op->stage = STAGE_NONE;
    atomic_store_explicit(&op->ready, false, memory_order_relaxed);
}

/* Generations are positive, so that ids are. */
static unsigned generation_after(unsigned generation)
{
    unsigned next = (generation + 1) & GENERATION_MAX;
    return next != 0 ? next : 1;
}

void bmi__op_give(struct op *op)
{
    unsigned generation = atomic_load_explicit(&op->generation, memory_order_relaxed);
    unsigned next = generation_after(generation);
    if (next == atomic_load_explicit(&first_generation, memory_order_relaxed))
        atomic_store_explicit(&op->used_up, true, memory_order_relaxed);
    /* in this order: a thread that finds it free under an id can tell that the id is stale */
    atomic_store_explicit(&op->generation, next, memory_order_release);
    atomic_store_explicit(&op->state, OP_FREE, memory_order_release);
    op_clear(op);
    if (cache.epoch != atomic_load_explicit(&epoch, memory_order_relaxed)) {
        cache.first = NULL;
        cache.count = 0;
        if (!cache_fill())
            return; /* lost until the table is freed */
    }
    op->next = cache.first;
    cache.first = op;
    if (++cache.count > CACHE_MOST)
        cache_return(&cache, BATCH);
}

bmi_op_id_t bmi__op_id(const struct op *op)
{
    uint64_t generation = atomic_load_explicit(&op->generation, memory_order_relaxed);
    return (bmi_op_id_t)(generation << 32 | (op->slot + 1));
}

/* The slot that an id names, or NULL; *generation is the id's. */
static struct op *slot_of(bmi_op_id_t id, uint32_t *generation)
{
    uint32_t slot = (uint32_t)id - 1;
    *generation = (uint32_t)((uint64_t)id >> 32);
    if (id <= 0 || slot / CHUNK >= atomic_load_explicit(&chunk_count, memory_order_acquire))
        return NULL;
    struct op *chunk = atomic_load_explicit(&chunks[slot / CHUNK], memory_order_acquire);
    return &chunk[slot % CHUNK];
}

struct op *bmi__op_find(bmi_op_id_t id)
{
    uint32_t generation;
    struct op *op = slot_of(id, &generation);
    if (op == NULL || atomic_load_explicit(&op->generation, memory_order_acquire) != generation ||
        atomic_load_explicit(&op->state, memory_order_acquire) == OP_FREE)
        return NULL;
    return op;
}

bool bmi__op_is_over(bmi_op_id_t id)
{
    uint32_t generation;
    struct op *op = slot_of(id, &generation);
    if (op == NULL)
        return false;
    uint32_t now = atomic_load_explicit(&op->generation, memory_order_acquire);
    uint32_t used = (now - atomic_load(&first_generation)) & GENERATION_MAX;
    uint32_t ago = (now - generation) & GENERATION_MAX;
    return ago > 0 && (ago <= used || atomic_load_explicit(&op->used_up, memory_order_relaxed));
}

void bmi__op_each(struct bmi_instance *instance, void (*visit)(struct op *op, void *argument),
                  void *argument)
{
    unsigned count = atomic_load_explicit(&chunk_count, memory_order_acquire);
    for (unsigned c = 0; c < count; c++) {
        struct op *chunk = atomic_load_explicit(&chunks[c], memory_order_acquire);
        for (unsigned i = 0; i < CHUNK; i++)
            if (atomic_load_explicit(&chunk[i].state, memory_order_acquire) != OP_FREE &&
                atomic_load_explicit(&chunk[i].instance, memory_order_relaxed) == instance)
                visit(&chunk[i], argument);
    }
}

static void give(struct op *op, void *argument)
{
    (void)argument;
    bmi__op_give(op);
}

void bmi__ops_give(struct bmi_instance *instance)
{
    bmi__op_each(instance, give, NULL);
}

void bmi__op_table_free(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = atomic_exchange(&chunk_count, 0), first = atomic_load(&first_generation);
    unsigned used = 0;
    for (unsigned c = 0; c < count; c++) {
        struct op *chunk = atomic_exchange(&chunks[c], NULL);
        for (unsigned i = 0; i < CHUNK; i++) {
            unsigned here = (atomic_load(&chunk[i].generation) - first) & GENERATION_MAX;
            if (atomic_load(&chunk[i].used_up))
                here = GENERATION_MAX;
            used = here > used ? here : used;
        }
        free(chunk);
    }
    free_list = NULL;
    atomic_store(&first_generation, generation_after(first + used));
    atomic_fetch_add(&epoch, 1);
    pthread_mutex_unlock(&lock);
}

void bmi__op_append(struct op_list *list, struct op *op)
{
    op->next = NULL;
    op->previous = list->last;
    if (list->last != NULL)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

void bmi__op_prepend(struct op_list *list, struct op *op)
{
    op->previous = NULL;
    op->next = list->first;
    if (list->first != NULL)
        list->first->previous = op;
    else
        list->last = op;
    list->first = op;
}

void bmi__op_remove(struct op_list *list, struct op *op)
{
    if (op->previous != NULL)
        op->previous->next = op->next;
    else
        list->first = op->next;
    if (op->next != NULL)
        op->next->previous = op->previous;
    else
        list->last = op->previous;
    op->next = op->previous = NULL;
}
