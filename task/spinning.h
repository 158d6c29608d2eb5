/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spinning.h - for tests of the CPU share that a program gets beside others that compute: one
 * process that spins on each CPU of the test, and the time that the same work takes on a plain
 * thread beside them. The test and its spinning processes are bound to at most two CPUs. Tests
 * compare the two times and judge neither by itself, since other programs may load the machine.
 */
#ifndef BMI_TASK_SPINNING_H
#define BMI_TASK_SPINNING_H

#include "task/testing.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

enum { SPINNING_CPUS = 2, SPINNING_SAMPLES = 3, SPINNING_FACTOR = 3 };

#define SPINNING_MS UINT64_C(1000000) /* in ns */

struct spinning {
    pid_t pids[SPINNING_CPUS];
    int cpus[SPINNING_CPUS];
    int count;
};

/* Computes until the calling thread has used so much of a CPU. */
static inline void spinning_work(uint64_t work_ns)
{
    struct timespec used;
    uint64_t now, end = 0;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        now = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
        end = end != 0 ? end : now + work_ns;
    } while (now < end);
}

static inline pid_t spinning_fork(int cpu)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)cpu, &mask);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sched_setaffinity(0, sizeof(mask), &mask);
    if (getppid() == parent)
        raise(SIGSTOP);
    for (volatile unsigned turns = 0; getppid() == parent; turns++)
        continue;
    _exit(0);
}

static inline void spinning_pause(struct spinning *spinning)
{
    for (int i = 0; i < spinning->count; i++) {
        kill(spinning->pids[i], SIGSTOP);
        waitpid(spinning->pids[i], NULL, WUNTRACED);
    }
}

static inline void spinning_go(struct spinning *spinning)
{
    for (int i = 0; i < spinning->count; i++)
        kill(spinning->pids[i], SIGCONT);
}

/* Binds the caller, and threads that it starts later, to the test's CPUs, and makes the processes,
 * which do not spin yet. Call it first, while the caller is the only thread. */
static inline void spinning_open(struct spinning *spinning)
{
    cpu_set_t mask, own;
    CPU_ZERO(&own);
    *spinning = (struct spinning){0};
    sched_getaffinity(0, sizeof(mask), &mask);
    for (int cpu = 0; cpu < CPU_SETSIZE && spinning->count < SPINNING_CPUS; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &mask))
            continue;
        CPU_SET((size_t)cpu, &own);
        spinning->cpus[spinning->count++] = cpu;
    }
    sched_setaffinity(0, sizeof(own), &own);
    for (int i = 0; i < spinning->count; i++) {
        spinning->pids[i] = spinning_fork(spinning->cpus[i]);
        if (spinning->pids[i] < 0)
            exit(EXIT_FAILURE);
        waitpid(spinning->pids[i], NULL, WUNTRACED);
    }
}

static inline void spinning_close(struct spinning *spinning)
{
    for (int i = 0; i < spinning->count; i++) {
        kill(spinning->pids[i], SIGKILL);
        waitpid(spinning->pids[i], NULL, 0);
    }
}

static inline void *spinning_thread(void *argument)
{
    spinning_work(*(uint64_t *)argument);
    return NULL;
}

/* How long the work takes on a plain thread, from its start to its join. */
static inline uint64_t spinning_fair_ns(uint64_t work_ns)
{
    pthread_t thread;
    uint64_t start = test_now_ns();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, spinning_thread, &work_ns), 0);
    pthread_join(thread, NULL);
    return test_now_ns() - start;
}

/* The median of a few. */
static inline uint64_t spinning_median(uint64_t samples[SPINNING_SAMPLES])
{
    uint64_t low = samples[0] < samples[1] ? samples[0] : samples[1];
    uint64_t high = samples[0] < samples[1] ? samples[1] : samples[0];
    return samples[2] < low ? low : samples[2] > high ? high : samples[2];
}

/* Whether `measure(argument)`, a time, is at most SPINNING_FACTOR times that of a plain thread with
 * `work_ns` of work, by medians of samples that take turns. */
static inline bool spinning_is_fair(uint64_t (*measure)(void *argument), void *argument,
                                    uint64_t work_ns)
{
    uint64_t took[SPINNING_SAMPLES], fair[SPINNING_SAMPLES];
    for (int i = 0; i < SPINNING_SAMPLES; i++) {
        took[i] = measure(argument);
        fair[i] = spinning_fair_ns(work_ns);
    }
    uint64_t took_ns = spinning_median(took), fair_ns = spinning_median(fair);
    printf("%.1f ms, a plain thread %.1f ms ", (double)took_ns / SPINNING_MS,
           (double)fair_ns / SPINNING_MS);
    return took_ns <= SPINNING_FACTOR * fair_ns;
}

#endif
