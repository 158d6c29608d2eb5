/* SPDX-License-Identifier: BSD-3-Clause
 *
 * holds.c - objects that are held by readers, and removals that wait for their release.
 *
 * A store has a tree (tsearch(3)'s) of the objects that are held or being removed, under its lock,
 * which is inside the space's. The task of a waiting removal is prepared. Exactly one of the last
 * release, a cancel, and the store's end takes the removal out of the tree, under the lock, and
 * submits it.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "trove-stub/store.h"

struct held {
    bmi_trove_collection_id_t collection;
    bmi_trove_object_id_t object;
    unsigned holders;
    struct trove_op *removal; /* or NULL; waits while there are holders, then runs */
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

static void drop_locked(struct bmi_trove_store *store, struct held *held)
{
    tdelete(held, &store->held, compare);
    free(held);
}

/* The last hold has ended. Returns the waiting removal, or NULL. Its entry stays until it ends, so
 * that no thread can hold an object that is being removed. */
static struct trove_op *released_locked(struct bmi_trove_store *store, struct held *held)
{
    struct trove_op *removal = held->removal;
    held->holders = 0;
    if (removal == NULL)
        drop_locked(store, held);
    return removal;
}

/* No lock is held. */
static void removal_begin(struct trove_op *op)
{
    int result = op != NULL ? bmi_task_submit(&op->task) : 0;
    if (result != 0)
        bmi__trove_finish(op, result == -ENOTSUP ? -EAGAIN : result);
}

static struct held *insert_locked(const struct bmi_trove_place *place, unsigned holders,
                                  struct trove_op *removal)
{
    struct held *held = malloc(sizeof *held);
    if (held == NULL)
        return NULL;
    *held = (struct held){.collection = place->collection,
                          .object = place->object,
                          .holders = holders,
                          .removal = removal};
    if (tsearch(held, &place->store->held, compare) != NULL)
        return held;
    free(held);
    return NULL;
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
    return insert_locked(place, 1, NULL) != NULL ? 0 : -BMI_ENOMEM;
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
    if (held != NULL && held->holders == 0)
        held = NULL; /* it is being removed */
    else if (held != NULL && --held->holders == 0)
        removal = released_locked(place->store, held);
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
    else if (insert_locked(&op->place, 0, op) == NULL)
        result = -ENOMEM;
    pthread_mutex_unlock(&store->lock);
    return result != 0 ? result : held != NULL;
}

void bmi__trove_removal_over(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    pthread_mutex_lock(&store->lock);
    struct held *held = find_locked(&op->place);
    if (held != NULL && held->removal == op)
        drop_locked(store, held);
    pthread_mutex_unlock(&store->lock);
}

bool bmi__trove_removal_cancel(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    pthread_mutex_lock(&store->lock);
    struct held *held = find_locked(&op->place);
    bool waited = held != NULL && held->removal == op && held->holders > 0;
    if (waited && bmi_task_submit(&op->task) == 0)
        held->removal = NULL; /* otherwise no thread could be started: it ends with the
                                 last release */
    pthread_mutex_unlock(&store->lock);
    return waited;
}

/* The result of held_find: twalk(3) passes no argument on, and musl has no twalk_r(3). */
static _Thread_local struct held *held_found;

/* For twalk(3): finds any entry with holders. */
static void held_find(const void *node, VISIT visit, int depth)
{
    struct held *held = *(struct held *const *)node;
    (void)depth;
    if ((visit == postorder || visit == leaf) && held->holders > 0)
        held_found = held;
}

void bmi__trove_holds_end(struct bmi_trove_store *store)
{
    struct held *held;
    do {
        struct trove_op *removal = NULL;
        held_found = NULL;
        pthread_mutex_lock(&store->lock);
        twalk(store->held, held_find);
        held = held_found;
        if (held != NULL)
            removal = released_locked(store, held);
        pthread_mutex_unlock(&store->lock);
        removal_begin(removal);
    } while (held != NULL);
}
