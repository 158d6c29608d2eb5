/* SPDX-License-Identifier: BSD-3-Clause
 *
 * offload.c - see offload.h. There is one task for each CPU. They are made when first wanted and
 * stay, since a thread may be about to submit one when offloading is switched off.
 */
#include "bmi/progress/offload.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/progress/work.h"
#include "bmi/task.h"
#include "task/internal.h"

struct bmi__offload {
    struct bmi_task *tasks; /* one for each CPU; written under `control`, before `offload_on` is */
};

static enum bmi_task_status flush_links(struct bmi_task *task, void *argument)
{
    (void)task;
    bmi__work_flush(argument);
    return BMI_TASK_DONE;
}

bool bmi__offload_flush(struct bmi_link *link)
{
    struct bmi__offload *offload = link->instance->offload;
    int cpu = bmi_task_nearest_idle(NULL, sched_getcpu());
    if (cpu < 0)
        return false;
    bmi__work_dirty(link); /* wakes no poller: the task flushes it */
    int status = bmi_task_submit(&offload->tasks[cpu]);
    return status == 0 || status == -BMI_EBUSY; /* busy: it has yet to run */
}

static int prepare_locked(struct bmi_instance *instance)
{
    struct bmi_cpuset all;
    struct bmi_task *made = calloc(BMI_CPUSET_MAX, sizeof *made);
    int status = made != NULL ? 0 : -ENOMEM;
    bmi_task_cpus(NULL, &all);
    for (int cpu = bmi_cpuset_next(&all, 0); status == 0 && cpu >= 0;
         cpu = bmi_cpuset_next(&all, cpu + 1)) {
        struct bmi_cpuset one = {.words = {0}};
        bmi_cpuset_add(&one, cpu);
        status = bmi_task_prepare(&made[cpu], NULL,
                                  &(struct bmi_task_attributes){.function = flush_links,
                                                                .argument = instance,
                                                                .cpus = &one});
    }
    if (status == 0)
        instance->offload->tasks = made;
    else
        free(made);
    return status;
}

int bmi__offload_start_locked(struct bmi_instance *instance)
{
    struct bmi__offload *offload = instance->offload;
    int status = 0;
    if (bmi__offload_on(instance))
        return 0;
    if (offload->tasks == NULL)
        status = prepare_locked(instance);
    if (status == 0)
        status = bmi_task_manager_start(NULL, BMI_TASK_WORKERS);
    if (status == 0)
        atomic_store(&instance->offload_on, true);
    return status;
}

void bmi__offload_stop_locked(struct bmi_instance *instance)
{
    if (atomic_exchange(&instance->offload_on, false))
        bmi_task_manager_stop(NULL, BMI_TASK_WORKERS);
}

void bmi__offload_after_fork_child(struct bmi_instance *instance)
{
    atomic_store(&instance->offload_on, false);
    instance->offload->tasks = NULL;
}

int bmi__offload_open(struct bmi_instance *instance)
{
    struct bmi__offload *offload = calloc(1, sizeof *offload);
    if (offload == NULL)
        return -ENOMEM;
    instance->offload = offload;
    return 0;
}

/* A task that was submitted, and that no CPU has run since the workers ended, runs here. */
void bmi__offload_drain(struct bmi_instance *instance)
{
    struct bmi__offload *offload = instance->offload;
    for (int cpu = 0; offload->tasks != NULL && cpu < BMI_CPUSET_MAX; cpu++)
        if (bmi_task_state(&offload->tasks[cpu]) != BMI_TASK_IDLE)
            bmi__task_await(&offload->tasks[cpu]);
}

void bmi__offload_close(struct bmi_instance *instance)
{
    struct bmi__offload *offload = instance->offload;
    if (offload != NULL)
        free(offload->tasks);
    free(offload);
    instance->offload = NULL;
}
