/* SPDX-License-Identifier: BSD-3-Clause
 *
 * foretell.h - will a caller be away for long? Foretold as processors foretell branches.
 *
 * The last times, long or short, are a history; for each history a counter knows what came after it
 * most often, so that a program which computes after every third call is known for that. Of a
 * history that is new the last two times decide: else a program whose calls are not the same in
 * each round would be known after dozens of rounds only. Zero is one that has seen nothing. It has
 * no lock: who notes holds the driver's seat.
 */
#ifndef BMI_FORETELL_H
#define BMI_FORETELL_H

#include <stdbool.h>
#include <stdint.h>

enum { FORETELL_HISTORIES = 64, FORETELL_RECENT = 4 };

struct foretell {
    unsigned history;                  /* a bit for each of the last times, 1 for a long one */
    uint8_t longs[FORETELL_HISTORIES]; /* whether a long one follows that history */
    uint8_t recent[FORETELL_RECENT];   /* the same of the last two times alone */
};

/* Notes whether the last time was a long one. Returns whether the next is likely to be. */
bool bmi__foretell(struct foretell *foretell, bool was_long);

#endif
