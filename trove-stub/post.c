/* SPDX-License-Identifier: BSD-3-Clause
 *
 * post.c - the posts: they check arguments and create an operation.
 */
#include <stdlib.h>

#include "trove-stub/lease.h"

enum { FLAGS = BMI_TROVE_SYNC | BMI_TROVE_ONLY_NEW | BMI_TROVE_ZEROS | BMI_TROVE_WHEN_RELEASED };

/* `valid`: the post's own arguments are valid. Returns 0 and *op, or the post's result. */
static int op_make(bmi_trove_op_id_t *id, const struct bmi_trove_place *place, enum trove_what what,
                   unsigned flags, bool valid, struct trove_op **op)
{
    if (id != NULL)
        *id = 0;
    if (!valid || id == NULL || place == NULL || place->store == NULL ||
        (flags & ~(unsigned)FLAGS) != 0)
        return -BMI_EINVAL;
    *op = calloc(1, sizeof **op);
    if (*op == NULL)
        return -BMI_ENOMEM;
    (*op)->place = *place;
    (*op)->what = what;
    (*op)->flags = flags;
    return 0;
}

/* ---- objects --------------------------------------------------------------------------------- */

int bmi_trove_post_create(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          bmi_trove_object_id_t *object, unsigned flags, void *user_ptr,
                          bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_CREATE, flags, object != NULL, &new);
    if (result != 0)
        return result;
    new->objects = object;
    return bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_remove(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          unsigned flags, void *user_ptr, bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_REMOVE, flags, true, &new);
    return result != 0 ? result : bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_objects(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                           bmi_trove_object_id_t *position, bmi_trove_object_id_t *objects,
                           int count, void *user_ptr, bmi_trove_context_id_t context)
{
    struct trove_op *new;
    bool valid = position != NULL && objects != NULL && count > 0 && count <= BMI_TROVE_LIST_MAX;
    int result = op_make(op, place, TROVE_OBJECTS, 0, valid, &new);
    if (result != 0)
        return result;
    new->object_position = position;
    new->objects = objects;
    new->count = count;
    return bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_flush(bmi_trove_op_id_t *op, const struct bmi_trove_place *place, void *user_ptr,
                         bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_FLUSH, 0, true, &new);
    return result != 0 ? result : bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_size(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                        bmi_size_t *size, void *user_ptr, bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_SIZE, 0, size != NULL, &new);
    if (result != 0)
        return result;
    new->size_out = size;
    return bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_resize(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          bmi_size_t size, unsigned flags, void *user_ptr,
                          bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_RESIZE, flags, size >= 0, &new);
    if (result != 0)
        return result;
    new->new_size = size;
    return bmi__trove_start(new, op, user_ptr, context);
}

/* ---- reads and writes ------------------------------------------------------------------------ */

/* The sum of a list, or an error. */
static bmi_size_t list_total(const bmi_size_t *sizes, int count)
{
    bmi_size_t total = 0;
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0)
            return -BMI_EINVAL;
        if (sizes[i] > BMI_TROVE_OFFSET_MAX - total)
            return -BMI_EFBIG;
        total += sizes[i];
    }
    return total;
}

static int lists_check(const struct trove_op *op)
{
    if (op->count < 0 || op->stream_count < 0 || op->count > BMI_TROVE_LIST_MAX ||
        op->stream_count > BMI_TROVE_LIST_MAX)
        return -BMI_EINVAL;
    if (op->count > 0 && (op->buffers == NULL || op->sizes == NULL))
        return -BMI_EINVAL;
    if (op->stream_count > 0 && (op->offsets == NULL || op->stream_sizes == NULL))
        return -BMI_EINVAL;
    bmi_size_t memory = list_total(op->sizes, op->count);
    bmi_size_t stream = list_total(op->stream_sizes, op->stream_count);
    if (memory < 0 || stream < 0)
        return (int)(memory < 0 ? memory : stream);
    for (int i = 0; i < op->count; i++)
        if (op->buffers[i] == NULL && op->sizes[i] > 0)
            return -BMI_EINVAL;
    for (int i = 0; i < op->stream_count; i++) {
        if (op->offsets[i] < 0)
            return -BMI_EINVAL;
        if (op->offsets[i] > BMI_TROVE_OFFSET_MAX - op->stream_sizes[i])
            return -BMI_EFBIG;
    }
    return memory == stream ? 0 : -BMI_EINVAL;
}

/* Starts an operation that has its lists. */
static int move_start(struct trove_op *op, bmi_trove_op_id_t *id, bmi_size_t *actual,
                      void *user_ptr, bmi_trove_context_id_t context)
{
    int result = lists_check(op);
    if (result != 0) {
        free(op);
        return result;
    }
    op->total = list_total(op->sizes, op->count);
    op->actual_out = actual;
    return bmi__trove_start(op, id, user_ptr, context);
}

int bmi_trove_post_read_list(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                             void *const *buffers, const bmi_size_t *sizes, int count,
                             const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                             int stream_count, bmi_size_t *actual, unsigned flags, void *user_ptr,
                             bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_READ, flags, true, &new);
    if (result != 0)
        return result;
    new->buffers = buffers;
    new->sizes = sizes;
    new->count = count;
    new->offsets = stream_offsets;
    new->stream_sizes = stream_sizes;
    new->stream_count = stream_count;
    return move_start(new, op, actual, user_ptr, context);
}

static int write_start(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                       const void *const *buffers, const bmi_size_t *sizes, int count,
                       const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                       int stream_count, bmi_size_t *actual, unsigned flags,
                       struct trove_lease *lease, void *user_ptr, bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, TROVE_WRITE, flags, true, &new);
    if (result != 0)
        return result;
    new->buffers = (void *const *)buffers; /* only read */
    new->sizes = sizes;
    new->count = count;
    new->offsets = stream_offsets;
    new->stream_sizes = stream_sizes;
    new->stream_count = stream_count;
    new->lease = lease;
    return move_start(new, op, actual, user_ptr, context);
}

int bmi_trove_post_write_list(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                              const void *const *buffers, const bmi_size_t *sizes, int count,
                              const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                              int stream_count, bmi_size_t *actual, unsigned flags, void *user_ptr,
                              bmi_trove_context_id_t context)
{
    return write_start(op, place, buffers, sizes, count, stream_offsets, stream_sizes, stream_count,
                       actual, flags, NULL, user_ptr, context);
}

int bmi__trove_post_write_lent(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                               const void *const *buffers, const bmi_size_t *sizes, int count,
                               const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                               int stream_count, bmi_size_t *actual, struct trove_lease *lease,
                               void *user_ptr, bmi_trove_context_id_t context)
{
    return write_start(op, place, buffers, sizes, count, stream_offsets, stream_sizes, stream_count,
                       actual, 0, lease, user_ptr, context);
}

static int move_one(enum trove_what what, bmi_trove_op_id_t *op,
                    const struct bmi_trove_place *place, void *buffer, bmi_size_t size,
                    bmi_size_t offset, bmi_size_t *actual, unsigned flags, void *user_ptr,
                    bmi_trove_context_id_t context)
{
    struct trove_op *new;
    int result = op_make(op, place, what, flags, true, &new);
    if (result != 0)
        return result;
    new->one.buffer = buffer;
    new->one.size = size;
    new->one.offset = offset;
    new->buffers = &new->one.buffer;
    new->sizes = new->stream_sizes = &new->one.size;
    new->offsets = &new->one.offset;
    new->count = new->stream_count = 1;
    return move_start(new, op, actual, user_ptr, context);
}

int bmi_trove_post_read_at(bmi_trove_op_id_t *op, const struct bmi_trove_place *place, void *buffer,
                           bmi_size_t size, bmi_size_t offset, bmi_size_t *actual, unsigned flags,
                           void *user_ptr, bmi_trove_context_id_t context)
{
    return move_one(TROVE_READ, op, place, buffer, size, offset, actual, flags, user_ptr, context);
}

int bmi_trove_post_write_at(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                            const void *buffer, bmi_size_t size, bmi_size_t offset,
                            bmi_size_t *actual, unsigned flags, void *user_ptr,
                            bmi_trove_context_id_t context)
{
    return move_one(TROVE_WRITE, op, place, (void *)buffer, size, offset, actual, flags, user_ptr,
                    context);
}

/* ---- key/values ------------------------------------------------------------------------------ */

static bool pairs_valid(const struct bmi_trove_pair *pairs, int count, enum trove_what what)
{
    if (pairs == NULL || count < 1 || count > BMI_TROVE_LIST_MAX)
        return false;
    for (int i = 0; i < count; i++) {
        const struct bmi_trove_pair *pair = &pairs[i];
        bool takes_value = what != TROVE_REMOVE_KEYS;
        if (pair->key == NULL || pair->key_size < (what == TROVE_ITERATE ? 0 : 1) ||
            (what != TROVE_ITERATE && pair->key_size > BMI_TROVE_KEY_MAX))
            return false;
        if (takes_value && (pair->value_size < 0 ||
                            (pair->value == NULL && pair->value_size > 0 && what != TROVE_ITERATE)))
            return false;
        if (what == TROVE_PUT && pair->value_size > BMI_TROVE_VALUE_MAX)
            return false;
    }
    return true;
}

static int keys_start(enum trove_what what, bmi_trove_op_id_t *op,
                      const struct bmi_trove_place *place, struct bmi_trove_position *position,
                      struct bmi_trove_pair *pairs, int count, unsigned flags, void *user_ptr,
                      bmi_trove_context_id_t context)
{
    struct trove_op *new;
    bool valid =
        pairs_valid(pairs, count, what) &&
        (what != TROVE_ITERATE || (position != NULL && position->key_size <= BMI_TROVE_KEY_MAX));
    int result = op_make(op, place, what, flags, valid, &new);
    if (result != 0)
        return result;
    new->pairs = pairs;
    new->count = count;
    new->position = position;
    return bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_get(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                       struct bmi_trove_pair *pairs, int count, void *user_ptr,
                       bmi_trove_context_id_t context)
{
    return keys_start(TROVE_GET, op, place, NULL, pairs, count, 0, user_ptr, context);
}

int bmi_trove_post_put(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                       struct bmi_trove_pair *pairs, int count, unsigned flags, void *user_ptr,
                       bmi_trove_context_id_t context)
{
    return keys_start(TROVE_PUT, op, place, NULL, pairs, count, flags, user_ptr, context);
}

/* Values to compare with, or to fill: NULL, or values with their sizes. */
static bool values_valid(const struct bmi_trove_pair *pairs, int count)
{
    for (int i = 0; pairs != NULL && i < count; i++)
        if (pairs[i].value_size < 0 || (pairs[i].value == NULL && pairs[i].value_size > 0))
            return false;
    return true;
}

int bmi_trove_post_exchange(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                            struct bmi_trove_pair *pairs, const struct bmi_trove_pair *expected,
                            struct bmi_trove_pair *old, int count, unsigned flags, void *user_ptr,
                            bmi_trove_context_id_t context)
{
    struct trove_op *new;
    bool valid = pairs_valid(pairs, count, TROVE_PUT) && values_valid(expected, count) &&
                 values_valid(old, count) && (old == NULL || old != expected);
    int result = op_make(op, place, TROVE_PUT, flags, valid, &new);
    if (result != 0)
        return result;
    if (old != NULL && (new->rooms = calloc((size_t)count, sizeof *new->rooms)) == NULL) {
        free(new);
        return -BMI_ENOMEM;
    }
    for (int i = 0; old != NULL && i < count; i++)
        new->rooms[i] = old[i].value_size;
    new->pairs = pairs;
    new->expected = expected;
    new->old = old;
    new->count = count;
    return bmi__trove_start(new, op, user_ptr, context);
}

int bmi_trove_post_remove_keys(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                               struct bmi_trove_pair *pairs, int count, unsigned flags,
                               void *user_ptr, bmi_trove_context_id_t context)
{
    return keys_start(TROVE_REMOVE_KEYS, op, place, NULL, pairs, count, flags, user_ptr, context);
}

int bmi_trove_post_iterate(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                           struct bmi_trove_position *position, struct bmi_trove_pair *pairs,
                           int count, void *user_ptr, bmi_trove_context_id_t context)
{
    return keys_start(TROVE_ITERATE, op, place, position, pairs, count, 0, user_ptr, context);
}
