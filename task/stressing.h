/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stressing.h - what the stress tests of the task manager share: threads that act at random over a
 * synthetic tree of 256 CPUs, in rounds. Half of the rounds have workers too; half of them end with
 * a shutdown in the midst of submits.
 *
 * BMI_TASK_STRESS_SECONDS: length, 5 by default. BMI_TASK_STRESS_SEED: printed, to be repeated.
 */
#ifndef BMI_TASK_STRESSING_H
#define BMI_TASK_STRESSING_H

#include "task/testing.h"

#include <pthread.h>

enum { STRESS_THREADS = 16, STRESS_CPUS = 256 };

static inline uint32_t random_next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* A manager of that tree, with workers on up to 16 random CPUs if they are wanted; its rings are
 * small, so that they overflow. */
static inline struct bmi_task_manager *stress_manager(const char *tree, bool workers,
                                                      uint32_t *state)
{
    struct bmi_cpuset some;
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = tree,
        .queue_slots = 16,
        .worker_cpus = &some,
    };
    bmi_cpuset_clear(&some);
    while (bmi_cpuset_count(&some) < STRESS_THREADS)
        bmi_cpuset_add(&some, (int)(random_next(state) % STRESS_CPUS));
    return test_manager(&settings, workers ? BMI_TASK_WORKERS : BMI_TASK_HOOKS_ONLY);
}

/* Runs `act`, which gets a seed and returns when *finish is not 0, in all threads for that time.
 * Then `stops` (NULL: none) is stopped, before they finish: queued tasks are cancelled. */
static inline void stress_threads(void *(*act)(void *seed), atomic_uint *finish,
                                  struct bmi_task_manager *stops, uint64_t length_ns,
                                  uint32_t *state)
{
    pthread_t threads[STRESS_THREADS];
    uint32_t seeds[STRESS_THREADS];
    const struct timespec length = {
        .tv_sec = (time_t)(length_ns / 1000000000),
        .tv_nsec = (long)(length_ns % 1000000000),
    };
    atomic_store(finish, 0);
    for (int i = 0; i < STRESS_THREADS; i++) {
        seeds[i] = random_next(state);
        pthread_create(&threads[i], NULL, act, &seeds[i]);
    }
    nanosleep(&length, NULL); /* the test's length; its checks do not depend on it */
    while (stops != NULL && (bmi_task_manager_stop(stops, BMI_TASK_WORKERS) == 0 ||
                             bmi_task_manager_stop(stops, BMI_TASK_HOOKS_ONLY) == 0))
        continue;
    atomic_store(finish, 1);
    for (int i = 0; i < STRESS_THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Calls `round` until the time is over, at least eight times. */
static inline void stress_rounds(void (*round)(bool workers, bool shutdown, uint64_t length_ns,
                                               uint32_t *state))
{
    const char *length = getenv("BMI_TASK_STRESS_SECONDS");
    const char *chosen = getenv("BMI_TASK_STRESS_SEED");
    double seconds = length != NULL ? atof(length) : 5;
    uint32_t seed =
        chosen != NULL ? (uint32_t)strtoul(chosen, NULL, 0) : (uint32_t)test_now_ns() | 1;
    uint32_t state = seed;
    printf("seed %u, %g s ", seed, seconds);
    fflush(stdout);
    /* rounds of a quarter of a second, so that starting and ending are stressed as well */
    uint64_t end = test_now_ns() + (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < 8 || test_now_ns() < end; i++)
        round(i & 1, i & 2, seconds < 2 ? (uint64_t)(seconds * 1e9 / 8) : 250000000, &state);
}

/* Waits until a task that was submitted at all has ended. Returns whether it has. */
static inline bool stress_task_ends(struct bmi_task *task)
{
    int result = bmi_task_state(task) != BMI_TASK_IDLE ? bmi_task_wait(task, 60000) : 0;
    return result == 0 || result == -BMI_ECANCEL;
}

#endif
