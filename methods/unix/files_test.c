/* SPDX-License-Identifier: BSD-3-Clause
 *
 * files_test.c - the socket files of servers: removed at the end, replaced when their server was
 * killed, left alone while a server lives, when they are no sockets, or when their folder cannot be
 * locked. Stands between the method and flock, listen and unlink (the linker's --wrap).
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

/* ---- system calls --------------------------------------------------------------------------- */

static int lock_error, lock_interruptions, listen_error; /* 0: the call succeeds */
static int locks;                                        /* that were taken */
static bool lock_copied, unlinked_unlocked;
static int lock_copy = -1; /* if lock_copied: the lock's descriptor, as in a forked child */

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __real_unlink(const char *file);
int __wrap_unlink(const char *file);

static int failed(int error)
{
    errno = error;
    return -1;
}

int __wrap_flock(int fd, int operation)
{
    if (operation & LOCK_EX && lock_interruptions > 0)
        return lock_interruptions--, failed(EINTR);
    if (operation & LOCK_EX && lock_error != 0)
        return failed(lock_error);
    int result = __real_flock(fd, operation);
    locks += operation & LOCK_EX && result == 0;
    if (operation & LOCK_EX && result == 0 && lock_copied)
        lock_copy = dup(fd);
    return result;
}

int __wrap_listen(int fd, int backlog)
{
    return listen_error != 0 ? failed(listen_error) : __real_listen(fd, backlog);
}

/* Locks the folder, or returns -1: another one has locked it. */
static int folder_lock(void)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    if (__real_flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return -1;
}

int __wrap_unlink(const char *file)
{
    int fd = folder_lock();
    if (fd >= 0) {
        unlinked_unlocked = true;
        close(fd);
    }
    return __real_unlink(file);
}

/* ---- servers -------------------------------------------------------------------------------- */

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

/* Leaves the file of a server that was killed. Returns whether it is there. */
static bool stale_file_make(void)
{
    pid_t server = server_start();
    CU_ASSERT_NOT_EQUAL(server, 0);
    if (server == 0)
        return false;
    server_kill(server);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    return access(path, F_OK) == 0;
}

/* ---- cases ---------------------------------------------------------------------------------- */

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
    if (!stale_file_make())
        return;
    unlinked_unlocked = false;
    CU_ASSERT_EQUAL(serve(), 0);
    CU_ASSERT_FALSE(unlinked_unlocked);
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

/* Given: a server that becomes a daemon: its child goes on, and it exits. Then: the child's end
 * removes the file. */
static void daemon_removes_its_file(void)
{
    int go[2], gone[2], status = -1;
    char byte = 0;
    CU_ASSERT_EQUAL(pipe(go), 0);
    CU_ASSERT_EQUAL(pipe(gone), 0);
    pid_t parent = fork();
    if (parent == 0) {
        if (serve() != 0)
            _exit(1);
        if (fork() > 0)
            _exit(0);
        close(go[1]);
        if (read(go[0], &byte, 1) == 0)
            BMI_finalize();
        _exit(0);
    }
    close(go[0]);
    close(gone[1]);
    CU_ASSERT_EQUAL(waitpid(parent, &status, 0), parent);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    close(go[1]);
    CU_ASSERT_EQUAL(read(gone[0], &byte, 1), 0); /* the daemon has exited */
    close(gone[0]);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
    unlink(path);
}

/* Given: a folder that another process keeps locked, or that cannot be locked, and the file of a
 * server that was killed. Then: the next server is refused, and the file stays until the folder can
 * be locked. */
static void without_the_lock_nothing_is_removed(void)
{
    if (!stale_file_make())
        return;
    int lock = folder_lock();
    CU_ASSERT_TRUE(lock >= 0);
    CU_ASSERT_EQUAL(serve(), -BMI_EBUSY);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    close(lock);
    lock_error = ENOLCK;
    CU_ASSERT_EQUAL(serve(), -BMI_ENOLCK);
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    lock_error = 0;
    lock_interruptions = 3;
    CU_ASSERT_EQUAL(serve(), 0);
    CU_ASSERT_EQUAL(lock_interruptions, 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
}

/* Given: a child that keeps the descriptor by which its parent locked the folder. Then: the folder
 * is free again when the server listens. */
static void child_does_not_keep_the_lock(void)
{
    lock_copied = true;
    CU_ASSERT_EQUAL(serve(), 0);
    lock_copied = false;
    CU_ASSERT_TRUE(lock_copy >= 0);
    int lock = folder_lock();
    CU_ASSERT_TRUE(lock >= 0);
    close(lock);
    close(lock_copy);
    lock_copy = -1;
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* Given: a socket that is bound, and cannot listen. Then: its file is removed before the folder is
 * free, so that it is never another server's. */
static void failure_removes_the_file(void)
{
    listen_error = ENOBUFS;
    unlinked_unlocked = false;
    locks = 0;
    CU_ASSERT_EQUAL(serve(), -BMI_ENOBUFS);
    CU_ASSERT_FALSE(unlinked_unlocked);
    CU_ASSERT_EQUAL(locks, 1);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
    listen_error = 0;
    unlink(path);
}

/* Given: unix_other_users, and the usual umask. Then: the other users may connect. */
static void other_users_may_connect(void)
{
    struct stat is = {0};
    mode_t usual = umask(022);
    setenv("BMI_UNIX_OTHER_USERS", "on", 1);
    CU_ASSERT_EQUAL(serve(), 0);
    CU_ASSERT_EQUAL(lstat(path, &is), 0);
    CU_ASSERT_EQUAL(is.st_mode & 0777, 0666);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    unsetenv("BMI_UNIX_OTHER_USERS");
    umask(usual);
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
    CU_ADD_TEST(suite, daemon_removes_its_file);
    CU_ADD_TEST(suite, without_the_lock_nothing_is_removed);
    CU_ADD_TEST(suite, child_does_not_keep_the_lock);
    CU_ADD_TEST(suite, failure_removes_the_file);
    CU_ADD_TEST(suite, other_users_may_connect);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    rmdir(folder);
    return failures > 0;
}
