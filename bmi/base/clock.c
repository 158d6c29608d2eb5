/* SPDX-License-Identifier: BSD-3-Clause
 * clock.c - see clock.h. */
#include "bmi/base/clock.h"

#include <time.h>

#include "bmi/method.h"

uint64_t bmi__monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bmi_method_now_ns(void)
{
    return bmi__monotonic_ns();
}
