/* SPDX-License-Identifier: BSD-3-Clause
 *
 * draw.h - the random source of randomized tests: the same numbers from the same seed.
 */
#ifndef FLOW_DRAW_H
#define FLOW_DRAW_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t draw_state;

/* Starts from BMI_TEST_SEED if it is set, and prints the seed for a repetition. */
static inline void draw_begin(void)
{
    const char *seed = getenv("BMI_TEST_SEED");
    draw_state = seed != NULL ? (uint32_t)strtoul(seed, NULL, 0) : (uint32_t)getpid();
    printf("(BMI_TEST_SEED=%u) ", (unsigned)draw_state);
}

/* Returns a random number from 0 to `below` - 1. */
static inline uint32_t draw(uint32_t below)
{
    draw_state = draw_state * 1664525 + 1013904223;
    return (draw_state >> 8) % below;
}

#endif
