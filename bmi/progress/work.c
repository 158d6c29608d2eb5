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

struct bmi__work {
    _Atomic(struct bmi_link *) dirty;
    _Atomic(struct bmi_deferred *) deferred;
    _Atomic(struct bmi_deferred *) soon;
};

static void push(struct bmi_instance *instance, _Atomic(struct bmi_deferred *) *list,
                 struct bmi_deferred *deferred)
{
    if (atomic_exchange(&deferred->pending, true))
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
static bool run_all(_Atomic(struct bmi_deferred *) *list)
{
    if (atomic_load(list) == NULL)
        return false;
    struct bmi_deferred *one = atomic_exchange(list, NULL), *oldest = NULL;
    while (one != NULL) {
        struct bmi_deferred *next = atomic_load_explicit(&one->next, memory_order_relaxed);
        atomic_store_explicit(&one->next, oldest, memory_order_relaxed);
        oldest = one;
        one = next;
    }
    bool any = oldest != NULL;
    while (oldest != NULL) {
        struct bmi_deferred *next = atomic_load_explicit(&oldest->next, memory_order_relaxed);
        atomic_store(&oldest->pending, false);
        oldest->run(oldest);
        oldest = next;
    }
    return any;
}

bool bmi__work_soon_run(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    return run_all(&work->soon);
}

bool bmi__work_deferred(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    bool any = run_all(&work->soon);
    return run_all(&work->deferred) || any;
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
    return atomic_load(&work->dirty) == NULL && atomic_load(&work->deferred) == NULL &&
           atomic_load(&work->soon) == NULL;
}

static void forget(_Atomic(struct bmi_deferred *) *list)
{
    for (struct bmi_deferred *one = atomic_exchange(list, NULL); one != NULL;
         one = atomic_load(&one->next))
        atomic_store(&one->pending, false);
}

void bmi__work_drop(struct bmi_instance *instance)
{
    struct bmi__work *work = instance->work;
    for (struct bmi_link *link = atomic_exchange(&work->dirty, NULL), *next; link != NULL;
         link = next) {
        next = atomic_load(&link->dirty_next);
        bmi_link_unref(link);
    }
    forget(&work->deferred);
    forget(&work->soon);
}

int bmi__work_open(struct bmi_instance *instance)
{
    struct bmi__work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return -ENOMEM;
    instance->work = work;
    return 0;
}

void bmi__work_close(struct bmi_instance *instance)
{
    free(instance->work);
    instance->work = NULL;
}
