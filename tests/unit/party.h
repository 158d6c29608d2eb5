/* SPDX-License-Identifier: BSD-3-Clause
 *
 * party.h - threads that wait as callers of test functions do, and are called, for tests of the
 * driver's seat; and CPUs for them.
 */
#ifndef TESTS_PARTY_H
#define TESTS_PARTY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "bmi/method.h"
#include "bmi/waiters.h"
#include "unit.h"

enum { PATIENCE_S = 60 };

/* Binds the calling thread. */
bool cpu_bind(int cpu);
/* Two CPUs that the calling thread may run on. Returns false if there are not. */
bool cpus_find(int *one, int *another);

/* Never ready; for lists. */
struct waiter sleeper(void);

/* Whether it is so before patience is over. */
bool becomes(bool (*what)(void));

/* Waits until it is called, again and again. */
struct party {
    pthread_t thread;
    int cpu;        /* -1: as the system likes */
    bool by_driver; /* who calls it: the driver, as if its message had come, or the test */
    bmi_context_id context;
    atomic_uint calls, answers;
    atomic_bool last; /* it ends with the next answer */
    struct bmi_deferred call;
};

void party_start(struct party *party, int cpu, bool by_driver);
/* Has it answer. The lists of waiters change before the answer is over. */
void party_call(struct party *party);
void party_end(struct party *party);

#endif
