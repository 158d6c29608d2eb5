/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share_test.c - the choice of the next request when all places are in use.
 */
#include <stdlib.h>

#include "server.h"
#include "tests/unit/unit.h"

enum { BUSY = 1, OTHER = 2, THIRD = 3 }; /* clients */

static struct shares shares;

static int admit_from(BMI_addr_t client, const char *host)
{
    struct BMI_unexpected_info request = {.addr = client};
    return shares_admit(&shares, &request, host);
}

static int admit(BMI_addr_t client)
{
    return admit_from(client, "host");
}

/* The client whose request comes next, after one of `client` was served. */
static BMI_addr_t next_after(BMI_addr_t client)
{
    struct BMI_unexpected_info next = {.addr = 0};
    CU_ASSERT_TRUE(shares_next(&shares, client, false, &next));
    return next.addr;
}

/* Given a client that has a request waiting whenever one of its own has been served, another one is
 * served soon. */
static void a_busy_client_delays_no_other(void)
{
    enum { ROUNDS = 10 };
    shares_open(&shares, 1);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_EQUAL(admit(OTHER), 0);
    BMI_addr_t served = BUSY;
    int round = 0;
    for (; served == BUSY && round < ROUNDS; round++) {
        CU_ASSERT_EQUAL(admit(BUSY), 0);
        served = next_after(BUSY);
    }
    CU_ASSERT_EQUAL(served, OTHER);
    CU_ASSERT_TRUE(round <= 2);
    while (served != 0) {
        struct BMI_unexpected_info next = {.addr = 0};
        served = shares_next(&shares, served, false, &next) ? next.addr : 0;
    }
    shares_close(&shares);
}

static void clients_take_turns(void)
{
    const BMI_addr_t clients[] = {BUSY, OTHER, THIRD};
    BMI_addr_t served = BUSY;
    int turns[THIRD + 1] = {0};
    shares_open(&shares, 1);
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    for (int i = 0; i < 3; i++)
        for (int more = 0; more < 3; more++)
            CU_ASSERT_EQUAL(admit(clients[i]), 0);
    for (int i = 0; i < 6; i++) {
        served = next_after(served);
        turns[served]++;
    }
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(turns[clients[i]], 2);
    for (int i = 0; i < 3; i++)
        served = next_after(served);
    struct BMI_unexpected_info none;
    CU_ASSERT_FALSE(shares_next(&shares, served, false, &none));
    CU_ASSERT_PTR_NULL(shares.first);
    shares_close(&shares);
}

static void all_served(BMI_addr_t client, int count, bool stalled)
{
    struct BMI_unexpected_info none;
    for (int i = 0; i < count; i++)
        CU_ASSERT_FALSE(shares_next(&shares, client, stalled, &none));
}

/* Given four clients on one host that request all places, then a client on another host is served
 * at once, and one on the same host when a place of that host is free. */
static void a_host_has_half_of_all(void)
{
    enum { REQUESTS = 64, EACH = 16 };
    int served = 0;
    shares_open(&shares, REQUESTS);
    for (BMI_addr_t client = 1; client <= 4; client++)
        for (int i = 0; i < EACH; i++)
            served += admit_from(client, "10.0.0.1");
    CU_ASSERT_EQUAL(served, REQUESTS / 2);
    CU_ASSERT_EQUAL(admit_from(5, "10.0.0.2"), 1);
    CU_ASSERT_EQUAL(admit_from(6, "10.0.0.1"), 0);
    CU_ASSERT_TRUE(shares_waiting(&shares));
    for (BMI_addr_t client = 3; client <= 4; client++) /* these wait longer, and have none either */
        CU_ASSERT_EQUAL(next_after(1), client);
    CU_ASSERT_EQUAL(next_after(1), 6);
    shares_close(&shares);
}

/* Given a client whose request was ended since it moved no bytes, then it has one request at a time
 * until one of them succeeds. */
static void a_stalled_client_has_one_place(void)
{
    shares_open(&shares, 64);
    for (int i = 0; i < 16; i++)
        CU_ASSERT_EQUAL(admit(BUSY), 1);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    all_served(BUSY, 15, true);
    struct BMI_unexpected_info next;
    CU_ASSERT_TRUE(shares_next(&shares, BUSY, true, &next));
    CU_ASSERT_EQUAL(admit(BUSY), 0);
    CU_ASSERT_TRUE(shares_next(&shares, BUSY, false, &next));
    CU_ASSERT_EQUAL(admit(BUSY), 1);
    shares_close(&shares);
}

static CU_TestInfo cases[] = {{"a busy client delays no other", a_busy_client_delays_no_other},
                              {"clients take turns", clients_take_turns},
                              {"a host has half of all", a_host_has_half_of_all},
                              {"a stalled client has one place", a_stalled_client_has_one_place},
                              CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"share", NULL, NULL, NULL, NULL, cases}, CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
