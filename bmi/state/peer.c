/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.c - the slab of peers, their counters, and their names in the log.
 *
 * `lock` of struct bmi__peers, innermost, guards the slab and the sum of past peers' counters.
 */
#include "bmi/state/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/state/address.h"

enum { CHUNK = 64 };

struct chunk {
    _Atomic(struct chunk *) next;
    struct peer peers[CHUNK];
};

struct bmi__peers {
    pthread_mutex_t lock;
    _Atomic(struct chunk *) first; /* the slab; read without the lock */
    _Atomic(struct chunk *) *end;  /* lock: the last chunk's `next` */
    struct peer *free;             /* lock; linked by wants_next */
    struct bmi_statistics past;    /* lock */
    _Atomic uint64_t epochs;       /* of the next peer */
    _Atomic uint64_t given;        /* peers that came back; lock */
};

static bool slab_grow_locked(struct bmi_instance *instance)
{
    struct bmi__peers *peers = instance->peers;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        return false;
    for (int i = CHUNK; i-- > 0;) {
        struct peer *peer = &chunk->peers[i];
        peer->instance = instance;
        peer->buckets = peer->inline_buckets;
        peer->bucket_count = TAG_QUEUE_BUCKETS;
        peer->wants_next = peers->free;
        peers->free = peer;
    }
    atomic_store_explicit(peers->end, chunk, memory_order_release);
    peers->end = &chunk->next;
    return true;
}

struct peer *bmi__peer_take(struct bmi_instance *instance)
{
    struct bmi__peers *peers = instance->peers;
    pthread_mutex_lock(&peers->lock);
    struct peer *peer = NULL;
    if (peers->free != NULL || slab_grow_locked(instance)) {
        peer = peers->free;
        peers->free = peer->wants_next;
        peer->wants_next = NULL;
    }
    pthread_mutex_unlock(&peers->lock);
    if (peer != NULL) {
        peer_lock(peer); /* the release of an old message compares the epoch */
        peer->epoch = atomic_fetch_add(&peers->epochs, 1);
        peer->alternative = 0;
        atomic_store(&peer->state, PEER_IDLE);
        peer_unlock(peer);
    }
    return peer;
}

void bmi__peer_retire_locked(struct peer *peer)
{
    struct bmi__peers *peers = peer->instance->peers;
    pthread_mutex_lock(&peers->lock);
    bmi__peer_statistics(peer, &peers->past);
    atomic_store(&peer->state, PEER_FREE);
    atomic_fetch_add(&peers->given, 1);
    pthread_mutex_unlock(&peers->lock);
}

void bmi__peer_clear_locked(struct peer *peer)
{
    size_t head = offsetof(struct peer, link);
    memset((char *)peer + head, 0, sizeof *peer - head);
    peer->buckets = peer->inline_buckets;
    peer->bucket_count = TAG_QUEUE_BUCKETS;
}

void bmi__peer_put(struct peer *peer)
{
    struct bmi__peers *peers = peer->instance->peers;
    pthread_mutex_lock(&peers->lock);
    peer->wants_next = peers->free;
    peers->free = peer;
    pthread_mutex_unlock(&peers->lock);
}

void bmi__peer_each(struct bmi_instance *instance, void (*visit)(struct peer *peer, void *argument),
                    void *argument)
{
    struct bmi__peers *peers = instance->peers;
    struct chunk *chunk = atomic_load_explicit(&peers->first, memory_order_acquire);
    for (; chunk != NULL; chunk = atomic_load_explicit(&chunk->next, memory_order_acquire))
        for (int i = 0; i < CHUNK; i++)
            if (atomic_load_explicit(&chunk->peers[i].state, memory_order_relaxed) != PEER_FREE)
                visit(&chunk->peers[i], argument);
}

int bmi__peers_open(struct bmi_instance *instance)
{
    struct bmi__peers *peers = calloc(1, sizeof *peers);
    if (peers == NULL)
        return -ENOMEM;
    pthread_mutex_init(&peers->lock, NULL);
    peers->end = &peers->first;
    atomic_init(&peers->epochs, 1);
    instance->peers = peers;
    return 0;
}

void bmi__peers_close(struct bmi_instance *instance)
{
    struct bmi__peers *peers = instance->peers;
    if (peers == NULL)
        return;
    for (struct chunk *chunk = atomic_load(&peers->first), *next; chunk != NULL; chunk = next) {
        next = atomic_load(&chunk->next);
        free(chunk);
    }
    free(peers);
    instance->peers = NULL;
}

/* ---- statistics ----------------------------------------------------------------------------- */

void bmi__peer_statistics(const struct peer *peer, struct bmi_statistics *statistics)
{
    const struct peer_counters *from = &peer->counters;
#define ADD(field) statistics->field += from->field
    ADD(messages_sent);
    ADD(messages_received);
    ADD(bytes_sent);
    ADD(bytes_received);
    ADD(unexpected_sent);
    ADD(unexpected_received);
    ADD(eager_sent);
    ADD(rendezvous_sent);
    ADD(announced_sent);
    ADD(announcements);
    ADD(puts);
    ADD(put_bytes);
    ADD(gets);
    ADD(get_bytes);
    ADD(copies);
    ADD(copied_bytes);
    ADD(credit_waits);
    ADD(connects);
    ADD(reconnects);
    statistics->accepts += (peer->flags & PEER_HELLO_DONE) != 0;
    ADD(errors);
    ADD(cancels);
    ADD(outstanding_sends);
    ADD(outstanding_receives);
    ADD(unmatched_messages);
    ADD(unmatched_bytes);
    ADD(unexpected_waiting);
    ADD(unexpected_bytes);
#undef ADD
}

static void add_statistics(struct peer *peer, void *statistics)
{
    peer_lock(peer);
    if (peer->state != PEER_FREE)
        bmi__peer_statistics(peer, statistics);
    peer_unlock(peer);
}

void bmi__peers_past_unexpected(struct bmi_instance *instance, uint64_t bytes)
{
    struct bmi__peers *peers = instance->peers;
    pthread_mutex_lock(&peers->lock);
    peers->past.unexpected_waiting--;
    peers->past.unexpected_bytes -= bytes;
    pthread_mutex_unlock(&peers->lock);
}

/* A peer that is given back meanwhile would be in neither sum, and counters would shrink. So this
 * counts again then, but not for ever if peers come and go all the time. */
void bmi__peers_statistics(struct bmi_instance *instance, struct bmi_statistics *statistics)
{
    struct bmi__peers *peers = instance->peers;
    enum { TRIES = 64 };
    uint64_t before;
    int tries = 0;
    do {
        pthread_mutex_lock(&peers->lock);
        before = atomic_load(&peers->given);
        *statistics = peers->past;
        pthread_mutex_unlock(&peers->lock);
        bmi__peer_each(instance, add_statistics, statistics);
    } while (atomic_load(&peers->given) != before && ++tries < TRIES);
}

/* ---- names ---------------------------------------------------------------------------------- */

/* The name of an accepted peer: its host, and what distinguishes it from others there. */
static const char *accepted_name(const char *host, const struct bmi_link *link)
{
    static _Thread_local char name[64];
    if (link == NULL || link->host_number == 0)
        return host;
    link->method->hosts->process_name(host, link->host_number, name, sizeof name);
    return name;
}

const char *bmi__peer_name(const struct peer *peer)
{
    for (struct address *a = peer->address; a != NULL; a = a->alias_next)
        if (a->string != NULL)
            return a->string;
    if (peer->address != NULL && peer->address->host != NULL)
        return accepted_name(peer->address->host->numeric, peer->link);
    return peer->link != NULL && peer->link->host != NULL
               ? accepted_name(peer->link->host, peer->link)
               : "an unknown host";
}
