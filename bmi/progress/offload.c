/* SPDX-License-Identifier: BSD-3-Clause
 *
 * offload.c - see offload.h. There is one task for each CPU. They are made when first wanted and
 * stay, since a thread may be about to submit one when offloading is switched off.
 */
#include "bmi/progress/offload.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "bmi/progress/work.h"
#include "bmi/task.h"

atomic_bool bmi__offload_is_on;

static struct bmi_task *tasks; /* written under `control`, before bmi__offload_is_on */

static enum bmi_task_status flush_links(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    bmi__work_flush();
    return BMI_TASK_DONE;
}

bool bmi__offload_flush(struct bmi_link *link)
{
    int cpu = bmi_task_nearest_idle(NULL, sched_getcpu());
    if (cpu < 0)
        return false;
    bmi__work_dirty(link); /* wakes no poller: the task flushes it */
    int status = bmi_task_submit(&tasks[cpu]);
    return status == 0 || status == -BMI_EBUSY; /* busy: it has yet to run */
}

static int prepare_locked(void)
{
    struct bmi_cpuset all;
    struct bmi_task *made = calloc(BMI_CPUSET_MAX, sizeof *made);
    int status = made != NULL ? 0 : -ENOMEM;
    bmi_task_cpus(NULL, &all);
    for (int cpu = bmi_cpuset_next(&all, 0); status == 0 && cpu >= 0;
         cpu = bmi_cpuset_next(&all, cpu + 1)) {
        struct bmi_cpuset one = {.words = {0}};
        bmi_cpuset_add(&one, cpu);
        status =
            bmi_task_prepare(&made[cpu], NULL,
                             &(struct bmi_task_attributes){.function = flush_links, .cpus = &one});
    }
    if (status == 0)
        tasks = made;
    else
        free(made);
    return status;
}

int bmi__offload_start_locked(void)
{
    int status = 0;
    if (bmi__offload_on())
        return 0;
    if (tasks == NULL)
        status = prepare_locked();
    if (status == 0)
        status = bmi_task_manager_start(NULL, BMI_TASK_WORKERS);
    if (status == 0)
        atomic_store(&bmi__offload_is_on, true);
    return status;
}

void bmi__offload_stop_locked(void)
{
    if (atomic_exchange(&bmi__offload_is_on, false))
        bmi_task_manager_stop(NULL, BMI_TASK_WORKERS);
}

void bmi__offload_after_fork_child(void)
{
    atomic_store(&bmi__offload_is_on, false);
    tasks = NULL;
}
