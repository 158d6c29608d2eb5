/* SPDX-License-Identifier: BSD-3-Clause
 *
 * party.c - see party.h.
 */
#include "party.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

#include "bmi/context.h"
#include "bmi/progress.h"

bool cpu_bind(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

bool cpus_find(int *one, int *another)
{
    cpu_set_t all;
    int found[2], count = 0;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET((size_t)cpu, &all))
            found[count++] = cpu;
    if (count < 2)
        return false;
    *one = found[0];
    *another = found[1];
    return true;
}

static bool never(struct waiter *waiter)
{
    (void)waiter;
    return false;
}

struct waiter sleeper(void)
{
    return (struct waiter){.ready = never};
}

bool becomes(bool (*what)(void))
{
    time_t until = time(NULL) + PATIENCE_S;
    while (!what() && time(NULL) < until)
        sched_yield();
    return what();
}

static bool is_called(struct waiter *waiter)
{
    struct party *party = waiter->argument;
    return atomic_load(&party->calls) != atomic_load(&party->answers);
}

static void *answer(void *argument)
{
    struct party *party = argument;
    if (party->cpu >= 0 && !cpu_bind(party->cpu))
        return NULL; /* the test misses its answers */
    do {
        struct waiter waiter = {.ready = is_called,
                                .argument = party,
                                .context = bmi__context_find(party->context),
                                .op = WAITER_SOME};
        bmi__progress_wait(&waiter, 10 * PATIENCE_S * 1000);
        atomic_fetch_add(&party->answers, 1);
    } while (!atomic_load(&party->last));
    return NULL;
}

static void call_now(struct bmi_deferred *deferred)
{
    struct party *party = (struct party *)((char *)deferred - offsetof(struct party, call));
    atomic_fetch_add(&party->calls, 1);
    bmi__progress_notify(bmi__context_find(party->context), 0);
}

void party_start(struct party *party, int cpu, bool by_driver)
{
    *party = (struct party){.cpu = cpu, .by_driver = by_driver, .call.run = call_now};
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&party->context), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&party->thread, NULL, answer, party), 0);
}

void party_call(struct party *party)
{
    unsigned answers = atomic_load(&party->answers);
    if (party->by_driver)
        bmi_method_defer(&party->call);
    else
        call_now(&party->call);
    time_t until = time(NULL) + PATIENCE_S;
    while (atomic_load(&party->answers) == answers && time(NULL) < until)
        sched_yield();
    CU_ASSERT_EQUAL_FATAL(atomic_load(&party->answers), answers + 1);
}

void party_end(struct party *party)
{
    atomic_store(&party->last, true);
    party_call(party);
    pthread_join(party->thread, NULL);
    BMI_close_context(party->context);
}
