/* SPDX-License-Identifier: BSD-3-Clause
 *
 * library.c - see library.h.
 */
#include "bmi/state/library.h"

#include <stdatomic.h>
#include <stddef.h>

const struct bmi__upcalls *bmi__upcalls;

static atomic_bool running;
static atomic_bool auto_references;
static atomic_int unexpected_waiting;

bool bmi__running(void)
{
    return atomic_load_explicit(&running, memory_order_acquire);
}

void bmi__running_set(bool on)
{
    atomic_store(&running, on);
}

bool bmi__auto_references(void)
{
    return atomic_load_explicit(&auto_references, memory_order_relaxed);
}

void bmi__auto_references_set(bool on)
{
    atomic_store(&auto_references, on);
}

bool bmi__unexpected_waiting(void)
{
    return atomic_load(&unexpected_waiting) > 0;
}

void bmi__unexpected_waiting_add(int change)
{
    atomic_fetch_add(&unexpected_waiting, change);
}

void bmi__unexpected_waiting_reset(void)
{
    atomic_store(&unexpected_waiting, 0);
}
