/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tag_queue.c - a peer's table of tags in progress, and the ring of sent messages that the other
 * side has not yet acknowledged as seen. Both are small for a quiet peer: two buckets and four
 * entries within the peer. Peer's lock.
 *
 * Why the ring. A receive may be announced (RTR) while messages of its tag are under way to it. The
 * announcement says how many messages the receiver has seen and how many receives stand before this
 * one; the sender knows which of its messages had not been seen, and so which message the receive
 * is for. The ring holds the tags of those messages in order, so that a count is all that has to
 * travel.
 *
 * A cancelled receive and an aborted message upset the count: which receive has which place then
 * depends on frames that cross. So the key becomes `unsettled`: announcements are forgotten, and
 * announcements made before the other side had seen all earlier messages are not used. Messages of
 * such a key ask first (RTS).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/peer.h"

/* A program that waits for each answer creates and frees a key for each message, so some are kept.
 * Only a process of one thread keeps them, without a lock; with more threads, malloc has a cache
 * for each. */
enum { SPARES_MOST = 16 };
static struct key *spares;
static unsigned spare_count;

static struct key *memory_take(void)
{
    if (!bmi_one_thread() || spares == NULL)
        return malloc(sizeof(struct key));
    struct key *key = spares;
    spares = key->next;
    spare_count--;
    return key;
}

static void memory_give(struct key *key)
{
    if (!bmi_one_thread() || spare_count == SPARES_MOST) {
        free(key);
        return;
    }
    key->next = spares;
    spares = key;
    spare_count++;
}

void bmi__keys_stop(void)
{
    while (spares != NULL) {
        struct key *key = spares;
        spares = key->next;
        free(key);
    }
    spare_count = 0;
}

static uint32_t bucket_of(const struct peer *peer, bmi_msg_tag_t tag)
{
    return ((uint32_t)tag * 2654435769u) >> 16 & (peer->bucket_count - 1);
}

struct key *bmi__key_find_locked(struct peer *peer, bmi_msg_tag_t tag)
{
    struct key *key = peer->buckets[bucket_of(peer, tag)];
    while (key != NULL && key->tag != tag)
        key = key->next;
    return key;
}

/* Doubles the table when it is crowded. Without memory the table stays as it is. */
static void grow(struct peer *peer)
{
    uint32_t old_count = peer->bucket_count;
    if (peer->key_count <= 2 * old_count || old_count >= 1 << 16)
        return;
    struct key **old = peer->buckets;
    struct key **buckets = calloc((size_t)old_count * 4, sizeof(struct key *));
    if (buckets == NULL)
        return;
    peer->buckets = buckets;
    peer->bucket_count = old_count * 4;
    for (uint32_t i = 0; i < old_count; i++)
        for (struct key *key = old[i], *next; key != NULL; key = next) {
            uint32_t bucket = bucket_of(peer, key->tag);
            next = key->next;
            key->next = buckets[bucket];
            buckets[bucket] = key;
        }
    if (old != peer->inline_buckets)
        free(old);
    else
        memset(old, 0, sizeof peer->inline_buckets);
}

struct key *bmi__key_get_locked(struct peer *peer, bmi_msg_tag_t tag)
{
    struct key *key = bmi__key_find_locked(peer, tag);
    if (key != NULL)
        return key;
    key = memory_take();
    if (key == NULL)
        return NULL;
    peer->key_count++;
    grow(peer);
    uint32_t bucket = bucket_of(peer, tag);
    *key = (struct key){.next = peer->buckets[bucket], .tag = tag, .settled = peer->sent_seen};
    peer->buckets[bucket] = key;
    return key;
}

void bmi__announcement_insert_locked(struct peer *peer, struct key *key, struct announcement *one)
{
    struct announcement **place = &key->announced_first;
    if (key->announced_last != NULL && (int32_t)(one->position - key->announced_last->position) > 0)
        place = &key->announced_last->next;
    while (*place != NULL && (int32_t)((*place)->position - one->position) < 0)
        place = &(*place)->next;
    if (*place != NULL && (*place)->position == one->position)
        bmi__announcement_drop_locked(peer, key, place); /* announced again */
    one->next = *place;
    *place = one;
    if (one->next == NULL)
        key->announced_last = one;
}

void bmi__announcement_drop_locked(struct peer *peer, struct key *key, struct announcement **place)
{
    struct announcement *one = *place;
    *place = one->next;
    if (key->announced_last == one) {
        key->announced_last = key->announced_first;
        while (key->announced_last != NULL && key->announced_last->next != NULL)
            key->announced_last = key->announced_last->next;
    }
    bmi__announcement_return_locked(peer, one->charge);
    free(one);
}

static void key_free(struct peer *peer, struct key *key)
{
    while (key->announced_first != NULL)
        bmi__announcement_drop_locked(peer, key, &key->announced_first);
    memory_give(key);
    peer->key_count--;
}

void bmi__key_release_locked(struct peer *peer, struct key *key)
{
    if (key->receives.first != NULL || key->pending.first != NULL || key->unmatched_first != NULL ||
        key->announced_first != NULL || key->unseen > 0 || key->unseen_aborts > 0)
        return;
    struct key **place = &peer->buckets[bucket_of(peer, key->tag)];
    while (*place != key)
        place = &(*place)->next;
    *place = key->next;
    key_free(peer, key);
}

/* Nothing is in it. */
static void ring_forget(struct peer *peer)
{
    if (peer->sent != peer->inline_sent)
        free(peer->sent);
    peer->sent = NULL;
    peer->sent_size = 0;
}

void bmi__keys_free_locked(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->bucket_count; i++)
        while (peer->buckets[i] != NULL) {
            struct key *key = peer->buckets[i];
            peer->buckets[i] = key->next;
            key_free(peer, key);
        }
    if (peer->buckets != peer->inline_buckets)
        free(peer->buckets);
    peer->buckets = peer->inline_buckets;
    peer->bucket_count = KEY_BUCKETS;
    ring_forget(peer);
    peer->sent_count = peer->sent_seen = 0;
    peer->seen = peer->seen_reported = 0;
}

/* ---- the ring ------------------------------------------------------------------------------- */

static struct sent_entry *entry_at(struct peer *peer, uint32_t index)
{
    return &peer->sent[index & (peer->sent_size - 1)];
}

static bool ring_grow(struct peer *peer)
{
    if (peer->sent_size == 0) {
        peer->sent = peer->inline_sent;
        peer->sent_size = SENT_INLINE;
        return true;
    }
    uint32_t size = peer->sent_size * 4;
    struct sent_entry *ring = malloc(size * sizeof *ring);
    if (ring == NULL)
        return false;
    for (uint32_t i = peer->sent_seen; i != peer->sent_count; i++)
        ring[i & (size - 1)] = *entry_at(peer, i);
    if (peer->sent != peer->inline_sent)
        free(peer->sent);
    peer->sent = ring;
    peer->sent_size = size;
    return true;
}

#define TOKEN_SEEN (UINT64_C(1) << 63) /* operations' ids are positive */

bool bmi__sent_full_locked(struct peer *peer)
{
    if (peer->sent_count - peer->sent_seen < SENT_MOST)
        return false;
    if (peer->flags & PEER_ASKED_SEEN)
        return true;
    peer->flags |= PEER_ASKED_SEEN;
    struct wire_header ping = {.type = WIRE_PING, .source = TOKEN_SEEN | peer->sent_count};
    bmi__control_send_locked(peer, ping, NULL, 0);
    return true;
}

bool bmi__sent_room_locked(struct peer *peer)
{
    if (!(peer->flags & PEER_ASKED_SEEN) || peer->sent_count - peer->sent_seen > SENT_MOST / 2)
        return false;
    peer->flags &= ~(uint32_t)PEER_ASKED_SEEN;
    return true;
}

int bmi__sent_told_locked(struct peer *peer, uint64_t token)
{
    bool told = (int32_t)(peer->sent_seen - (uint32_t)token) >= 0;
    return (token & TOKEN_SEEN) && !told ? -EPROTO : 0;
}

bool bmi__sent_note_locked(struct peer *peer, struct key *key, bool abort, uint32_t *index)
{
    if (peer->sent_count - peer->sent_seen == peer->sent_size && !ring_grow(peer))
        return false;
    *entry_at(peer, peer->sent_count) =
        (struct sent_entry){.tag = key->tag, .what = abort ? SENT_ABORT : SENT_MESSAGE};
    *index = peer->sent_count++;
    if (abort) {
        key->unseen_aborts++;
    } else {
        key->unseen++;
        key->position++;
    }
    return true;
}

void bmi__sent_withdraw_locked(struct peer *peer, uint32_t index)
{
    if (index - peer->sent_seen >= peer->sent_count - peer->sent_seen)
        return;
    struct sent_entry *entry = entry_at(peer, index);
    struct key *key = bmi__key_find_locked(peer, entry->tag);
    entry->what = SENT_NOTHING;
    key->unseen--;
    key->position--;
    key->asked = false;
    peer->flags |= PEER_FORGOT; /* announced for this message, now the next one's receive */
    if (key->unseen > 0)
        bmi__key_unsettle_locked(peer, key); /* others may use receives that stand behind it */
    bmi__key_release_locked(peer, key);
}

void bmi__key_unsettle_locked(struct peer *peer, struct key *key)
{
    if (key->announced_first != NULL)
        peer->flags |= PEER_FORGOT;
    while (key->announced_first != NULL)
        bmi__announcement_drop_locked(peer, key, &key->announced_first);
    key->asked = false; /* the answer may come too early */
    key->settled = peer->sent_count;
}

/* Counted back from the last message, since the numbers wrap: `seen` is among the noted messages,
 * and a key may live for more than half of all numbers. */
bool bmi__key_settled_locked(const struct peer *peer, const struct key *key, uint32_t seen)
{
    return peer->sent_count - key->settled >= peer->sent_count - seen;
}

int bmi__sent_seen_locked(struct peer *peer, uint32_t seen)
{
    if (seen == peer->sent_seen)
        return 0;
    if (seen - peer->sent_seen > peer->sent_count - peer->sent_seen)
        return -EPROTO;
    while (peer->sent_seen != seen) {
        struct sent_entry *entry = entry_at(peer, peer->sent_seen++);
        if (entry->what == SENT_NOTHING)
            continue;
        struct key *key = bmi__key_find_locked(peer, entry->tag);
        if (bmi__key_settled_locked(peer, key, peer->sent_seen))
            key->settled = peer->sent_seen; /* never all numbers behind */
        if (entry->what == SENT_ABORT)
            key->unseen_aborts--;
        else
            key->unseen--;
        bmi__key_release_locked(peer, key);
    }
    if (peer->sent_seen == peer->sent_count && peer->sent_size > SENT_INLINE)
        ring_forget(peer);
    return 0;
}
