/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.h - the address book: handles, the strings looked up, and the peers behind them.
 *
 * A handle is a slot (upper 32 bits) and a generation; slots are type-stable memory. An address has
 * at most one peer at a time; a looked-up one gets it when it is first posted to. Several addresses
 * can have the same peer. Fields are guarded by the book's lock, but `generation`, `peer` and
 * `references` are atomic: posting takes no lock but the peer's. `peer` changes only while both the
 * book's lock and that peer's lock are held. So a thread that holds the peer's lock and finds
 * `peer` unchanged can rely on it.
 */
#ifndef BMI_ADDRESS_H
#define BMI_ADDRESS_H

#include "bmi/state/address.h"
#include "bmi/state/peer.h"

struct bmi_instance;

void bmi__book_lock(struct bmi_instance *instance);
void bmi__book_unlock(struct bmi_instance *instance);

/* Looks a string up, making the address. See BMI_addr_lookup for errors. */
int bmi__address_lookup(struct bmi_instance *instance, const char *string, BMI_addr_t *handle);
/* Finds the peer of a handle and locks it. -EINVAL: the handle is stale. Another error: the cause
 * why an accepted peer ended. */
int bmi__address_lock(struct bmi_instance *instance, BMI_addr_t handle, struct peer **peer);
/* The instance whose address that is; the default one if the handle is stale. The call that follows
 * checks the handle again. */
struct bmi_instance *bmi__address_instance(BMI_addr_t handle);
/* NULL: stale. The book's lock is held. */
struct address *bmi__address_find_locked(BMI_addr_t handle);
/* The same for a caller that found the peer by this handle and holds the peer's lock. */
struct address *bmi__address_of_locked(BMI_addr_t handle);
BMI_addr_t bmi__address_handle(const struct address *address);
/* The handle that unexpected messages of the peer carry. */
BMI_addr_t bmi__peer_handle_locked(const struct peer *peer);

/* Book's lock held: an address for an accepted peer. NULL: no memory. */
struct address *bmi__address_accept_locked(struct peer *peer);
/* Book's lock held, no peer's: an accepted peer, which is up, has proved that it may use this
 * address, which becomes its own unless it is another peer's. If the program has not looked it up
 * yet, it is found by its string only, and forgotten with the connection. */
void bmi__address_claim_locked(struct peer *peer, const char *claim);
/* Book's and both peers' locks held: moves the addresses of `from` to `to`. */
void bmi__address_move_locked(struct peer *from, struct peer *to);
/* Book's and peer's locks held: the peer is gone, and its addresses are detached from it. If `all`
 * is false, looked-up addresses keep the peer. */
void bmi__address_lost_locked(struct peer *peer, bool all);
/* Book's and peer's locks held: the peer's connection has ended. Counts that in its addresses, and
 * notes the cause. */
void bmi__address_ended_locked(struct peer *peer, int cause);
/* Returns how many connections of the address have ended or are being closed. *cause is the negated
 * BMI error of the last one. If two calls return the same number, every operation posted between
 * them went to one connection: that of the first call, or the first one made since. UINT32_MAX:
 * stale. Takes the peer's lock. */
uint32_t bmi__address_losses(struct bmi_instance *instance, BMI_addr_t handle,
                             bmi_error_code_t *cause);
/* Whether the method moves bytes of any memory equally well, so that BMI_memalloc has no advantage.
 * Takes the book's lock. */
bool bmi__address_any_memory(struct bmi_instance *instance, BMI_addr_t handle);
/* After the handshake, the host of the peer's link becomes that of its addresses. Book's and peer's
 * locks held. */
void bmi__address_host_locked(struct peer *peer);

/* References: adds `change`; see BMI_DEC_ADDR_REF. -EINVAL: stale, or below 0. */
int bmi__address_reference(struct bmi_instance *instance, BMI_addr_t handle, int change);
/* The peer sent an unexpected message, which will carry the peer's address. */
void bmi__address_heard_locked(struct peer *peer);
/* Book's and peer's locks held: the connection has ended; frees dropped addresses. Returns true if
 * the idle peer has no address left and the caller must give it back. */
bool bmi__address_forget_locked(struct peer *peer);
/* Forgets an address and closes its connection unless another address uses it. -EBUSY: it has
 * operations. */
int bmi__address_drop(struct bmi_instance *instance, BMI_addr_t handle);
/* Whether the address may be dropped: it is dead or idle. <0: stale. */
int bmi__address_droppable(struct bmi_instance *instance, BMI_addr_t handle);
const char *bmi__address_string(struct bmi_instance *instance, BMI_addr_t handle);
const char *bmi__address_host(struct bmi_instance *instance, BMI_addr_t handle);
/* The numeric host of the connection, or else of the looked-up string, and the method. -EINVAL:
 * stale. */
int bmi__address_numeric(struct bmi_instance *instance, BMI_addr_t handle, char *host, size_t size,
                         const struct bmi_method **method);

int bmi__dead_addresses_open(struct bmi_instance *instance);
void bmi__dead_addresses_close(struct bmi_instance *instance);

/* Starts the methods of its alternatives. <0: none of them could be started. */
int bmi__address_methods_start(struct bmi_instance *instance, BMI_addr_t handle);

#endif
