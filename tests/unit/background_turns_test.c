/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background_turns_test.c - callers that drive have the background stand by: it does not go on
 * waiting for the network beside them, where each of their messages would wake it, too.
 */
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "bmi/progress.h"
#include "unit.h"

enum { PATIENCE_NS = 1000000000, PATIENCES = 20, SETTLED_NS = 50000000 };

/* How often the other threads of this process went to sleep. */
static long others_slept(void)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    long slept = 0;
    while (threads != NULL && (entry = readdir(threads)) != NULL) {
        char path[300], line[200];
        long times;
        if (atoi(entry->d_name) == 0 || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof line, status) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &times) == 1)
                slept += times;
        if (status != NULL)
            fclose(status);
    }
    if (threads != NULL)
        closedir(threads);
    return slept;
}

/* Waits until the others sleep, and nothing wakes them. Returns how often they have slept. */
static long others_settle(void)
{
    long slept = others_slept(), before;
    do {
        before = slept;
        nanosleep(&(struct timespec){.tv_nsec = SETTLED_NS}, NULL);
        slept = others_slept();
    } while (slept != before || slept == 0);
    return slept;
}

static void turn(bmi_context_id context)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count = 0;
    CU_ASSERT_EQUAL(BMI_testcontext(1, &id, &count, &error, NULL, NULL, 0, context), 0);
    CU_ASSERT_EQUAL(count, 0);
}

/* Nothing comes from the network here: only the callers' turns can wake it. */
static void it_is_called_away(void)
{
    bmi_context_id context;
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0",
                                         BMI_INIT_SERVER | BMI_INIT_BACKGROUND),
                          0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
    for (int round = 0; round < 5; round++) {
        long slept = others_settle();
        uint64_t begin = bmi__monotonic_ns();
        while (others_slept() == slept &&
               bmi__monotonic_ns() - begin < (uint64_t)PATIENCES * PATIENCE_NS)
            for (int i = 0; i < 100; i++)
                turn(context);
        CU_ASSERT_NOT_EQUAL_FATAL(others_slept(), slept);
    }
    BMI_close_context(context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"it is called away by callers that drive", it_is_called_away},
        CU_TEST_INFO_NULL,
    };
    return unit_run("background, callers' turns", tests);
}
