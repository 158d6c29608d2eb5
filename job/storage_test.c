/* SPDX-License-Identifier: BSD-3-Clause
 *
 * storage_test.c - jobs of storage and flows, beside all others: in memory and in a folder, in the
 * foreground and in the background.
 */
#include <ftw.h>
#include <poll.h>
#include <unistd.h>

#include "job/internal.h"
#include "job/job_case.h"

enum { STREAM = 3 * 1000 * 1000 };

static struct bmi_trove_store *store;
static struct bmi_trove_place place;
static char folder[] = "/tmp/bmi-job-XXXXXX";

static void store_open(const char *where)
{
    struct bmi_trove_settings settings = {.create = true};
    char error[256] = "";
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, where, &settings, error, sizeof error), 0);
    CU_ASSERT_EQUAL(bmi_trove_collection_create(store, 1), 0);
    place = (struct bmi_trove_place){store, 1, 7};
}

static int unlink_each(const char *path, const struct stat *stat, int kind, struct FTW *walk)
{
    (void)stat;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* The status of a job that was posted with this result. */
static struct bmi_job_status done(int posted, const struct bmi_job_status *status)
{
    CU_ASSERT_TRUE_FATAL(posted >= 0);
    return posted == 1 ? *status : job_case_fetch();
}

static void keys(void)
{
    struct bmi_job_context *context = job_case.context;
    struct bmi_job_status status = {0};
    struct bmi_trove_position position = {0};
    char name[8] = "", value[8] = "";
    struct bmi_trove_pair pair = {"key", 3, "some", 4, 0};
    struct bmi_trove_pair got[] = {{"key", 3, value, 2, 0}, {"none", 4, NULL, 0, 0}};
    struct bmi_trove_pair found[] = {{name, 8, NULL, 0, 0}, {name, 8, NULL, 0, 0}};
    int posted = bmi_job_trove_put(context, &place, &pair, 1, BMI_TROVE_SYNC, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 1);
    struct bmi_trove_pair next = {"key", 3, "more", 4, 0}, old = {NULL, 0, value, 8, 0};
    posted = bmi_job_trove_exchange(context, &place, &next, &pair, &old, 1, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 1);
    CU_ASSERT_EQUAL(memcmp(value, "some", 4), 0);
    posted = bmi_job_trove_exchange(context, &place, &next, &pair, &old, 1, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(posted < 0 ? posted : done(posted, &status).error, -BMI_EAGAIN);
    CU_ASSERT_EQUAL(memcmp(value, "more", 4), 0);
    memset(value, 0, 8);
    pair.value = "some", next.value = "some";
    posted = bmi_job_trove_put(context, &place, &pair, 1, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).error, 0);
    posted = bmi_job_trove_get(context, &place, got, 2, NULL, NULL, &status);
    status = done(posted, &status);
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_EQUAL(status.actual, 1);
    CU_ASSERT_EQUAL(got[0].error, -BMI_EMSGSIZE);
    CU_ASSERT_EQUAL(got[0].value_size, 4);
    CU_ASSERT_EQUAL(memcmp(value, "so", 3), 0);
    CU_ASSERT_EQUAL(got[1].error, -BMI_ENOENT);
    posted = bmi_job_trove_iterate(context, &place, &position, found, 2, NULL, NULL, &status);
    status = done(posted, &status);
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_EQUAL(status.actual, 1);
    CU_ASSERT_EQUAL(memcmp(name, "key", 3), 0);
    posted = bmi_job_trove_remove_keys(context, &place, got, 2, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 1);
}

static void stream_and_keys(void)
{
    struct bmi_job_context *context = job_case.context;
    struct bmi_job_status status = {0};
    bmi_trove_object_id_t object = 7;
    char out[] = "some bytes", in[32] = "";
    bmi_size_t size = 0, offset = 3, length = 4;
    void *into[] = {in};
    bmi_trove_object_id_t position = 0, list[2];
    int posted = bmi_job_trove_create(context, &place, &object, 0, NULL, NULL, &status);
    status = done(posted, &status);
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_TROVE);
    posted = bmi_job_trove_write_at(context, &place, out, 10, 0, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 10);
    posted = bmi_job_trove_size(context, &place, &size, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).error, 0);
    CU_ASSERT_EQUAL(size, 10);
    posted = bmi_job_trove_read_list(context, &place, into, &length, 1, &offset, &length, 1, 0,
                                     NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 4);
    CU_ASSERT_STRING_EQUAL(in, "e by");
    posted = bmi_job_trove_objects(context, &place, &position, list, 2, NULL, NULL, &status);
    CU_ASSERT_EQUAL(done(posted, &status).actual, 1);
    keys();
    place.object = 99;
    posted = bmi_job_trove_flush(context, &place, NULL, NULL, &status);
    CU_ASSERT_EQUAL(posted < 0 ? posted : done(posted, &status).error, -BMI_ENOENT);
    place.object = 7;
    job_case_none();
}

/* ---- flows ----------------------------------------------------------------------------------- */

static struct bmi_flow_endpoint network_end(bmi_msg_tag_t tag)
{
    struct bmi_flow_endpoint end = {.kind = BMI_FLOW_NETWORK};
    end.u.network.address = job_case.self;
    end.u.network.tag = tag;
    return end;
}

static struct bmi_flow_endpoint memory_end(void *const *buffers, const bmi_size_t *sizes)
{
    struct bmi_flow_endpoint end = {.kind = BMI_FLOW_MEMORY};
    end.u.memory.buffers = buffers;
    end.u.memory.sizes = sizes;
    end.u.memory.count = 1;
    return end;
}

static struct bmi_flow_endpoint storage_end(void)
{
    struct bmi_flow_endpoint end = {.kind = BMI_FLOW_STORAGE};
    end.u.storage.place = place;
    return end;
}

/* Two flows that are the ends of one connection; both end without an error. */
static void flow_pair(struct bmi_flow_endpoint source, struct bmi_flow_endpoint destination)
{
    struct bmi_flow_extent extent = {.size = STREAM, .count = 1};
    struct bmi_flow_description send = {.source = source,
                                        .destination = network_end(5),
                                        .extents = &extent,
                                        .extent_count = 1};
    struct bmi_flow_description receive = {.source = network_end(5),
                                           .destination = destination,
                                           .extents = &extent,
                                           .extent_count = 1};
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(PATIENCE_MS)};
    struct bmi_flow_progress progress;
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_job_flow(job_case.context, &receive, &options, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_flow_progress(job_case.context, id, &progress), 0);
    struct bmi_job_status status = {0};
    int sending = bmi_job_flow(job_case.context, &send, &options, NULL, &status);
    for (int i = 0; i < 2; i++) {
        if (i > 0 || sending == 0) /* it may be done at once */
            status = job_case_fetch();
        CU_ASSERT_EQUAL(status.error, 0);
        CU_ASSERT_EQUAL(status.actual, STREAM);
        CU_ASSERT_EQUAL(status.kind, BMI_JOB_FLOW);
    }
    CU_ASSERT_TRUE(sending >= 0);
    CU_ASSERT_EQUAL(bmi_job_flow_progress(job_case.context, id, &progress), -BMI_EINVAL);
}

static void flows(void)
{
    char *out = malloc(STREAM), *in = calloc(1, STREAM);
    void *from[] = {out}, *into[] = {in};
    bmi_size_t size = STREAM;
    for (int i = 0; i < STREAM; i++)
        out[i] = (char)(i * 7 + i / 1000);
    flow_pair(memory_end(from, &size), storage_end());
    flow_pair(storage_end(), memory_end(into, &size));
    CU_ASSERT_EQUAL(memcmp(in, out, STREAM), 0);
    free(out);
    free(in);
    job_case_none();
}

/* A flow without a sender ends at its deadline, after its own time, and when it is cancelled. */
static void flow_ends(void)
{
    static char in[1000];
    void *into[] = {in};
    bmi_size_t size = 1000;
    struct bmi_flow_extent extent = {.size = 1000, .count = 1};
    struct bmi_flow_description receive = {.source = network_end(6),
                                           .destination = memory_end(into, &size),
                                           .extents = &extent,
                                           .extent_count = 1};
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(100)};
    bmi_job_id_t id;
    int posted = bmi_job_flow(job_case.context, &receive, &options, &id, NULL);
    CU_ASSERT_TRUE(posted == 0 || posted == -BMI_ETIMEDOUT);
    if (posted == 0)
        CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ETIMEDOUT);
    receive.timeout_ms = 100;
    CU_ASSERT_EQUAL(bmi_job_flow(job_case.context, &receive, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ETIMEDOUT);
    receive.timeout_ms = 0;
    CU_ASSERT_EQUAL(bmi_job_flow(job_case.context, &receive, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ECANCEL);
    job_case_none();
}

/* ---- a machine on all of them, and the descriptor -------------------------------------------- */

static struct bmi_job_status statuses[3];

static int everything(struct bmi_sm *machine, void *data)
{
    struct bmi_job_context *context = bmi_sm_context(machine);
    struct bmi_job_options options = {.machine = machine};
    char *memory = data;
    int result =
        bmi_job_trove_read_at(context, &place, memory, 100, 0, 0, &options, NULL, &statuses[0]);
    if (result >= 0)
        result = bmi_job_timer(context, bmi_job_deadline(1), &options, NULL, &statuses[1]);
    if (result >= 0)
        result = bmi_job_trove_flush(context, &place, &options, NULL, &statuses[2]);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

static const struct bmi_sm_state states[] = {
    {"everything", .action = everything, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table table = {"everything", states, 1, 0};

static void machine(void)
{
    static char memory[100];
    struct pollfd look = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    struct bmi_job_status status;
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &table, memory, NULL, NULL, NULL, NULL),
                          0);
    while (count == 0) {
        CU_ASSERT_EQUAL_FATAL(poll(&look, 1, PATIENCE_MS), 1);
        CU_ASSERT_TRUE_FATAL(bmi_job_testcontext(job_case.context, 1, &count, &status, 0) >= 0);
    }
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_EQUAL(statuses[0].actual, 100);
}

/* Whether no other thread takes part in this context: no worker, no background. */
static bool alone(void)
{
    int background = 1;
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_BACKGROUND, &background), 0);
    return !background && !job_case.background;
}

/* A program that only polls the descriptor is woken for every end, also for one within its own
 * poll. */
static void flows_by_descriptor(void)
{
    enum { ROUNDS = 20 };
    char *out = calloc(1, STREAM), *in = malloc(STREAM);
    void *from[] = {out}, *into[] = {in};
    bmi_size_t size = STREAM;
    struct bmi_flow_extent extent = {.size = STREAM, .count = 1};
    struct bmi_flow_description send = {.source = memory_end(from, &size),
                                        .destination = network_end(5),
                                        .extents = &extent,
                                        .extent_count = 1};
    struct bmi_flow_description receive = {.source = network_end(5),
                                           .destination = memory_end(into, &size),
                                           .extents = &extent,
                                           .extent_count = 1};
    struct pollfd look = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    for (int i = 0; i < ROUNDS; i++) {
        struct bmi_job_status status = {0};
        CU_ASSERT_EQUAL_FATAL(bmi_job_flow(job_case.context, &receive, NULL, NULL, NULL), 0);
        int ended = bmi_job_flow(job_case.context, &send, NULL, NULL, &status);
        while (ended < 2) {
            int count = 1;
            CU_ASSERT_EQUAL_FATAL(poll(&look, 1, PATIENCE_MS), 1);
            for (; count > 0; ended += count) {
                bmi_job_testcontext(job_case.context, 1, &count, &status, 0);
                CU_ASSERT_EQUAL(status.error, 0);
            }
            if (alone() && atomic_load(&job_case.context->flow.pending))
                CU_ASSERT_EQUAL(poll(&look, 1, 0), 1);
        }
    }
    free(out);
    free(in);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void faults(void)
{
    struct bmi_trove_fault fault = {.kinds = BMI_TROVE_WRITES, .times = 1, .error = -BMI_ENOSPC};
    struct bmi_job_status status = {0};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
    int posted =
        bmi_job_trove_write_at(job_case.context, &place, "x", 1, 0, 0, NULL, NULL, &status);
    CU_ASSERT_EQUAL(posted < 0 ? posted : done(posted, &status).error, -BMI_ENOSPC);
    fault.limit = 3; /* in part: the count is the same for an end within the post and for a later
                        one */
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
    posted =
        bmi_job_trove_write_at(job_case.context, &place, "abcdef", 6, 0, 0, NULL, NULL, &status);
    if (posted >= 0)
        status = done(posted, &status);
    CU_ASSERT_EQUAL(status.error, -BMI_ENOSPC);
    CU_ASSERT_EQUAL(status.actual, 3);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_TROVE);
    bmi_trove_inject(store, NULL);
    job_case_none();
}

static void all(void)
{
    stream_and_keys();
    flows();
    flow_ends();
    machine();
    faults();
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

static void test_memory(void)
{
    store_open("mem:");
    all();
}

static void test_folder(void)
{
    char where[64];
    if (!BMI_WITH_LMDB) {
        printf("skipped: built without LMDB ");
        return;
    }
    strcpy(folder, "/tmp/bmi-job-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(where, sizeof where, "dir:%s/store", folder);
    store_open(where);
    all();
    nftw(folder, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
}

/* Storage work is pending when the context is closed: the test's clean-up does it. */
static void test_close(void)
{
    static char in[1000];
    static void *into[] = {in};
    static bmi_size_t size = 1000;
    static struct bmi_flow_extent extent = {.size = 1000, .count = 1};
    struct bmi_flow_description receive = {.source = network_end(6),
                                           .destination = memory_end(into, &size),
                                           .extents = &extent,
                                           .extent_count = 1};
    for (int i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(bmi_job_flow(job_case.context, &receive, NULL, NULL, NULL), 0);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"memory", test_memory},
        {"a folder", test_folder},
        {"flows, reported by the descriptor", flows_by_descriptor},
        {"close with flows pending", test_close},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("storage and flows", "storage and flows in the background", tests);
}
