/* SPDX-License-Identifier: BSD-3-Clause
 *
 * book.h - the memory of the address book: slots of addresses, and a table of the strings looked
 * up. For the files address*.c only; address.h states the rules. Slots are type-stable: a handle
 * that is stale finds a slot of another generation.
 */
#ifndef BMI_BOOK_H
#define BMI_BOOK_H

#include "bmi/connection/address.h"

struct bmi_instance;

/* The address of a handle, without a lock; NULL: stale. Any other thread may give its slot back at
 * once, and another instance may take it. So the generation is checked again after `peer` is read,
 * since the memory of another instance's peer may be freed, and once more under the peer's lock. */
struct address *bmi__book_find(BMI_addr_t handle);

static inline uint32_t bmi__book_generation(const struct address *address)
{
    return atomic_load_explicit(&address->generation, memory_order_acquire);
}

/* A new address without string and peer. NULL: no memory. */
struct address *bmi__book_take_locked(struct bmi_instance *instance);
/* The address has no peer. Frees what it holds; its handle is stale from now on. */
void bmi__book_give_locked(struct address *address);
int bmi__book_open(struct bmi_instance *instance);
void bmi__book_close(struct bmi_instance *instance);
/* Frees the slots of the process. No instance is open. */
void bmi__address_slots_free(void);

/* Makes the address found by its string. -ENOMEM. */
int bmi__book_string_add_locked(struct address *address);
struct address *bmi__book_string_find_locked(struct bmi_instance *instance, const char *string);

/* address.c: makes an address for a string and adds it. See BMI_addr_lookup for errors. */
int bmi__address_make_locked(struct bmi_instance *instance, const char *string,
                             struct address **made);
/* address_peer.c: the peer of the address is gone, and the address is not wanted any more. */
void bmi__address_detach_locked(struct address *address);
/* address_reference.c: the connection of an accepted address has ended. Keeps the newest of these,
 * so that a post to one returns the cause, and frees older ones. */
void bmi__address_dead_locked(struct address *address);

#endif
