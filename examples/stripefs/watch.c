/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch.c - a deadline on progress: a machine checks all flows once a second, as long as there are
 * any, and ends those whose clients move no bytes. Such a flow may last 30 s, or 5 s if other
 * requests wait. Time that the store takes is not counted.
 */
#include "server.h"

enum { LOOK_MS = 1000, STALL_MS = 30000, STALL_WAITED_MS = 5000 };

/* Whether it is the client's turn to move bytes: to send them, or to receive those read. */
static bool client_due(const struct served *served, const struct bmi_flow_progress *progress)
{
    bool under_way = progress->taken > progress->delivered;
    return served->request.op == SFS_WRITE ? !under_way : under_way;
}

static void flow_look(struct served *served, uint64_t now_ns, int limit_ms)
{
    struct bmi_flow_progress progress;
    struct bmi_job_context *jobs = served->server->jobs;
    if (bmi_job_flow_progress(jobs, served->flow, &progress) < 0)
        return; /* it has ended */
    bmi_size_t moved = progress.taken + progress.delivered;
    if (moved != served->moved || !client_due(served, &progress)) {
        served->moved = moved;
        served->progress_ns = now_ns;
    } else if (now_ns - served->progress_ns > (uint64_t)limit_ms * 1000000) {
        served->stalled = true;
        bmi_job_cancel(jobs, served->flow);
    }
}

/* Choices: 0: wait; 1: no flow is left. */
static int look(struct bmi_sm *machine, void *data)
{
    struct server *server = data;
    uint64_t now_ns = bmi_job_deadline(0);
    int limit_ms = shares_waiting(&server->shares) ? STALL_WAITED_MS : STALL_MS;
    for (struct served *served = server->moving; served != NULL; served = served->next_moving)
        flow_look(served, now_ns, limit_ms);
    server->watching = server->moving != NULL && !bmi_sm_cancelled(machine);
    return !server->watching;
}

static int wait_ms(struct bmi_sm *machine, void *data)
{
    struct server *server = data;
    return bmi_sm_posted(
        bmi_job_timer(server->jobs, bmi_job_deadline(LOOK_MS), BMI_SM_MINE(machine), NULL, NULL));
}

static const struct bmi_sm_state states[] = {
    {"wait", .action = wait_ms, .on = {BMI_SM_ELSE(1)}},
    {"look", .action = look, .choices = 2, .on = {BMI_SM_OK(0), BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table watch_table = BMI_SM_TABLE("watch", states);

/* Without memory for the machine the request's own deadline applies. */
void watch_flow(struct served *served)
{
    struct server *server = served->server;
    served->progress_ns = bmi_job_deadline(0);
    served->next_moving = server->moving;
    server->moving = served;
    if (!server->watching)
        server->watching =
            bmi_sm_start(server->jobs, &watch_table, server, NULL, NULL, NULL, NULL) == 0;
}

void unwatch_flow(struct served *served)
{
    struct served **at = &served->server->moving;
    while (*at != NULL && *at != served)
        at = &(*at)->next_moving;
    if (*at != NULL)
        *at = served->next_moving;
}
