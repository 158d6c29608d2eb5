/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow_test.c - flows between all kinds of endpoint, with this process as the peer, and requests
 * over several servers, compared with a model that works byte by byte.
 */
#include <semaphore.h>
#include <time.h>

#include "bmi/task.h"
#include "flow/flow_self.h"
#include "flow/random.h"

/* ---- pairs of endpoints ---------------------------------------------------------------------- */

static void memory_and_storage(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    files_make(1);
    struct bmi_trove_place place = object_make("", 0);
    struct region from = {file, FILE_SIZE}, to = {arrived, FILE_SIZE};
    struct bmi_flow_description put = {.source = in_memory(&from),
                                       .destination = on_storage(&place),
                                       .extents = &extent,
                                       .extent_count = 1};
    put.destination.u.storage.flags = BMI_TROVE_SYNC;
    struct bmi_flow_description get = {.source = on_storage(&place),
                                       .destination = in_memory(&to),
                                       .extents = &extent,
                                       .extent_count = 1};
    CU_ASSERT_EQUAL(flow_run(&put, NULL), 0);
    CU_ASSERT_EQUAL(flow_run(&get, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

static void memory_to_memory_is_packed(void)
{
    enum { ROWS = 100, WIDTH = 1000, COLUMN = 30 };
    static char packed[ROWS * COLUMN];
    files_make(2);
    /* each row's first bytes, out of a matrix whose regions are the rows */
    void *rows[ROWS];
    bmi_size_t sizes[ROWS];
    for (int i = 0; i < ROWS; i++) {
        rows[i] = file + i * WIDTH;
        sizes[i] = COLUMN;
    }
    const struct bmi_flow_extent extent = all(ROWS * COLUMN);
    struct region to = {packed, sizeof packed};
    struct bmi_flow_description what = {
        .source = {.kind = BMI_FLOW_MEMORY,
                   .u.memory = {.buffers = rows, .sizes = sizes, .count = ROWS}},
        .destination = in_memory(&to),
        .extents = &extent,
        .extent_count = 1,
        .buffer_size = 777};
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    for (int i = 0; i < ROWS; i++)
        CU_ASSERT_EQUAL(memcmp(packed + i * COLUMN, file + i * WIDTH, COLUMN), 0);
}

/* Storage - network - network - storage, with a relay between. */
static void through_the_network_and_a_relay(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    struct flows flows = {0};
    files_make(3);
    struct bmi_trove_place from = object_make(file, FILE_SIZE), to = object_make("", 0);
    flows_post(&flows, &(struct bmi_flow_description){.source = on_storage(&from),
                                                      .destination = from_network(1),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(1),
                                                      .destination = from_network(2),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(2),
                                                      .destination = on_storage(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_wait(&flows);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(flows.errors[i], 0);
        CU_ASSERT(flows.actuals[i] == FILE_SIZE || flows.actuals[i] == -1);
    }
    object_read(&to, arrived, FILE_SIZE);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

/* ---- requests over several servers, against a model ------------------------------------------ */

/* Random extents in ascending order that do not overlap. Returns their number, and the
 * file's end. */
static int request_random(struct bmi_flow_extent *extents, int most, bmi_size_t *end)
{
    int count = 1 + (int)random_below((uint32_t)most);
    bmi_size_t at = random_below(3000);
    for (int i = 0; i < count; i++) {
        bmi_size_t size =
            random_below(8) == 0 ? 0 : 1 + random_below(random_below(3) == 0 ? 40000 : 500);
        extents[i] =
            (struct bmi_flow_extent){.offset = at, .size = size, .count = 1 + random_below(9)};
        extents[i].stride = extents[i].count > 1 ? size + random_below(3) * random_below(1000) : 0;
        at += (extents[i].count - 1) * extents[i].stride + size +
              random_below(3) * random_below(2000);
    }
    *end = at;
    return count;
}

/* Copies the request's bytes between a file and its packed form. */
static void model_copy(const struct bmi_flow_extent *extents, int count, char *bytes, char *packed,
                       bool pack)
{
    for (int i = 0; i < count; i++)
        for (bmi_size_t block = 0; block < extents[i].count; block++) {
            char *at = bytes + extents[i].offset + block * extents[i].stride;
            memcpy(pack ? packed : at, pack ? at : packed, (size_t)extents[i].size);
            packed += extents[i].size;
        }
}

/* Memory in regions of random sizes over `bytes`. */
static int regions_random(char *bytes, bmi_size_t size, void **buffers, bmi_size_t *sizes, int most)
{
    int count = 0;
    for (bmi_size_t done = 0; done < size; done += sizes[count++]) {
        buffers[count] = bytes + done;
        sizes[count] = random_below(6) == 0 ? 0 : 1 + random_below(5000);
        if (sizes[count] > size - done || count == most - 1)
            sizes[count] = size - done;
    }
    return count;
}

enum { SERVERS = 3, EXTENTS = 12, MOST = 5 * 1024 * 1024, REGIONS = 64 };

struct striped {
    struct bmi_trove_place places[SERVERS];
    struct bmi_flow_extent extents[EXTENTS];
    int count;
    bmi_size_t end, total;
    struct bmi_flow_stripe stripe;
    bmi_size_t buffer_size;
    uint32_t buffers;
    bmi_msg_tag_t tag;
};

/* Both sides of a server's flow. */
static void striped_post(struct striped *striped, struct flows *flows, uint32_t server,
                         struct bmi_flow_endpoint memory, bool put)
{
    struct bmi_flow_description what = {.extents = striped->extents,
                                        .extent_count = striped->count,
                                        .distribution = &bmi_flow_simple_stripe,
                                        .distribution_parameters = &striped->stripe,
                                        .server = server,
                                        .servers = SERVERS,
                                        .buffer_size = striped->buffer_size,
                                        .buffer_count = striped->buffers,
                                        .flags = put ? 0 : BMI_FLOW_ZEROS,
                                        .timeout_ms = 600000};
    struct bmi_flow_endpoint storage = on_storage(&striped->places[server]);
    struct bmi_flow_endpoint network = from_network(striped->tag + (bmi_msg_tag_t)server);
    what.source = put ? memory : storage;
    what.destination = network;
    flows_post(flows, &what);
    what.source = network;
    what.destination = put ? storage : memory;
    flows_post(flows, &what);
}

static void striped_random(struct striped *striped, int round)
{
    striped->count = request_random(striped->extents, EXTENTS, &striped->end);
    striped->stripe.stripe_size = 1 + random_below(20000);
    striped->buffer_size = 1 + random_below(30000) + (random_below(4) == 0 ? 0 : 1000);
    striped->buffers = 1 + random_below(9);
    striped->tag = round * 100;
    striped->total = bmi_flow_request_size(striped->extents, striped->count, NULL, NULL, 1, 1);
    CU_ASSERT_FATAL(striped->end < MOST && striped->total >= 0);
}

static void striped_files_against_a_model(void)
{
    static char whole[MOST], packed[MOST], back[MOST], stream[MOST];
    void *buffers[REGIONS];
    bmi_size_t sizes[REGIONS];
    random_begin();
    for (int round = 0; round < 12; round++) {
        struct striped striped;
        striped_random(&striped, round);
        memset(whole, 0, (size_t)striped.end);
        bytes_make(packed, (size_t)striped.total, (unsigned)round);
        model_copy(striped.extents, striped.count, whole, packed, false);
        for (int i = 0; i < SERVERS; i++)
            striped.places[i] = object_make("", 0);
        struct bmi_flow_endpoint memory = {.kind = BMI_FLOW_MEMORY,
                                           .u.memory = {.buffers = buffers, .sizes = sizes}};
        memory.u.memory.count = regions_random(packed, striped.total, buffers, sizes, REGIONS);
        struct flows flows = {0};
        for (uint32_t i = 0; i < SERVERS; i++)
            striped_post(&striped, &flows, i, memory, true);
        flows_wait(&flows);
        for (int i = 0; i < flows.count; i++)
            CU_ASSERT_EQUAL(flows.errors[i], 0);
        for (uint32_t i = 0; i < SERVERS; i++) { /* each byte of the file is at its place */
            object_read(&striped.places[i], stream, MOST);
            bool same = true;
            bmi_size_t unit = striped.stripe.stripe_size;
            for (bmi_size_t at = 0; at < striped.end; at++)
                if ((uint32_t)(at / unit) % SERVERS == i)
                    same = same && stream[at / unit / SERVERS * unit + at % unit] == whole[at];
            CU_ASSERT(same);
        }
        memory.u.memory.count = regions_random(back, striped.total, buffers, sizes, REGIONS);
        memset(back, 1, (size_t)striped.total);
        flows = (struct flows){0};
        for (uint32_t i = 0; i < SERVERS; i++)
            striped_post(&striped, &flows, i, memory, false);
        flows_wait(&flows);
        for (int i = 0; i < flows.count; i++)
            CU_ASSERT_EQUAL(flows.errors[i], 0);
        CU_ASSERT_EQUAL(memcmp(back, packed, (size_t)striped.total), 0);
    }
}

/* ---- copies and checks that are avoided ------------------------------------------------------ */

static void aligned_stripes_are_not_copied(void)
{
    const struct bmi_flow_extent extent = all(1 << 20);
    struct bmi_statistics before, after;
    struct flows flows = {0};
    files_make(4);
    struct region from = {file, 1 << 20}, to = {arrived, 1 << 20};
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_STATISTICS, &before), 0);
    /* the receiver first: no message waits in the library then */
    int receiver = flows_post(&flows, &(struct bmi_flow_description){.source = from_network(9),
                                                                     .destination = in_memory(&to),
                                                                     .extents = &extent,
                                                                     .extent_count = 1});
    bmi_flow_id_t id = flows.ids[receiver];
    int sender = flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                                   .destination = from_network(9),
                                                                   .extents = &extent,
                                                                   .extent_count = 1});
    struct bmi_flow_progress progress = {0};
    CU_ASSERT_EQUAL(bmi_flow_progress(id, &progress, context), 0);
    CU_ASSERT_EQUAL(progress.copied, 0);
    CU_ASSERT(progress.in_flight <= BMI_FLOW_BUFFERS);
    flows_wait(&flows);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_STATISTICS, &after), 0);
    CU_ASSERT_EQUAL(after.copied_bytes, before.copied_bytes);
    CU_ASSERT_EQUAL(memcmp(file, arrived, 1 << 20), 0);
    CU_ASSERT_EQUAL(flows.errors[sender], 0);
    CU_ASSERT_EQUAL(flows.errors[receiver], 0);
    CU_ASSERT_EQUAL(bmi_flow_progress(id, &progress, context), -BMI_EINVAL);
}

static void memory_of_a_store_is_not_copied(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    struct bmi_trove_statistics before, after;
    struct flows flows = {0};
    files_make(5);
    struct bmi_trove_place from = object_make(file, FILE_SIZE), to = object_make("old", 3);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &before), 0);
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(3),
                                                      .destination = on_storage(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = on_storage(&from),
                                                      .destination = from_network(3),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_wait(&flows);
    CU_ASSERT_EQUAL(flows.errors[0], 0);
    CU_ASSERT_EQUAL(flows.errors[1], 0);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &after), 0);
    /* read: all of it; written: all but the last part, which is not a whole block */
    CU_ASSERT_EQUAL(after.lent_bytes - before.lent_bytes,
                    FILE_SIZE + FILE_SIZE / BMI_FLOW_BUFFER_SIZE * BMI_FLOW_BUFFER_SIZE);
    object_read(&to, arrived, FILE_SIZE);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

static void ended(void *argument)
{
    atomic_store((atomic_bool *)argument, true);
}

/* A flow holds its store's memory until it ends, not until its end is fetched. */
static void a_store_is_closed_before_an_end_is_fetched(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    struct bmi_trove_store *before = store;
    struct bmi_trove_statistics statistics;
    bmi_flow_context_id_t mine;
    bmi_flow_id_t id = 0;
    bmi_error_code_t error = 0;
    bmi_size_t actual = 0;
    atomic_bool has_ended = false;
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, "mem:", NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&mine), 0);
    CU_ASSERT_EQUAL(bmi_flow_context_notify(mine, ended, &has_ended), 0);
    struct bmi_trove_place from = object_make(file, FILE_SIZE);
    struct region to = {arrived, FILE_SIZE};
    struct bmi_flow_description sending = {.source = on_storage(&from),
                                           .destination = from_network(4),
                                           .extents = &extent,
                                           .extent_count = 1};
    CU_ASSERT_EQUAL_FATAL(bmi_flow_post(&id, &sending, NULL, mine), 0);
    CU_ASSERT_EQUAL(flow_run(&(struct bmi_flow_description){.source = from_network(4),
                                                            .destination = in_memory(&to),
                                                            .extents = &extent,
                                                            .extent_count = 1},
                             NULL),
                    0);
    while (!atomic_load(&has_ended)) /* runs the rest of it */
        bmi_flow_testcontext(1, &(bmi_flow_id_t){0}, &count, &error, &actual, NULL, 1, context);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.lent_bytes, FILE_SIZE);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    store = before;
    CU_ASSERT_EQUAL(bmi_flow_test(id, &count, &error, &actual, NULL, 0, mine), 1);
    CU_ASSERT_EQUAL(error, 0);
    CU_ASSERT_EQUAL(actual, FILE_SIZE);
    CU_ASSERT_EQUAL(bmi_flow_context_close(mine), 0);
}

static void bad_flows_are_refused(void)
{
    bmi_flow_id_t id = 5;
    const struct bmi_flow_extent extent = all(100);
    struct bmi_trove_place place = object_make("", 0);
    struct region from = {file, 100}, small = {arrived, 99};
    const struct bmi_flow_description good = {.source = in_memory(&from),
                                              .destination = on_storage(&place),
                                              .extents = &extent,
                                              .extent_count = 1};
    struct bmi_flow_description what = good;
    CU_ASSERT_EQUAL(bmi_flow_post(NULL, &what, NULL, context), -BMI_EINVAL);
    id = 77;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, NULL, NULL, context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context + 1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    what.source = on_storage(&place);
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
    what = good;
    what.destination = in_memory(&small);
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
    what = good;
    what.server = 1;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
    what = good;
    what.flags = 1u << 20;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
    what = good;
    what.buffer_count = 2000;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
    what = good;
    what.extent_count = 0;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), 1);
    what = good;
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    place.object += 1000;
    what.destination = on_storage(&place);
    CU_ASSERT_EQUAL(flow_run(&what, NULL), -BMI_ENOENT);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void a_stream_that_ends_too_early(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    bmi_size_t actual;
    files_make(5);
    struct bmi_trove_place place = object_make(file, 1000000);
    struct region to = {arrived, FILE_SIZE};
    struct bmi_flow_description what = {.source = on_storage(&place),
                                        .destination = in_memory(&to),
                                        .extents = &extent,
                                        .extent_count = 1};
    CU_ASSERT_EQUAL(flow_run(&what, &actual), -BMI_ENODATA);
    CU_ASSERT_EQUAL(actual, 1000000);
    CU_ASSERT_EQUAL(memcmp(file, arrived, 1000000), 0);
    what.flags = BMI_FLOW_ZEROS;
    memset(arrived, 1, FILE_SIZE);
    CU_ASSERT_EQUAL(flow_run(&what, &actual), 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, 1000000), 0);
    for (bmi_size_t at = 1000000; at < FILE_SIZE; at += 777)
        CU_ASSERT_EQUAL(arrived[at], 0);
}

/* The sender's storage fails: the receiver ends, too, and both report the good bytes. */
static void a_failing_source_ends_both_sides(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    for (uint64_t skip = 0; skip < 14; skip++) {
        struct flows flows = {0};
        files_make(6);
        struct bmi_trove_place place = object_make(file, FILE_SIZE);
        struct region to = {arrived, FILE_SIZE};
        CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_READS,
                                                                          .skip = skip,
                                                                          .times = 1,
                                                                          .error = -BMI_EIO}),
                        0);
        flows_post(&flows, &(struct bmi_flow_description){.source = on_storage(&place),
                                                          .destination = from_network(4),
                                                          .extents = &extent,
                                                          .extent_count = 1});
        flows_post(&flows, &(struct bmi_flow_description){.source = from_network(4),
                                                          .destination = in_memory(&to),
                                                          .extents = &extent,
                                                          .extent_count = 1});
        flows_wait(&flows);
        bool whole = skip >= (FILE_SIZE + BMI_FLOW_BUFFER_SIZE - 1) / BMI_FLOW_BUFFER_SIZE;
        bmi_size_t good = whole ? FILE_SIZE : (bmi_size_t)skip * BMI_FLOW_BUFFER_SIZE;
        CU_ASSERT_EQUAL(flows.errors[0], whole ? 0 : -BMI_EIO);
        CU_ASSERT_EQUAL(flows.errors[1], whole ? 0 : -BMI_EPIPE);
        if (!whole) {
            CU_ASSERT_EQUAL(flows.actuals[0], good);
            CU_ASSERT_EQUAL(flows.actuals[1], good);
        }
        CU_ASSERT_EQUAL(memcmp(file, arrived, (size_t)good), 0);
        CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    }
}

/* The receiver's storage fails: with BMI_FLOW_DRAIN the sender's flow ends without an error. */
static void a_failing_destination_drains(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    for (uint64_t skip = 0; skip < 14; skip++) {
        struct flows flows = {0};
        files_make(7);
        struct bmi_trove_place place = object_make("", 0);
        struct region from = {file, FILE_SIZE};
        CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_WRITES,
                                                                          .skip = skip,
                                                                          .times = 1,
                                                                          .error = -BMI_ENOSPC,
                                                                          .limit = 5000}),
                        0);
        flows_post(&flows, &(struct bmi_flow_description){.source = from_network(4),
                                                          .destination = on_storage(&place),
                                                          .extents = &extent,
                                                          .extent_count = 1,
                                                          .flags = BMI_FLOW_DRAIN});
        flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                          .destination = from_network(4),
                                                          .extents = &extent,
                                                          .extent_count = 1});
        flows_wait(&flows);
        bool whole = skip >= (FILE_SIZE + BMI_FLOW_BUFFER_SIZE - 1) / BMI_FLOW_BUFFER_SIZE;
        bmi_size_t good = (bmi_size_t)skip * BMI_FLOW_BUFFER_SIZE + 5000;
        CU_ASSERT_EQUAL(flows.errors[0], whole ? 0 : -BMI_ENOSPC);
        CU_ASSERT_EQUAL(flows.errors[1], 0);
        if (!whole) {
            CU_ASSERT_EQUAL(flows.actuals[0], good < FILE_SIZE ? good : FILE_SIZE);
        }
        CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
        object_read(&place, arrived, FILE_SIZE);
        if (!whole && good < FILE_SIZE)
            CU_ASSERT_EQUAL(memcmp(file, arrived, (size_t)good), 0);
    }
}

/* Short reads and writes are continued. */
static void short_operations_are_completed(void)
{
    const struct bmi_flow_extent extent = all(1 << 20);
    files_make(8);
    struct bmi_trove_place place = object_make("", 0);
    struct region from = {file, 1 << 20}, to = {arrived, 1 << 20};
    struct flows flows = {0};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_READS |
                                                                               BMI_TROVE_WRITES,
                                                                      .limit = 10007}),
                    0);
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(4),
                                                      .destination = on_storage(&place),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                      .destination = from_network(4),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_wait(&flows);
    flows_post(&flows, &(struct bmi_flow_description){.source = on_storage(&place),
                                                      .destination = from_network(4),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(4),
                                                      .destination = in_memory(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_wait(&flows);
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(flows.errors[i], 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, 1 << 20), 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
}

/* More regions of memory in a chunk than storage takes in a list. */
static void regions_beyond_a_list_of_storage(void)
{
    enum { MANY = BMI_TROVE_LIST_MAX + 1000, APART = 2 };
    const struct bmi_flow_extent extents[2] = {all(MANY - 700),
                                               {.offset = MANY, .size = 700, .count = 1}};
    char *bytes = malloc(MANY * APART), *back = calloc(MANY, APART);
    void **buffers = malloc(MANY * sizeof *buffers);
    bmi_size_t *sizes = malloc(MANY * sizeof *sizes);
    CU_ASSERT_FATAL(bytes != NULL && back != NULL && buffers != NULL && sizes != NULL);
    struct bmi_trove_place place = object_make("", 0);
    struct bmi_flow_endpoint regions = {
        .kind = BMI_FLOW_MEMORY, .u.memory = {.buffers = buffers, .sizes = sizes, .count = MANY}};
    struct bmi_flow_description what = {.source = regions,
                                        .destination = on_storage(&place),
                                        .extents = extents,
                                        .extent_count = 2,
                                        .buffer_size = 2 * MANY};
    bytes_make(bytes, MANY * APART, 12);
    for (int i = 0; i < MANY; i++) {
        buffers[i] = bytes + i * APART;
        sizes[i] = 1;
    }
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    for (int i = 0; i < MANY; i++)
        buffers[i] = back + i * APART;
    what.source = on_storage(&place);
    what.destination = regions;
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    bool same = true;
    for (int i = 0; i < MANY * APART; i++)
        same = same && back[i] == (i % APART == 0 ? bytes[i] : 0);
    CU_ASSERT(same);
    free(bytes);
    free(back);
    free(buffers);
    free(sizes);
}

static void messages_of_another_size_end_it(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    struct region from = {file, FILE_SIZE}, to = {arrived, FILE_SIZE};
    for (int larger = 0; larger < 2; larger++) {
        struct flows flows = {0};
        flows_post(&flows, &(struct bmi_flow_description){.source = from_network(40 + larger),
                                                          .destination = in_memory(&to),
                                                          .extents = &extent,
                                                          .extent_count = 1,
                                                          .buffer_size = 200000});
        flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                          .destination = from_network(40 + larger),
                                                          .extents = &extent,
                                                          .extent_count = 1,
                                                          .buffer_size = larger ? 210000 : 190000,
                                                          .timeout_ms = 200});
        flows_wait(&flows);
        CU_ASSERT_EQUAL(flows.errors[0], -BMI_EPROTO);
        CU_ASSERT_EQUAL(flows.errors[1], -BMI_ETIMEDOUT); /* the rest has no receiver */
        CU_ASSERT_EQUAL(flows.actuals[0], 0);
    }
}

/* Given a request of no bytes, when either side posts its flow, it is done within the post. */
static void no_bytes_are_done_within_the_post(void)
{
    static const struct bmi_flow_extent none[] = {{.offset = 5, .size = 0, .count = 1}};
    struct region with = {arrived, FILE_SIZE};
    for (int count = 0; count <= 1; count++) {
        struct bmi_flow_description what = {.source = from_network(60),
                                            .destination = in_memory(&with),
                                            .extents = none,
                                            .extent_count = count};
        bmi_flow_id_t id = 1;
        CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), 1);
        CU_ASSERT_EQUAL(id, 0);
        what.destination = what.source;
        what.source = in_memory(&with);
        CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), 1);
    }
}

static void cancelled_and_late_flows_end_once(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    struct region to = {arrived, FILE_SIZE};
    struct flows flows = {0};
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(50),
                                                      .destination = in_memory(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(51),
                                                      .destination = in_memory(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1,
                                                      .timeout_ms = 50});
    flows_post(&flows, &(struct bmi_flow_description){.source = from_network(52),
                                                      .destination = in_memory(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1,
                                                      .timeout_ms = 1000000});
    struct bmi_flow_progress progress = {0};
    CU_ASSERT_EQUAL(bmi_flow_progress(flows.ids[0], &progress, context), 0);
    CU_ASSERT_EQUAL(progress.total, FILE_SIZE); /* although no byte has come */
    CU_ASSERT_EQUAL(bmi_flow_cancel(flows.ids[0], context), 0);
    CU_ASSERT_EQUAL(bmi_flow_cancel(flows.ids[0], context), 0);
    CU_ASSERT_EQUAL(bmi_flow_cancel(12345, context), -BMI_EINVAL);
    flows.left = 2;
    flows_wait(&flows);
    CU_ASSERT_EQUAL(flows.errors[0], -BMI_ECANCEL);
    CU_ASSERT_EQUAL(flows.errors[1], -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_flow_cancel(flows.ids[2], context), 0);
    bmi_flow_id_t some[2] = {0, flows.ids[2]};
    bmi_error_code_t error = 0;
    int count = 0, index = 0;
    CU_ASSERT_EQUAL(bmi_flow_testsome(2, some, &count, &index, &error, NULL, NULL, PATIENCE_MS,
                                      context),
                    1);
    CU_ASSERT(count == 1 && index == 1);
    CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
}

/* With workers a flow continues without a test call. */
static void workers_run_flows(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    memory_and_storage();
    through_the_network_and_a_relay();
    striped_files_against_a_model();
    cancelled_and_late_flows_end_once();
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
}

static void tell(void *argument)
{
    sem_post(argument);
}

/* With workers steps run without a test call when storage has completed their operations. */
static void workers_look_at_storage(void)
{
    const struct bmi_flow_extent extent = all(FILE_SIZE);
    const struct bmi_trove_fault slow = {.kinds = BMI_TROVE_WRITES, .delay_ms = 1};
    struct region from = {file, FILE_SIZE};
    struct flows flows = {0};
    struct timespec late;
    sem_t ended_one;
    sem_init(&ended_one, 0, 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    struct bmi_trove_place to = object_make("", 0);
    CU_ASSERT_EQUAL(bmi_flow_context_notify(context, tell, &ended_one), 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &slow), 0); /* by tasks, after the post */
    flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                      .destination = on_storage(&to),
                                                      .extents = &extent,
                                                      .extent_count = 1});
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += PATIENCE_MS / 1000;
    CU_ASSERT_EQUAL_FATAL(flows.left, 1);
    CU_ASSERT_EQUAL_FATAL(sem_timedwait(&ended_one, &late), 0);
    CU_ASSERT_EQUAL(bmi_flow_context_notify(context, NULL, NULL), 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    flows_wait(&flows);
    CU_ASSERT_EQUAL(flows.errors[0], 0);
    CU_ASSERT_EQUAL(flows.actuals[0], FILE_SIZE);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
    sem_destroy(&ended_one);
}

/* Neither the post nor the end waits until all blocks were checked. */
static void blocks_that_are_all_elsewhere(void)
{
    const struct bmi_flow_extent extent = {.offset = BMI_FLOW_STRIPE_SIZE,
                                           .size = 1,
                                           .stride = 2 * BMI_FLOW_STRIPE_SIZE,
                                           .count = INT64_C(1) << 40};
    struct bmi_trove_place place = object_make("", 0);
    struct bmi_flow_description what = {.source = on_storage(&place),
                                        .destination = from_network(7),
                                        .extents = &extent,
                                        .extent_count = 1,
                                        .distribution = &bmi_flow_simple_stripe,
                                        .server = 0,
                                        .servers = 2,
                                        .timeout_ms = 50};
    for (int cancel = 0; cancel < 2; cancel++) {
        struct flows flows = {0};
        what.timeout_ms = cancel ? 600000 : 50;
        flows_post(&flows, &what);
        if (cancel)
            CU_ASSERT_EQUAL(bmi_flow_cancel(flows.ids[0], context), 0);
        flows_wait(&flows);
        CU_ASSERT_EQUAL(flows.errors[0], cancel ? -BMI_ECANCEL : -BMI_ETIMEDOUT);
    }
}

static CU_TestInfo cases[] = {
    {"memory and storage", memory_and_storage},
    {"memory to memory is packed", memory_to_memory_is_packed},
    {"through the network and a relay", through_the_network_and_a_relay},
    {"striped files against a model", striped_files_against_a_model},
    {"aligned stripes are not copied", aligned_stripes_are_not_copied},
    {"memory of a store is not copied", memory_of_a_store_is_not_copied},
    {"a store is closed before an end is fetched", a_store_is_closed_before_an_end_is_fetched},
    {"bad flows are refused", bad_flows_are_refused},
    {"blocks that are all elsewhere", blocks_that_are_all_elsewhere},
    {"a stream that ends too early", a_stream_that_ends_too_early},
    {"a failing source ends both sides", a_failing_source_ends_both_sides},
    {"a failing destination drains", a_failing_destination_drains},
    {"short operations are completed", short_operations_are_completed},
    {"regions beyond a list of storage", regions_beyond_a_list_of_storage},
    {"messages of another size end it", messages_of_another_size_end_it},
    {"no bytes are done within the post", no_bytes_are_done_within_the_post},
    {"cancelled and late flows end once", cancelled_and_late_flows_end_once},
    {"workers run flows", workers_run_flows},
    {"workers look at storage", workers_look_at_storage},
    CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {
        {"flow", NULL, NULL, set_up, tear_down, cases},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
