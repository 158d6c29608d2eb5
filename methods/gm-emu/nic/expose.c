/* SPDX-License-Identifier: BSD-3-Clause
 *
 * expose.c - which memory peers may write into, and the end of that.
 *
 * Exposures stand in the port memory, which peers read. A key is a place there and a number that is
 * used once. Revoking clears the key, then waits until no peer claims it (directed.c has the other
 * half). A dead peer that claims does not write any more; a stopped peer that claims gets some
 * time.
 *
 * A place is used again when no peer claims its key. If a claim did not end in time, its place
 * stands at the other end of exposure_free until the peers that claim it are freed: their
 * connections are ended, so that happens. A stopped peer that wakes later finds another key in the
 * place.
 */
#include <errno.h>
#include <linux/futex.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define PLACE_MASK ((1u << NIC_EXPOSURE_BITS) - 1)

int nic__exposures_init(struct nic_port *port)
{
    port->exposure_free = malloc(port->options.exposures_max * sizeof(*port->exposure_free));
    if (port->exposure_free == NULL)
        return -ENOMEM;
    if (RAND_bytes((uint8_t *)&port->exposure_generation, sizeof(port->exposure_generation)) != 1)
        return -EIO;
    port->exposure_generation >>= NIC_EXPOSURE_BITS;
    return 0;
}

static bool place_take_locked(struct nic_port *port, uint32_t *place)
{
    if (port->exposure_free_count > 0)
        *place = port->exposure_free[--port->exposure_free_count];
    else if (port->exposure_used < port->options.exposures_max)
        *place = port->exposure_used++;
    else
        return false;
    return true;
}

int nic_expose(struct nic_port *port, struct nic_peer *peer, void *memory, uint64_t length,
               uint64_t *key)
{
    uint64_t offset = 0;
    uint32_t place;
    if (length == 0)
        return -EINVAL;
    if (!nic__registered(port, memory, length))
        return -EFAULT;
    uint32_t arena = nic__arena_of(port, memory, length, &offset);
    bmi_lock_take(&port->exposure_lock);
    bool found = place_take_locked(port, &place);
    if (found) {
        const uint64_t NUMBERS = ~0ull >> NIC_EXPOSURE_BITS;
        port->exposure_generation =
            port->exposure_generation >= NUMBERS ? 1 : port->exposure_generation + 1;
        struct nic_shared_exposure *exposure = &port->shared->exposure[place];
        exposure->link = peer != NULL ? peer->link_name : 0;
        exposure->address = (uintptr_t)memory;
        exposure->length = length;
        exposure->arena = arena;
        exposure->arena_offset = offset;
        *key = port->exposure_generation << NIC_EXPOSURE_BITS | place;
        atomic_store_explicit(&exposure->key, *key, memory_order_release);
    }
    bmi_lock_give(&port->exposure_lock);
    return found ? 0 : -ENOSPC;
}

uint8_t *nic__exposure_place_locked(struct nic_port *port, uint64_t link, uint64_t key,
                                    uint64_t offset, uint64_t length)
{
    uint32_t place = (uint32_t)key & PLACE_MASK;
    if (key == 0 || place >= port->exposure_used)
        return NULL;
    const struct nic_shared_exposure *exposure = &port->shared->exposure[place];
    if (atomic_load_explicit(&exposure->key, memory_order_relaxed) != key ||
        (exposure->link != 0 && exposure->link != link) || offset > exposure->length ||
        length > exposure->length - offset)
        return NULL;
    return (uint8_t *)(uintptr_t)exposure->address + offset;
}

int nic__exposure_write(struct nic_port *port, uint64_t link, uint64_t key, uint64_t offset,
                        const void *from, uint64_t length)
{
    bmi_lock_take(&port->exposure_lock);
    uint8_t *to = nic__exposure_place_locked(port, link, key, offset, length);
    if (to != NULL)
        nic__copy(to, from, length);
    bmi_lock_give(&port->exposure_lock);
    return to != NULL ? 0 : -EACCES;
}

/* ---- the end of an exposure
 * ------------------------------------------------------------------------
 */

/* The peer's claim: a key, or 0. */
static uint64_t claim_of(struct nic_peer *peer)
{
    if (atomic_load(&peer->state) < NIC_UP || peer->theirs == NULL ||
        atomic_load(&peer->remote_gone))
        return 0;
    return atomic_load(&peer->theirs->claim);
}

/* A process that has ended, or runs another program, has left its claim behind. */
static bool claim_is_dead(struct nic_peer *peer)
{
    return peer->vm_write && !nic__process_is_peer(peer);
}

bool nic__claimed(struct nic_peer *peer)
{
    return claim_of(peer) != 0 && !claim_is_dead(peer);
}

/* Returns the connection that the key was exposed to (key 0: all). Every peer can read all keys,
 * but may write by one only if it was exposed to its connection: the exposure's place holds that
 * until the place is used again. */
static uint64_t exposed_to(const struct nic_port *port, uint64_t key)
{
    return key != 0 ? port->shared->exposure[key & PLACE_MASK].link : 0;
}

/* Whether the peer claims the key (0: any). */
static bool claims(struct nic_peer *peer, uint64_t key)
{
    uint64_t claim = claim_of(peer);
    return claim != 0 && (key == 0 || claim == key);
}

/* Finds a peer that claims the key (0: any) among those that the memory was exposed to, which
 * usually is one of many. */
static struct nic_peer *claimer_find_locked(struct nic_port *port, uint64_t key)
{
    uint64_t link = exposed_to(port, key);
    struct nic_peer *peer = nic__exposed_locked(port, link, NULL);
    while (peer != NULL && !claims(peer, key))
        peer = nic__exposed_locked(port, link, peer);
    return peer;
}

/* One round of waiting. The futex may have been unmapped meanwhile: that only ends the wait. */
static bool claim_wait(struct nic_port *port, uint64_t key, bool patient)
{
    const struct timespec SLICE = {.tv_nsec = 10000000};
    _Atomic uint32_t *turn = NULL;
    uint32_t before = 0;
    bmi_lock_take(&port->lock);
    struct nic_peer *peer = claimer_find_locked(port, key);
    if (peer != NULL && patient) {
        turn = &peer->theirs->claim_turn;
        before = atomic_load(turn);
        atomic_store(&peer->mine->claim_waits, 1);
        bmi_fence();
        if (claim_is_dead(peer)) {
            atomic_store(&peer->theirs->claim, 0);
            turn = NULL;
        }
        peer = claimer_find_locked(port, key);
    }
    bmi_lock_give(&port->lock);
    if (peer != NULL && turn != NULL)
        syscall(SYS_futex, turn, FUTEX_WAIT, before, &SLICE, NULL, 0);
    return peer == NULL;
}

/* Another waiting thread may lose a wake-up here, for no longer than a slice. */
static void waits_forget(struct nic_port *port, uint64_t key)
{
    uint64_t link = exposed_to(port, key);
    struct nic_peer *peer = NULL;
    bmi_lock_take(&port->lock);
    while ((peer = nic__exposed_locked(port, link, peer)) != NULL)
        if (atomic_load(&peer->state) >= NIC_UP && peer->mine != NULL)
            atomic_store_explicit(&peer->mine->claim_waits, 0, memory_order_relaxed);
    bmi_lock_give(&port->lock);
}

/* Waits until no peer claims the key, for a bounded time. */
static bool claims_end(struct nic_port *port, uint64_t key, uint32_t limit_ms)
{
    enum { ROUNDS = 200 };
    const uint64_t LIMIT_NS = limit_ms * 1000000ull;
    uint64_t begin = 0;
    for (int i = 0;; i++) {
        if (claim_wait(port, key, i >= ROUNDS)) {
            if (i > ROUNDS)
                waits_forget(port, key);
            return true;
        }
        if (i == ROUNDS)
            begin = nic__now();
        if (i > ROUNDS && nic__now() - begin > LIMIT_NS)
            return false;
    }
}

/* Ends the connections of the peers that still claim. */
static void claimers_end(struct nic_port *port, uint64_t key)
{
    uint64_t link = exposed_to(port, key);
    struct nic_peer *peer = NULL;
    bmi_lock_take(&port->lock);
    while ((peer = nic__exposed_locked(port, link, peer)) != NULL)
        if (claims(peer, key))
            atomic_store(&peer->broken, true);
    bmi_lock_give(&port->lock);
    nic__attention(port);
}

static bool is_claimed_locked(struct nic_port *port, uint32_t place)
{
    uint64_t link = port->shared->exposure[place].link;
    struct nic_peer *peer = nic__exposed_locked(port, link, NULL);
    while (peer != NULL && (claim_of(peer) == 0 || (claim_of(peer) & PLACE_MASK) != place))
        peer = nic__exposed_locked(port, link, peer);
    return peer != NULL;
}

void nic__exposures_left_look_locked(struct nic_port *port, uint64_t link)
{
    const uint32_t END = port->options.exposures_max;
    bmi_lock_take(&port->exposure_lock);
    for (uint32_t i = END - port->exposure_left_count; i < END; i++) {
        uint32_t place = port->exposure_free[i];
        uint64_t other = port->shared->exposure[place].link;
        if ((other != 0 && other != link) || is_claimed_locked(port, place))
            continue;
        port->exposure_free[i] = port->exposure_free[END - port->exposure_left_count--];
        port->exposure_free[port->exposure_free_count++] = place;
    }
    bmi_lock_give(&port->exposure_lock);
}

void nic_revoke_leave(struct nic_port *port, uint64_t key)
{
    uint32_t place = (uint32_t)key & PLACE_MASK;
    bmi_lock_take(&port->lock); /* no peer that claims it is freed meanwhile */
    bmi_lock_take(&port->exposure_lock);
    uint64_t link = port->shared->exposure[place].link;
    port->exposure_free[port->options.exposures_max - ++port->exposure_left_count] = place;
    bmi_lock_give(&port->exposure_lock);
    nic__exposures_left_look_locked(port, link);
    bmi_lock_give(&port->lock);
}

int nic_revoke_begin(struct nic_port *port, uint64_t key)
{
    uint32_t place = (uint32_t)key & PLACE_MASK;
    bmi_lock_take(&port->exposure_lock);
    bool found = key != 0 && place < port->exposure_used &&
                 atomic_load(&port->shared->exposure[place].key) == key;
    if (found)
        atomic_store(&port->shared->exposure[place].key, 0);
    bmi_lock_give(&port->exposure_lock);
    bmi_fence();
    return found ? 0 : -ENOENT;
}

int nic_revoke_end(struct nic_port *port, uint64_t key, uint32_t wait_ms)
{
    if (wait_ms > 0 ? !claims_end(port, key, wait_ms) : !claim_wait(port, key, false))
        return -EBUSY;
    bmi_lock_take(&port->exposure_lock);
    port->exposure_free[port->exposure_free_count++] = (uint32_t)key & PLACE_MASK;
    bmi_lock_give(&port->exposure_lock);
    return 0;
}

int nic_revoke(struct nic_port *port, uint64_t key)
{
    int status = nic_revoke_begin(port, key);
    if (status == 0)
        status = nic_revoke_end(port, key, port->options.revoke_timeout_ms);
    if (status == -EBUSY) {
        nic__log(port, NIC_LOG_WARN, "a stopped peer is in the midst of writing: given up");
        claimers_end(port, key);
        nic_revoke_leave(port, key);
    }
    return status;
}

void nic__exposures_end(struct nic_port *port)
{
    for (uint32_t i = 0; i < port->exposure_used; i++)
        atomic_store(&port->shared->exposure[i].key, 0);
    bmi_fence();
    if (!claims_end(port, 0, port->options.revoke_timeout_ms))
        nic__log(port, NIC_LOG_WARN, "port closed while a stopped peer is writing to it");
}
