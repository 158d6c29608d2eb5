/* SPDX-License-Identifier: BSD-3-Clause
 * option.h - options of bmi.h that methods answer. */
#ifndef BMI_OPTION_H
#define BMI_OPTION_H

#include "bmi/address.h"

/* Reads (set false) or sets an option of the methods (addr 0) or of an address; what an address can
 * have before it is connected it keeps for its connections. -ENOSYS: nobody's option. */
int bmi__option(BMI_addr_t addr, int option, void *value, bool set);

/* Peer's lock held: a link that was just dialled gets what its address keeps. */
void bmi__options_give_locked(const struct address *address, struct bmi_link *link);
/* The address goes. */
void bmi__options_free(struct address *address);

#endif
