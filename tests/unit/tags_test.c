/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tags_test.c - bmi_tag_take and bmi_tag_give: no two exchanges have one tag.
 */
#include <pthread.h>
#include <stdint.h>

#include "unit.h"

enum { THREADS = 4, EACH = 500 };

static BMI_addr_t self;

static void begin(void)
{
    char url[BMI_MAX_ADDR_LEN];
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://tags:0", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self, url), 0);
}

static void end(void)
{
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static void test_different(void)
{
    /* given a tag that is taken */
    bmi_msg_tag_t first = bmi_tag_take(self);
    CU_ASSERT(first >= BMI_TAG_FIRST);
    /* when another one is */
    bmi_msg_tag_t second = bmi_tag_take(self);
    /* then it differs */
    CU_ASSERT(second >= BMI_TAG_FIRST);
    CU_ASSERT_NOT_EQUAL(first, second);
    CU_ASSERT_EQUAL(bmi_tag_give(self, first), 0);
    CU_ASSERT_EQUAL(bmi_tag_give(self, second), 0);
}

static void test_not_soon_again(void)
{
    /* given a tag that was given back */
    bmi_msg_tag_t former = bmi_tag_take(self);
    CU_ASSERT_EQUAL(bmi_tag_give(self, former), 0);
    /* when the next ones are taken, then none of them is the former, which may have messages on
     * their way */
    for (int i = 0; i < 1000; i++) {
        bmi_msg_tag_t tag = bmi_tag_take(self);
        CU_ASSERT_NOT_EQUAL(tag, former);
        CU_ASSERT_EQUAL(bmi_tag_give(self, tag), 0);
    }
}

static void test_refused(void)
{
    bmi_msg_tag_t tag = bmi_tag_take(self);
    /* a stale address has no exchanges */
    CU_ASSERT_EQUAL(bmi_tag_take(0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_tag_take(INT64_MAX), -BMI_EINVAL);
    /* a tag that is not taken cannot be given back */
    CU_ASSERT_EQUAL(bmi_tag_give(self, 7), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_tag_give(self, tag), 0);
    CU_ASSERT_EQUAL(bmi_tag_give(self, tag), -BMI_EINVAL);
}

static void test_finalized(void)
{
    /* given a tag that is not given back */
    bmi_msg_tag_t tag = bmi_tag_take(self);
    /* when the library ends */
    end();
    /* then it is invalid, and without the library no tag can be taken */
    CU_ASSERT_EQUAL(bmi_tag_give(self, tag), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_tag_take(self), -BMI_EINVAL);
    begin();
}

/* A handle from an unexpected message, of a process that looked this one up, takes tags of the
 * other parity than a looked-up handle. */
static void test_sides(void)
{
    bmi_op_id_t op = 0;
    bmi_context_id context;
    struct BMI_unexpected_info info;
    int count = 0, tries = 0;
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
    CU_ASSERT_FATAL(
        BMI_post_sendunexpected(&op, self, "x", 1, BMI_EXT_ALLOC, 1, NULL, context, NULL) >= 0);
    while (count == 0 && tries++ < 60)
        CU_ASSERT_FATAL(BMI_testunexpected(1, &count, &info, 1000) >= 0);
    CU_ASSERT_EQUAL_FATAL(count, 1);
    bmi_msg_tag_t dialled = bmi_tag_take(self), heard = bmi_tag_take(info.addr);
    CU_ASSERT_EQUAL(dialled & 1, 0);
    if (BMI_addr_rev_lookup(info.addr) == NULL)
        CU_ASSERT_EQUAL(heard & 1, 1);
    BMI_unexpected_free(info.addr, info.buffer);
    BMI_close_context(context);
    bmi_tag_give(self, dialled);
    bmi_tag_give(self, heard);
}

static bmi_msg_tag_t tags[THREADS][EACH];

static void *taker(void *argument)
{
    bmi_msg_tag_t *mine = argument;
    for (int i = 0; i < EACH; i++)
        mine[i] = bmi_tag_take(self);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    bmi_msg_tag_t left = *(const bmi_msg_tag_t *)a, right = *(const bmi_msg_tag_t *)b;
    return (left > right) - (left < right);
}

static void test_threads(void)
{
    pthread_t threads[THREADS];
    bmi_msg_tag_t *all = &tags[0][0];
    /* when several threads take tags at once */
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, taker, tags[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* then all of them differ */
    qsort(all, THREADS * EACH, sizeof *all, compare);
    for (int i = 1; i < THREADS * EACH; i++)
        CU_ASSERT(all[i - 1] < all[i]);
    for (int i = 0; i < THREADS * EACH; i++)
        CU_ASSERT_EQUAL(bmi_tag_give(self, all[i]), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"conversations have different tags", test_different},
        {"a tag does not come again soon", test_not_soon_again},
        {"refusals", test_refused},
        {"finalize gives all back", test_finalized},
        {"the two sides of a connection take different tags", test_sides},
        {"many threads", test_threads},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "tags", .pSetUpFunc = begin, .pTearDownFunc = end, .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
