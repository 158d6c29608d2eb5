/* SPDX-License-Identifier: BSD-3-Clause
 *
 * event.c - see event.h. A wake may come after the word and its owner's stack have gone, so threads
 * do not sleep on the word. They sleep in `places`, which exist always; the word's address selects
 * the place. All threads of a place wake together, and each checks its own word again.
 */
#include "task/event.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PLACES_LOG = 12 };

static atomic_uint places[1 << PLACES_LOG]; /* each counts its wakes */

static atomic_uint *place_of(const atomic_uint *word)
{
    return &places[(uint64_t)(uintptr_t)word * 0x9e3779b97f4a7c15u >> (64 - PLACES_LOG)];
}

void bmi__futex_wait(atomic_uint *word, unsigned value, uint64_t deadline_ns)
{
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / 1000000000),
        .tv_nsec = (long)(deadline_ns % 1000000000),
    };
    atomic_uint *place = place_of(word);
    unsigned seen = atomic_load(place);
    if (atomic_load(word) != value)
        return;
    int saved = errno;
    /* unlike FUTEX_WAIT this takes a point in time */
    syscall(SYS_futex, place, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline_ns ? &deadline : NULL, NULL,
            FUTEX_BITSET_MATCH_ANY);
    errno = saved;
}

void bmi__futex_wake(const atomic_uint *word)
{
    atomic_uint *place = place_of(word);
    int saved = errno;
    atomic_fetch_add(place, 1);
    syscall(SYS_futex, place, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

void bmi__event_post(struct bmi__event *event)
{
    if (atomic_exchange(&event->posted, 1) == 0)
        bmi__futex_wake(&event->posted);
}

bool bmi__event_wait(struct bmi__event *event, uint64_t deadline_ns)
{
    while (atomic_exchange(&event->posted, 0) == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (deadline_ns != 0 &&
            (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec >= deadline_ns)
            return false;
        bmi__futex_wait(&event->posted, 0, deadline_ns);
    }
    return true;
}
