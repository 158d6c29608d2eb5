/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job_case.h - shared by job's unit tests: a process that is its own server over the loop method,
 * and a job context, in the foreground or in the background. Each suite runs in both.
 */
#ifndef JOB_CASE_H
#define JOB_CASE_H

#include "bmi/job.h"
#include "tests/unit/unit.h"

enum { PATIENCE_MS = 60000 }; /* time limit of a wait; a loaded machine is slow */

struct job_case {
    struct bmi_job_context *context;
    BMI_addr_t self;
    bool background;
};

extern struct job_case job_case;

/* CUnit's set-up and clean-up of each test. */
void job_case_begin(void);
void job_case_begin_background(void);
void job_case_end(void);

/* Fetches one completion; fails the test if none comes. */
struct bmi_job_status job_case_fetch(void);
/* Checks that there is no completion to fetch. */
void job_case_none(void);
/* Runs the tests in both modes. Returns the program's exit status. */
int job_case_run(const char *foreground, const char *background, CU_TestInfo *tests);

#endif
