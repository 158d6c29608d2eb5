/* SPDX-License-Identifier: BSD-3-Clause
 *
 * numa_test.c - on a machine with several NUMA nodes: a flow's buffers lie on the node of the
 * thread that posts it, by /proc/self/numa_maps; its steps have their home near its memory, and its
 * transfers of storage run on the node of the post. Workers run meanwhile. vm.numa runs it in
 * guests.
 */
#include <pthread.h>

#include "bmi/task_group.h"
#include "flow/flow_self.h"
#include "tests/unit/numa.h"

enum { SEVERAL = -2, ROUNDS = 3, SMALL = 4096 };

/* ---- what the flows did ---------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *buffers[BMI_FLOW_BUFFERS * NODES_MOST]; /* lock */
static int buffer_count;                             /* lock */
static int home;                                     /* of the last group; lock */

int __wrap_bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                                    void **memory);
int __real_bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                                    void **memory);

int __wrap_bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                                    void **memory)
{
    int result = __real_bmi_task_memory_allocate(manager, bytes, node, memory);
    pthread_mutex_lock(&lock);
    if (result == 0 && buffer_count < (int)COUNT_OF(buffers))
        buffers[buffer_count++] = *memory;
    pthread_mutex_unlock(&lock);
    return result;
}

static void trace(void *argument, const struct bmi_task_group_decision *decision)
{
    (void)argument;
    pthread_mutex_lock(&lock);
    if (decision->from < 0)
        home = decision->to;
    pthread_mutex_unlock(&lock);
}

/* The node that all touched pages of the mapping of an address lie on; NODE_NONE, SEVERAL. */
static int node_of_mapping(const void *address)
{
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    char line[4096], found[4096] = "";
    int on = NODE_NONE;
    CU_ASSERT_PTR_NOT_NULL_FATAL(maps);
    while (fgets(line, sizeof line, maps) != NULL && strtoul(line, NULL, 16) <= (uintptr_t)address)
        memcpy(found, line, sizeof found);
    fclose(maps);
    for (int node = 0; node < NODES_MOST; node++) {
        char word[16];
        snprintf(word, sizeof word, " N%d=", node);
        if (strstr(found, word) != NULL)
            on = on == NODE_NONE ? node : SEVERAL;
    }
    return on;
}

/* ---- flows of one node ----------------------------------------------------------------------- */

static const struct bmi_flow_extent whole = {.size = FILE_SIZE, .count = 1};
static const struct region from = {file, FILE_SIZE}, to = {arrived, FILE_SIZE};

static void post(struct flows *flows, struct bmi_flow_endpoint source,
                 struct bmi_flow_endpoint destination)
{
    flows_post(flows, &(struct bmi_flow_description){.source = source,
                                                     .destination = destination,
                                                     .extents = &whole,
                                                     .extent_count = 1});
}

/* From memory through a relay, the only flow that has buffers, to memory. */
static void relay(int round)
{
    struct flows flows = {0};
    files_make((unsigned)round);
    post(&flows, from_network(2), in_memory(&to));
    post(&flows, from_network(1), from_network(2));
    post(&flows, in_memory(&from), from_network(1));
    flows_wait(&flows);
    for (int i = 0; i < flows.count; i++)
        CU_ASSERT_EQUAL(flows.errors[i], 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

static void buffers_lie_on_their_clients_node(void)
{
    for (int i = 0; i < nodes.count; i++) {
        run_on(nodes.cpu[i]);
        buffer_count = 0;
        for (int round = 0; round < ROUNDS; round++)
            relay(round);
        CU_ASSERT_EQUAL_FATAL(buffer_count, BMI_FLOW_BUFFERS);
        for (int buffer = 0; buffer < buffer_count; buffer++)
            CU_ASSERT_EQUAL(node_of_mapping(buffers[buffer]), node_of_cpu(nodes.cpu[i]));
    }
}

/* Both are in memory of the node `memory`; chunks are so small that later steps are tasks. */
static int home_of_copy(int cpu, int memory)
{
    struct bmi_task_queue_statistics statistics;
    struct region regions[2];
    for (int i = 0; i < 2; i++) {
        regions[i].size = 100 * SMALL;
        CU_ASSERT_EQUAL_FATAL(__real_bmi_task_memory_allocate(NULL, 100 * SMALL, memory,
                                                              &regions[i].buffer),
                              0);
        memset(regions[i].buffer, i, 100 * SMALL);
    }
    const struct bmi_flow_extent extent = {.size = 100 * SMALL, .count = 1};
    struct bmi_flow_description what = {.source = in_memory(&regions[0]),
                                        .destination = in_memory(&regions[1]),
                                        .extents = &extent,
                                        .extent_count = 1,
                                        .buffer_size = SMALL};
    run_on(cpu);
    home = -1;
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(regions[0].buffer, regions[1].buffer, 100 * SMALL), 0);
    CU_ASSERT_EQUAL(node_of_mapping(regions[0].buffer), memory); /* no flow moves it */
    for (int i = 0; i < 2; i++)
        bmi_task_memory_free(regions[i].buffer, 100 * SMALL);
    pthread_mutex_lock(&lock);
    int queue = home;
    pthread_mutex_unlock(&lock);
    CU_ASSERT_EQUAL_FATAL(bmi_task_queue_statistics(NULL, queue, &statistics), 0);
    return node_of_cpu(bmi_cpuset_next(&statistics.cpus, 0));
}

static void steps_have_their_home_at_the_memory(void)
{
    CU_ASSERT_EQUAL(bmi_task_group_trace(NULL, trace, NULL), 0);
    for (int i = 0; i < nodes.count; i++)
        for (int k = 0; k < nodes.count; k++) {
            int memory = node_of_cpu(nodes.cpu[k]);
            CU_ASSERT_EQUAL(home_of_copy(nodes.cpu[i], memory), memory);
        }
    CU_ASSERT_EQUAL(bmi_task_group_trace(NULL, NULL, NULL), 0);
}

static void transfers_run_on_their_clients_node(void)
{
    const struct bmi_trove_settings settings = {.no_immediate = true};
    struct bmi_trove_store *usual = store;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, "mem:", &settings, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
    files_make(5);
    struct bmi_trove_place place = object_make(file, FILE_SIZE);
    for (int i = 0; i < nodes.count; i++) {
        int node = node_of_cpu(nodes.cpu[i]);
        struct region region = {.size = FILE_SIZE};
        run_on(nodes.cpu[i]);
        CU_ASSERT_EQUAL_FATAL(__real_bmi_task_memory_allocate(NULL, FILE_SIZE, node,
                                                              &region.buffer),
                              0);
        struct bmi_flow_description what = {.source = on_storage(&place),
                                            .destination = in_memory(&region),
                                            .extents = &whole,
                                            .extent_count = 1};
        CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
        CU_ASSERT_EQUAL(memcmp(file, region.buffer, FILE_SIZE), 0);
        CU_ASSERT(blocking_threads_on(node) > 0);
        bmi_task_memory_free(region.buffer, FILE_SIZE);
    }
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    store = usual;
}

static void set_up_with_workers(void)
{
    set_up();
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
}

static void tear_down_with_workers(void)
{
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
    tear_down();
}

static CU_TestInfo cases[] = {
    {"buffers lie on their client's node", buffers_lie_on_their_clients_node},
    {"steps have their home at the memory", steps_have_their_home_at_the_memory},
    {"transfers run on their client's node", transfers_run_on_their_clients_node},
    CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"flows on NUMA nodes", NULL, NULL, set_up_with_workers,
                              tear_down_with_workers, cases},
                             CU_SUITE_INFO_NULL};
    if (!nodes_find())
        return NODES_SKIPPED;
    return unit_run_suites(suites);
}
