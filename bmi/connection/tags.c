/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tags.c - tags that belong to one conversation: bmi_tag_take and bmi_tag_give.
 *
 * A taken tag is unique in the process, whatever its address: BMI_TAG_FIRST + 2 * number + side.
 * `number` counts up, so that a tag comes again only after 2^29 others. The other process takes
 * tags of its own for the same connection; `side` separates the two: 0 where this process looked
 * the address up, 1 where it knows it from an unexpected message only.
 *
 * `lock` guards the tree and the list of taken tags, and the counter. It is innermost.
 */
#include "bmi/connection/tags.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/state/library.h"

enum { NUMBERS = 1 << 29 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree;          /* lock: tsearch(3)'s, of struct taken */
static struct taken *first; /* lock: all of them */
static uint32_t number;     /* lock: the next one */

struct taken {
    bmi_msg_tag_t tag; /* first */
    struct bmi_instance *instance;
    struct taken *next, **place;
};

static int compare(const void *a, const void *b)
{
    bmi_msg_tag_t left = *(const bmi_msg_tag_t *)a, right = *(const bmi_msg_tag_t *)b;
    return (left > right) - (left < right);
}

/* Returns 0, 1, or -BMI_EINVAL: a stale address. */
static int side_of(struct bmi_instance *instance, BMI_addr_t address)
{
    int side = -BMI_EINVAL;
    if (!bmi__running(instance))
        return side;
    bmi__book_lock(instance);
    struct address *found = bmi__address_find_locked(address);
    if (found != NULL)
        side = found->string == NULL;
    bmi__book_unlock(instance);
    return side;
}

/* Adds a tag that is not in the tree yet. Returns false: no memory. */
static bool insert_locked(struct taken *taken, int side)
{
    for (;;) {
        taken->tag = BMI_TAG_FIRST + (bmi_msg_tag_t)(2 * number) + side;
        number = (number + 1) % NUMBERS;
        struct taken *const *place = tsearch(taken, &tree, compare);
        if (place == NULL)
            return false;
        if (*place != taken)
            continue;
        taken->next = first;
        taken->place = &first;
        if (first != NULL)
            first->place = &taken->next;
        first = taken;
        return true;
    }
}

static void remove_locked(struct taken *taken)
{
    tdelete(taken, &tree, compare);
    *taken->place = taken->next;
    if (taken->next != NULL)
        taken->next->place = taken->place;
}

bmi_msg_tag_t bmi_tag_take(BMI_addr_t addr)
{
    struct bmi_instance *instance = bmi__address_instance(addr);
    int side = side_of(instance, addr);
    if (side < 0)
        return side;
    struct taken *taken = malloc(sizeof *taken);
    if (taken == NULL)
        return -BMI_ENOMEM;
    taken->instance = instance;
    pthread_mutex_lock(&lock);
    bool good = insert_locked(taken, side);
    bmi_msg_tag_t result = taken->tag; /* after the unlock, another thread may give it back */
    pthread_mutex_unlock(&lock);
    if (good)
        return result;
    free(taken);
    return -BMI_ENOMEM;
}

int bmi_tag_give(BMI_addr_t addr, bmi_msg_tag_t tag)
{
    (void)addr; /* a tag is unique in the process */
    struct taken *taken = NULL;
    pthread_mutex_lock(&lock);
    struct taken *const *place = tfind(&tag, &tree, compare);
    if (place != NULL) {
        taken = *place;
        remove_locked(taken);
    }
    pthread_mutex_unlock(&lock);
    free(taken);
    return taken != NULL ? 0 : -BMI_EINVAL;
}

void bmi__tags_stop(struct bmi_instance *instance)
{
    pthread_mutex_lock(&lock);
    for (struct taken *taken = first, *next; taken != NULL; taken = next) {
        next = taken->next;
        if (taken->instance != instance)
            continue;
        remove_locked(taken);
        free(taken);
    }
    pthread_mutex_unlock(&lock);
}
