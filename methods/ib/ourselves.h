/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ourselves.h - tests over shm in one process, which has a link to itself and drives it pass by
 * pass.
 */
#ifndef IB_OURSELVES_H
#define IB_OURSELVES_H

#include "methods/ib/ib.h"
#include "methods/tcp/fake_core.h"
#include "tests/unit/unit.h"

extern struct ourselves {
    struct fake_owner dialled, *accepted; /* the link's two ends */
    struct ib_state *state;
} ourselves;

/* Runs a suite whose first test is ourselves_connect, and whose last ourselves_disconnect. Returns
 * what main is to: 77 without libfabric. */
int ourselves_run(const char *suite, CU_TestInfo *tests);
void ourselves_connect(void);
void ourselves_disconnect(void);
/* Sends a frame from the dialled end to the other one. */
void ourselves_send(void);

#endif
