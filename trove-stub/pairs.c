/* SPDX-License-Identifier: BSD-3-Clause pairs.c - copies found keys and values into the room of a
 * pair. */
#include <string.h>

#include "trove-stub/store.h"

/* Copies as much as fits. Returns whether all bytes did. */
static bool room_fill(void *room, bmi_size_t *size, const void *data, size_t data_size)
{
    size_t fits = (size_t)*size < data_size ? (size_t)*size : data_size;
    if (fits > 0)
        memcpy(room, data, fits);
    *size = (bmi_size_t)data_size;
    return fits == data_size;
}

void bmi__pair_found(struct bmi_trove_pair *pair, const void *value, size_t value_size)
{
    pair->error = room_fill(pair->value, &pair->value_size, value, value_size) ? 0 : -BMI_EMSGSIZE;
}

void bmi__pair_next(struct bmi_trove_pair *pair, struct bmi_trove_position *position,
                    const void *key, size_t key_size, const void *value, size_t value_size)
{
    bool fits = room_fill(pair->key, &pair->key_size, key, key_size);
    if (pair->value == NULL)
        pair->value_size = (bmi_size_t)value_size;
    else
        fits = room_fill(pair->value, &pair->value_size, value, value_size) && fits;
    pair->error = fits ? 0 : -BMI_EMSGSIZE;
    position->key_size = (uint32_t)key_size;
    memcpy(position->key, key, key_size);
}

static bool as_expected(const struct bmi_trove_pair *expected, const void *value, size_t value_size)
{
    if (value == NULL || expected->error != 0)
        return value == NULL && expected->error != 0;
    return value_size == (size_t)expected->value_size &&
           (value_size == 0 || memcmp(value, expected->value, value_size) == 0);
}

bool bmi__pair_exchange(struct trove_op *op, int index, const void *value, size_t value_size)
{
    if (op->old != NULL) {
        struct bmi_trove_pair *old = &op->old[index];
        old->value_size = op->rooms[index]; /* also for a transaction that is repeated */
        old->error = -BMI_ENOENT;
        if (value != NULL)
            bmi__pair_found(old, value, value_size);
    }
    return op->expected == NULL || as_expected(&op->expected[index], value, value_size);
}
