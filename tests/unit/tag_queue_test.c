/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tag_queue_test.c - the table of tags, and the ring of messages on their way: after wrapping,
 * growth, or a withdrawal, a count from the other side must find the right messages.
 */
#include <errno.h>

#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/connection/peer_end.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"
#include "unit.h"

static struct peer *peer;

static void set_up(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
    peer = bmi__peer_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(peer);
    peer_lock(peer);
}

static void tear_down(void)
{
    bmi__tag_queues_free_locked(peer);
    CU_ASSERT_EQUAL(peer->queue_count, 0);
    peer_unlock(peer);
    bmi__peer_give(peer);
    bmi__parts_close(&bmi__default);
}

static uint32_t note(struct tag_queue *queue, bool abort)
{
    uint32_t index = 0;
    CU_ASSERT_TRUE_FATAL(bmi__sent_note_locked(peer, queue, abort, &index));
    return index;
}

/* ---- the table ------------------------------------------------------------------------------ */

static void many_tags_are_found_again(void)
{
    enum { MANY = 5000 };
    static struct tag_queue *queues[MANY];
    for (int i = 0; i < MANY; i++) {
        bmi_msg_tag_t tag = i % 2 ? i * 65537 : -i;
        CU_ASSERT_PTR_NULL(bmi__tag_queue_find_locked(peer, tag));
        queues[i] = bmi__tag_queue_get_locked(peer, tag);
        CU_ASSERT_PTR_NOT_NULL_FATAL(queues[i]);
        CU_ASSERT_EQUAL(queues[i]->tag, tag);
        CU_ASSERT_PTR_EQUAL(bmi__tag_queue_get_locked(peer, tag), queues[i]);
    }
    CU_ASSERT_EQUAL(peer->queue_count, MANY);
    CU_ASSERT_TRUE(peer->bucket_count >= MANY / 4);
    for (int i = 0; i < MANY; i++) {
        CU_ASSERT_PTR_EQUAL(bmi__tag_queue_find_locked(peer, i % 2 ? i * 65537 : -i), queues[i]);
        bmi__tag_queue_release_locked(peer, queues[i]); /* it is empty: the table removes it */
        CU_ASSERT_PTR_NULL(bmi__tag_queue_find_locked(peer, i % 2 ? i * 65537 : -i));
    }
    CU_ASSERT_EQUAL(peer->queue_count, 0);
}

static void a_key_stays_while_something_is_in_it(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 5);
    note(queue, false);
    bmi__tag_queue_release_locked(peer, queue);
    CU_ASSERT_PTR_EQUAL(bmi__tag_queue_find_locked(peer, 5), queue);
    note(queue, true);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 1), 0);
    CU_ASSERT_PTR_EQUAL(bmi__tag_queue_find_locked(peer, 5), queue);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 2), 0); /* its last entry */
    CU_ASSERT_PTR_NULL(bmi__tag_queue_find_locked(peer, 5));
}

/* ---- the ring ------------------------------------------------------------------------------- */

static void counts_of_unseen_messages(void)
{
    struct tag_queue *one = bmi__tag_queue_get_locked(peer, 1),
                     *two = bmi__tag_queue_get_locked(peer, 2);
    for (int i = 0; i < 10; i++)
        note(i % 3 == 0 ? two : one, false);
    CU_ASSERT_EQUAL(one->position, 6);
    CU_ASSERT_EQUAL(two->position, 4);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 4), 0); /* 2 1 1 2 */
    CU_ASSERT_EQUAL(one->unseen, 4);
    CU_ASSERT_EQUAL(two->unseen, 2);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 4), 0); /* reported again */
    CU_ASSERT_EQUAL(one->unseen, 4);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 9), 0);
    CU_ASSERT_EQUAL(two->unseen, 1);
    CU_ASSERT_PTR_NULL(bmi__tag_queue_find_locked(peer, 1));
}

static void more_than_went_is_refused(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 1), -EPROTO);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, UINT32_MAX), -EPROTO);
    note(queue, false);
    note(queue, false);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 3), -EPROTO);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 1), 0);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 0), -EPROTO); /* less than before */
    CU_ASSERT_EQUAL(queue->unseen, 1);
}

static void the_count_wraps(void)
{
    peer->sent_count = peer->sent_seen = UINT32_MAX - 5;
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    for (int i = 0; i < 40; i++) /* the ring grows, too */
        note(queue, false);
    CU_ASSERT_EQUAL(peer->sent_count, 34);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, UINT32_MAX), 0);
    CU_ASSERT_EQUAL(queue->unseen, 35);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 35), -EPROTO);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 33), 0);
    CU_ASSERT_EQUAL(queue->unseen, 1);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 34), 0);
}

static void withdrawn_messages_do_not_count(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    uint32_t index[4];
    for (int i = 0; i < 4; i++)
        index[i] = note(queue, false);
    bmi__sent_withdraw_locked(peer, index[1]);
    CU_ASSERT_EQUAL(queue->unseen, 3);
    CU_ASSERT_EQUAL(queue->position, 3);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 2), 0); /* the void among them */
    CU_ASSERT_EQUAL(queue->unseen, 2);
    bmi__sent_withdraw_locked(peer, index[0]); /* seen long ago: nothing happens */
    CU_ASSERT_EQUAL(queue->unseen, 2);
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 4), 0);
    CU_ASSERT_PTR_NULL(bmi__tag_queue_find_locked(peer, 1));
    bmi__sent_withdraw_locked(peer, index[3]); /* its queue is no more */
}

/* The only message of a tag is withdrawn: its queue goes, and the ring forgets its tag. */
static void the_last_message_withdrawn(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    uint32_t index = note(queue, false);
    bmi__sent_withdraw_locked(peer, index);
    queue = bmi__tag_queue_find_locked(peer, 1);
    if (queue != NULL) {
        CU_ASSERT_EQUAL(queue->unseen, 0);
        bmi__tag_queue_release_locked(peer, queue);
    }
    CU_ASSERT_EQUAL(bmi__sent_seen_locked(peer, 1), 0);
    CU_ASSERT_EQUAL(peer->queue_count, 0);
}

static void unsettled_until_all_was_seen(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    CU_ASSERT_TRUE(bmi__tag_queue_settled_locked(peer, queue, peer->sent_seen));
    note(queue, false);
    CU_ASSERT_TRUE(bmi__tag_queue_settled_locked(peer, queue, 0));
    note(queue, true);
    bmi__tag_queue_unsettle_locked(peer, queue);
    CU_ASSERT_FALSE(bmi__tag_queue_settled_locked(peer, queue, 0));
    CU_ASSERT_FALSE(bmi__tag_queue_settled_locked(peer, queue, 1));
    CU_ASSERT_TRUE(bmi__tag_queue_settled_locked(peer, queue, 2));
}

/* A queue that stays, for a receive say, while others' messages count up by half of all numbers. */
static void settled_half_of_all_numbers_later(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    uint32_t before = peer->sent_count;
    for (uint32_t step = 1; step < 4; step++) {
        peer->sent_count = peer->sent_seen = before + step * 0x55555555u;
        CU_ASSERT_TRUE(bmi__tag_queue_settled_locked(peer, queue, peer->sent_seen));
    }
    peer->sent_count = peer->sent_seen = before;
    bmi__tag_queue_release_locked(peer, queue);
}

/* ---- announcements -------------------------------------------------------------------------- */

static void announce(struct tag_queue *queue, uint32_t position, uint64_t receive)
{
    struct announcement *one = calloc(1, sizeof *one);
    CU_ASSERT_PTR_NOT_NULL_FATAL(one);
    one->position = position;
    one->receive = receive;
    one->charge = 100;
    CU_ASSERT_TRUE(bmi__announcement_charge_locked(peer, one->charge));
    bmi__announcement_insert_locked(peer, queue, one);
}

static bool announced_are(const struct tag_queue *queue, const uint32_t *positions, int count)
{
    const struct announcement *one = queue->announced_first, *last = NULL;
    for (int i = 0; i < count; i++, last = one, one = one->next)
        if (one == NULL || one->position != positions[i])
            return false;
    return one == NULL && queue->announced_last == last;
}

static void announcements_are_kept_by_position(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    const uint32_t order[] = {4, 2, 9, 3, 7};
    for (size_t i = 0; i < COUNT_OF(order); i++)
        announce(queue, order[i], i);
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){2, 3, 4, 7, 9}, 5));
    CU_ASSERT_EQUAL(peer->announcement_bytes, 500);
    bmi__announcement_drop_locked(peer, queue, &queue->announced_first->next);
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){2, 4, 7, 9}, 4));
    bmi__announcement_drop_locked(peer, queue, &queue->announced_first->next->next->next);
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){2, 4, 7}, 3));
    bmi__tag_queue_unsettle_locked(peer, queue);
    CU_ASSERT_TRUE(announced_are(queue, NULL, 0));
    CU_ASSERT_EQUAL(peer->announcement_bytes, 0);
}

static void announced_again_takes_the_place(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    for (uint32_t i = 0; i < 4; i++)
        announce(queue, i, 10 + i);
    announce(queue, 1, 21);
    announce(queue, 3, 23); /* the last one */
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){0, 1, 2, 3}, 4));
    CU_ASSERT_EQUAL(queue->announced_first->next->receive, 21);
    CU_ASSERT_EQUAL(queue->announced_last->receive, 23);
    announce(queue, 4, 24);
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){0, 1, 2, 3, 4}, 5));
    announce(queue, 0, 20);
    CU_ASSERT_EQUAL(queue->announced_first->receive, 20);
    CU_ASSERT_EQUAL(peer->announcement_bytes, 500);
}

/* A peer that is being dialled has none. */
static void a_receive_without_a_link_is_not_announced(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    op->kind = OP_RECV;
    op->tag = 1;
    op->total = 1 << 20;
    atomic_store(&peer->state, PEER_DIALLING);
    bmi__peer_adopt_locked(peer, op);
    CU_ASSERT_EQUAL(bmi__receive_start_locked(peer, op, true), 0);
    CU_ASSERT_EQUAL(op->stage, RECV_POSTED);
    CU_ASSERT_EQUAL(op->flags & OP_ANNOUNCED, 0);
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(queue);
    bmi__receive_unqueue_locked(queue, op);
    bmi__tag_queue_release_locked(peer, queue);
    bmi__op_detach_locked(peer, op);
    bmi__op_give(op);
    atomic_store(&peer->state, PEER_IDLE);
}

static void positions_wrap(void)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, 1);
    const uint32_t order[] = {1, UINT32_MAX, 0, UINT32_MAX - 1};
    for (size_t i = 0; i < COUNT_OF(order); i++)
        announce(queue, order[i], i);
    CU_ASSERT_TRUE(announced_are(queue, (uint32_t[]){UINT32_MAX - 1, UINT32_MAX, 0, 1}, 4));
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"many tags are found again", many_tags_are_found_again},
        {"a queue stays while something is in it", a_key_stays_while_something_is_in_it},
        {"counts of unseen messages", counts_of_unseen_messages},
        {"more than went is refused", more_than_went_is_refused},
        {"the count wraps", the_count_wraps},
        {"withdrawn messages do not count", withdrawn_messages_do_not_count},
        {"the last message withdrawn", the_last_message_withdrawn},
        {"unsettled until all was seen", unsettled_until_all_was_seen},
        {"settled half of all numbers later", settled_half_of_all_numbers_later},
        {"a receive without a link", a_receive_without_a_link_is_not_announced},
        {"announcements are kept by position", announcements_are_kept_by_position},
        {"announced again takes the place", announced_again_takes_the_place},
        {"positions wrap", positions_wrap},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "queues", .pSetUpFunc = set_up, .pTearDownFunc = tear_down, .pTests = tests},
        CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
