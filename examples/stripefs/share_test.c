/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share_test.c - the choice of the next request when all places are in use.
 */
#include <stdlib.h>

#include "server.h"
#include "tests/unit/unit.h"

enum { BUSY = 1, OTHER = 2, THIRD = 3 }; /* clients */

static struct shares shares;
static struct turn *served[THIRD + 4][64]; /* by client */
static int served_count[THIRD + 4];

static BMI_addr_t came; /* the client of the last turn that came */

static void serve(struct turn *turn)
{
    came = turn->client;
    served[turn->client][served_count[turn->client]++] = turn;
}

/* Returns 1: it is served now; 0: it waits; or an error. */
static int admit_from(BMI_addr_t client, const char *host)
{
    struct turn *turn = calloc(1, sizeof *turn);
    turn->client = client;
    int result = shares_admit(&shares, turn, host);
    return result < 0 ? result : turn->came;
}

static int admit(BMI_addr_t client)
{
    return admit_from(client, "host");
}

/* A request of `client` has been served. Returns the client whose request comes next, 0: none. */
static BMI_addr_t leave(BMI_addr_t client, bool stalled)
{
    CU_ASSERT_TRUE_FATAL(served_count[client] > 0);
    struct turn *turn = served[client][--served_count[client]];
    came = 0;
    shares_leave(&shares, turn, stalled);
    free(turn);
    return came;
}

static BMI_addr_t next_after(BMI_addr_t client)
{
    return leave(client, false);
}

static void all_leave(void)
{
    for (bool some = true; some;) {
        some = false;
        for (BMI_addr_t client = 1; client < THIRD + 4; client++)
            for (; served_count[client] > 0; some = true)
                leave(client, false);
    }
    CU_ASSERT_PTR_NULL(shares.first);
    CU_ASSERT_PTR_NULL(shares.hosts);
    CU_ASSERT_EQUAL(shares.waiting, 0);
    shares_close(&shares);
}

/* Given a client that has a request waiting whenever one of its own has been served, another one is
 * served soon. */
static void a_busy_client_delays_no_other(void)
{
    enum { ROUNDS = 10 };
    shares_open(&shares, 1, serve);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_EQUAL(admit(OTHER), 0);
    BMI_addr_t now = BUSY;
    int round = 0;
    for (; now == BUSY && round < ROUNDS; round++) {
        CU_ASSERT_EQUAL(admit(BUSY), 0);
        now = next_after(BUSY);
    }
    CU_ASSERT_EQUAL(now, OTHER);
    CU_ASSERT_TRUE(round <= 2);
    all_leave();
}

static void clients_take_turns(void)
{
    const BMI_addr_t clients[] = {BUSY, OTHER, THIRD};
    BMI_addr_t now = BUSY;
    int turns[THIRD + 1] = {0};
    shares_open(&shares, 1, serve);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    for (int i = 0; i < 3; i++)
        for (int more = 0; more < 3; more++)
            CU_ASSERT_EQUAL(admit(clients[i]), 0);
    for (int i = 0; i < 6; i++) {
        now = next_after(now);
        turns[now]++;
    }
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(turns[clients[i]], 2);
    all_leave();
}

/* Given four clients on one host that request all places, then a client on another host is served
 * at once, and one on the same host when a place of that host is free. */
static void a_host_has_half_of_all(void)
{
    enum { REQUESTS = 64, EACH = 16 };
    int now = 0;
    shares_open(&shares, REQUESTS, serve);
    for (BMI_addr_t client = 1; client <= 4; client++)
        for (int i = 0; i < EACH; i++)
            now += admit_from(client, "10.0.0.1");
    CU_ASSERT_EQUAL(now, REQUESTS / 2);
    CU_ASSERT_EQUAL(admit_from(5, "10.0.0.2"), 1);
    CU_ASSERT_EQUAL(admit_from(6, "10.0.0.1"), 0);
    CU_ASSERT_TRUE(shares.waiting > 0);
    for (BMI_addr_t client = 3; client <= 4; client++) /* these wait longer, and have none either */
        CU_ASSERT_EQUAL(next_after(1), client);
    CU_ASSERT_EQUAL(next_after(1), 6);
    all_leave();
}

/* Given a client whose request was ended since it moved no bytes, then it has one request at a time
 * until one of them succeeds. */
static void a_stalled_client_has_one_place(void)
{
    shares_open(&shares, 64, serve);
    for (int i = 0; i < 16; i++)
        CU_ASSERT_EQUAL(admit(BUSY), 1);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    for (int i = 0; i < 15; i++)
        CU_ASSERT_EQUAL(leave(BUSY, true), 0);
    CU_ASSERT_EQUAL(leave(BUSY, true), BUSY);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_EQUAL(next_after(BUSY), BUSY);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    all_leave();
}

/* Given two requests that wait, when their client cancels one, then the other keeps its place in
 * the queue. */
static void a_cancelled_request_gives_up_its_turn(void)
{
    struct turn cancelled = {.client = OTHER};
    shares_open(&shares, 1, serve);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    CU_ASSERT_EQUAL(shares_admit(&shares, &cancelled, "host"), 0);
    CU_ASSERT_EQUAL(admit(OTHER), 0);
    shares_leave(&shares, &cancelled, false);
    shares_leave(&shares, &cancelled, false); /* it has left already */
    CU_ASSERT_EQUAL(shares.waiting, 1);
    CU_ASSERT_EQUAL(next_after(BUSY), OTHER);
    CU_ASSERT_EQUAL(next_after(OTHER), 0);
    all_leave();
}

static void a_client_has_so_many_waiting_requests(void)
{
    static struct turn turns[WAITING_MOST], more = {.client = OTHER};
    shares_open(&shares, 1, serve);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    for (int i = 0; i < WAITING_MOST; i++) {
        turns[i].client = OTHER;
        CU_ASSERT_EQUAL(shares_admit(&shares, &turns[i], "host"), 0);
    }
    CU_ASSERT_EQUAL(shares_admit(&shares, &more, "host"), -BMI_EAGAIN);
    shares_leave(&shares, &more, false);
    CU_ASSERT_EQUAL(admit(THIRD), 0);
    for (int i = 0; i < WAITING_MOST; i++)
        shares_leave(&shares, &turns[i], false);
    all_leave();
}

static CU_TestInfo cases[] = {{"a busy client delays no other", a_busy_client_delays_no_other},
                              {"clients take turns", clients_take_turns},
                              {"a host has half of all", a_host_has_half_of_all},
                              {"a stalled client has one place", a_stalled_client_has_one_place},
                              {"a cancelled request gives up its turn",
                               a_cancelled_request_gives_up_its_turn},
                              {"a client has so many waiting requests",
                               a_client_has_so_many_waiting_requests},
                              CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"share", NULL, NULL, NULL, NULL, cases}, CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
