/* SPDX-License-Identifier: BSD-3-Clause
 *
 * machine.c - runs state machines: one task each, which takes steps until a state must wait.
 *
 * A machine waits for jobs (children are jobs, too); the end of the last of them resumes it. Its
 * own actions increment `outstanding` by posts, and any thread decrements it by ends, under the
 * context's lock; the same lock guards writes of `phase`. A running machine has phase RUNNING: a
 * job that ends during that time only decrements, and machine_defer, under the lock, sees that no
 * job is left to wait for.
 */
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/log.h"
#include "bmi/progress/progress.h"
#include "bmi/state/library.h"
#include "job/internal.h"
#include "task/group.h"
#include "task/internal.h"
#include "task/queue.h"

enum {
    STEPS_AT_ONCE = 64, /* then others of the queue have their turn */
    FRAMES_POOLED = 2,  /* machines of so many frames are kept for reuse */
    FIRST_OF_MOST = 64, /* in a longer queue a machine is not searched for */
    NO_TRANSITION = -2
};

static struct bmi__tracer *tracer_of(struct bmi_sm *machine)
{
    return atomic_load_explicit(&machine->context->tracer, memory_order_acquire);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t machine_size(int frames)
{
    return sizeof(struct bmi_sm) + (size_t)frames * sizeof(struct sm_frame);
}

static struct bmi_sm *machine_take(struct bmi_job_context *context, int frames)
{
    bool pooled = frames <= FRAMES_POOLED;
    struct bmi_sm *machine = NULL;
    if (pooled) {
        bmi_lock_take(&context->lock);
        machine = context->free_machines;
        if (machine != NULL)
            context->free_machines = machine->next;
        bmi_lock_give(&context->lock);
    }
    if (machine != NULL)
        return machine;
    size_t size = machine_size(pooled ? FRAMES_POOLED : frames);
    machine = malloc(size);
    if (machine == NULL)
        return NULL;
    machine->depth_most = (uint16_t)(pooled ? FRAMES_POOLED : frames);
    bmi_lock_take(&context->lock);
    context->counts.machine_bytes += size;
    bmi_lock_give(&context->lock);
    return machine;
}

/* Returns the memory to free after the lock was released. */
static struct bmi_sm *machine_give_locked(struct bmi_job_context *context, struct bmi_sm *machine)
{
    if (machine->depth_most == FRAMES_POOLED) {
        machine->next = context->free_machines;
        context->free_machines = machine;
        return NULL;
    }
    context->counts.machine_bytes -= machine_size(machine->depth_most);
    return machine;
}

void bmi__sm_free_all(struct bmi_job_context *context)
{
    for (struct bmi_sm *machine = context->free_machines, *next; machine != NULL; machine = next) {
        next = machine->next;
        free(machine);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int transition(const struct bmi_sm_state *state, int result)
{
    int to = NO_TRANSITION;
    for (int i = 0; i < BMI_SM_TRANSITIONS; i++) {
        const struct bmi_sm_transition *on = &state->on[i];
        if (on->when == BMI_SM_NEVER)
            break;
        if (on->when == BMI_SM_IS && on->result == result)
            return on->to;
        if ((on->when == BMI_SM_FAILED && result < 0) ||
            (on->when == BMI_SM_ANY && to == NO_TRANSITION))
            to = on->to;
    }
    return to;
}

/* Goes to the next state after this result. Returns false if the machine has ended. */
static bool machine_go(struct bmi_sm *machine, int result)
{
    for (;;) {
        struct sm_frame *frame = sm_top(machine);
        int to = transition(sm_state(machine), result);
        if (to == NO_TRANSITION) {
            bmi__log(machine->context->instance, BMI_LOG_ERROR,
                     "state machine %s: state \"%s\" had the result %d, for which "
                     "its table has no transition",
                     frame->table->name, sm_state(machine)->name, result);
            machine->result = -BMI_EINVAL;
            machine->has_result = true;
            return false;
        }
        if (to != BMI_SM_END) {
            frame->state = to;
            machine->last = result;
            return true;
        }
        if (machine->depth == 1) {
            if (!machine->has_result)
                machine->result = result;
            return false;
        }
        machine->depth--;
    }
}

/* Jumps into another table. Returns false, and the state's result, if that is impossible. */
static bool machine_jump(struct bmi_sm *machine, const struct bmi_sm_state *state, int *result)
{
    void *data = sm_top(machine)->data;
    if (state->jump_data != NULL && (data = state->jump_data(machine, data)) == NULL) {
        *result = -BMI_ENOMEM;
        return false;
    }
    machine->depth++;
    *sm_top(machine) = (struct sm_frame){.table = state->jump, .data = data};
    struct bmi__tracer *tracer = tracer_of(machine);
    if (tracer != NULL)
        bmi__sm_trace_event(tracer, machine, BMI_SM_JUMPED, 0, 0);
    return true;
}

static int machine_act(struct bmi_sm *machine, const struct bmi_sm_state *state)
{
    struct bmi__tracer *tracer = tracer_of(machine);
    if (tracer == NULL)
        return state->action(machine, sm_top(machine)->data);
    uint64_t begin = bmi__monotonic_ns();
    int result = state->action(machine, sm_top(machine)->data);
    bmi__sm_trace_event(tracer, machine, BMI_SM_STEP, result, begin);
    machine->since_ns = bmi__monotonic_ns();
    return result;
}

/* The result of a state, from the jobs that have ended since the last call. */
static int result_take_locked(struct bmi_sm *machine)
{
    int result = machine->failure;
    machine->failure = 0;
    if (result == -BMI_ECANCEL && machine->cancel == SM_CANCEL_WANTED)
        machine->cancel = SM_CANCEL_DELIVERED;
    return result;
}

/* A state was deferred. Returns true if the machine must wait; otherwise all jobs have ended, and
 * *result is the state's result. */
static bool machine_defer(struct bmi_sm *machine, int *result)
{
    struct bmi_job_context *context = machine->context;
    struct bmi__job_ends ends = {0};
    bmi_lock_take(&context->lock);
    bool wait = machine->outstanding > 0;
    if (wait) {
        machine->phase = SM_WAITING;
        machine->jobs_cancelled = false;
        if (machine->cancel == SM_CANCEL_WANTED || bmi__sm_first_failure_counts(machine))
            bmi__sm_cancel_jobs_locked(machine, &ends);
    } else {
        *result = result_take_locked(machine);
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return wait;
}

/* The jobs that it waited for have ended; returns the state's result. */
static int machine_awake(struct bmi_sm *machine)
{
    struct bmi_job_context *context = machine->context;
    bmi_lock_take(&context->lock);
    machine->phase = SM_RUNNING;
    int result = result_take_locked(machine);
    bmi_lock_give(&context->lock);
    struct bmi__tracer *tracer = tracer_of(machine);
    if (tracer != NULL)
        bmi__sm_trace_event(tracer, machine, BMI_SM_RESUMED, result, machine->since_ns);
    return result;
}

/* A machine of accept.c or serve.c has ended. */
static void owner_notify(struct bmi_job_context *context, enum sm_owner owner, void *data,
                         int result)
{
    if (owner == SM_ACCEPTED)
        context->upcalls->accepted_end(context, data);
    else if (owner == SM_SERVED)
        context->upcalls->served_end(context, data, result);
}

/* After its last state: ends its job, once its own jobs have ended. Returns false if it must wait
 * for them. */
static bool machine_end(struct bmi_sm *machine)
{
    struct bmi_job_context *context = machine->context;
    struct bmi__job_ends ends = {0};
    struct bmi_sm *memory = NULL;
    struct bmi__tracer *tracer = tracer_of(machine);
    bmi_lock_take(&context->lock);
    bool over = machine->outstanding == 0;
    machine->phase = over ? SM_ENDED : SM_ENDING;
    if (!over && machine->cancel == SM_CANCEL_WANTED)
        bmi__sm_cancel_jobs_locked(machine, &ends);
    bmi_lock_give(&context->lock);
    if (!over) {
        bmi__job_after(context, &ends);
        return false;
    }
    if (tracer != NULL)
        bmi__sm_trace_event(tracer, machine, BMI_SM_ENDED, machine->result, machine->started_ns);
    enum sm_owner owner = (enum sm_owner)machine->owner;
    void *data = machine->frames[0].data;
    int result = machine->result;
    bmi_lock_take(&context->lock);
    bmi__job_end_locked(context, machine->job, result, 0, &ends);
    context->counts.machines_alive--;
    memory = machine_give_locked(context, machine);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    free(memory);
    owner_notify(context, owner, data, result);
    return true;
}

enum ran { RAN_WAITS, RAN_AGAIN, RAN_TO_ITS_END };

static enum ran machine_steps(struct bmi_sm *machine)
{
    struct bmi_job_context *context = machine->context;
    unsigned steps = 0, refused = 0; /* jumps: a table may try a jump again and again */
    enum ran ran = RAN_AGAIN;
    bool going = machine->phase != SM_RESUMED || machine_go(machine, machine_awake(machine));
    while (going && steps + refused < STEPS_AT_ONCE) {
        const struct bmi_sm_state *state = sm_state(machine);
        int result;
        if (state->jump != NULL) {
            if (!machine_jump(machine, state, &result)) {
                refused++;
                going = machine_go(machine, result);
            }
            continue;
        }
        steps++;
        result = machine_act(machine, state);
        if (result == BMI_SM_DEFERRED && machine_defer(machine, &result)) {
            ran = RAN_WAITS;
            break;
        }
        going = machine_go(machine, result);
    }
    atomic_fetch_add_explicit(&context->steps, steps, memory_order_relaxed);
    return going ? ran : RAN_TO_ITS_END;
}

/* The number of step locks (`stepping`) of any contexts that this thread holds. */
static _Thread_local unsigned stepping_held;

/* A thread that would run a machine of one context within an action of another context must not
 * wait for the thread that takes steps there, since that thread may be about to do the reverse. The
 * same holds for a thread within another task, for which an action may wait. Returns whether the
 * step lock was taken. */
static bool stepping_take(struct bmi_job_context *context)
{
    bool within_another = bmi__tasks_within() > 1; /* more than the machine's own task */
    if (context->background)
        return true;
    if (stepping_held == 0 && !within_another)
        pthread_mutex_lock(&context->stepping);
    else if (pthread_mutex_trylock(&context->stepping) != 0)
        return false;
    stepping_held++;
    return true;
}

static void stepping_give(struct bmi_job_context *context)
{
    if (context->background)
        return;
    stepping_held--;
    pthread_mutex_unlock(&context->stepping);
}

static enum bmi_task_status machine_run(struct bmi_task *task, void *argument)
{
    struct bmi_sm *machine = argument;
    struct bmi_job_context *context = machine->context;
    enum bmi_task_status status = BMI_TASK_DONE;
    atomic_fetch_add(&context->runners, 1);
    if (!stepping_take(context)) {
        sched_yield(); /* to the thread that takes steps */
        bmi_task_submit(task);
        atomic_fetch_sub(&context->runners, 1);
        return BMI_TASK_DONE;
    }
    enum ran ran = machine->phase == SM_ENDED ? RAN_TO_ITS_END : machine_steps(machine);
    if (ran == RAN_TO_ITS_END && machine_end(machine))
        status = BMI_TASK_GONE;
    else if (ran == RAN_AGAIN)
        bmi_task_submit(task);
    stepping_give(context);
    atomic_fetch_sub(&context->runners, 1); /* the context's last access to it */
    return status;
}

/* ---- a machine that the caller waits for ---------------------------------------------------- */

/* No other thread ends a machine of the context while the caller holds the step lock. */
static bool machine_run_queued(struct bmi_job_context *context, bmi_job_id_t id)
{
    bmi_lock_take(&context->lock);
    struct bmi__job *job = bmi__job_find_locked(context, id);
    struct bmi_sm *machine =
        job != NULL && job->kind == BMI_JOB_MACHINE && job->phase == JOB_PENDING ? job->child
                                                                                 : NULL;
    bmi_lock_give(&context->lock);
    if (machine == NULL || !bmi__awaited_run(context->manager, &machine->task))
        return false;
    bmi_lock_take(&context->lock);
    job = bmi__job_find_locked(context, id);
    bool ended = job == NULL || job->phase == JOB_READY;
    bmi_lock_give(&context->lock);
    return ended;
}

bool bmi__sm_run_first(struct bmi_job_context *context, bmi_job_id_t id)
{
    if (context->background || bmi__tasks_within() > 0 || bmi__schedule_too_deep())
        return false;
    uint64_t queued = bmi__queue_length(context->manager->callers);
    if (queued < 2 || queued > FIRST_OF_MOST || pthread_mutex_trylock(&context->stepping) != 0)
        return false;
    bool ended = machine_run_queued(context, id);
    pthread_mutex_unlock(&context->stepping);
    return ended;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int machine_prepare(struct bmi_sm *machine, const struct bmi_sm_placement *placement,
                           const struct bmi_job_options *options)
{
    struct bmi_job_context *context = machine->context;
    struct bmi_task_attributes attributes = {.function = machine_run, .argument = machine};
    struct bmi_task_group *group = NULL;
    if (placement != NULL) {
        attributes.cpus = placement->cpus;
        attributes.hints = placement->hints;
        group = placement->group;
    } else if (options != NULL && options->machine != NULL) {
        group = options->machine->group;
    }
    if (group != NULL && (attributes.cpus != NULL || group->manager != context->manager))
        return -BMI_EINVAL;
    int result = bmi_task_prepare(&machine->task, context->manager, &attributes);
    if (result == 0 && context->background)
        machine->group = group;
    else if (result == 0)
        bmi__callers_only(&machine->task); /* test calls run it, never a worker */
    return result;
}

static void machine_fill(struct bmi_sm *machine, struct bmi_job_context *context,
                         struct bmi_sm_table *table, void *data,
                         const struct bmi_job_options *options)
{
    uint16_t depth_most = machine->depth_most;
    *machine = (struct bmi_sm){.context = context,
                               .depth_most = depth_most,
                               .depth = 1,
                               .deadline_ns = bmi__job_deadline_of(options)};
    machine->frames[0] = (struct sm_frame){.table = table, .data = data};
}

static void machine_drop(struct bmi_job_context *context, struct bmi_sm *machine)
{
    bmi_lock_take(&context->lock);
    struct bmi_sm *memory = machine_give_locked(context, machine);
    bmi_lock_give(&context->lock);
    free(memory);
}

static int machine_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                         const struct bmi_sm_placement *placement,
                         const struct bmi_job_options *options, enum sm_owner owner,
                         bmi_job_id_t *id, struct bmi_job_status *status)
{
    int frames = table != NULL ? bmi__sm_frames(context, table) : -BMI_EINVAL;
    if (id != NULL)
        *id = 0;
    if (context == NULL || frames < 0)
        return context == NULL ? -BMI_EINVAL : frames;
    struct bmi_sm *machine = machine_take(context, frames);
    if (machine == NULL)
        return -BMI_ENOMEM;
    machine_fill(machine, context, table, data, options);
    int result = machine_prepare(machine, placement, options);
    if (result == 0)
        result = bmi__job_begin(context, BMI_JOB_MACHINE, options, status, &machine->job);
    if (result < 0) {
        machine_drop(context, machine);
        return result;
    }
    machine->job->child = machine;
    machine->owner = (uint8_t)owner;
    if (owner != SM_STARTED)
        machine->job->flags |= JOB_UNREPORTED;
    if (id != NULL)
        *id = bmi__job_id(machine->job);
    struct bmi__tracer *tracer = tracer_of(machine);
    if (tracer != NULL) {
        machine->started_ns = bmi__monotonic_ns();
        bmi__sm_trace_event(tracer, machine, BMI_SM_STARTED, 0, 0);
    }
    bmi_lock_take(&context->lock);
    context->counts.machines++;
    context->counts.machines_alive++;
    bmi_lock_give(&context->lock);
    bmi__job_posted(context, machine->job, 0, id, status);
    bmi__sm_resume(machine);
    return 0;
}

int bmi_sm_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                 const struct bmi_sm_placement *placement, const struct bmi_job_options *options,
                 bmi_job_id_t *id, struct bmi_job_status *status)
{
    return machine_start(context, table, data, placement, options, SM_STARTED, id, status);
}

int bmi__sm_start_owned(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                        enum sm_owner owner, bmi_job_id_t *id)
{
    return machine_start(context, table, data, NULL, NULL, owner, id, NULL);
}

/* ---- questions, by actions ------------------------------------------------------------------- */

struct bmi_job_context *bmi_sm_context(const struct bmi_sm *machine)
{
    return machine->context;
}

int bmi_sm_last(const struct bmi_sm *machine)
{
    return machine->last;
}

uint64_t bmi_sm_deadline(const struct bmi_sm *machine)
{
    return machine->deadline_ns;
}

bool bmi_sm_cancelled(const struct bmi_sm *machine)
{
    struct bmi_job_context *context = machine->context;
    bmi_lock_take(&context->lock);
    bool cancelled = machine->cancel != SM_NOT_CANCELLED;
    bmi_lock_give(&context->lock);
    return cancelled;
}

bmi_job_id_t bmi_sm_id(const struct bmi_sm *machine)
{
    return bmi__job_id(machine->job);
}

void bmi_sm_set_deadline(struct bmi_sm *machine, uint64_t deadline_ns)
{
    machine->deadline_ns = deadline_ns;
}

void bmi_sm_set_result(struct bmi_sm *machine, int result)
{
    machine->result = result;
    machine->has_result = true;
}
