/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place_test.c - where flows go on a machine of 2 NUMA nodes of 4 CPUs: node 0 has CPUs 0-3. hwloc
 * takes that machine from HWLOC_SYNTHETIC. The CPU that a thread runs on, and the memory of nodes,
 * are stand-ins. A child does the same on a machine with one node.
 */
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bmi/task_group.h"
#include "flow/flow_self.h"
#include "task/internal.h"

enum { NODE_CPUS = 4, SMALL = 4096, MOST = 16 };

/* ---- stand-ins and what they saw ------------------------------------------------------------- */

static int cpu_here;

int __wrap_sched_getcpu(void);

int __wrap_sched_getcpu(void)
{
    return cpu_here;
}

static struct {
    int count[2], freed, refused; /* count: of each node */
} buffers;

int __wrap_bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                                    void **memory);
void __wrap_bmi_task_memory_free(void *memory, uint64_t bytes);
int __wrap_bmi_task_memory_node(struct bmi_task_manager *manager, const void *memory,
                                uint64_t bytes);

int __wrap_bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                                    void **memory)
{
    CU_ASSERT_PTR_NULL(manager);
    CU_ASSERT_FATAL(node == 0 || node == 1);
    buffers.count[node]++;
    if (buffers.refused != 0)
        return buffers.refused;
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *memory != MAP_FAILED ? 0 : -BMI_ENOMEM;
}

void __wrap_bmi_task_memory_free(void *memory, uint64_t bytes)
{
    buffers.freed++;
    munmap(memory, bytes);
}

static int memory_node; /* that the program's memory lies on */

int __wrap_bmi_task_memory_node(struct bmi_task_manager *manager, const void *memory,
                                uint64_t bytes)
{
    (void)manager, (void)bytes;
    CU_ASSERT_PTR_NOT_NULL(memory);
    return memory_node;
}

static struct bmi_task_group_decision decisions[MOST];
static int decision_count;

static void trace(void *argument, const struct bmi_task_group_decision *decision)
{
    (void)argument;
    if (decision_count < MOST)
        decisions[decision_count++] = *decision;
}

/* The node whose CPUs a queue has; -1: none. */
static int node_of_queue(int queue)
{
    struct bmi_task_queue_statistics statistics;
    CU_ASSERT_EQUAL_FATAL(bmi_task_queue_statistics(NULL, queue, &statistics), 0);
    if (bmi_cpuset_count(&statistics.cpus) != NODE_CPUS)
        return -1;
    return bmi_cpuset_next(&statistics.cpus, 0) / NODE_CPUS;
}

static void given_a_thread_on(int node)
{
    cpu_here = node * NODE_CPUS + 1;
    memory_node = -1;
    memset(&buffers, 0, sizeof buffers);
    decision_count = 0;
    CU_ASSERT_EQUAL(bmi_task_group_trace(NULL, trace, NULL), 0);
}

static void then_no_group_is_left(void)
{
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(NULL, NULL), 0); /* EBUSY while there are groups */
}

/* ---- flows ----------------------------------------------------------------------------------- */

static const struct bmi_flow_extent whole = {.size = FILE_SIZE, .count = 1};
static const struct region from = {file, FILE_SIZE}, to = {arrived, FILE_SIZE};

static int post(struct flows *flows, struct bmi_flow_endpoint source,
                struct bmi_flow_endpoint destination, bmi_size_t buffer_size)
{
    return flows_post(flows, &(struct bmi_flow_description){.source = source,
                                                            .destination = destination,
                                                            .extents = &whole,
                                                            .extent_count = 1,
                                                            .buffer_size = buffer_size});
}

static void then_all_arrived(const struct flows *flows)
{
    for (int i = 0; i < flows->count; i++)
        CU_ASSERT_EQUAL(flows->errors[i], 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

/* From memory through a relay, the only flow that has buffers, to memory. */
static void relay(bmi_msg_tag_t tag)
{
    struct flows flows = {0};
    files_make((unsigned)tag);
    post(&flows, from_network(tag + 1), in_memory(&to), 0);
    post(&flows, from_network(tag), from_network(tag + 1), 0);
    post(&flows, in_memory(&from), from_network(tag), 0);
    flows_wait(&flows);
    then_all_arrived(&flows);
}

/* From memory to memory in so many chunks that later steps are tasks. */
static void copy(void)
{
    struct flows flows = {0};
    files_make(7);
    post(&flows, in_memory(&from), in_memory(&to), SMALL);
    flows_wait(&flows);
    then_all_arrived(&flows);
}

static bool costs_are_known(void)
{
    return atomic_load(&bmi_task_manager_default()->costs_known);
}

/* ---- two nodes ------------------------------------------------------------------------------- */

/* set_up has opened a context. */
static void no_flow_waits_for_the_costs(void)
{
    CU_ASSERT_TRUE(costs_are_known());
}

static void buffers_lie_on_the_node_of_the_post(void)
{
    given_a_thread_on(1);
    relay(10);
    CU_ASSERT_EQUAL(buffers.count[0], 0);
    CU_ASSERT_EQUAL(buffers.count[1], BMI_FLOW_BUFFERS);
}

static void kept_buffers_serve_their_node(void)
{
    given_a_thread_on(1);
    relay(20);
    relay(30);
    CU_ASSERT_EQUAL(buffers.count[1], BMI_FLOW_BUFFERS);
    given_a_thread_on(0);
    relay(40);
    CU_ASSERT_EQUAL(buffers.count[0], BMI_FLOW_BUFFERS);
    CU_ASSERT_EQUAL(buffers.count[1], 0);
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL(buffers.freed, 2 * BMI_FLOW_BUFFERS);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
}

static void buffers_lie_anywhere_if_the_system_refuses(void)
{
    given_a_thread_on(1);
    buffers.refused = -BMI_EPERM;
    relay(50);
    CU_ASSERT_EQUAL(buffers.count[1], BMI_FLOW_BUFFERS);
    relay(60);
    CU_ASSERT_EQUAL(buffers.count[1], BMI_FLOW_BUFFERS); /* these were kept */
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL(buffers.freed, 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
}

static void steps_have_a_home_near_the_post(void)
{
    for (int node = 0; node < 2; node++) {
        given_a_thread_on(node);
        copy();
        CU_ASSERT_EQUAL_FATAL(decision_count, 1);
        CU_ASSERT_EQUAL(decisions[0].from, -1);
        CU_ASSERT_EQUAL(node_of_queue(decisions[0].to), node);
        then_no_group_is_left();
    }
}

static void steps_have_a_home_near_the_programs_memory(void)
{
    for (int node = 0; node < 2; node++) {
        given_a_thread_on(1 - node);
        memory_node = node;
        copy();
        CU_ASSERT_EQUAL_FATAL(decision_count, 1);
        CU_ASSERT_EQUAL(node_of_queue(decisions[0].to), node);
    }
}

static void a_flow_that_is_cancelled_leaves_no_group(void)
{
    bmi_flow_id_t id;
    bmi_error_code_t error = 0;
    int count = 0;
    struct bmi_flow_description what = {.source = from_network(70),
                                        .destination = in_memory(&to),
                                        .extents = &whole,
                                        .extent_count = 1};
    given_a_thread_on(1);
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), 0);
    then_no_group_is_left(); /* no step is a task yet */
    CU_ASSERT_EQUAL(bmi_flow_cancel(id, context), 0);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(NULL, NULL), -BMI_EBUSY);
    CU_ASSERT_EQUAL(bmi_flow_test(id, &count, &error, NULL, NULL, PATIENCE_MS, context), 1);
    CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
    then_no_group_is_left();
}

static CU_TestInfo on_two_nodes[] = {
    {"no flow waits for the costs", no_flow_waits_for_the_costs},
    {"buffers lie on the node of the post", buffers_lie_on_the_node_of_the_post},
    {"kept buffers serve their node", kept_buffers_serve_their_node},
    {"buffers lie anywhere if the system refuses", buffers_lie_anywhere_if_the_system_refuses},
    {"steps have a home near the post", steps_have_a_home_near_the_post},
    {"steps have a home near the program's memory", steps_have_a_home_near_the_programs_memory},
    {"a flow that is cancelled leaves no group", a_flow_that_is_cancelled_leaves_no_group},
    CU_TEST_INFO_NULL};

/* ---- one node -------------------------------------------------------------------------------- */

static void nothing_is_placed(void)
{
    given_a_thread_on(1);
    relay(10);
    copy();
    CU_ASSERT_EQUAL(buffers.count[0] + buffers.count[1], 0);
    CU_ASSERT_EQUAL(decision_count, 0);
    CU_ASSERT_FALSE(costs_are_known());
}

/* A group would wait with its task, which only a test call runs, until the flow has ended. */
static void a_flow_makes_no_group(void)
{
    struct flows flows = {0};
    given_a_thread_on(1);
    files_make(8);
    post(&flows, in_memory(&from), in_memory(&to), SMALL);
    CU_ASSERT_EQUAL_FATAL(flows.left, 1);
    then_no_group_is_left();
    flows_wait(&flows);
    then_all_arrived(&flows);
}

static CU_TestInfo on_one_node[] = {{"nothing is placed", nothing_is_placed},
                                    {"a flow makes no group", a_flow_makes_no_group},
                                    CU_TEST_INFO_NULL};

static int run_on(const char *machine, const char *name, CU_TestInfo *cases)
{
    CU_SuiteInfo suites[] = {{name, NULL, NULL, set_up, tear_down, cases}, CU_SUITE_INFO_NULL};
    setenv("HWLOC_SYNTHETIC", machine, 1);
    return unit_run_suites(suites);
}

int main(void)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        return run_on("core:8 pu:1", "flows on one node", on_one_node);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return EXIT_FAILURE;
    return run_on("package:2 numa:1 core:4 pu:1", "flows on two nodes", on_two_nodes);
}
