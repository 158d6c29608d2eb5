/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.c - the slab of peers, their counters, and their names in the log.
 *
 * `slab_lock`, innermost, guards the slab and the sum of past peers' counters.
 */
#include "bmi/state/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/state/address.h"

enum { CHUNK = 64, CHUNKS = 1 << 16 };

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *slab[CHUNKS];  /* set once, read after slab_count */
static atomic_uint slab_count;     /* slab_lock */
static struct peer *slab_free;     /* slab_lock; linked by wants_next */
static struct bmi_statistics past; /* slab_lock */
static _Atomic uint64_t epochs = 1;
static _Atomic uint64_t given; /* peers that came back; slab_lock */

static bool slab_grow_locked(void)
{
    unsigned count = atomic_load(&slab_count);
    struct peer *chunk = count < CHUNKS ? calloc(CHUNK, sizeof *chunk) : NULL;
    if (chunk == NULL)
        return false;
    for (int i = CHUNK; i-- > 0;) {
        chunk[i].buckets = chunk[i].inline_buckets;
        chunk[i].bucket_count = TAG_QUEUE_BUCKETS;
        chunk[i].wants_next = slab_free;
        slab_free = &chunk[i];
    }
    slab[count] = chunk;
    atomic_store_explicit(&slab_count, count + 1, memory_order_release);
    return true;
}

struct peer *bmi__peer_take(void)
{
    pthread_mutex_lock(&slab_lock);
    struct peer *peer = NULL;
    if (slab_free != NULL || slab_grow_locked()) {
        peer = slab_free;
        slab_free = peer->wants_next;
        peer->wants_next = NULL;
    }
    pthread_mutex_unlock(&slab_lock);
    if (peer != NULL) {
        peer_lock(peer); /* the release of an old message compares the epoch */
        peer->epoch = atomic_fetch_add(&epochs, 1);
        peer->alternative = 0;
        atomic_store(&peer->state, PEER_IDLE);
        peer_unlock(peer);
    }
    return peer;
}

void bmi__peer_retire_locked(struct peer *peer)
{
    pthread_mutex_lock(&slab_lock);
    bmi__peer_statistics(peer, &past);
    atomic_store(&peer->state, PEER_FREE);
    atomic_fetch_add(&given, 1);
    pthread_mutex_unlock(&slab_lock);
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
    pthread_mutex_lock(&slab_lock);
    peer->wants_next = slab_free;
    slab_free = peer;
    pthread_mutex_unlock(&slab_lock);
}

void bmi__peer_each(void (*visit)(struct peer *peer, void *argument), void *argument)
{
    unsigned count = atomic_load_explicit(&slab_count, memory_order_acquire);
    for (unsigned c = 0; c < count; c++)
        for (int i = 0; i < CHUNK; i++)
            if (atomic_load_explicit(&slab[c][i].state, memory_order_relaxed) != PEER_FREE)
                visit(&slab[c][i], argument);
}

void bmi__peers_free(void)
{
    unsigned count = atomic_exchange(&slab_count, 0);
    for (unsigned c = 0; c < count; c++) {
        free(slab[c]);
        slab[c] = NULL;
    }
    slab_free = NULL;
    memset(&past, 0, sizeof past);
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

void bmi__peers_past_unexpected(uint64_t bytes)
{
    pthread_mutex_lock(&slab_lock);
    past.unexpected_waiting--;
    past.unexpected_bytes -= bytes;
    pthread_mutex_unlock(&slab_lock);
}

/* A peer that is given back meanwhile would be in neither sum, and counters would shrink. So this
 * counts again then, but not for ever if peers come and go all the time. */
void bmi__peers_statistics(struct bmi_statistics *statistics)
{
    enum { TRIES = 64 };
    uint64_t before;
    int tries = 0;
    do {
        pthread_mutex_lock(&slab_lock);
        before = atomic_load(&given);
        *statistics = past;
        pthread_mutex_unlock(&slab_lock);
        bmi__peer_each(add_statistics, statistics);
    } while (atomic_load(&given) != before && ++tries < TRIES);
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
