/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share_test.c - whose request is served next, where all is in use.
 */
#include <stdlib.h>

#include "server.h"
#include "tests/unit/unit.h"

enum { BUSY = 1, OTHER = 2, THIRD = 3 }; /* clients */

static struct shares shares;

static int admit(BMI_addr_t client)
{
    struct BMI_unexpected_info request = {.addr = client};
    return shares_admit(&shares, &request);
}

/* Whose request comes next, after one of `client` was served. */
static BMI_addr_t next_after(BMI_addr_t client)
{
    struct BMI_unexpected_info next = {.addr = 0};
    CU_ASSERT_TRUE(shares_next(&shares, client, &next));
    return next.addr;
}

/* It has a request waiting whenever one of its own has been served. */
static void who_always_waits_keeps_nobody_waiting(void)
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
        served = shares_next(&shares, served, &next) ? next.addr : 0;
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
    CU_ASSERT_FALSE(shares_next(&shares, served, &none));
    CU_ASSERT_PTR_NULL(shares.first);
    shares_close(&shares);
}

static CU_TestInfo cases[] = {{"who always waits keeps nobody waiting",
                               who_always_waits_keeps_nobody_waiting},
                              {"clients take turns", clients_take_turns},
                              CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"share", NULL, NULL, NULL, NULL, cases}, CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
