/* SPDX-License-Identifier: BSD-3-Clause
 * clock.c - the monotonic clock, and the clock of an instance. */
#include "bmi/base/clock.h"

#include <stddef.h>
#include <time.h>

#include "bmi/base/instance.h"
#include "bmi/method.h"

uint64_t bmi__monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bmi__instance_now_ns(const struct bmi_instance *instance)
{
    return instance->now_ns != NULL ? instance->now_ns(instance->argument) : bmi__monotonic_ns();
}

uint64_t bmi_method_now_ns(struct bmi_instance *instance)
{
    return bmi__instance_now_ns(instance);
}
