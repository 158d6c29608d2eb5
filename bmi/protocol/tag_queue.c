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
 * depends on frames that cross. So the queue becomes `unsettled`: announcements are forgotten, and
 * announcements made before the other side had seen all earlier messages are not used. Messages of
 * such a queue ask first (RTS).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/peer.h"

static uint32_t bucket_of(const struct peer *peer, wire_tag tag)
{
    return ((uint32_t)tag * 2654435769u + (uint32_t)wire_tag_space(tag)) >> 16 &
           (peer->bucket_count - 1);
}

struct tag_queue *bmi__tag_queue_find_locked(struct peer *peer, wire_tag tag)
{
    struct tag_queue *queue = peer->buckets[bucket_of(peer, tag)];
    while (queue != NULL && queue->tag != tag)
        queue = queue->next;
    return queue;
}

/* Doubles the table when it is crowded. Without memory the table stays as it is. */
static void grow(struct peer *peer)
{
    uint32_t old_count = peer->bucket_count;
    if (peer->queue_count <= 2 * old_count || old_count >= 1 << 16)
        return;
    struct tag_queue **old = peer->buckets;
    struct tag_queue **buckets = calloc((size_t)old_count * 4, sizeof(struct tag_queue *));
    if (buckets == NULL)
        return;
    peer->buckets = buckets;
    peer->bucket_count = old_count * 4;
    for (uint32_t i = 0; i < old_count; i++)
        for (struct tag_queue *queue = old[i], *next; queue != NULL; queue = next) {
            uint32_t bucket = bucket_of(peer, queue->tag);
            next = queue->next;
            queue->next = buckets[bucket];
            buckets[bucket] = queue;
        }
    if (old != peer->inline_buckets)
        free(old);
    else
        memset(old, 0, sizeof peer->inline_buckets);
}

struct tag_queue *bmi__tag_queue_get_locked(struct peer *peer, wire_tag tag)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, tag);
    if (queue != NULL)
        return queue;
    queue = malloc(sizeof(*queue));
    if (queue == NULL)
        return NULL;
    peer->queue_count++;
    grow(peer);
    uint32_t bucket = bucket_of(peer, tag);
    *queue =
        (struct tag_queue){.next = peer->buckets[bucket], .tag = tag, .settled = peer->sent_seen};
    peer->buckets[bucket] = queue;
    return queue;
}

void bmi__announcement_insert_locked(struct peer *peer, struct tag_queue *queue,
                                     struct announcement *one)
{
    struct announcement **place = &queue->announced_first;
    if (queue->announced_last != NULL &&
        (int32_t)(one->position - queue->announced_last->position) > 0)
        place = &queue->announced_last->next;
    while (*place != NULL && (int32_t)((*place)->position - one->position) < 0)
        place = &(*place)->next;
    if (*place != NULL && (*place)->position == one->position)
        bmi__announcement_drop_locked(peer, queue, place); /* announced again */
    one->next = *place;
    *place = one;
    if (one->next == NULL)
        queue->announced_last = one;
}

void bmi__announcement_drop_locked(struct peer *peer, struct tag_queue *queue,
                                   struct announcement **place)
{
    struct announcement *one = *place;
    *place = one->next;
    if (queue->announced_last == one) {
        queue->announced_last = queue->announced_first;
        while (queue->announced_last != NULL && queue->announced_last->next != NULL)
            queue->announced_last = queue->announced_last->next;
    }
    bmi__announcement_return_locked(peer, one->charge);
    free(one);
}

static void queue_free(struct peer *peer, struct tag_queue *queue)
{
    while (queue->announced_first != NULL)
        bmi__announcement_drop_locked(peer, queue, &queue->announced_first);
    free(queue);
    peer->queue_count--;
}

void bmi__tag_queue_release_locked(struct peer *peer, struct tag_queue *queue)
{
    if (queue->receives.first != NULL || queue->pending.first != NULL ||
        queue->unmatched_first != NULL || queue->announced_first != NULL || queue->unseen > 0 ||
        queue->unseen_aborts > 0)
        return;
    struct tag_queue **place = &peer->buckets[bucket_of(peer, queue->tag)];
    while (*place != queue)
        place = &(*place)->next;
    *place = queue->next;
    queue_free(peer, queue);
}

/* Nothing is in it. */
static void ring_forget(struct peer *peer)
{
    if (peer->sent != peer->inline_sent)
        free(peer->sent);
    peer->sent = NULL;
    peer->sent_size = 0;
}

void bmi__tag_queues_free_locked(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->bucket_count; i++)
        while (peer->buckets[i] != NULL) {
            struct tag_queue *queue = peer->buckets[i];
            peer->buckets[i] = queue->next;
            queue_free(peer, queue);
        }
    if (peer->buckets != peer->inline_buckets)
        free(peer->buckets);
    peer->buckets = peer->inline_buckets;
    peer->bucket_count = TAG_QUEUE_BUCKETS;
    ring_forget(peer);
    peer->sent_count = peer->sent_seen = 0;
    peer->seen = peer->seen_reported = 0;
}

/* ---- the ring ------------------------------------------------------------------------------- */

static struct sent_entry *entry_at(struct peer *peer, uint32_t index)
{
    return &peer->sent[index & (peer->sent_size - 1)];
}

static struct tag_queue *queue_of(struct peer *peer, const struct sent_entry *entry)
{
    return bmi__tag_queue_find_locked(peer, wire_tag_of(entry->space, entry->tag));
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

bool bmi__sent_note_locked(struct peer *peer, struct tag_queue *queue, bool abort, uint32_t *index)
{
    if (peer->sent_count - peer->sent_seen == peer->sent_size && !ring_grow(peer))
        return false;
    *entry_at(peer, peer->sent_count) =
        (struct sent_entry){.tag = (int32_t)queue->tag,
                            .space = wire_tag_space(queue->tag) & 15,
                            .what = abort ? SENT_ABORT : SENT_MESSAGE};
    *index = peer->sent_count++;
    if (abort) {
        queue->unseen_aborts++;
    } else {
        queue->unseen++;
        queue->position++;
    }
    return true;
}

void bmi__sent_withdraw_locked(struct peer *peer, uint32_t index)
{
    if (index - peer->sent_seen >= peer->sent_count - peer->sent_seen)
        return;
    struct sent_entry *entry = entry_at(peer, index);
    struct tag_queue *queue = queue_of(peer, entry);
    entry->what = SENT_NOTHING;
    queue->unseen--;
    queue->position--;
    queue->asked = false;
    /* the announcement that this message used is lost; its receive is now for the next message */
    peer->flags |= PEER_FORGOT;
    if (queue->unseen > 0)
        bmi__tag_queue_unsettle_locked(peer,
                                       queue); /* others may use receives that stand behind it */
    bmi__tag_queue_release_locked(peer, queue);
}

void bmi__tag_queue_unsettle_locked(struct peer *peer, struct tag_queue *queue)
{
    if (queue->announced_first != NULL)
        peer->flags |= PEER_FORGOT;
    while (queue->announced_first != NULL)
        bmi__announcement_drop_locked(peer, queue, &queue->announced_first);
    queue->asked = false; /* the answer may come too early */
    queue->settled = peer->sent_count;
}

/* Counted back from the last message, since the numbers wrap: `seen` is among the noted messages,
 * and a queue may live for more than half of all numbers. */
bool bmi__tag_queue_settled_locked(const struct peer *peer, const struct tag_queue *queue,
                                   uint32_t seen)
{
    return peer->sent_count - queue->settled >= peer->sent_count - seen;
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
        struct tag_queue *queue = queue_of(peer, entry);
        if (bmi__tag_queue_settled_locked(peer, queue, peer->sent_seen))
            queue->settled = peer->sent_seen; /* never all numbers behind */
        if (entry->what == SENT_ABORT)
            queue->unseen_aborts--;
        else
            queue->unseen--;
        bmi__tag_queue_release_locked(peer, queue);
    }
    if (peer->sent_seen == peer->sent_count && peer->sent_size > SENT_INLINE)
        ring_forget(peer);
    return 0;
}
