/* SPDX-License-Identifier: BSD-3-Clause
 *
 * files_test.c - the socket files of servers: removed at the end, replaced when their server was
 * killed, left alone while a server lives or when they are no sockets.
 */
#include <CUnit/Basic.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi.h"

static char folder[] = "/tmp/bmi-unix-XXXXXX", path[64], url[80];

static int serve(void)
{
    return BMI_initialize("bmi_unix", url, BMI_INIT_SERVER);
}

/* A child that listens until it is killed. Returns its process id; 0: it could not listen. */
static pid_t server_start(void)
{
    int ends[2], status = -1;
    if (pipe(ends) < 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        status = serve();
        if (write(ends[1], &status, sizeof(status)) == sizeof(status) && status == 0)
            pause();
        _exit(1);
    }
    if (read(ends[0], &status, sizeof(status)) != sizeof(status))
        status = -1;
    close(ends[0]);
    close(ends[1]);
    return status == 0 ? child : 0;
}

static void server_kill(pid_t server)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

/* Given: a server that ends. Then: its file, which only its user may use, is gone. */
static void file_is_removed(void)
{
    struct stat is = {0};
    CU_ASSERT_EQUAL(serve(), 0);
    CU_ASSERT_EQUAL(lstat(path, &is), 0);
    CU_ASSERT_TRUE(S_ISSOCK(is.st_mode));
    CU_ASSERT_EQUAL(is.st_mode & 077, 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
}

/* Given: the file of a server that was killed. Then: the next server takes its place. */
static void stale_file_is_replaced(void)
{
    pid_t server = server_start();
    CU_ASSERT_NOT_EQUAL(server, 0);
    if (server == 0)
        return;
    server_kill(server);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    CU_ASSERT_EQUAL(serve(), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
}

/* Given: a server that lives. Then: another one gets EADDRINUSE, and the file stays. */
static void living_server_keeps_its_file(void)
{
    pid_t server = server_start();
    CU_ASSERT_NOT_EQUAL(server, 0);
    if (server == 0)
        return;
    CU_ASSERT_EQUAL(serve(), -BMI_EADDRINUSE);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    server_kill(server);
    unlink(path);
}

/* Given: a file of another kind. Then: EADDRINUSE, and it stays. */
static void other_file_stays(void)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    CU_ASSERT_TRUE(fd >= 0);
    close(fd);
    CU_ASSERT_EQUAL(serve(), -BMI_EADDRINUSE);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    unlink(path);
}

/* Given: a server whose file another program has replaced. Then: it removes nothing at its end. */
static void anothers_file_stays(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strcpy(name.sun_path, path);
    CU_ASSERT_EQUAL(serve(), 0);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CU_ASSERT_EQUAL(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    close(fd);
    unlink(path);
}

/* Given: a forked child of a server that ends its library. Then: the parent's file stays. */
static void child_leaves_the_file(void)
{
    int status = -1;
    CU_ASSERT_EQUAL(serve(), 0);
    pid_t child = fork();
    if (child == 0) {
        BMI_finalize();
        _exit(0);
    }
    waitpid(child, &status, 0);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
}

int main(void)
{
    if (!mkdtemp(folder)) {
        puts("skipped: no folder in /tmp can be made");
        return 77;
    }
    snprintf(path, sizeof(path), "%s/socket", folder);
    snprintf(url, sizeof(url), "unix://%s", path);
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("unix files", NULL, NULL);
    CU_ADD_TEST(suite, file_is_removed);
    CU_ADD_TEST(suite, stale_file_is_replaced);
    CU_ADD_TEST(suite, living_server_keeps_its_file);
    CU_ADD_TEST(suite, other_file_stays);
    CU_ADD_TEST(suite, anothers_file_stays);
    CU_ADD_TEST(suite, child_leaves_the_file);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    rmdir(folder);
    return failures > 0;
}
