/* SPDX-License-Identifier: BSD-3-Clause
 *
 * thread.c - starting the manager's threads, and how the kernel schedules them. All of them block
 * every signal except those of a thread's own faults: handlers run on the program's own threads.
 */
#include "task/internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t bmi__now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument, int os_cpu,
                      const char *name, uint32_t number)
{
    pthread_attr_t attributes;
    int result = pthread_attr_init(&attributes);
    if (result != 0)
        return bmi__task_error(result);
    const bool bound = os_cpu >= 0 && os_cpu < CPU_SETSIZE;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (bound) {
        CPU_SET((size_t)os_cpu, &mask);
#ifdef __GLIBC__ /* musl has no such attribute */
        pthread_attr_setaffinity_np(&attributes, sizeof(mask), &mask);
#endif
    }
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    result = pthread_create(thread, &attributes, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (result == 0) {
#ifndef __GLIBC__
        if (bound)
            pthread_setaffinity_np(*thread, sizeof(mask), &mask);
#endif
        char label[16]; /* the kernel's limit */
        snprintf(label, sizeof(label), "%s/%u", name, number);
        pthread_setname_np(*thread, label);
    }
    return bmi__task_error(result);
}

int bmi__thread_bind(const struct bmi_cpuset *cpus)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (int cpu = bmi_cpuset_next(cpus, 0); cpu >= 0; cpu = bmi_cpuset_next(cpus, cpu + 1))
        CPU_SET((size_t)cpu, &mask);
    return sched_setaffinity(0, sizeof(mask), &mask) == 0 ? 0 : errno;
}

/* Same layout as the kernel's; glibc 2.36 does not declare it. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void bmi__thread_raise(bool realtime)
{
    struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    if (realtime && pthread_setschedparam(pthread_self(), SCHED_FIFO, &lowest) == 0)
        return;
    /* Since Linux 6.12 `runtime` is the slice of a normal thread, 0.1 ms at least; earlier kernels
     * ignore it. */
    struct scheduling slice = {.size = sizeof(slice),
                               .policy = SCHED_OTHER,
                               .nice = getpriority(PRIO_PROCESS, 0), /* the caller's own */
                               .runtime = 100000};
    syscall(SYS_sched_setattr, 0, &slice, 0);
}

void bmi__thread_policy(enum bmi_task_policy policy)
{
    struct sched_param none = {.sched_priority = 0};
    if (policy == BMI_TASK_POLICY_NORMAL)
        bmi__thread_raise(false);
    else
        pthread_setschedparam(pthread_self(),
                              policy == BMI_TASK_POLICY_IDLE ? SCHED_IDLE : SCHED_BATCH, &none);
}

void bmi__thread_normal(pthread_t thread)
{
    struct sched_param none = {.sched_priority = 0};
    pthread_setschedparam(thread, SCHED_OTHER, &none);
}
