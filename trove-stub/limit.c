/* SPDX-License-Identifier: BSD-3-Clause
 * limit.c - see limit.h. */
#include "trove-stub/limit.h"

#include <sys/resource.h>
#include <time.h>

struct size_guard bmi__size_guard(void)
{
    struct size_guard guard = {.active = false};
    struct rlimit limit;
    sigset_t pending;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return guard;
    sigpending(&pending);
    if (sigismember(&pending, SIGXFSZ))
        return guard; /* blocked already, by other code */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    guard.active = pthread_sigmask(SIG_BLOCK, &signals, &guard.before) == 0;
    return guard;
}

void bmi__size_unguard(const struct size_guard *guard)
{
    sigset_t signals;
    if (!guard->active)
        return;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    sigtimedwait(&signals, NULL, &(struct timespec){.tv_sec = 0});
    pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}
