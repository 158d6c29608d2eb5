/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mem.c - the backends mem (everything in memory) and null (the same, but only the sizes of
 * streams).
 *
 * `lock` guards the tables of collections and objects; no thread holds it while it copies bytes. An
 * object has a count of users, so an object that is removed meanwhile stays until the last use
 * ends; its own lock guards stream and keys. Order: lock, then an object's. A chunk of a stream is
 * a block (blocks.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "trove-stub/index.h"
#include "trove-stub/lease.h"

struct mem_object {
    atomic_uint users;
    pthread_rwlock_t lock;
    bmi_size_t size;           /* lock */
    struct index_table chunks; /* lock: 8 bytes of chunk number to a block; an absent chunk
                                  is zeros */
    struct index_table keys;   /* lock: key to struct mem_value */
};

struct mem_value {
    size_t size;
    unsigned char data[];
};

struct mem_store {
    pthread_mutex_t lock;
    struct index_table collections; /* lock: 4 bytes */
    struct index_table objects;     /* lock: 12 bytes: collection, object */
    uint64_t next_object;           /* lock */
    _Atomic bmi_size_t used;        /* bytes of chunks */
    bool keeps_bytes;
    struct block_pool blocks;
};

/* ---- numbers as keys ------------------------------------------------------------------------- */

static uint64_t number_get(const unsigned char *from, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | from[i];
    return number;
}

static void place_key(unsigned char key[12], bmi_trove_collection_id_t collection,
                      bmi_trove_object_id_t object)
{
    bmi__number_put(key, collection, 4);
    bmi__number_put(key + 4, object, 8);
}

/* ---- objects --------------------------------------------------------------------------------- */

static struct mem_store *mem_of(const struct trove_op *op)
{
    return op->place.store->state;
}

static void table_free(struct index_table *table)
{
    while (table->first[0] != NULL)
        free(bmi__index_remove(table, table->first[0]->key, table->first[0]->key_size));
}

static struct index_entry *chunk_find(struct mem_object *object, bmi_size_t offset)
{
    unsigned char key[8];
    bmi__number_put(key, (uint64_t)offset / BLOCK_SIZE, 8);
    return bmi__index_find(&object->chunks, key, 8);
}

/* Zeros the rest of the chunk that holds a stream's new end. */
static int chunk_cut(struct mem_store *mem, struct mem_object *object, bmi_size_t end)
{
    struct index_entry *entry = chunk_find(object, end);
    size_t kept = (size_t)(end % BLOCK_SIZE);
    if (entry == NULL || kept == 0)
        return 0;
    struct trove_block *block = entry->value;
    if (bmi__block_shared(block)) {
        block = bmi__block_get(&mem->blocks);
        if (block == NULL)
            return -ENOMEM;
        memcpy(block->bytes, ((struct trove_block *)entry->value)->bytes, kept);
        bmi__block_put(&mem->blocks, entry->value);
        entry->value = block;
    }
    memset(block->bytes + kept, 0, BLOCK_SIZE - kept);
    return 0;
}

/* Removes all chunks at or above `size`. */
static int chunks_cut(struct mem_store *mem, struct mem_object *object, bmi_size_t size)
{
    unsigned char key[8];
    int result = chunk_cut(mem, object, size);
    if (result != 0)
        return result;
    bmi__number_put(key, ((uint64_t)size + BLOCK_SIZE - 1) / BLOCK_SIZE, 8);
    for (struct index_entry *one; (one = bmi__index_at_least(&object->chunks, key, 8)) != NULL;) {
        bmi__block_put(&mem->blocks, bmi__index_remove(&object->chunks, one->key, 8));
        atomic_fetch_sub(&mem->used, BLOCK_SIZE);
    }
    return 0;
}

static void object_put(struct mem_store *mem, struct mem_object *object)
{
    if (atomic_fetch_sub(&object->users, 1) != 1)
        return;
    chunks_cut(mem, object, 0);
    table_free(&object->keys);
    pthread_rwlock_destroy(&object->lock);
    free(object);
}

static struct mem_object *object_get(const struct bmi_trove_place *place)
{
    struct mem_store *mem = place->store->state;
    unsigned char key[12];
    place_key(key, place->collection, place->object);
    pthread_mutex_lock(&mem->lock);
    struct index_entry *entry = bmi__index_find(&mem->objects, key, sizeof key);
    struct mem_object *object = entry != NULL ? entry->value : NULL;
    if (object != NULL)
        atomic_fetch_add(&object->users, 1);
    pthread_mutex_unlock(&mem->lock);
    return object;
}

static int mem_create(struct trove_op *op)
{
    struct mem_store *mem = mem_of(op);
    bmi_trove_object_id_t number = *op->objects;
    unsigned char key[12];
    struct mem_object *object = calloc(1, sizeof *object);
    if (object == NULL)
        return -ENOMEM;
    atomic_init(&object->users, 1);
    pthread_rwlock_init(&object->lock, NULL);
    int result = 0;
    pthread_mutex_lock(&mem->lock);
    place_key(key, op->place.collection, number);
    if (bmi__index_find(&mem->collections, key, 4) == NULL)
        result = -ENOENT;
    while (result == 0 && (number == 0 || bmi__index_find(&mem->objects, key, 12) != NULL)) {
        if (*op->objects != 0)
            result = -EEXIST;
        number = ++mem->next_object;
        place_key(key, op->place.collection, number);
    }
    if (result == 0 && !bmi__index_add(&mem->objects, key, 12, object))
        result = -ENOMEM;
    pthread_mutex_unlock(&mem->lock);
    if (result == 0)
        *op->objects = number;
    else
        object_put(mem, object);
    return result;
}

static int mem_remove(struct trove_op *op)
{
    struct mem_store *mem = mem_of(op);
    unsigned char key[12];
    place_key(key, op->place.collection, op->place.object);
    pthread_mutex_lock(&mem->lock);
    struct mem_object *object = bmi__index_remove(&mem->objects, key, sizeof key);
    pthread_mutex_unlock(&mem->lock);
    if (object == NULL)
        return -ENOENT;
    object_put(mem, object);
    return 0;
}

static int mem_objects(struct trove_op *op)
{
    struct mem_store *mem = mem_of(op);
    unsigned char key[12];
    place_key(key, op->place.collection, *op->object_position);
    pthread_mutex_lock(&mem->lock);
    bool there = bmi__index_find(&mem->collections, key, 4) != NULL;
    struct index_entry *entry = bmi__index_at_least(&mem->objects, key, sizeof key);
    for (; entry != NULL && memcmp(entry->key, key, 4) == 0 && op->actual < op->count;
         entry = entry->next[0]) {
        uint64_t number = number_get(entry->key + 4, 8);
        if (number != *op->object_position)
            op->objects[op->actual++] = number;
    }
    pthread_mutex_unlock(&mem->lock);
    if (op->actual > 0)
        *op->object_position = op->objects[op->actual - 1];
    return there ? 0 : -ENOENT;
}

/* ---- streams --------------------------------------------------------------------------------- */

static int mem_begin(struct trove_op *op)
{
    op->object = object_get(&op->place);
    return op->object != NULL ? 0 : -ENOENT;
}

static void mem_end(struct trove_op *op)
{
    if (op->object != NULL)
        object_put(mem_of(op), op->object);
    op->object = NULL;
}

/* Gives a chunk this block; `entry` is the chunk's, or NULL if it is absent. */
static int chunk_set(struct trove_op *op, struct index_entry *entry, bmi_size_t offset,
                     struct trove_block *block)
{
    struct mem_store *mem = mem_of(op);
    struct mem_object *object = op->object;
    bmi_size_t capacity = op->place.store->settings.capacity;
    unsigned char key[8];
    int result = -ENOSPC;
    if (entry != NULL) {
        entry->value = block;
        return 0;
    }
    bmi__number_put(key, (uint64_t)offset / BLOCK_SIZE, 8);
    bmi_size_t used = atomic_fetch_add(&mem->used, BLOCK_SIZE);
    if (used <= (capacity > 0 ? capacity : INT64_MAX) - BLOCK_SIZE)
        result = bmi__index_add(&object->chunks, key, 8, block) ? 0 : -ENOMEM;
    if (result != 0)
        atomic_fetch_sub(&mem->used, BLOCK_SIZE);
    return result;
}

/* A block for bytes of a chunk, with the chunk's other bytes. */
static struct trove_block *block_with(struct mem_store *mem, const struct trove_block *old,
                                      bmi_size_t at, const char *from, bmi_size_t size)
{
    struct trove_block *block = bmi__block_get(&mem->blocks);
    if (block == NULL)
        return NULL;
    if (size < BLOCK_SIZE && old != NULL)
        memcpy(block->bytes, old->bytes, BLOCK_SIZE);
    else if (size < BLOCK_SIZE)
        memset(block->bytes, 0, BLOCK_SIZE);
    memcpy(block->bytes + at % BLOCK_SIZE, from, (size_t)size);
    return block;
}

/* Writes bytes of one chunk. A whole lent block is not copied: the lease gets the chunk's former
 * block instead. */
static int chunk_write(struct trove_op *op, bmi_size_t at, const char *from, bmi_size_t size)
{
    struct mem_store *mem = mem_of(op);
    struct index_entry *entry = chunk_find(op->object, at);
    struct trove_block *old = entry != NULL ? entry->value : NULL;
    struct trove_block **lent = size == BLOCK_SIZE ? bmi__lease_find(op->lease, from) : NULL;
    if (lent == NULL && old != NULL && !bmi__block_shared(old)) {
        memcpy(old->bytes + at % BLOCK_SIZE, from, (size_t)size);
        return 0;
    }
    struct trove_block *new = lent != NULL ? *lent : block_with(mem, old, at, from, size);
    int result = new == NULL ? -ENOMEM : chunk_set(op, entry, at, new);
    if (lent == NULL)
        bmi__block_put(&mem->blocks, result == 0 ? old : new);
    else if (result == 0)
        *lent = old;
    if (lent != NULL && result == 0)
        atomic_fetch_add(&op->place.store->counts.lent_bytes, BLOCK_SIZE);
    return result;
}

/* The bytes that null reads: the same value for each 64 KiB of an object. */
static int made_up(const struct trove_op *op, bmi_size_t offset)
{
    return (int)((op->place.object + (uint64_t)offset / BLOCK_SIZE) & 0xff);
}

static ssize_t mem_read(struct trove_op *op, const struct trove_piece *piece)
{
    struct mem_store *mem = mem_of(op);
    struct mem_object *object = op->object;
    bmi_size_t at = piece->offset;
    pthread_rwlock_rdlock(&object->lock);
    bmi_size_t left = object->size - at < piece->size ? object->size - at : piece->size;
    for (int i = 0; i < piece->count && left > 0; i++) {
        char *to = piece->memory[i].iov_base;
        bmi_size_t in_segment = (bmi_size_t)piece->memory[i].iov_len;
        while (in_segment > 0 && left > 0) {
            bmi_size_t step = BLOCK_SIZE - at % BLOCK_SIZE;
            step = step < in_segment ? step : in_segment;
            step = step < left ? step : left;
            struct index_entry *entry = chunk_find(object, at);
            if (entry != NULL)
                memcpy(to, ((struct trove_block *)entry->value)->bytes + at % BLOCK_SIZE,
                       (size_t)step);
            else
                memset(to, mem->keeps_bytes ? 0 : made_up(op, at), (size_t)step);
            to += step;
            at += step;
            in_segment -= step;
            left -= step;
        }
    }
    pthread_rwlock_unlock(&object->lock);
    return at - piece->offset;
}

static ssize_t mem_write(struct trove_op *op, const struct trove_piece *piece)
{
    struct mem_store *mem = mem_of(op);
    struct mem_object *object = op->object;
    bmi_size_t at = piece->offset;
    int error = 0;
    pthread_rwlock_wrlock(&object->lock);
    if (!mem->keeps_bytes)
        at += piece->size;
    for (int i = 0; i < piece->count && mem->keeps_bytes && error == 0; i++) {
        const char *from = piece->memory[i].iov_base;
        bmi_size_t in_segment = (bmi_size_t)piece->memory[i].iov_len;
        while (in_segment > 0) {
            bmi_size_t step = BLOCK_SIZE - at % BLOCK_SIZE;
            step = step < in_segment ? step : in_segment;
            error = chunk_write(op, at, from, step);
            if (error != 0)
                break;
            from += step;
            at += step;
            in_segment -= step;
        }
    }
    if (at > object->size)
        object->size = at;
    pthread_rwlock_unlock(&object->lock);
    return at > piece->offset ? at - piece->offset : error;
}

static int mem_sync(struct trove_op *op)
{
    (void)op;
    return 0;
}

static int mem_stream(struct trove_op *op, struct mem_object *object)
{
    int result = 0;
    pthread_rwlock_wrlock(&object->lock);
    if (op->what == TROVE_SIZE) {
        *op->size_out = object->size;
    } else if (op->what == TROVE_RESIZE) {
        if (op->new_size < object->size)
            result = chunks_cut(mem_of(op), object, op->new_size);
        if (result == 0)
            object->size = op->new_size;
    }
    pthread_rwlock_unlock(&object->lock);
    return result;
}

/* ---- leases ---------------------------------------------------------------------------------- */

static bool lend_locked(struct trove_lease *lease, struct mem_object *object, bmi_size_t offset,
                        bmi_size_t size)
{
    struct mem_store *mem = lease->store->state;
    if (size > object->size || offset > object->size - size)
        return false;
    for (bmi_size_t at = offset, end = offset + size, step; at < end; at += step) {
        struct index_entry *entry = chunk_find(object, at);
        step = BLOCK_SIZE - at % BLOCK_SIZE;
        step = step < end - at ? step : end - at;
        if (entry == NULL)
            return false;
        struct trove_block *block = bmi__block_share(entry->value);
        if (!bmi__lease_add(lease, block, at % BLOCK_SIZE, step)) {
            bmi__block_put(&mem->blocks, block);
            return false;
        }
    }
    return true;
}

static bool mem_lend(struct trove_lease *lease, const struct bmi_trove_place *place,
                     bmi_size_t offset, bmi_size_t size)
{
    struct mem_object *object = object_get(place);
    if (object == NULL)
        return false;
    pthread_rwlock_rdlock(&object->lock);
    bool lent = lend_locked(lease, object, offset, size);
    pthread_rwlock_unlock(&object->lock);
    object_put(place->store->state, object);
    return lent;
}

static bool mem_lend_blank(struct trove_lease *lease, const struct bmi_trove_place *place,
                           bmi_size_t offset, bmi_size_t size)
{
    struct mem_store *mem = place->store->state;
    if (offset % BLOCK_SIZE != 0 || size % BLOCK_SIZE != 0)
        return false;
    for (bmi_size_t done = 0; done < size; done += BLOCK_SIZE) {
        struct trove_block *block = bmi__block_get(&mem->blocks);
        if (block == NULL || !bmi__lease_add(lease, block, 0, BLOCK_SIZE)) {
            bmi__block_put(&mem->blocks, block);
            return false;
        }
    }
    return true;
}

static void mem_lease_return(struct bmi_trove_store *store, struct trove_block *block)
{
    struct mem_store *mem = store->state;
    bmi__block_put(&mem->blocks, block);
}

/* ---- key/values ------------------------------------------------------------------------------ */

static void keys_get(struct trove_op *op, struct mem_object *object)
{
    for (int i = 0; i < op->count; i++) {
        struct bmi_trove_pair *pair = &op->pairs[i];
        struct index_entry *entry =
            bmi__index_find(&object->keys, pair->key, (size_t)pair->key_size);
        pair->error = -BMI_ENOENT;
        if (entry == NULL)
            continue;
        const struct mem_value *value = entry->value;
        bmi__pair_found(pair, value->data, value->size);
        op->actual++;
    }
}

static struct mem_value *value_make(const struct bmi_trove_pair *pair)
{
    struct mem_value *value = malloc(sizeof *value + (size_t)pair->value_size);
    if (value == NULL)
        return NULL;
    value->size = (size_t)pair->value_size;
    if (value->size > 0)
        memcpy(value->data, pair->value, value->size);
    return value;
}

/* Allocates all values first, so that failures come before visible changes. */
static int keys_put_values(struct trove_op *op, struct mem_object *object, void **values)
{
    for (int i = 0; i < op->count; i++)
        if ((values[i] = value_make(&op->pairs[i])) == NULL)
            return -ENOMEM;
    for (int i = 0; i < op->count; i++) {
        size_t size = (size_t)op->pairs[i].key_size;
        struct index_entry *entry = bmi__index_find(&object->keys, op->pairs[i].key, size);
        if (entry != NULL && (op->flags & BMI_TROVE_ONLY_NEW) != 0)
            return -EEXIST; /* before, or earlier in the list */
        if (entry == NULL && !bmi__index_add(&object->keys, op->pairs[i].key, size, NULL))
            return -ENOMEM;
    }
    for (int i = 0; i < op->count; i++) {
        struct index_entry *entry =
            bmi__index_find(&object->keys, op->pairs[i].key, (size_t)op->pairs[i].key_size);
        void *old = entry->value;
        entry->value = values[i];
        values[i] = NULL;
        free(old);
        op->pairs[i].error = 0;
        op->actual++;
    }
    return 0;
}

/* Removes entries that were added for a list that could not be put. */
static void keys_drop_empty(struct trove_op *op, struct mem_object *object)
{
    for (int i = 0; i < op->count; i++) {
        size_t size = (size_t)op->pairs[i].key_size;
        struct index_entry *entry = bmi__index_find(&object->keys, op->pairs[i].key, size);
        if (entry != NULL && entry->value == NULL)
            bmi__index_remove(&object->keys, op->pairs[i].key, size);
    }
}

/* Compares with the present values and returns them. */
static bool keys_compare(struct trove_op *op, struct mem_object *object)
{
    bool same = true;
    for (int i = 0; i < op->count; i++) {
        struct index_entry *entry =
            bmi__index_find(&object->keys, op->pairs[i].key, (size_t)op->pairs[i].key_size);
        const struct mem_value *value = entry != NULL ? entry->value : NULL;
        same &= bmi__pair_exchange(op, i, value != NULL ? value->data : NULL,
                                   value != NULL ? value->size : 0);
    }
    return same;
}

static int keys_put(struct trove_op *op, struct mem_object *object)
{
    bool compares = op->expected != NULL || op->old != NULL;
    if (compares && !keys_compare(op, object))
        return -EAGAIN;
    size_t count = op->count > 0 ? (size_t)op->count : 0;
    void **values = calloc(count, sizeof *values);
    if (values == NULL)
        return -ENOMEM;
    int result = keys_put_values(op, object, values);
    if (result != 0)
        keys_drop_empty(op, object);
    for (int i = 0; i < op->count; i++)
        free(values[i]);
    free(values);
    return result;
}

static void keys_remove(struct trove_op *op, struct mem_object *object)
{
    for (int i = 0; i < op->count; i++) {
        struct bmi_trove_pair *pair = &op->pairs[i];
        void *value = bmi__index_remove(&object->keys, pair->key, (size_t)pair->key_size);
        pair->error = value != NULL ? 0 : -BMI_ENOENT;
        op->actual += value != NULL;
        free(value);
    }
}

static void keys_iterate(struct trove_op *op, struct mem_object *object)
{
    struct bmi_trove_position *position = op->position;
    struct index_entry *entry = object->keys.first[0];
    if (position->key_size > 0)
        entry = bmi__index_at_least(&object->keys, position->key, position->key_size);
    if (entry != NULL && position->key_size == entry->key_size &&
        memcmp(entry->key, position->key, entry->key_size) == 0)
        entry = entry->next[0];
    for (; entry != NULL && op->actual < op->count; entry = entry->next[0]) {
        const struct mem_value *value = entry->value;
        bmi__pair_next(&op->pairs[op->actual++], position, entry->key, entry->key_size, value->data,
                       value->size);
    }
}

static int mem_keys(struct trove_op *op, struct mem_object *object)
{
    int result = 0;
    pthread_rwlock_wrlock(&object->lock);
    if (op->what == TROVE_GET)
        keys_get(op, object);
    else if (op->what == TROVE_PUT)
        result = keys_put(op, object);
    else if (op->what == TROVE_REMOVE_KEYS)
        keys_remove(op, object);
    else
        keys_iterate(op, object);
    pthread_rwlock_unlock(&object->lock);
    return result;
}

static int mem_run(struct trove_op *op)
{
    if (op->what == TROVE_CREATE)
        return mem_create(op);
    if (op->what == TROVE_REMOVE)
        return mem_remove(op);
    if (op->what == TROVE_OBJECTS)
        return mem_objects(op);
    struct mem_object *object = object_get(&op->place);
    if (object == NULL)
        return -ENOENT;
    int result = op->what >= TROVE_GET ? mem_keys(op, object) : mem_stream(op, object);
    object_put(mem_of(op), object);
    return result;
}

/* ---- collections and stores ------------------------------------------------------------------ */

static int mem_collection_create(struct bmi_trove_store *store,
                                 bmi_trove_collection_id_t collection)
{
    struct mem_store *mem = store->state;
    unsigned char key[4];
    int result = 0;
    bmi__number_put(key, collection, 4);
    pthread_mutex_lock(&mem->lock);
    if (bmi__index_find(&mem->collections, key, 4) != NULL)
        result = -EEXIST;
    else if (!bmi__index_add(&mem->collections, key, 4, NULL))
        result = -ENOMEM;
    pthread_mutex_unlock(&mem->lock);
    return result;
}

static int mem_collection_remove(struct bmi_trove_store *store,
                                 bmi_trove_collection_id_t collection)
{
    struct mem_store *mem = store->state;
    unsigned char key[12];
    int result = 0;
    place_key(key, collection, 0);
    pthread_mutex_lock(&mem->lock);
    struct index_entry *object = bmi__index_at_least(&mem->objects, key, 12);
    if (bmi__index_find(&mem->collections, key, 4) == NULL)
        result = -ENOENT;
    else if (object != NULL && memcmp(object->key, key, 4) == 0)
        result = -ENOTEMPTY;
    else
        bmi__index_remove(&mem->collections, key, 4);
    pthread_mutex_unlock(&mem->lock);
    return result;
}

static int mem_collection_next(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection)
{
    struct mem_store *mem = store->state;
    unsigned char key[4];
    bmi__number_put(key, *collection, 4);
    pthread_mutex_lock(&mem->lock);
    struct index_entry *entry = bmi__index_at_least(&mem->collections, key, 4);
    if (entry != NULL)
        *collection = (bmi_trove_collection_id_t)number_get(entry->key, 4);
    pthread_mutex_unlock(&mem->lock);
    return entry != NULL ? 0 : -ENOENT;
}

static int store_open(struct bmi_trove_store *store, const char *path, bool keeps_bytes,
                      char *error, size_t error_size)
{
    if (path[0] != '\0')
        return bmi__trove_explain(-EINVAL, error, error_size,
                                  "\"%s\": this kind of store has no name", path);
    struct mem_store *mem = calloc(1, sizeof *mem);
    if (mem == NULL)
        return bmi__trove_explain(-ENOMEM, error, error_size, "out of memory");
    pthread_mutex_init(&mem->lock, NULL);
    bmi__blocks_open(&mem->blocks);
    mem->keeps_bytes = keeps_bytes;
    store->state = mem;
    return 0;
}

static int mem_open(struct bmi_trove_store *store, const char *path, char *error, size_t error_size)
{
    return store_open(store, path, true, error, error_size);
}

static int null_open(struct bmi_trove_store *store, const char *path, char *error,
                     size_t error_size)
{
    return store_open(store, path, false, error, error_size);
}

static int mem_close(struct bmi_trove_store *store)
{
    struct mem_store *mem = store->state;
    while (mem->objects.first[0] != NULL)
        object_put(mem, bmi__index_remove(&mem->objects, mem->objects.first[0]->key, 12));
    table_free(&mem->collections);
    bmi__blocks_close(&mem->blocks);
    pthread_mutex_destroy(&mem->lock);
    free(mem);
    return 0;
}

static int mem_space(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available)
{
    struct mem_store *mem = store->state;
    struct sysinfo info;
    *total = *available = INT64_MAX;
    if (!mem->keeps_bytes)
        return 0;
    *total = store->settings.capacity;
    *available = *total - atomic_load(&mem->used);
    if (*total > 0)
        return 0;
    if (sysinfo(&info) != 0)
        return -errno;
    *total = (bmi_size_t)info.totalram * info.mem_unit;
    *available = (bmi_size_t)info.freeram * info.mem_unit;
    return 0;
}

const struct trove_backend bmi__trove_mem = {
    .name = "mem",
    .immediate = true,
    .open = mem_open,
    .close = mem_close,
    .space = mem_space,
    .collection_create = mem_collection_create,
    .collection_remove = mem_collection_remove,
    .collection_next = mem_collection_next,
    .begin = mem_begin,
    .end = mem_end,
    .read = mem_read,
    .write = mem_write,
    .sync = mem_sync,
    .run = mem_run,
    .lend = mem_lend,
    .lend_blank = mem_lend_blank,
    .lease_return = mem_lease_return,
};

const struct trove_backend bmi__trove_null = {
    .name = "null",
    .immediate = true,
    .open = null_open,
    .close = mem_close,
    .space = mem_space,
    .collection_create = mem_collection_create,
    .collection_remove = mem_collection_remove,
    .collection_next = mem_collection_next,
    .begin = mem_begin,
    .end = mem_end,
    .read = mem_read,
    .write = mem_write,
    .sync = mem_sync,
    .run = mem_run,
};
