/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_priority_test.c - when a link may send with low priority behind a message of high priority,
 * also where the sequence has gone half way round since. The link stands on two ports of the NIC;
 * the core knows nothing of it.
 */
#include "nic/harness.h"

#include "gm.h"

static struct host server, client;
static struct gm_link sender;
static struct gm_state state;
static _Atomic int64_t counters[BMI_COUNT_COUNTERS];

/* The link's last message was of high priority, of that sequence, and is not acknowledged yet. */
static void link_open(uint32_t sequence)
{
    hosts_pair(&server, &client, NULL);
    gm_counters = counters;
    sender = (struct gm_link){.peer = client.peer, .phase = GM_UP, .base = {.state = &state}};
    sender.any_high = true;
    sender.last_high = sequence;
    sender.sent = sequence;
    sender.acknowledged = sequence - 1;
}

static void link_close(void)
{
    host_close(&client);
    host_close(&server);
}

static bool goes(void)
{
    static const uint8_t HEADER[BMI_FRAME_SHORT];
    return gm_send_now(&sender.base, HEADER, "word", 4);
}

/* Advances by so many sequences, all acknowledged but the last. */
static void numbers_pass(uint32_t count)
{
    sender.sent += count;
    CU_ASSERT(gm_send_acknowledged(&sender, sender.sent - 1));
}

static void few_go_behind_one_that_is_not_acknowledged(void)
{
    link_open(7);
    for (int i = 0; i < GM_MIXED_WINDOW; i++)
        CU_ASSERT(goes());
    CU_ASSERT(!goes());
    CU_ASSERT(gm_send_acknowledged(&sender, 7));
    CU_ASSERT(goes());
    link_close();
}

/* Else it would seem to lie ahead, and block the link for the other half of all numbers. */
static void one_that_was_acknowledged_is_forgotten(void)
{
    static const uint32_t FIRST[] = {7, UINT32_MAX - 3, INT32_MAX};
    for (size_t i = 0; i < sizeof(FIRST) / sizeof(*FIRST); i++) {
        link_open(FIRST[i]);
        CU_ASSERT(gm_send_acknowledged(&sender, FIRST[i]));
        CU_ASSERT(goes());
        CU_ASSERT(!sender.any_high);
        numbers_pass(INT32_MAX - 10);
        CU_ASSERT(goes());
        numbers_pass(100);
        CU_ASSERT(goes());
        link_close();
    }
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"few go behind one that is not acknowledged", few_go_behind_one_that_is_not_acknowledged},
        {"one that was acknowledged is forgotten", one_that_was_acknowledged_is_forgotten},
    };
    return CASES_RUN("priorities", CASES);
}
