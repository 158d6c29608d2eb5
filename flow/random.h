/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.h - the random source of randomized tests: the same numbers from the same seed.
 */
#ifndef FLOW_RANDOM_H
#define FLOW_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t random_state;

/* Starts from BMI_TEST_SEED if it is set, and prints the seed for a repetition. */
static inline void random_begin(void)
{
    const char *seed = getenv("BMI_TEST_SEED");
    random_state = seed != NULL ? (uint32_t)strtoul(seed, NULL, 0) : (uint32_t)getpid();
    printf("(BMI_TEST_SEED=%u) ", (unsigned)random_state);
}

/* Returns a random number from 0 to `below` - 1. */
static inline uint32_t random_below(uint32_t below)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % below;
}

#endif
