/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir_testing.c - see dir_testing.h.
 */
#include "trove-stub/dir_testing.h"

#include <signal.h>
#include <sys/prctl.h>

struct folder folder;
char where[300], told[512];
struct bmi_trove_store *store;
bmi_trove_context_id_t context;
struct bmi_trove_place place;
bool by_tasks;
uint32_t own_first;
int own_pipe;

void set_up(void)
{
    folder_make(&folder);
    snprintf(where, sizeof where, "dir:%s/store", folder.path);
}

void tear_down(void)
{
    folder_remove(&folder);
}

int store_open(bool create)
{
    struct bmi_trove_settings settings = {.create = create,
                                          .no_uring = by_tasks,
                                          .open_files = by_tasks};
    told[0] = '\0';
    return bmi_trove_open(&store, where, &settings, told, sizeof told);
}

struct outcome done(int result, const bmi_trove_op_id_t *op)
{
    return outcome_of(result, op, context);
}

void need(bool holds)
{
    if (!holds) {
        fprintf(stderr, "the store cannot be worked with: %s\n", told);
        exit(1);
    }
}

bmi_error_code_t ended(int result, bmi_trove_op_id_t op)
{
    bmi_error_code_t error = 0;
    int count = 0;
    if (result == 0)
        need(bmi_trove_test(op, &count, &error, NULL, NULL, PATIENCE_MS, context) == 1);
    return result < 0 ? result : error;
}

void work_open(bool create)
{
    bmi_trove_object_id_t number = 1;
    bmi_trove_op_id_t op;
    need(store_open(true) == 0);
    need(bmi_trove_context_open(&context) == 0);
    place = (struct bmi_trove_place){.store = store, .collection = 1, .object = 1};
    if (create) {
        need(bmi_trove_collection_create(store, 1) == 0);
        int result = bmi_trove_post_create(&op, &place, &number, BMI_TROVE_SYNC, NULL, context);
        need(ended(result, op) == 0);
    }
}

void work_close(void)
{
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

pid_t child_start(const char *role, uint32_t number, int fd)
{
    char number_text[16], fd_text[16];
    snprintf(number_text, sizeof number_text, "%u", (unsigned)number);
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "trove", role, number_text, fd_text, where, (char *)NULL);
        _exit(2);
    }
    return child;
}

int dir_main(int argc, char **argv, const char *name, CU_TestInfo *cases,
             const struct dir_role *roles)
{
    CU_SuiteInfo suites[] = {{name, NULL, NULL, set_up, tear_down, cases}, CU_SUITE_INFO_NULL};
    if (argc != 5)
        return unit_run_suites(suites);
    own_first = (uint32_t)strtoul(argv[2], NULL, 10);
    own_pipe = atoi(argv[3]);
    snprintf(where, sizeof where, "%s", argv[4]);
    while (roles->name != NULL && strcmp(argv[1], roles->name) != 0)
        roles++;
    return roles->name != NULL ? child_run(roles->body) : 2;
}
