/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spin.h - whether the poller looks without blocking for a while before it blocks.
 *
 * Spinning pays where a message comes within the setting `spin_us`. Each spin that ends without one
 * doubles the number of waits that go without. One that is not in vain restores it, and so does a
 * message so soon after the poller blocked that a spin would have met it. No spinning while more
 * threads are runnable on the machine than it has CPUs: the thread that is to send needs one of
 * them. Threads: the poller.
 */
#ifndef BMI_SPIN_H
#define BMI_SPIN_H

#include <stdint.h>

struct bmi_instance;

/* For how long to spin, in ns, in a wait that begins at that time; 0: not at all. */
uint64_t bmi__spin_window(struct bmi_instance *instance, uint64_t now_ns);
/* The spin succeeded; the spin ended without a result. */
void bmi__spin_paid(struct bmi_instance *instance);
void bmi__spin_failed(struct bmi_instance *instance);
/* After a wait that did not spin, or spun in vain, something came in that time. */
void bmi__spin_slept(struct bmi_instance *instance, uint64_t ns);
int bmi__spin_open(struct bmi_instance *instance);
void bmi__spin_close(struct bmi_instance *instance);

#endif
