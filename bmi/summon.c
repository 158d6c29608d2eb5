/* SPDX-License-Identifier: BSD-3-Clause
 *
 * summon.c - see summon.h. Pipes are made when they are first wanted, and closed at the stop. Who
 * rings holds no lock: it counts itself in `ringing`, then looks how many are `made`, and who
 * closes them looks the other way round (both sequentially consistent). The descriptors of one
 * change only while it is not counted there.
 */
#include "bmi/summon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "bmi/progress.h"

enum { TRIES = 64, SKIP_MOST = 1024 };

static struct {
    int read_fd, write_fd;
    bool taken; /* waiters.c's lock */
} pipes[SUMMON_MOST];
static atomic_int made;     /* written under waiters.c's lock */
static atomic_uint ringing; /* threads that may be writing to one */

/* What has become of this thread's last sleeps on pipes. */
static _Thread_local struct {
    unsigned failed; /* in a row */
    unsigned skip;   /* sleeps without one that are still to be */
} past;

static void failed(void)
{
    past.failed++;
    if (past.failed > TRIES)
        past.skip = past.failed < SKIP_MOST ? past.failed * 2 : SKIP_MOST;
}

static bool make_locked(void)
{
    int fds[2], count = atomic_load(&made);
    if (count == SUMMON_MOST || pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    pipes[count].read_fd = fds[0];
    pipes[count].write_fd = fds[1];
    atomic_store(&made, count + 1);
    return true;
}

int bmi__summon_take_locked(bool much)
{
    if (past.skip > 0 && !(much && past.failed < SKIP_MOST)) {
        past.skip--;
        return -1;
    }
    int i = 0, count = atomic_load(&made);
    while (i < count && pipes[i].taken)
        i++;
    if (i == count && !make_locked()) {
        failed();
        return -1;
    }
    pipes[i].taken = true;
    return i;
}

void bmi__summon_give_locked(int pipe, bool came)
{
    pipes[pipe].taken = false;
    if (came)
        past.failed = 0;
    else
        failed();
}

void bmi__summon_sleep(int pipe, uint64_t deadline_ns)
{
    int saved = errno;
    uint64_t now = bmi__monotonic_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec time_left = {.tv_sec = (time_t)(left / 1000000000),
                                 .tv_nsec = (long)(left % 1000000000)};
    struct pollfd poll_fd = {.fd = pipes[pipe].read_fd, .events = POLLIN};
    char rings[64];
    if (ppoll(&poll_fd, 1, &time_left, NULL) > 0 && read(poll_fd.fd, rings, sizeof rings) < 0)
        errno = 0; /* nothing was there after all */
    errno = saved;
}

void bmi__summon_ring(int pipe)
{
    int saved = errno;
    atomic_fetch_add(&ringing, 1);
    if (pipe < atomic_load(&made) && write(pipes[pipe].write_fd, "", 1) < 0)
        errno = 0; /* full of rings */
    atomic_fetch_sub(&ringing, 1);
    errno = saved;
}

void bmi__summons_close_locked(void)
{
    int count = atomic_exchange(&made, 0);
    while (atomic_load(&ringing) > 0)
        sched_yield();
    for (int i = 0; i < count; i++) {
        close(pipes[i].read_fd);
        close(pipes[i].write_fd);
        pipes[i].taken = false;
    }
}

void bmi__summons_after_fork_child_locked(void)
{
    atomic_store(&ringing, 0); /* those threads are not here */
    bmi__summons_close_locked();
}
