/* SPDX-License-Identifier: BSD-3-Clause
 *
 * numa_test.c - on a machine with several NUMA nodes: a flow's buffers lie on the node of the
 * thread that posts it, by /proc/self/numa_maps; its steps have their home near its memory, and its
 * transfers of storage run on the node of the post. Workers run meanwhile. vm.numa runs it in
 * guests.
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>

#include "bmi/task_group.h"
#include "flow/flow_self.h"

enum { NODES_MOST = 8, NONE = -1, SEVERAL = -2, ROUNDS = 3, SKIPPED = 77, SMALL = 4096 };

static struct {
    int count;
    int cpu[NODES_MOST]; /* the first one of each */
} nodes;

static int node_of_cpu(int cpu)
{
    for (int node = 0; node < NODES_MOST; node++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
        if (access(path, F_OK) == 0)
            return node;
    }
    return NONE;
}

static void nodes_find(void)
{
    struct bmi_cpuset cpus;
    int seen = NONE;
    bmi_task_cpus(NULL, &cpus);
    for (int cpu = bmi_cpuset_next(&cpus, 0); cpu >= 0 && nodes.count < NODES_MOST;
         cpu = bmi_cpuset_next(&cpus, cpu + 1)) {
        int node = node_of_cpu(cpu);
        if (node > seen) {
            nodes.cpu[nodes.count++] = cpu;
            seen = node;
        }
    }
}

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

/* The node that all touched pages of the mapping of an address lie on; NONE, SEVERAL. */
static int node_of_mapping(const void *address)
{
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    char line[4096], found[4096] = "";
    int on = NONE;
    CU_ASSERT_PTR_NOT_NULL_FATAL(maps);
    while (fgets(line, sizeof line, maps) != NULL && strtoul(line, NULL, 16) <= (uintptr_t)address)
        memcpy(found, line, sizeof found);
    fclose(maps);
    for (int node = 0; node < NODES_MOST; node++) {
        char word[16];
        snprintf(word, sizeof word, " N%d=", node);
        if (strstr(found, word) != NULL)
            on = on == NONE ? node : SEVERAL;
    }
    return on;
}

/* ---- flows of one node ----------------------------------------------------------------------- */

static void run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    CU_ASSERT_EQUAL_FATAL(sched_setaffinity(0, sizeof set, &set), 0);
}

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

/* The manager's threads for tasks that block, which go to the CPUs of each task. */
static int blocking_threads_on(int node)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(threads);
    while ((entry = readdir(threads)) != NULL) {
        char path[280], name[32] = "";
        cpu_set_t set;
        bool on_node = true;
        snprintf(path, sizeof path, "/proc/self/task/%.200s/comm", entry->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL)
            continue;
        char *read = fgets(name, sizeof name, comm);
        fclose(comm);
        if (read == NULL || strncmp(name, "bmi-blocking", 12) != 0 ||
            sched_getaffinity(atoi(entry->d_name), sizeof set, &set) != 0)
            continue;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            on_node = on_node && (!CPU_ISSET((size_t)cpu, &set) || node_of_cpu(cpu) == node);
        count += on_node;
    }
    closedir(threads);
    return count;
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
    nodes_find();
    if (nodes.count < 2) {
        printf("skipped: this machine has one NUMA node; vm.numa runs the test in guests\n");
        return SKIPPED;
    }
    printf("%d NUMA nodes\n", nodes.count);
    return unit_run_suites(suites);
}
