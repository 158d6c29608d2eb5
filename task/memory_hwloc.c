/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory_hwloc.c - binding and moving memory. The first use reads the machine's topology once more,
 * and keeps it until the process ends: only machines with several nodes use this file.
 */
#include "task/memory.h"

#include <errno.h>

#include <hwloc.h>
#include <pthread.h>

static hwloc_topology_t machine; /* written once, under `once` */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void machine_load(void)
{
    hwloc_topology_t loaded;
    if (hwloc_topology_init(&loaded) < 0)
        return;
    if (hwloc_topology_load(loaded) < 0)
        hwloc_topology_destroy(loaded);
    else
        machine = loaded;
}

static int error_of(int error)
{
    switch (error) {
    case ENOSYS:
    case EXDEV:
        return -BMI_EOPNOTSUPP;
    case EPERM:
    case ENOMEM:
    case EIO:
        return bmi__task_error(error);
    default:
        return -BMI_EIO;
    }
}

int bmi__memory_bind(const void *memory, uint64_t bytes, int node)
{
    pthread_once(&once, machine_load);
    hwloc_nodeset_t set = hwloc_bitmap_alloc();
    if (machine == NULL || set == NULL) {
        hwloc_bitmap_free(set);
        return -BMI_ENOMEM;
    }
    int flags = HWLOC_MEMBIND_BYNODESET, result;
    if (node >= 0) {
        hwloc_bitmap_set(set, (unsigned)node);
        flags |= HWLOC_MEMBIND_MIGRATE | HWLOC_MEMBIND_STRICT;
    } else {
        hwloc_bitmap_copy(set, hwloc_topology_get_topology_nodeset(machine));
    }
    result =
        hwloc_set_area_membind(machine, memory, bytes, set,
                               node >= 0 ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_FIRSTTOUCH, flags);
    result = result < 0 ? error_of(errno) : 0;
    hwloc_bitmap_free(set);
    return result;
}

int bmi__memory_node(const void *memory, uint64_t bytes)
{
    pthread_once(&once, machine_load);
    hwloc_nodeset_t set = hwloc_bitmap_alloc();
    int result = -1;
    if (machine == NULL || set == NULL) {
        hwloc_bitmap_free(set);
        return -BMI_ENOMEM;
    }
    if (hwloc_get_area_memlocation(machine, memory, bytes, set, HWLOC_MEMBIND_BYNODESET) < 0)
        result = error_of(errno);
    else if (hwloc_bitmap_weight(set) == 1)
        result = hwloc_bitmap_first(set);
    hwloc_bitmap_free(set);
    return result;
}
