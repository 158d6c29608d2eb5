/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deep.h - calls a function within as many tasks as may be nested. They belong to a separate
 * manager, so that the caller runs them.
 */
#ifndef TESTS_DEEP_H
#define TESTS_DEEP_H

#include <CUnit/Basic.h>
#include <stddef.h>

#include "bmi/task.h"

struct deep {
    struct bmi_task task;
    struct bmi_task_manager *manager;
    int left; /* levels */
    void (*run)(void *argument);
    void *argument;
};

static inline enum bmi_task_status deep_level(struct bmi_task *task, void *argument)
{
    struct deep *deep = argument, below = *deep;
    (void)task;
    if (deep->left == 0) {
        deep->run(deep->argument);
        return BMI_TASK_DONE;
    }
    below.left--;
    CU_ASSERT_EQUAL(bmi_task_prepare(&below.task, below.manager,
                                     &(struct bmi_task_attributes){.function = deep_level,
                                                                   .argument = &below}),
                    0);
    CU_ASSERT_EQUAL(bmi_task_submit(&below.task), 0);
    CU_ASSERT_EQUAL(bmi_task_schedule(below.manager), 1);
    return BMI_TASK_DONE;
}

static inline void deep_run(void (*run)(void *argument), void *argument)
{
    struct deep deep = {.left = BMI_TASK_DEPTH, .run = run, .argument = argument};
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_create(NULL, &deep.manager, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(deep.manager, BMI_TASK_HOOKS_ONLY), 0);
    deep_level(NULL, &deep);
    bmi_task_manager_destroy(deep.manager);
}

#endif
