/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_reference.c - how long an address is kept: the program's references, addresses of ended
 * connections, and addresses that the program drops. See address.h.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/book.h"
#include "bmi/connection/peer_end.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"

/* Accepted addresses whose connections are gone, and that nobody references. */
struct bmi__dead_addresses { /* book */
    struct address *first, *last;
    uint32_t count;
};

/* ---- addresses of ended connections ---------------------------------------------------------- */

void bmi__address_dead_locked(struct address *address)
{
    struct bmi__dead_addresses *dead = address->instance->dead_addresses;
    address->dead = true;
    if (address->references > 0)
        return; /* until the program drops its references */
    if (bmi__auto_references(address->instance)) {
        bmi__book_give_locked(address);
        return;
    }
    address->hash_next = NULL;
    if (dead->last != NULL)
        dead->last->hash_next = address;
    else
        dead->first = address;
    dead->last = address;
    if ((int64_t)++dead->count <= bmi__setting(address->instance, SETTING_DEAD_PEERS))
        return;
    struct address *oldest = dead->first;
    dead->first = oldest->hash_next;
    if (dead->first == NULL)
        dead->last = NULL;
    dead->count--;
    bmi__book_give_locked(oldest);
}

static void dead_remove_locked(struct address *address)
{
    struct bmi__dead_addresses *dead = address->instance->dead_addresses;
    struct address **place = &dead->first, *previous = NULL;
    while (*place != NULL && *place != address) {
        previous = *place;
        place = &previous->hash_next;
    }
    if (*place == NULL)
        return;
    *place = address->hash_next;
    if (dead->last == address)
        dead->last = previous;
    dead->count--;
}

/* ---- references ----------------------------------------------------------------------------- */

/* Gives back the address's peer if the peer has no link, no operations, and no other address. */
static bool peer_free_if_idle_locked(struct address *address)
{
    struct peer *peer = atomic_load(&address->peer);
    if (peer == NULL)
        return true;
    peer_lock(peer);
    bool idle = peer->state == PEER_IDLE && peer->op_count == 0 && peer->address == address &&
                address->alias_next == NULL;
    if (idle) {
        peer->address = NULL;
        atomic_store(&address->peer, NULL);
    }
    peer_unlock(peer);
    if (idle)
        bmi__peer_give(peer);
    return idle;
}

/* Frees an address that is not wanted any more, if its peer is dead or idle. */
static void free_if_idle_locked(struct address *address)
{
    if (!peer_free_if_idle_locked(address))
        return;
    if (address->dead)
        dead_remove_locked(address);
    bmi__book_give_locked(address);
}

/* The last reference is gone. A string that the program looked up stays valid until the program
 * drops the address. So the handle stays, and only the memory of an idle peer is given back. */
static void unreferenced_locked(struct address *address)
{
    if (address->string != NULL)
        peer_free_if_idle_locked(address);
    else
        free_if_idle_locked(address);
}

int bmi__address_reference(struct bmi_instance *instance, BMI_addr_t handle, int change)
{
    int status = 0;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    if (address == NULL || address->references + change < 0) {
        status = -EINVAL;
    } else {
        address->references += change;
        if (address->dead && change > 0)
            dead_remove_locked(address); /* a referenced address stays */
        if (address->references == 0 && change < 0)
            unreferenced_locked(address);
    }
    bmi__book_unlock(instance);
    return status;
}

void bmi__address_heard_locked(struct peer *peer)
{
    if (bmi__auto_references(peer->instance) && peer->address != NULL)
        atomic_fetch_add(&peer->address->references, 1);
}

/* ---- dropping -------------------------------------------------------------------------------- */

int bmi__address_droppable(struct bmi_instance *instance, BMI_addr_t handle)
{
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    struct peer *peer = address != NULL ? atomic_load(&address->peer) : NULL;
    int result = address == NULL ? -EINVAL : 1;
    if (peer != NULL) {
        peer_lock(peer);
        result = peer->state == PEER_IDLE && peer->op_count == 0;
        peer_unlock(peer);
    }
    bmi__book_unlock(instance);
    return result;
}

/* Removes the address from a peer that has other addresses, too. */
static void alias_drop_locked(struct address *address, struct peer *peer)
{
    struct address **place = &peer->address;
    while (*place != address)
        place = &(*place)->alias_next;
    *place = address->alias_next;
    bmi__address_detach_locked(address);
}

/* Whether the program knows the peer by another address, too. */
static bool has_other(const struct peer *peer, const struct address *address)
{
    const struct address *other = peer->address;
    while (other != NULL && (other == address || other->dropped))
        other = other->alias_next;
    return other != NULL;
}

/* Book's and peer's locks held. If the address has a connection to close, its string stays in the
 * book until the connection ends, so that no thread dials meanwhile. Its handle becomes stale at
 * once. */
static int drop_locked(struct address *address, struct peer *peer)
{
    if (peer->op_count > 0)
        return -EBUSY;
    if (has_other(peer, address) && peer->state != PEER_DIALLING && !(peer->flags & PEER_CLOSING)) {
        alias_drop_locked(address, peer);
    } else if (peer->link != NULL) {
        bmi__peer_fail_locked(peer, -ECONNRESET, NULL);
        atomic_fetch_add(&address->generation, 1);
        address->references = 0;
        address->dropped = true;
    }
    return 0;
}

int bmi__address_drop(struct bmi_instance *instance, BMI_addr_t handle)
{
    int status = 0;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    struct peer *peer = address != NULL ? atomic_load(&address->peer) : NULL;
    if (address == NULL) {
        status = -EINVAL;
    } else if (peer != NULL) {
        peer_lock(peer);
        status = drop_locked(address, peer);
        peer_unlock(peer);
    }
    if (status == 0 && bmi__address_find_locked(handle) != NULL)
        free_if_idle_locked(address);
    bmi__book_unlock(instance);
    return status;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__dead_addresses_open(struct bmi_instance *instance)
{
    struct bmi__dead_addresses *dead = calloc(1, sizeof *dead);
    if (dead == NULL)
        return -ENOMEM;
    instance->dead_addresses = dead;
    return 0;
}

void bmi__dead_addresses_close(struct bmi_instance *instance)
{
    free(instance->dead_addresses);
    instance->dead_addresses = NULL;
}
