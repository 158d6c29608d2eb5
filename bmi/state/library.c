/* SPDX-License-Identifier: BSD-3-Clause
 *
 * library.c - see library.h.
 */
#include "bmi/state/library.h"

#include "bmi/base/instance.h"
#include <stdatomic.h>
#include <stddef.h>

bool bmi__running(const struct bmi_instance *instance)
{
    return atomic_load_explicit(&instance->running, memory_order_acquire);
}

void bmi__running_set(struct bmi_instance *instance, bool on)
{
    atomic_store(&instance->running, on);
}

bool bmi__auto_references(struct bmi_instance *instance)
{
    return atomic_load_explicit(&instance->auto_references, memory_order_relaxed);
}

void bmi__auto_references_set(struct bmi_instance *instance, bool on)
{
    atomic_store(&instance->auto_references, on);
}

bool bmi__unexpected_waiting(struct bmi_instance *instance)
{
    return atomic_load(&instance->unexpected_waiting) > 0;
}

void bmi__unexpected_waiting_add(struct bmi_instance *instance, int change)
{
    atomic_fetch_add(&instance->unexpected_waiting, change);
}

void bmi__unexpected_waiting_reset(struct bmi_instance *instance)
{
    atomic_store(&instance->unexpected_waiting, 0);
}
