/* SPDX-License-Identifier: BSD-3-Clause
 * option.h - options of bmi.h that methods answer. */
#ifndef BMI_OPTION_H
#define BMI_OPTION_H

#include "bmi/method.h"
#include "bmi/state/address.h"

/* Reads (set false) or sets an option of the methods (addr 0) or of an address. An address keeps
 * the options that are valid before it is connected, for its connections. -ENOSYS: no method has
 * the option. */
int bmi__option(struct bmi_instance *instance, BMI_addr_t addr, int option, void *value, bool set);

/* BMI_PEER_IDENTITY of an address; of a link, whose peer's lock is held. */
int bmi__identity_get(struct bmi_instance *instance, BMI_addr_t addr,
                      struct bmi_peer_identity *identity);
int bmi__link_identity(struct bmi_link *link, struct bmi_peer_identity *identity);

/* Peer's lock held: passes the kept options of an address to a link that was just dialled. */
void bmi__options_give_locked(const struct address *address, struct bmi_link *link);
/* The address is being freed. */
void bmi__options_free(struct address *address);

#endif
