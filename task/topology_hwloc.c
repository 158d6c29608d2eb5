/* SPDX-License-Identifier: BSD-3-Clause
 *
 * topology_hwloc.c - the topology as hwloc reports it: live (the CPUs that cgroup and affinity mask
 * allow), or from its synthetic text, or from an XML file. Levels whose CPUs are the same become
 * one node. hwloc attaches NUMA nodes beside its tree, each at the object that has the same CPUs,
 * so they always fold into one.
 *
 * hwloc reports errors in a text or file only on standard error, and only when an environment
 * variable is set. The library must change neither, so a child whose standard error is a pipe
 * parses the refused text once more.
 */
#include "task/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t level_of(hwloc_obj_type_t type)
{
    if (type == HWLOC_OBJ_MACHINE)
        return 1u << BMI_TASK_LEVEL_MACHINE;
    if (type == HWLOC_OBJ_PACKAGE)
        return 1u << BMI_TASK_LEVEL_PACKAGE;
    if (type == HWLOC_OBJ_NUMANODE)
        return 1u << BMI_TASK_LEVEL_NUMA;
    if (hwloc_obj_type_is_cache(type))
        return 1u << BMI_TASK_LEVEL_CACHE;
    if (type == HWLOC_OBJ_CORE)
        return 1u << BMI_TASK_LEVEL_CORE;
    if (type == HWLOC_OBJ_PU)
        return 1u << BMI_TASK_LEVEL_CPU;
    return 0;
}

static void node_add_level(struct bmi__topology_node *node, hwloc_obj_t object)
{
    char name[32];
    hwloc_obj_type_snprintf(name, sizeof(name), object, 0);
    bmi__topology_name(node, name);
    node->levels |= level_of(object->type);
}

static void node_add_object(struct bmi__topology_node *node, hwloc_obj_t object)
{
    node_add_level(node, object);
    for (hwloc_obj_t memory = object->memory_first_child; memory != NULL;
         memory = memory->next_sibling) {
        if (memory->type != HWLOC_OBJ_NUMANODE)
            continue;
        if (node->numa < 0) { /* several: the nearest kind of memory comes first */
            node->numa = (int)memory->os_index;
            node->memory = memory->attr->numanode.local_memory;
        }
        node_add_level(node, memory);
    }
}

/* The only child that has CPUs, if there is just one. */
static hwloc_obj_t only_child(hwloc_obj_t object)
{
    hwloc_obj_t only = NULL;
    for (unsigned i = 0; i < object->arity; i++) {
        if (hwloc_bitmap_iszero(object->children[i]->cpuset))
            continue;
        if (only != NULL)
            return NULL;
        only = object->children[i];
    }
    return only;
}

/* Adds an object with all below it. Recursion is as deep as the tree, some ten levels. */
static int add_object(struct bmi__topology *topology, uint32_t parent, hwloc_obj_t object)
{
    hwloc_obj_t bottom = object;
    for (hwloc_obj_t child = only_child(object); child != NULL; child = only_child(child))
        bottom = child;
    bool leaf = bottom->type == HWLOC_OBJ_PU;
    if (leaf && bottom->os_index >= BMI_CPUSET_MAX)
        return -BMI_EOVERFLOW;
    uint32_t index = bmi__topology_add(topology, parent, leaf ? (int)bottom->os_index : -1);
    if (index == BMI__NO_NODE)
        return -BMI_ENOMEM;
    for (hwloc_obj_t part = object; part != NULL; part = only_child(part))
        node_add_object(&topology->nodes[index], part);
    for (unsigned i = 0; i < bottom->arity; i++) {
        if (hwloc_bitmap_iszero(bottom->children[i]->cpuset))
            continue;
        int result = add_object(topology, index, bottom->children[i]);
        if (result != 0)
            return result;
    }
    return 0;
}

/* If the system does not describe its CPUs, as in most chroots, hwloc knows only their number, and
 * complains on standard error. If the system refuses the affinity mask, as with some seccomp
 * filters, hwloc retries for ever. EINVAL: a larger mask is needed; hwloc finds its size. */
static bool system_is_described(void)
{
    cpu_set_t mask;
    return (sched_getaffinity(0, sizeof(mask), &mask) == 0 || errno == EINVAL) &&
           access("/sys/devices/system/cpu", F_OK) == 0;
}

/* Then the machine is one level of cores: those up to the last one that the process may use, or,
 * without a mask, as many as are online, and no thread is bound. */
static int undescribed_set(hwloc_topology_t from)
{
    char text[32];
    cpu_set_t mask;
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
        for (count = CPU_SETSIZE; count > 1 && !CPU_ISSET((size_t)count - 1, &mask);)
            count--;
        hwloc_topology_set_flags(from, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM);
    }
    snprintf(text, sizeof(text), "core:%d pu:1", count);
    return hwloc_topology_set_synthetic(from, text);
}

static int source_set(hwloc_topology_t from, const struct bmi_task_settings *settings)
{
    if (settings->topology == BMI_TASK_TOPOLOGY_SYNTHETIC)
        return hwloc_topology_set_synthetic(from, settings->topology_text);
    if (settings->topology == BMI_TASK_TOPOLOGY_XML)
        return hwloc_topology_set_xml(from, settings->topology_text);
    return system_is_described() ? 0 : undescribed_set(from);
}

/* Initialises, sets the source, loads. Returns 0 or a negated errno; then nothing is left. */
static int source_open(hwloc_topology_t *from, const struct bmi_task_settings *settings)
{
    if (hwloc_topology_init(from) != 0)
        return -ENOMEM;
    if (source_set(*from, settings) == 0 && hwloc_topology_load(*from) == 0)
        return 0;
    int number = errno ? errno : EINVAL;
    hwloc_topology_destroy(*from);
    return -number;
}

/* In the child: lets hwloc read the source again and complain into the pipe. */
static void child_complain(const struct bmi_task_settings *settings, int output)
{
    static char synthetic[] = "HWLOC_SYNTHETIC_VERBOSE=1";
    static char xml[] = "HWLOC_XML_VERBOSE=1";
    static char *environment[] = {synthetic, xml, NULL};
    hwloc_topology_t from;
    sigset_t none;
    sigemptyset(&none);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm(5); /* another thread may have held one of hwloc's locks at the fork */
    environ = environment;
    dup2(output, STDERR_FILENO);
    source_open(&from, settings);
    fflush(stderr);
    _exit(0);
}

/* hwloc's own message about a source that it refuses; empty if it has none. */
static void source_complaint(const struct bmi_task_settings *settings, char *text, size_t size)
{
    int ends[2];
    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0)
        child_complain(settings, ends[1]);
    close(ends[1]);
    size_t used = 0;
    while (child > 0 && used + 1 < size) {
        ssize_t got = read(ends[0], text + used, size - 1 - used);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
    text[used] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

static int source_refused(const struct bmi_task_settings *settings, int result, char *error,
                          size_t error_size)
{
    char words[256] = "";
    if (settings->topology == BMI_TASK_TOPOLOGY_LIVE) {
        snprintf(error, error_size, "hwloc can't read this machine: %s", strerror(-result));
        return bmi__task_error(-result);
    }
    bool file = settings->topology == BMI_TASK_TOPOLOGY_XML;
    if (file && access(settings->topology_text, R_OK) != 0) {
        result = -errno;
    } else {
        source_complaint(settings, words, sizeof(words));
        result = result == -ENOMEM ? result : -EINVAL;
    }
    snprintf(error, error_size, "hwloc refuses the topology %s \"%s\": %s", file ? "file" : "text",
             settings->topology_text, words[0] ? words : strerror(-result));
    return bmi__task_error(-result);
}

/* Keeps the CPUs that the process may run on: those of any of its threads; without /proc, which
 * lists them, the caller's. hwloc has already removed the CPUs that the cgroup forbids. */
static void restrict_to_mask(hwloc_topology_t from)
{
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (mask == NULL)
        return;
    if ((hwloc_get_cpubind(from, mask, HWLOC_CPUBIND_PROCESS) == 0 ||
         hwloc_get_cpubind(from, mask, HWLOC_CPUBIND_THREAD) == 0) &&
        !hwloc_bitmap_iszero(mask))
        hwloc_topology_restrict(from, mask, 0);
    hwloc_bitmap_free(mask);
}

int bmi__topology_from_hwloc(const struct bmi_task_settings *settings,
                             struct bmi__topology *topology, char *error, size_t error_size)
{
    hwloc_topology_t from;
    int result = source_open(&from, settings);
    if (result != 0)
        return source_refused(settings, result, error, error_size);
    topology->machine_numa = hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_NUMANODE);
    if (settings->topology == BMI_TASK_TOPOLOGY_LIVE)
        restrict_to_mask(from);
    topology->this_system = hwloc_topology_is_thissystem(from) != 0;
    result = add_object(topology, BMI__NO_NODE, hwloc_get_root_obj(from));
    if (result == -BMI_EOVERFLOW)
        snprintf(error, error_size, "the topology has a CPU number above %d", BMI_CPUSET_MAX - 1);
    hwloc_topology_destroy(from);
    return result;
}
