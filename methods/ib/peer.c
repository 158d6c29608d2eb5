/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.c - the names of other processes' endpoints in the address vector. The links to one process
 * share a name, and the provider's connection that stands behind it. The poller runs all of it.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ib.h"

static struct ib_peer **peer_find(struct ib_state *state, const uint8_t *name, uint32_t size)
{
    struct ib_peer **place = &state->peers;
    while (*place && ((*place)->size != size || memcmp((*place)->name, name, size) != 0))
        place = &(*place)->next;
    return place;
}

static void peer_insert(struct ib_state *state, struct ib_peer *peer)
{
    peer->next = state->peers;
    state->peers = peer;
}

/* Whether the name can be removed from the vector, and its connection with it. libfabric 1.17's rxm
 * crashes when it has to cut a connection that failed before it was being made. If a post to the
 * peer has failed, one more post decides: either rxm connects again, or it reports that it cannot.
 * The message has a token of no link. fabric_lock. */
static bool peer_removable_locked(const struct ib_fabric *fabric, const struct ib_peer *peer)
{
    enum { LOOKS = 2 }; /* the first may only find that the last attempt was refused */
    static const uint8_t nobodys[IB_PREFIX];
    size_t size = sizeof(nobodys) < fabric->inject_max ? sizeof(nobodys) : fabric->inject_max;
    ssize_t status = -FI_EAGAIN;
    if (!fabric->breaks || !peer->doubtful)
        return true;
    for (int i = 0; i < LOOKS && status == -FI_EAGAIN; i++)
        status = fi_inject(peer->doubtful->id, nobodys, size, peer->address);
    return status == 0 || status == -FI_EAGAIN;
}

/* Removes the name from the vector. Returns false if it stays: then there is no connection. */
static bool peer_remove(struct ib_state *state, struct ib_peer *peer)
{
    struct ib_fabric *fabric = state->fabric;
    ib_lock(&state->fabric_lock);
    bool removable = peer_removable_locked(fabric, peer);
    if (removable)
        fi_av_remove(fabric->addresses, &peer->address, 1, 0);
    ib_unlock(&state->fabric_lock);
    return removable;
}

/* If more than `most` names are unused, frees the one that was not used for the longest time. A
 * name that has to stay in the vector is kept as if it had just been used: inserted a second time
 * it would have two users there, and would never be removed. */
static void oldest_forget(struct ib_state *state, uint32_t most)
{
    struct ib_peer **oldest = NULL;
    uint32_t unused = 0;
    for (struct ib_peer **at = &state->peers; *at; at = &(*at)->next)
        if ((*at)->users == 0) {
            oldest = at;
            unused++;
        }
    if (unused <= most)
        return;
    struct ib_peer *peer = *oldest;
    *oldest = peer->next;
    if (peer_remove(state, peer))
        free(peer);
    else
        peer_insert(state, peer);
}

static int name_insert(struct ib_state *state, struct ib_peer *peer)
{
    ib_lock(&state->fabric_lock);
    int inserted = fi_av_insert(state->fabric->addresses, peer->name, 1, &peer->address, 0, NULL);
    ib_unlock(&state->fabric_lock);
    return inserted == 1 ? 0 : inserted == -FI_ENOMEM ? -ENOMEM : -EADDRNOTAVAIL;
}

/* Without memory to map a peer's, or for a connection, libfabric crashes, or fails much later and
 * without a reason. So the allocation is tried first. */
static int room_check(const struct ib_state *state, const char *name)
{
    size_t size = IB_CONNECTION_ROOM;
    if (state->fabric->shared) {
        const char *file = strstr(name, "bmi-");
        int fd = file ? shm_open(file, O_RDWR | O_CLOEXEC, 0) : -1;
        if (fd < 0)
            return !file || errno == ENOENT ? -EADDRNOTAVAIL : -errno;
        size = IB_PEER_ROOM + (size_t)lseek(fd, 0, SEEK_END);
        close(fd);
    }
    void *room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return -ENOMEM;
    munmap(room, size);
    return 0;
}

/* Adds a peer that is not known yet. shm has room for a number of names; idle ones count. */
static int peer_new(struct ib_state *state, const uint8_t *name, uint32_t size,
                    struct ib_peer **out)
{
    struct ib_peer *peer = malloc(sizeof(*peer) + size);
    if (!peer)
        return -ENOMEM;
    int status = room_check(state, (const char *)name);
    if (status) {
        free(peer);
        return status;
    }
    *peer = (struct ib_peer){.size = size};
    memcpy(peer->name, name, size);
    status = name_insert(state, peer);
    if (status && state->fabric->shared) {
        oldest_forget(state, 0);
        status = name_insert(state, peer);
    }
    if (status)
        free(peer);
    else
        *out = peer;
    return status;
}

int ib_peer_get(struct ib_state *state, const uint8_t *name, uint32_t size, struct ib_peer **out)
{
    struct ib_peer **place = peer_find(state, name, size), *peer = *place;
    int status = 0;
    if (peer)
        *place = peer->next;
    else
        status = peer_new(state, name, size, &peer);
    if (status)
        return status;
    peer->users++;
    peer_insert(state, peer);
    *out = peer;
    return 0;
}

/* A link that uses the peer, was shut down, and is not taken down; NULL: none. */
static struct ib_link *peer_link(struct ib_state *state, const struct ib_peer *peer)
{
    struct ib_link *link;
    ib_lock(&state->list_lock);
    cds_hlist_for_each_entry_2(link, &state->links, listed)
        if (link->peer == peer && link->phase == IB_ENDING && !link->taken_down)
            break;
    ib_unlock(&state->list_lock);
    return link;
}

void ib_peer_break(struct ib_state *state, struct ib_peer *peer, int status)
{
    struct ib_link *link;
    if (peer->broken || peer->users == 0)
        return;
    peer->broken = true;
    peer->users++;
    ib_lock(&state->list_lock);
    cds_hlist_for_each_entry_2(link, &state->links, listed)
        if (link->peer == peer)
            ib_link_shut_down(link, status); /* after this no thread posts */
    ib_unlock(&state->list_lock);
    bool removed = peer_remove(state, peer);
    if (removed)
        *peer_find(state, peer->name, peer->size) = peer->next;
    while ((link = peer_link(state, peer)) != NULL)
        ib_link_take_down(link);
    peer->broken = removed;
    ib_peer_put(state, peer);
}

/* Drops one user of the name. Without users it is kept for a while: a provider's connection may
 * already carry the messages of a new link. Over shm there are no connections; a name takes one of
 * few places, and keeps a dead process's memory mapped. So it is removed at once. Two names are
 * freed for each new one, so that names that had to stay go later. */
void ib_peer_put(struct ib_state *state, struct ib_peer *peer)
{
    if (--peer->users > 0)
        return;
    if (peer->broken) {
        free(peer);
        return;
    }
    *peer_find(state, peer->name, peer->size) = peer->next;
    if (state->fabric->shared && peer_remove(state, peer)) {
        free(peer);
        return;
    }
    peer_insert(state, peer);
    for (int i = 0; i < 2; i++)
        oldest_forget(state, IB_IDLE_PEERS);
}
