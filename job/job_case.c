/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job_case.c - see job_case.h.
 */
#include "job/job_case.h"

struct job_case job_case;

static void begin(bool background)
{
    char url[BMI_MAX_ADDR_LEN];
    job_case = (struct job_case){.background = background};
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://job:0", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&job_case.self, url), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_context_open(background ? BMI_JOB_BACKGROUND : 0,
                                               &job_case.context),
                          0);
}

void job_case_begin(void)
{
    begin(false);
}

void job_case_begin_background(void)
{
    begin(true);
}

void job_case_end(void)
{
    bmi_job_context_close(job_case.context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

struct bmi_job_status job_case_fetch(void)
{
    struct bmi_job_status status = {0};
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_job_testcontext(job_case.context, 1, &count, &status, PATIENCE_MS),
                          1);
    CU_ASSERT_EQUAL_FATAL(count, 1);
    return status;
}

void job_case_none(void)
{
    struct bmi_job_status status;
    int count = 0;
    CU_ASSERT_EQUAL(bmi_job_testcontext(job_case.context, 1, &count, &status, 0), 0);
    CU_ASSERT_EQUAL(count, 0);
}

int job_case_run(const char *foreground, const char *background, CU_TestInfo *tests)
{
    CU_SuiteInfo suites[] = {
        {.pName = foreground,
         .pSetUpFunc = job_case_begin,
         .pTearDownFunc = job_case_end,
         .pTests = tests},
        {.pName = background,
         .pSetUpFunc = job_case_begin_background,
         .pTearDownFunc = job_case_end,
         .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
