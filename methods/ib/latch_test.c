/* SPDX-License-Identifier: BSD-3-Clause
 *
 * latch_test.c - processes that end, or stand still, while libfabric copies their message into the
 * memory of an endpoint, whose lock they have then: a child that has its parent's endpoint sends
 * from memory that can't be read.
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "methods/ib/ourselves.h"

/* In libfabric's command itself, in a buffer behind it. */
static const size_t sizes[] = {64, 1000};

enum { UNREADABLE = 4096, MOMENT_US = 100000, EXIT_SENT = 3, EXIT_TOLD = 4 };

static void *unreadable;
static unsigned inherited;         /* expected of the library */
static volatile sig_atomic_t ends; /* what a child does when it is there */

static void fault(int signal)
{
    (void)signal;
    kill(getpid(), ends ? SIGKILL : SIGSTOP);
    mprotect(unreadable, UNREADABLE, PROT_READ); /* the child's own: it goes on, then */
}

/* Starts a child that sends so many bytes of nobody's, and ends in the midst of that, or stops. */
static pid_t child_sends(size_t size, bool child_ends)
{
    struct ib_link *link = ib_link_of(ourselves.dialled.link);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        ends = child_ends;
        signal(SIGSEGV, fault);
        ssize_t status =
            fi_inject(ourselves.state->fabric->endpoint, unreadable, size, link->peer->address);
        _exit(status == 0 ? EXIT_SENT : EXIT_TOLD);
    }
    CU_ASSERT_FATAL(child > 0);
    return child;
}

static bool messages_come(int number)
{
    for (int i = 0; i < number; i++) {
        int before = ourselves.accepted->frames;
        ourselves_send();
        if (!FAKE_UNTIL(ourselves.accepted->frames > before))
            return false;
    }
    return true;
}

static void child_end_await(pid_t child, int options)
{
    siginfo_t end = {0};
    CU_ASSERT_EQUAL(waitid(P_PID, (id_t)child, &end, WEXITED | options), 0);
    CU_ASSERT_EQUAL(end.si_code, CLD_KILLED);
    CU_ASSERT_EQUAL(end.si_status, SIGKILL);
}

static void test_killed(void)
{
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int k = 0; k < 20; k++) {
            child_end_await(child_sends(sizes[i], true), 0);
            CU_ASSERT_FATAL(messages_come(3));
            CU_ASSERT_EQUAL(ib_latches_inherited(), ++inherited);
        }
}

/* Its number is not free yet. */
static void test_zombie(void)
{
    pid_t child = child_sends(sizes[0], true);
    child_end_await(child, WNOWAIT);
    CU_ASSERT_FATAL(messages_come(3));
    CU_ASSERT_EQUAL(ib_latches_inherited(), ++inherited);
    child_end_await(child, 0);
}

/* The first to find it is one that looks, not one that sends. */
static void test_found_by_a_look(void)
{
    int before = ourselves.accepted->frames;
    ourselves_send();
    child_end_await(child_sends(sizes[1], true), 0);
    CU_ASSERT_EQUAL(ib_latches_inherited(), inherited);
    CU_ASSERT(FAKE_UNTIL(ourselves.accepted->frames > before));
    CU_ASSERT_EQUAL(ib_latches_inherited(), ++inherited);
}

static void *continue_run(void *argument)
{
    usleep(MOMENT_US);
    kill(*(pid_t *)argument, SIGCONT);
    return NULL;
}

/* Who stands still keeps the lock, and goes on with its message. */
static void test_stopped(void)
{
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        pthread_t thread;
        int status;
        pid_t child = child_sends(sizes[i], false);
        CU_ASSERT_EQUAL(waitpid(child, &status, WUNTRACED), child);
        CU_ASSERT(WIFSTOPPED(status));
        int64_t start = fake_now_ms();
        CU_ASSERT_EQUAL(pthread_create(&thread, NULL, continue_run, &child), 0);
        CU_ASSERT_FATAL(messages_come(1));
        CU_ASSERT(fake_now_ms() - start >= MOMENT_US / 1000 - 1);
        pthread_join(thread, NULL);
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SENT);
        CU_ASSERT_EQUAL(ib_latches_inherited(), inherited);
        CU_ASSERT_FATAL(messages_come(3));
    }
}

static void latches_are_there(void)
{
    ourselves_connect();
    unreadable = mmap(NULL, UNREADABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(unreadable != MAP_FAILED);
    alarm(60); /* what hangs does so in libfabric */
}

static void end(void)
{
    alarm(0);
    munmap(unreadable, UNREADABLE);
    ourselves_disconnect();
}

int main(void)
{
    CU_TestInfo tests[] = {{"connected to ourselves", latches_are_there},
                           {"killed as it sends", test_killed},
                           {"a zombie", test_zombie},
                           {"found by a look", test_found_by_a_look},
                           {"stopped as it sends", test_stopped},
                           {"end", end},
                           CU_TEST_INFO_NULL};
    char reason[256];
    if (ib_library_load(reason, sizeof(reason)) == 0 && !ib_library.latches) {
        puts("skipped: this libfabric's locks are left as they are");
        return 77;
    }
    return ourselves_run("latch", tests);
}
