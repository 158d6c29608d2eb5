/* SPDX-License-Identifier: BSD-3-Clause
 *
 * summon_test.c - threads that sleep on pipes: they are woken, in time, and not by what was meant
 * for a closed one; who is never brought over sleeps on a futex again. Whether the system brings a
 * thread over is its affair, and not tested.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi/context.h"
#include "bmi/progress.h"
#include "bmi/summon.h"
#include "party.h"

enum { OFTEN = 5000, ROUNDS = 2000, RINGERS = 2 };
#define PATIENCE_NS 60000000000u

static void open_and_close_all(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://summon", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void there_are_so_many(void)
{
    int before = descriptors(), taken[SUMMON_MOST];
    for (int i = 0; i < SUMMON_MOST; i++) {
        taken[i] = bmi__summon_take_locked(false);
        CU_ASSERT_EQUAL(taken[i], i);
    }
    CU_ASSERT_EQUAL(bmi__summon_take_locked(false), -1);
    CU_ASSERT_EQUAL(descriptors(), before + 2 * SUMMON_MOST);
    bmi__summon_give_locked(taken[3], true);
    CU_ASSERT_EQUAL(bmi__summon_take_locked(false), taken[3]);
    for (int i = 0; i < SUMMON_MOST; i++)
        bmi__summon_give_locked(taken[i], true);
    open_and_close_all();
    CU_ASSERT_EQUAL(descriptors(), before);
}

/* How often in a row it is given none. */
static unsigned refused(void)
{
    unsigned count = 0;
    int pipe;
    while ((pipe = bmi__summon_take_locked(false)) < 0 && count < OFTEN)
        count++;
    if (pipe >= 0)
        bmi__summon_give_locked(pipe, false);
    return count;
}

static void who_never_comes_over_is_given_none(void)
{
    unsigned tries = 0;
    while (tries < OFTEN && refused() == 0)
        tries++;
    CU_ASSERT_TRUE(tries > 1 && tries < 200);
    for (int i = 0; i < 3; i++) {
        unsigned count = refused();
        CU_ASSERT_TRUE(count > 100 && count < OFTEN);
    }
    tries = 0;
    for (int much; tries < OFTEN && (much = bmi__summon_take_locked(true)) >= 0; tries++)
        bmi__summon_give_locked(much, false);
    /* who has much to gain goes on, but not for ever */
    CU_ASSERT_TRUE(tries > 100 && tries < OFTEN);
    int pipe = -1;
    for (int i = 0; i < OFTEN && pipe < 0; i++)
        pipe = bmi__summon_take_locked(false);
    CU_ASSERT_TRUE_FATAL(pipe >= 0);
    bmi__summon_give_locked(pipe, true); /* it has come now */
    CU_ASSERT_EQUAL(refused(), 0);
    CU_ASSERT_EQUAL(refused(), 0);
    open_and_close_all();
}

static void a_ring_is_not_lost(void)
{
    int pipe = bmi__summon_take_locked(false);
    CU_ASSERT_TRUE_FATAL(pipe >= 0);
    uint64_t start = bmi__monotonic_ns();
    for (int i = 0; i < 100000; i++)
        bmi__summon_ring(pipe); /* more than it holds */
    bmi__summon_sleep(pipe, start + PATIENCE_NS);
    CU_ASSERT_TRUE(bmi__monotonic_ns() < start + PATIENCE_NS / 2);
    bmi__summon_give_locked(pipe, true);
    open_and_close_all();
}

/* ---- who rings while all are closed ---------------------------------------------------------- */

static atomic_bool enough, slowly;

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

/* The linker puts it in place of the system call: who rings has looked up the descriptor. */
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    if (atomic_load(&slowly))
        usleep(50);
    return __real_write(fd, bytes, size);
}

static void *ring_on(void *argument)
{
    (void)argument;
    while (!atomic_load(&enough))
        for (int pipe = 0; pipe < SUMMON_MOST; pipe++)
            bmi__summon_ring(pipe);
    return NULL;
}

/* The descriptors of closed pipes are other files' at once. */
static void nothing_is_written_elsewhere(void)
{
    pthread_t ringers[RINGERS];
    atomic_store(&enough, false);
    atomic_store(&slowly, true);
    for (int i = 0; i < RINGERS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&ringers[i], NULL, ring_on, NULL), 0);
    for (int round = 0; round < ROUNDS / 4; round++) {
        int taken[4], files[8];
        struct stat file;
        for (int i = 0; i < 4; i++)
            taken[i] = bmi__summon_take_locked(false);
        for (int i = 0; i < 4; i++)
            if (taken[i] >= 0)
                bmi__summon_give_locked(taken[i], true);
        bmi__summons_close_locked();
        for (int i = 0; i < 8; i++)
            files[i] = memfd_create("file", MFD_CLOEXEC);
        usleep(300);
        for (int i = 0; i < 8; i++) {
            CU_ASSERT_EQUAL_FATAL(fstat(files[i], &file), 0);
            CU_ASSERT_EQUAL(file.st_size, 0);
            close(files[i]);
        }
    }
    atomic_store(&enough, true);
    for (int i = 0; i < RINGERS; i++)
        pthread_join(ringers[i], NULL);
    atomic_store(&slowly, false);
}

static void a_child_closes_its_copies(void)
{
    int before = descriptors(), pipe = bmi__summon_take_locked(false);
    CU_ASSERT_EQUAL(descriptors(), before + 2);
    pid_t child = fork();
    if (child == 0) {
        bmi__summons_after_fork_child_locked();
        _exit(descriptors() == before ? 0 : 1);
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    bmi__summon_ring(pipe);
    bmi__summon_sleep(pipe, bmi__monotonic_ns() + PATIENCE_NS);
    bmi__summon_give_locked(pipe, true);
    open_and_close_all();
}

/* ---- a thread of another CPU ----------------------------------------------------------------- */

static struct {
    bmi_context_id context;
    atomic_uint calls, answers;
    int cpu;
    atomic_int early;
} other;

/* Each second sleep may end by its time. */
static void *answer(void *argument)
{
    (void)argument;
    if (!cpu_bind(other.cpu))
        return NULL;
    for (unsigned i = 1; i <= ROUNDS; i++) {
        struct waiter waiter = sleeper();
        waiter.context = bmi__context_find(other.context);
        waiter.op = WAITER_SOME;
        uint64_t most = i % 2 ? PATIENCE_NS : 200000, start = bmi__monotonic_ns();
        bmi__waiter_enlist(&waiter, false);
        while (atomic_load(&other.calls) < i) {
            bool woken = bmi__waiter_sleep(&waiter, start + most, true);
            uint64_t now = bmi__monotonic_ns();
            if (!woken && now < start + most)
                atomic_fetch_add(&other.early, 1);
            if (!woken && most == PATIENCE_NS)
                return NULL;
            start = now;
        }
        bmi__waiter_delist(&waiter);
        atomic_store(&other.answers, i);
    }
    return NULL;
}

static void all_wakes_arrive(void)
{
    pthread_t thread;
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    int cpu;
    if (!cpus_find(&cpu, &other.cpu)) {
        printf("skipped: one CPU ");
        return;
    }
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://summon", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&other.context), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, answer, NULL), 0);
    CU_ASSERT_TRUE(cpu_bind(cpu));
    uint64_t until = bmi__monotonic_ns() + PATIENCE_NS;
    for (unsigned i = 1; i <= ROUNDS && bmi__monotonic_ns() < until; i++) {
        while (bmi__waiters_asleep() == 0 && bmi__monotonic_ns() < until)
            sched_yield();
        bmi__waiters_driven_here();
        atomic_store(&other.calls, i);
        bmi__progress_notify(bmi__context_find(other.context), 0);
        while (atomic_load(&other.answers) < i && bmi__monotonic_ns() < until)
            sched_yield();
    }
    CU_ASSERT_EQUAL(atomic_load(&other.answers), ROUNDS);
    CU_ASSERT_EQUAL(atomic_load(&other.early), 0);
    pthread_join(thread, NULL);
    BMI_close_context(other.context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    sched_setaffinity(0, sizeof all, &all);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"there are so many", there_are_so_many},
        {"who never comes over is given none", who_never_comes_over_is_given_none},
        {"a ring is not lost", a_ring_is_not_lost},
        {"nothing is written elsewhere", nothing_is_written_elsewhere},
        {"a child closes its copies", a_child_closes_its_copies},
        {"all wakes arrive", all_wakes_arrive},
        CU_TEST_INFO_NULL,
    };
    return unit_run("summon", tests);
}
