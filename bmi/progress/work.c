/* SPDX-License-Identifier: BSD-3-Clause
 *
 * work.c - deferred calls and dirty links. See work.h.
 */
#include "bmi/progress/work.h"

#include <errno.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/method.h"
#include "bmi/progress/wakeup.h"

/* Both lists of calls end at `end`, so that the `next` of each pending call, also of the last one,
 * is not NULL. */
struct bmi__work {
    struct bmi_deferred end;
    _Atomic(struct bmi_link *) dirty;
    _Atomic(struct bmi_deferred *) deferred;
    _Atomic(struct bmi_deferred *) soon;
};

/* A request that is merged needs no fence: its work was queued under a lock, or by atomics, and
 * `next` is NULL before `run` looks for that. */
static void push(struct bmi_instance *instance, _Atomic(struct bmi_deferred *) *list,
                 struct bmi_deferred *deferred)
{
    struct bmi_deferred *not_pending = NULL;
    if (!atomic_compare_exchange_strong(&deferred->next, &not_pending, &instance->work->end))
        return;
    struct bmi_deferred *first = atomic_load(list);
    do
        atomic_store_explicit(&deferred->next, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(list, &first, deferred));
    bmi__progress_kick(instance);
}

void bmi_method_defer(struct bmi_instance *instance, struct bmi_deferred *deferred)
{
    struct bmi__work *work = instance->work;
    push(instance, &work->deferred, deferred);
}

void bmi__work_soon(struct bmi_instance *instance, struct bmi_deferred *deferred)
{
    struct bmi__work *work = instance->work;
    push(instance, &work->soon, deferred);
}

/* In the order of the calls. */
static bool run_all(struct bmi__work *work, _Atomic(struct bmi_deferred *) *list)
{
    struct bmi_deferred *end = &work->end, *oldest = end;
    if (atomic_load(list) == end)
        return false;
    struct bmi_deferred *one = atomic_exchange(list, end);
    while (one != end) {
        struct bmi_deferred *next = atomic_load_explicit(&one->next, memory_order_relaxed);
        atomic_store_explicit(&one->next, oldest, memory_order_relaxed);
        oldest = one;
        one = next;
    }
    while (oldest != end) {
        struct bmi_deferred *next = atomic_load_explicit(&oldest->next, memory_order_relaxed);
        atomic_store(&oldest->next, NULL);
        oldest->run(oldest);
        oldest = next;
    }
    return true;
}

bool bmi__work_soon_run(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    return run_all(work, &work->soon);
}

bool bmi__work_deferred(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    bool any = run_all(work, &work->soon);
    return run_all(work, &work->deferred) || any;
}

bool bmi__work_dirty(struct bmi_link *link)
{
    struct bmi__work *work = link->instance->work;
    if (atomic_load(&link->dirty) || atomic_exchange(&link->dirty, true))
        return false;
    bmi_link_ref(link);
    struct bmi_link *first = atomic_load(&work->dirty);
    do
        atomic_store_explicit(&link->dirty_next, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&work->dirty, &first, link));
    return true;
}

bool bmi__work_flush(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    if (atomic_load(&work->dirty) == NULL)
        return false;
    struct bmi_link *link = atomic_exchange(&work->dirty, NULL);
    bool any = link != NULL;
    while (link != NULL) {
        struct bmi_link *next = atomic_load_explicit(&link->dirty_next, memory_order_relaxed);
        atomic_store(&link->dirty, false);
        link->method->flush(link);
        bmi_link_unref(link);
        link = next;
    }
    return any;
}

bool bmi__work_none(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    return atomic_load(&work->dirty) == NULL && atomic_load(&work->deferred) == &work->end &&
           atomic_load(&work->soon) == &work->end;
}

static void forget(struct bmi__work *work, _Atomic(struct bmi_deferred *) *list)
{
    struct bmi_deferred *one = atomic_exchange(list, &work->end);
    while (one != &work->end)
        one = atomic_exchange(&one->next, NULL);
}

void bmi__work_drop(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    for (struct bmi_link *link = atomic_exchange(&work->dirty, NULL), *next; link != NULL;
         link = next) {
        next = atomic_load(&link->dirty_next);
        bmi_link_unref(link);
    }
    forget(work, &work->deferred);
    forget(work, &work->soon);
}

int bmi__work_open(struct bmi_instance *instance)
{
    struct bmi__work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return -ENOMEM;
    atomic_init(&work->deferred, &work->end);
    atomic_init(&work->soon, &work->end);
    instance->work = work;
    return 0;
}

void bmi__work_close(struct bmi_instance *instance)
{
    free(instance->work);
    instance->work = NULL;
}
