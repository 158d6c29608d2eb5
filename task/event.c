/* SPDX-License-Identifier: BSD-3-Clause
 *
 * event.c - see event.h. A wake may reach a word whose owner has gone on: then it wakes nobody, or
 * somebody who looks again, as every waiter here does.
 */
#include "task/event.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void bmi__futex_wait(atomic_uint *word, unsigned value, uint64_t deadline_ns)
{
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / 1000000000),
        .tv_nsec = (long)(deadline_ns % 1000000000),
    };
    int saved = errno;
    /* unlike FUTEX_WAIT this takes a point in time */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, deadline_ns ? &deadline : NULL, NULL,
            FUTEX_BITSET_MATCH_ANY);
    errno = saved;
}

void bmi__futex_wake(atomic_uint *word)
{
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
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
