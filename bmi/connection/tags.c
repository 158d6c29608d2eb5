/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tags.c - tags that belong to one conversation: bmi_tag_take and bmi_tag_give.
 *
 * A taken tag is unique in the process, whatever its address: BMI_TAG_FIRST + 2 * number + side.
 * `number` counts up, so that a tag comes again only after 2^29 others. The other process takes
 * tags of its own for the same connection; `side` separates the two: 0 where this process looked
 * the address up, 1 where it knows it from an unexpected message only.
 *
 * `lock` guards the tree of taken tags and the counter. It is innermost.
 */
#include "bmi/connection/tags.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#include "bmi/connection/address.h"
#include "bmi/state/library.h"

enum { NUMBERS = 1 << 29 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *taken;     /* lock: tsearch(3)'s tree of bmi_msg_tag_t */
static uint32_t number; /* lock: the next one */

static int compare(const void *a, const void *b)
{
    bmi_msg_tag_t left = *(const bmi_msg_tag_t *)a, right = *(const bmi_msg_tag_t *)b;
    return (left > right) - (left < right);
}

/* Returns 0, 1, or -BMI_EINVAL: a stale address. */
static int side_of(BMI_addr_t address)
{
    int side = -BMI_EINVAL;
    if (!bmi__running())
        return side;
    bmi__book_lock();
    struct address *found = bmi__address_find_locked(address);
    if (found != NULL)
        side = found->string == NULL;
    bmi__book_unlock();
    return side;
}

/* Adds a tag that is not in the tree yet, which keeps `tag`. Returns false: no memory. */
static bool insert_locked(bmi_msg_tag_t *tag, int side)
{
    for (;;) {
        *tag = BMI_TAG_FIRST + (bmi_msg_tag_t)(2 * number) + side;
        number = (number + 1) % NUMBERS;
        bmi_msg_tag_t *const *place = tsearch(tag, &taken, compare);
        if (place == NULL || *place == tag)
            return place != NULL;
    }
}

bmi_msg_tag_t bmi_tag_take(BMI_addr_t addr)
{
    int side = side_of(addr);
    if (side < 0)
        return side;
    bmi_msg_tag_t *tag = malloc(sizeof *tag);
    if (tag == NULL)
        return -BMI_ENOMEM;
    pthread_mutex_lock(&lock);
    bool good = insert_locked(tag, side);
    bmi_msg_tag_t result = *tag; /* after the unlock, another thread may give it back */
    pthread_mutex_unlock(&lock);
    if (good)
        return result;
    free(tag);
    return -BMI_ENOMEM;
}

int bmi_tag_give(BMI_addr_t addr, bmi_msg_tag_t tag)
{
    (void)addr; /* a tag is unique in the process */
    bmi_msg_tag_t *kept = NULL;
    pthread_mutex_lock(&lock);
    bmi_msg_tag_t *const *place = tfind(&tag, &taken, compare);
    if (place != NULL) {
        kept = *place;
        tdelete(&tag, &taken, compare);
    }
    pthread_mutex_unlock(&lock);
    free(kept);
    return place != NULL ? 0 : -BMI_EINVAL;
}

void bmi__tags_stop(void)
{
    while (taken != NULL) {
        bmi_msg_tag_t *tag = *(bmi_msg_tag_t **)taken;
        tdelete(tag, &taken, compare);
        free(tag);
    }
}
