/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch.c - a deadline on progress: a machine checks all flows once a second, as long as there are
 * any, and ends those whose clients move no bytes. Such a flow may last 30 s, or 5 s if other
 * requests wait. Time that the store takes is not counted.
 */
#include "server.h"

enum { LOOK_MS = 1000, STALL_MS = 30000, STALL_WAITED_MS = 5000 };

/* Whether it is the client's turn to move bytes: to send them, or to receive those read. */
static bool client_due(const struct slot *slot, const struct bmi_flow_progress *progress)
{
    bool under_way = progress->taken > progress->delivered;
    return slot->request.op == SFS_WRITE ? !under_way : under_way;
}

static void slot_look(struct slot *slot, uint64_t now_ns, int limit_ms)
{
    struct bmi_flow_progress progress;
    struct bmi_job_context *jobs = slot->server->jobs;
    if (bmi_job_flow_progress(jobs, slot->flow, &progress) < 0)
        return; /* it has ended */
    bmi_size_t moved = progress.taken + progress.delivered;
    if (moved != slot->moved || !client_due(slot, &progress)) {
        slot->moved = moved;
        slot->progress_ns = now_ns;
    } else if (now_ns - slot->progress_ns > (uint64_t)limit_ms * 1000000) {
        slot->stalled = true;
        bmi_job_cancel(jobs, slot->flow);
    }
}

/* Choices: 0: wait; 1: no flow is left. */
static int look(struct bmi_sm *machine, void *data)
{
    struct server *server = data;
    uint64_t now_ns = bmi_job_deadline(0);
    int limit_ms = shares_waiting(&server->shares) ? STALL_WAITED_MS : STALL_MS;
    int flows = 0;
    for (int i = 0; i < server->slot_count; i++) {
        if (server->slots[i].flow == 0)
            continue;
        flows++;
        slot_look(&server->slots[i], now_ns, limit_ms);
    }
    server->watching = flows > 0 && !bmi_sm_cancelled(machine);
    return !server->watching;
}

static int wait_ms(struct bmi_sm *machine, void *data)
{
    struct server *server = data;
    struct bmi_job_options options = {.machine = machine};
    return bmi_sm_posted(
        bmi_job_timer(server->jobs, bmi_job_deadline(LOOK_MS), &options, NULL, NULL));
}

static const struct bmi_sm_state states[] = {
    {"wait", .action = wait_ms, .on = {BMI_SM_ELSE(1)}},
    {"look", .action = look, .choices = 2, .on = {BMI_SM_OK(0), BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table watch_table = {"watch", states, 2, 0};

/* Without memory for the machine the request's own deadline applies. */
void watch_flow(struct slot *slot)
{
    struct server *server = slot->server;
    slot->progress_ns = bmi_job_deadline(0);
    slot->moved = 0;
    if (!server->watching)
        server->watching =
            bmi_sm_start(server->jobs, &watch_table, server, NULL, NULL, NULL, NULL) == 0;
}
