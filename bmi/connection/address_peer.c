/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_peer.c - which peer stands behind an address, from its first post or its connection's
 * handshake to the connection's end. See address.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/connection/address.h"
#include "bmi/connection/book.h"
#include "bmi/connection/option.h"
#include "bmi/progress/methods.h"

static void attach_locked(struct address *address, struct peer *peer)
{
    address->alias_next = peer->address;
    peer->address = address;
    atomic_store(&address->peer, peer);
}

/* The handle has no peer: makes one for a looked-up address. */
static int peer_make(struct bmi_instance *instance, BMI_addr_t handle)
{
    int status = 0;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    if (address == NULL)
        status = -EINVAL;
    else if (address->string == NULL && atomic_load(&address->peer) == NULL)
        status = address->cause != 0 ? address->cause : -ECONNRESET;
    else if (atomic_load(&address->peer) == NULL) {
        struct peer *peer = bmi__peer_take(instance);
        if (peer != NULL)
            attach_locked(address, peer);
        else
            status = -ENOMEM;
    }
    bmi__book_unlock(instance);
    return status;
}

int bmi__address_lock(struct bmi_instance *instance, BMI_addr_t handle, struct peer **peer)
{
    for (;;) {
        struct address *address = bmi__book_find(handle);
        if (address == NULL ||
            atomic_load_explicit(&address->instance, memory_order_relaxed) != instance)
            return -EINVAL;
        struct peer *candidate = atomic_load_explicit(&address->peer, memory_order_acquire);
        if (candidate == NULL) {
            int status = peer_make(instance, handle);
            if (status < 0)
                return status;
            continue;
        }
        if (bmi__book_generation(address) != (uint32_t)handle)
            return -EINVAL; /* the peer may be of an instance that closes */
        peer_lock(candidate);
        if (atomic_load_explicit(&address->peer, memory_order_relaxed) == candidate &&
            bmi__book_generation(address) == (uint32_t)handle) {
            *peer = candidate;
            return 0;
        }
        peer_unlock(candidate);
    }
}

BMI_addr_t bmi__peer_handle_locked(const struct peer *peer)
{
    return peer->address != NULL ? bmi__address_handle(peer->address) : 0;
}

struct address *bmi__address_accept_locked(struct peer *peer)
{
    struct address *address = bmi__book_take_locked(peer->instance);
    if (address == NULL)
        return NULL;
    attach_locked(address, peer);
    return address;
}

void bmi__address_detach_locked(struct address *address)
{
    atomic_store(&address->peer, NULL);
    bmi__book_give_locked(address);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

/* If memory is short, the address keeps its present host. */
static void host_set(struct address *address, const char *numeric, uint8_t method)
{
    struct host **place = &address->host;
    while (*place != NULL && strcmp((*place)->numeric, numeric) != 0)
        place = &(*place)->former;
    struct host *host = *place;
    if (host != NULL) {
        *place = host->former;
    } else {
        size_t size = strlen(numeric) + 1;
        host = malloc(sizeof *host + size);
        if (host == NULL)
            return;
        memcpy(host->numeric, numeric, size);
    }
    host->former = address->host;
    address->host = host;
    address->host_method = method;
}

/* The index for bmi__method_at. It is past the last method if this one is not built in. */
static uint8_t method_number(struct bmi_instance *instance, const struct bmi_method *method)
{
    const struct running_method *one;
    uint8_t number = 0;
    while ((one = bmi__method_at(instance, number)) != NULL && one->method != method)
        number++;
    return number;
}

void bmi__address_host_locked(struct peer *peer)
{
    struct bmi_link *link = peer->link;
    uint8_t method = method_number(peer->instance, link->method);
    for (struct address *address = peer->address; address != NULL; address = address->alias_next)
        host_set(address, link->host != NULL ? link->host : "", method);
    free(link->host);
    link->host = NULL;
}

/* ---- peers that join ------------------------------------------------------------------------- */

/* Both locks held. The address comes first, and gets the present host and link of the peer. */
static void adopt_locked(struct address *address, struct peer *peer)
{
    if (peer->address != NULL && peer->address->host != NULL)
        host_set(address, peer->address->host->numeric, peer->address->host_method);
    attach_locked(address, peer);
    if (peer->link != NULL)
        bmi__options_give_locked(address, peer->link);
}

/* Looked-up addresses come before the accepted one: from now on, unexpected messages of this peer
 * carry a looked-up handle. */
void bmi__address_move_locked(struct peer *from, struct peer *to)
{
    while (from->address != NULL) {
        struct address *address = from->address;
        from->address = address->alias_next;
        if (address->dropped) {
            bmi__address_detach_locked(address);
            continue;
        }
        adopt_locked(address, to);
    }
}

/* If the program has not looked it up, it comes behind the first one, which unexpected messages
 * carry. */
void bmi__address_claim_locked(struct peer *peer, const char *claim)
{
    struct address *address = bmi__book_string_find_locked(peer->instance, claim);
    bool looked_up = address != NULL;
    if (looked_up ? atomic_load(&address->peer) != NULL
                  : bmi__address_make_locked(peer->instance, claim, &address) < 0)
        return; /* of two links JOIN chooses one */
    peer_lock(peer);
    struct address *first = peer->address;
    adopt_locked(address, peer);
    address->dropped = !looked_up;
    if (!looked_up) {
        address->alias_next = first->alias_next;
        first->alias_next = address;
        peer->address = first;
    }
    peer_unlock(peer);
}

/* ---- the end of a connection ----------------------------------------------------------------- */

void bmi__address_lost_locked(struct peer *peer, bool all)
{
    for (struct address **place = &peer->address, *address; (address = *place) != NULL;) {
        if (!all && address->string != NULL && !address->dropped) {
            place = &address->alias_next;
            continue;
        }
        *place = address->alias_next;
        address->alias_next = NULL;
        if (address->dropped) {
            bmi__address_detach_locked(address);
            continue;
        }
        atomic_store(&address->peer, NULL);
        if (address->string == NULL)
            bmi__address_dead_locked(address);
    }
}

bool bmi__address_forget_locked(struct peer *peer)
{
    for (struct address **place = &peer->address, *address; (address = *place) != NULL;) {
        if (!address->dropped) {
            place = &address->alias_next;
            continue;
        }
        *place = address->alias_next;
        bmi__address_detach_locked(address);
    }
    return peer->address == NULL && peer->op_count == 0;
}

void bmi__address_ended_locked(struct peer *peer, int cause)
{
    for (struct address *address = peer->address; address != NULL; address = address->alias_next) {
        address->cause = (int16_t)cause;
        address->losses++;
    }
}

/* A connection that is being closed counts as ended: a post from now on waits for the next one. */
uint32_t bmi__address_losses(struct bmi_instance *instance, BMI_addr_t handle,
                             bmi_error_code_t *cause)
{
    struct peer *peer;
    *cause = bmi__error(bmi__address_lock(instance, handle, &peer));
    if (*cause != 0)
        return UINT32_MAX;
    const struct address *address = bmi__address_of_locked(handle);
    bool closing =
        peer->link != NULL && (peer->flags & PEER_CLOSING) != 0 && peer->state != PEER_DIALLING;
    int status = closing ? peer->cause : address->cause;
    uint32_t losses = address->losses + closing;
    peer_unlock(peer);
    *cause = bmi__error(status != 0 ? status : -ECONNRESET);
    return losses;
}
