/* SPDX-License-Identifier: BSD-3-Clause
 *
 * foretell.c - see foretell.h. Counters have two states on either side, so that one exception does
 * not change what is known.
 */
#include "bmi/foretell.h"

enum { UNKNOWN, UNLIKELY, LIKELY = 3, CERTAIN };

static void learn(uint8_t *longs, bool was_long)
{
    if (*longs == UNKNOWN)
        *longs = was_long ? LIKELY : LIKELY - 1;
    else if (was_long && *longs < CERTAIN)
        ++*longs;
    else if (!was_long && *longs > UNLIKELY)
        --*longs;
}

bool bmi__foretell(struct foretell *foretell, bool was_long)
{
    unsigned history = foretell->history;
    learn(&foretell->longs[history], was_long);
    learn(&foretell->recent[history % FORETELL_RECENT], was_long);
    foretell->history = history = (history << 1 | was_long) % FORETELL_HISTORIES;
    uint8_t longs = foretell->longs[history];
    return (longs != UNKNOWN ? longs : foretell->recent[history % FORETELL_RECENT]) >= LIKELY;
}
