/* SPDX-License-Identifier: BSD-3-Clause
 *
 * holds.c - objects that are held by readers, and removals that wait for their release.
 *
 * A store has a tree (tsearch(3)'s) of the objects that are held, under its lock, which is inside
 * the space's. A removal that waits has its task prepared. The last release, a cancel, or the
 * store's end takes it out of the tree, under the lock, and submits it: one of them does.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "trove-stub/store.h"

struct held {
    bmi_trove_collection_t collection;
    bmi_trove_object_t object;
    unsigned holders;
    struct trove_op *removal; /* that waits; or NULL */
};

static int compare(const void *a, const void *b)
{
    const struct held *left = a, *right = b;
    if (left->collection != right->collection)
        return left->collection < right->collection ? -1 : 1;
    return (left->object > right->object) - (left->object < right->object);
}

static struct held *find_locked(const struct bmi_trove_place *place)
{
    struct held key = {.collection = place->collection, .object = place->object};
    struct held *const *found = tfind(&key, &place->store->held, compare);
    return found != NULL ? *found : NULL;
}

/* Returns the removal that waited, or NULL. */
static struct trove_op *drop_locked(struct bmi_trove_store *store, struct held *held)
{
    struct trove_op *removal = held->removal;
    tdelete(held, &store->held, compare);
    free(held);
    return removal;
}

/* No lock is held. */
static void removal_begin(struct trove_op *op)
{
    int result = op != NULL ? bmi_task_submit(&op->task) : 0;
    if (result != 0)
        bmi__trove_finish(op, result == -ENOTSUP ? -EAGAIN : result);
}

static int hold_locked(const struct bmi_trove_place *place)
{
    struct held *held = find_locked(place);
    if (held != NULL && held->removal != NULL)
        return -BMI_ENOENT;
    if (held != NULL) {
        held->holders++;
        return 0;
    }
    held = malloc(sizeof *held);
    if (held == NULL)
        return -BMI_ENOMEM;
    *held = (struct held){.collection = place->collection, .object = place->object, .holders = 1};
    if (tsearch(held, &place->store->held, compare) != NULL)
        return 0;
    free(held);
    return -BMI_ENOMEM;
}

int bmi_trove_hold(const struct bmi_trove_place *place)
{
    if (place == NULL || place->store == NULL)
        return -BMI_EINVAL;
    pthread_mutex_lock(&place->store->lock);
    int result = hold_locked(place);
    pthread_mutex_unlock(&place->store->lock);
    return result;
}

int bmi_trove_release(const struct bmi_trove_place *place)
{
    if (place == NULL || place->store == NULL)
        return -BMI_EINVAL;
    struct trove_op *removal = NULL;
    pthread_mutex_lock(&place->store->lock);
    struct held *held = find_locked(place);
    if (held != NULL && --held->holders == 0)
        removal = drop_locked(place->store, held);
    pthread_mutex_unlock(&place->store->lock);
    removal_begin(removal);
    return held != NULL ? 0 : -BMI_EINVAL;
}

int bmi__trove_removal_wait(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    int result = bmi__trove_task_prepare(op);
    if (result != 0)
        return result;
    pthread_mutex_lock(&store->lock);
    struct held *held = find_locked(&op->place);
    if (held != NULL && held->removal != NULL)
        result = -ENOENT;
    else if (held != NULL)
        held->removal = op;
    pthread_mutex_unlock(&store->lock);
    return result != 0 ? result : held != NULL;
}

bool bmi__trove_removal_cancel(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    pthread_mutex_lock(&store->lock);
    struct held *held = find_locked(&op->place);
    bool waited = held != NULL && held->removal == op;
    if (waited && bmi_task_submit(&op->task) == 0)
        held->removal = NULL; /* else no thread can be had: it ends with the last release */
    pthread_mutex_unlock(&store->lock);
    return waited;
}

void bmi__trove_holds_end(struct bmi_trove_store *store)
{
    for (;;) {
        struct trove_op *removal = NULL;
        pthread_mutex_lock(&store->lock);
        bool any = store->held != NULL;
        if (any)
            removal = drop_locked(store, *(struct held **)store->held);
        pthread_mutex_unlock(&store->lock);
        if (!any)
            return;
        removal_begin(removal);
    }
}
