/* SPDX-License-Identifier: BSD-3-Clause
 *
 * children.c - the processes of a test and their messages to each other: see support.h.
 *
 * The process that forks children records their pids in a table, so that a failing test ends
 * exactly its own processes. Children also ask the kernel to die with their parent.
 */
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN_MAX = 1024 };

static volatile pid_t children[CHILDREN_MAX]; /* 0: free; read by the deadline's handler */

void children_kill(void)
{
    for (int i = 0; i < CHILDREN_MAX; i++)
        if (children[i] > 0)
            kill(children[i], SIGKILL);
}

pid_t children_left(void)
{
    for (int i = 0; i < CHILDREN_MAX; i++)
        if (children[i] > 0)
            return children[i];
    return 0;
}

static void child_note(pid_t old, pid_t new)
{
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (children[i] == old) {
            children[i] = new;
            return;
        }
    }
    CHECK(false, "more than %d children", CHILDREN_MAX);
}

struct child child_start(const char *name, child_main *run, void *argument)
{
    int ends[2];
    pid_t parent = getpid();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair: %s", strerror(errno));
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        memset((void *)children, 0, sizeof children);
        close(ends[0]);
        test_deadline();
        int result = run(argument, ends[1]);
        fflush(stdout);
        _exit(result);
    }
    close(ends[1]);
    child_note(0, pid);
    return (struct child){.name = name, .pid = pid, .channel = ends[0]};
}

void child_check(const struct child *child)
{
    siginfo_t ended = {0};
    CHECK(waitid(P_PID, (id_t)child->pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0,
          "waitid of %s: %s", child->name, strerror(errno));
    CHECK(ended.si_pid == 0, "%s has ended by %s %d", child->name,
          ended.si_code == CLD_EXITED ? "exit" : "signal", ended.si_status);
}

int child_wait(struct child *child)
{
    int status = 0;
    pid_t got;
    do {
        got = waitpid(child->pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    CHECK(got == child->pid, "waitpid of %s: %s", child->name, strerror(errno));
    child_note(child->pid, 0);
    close(child->channel);
    child->pid = 0;
    return status;
}

void child_end(struct child *child)
{
    int status = child_wait(child);
    CHECK(!WIFSIGNALED(status), "%s ended by signal %d", child->name, WTERMSIG(status));
    if (WEXITSTATUS(status) == TEST_SKIP) {
        children_kill();
        fflush(stdout);
        _exit(TEST_SKIP);
    }
    CHECK(WEXITSTATUS(status) == 0, "%s ended with %d", child->name, WEXITSTATUS(status));
}

void child_kill(struct child *child)
{
    child_signal(child, SIGKILL);
    child_wait(child);
}

void child_signal(const struct child *child, int signal_number)
{
    CHECK(child->pid > 0, "%s is no child any more", child->name);
    CHECK(kill(child->pid, signal_number) == 0, "kill %s: %s", child->name, strerror(errno));
}

bool leave_to_child(void)
{
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0, "fork");
    if (child > 0)
        return true;
    test_deadline(); /* no other process would end it */
    while (getppid() == parent)
        usleep(1000);
    return false;
}

void tell(int channel, const void *data, size_t size)
{
    const char *from = data;
    while (size > 0) {
        ssize_t sent = send(channel, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        CHECK(sent > 0, "the other process is gone: %s", strerror(errno));
        from += sent;
        size -= (size_t)sent;
    }
}

void hear(int channel, void *data, size_t size)
{
    char *to = data;
    while (size > 0) {
        ssize_t got = recv(channel, to, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK(got > 0, "the other process is gone: %s", got < 0 ? strerror(errno) : "end");
        to += got;
        size -= (size_t)got;
    }
}

bool heard(int channel, int wait_ms)
{
    struct pollfd poller = {.fd = channel, .events = POLLIN};
    return poll(&poller, 1, wait_ms) > 0;
}

void tell_number(int channel, int64_t number)
{
    tell(channel, &number, sizeof number);
}

int64_t hear_number(int channel)
{
    int64_t number;
    hear(channel, &number, sizeof number);
    return number;
}

void *shared_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    return memory;
}
