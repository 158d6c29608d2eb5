/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance.c - CONFORMANCE_INSTANCES: roles that are threads of one process, each with an instance
 * of the library, and all copies of them. In the other arrangements every call here is the classic
 * one.
 */
#define HARNESS_INTERNAL
#define INSTANCE_INTERNAL
#include "harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bmi/instance.h"

enum { LAST_MS = 30000 };
static const char descriptors[] = "/proc/self/fd";

/* Of this thread's role; NULL in the other arrangements. */
static _Thread_local struct bmi_instance *own;

/* ---- calls without a context or an address --------------------------------------------------- */

int instance_open_context(bmi_context_id *context)
{
    return own != NULL ? bmi_instance_open_context(own, context) : BMI_open_context(context);
}

int instance_addr_lookup(BMI_addr_t *addr, const char *url)
{
    return own != NULL ? bmi_instance_addr_lookup(own, addr, url) : BMI_addr_lookup(addr, url);
}

int instance_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *infos, int ms)
{
    return own != NULL ? bmi_instance_testunexpected(own, incount, outcount, infos, ms)
                       : BMI_testunexpected(incount, outcount, infos, ms);
}

int instance_set_info(BMI_addr_t addr, int option, void *value)
{
    return own != NULL && addr == 0 ? bmi_instance_set_info(own, option, value)
                                    : BMI_set_info(addr, option, value);
}

int instance_get_info(BMI_addr_t addr, int option, void *value)
{
    return own != NULL && addr == 0 ? bmi_instance_get_info(own, option, value)
                                    : BMI_get_info(addr, option, value);
}

int instance_rpc_register(const char *name, const struct bmi_rpc_service *service)
{
    return own != NULL ? bmi_instance_rpc_register(own, name, service)
                       : bmi_rpc_register(name, service);
}

int instance_rpc_unregister(const char *name)
{
    return own != NULL ? bmi_instance_rpc_unregister(own, name) : bmi_rpc_unregister(name);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct start {
    struct bmi_instance *instance;
    void *(*run)(void *);
    void *argument;
};

static void *thread_run(void *argument)
{
    struct start start = *(struct start *)argument;
    free(argument);
    own = start.instance;
    return start.run(start.argument);
}

pthread_t rank_thread(struct rank *rank, void *(*run)(void *), void *argument)
{
    pthread_t thread = 0;
    struct start *start = malloc(sizeof *start);
    if (start == NULL)
        rank_fail_here(rank, true, "no memory for a thread");
    *start = (struct start){rank->instance, run, argument};
    if (pthread_create(&thread, NULL, thread_run, start) != 0)
        rank_fail_here(rank, true, "no thread");
    return thread;
}

/* ---- instances ------------------------------------------------------------------------------- */

int instance_start(struct rank *rank, const char *methods, const char *listen, int flags)
{
    char name[BMI_INSTANCE_NAME_MAX];
    const struct bmi_instance_options options = {.name = name,
                                                 .methods = methods,
                                                 .listen = listen,
                                                 .flags = flags};
    snprintf(name, sizeof name, "copy%d.role%d", rank->copy, rank->role);
    int status = bmi_instance_open(&rank->instance, &options);
    own = rank->instance;
    return status;
}

int instance_stop(struct rank *rank)
{
    struct bmi_instance *ended = rank->instance;
    own = rank->instance = NULL;
    return bmi_instance_close(ended);
}

static void *role_main(void *argument)
{
    struct rank *rank = argument;
    rank_play(rank);
    atomic_store(&rank->report->position[rank->copy][rank->role].ended, true);
    return NULL;
}

/* Entries of a folder. */
static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* The process's threads that look up names of hosts have sockets, and may end later. */
static void expect_closed(struct rank *rank, int before)
{
    int after = entries(descriptors);
    for (int64_t until = now_ms() + LAST_MS; after != before && now_ms() < until;) {
        usleep(1000);
        after = entries(descriptors);
    }
    if (after != before)
        rank_fail_here(rank, false, "%d descriptors are open after the end, %d before", after,
                       before);
}

void instances_run(struct rank *ranks, int count)
{
    pthread_t threads[COPIES * ROLES];
    int before = entries(descriptors);
    for (int i = 0; i < count; i++)
        threads[i] = rank_thread(&ranks[i], role_main, &ranks[i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        rank_release(&ranks[i]);
    expect_closed(&ranks[0], before);
}
