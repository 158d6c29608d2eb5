/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow.c - the N x M parallel read and write by flows: servers' storage, null and in memory, to the
 * clients' memory and back.
 *
 * Each client has a file that is striped over all servers and a flow with each server, which posts
 * the other half when it gets the request. `bmi-plain` is the same amount by the bare patterns read
 * and write (read.c, write.c), in the same run; the difference is the cost of storage and flow.
 *
 * With --compute, clients with progress in the background compute while their flows run: they only
 * test for their ends now and then, and do not wait. The other contenders are the comparison: their
 * clients wait, and they and their servers have one CPU less.
 */
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/flow.h"
#include "bmi_side.h"
#include "report.h"

enum { WRITES = 1, IN_MEMORY = 2, KINDS = 4, COMPLETIONS = 16 }; /* work.on */

extern const struct pattern pattern_read, pattern_write;

static bmi_flow_context_id_t flow_context;
static struct pollfd flow_fds[2]; /* flows', the side's */

/* A flow whose end is counted, and reported by `ended` where that is set. */
struct half {
    void (*ended)(struct half *half);
    uint64_t *counter;
    struct bmi_flow_extent extent;
    struct bmi_side *side;
    BMI_addr_t peer;
    struct bmi_counted ack_op;
    uint64_t acked;
    uint32_t tag;
    uint8_t ack[ACK_SIZE];
};

static void flow_end(struct bmi_side *side, struct half *half, bmi_error_code_t error)
{
    bmi_check(error, "a flow");
    side->others--;
    if (half->counter)
        ++*half->counter;
    if (half->ended)
        half->ended(half);
}

static int flows_take(struct bmi_side *side, int wait_ms)
{
    bmi_flow_id_t ids[COMPLETIONS];
    bmi_error_code_t errors[COMPLETIONS];
    void *halves[COMPLETIONS];
    int count = 0;
    bmi_check(bmi_flow_testcontext(COMPLETIONS, ids, &count, errors, NULL, halves, wait_ms,
                                   flow_context),
              "bmi_flow_testcontext");
    for (int i = 0; i < count; i++)
        flow_end(side, halves[i], errors[i]);
    return count;
}

/* A server waits for flows and for requests. */
static int server_step(struct bmi_side *side, int wait_ms)
{
    int count = flows_take(side, 0);
    if (count == 0 && wait_ms > 0) {
        poll(flow_fds, 2, wait_ms);
        count = flows_take(side, 0);
    }
    return count;
}

/* A client waits for its flows; messages that come meanwhile are looked at after that. */
static int client_step(struct bmi_side *side, int wait_ms)
{
    return flows_take(side, wait_ms);
}

static void flows_open(struct bmi_side *side, bool server)
{
    struct bmi_context_fd fd = {.context = side->context};
    if (side->other_step)
        return;
    bmi_check(bmi_flow_context_open(&flow_context), "bmi_flow_context_open");
    side->other_step = server ? server_step : client_step;
    if (!server)
        return;
    bmi_check(BMI_get_info(0, BMI_GET_CONTEXT_FD, &fd), "BMI_GET_CONTEXT_FD");
    flow_fds[0] = (struct pollfd){.fd = bmi_flow_context_fd(flow_context), .events = POLLIN};
    flow_fds[1] = (struct pollfd){.fd = fd.fd, .events = POLLIN};
}

static void half_post(struct bmi_side *side, struct half *half, struct bmi_flow_description *what)
{
    bmi_flow_id_t id;
    side->others++;
    int result = bmi_flow_post(&id, what, half, flow_context);
    bmi_check(result < 0 ? result : 0, "bmi_flow_post");
    if (result == 1)
        flow_end(side, half, 0);
}

static struct bmi_flow_endpoint over_network(BMI_addr_t peer, const struct work *work)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_NETWORK,
                                      .u.network = {.address = peer, .tag = tag_data(work)}};
}

/* ---- computing clients ----------------------------------------------------------------------- */

static bool in_background(void)
{
    static int known = -1;
    struct bmi_setting setting = {.name = "progress"};
    if (known < 0)
        known =
            BMI_get_info(0, BMI_SETTING, &setting) == 0 && strcmp(setting.value, "background") == 0;
    return known;
}

/* Makes this process leave one of its CPUs free, as if another one computed there, until its end.
 * No server that runs already gets this request, since its progress is not known. */
static void cpu_leave(void)
{
    static bool left;
    cpu_set_t cpus;
    size_t first = 0;
    if (left)
        return;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) < 2)
        die("flow --compute: two CPUs are wanted, one for the computing");
    while (!CPU_ISSET(first, &cpus))
        first++;
    CPU_CLR(first, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        die("flow --compute: cannot be bound to all CPUs but one");
    left = true;
}

static void cpus_choose(const struct work *work)
{
    if (work->compute_us > 0 && !in_background())
        cpu_leave();
}

/* Until flows and messages have ended. */
static void client_await(struct bmi_side *side, const struct work *work, const uint64_t *ended,
                         uint64_t target)
{
    bool computes = work->compute_us > 0 && in_background();
    uint64_t start = now_ns();
    while (computes && *ended < target && seconds_since(start) < side->timeout_s) {
        compute(work->compute_us);
        side_step(side, 0);
    }
    side_await(side, ended, target);
}

/* ---- servers --------------------------------------------------------------------------------- */

/* Waits for an operation on storage. */
static void storage_check(int result, bmi_trove_op_id_t op, bmi_trove_context_id_t context)
{
    bmi_error_code_t error = 0;
    int count;
    if (result == 0)
        bmi_check(bmi_trove_test(op, &count, &error, NULL, NULL, 60000, context), "bmi_trove_test");
    bmi_check(result < 0 ? result : error, "storage");
}

static struct bmi_trove_place object_make(const char *where, bmi_size_t size)
{
    struct bmi_trove_place place = {.collection = 1};
    bmi_trove_context_id_t context;
    bmi_trove_object_id_t object = 0;
    bmi_trove_op_id_t op;
    bmi_check(bmi_trove_open(&place.store, where, NULL, NULL, 0), "bmi_trove_open");
    bmi_check(bmi_trove_collection_create(place.store, 1), "bmi_trove_collection_create");
    bmi_check(bmi_trove_context_open(&context), "bmi_trove_context_open");
    int result = bmi_trove_post_create(&op, &place, &object, 0, NULL, context);
    storage_check(result, op, context);
    place.object = object;
    void *bytes = allocate_pages((uint64_t)size); /* all of it is there, for reads */
    result = bmi_trove_post_write_at(&op, &place, bytes, size, 0, NULL, 0, NULL, context);
    storage_check(result, op, context);
    free(bytes);
    bmi_check(bmi_trove_context_close(context), "bmi_trove_context_close");
    return place;
}

/* A server's object; all clients read and write this one. */
static const struct bmi_trove_place *server_object(const struct work *work)
{
    static struct bmi_trove_place places[2];
    static bmi_size_t sizes[2];
    int kind = (work->on & IN_MEMORY) != 0;
    if (sizes[kind] < (bmi_size_t)work->amount) {
        if (places[kind].store)
            bmi_check(bmi_trove_close(places[kind].store), "bmi_trove_close");
        places[kind] = object_make(kind ? "mem:" : "null:", (bmi_size_t)work->amount);
        sizes[kind] = (bmi_size_t)work->amount;
    }
    return &places[kind];
}

static void half_free(struct bmi_op *op)
{
    free((char *)op - offsetof(struct half, ack_op.op));
}

/* A write has arrived: the client waits for this acknowledgement. */
static void write_ended(struct half *half)
{
    half->ack_op.op.complete = half_free;
    side_send(half->side, &half->ack_op.op, half->peer, half->ack, ACK_SIZE, BMI_EXT_ALLOC,
              (bmi_msg_tag_t)half->tag);
}

static void read_ended(struct half *half)
{
    free(half);
}

static void flow_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    bool writes = work->on & WRITES;
    cpus_choose(work);
    if (work->plain) {
        (writes ? &pattern_write : &pattern_read)->serve_bmi(side, work, client);
        return;
    }
    flows_open(side, true);
    struct half *half = allocate(sizeof *half);
    *half = (struct half){.ended = writes ? write_ended : read_ended,
                          .extent = {.size = (bmi_size_t)work->amount, .count = 1},
                          .side = side,
                          .peer = client,
                          .tag = (uint32_t)tag_ack(work)};
    struct bmi_flow_endpoint storage = {.kind = BMI_FLOW_STORAGE,
                                        .u.storage = {.place = *server_object(work)}};
    struct bmi_flow_endpoint network = over_network(client, work);
    /* its part of the file: the client's flow has the same bytes in the same order */
    half_post(side, half,
              &(struct bmi_flow_description){.source = writes ? network : storage,
                                             .destination = writes ? storage : network,
                                             .extents = &half->extent,
                                             .extent_count = 1,
                                             .buffer_count = work->window,
                                             .buffer_size = work->size});
}

/* ---- clients --------------------------------------------------------------------------------- */

/* A client's file in memory: as in read and write no more of it than fits a cache, again and again.
 */
struct region {
    void **buffers;
    bmi_size_t *sizes;
    int count;
};

static struct region region_make(const struct work *work, uint64_t size, int servers)
{
    uint64_t area = data_area(work) * (uint64_t)servers;
    int count = (int)((size + area - 1) / area);
    struct region region = {.count = count};
    uint8_t *memory = data_arena(area);
    region.buffers = allocate((size_t)count * sizeof *region.buffers);
    region.sizes = allocate((size_t)count * sizeof *region.sizes);
    for (int i = 0; i < count; i++) {
        region.buffers[i] = memory;
        region.sizes[i] = (bmi_size_t)area;
    }
    return region;
}

static void region_free(struct region *region)
{
    free(region->buffers);
    free(region->sizes);
}

static void client_half_start(struct bmi_client *client, struct half *half, int server,
                              const struct work *work, const struct region *region)
{
    bool writes = work->on & WRITES;
    struct bmi_flow_endpoint memory = {.kind = BMI_FLOW_MEMORY,
                                       .u.memory = {.buffers = region->buffers,
                                                    .sizes = region->sizes,
                                                    .count = region->count}};
    struct bmi_flow_endpoint network = over_network(client->servers[server], work);
    if (writes) {
        half->ack_op =
            (struct bmi_counted){.op.complete = counted_complete, .counter = half->counter};
        side_recv(&client->side, &half->ack_op.op, client->servers[server], half->ack, ACK_SIZE,
                  BMI_EXT_ALLOC, tag_ack(work));
    }
    half_post(&client->side, half,
              &(struct bmi_flow_description){.source = writes ? memory : network,
                                             .destination = writes ? network : memory,
                                             .extents = &half->extent,
                                             .extent_count = 1,
                                             .distribution = &bmi_flow_simple_stripe,
                                             .server = (uint32_t)server,
                                             .servers = (uint32_t)client->server_count,
                                             .buffer_count = work->window,
                                             .buffer_size = work->size});
}

static double flow_run_bmi(struct bmi_client *client, const struct work *work)
{
    int count = client->server_count;
    bool writes = work->on & WRITES;
    cpus_choose(work);
    if (work->plain)
        return (writes ? &pattern_write : &pattern_read)->run_bmi(client, work);
    flows_open(&client->side, false);
    uint64_t ended = 0, size = work->amount * (uint64_t)count;
    struct region region = region_make(work, size, count);
    struct half *halves = allocate((size_t)count * sizeof *halves);
    struct bmi_counted *asks = allocate((size_t)count * sizeof *asks);
    uint8_t(*requests)[REQUEST_SIZE] = allocate((size_t)count * sizeof *requests);
    uint64_t start = now_ns();
    for (int i = 0; i < count; i++) {
        struct work asked = *work;
        asked.server = (uint8_t)i;
        halves[i] =
            (struct half){.counter = &ended, .extent = {.size = (bmi_size_t)size, .count = 1}};
        client_half_start(client, &halves[i], i, work, &region);
        asks[i] = (struct bmi_counted){.op.complete = counted_complete, .counter = &ended};
        side_request(&client->side, &asks[i].op, client->servers[i], &asked, requests[i]);
    }
    client_await(&client->side, work, &ended, (uint64_t)count * (writes ? 3 : 2));
    double seconds = seconds_since(start);
    region_free(&region);
    free(requests);
    free(asks);
    free(halves);
    return seconds;
}

static void row_fill(struct row *row, const struct options *options, const struct grid *grid,
                     uint8_t kind, uint64_t size, uint64_t compute_us)
{
    static const char *const names[KINDS] = {"null to network", "network to null", "mem to network",
                                             "network to mem"};
    char grids[24] = "", computing[32] = "";
    work_fill(&row->work, options, grid, size);
    row->work.on = kind;
    row->work.compute_us = (uint16_t)compute_us;
    if (options->grid_count > 1)
        format_text(grids, sizeof grids, ", %dx%d", grid->servers, grid->clients);
    if (compute_us > 0)
        format_text(computing, sizeof computing, ", computing for %u us", row->work.compute_us);
    format_text(row->panel, sizeof row->panel, "%s%s%s", names[kind], grids, computing);
    format_text(row->label, sizeof row->label, "%llu", (unsigned long long)size);
}

static int flow_rows(const struct options *options, const struct grid *grid, struct row *rows)
{
    int times = options->time_count > 0 ? options->time_count : 1, count = 0;
    if (options->time_count > 0 && !(options->contenders & BIT(CONTENDER_BMI_BACKGROUND)))
        die("flow: --compute wants --progress background");
    if (KINDS * times * options->size_count > ROWS_MAX)
        die("at most %d sizes and times", ROWS_MAX / KINDS);
    for (uint8_t kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < times; i++)
            for (int j = 0; j < options->size_count; j++)
                row_fill(&rows[count++], options, grid, kind, options->sizes[j], options->times[i]);
    return count;
}

const struct pattern pattern_flow = {
    .name = "flow",
    .summary = "storage to network and back by flows; bmi-plain: bare messages",
    .unit = "MB/s",
    .size_name = "buffer",
    .labels = "buffer",
    .sizes = "256K",
    .amount = "32M",
    .amount_is_bytes = true,
    .amount_unit = BMI_FLOW_STRIPE_SIZE,
    .plain_is_bare = true,
    .window = 8,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_BYTES | TAKES_WINDOW | TAKES_COMPUTE,
    .on_request = BIT(CONTENDER_BMI_BACKGROUND),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_BACKGROUND),
    .rows = flow_rows,
    .value = value_bandwidth,
    .serve_bmi = flow_serve_bmi,
    .run_bmi = flow_run_bmi,
};
