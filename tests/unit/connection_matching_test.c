/* SPDX-License-Identifier: BSD-3-Clause
 *
 * connection_matching_test.c - peers are found by one key at a time, among thousands.
 */
#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/connection/matching.h"

#include "bmi/connection/peer_end.h"
#include "bmi/state/peer.h"
#include "unit.h"

enum { PEERS = 3000, MATCHING_OTHER = MATCHING_INCARNATION + 1 };

static struct peer *peers[PEERS];

static void set(int i, enum matching kind, int number)
{
    peer_lock(peers[i]);
    bmi__matching_set_locked(peers[i], kind, &number, sizeof number);
    peer_unlock(peers[i]);
}

static struct peer *find(enum matching kind, int number)
{
    struct peer *found[2];
    unsigned count = bmi__matching_find(&bmi__default, kind, &number, sizeof number, found, 2);
    CU_ASSERT_TRUE(count <= 1);
    return count == 1 ? found[0] : NULL;
}

static void found_by_one_thing_at_a_time(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
    CU_ASSERT_PTR_NULL(find(MATCHING_NAME, 1)); /* before there is any */
    for (int i = 0; i < PEERS; i++) {
        peers[i] = bmi__peer_take(&bmi__default);
        CU_ASSERT_PTR_NOT_NULL_FATAL(peers[i]);
        set(i, MATCHING_NAME, i);
    }
    for (int i = 0; i < PEERS; i++) {
        CU_ASSERT_PTR_EQUAL(find(MATCHING_NAME, i), peers[i]);
        CU_ASSERT_PTR_NULL(find((enum matching)MATCHING_OTHER, i));
    }
    CU_ASSERT_PTR_NULL(find(MATCHING_NAME, PEERS));
    for (int i = 0; i < PEERS; i += 2)
        set(i, MATCHING_INCARNATION, i + 1);
    for (int i = 0; i < PEERS; i++) {
        CU_ASSERT_PTR_EQUAL(find(MATCHING_NAME, i), i % 2 == 0 ? NULL : peers[i]);
        CU_ASSERT_PTR_EQUAL(find(MATCHING_INCARNATION, i), i % 2 == 0 ? NULL : peers[i - 1]);
    }
    for (int i = 0; i < PEERS; i += 3) {
        peer_lock(peers[i]);
        bmi__matching_clear_locked(peers[i]);
        bmi__matching_clear_locked(peers[i]); /* again: nothing */
        peer_unlock(peers[i]);
    }
    for (int i = 0; i < PEERS; i++) {
        bool there = i % 3 != 0;
        CU_ASSERT_PTR_EQUAL(find(i % 2 == 0 ? MATCHING_INCARNATION : MATCHING_NAME,
                                 i % 2 == 0 ? i + 1 : i),
                            there ? peers[i] : NULL);
    }
    for (int i = 0; i < PEERS; i++)
        bmi__peer_give(peers[i]); /* found no more */
    for (int i = 0; i < PEERS; i++)
        CU_ASSERT_PTR_NULL(find(MATCHING_NAME, i));
    bmi__parts_close(&bmi__default);
}

/* Several peers with the same key: all are returned, as far as there is room. */
static void several_by_the_same(void)
{
    struct peer *found[4];
    int number = 7;
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
    for (int i = 0; i < 3; i++) {
        peers[i] = bmi__peer_take(&bmi__default);
        CU_ASSERT_PTR_NOT_NULL_FATAL(peers[i]);
        set(i, (enum matching)MATCHING_OTHER, number);
    }
    CU_ASSERT_EQUAL(bmi__matching_find(&bmi__default, (enum matching)MATCHING_OTHER, &number,
                                       sizeof number, found, 4),
                    3);
    CU_ASSERT_TRUE(found[0] != found[1] && found[1] != found[2] && found[0] != found[2]);
    CU_ASSERT_EQUAL(bmi__matching_find(&bmi__default, (enum matching)MATCHING_OTHER, &number,
                                       sizeof number, found, 2),
                    2);
    for (int i = 0; i < 3; i++)
        bmi__peer_give(peers[i]);
    bmi__parts_close(&bmi__default);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"found by one thing at a time", found_by_one_thing_at_a_time},
        {"several by the same", several_by_the_same},
        CU_TEST_INFO_NULL,
    };
    return unit_run("connection_matching", tests);
}
