/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.h - the address book: handles, the strings looked up, and the peers behind them.
 *
 * A handle is a slot (upper 32 bits) and a generation; slots are type-stable memory. An address has
 * at most one peer at a time; a looked-up one gets it when it is first posted to. Several addresses
 * can have the same peer. Fields are guarded by the book's lock, but `generation`, `peer` and
 * `references` are atomic: posting takes no lock but the peer's. `peer` changes with the book's
 * lock and that peer's held, so who holds the peer's lock and finds it unchanged can rely on it.
 */
#ifndef BMI_ADDRESS_H
#define BMI_ADDRESS_H

#include "bmi/methods.h"
#include "bmi/peer.h"

struct alternative {
    struct running_method *method;
    char *canonical;             /* what the method dials */
    char *url;                   /* scheme://canonical, for the log */
    struct kept_option *options; /* of the address, with its first: option.c; its peer's lock */
};

/* A numeric host. Programs are handed the string: it stays as long as its address does. */
struct host {
    struct host *former; /* of the address: of connections before */
    char numeric[];
};

struct address {
    atomic_uint generation;
    uint32_t losses; /* connections that ended; its peer's lock */
    _Atomic(struct peer *) peer;
    struct address *alias_next; /* the next address of the same peer */
    struct address *hash_next;  /* looked up: by string; free: the next free; dead: the next dead */
    char *string;               /* looked up; NULL: accepted */
    struct host *host;          /* of the last connection, once there was one */
    struct alternative *alternatives;
    uint32_t alternative_count;
    uint32_t slot;
    atomic_int references;
    int cause; /* why the last connection ended */
    bool dead, in_use;
    bool dropped; /* forgotten when its connection has ended; found by its string until then */
    uint8_t host_method; /* by which `host` is connected: its number, see bmi__method_at */
};

void bmi__book_lock(void);
void bmi__book_unlock(void);

/* Looks a string up, making the address. See BMI_addr_lookup for errors. */
int bmi__address_lookup(const char *string, BMI_addr_t *handle);
/* The peer of a handle, locked. -EINVAL: stale; or why an accepted peer went. */
int bmi__address_lock(BMI_addr_t handle, struct peer **peer);
/* NULL: stale. The book's lock is held. */
struct address *bmi__address_find_locked(BMI_addr_t handle);
/* The same with the lock of its peer held, which was found by the handle. */
struct address *bmi__address_of_locked(BMI_addr_t handle);
BMI_addr_t bmi__address_handle(const struct address *address);
/* The handle that unexpected messages of the peer are told with. */
BMI_addr_t bmi__peer_handle_locked(const struct peer *peer);

/* Book's lock held: an address for an accepted peer. NULL: no memory. */
struct address *bmi__address_accept_locked(struct peer *peer);
/* Book's and both peers' locks held: what was the one's is the other's. */
void bmi__address_move_locked(struct peer *from, struct peer *to);
/* Book's and peer's locks held: the peer has gone, its addresses lose it; but for `all` those that
 * were looked up keep it. */
void bmi__address_lost_locked(struct peer *peer, bool all);
/* Book's and peer's locks held: its connection has ended, its addresses are told. */
void bmi__address_ended_locked(struct peer *peer, int cause);
/* How many connections of the address have ended or are being closed, and why the last one: a
 * negated BMI error. What was posted after a look at it, and finds it unchanged after that, was
 * posted to the connection of the first look, or the first one since. UINT32_MAX: stale. Takes the
 * peer's lock. */
uint32_t bmi__address_losses(BMI_addr_t handle, bmi_error_code_t *cause);
/* Whether its method moves bytes of any memory alike: that of BMI_memalloc has no advantage. Takes
 * the book. */
bool bmi__address_any_memory(BMI_addr_t handle);
/* The host of the peer's link, which has been greeted, becomes that of its addresses. Book's and
 * peer's locks held. */
void bmi__address_host_locked(struct peer *peer);

/* References: adds `change`; see BMI_DEC_ADDR_REF. -EINVAL: stale, or below 0. */
int bmi__address_reference(BMI_addr_t handle, int change);
/* An unexpected message of the peer's came, which is to be told with its address. */
void bmi__address_heard_locked(struct peer *peer);
/* Book's and peer's locks held: its connection has ended; dropped ones go. Returns whether the idle
 * peer has nothing left and is to be given back. */
bool bmi__address_forget_locked(struct peer *peer);
/* Forgets an address, closing the connection that nobody else has. -EBUSY: it has operations. */
int bmi__address_drop(BMI_addr_t handle);
/* Whether it may be dropped: dead or idle. <0: stale. */
int bmi__address_droppable(BMI_addr_t handle);
const char *bmi__address_string(BMI_addr_t handle);
const char *bmi__address_host(BMI_addr_t handle);
/* The numeric host: of its connection, else of the string looked up; and the method by which.
 * -EINVAL: stale. */
int bmi__address_numeric(BMI_addr_t handle, char *host, size_t size,
                         const struct bmi_method **method);

void bmi__addresses_free(void);

/* Starts the methods of its alternatives. <0: none could be. */
int bmi__address_methods_start(BMI_addr_t handle);

/* start.c */
bool bmi__running(void);
bool bmi__auto_references(void);

#endif
