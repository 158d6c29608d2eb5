/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launch.c - fork, exec, and the guarantee that no process stays behind.
 *
 * Each process gets a parent death signal, so it ends even if the coordinator is killed (mpiexec's
 * ranks end with mpiexec). A coordinator that ends in an orderly way ends its processes and waits
 * for them first (processes_end).
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGUMENTS_MAX 40
#define PATIENCE_MS 2000 /* for processes that have been ended */

static int listener = -1;
static char listener_name[64];
static char self_path[4096], mpi_path[4096];
static pid_t *running;
static size_t running_count, running_room;
static int group_turn; /* processes of the group so far */

static void running_add(pid_t process)
{
    if (running_count == running_room) {
        running_room = running_room ? 2 * running_room : 64;
        running = realloc(running, running_room * sizeof *running);
        if (!running)
            die("no memory");
    }
    running[running_count++] = process;
}

void launch_forget(pid_t process)
{
    for (size_t i = 0; i < running_count; i++)
        if (running[i] == process) {
            running[i] = running[--running_count];
            return;
        }
}

/* Waits until a process has ended. Returns: whether it did in time. */
static bool end_await(pid_t process, int *status, int wait_ms)
{
    uint64_t deadline = now_ns() + (uint64_t)wait_ms * 1000000u;
    while (waitpid(process, status, WNOHANG) == 0) {
        if (now_ns() > deadline)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    launch_forget(process);
    return now_ns() <= deadline;
}

/* Reaps the descendants that the coordinator inherits when their parents end (subreaper), and ends
 * those that do not end by themselves. */
static void descendants_end(void)
{
    uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull;
    char path[64];
    int descendant;
    while (waitpid(-1, NULL, WNOHANG) >= 0 && now_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    format_text(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%d", &descendant) == 1)
        kill(descendant, SIGKILL);
    if (file)
        fclose(file);
}

/* At exit: no process stays behind, however the run ended. */
static void processes_end(void)
{
    int status;
    for (size_t i = 0; i < running_count; i++)
        kill(running[i], SIGKILL);
    while (running_count > 0)
        end_await(running[running_count - 1], &status, PATIENCE_MS);
    descendants_end();
}

void launch_beside(char *path, size_t size, const char *name)
{
    const char *slash = strrchr(self_path, '/');
    format_text(path, size, "%.*s/%s", (int)(slash - self_path), self_path, name);
}

/* Finds this program, and bmi-bench-mpi beside it. */
static void paths_find(void)
{
    ssize_t length = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    if (length < 0)
        die("/proc/self/exe: %s", strerror(errno));
    self_path[length] = 0;
    launch_beside(mpi_path, sizeof mpi_path, "bmi-bench-mpi");
}

void launch_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    paths_find();
    format_text(listener_name, sizeof listener_name, "bmi-bench-%d-%llx", (int)getpid(),
                (unsigned long long)now_ns());
    memcpy(address.sun_path + 1, listener_name, strlen(listener_name));
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(listener_name));
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, 4096) < 0)
        die("control socket: %s", strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    atexit(processes_end);
}

void launch_group_begin(void)
{
    group_turn = 0;
}

int launch_listener(void)
{
    return listener;
}

int launch_accept(void)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    int line = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (line < 0 || getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        die("control socket: %s", strerror(errno));
    if (peer.uid != getuid())
        die("a process of another user reported");
    return line;
}

struct child {
    char *const *arguments;
    const char *progress; /* BMI's setting; NULL: as it is here */
    const char *engine;   /* tcp's, the same way */
    int out;              /* its output; -1: ours */
    bool bind;
};

/* In the child: ends with the coordinator, gets no input, becomes another program. */
static void child_become(const struct child *child, pid_t coordinator)
{
    const char *progress = child->progress;
    int out = child->out;
    char *const *arguments = child->arguments;
    if (child->bind)
        cpu_take(group_turn);
    if (progress)
        setenv("BMI_PROGRESS", progress, 1);
    if (child->engine)
        setenv("BMI_TCP_ENGINE", child->engine, 1);
    int null = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != coordinator)
        _exit(1);
    if (null >= 0)
        dup2(null, 0);
    if (out >= 0)
        dup2(out, 1);
    execvp(arguments[0], arguments);
    fprintf(stderr, "bmi-bench: %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

static pid_t child_start(const struct child *child)
{
    pid_t coordinator = getpid();
    fflush(NULL);
    pid_t process = fork();
    if (process < 0)
        die("fork: %s", strerror(errno));
    if (process == 0)
        child_become(child, coordinator);
    group_turn++;
    running_add(process);
    return process;
}

/* A command line that grows. */
struct command {
    char *arguments[ARGUMENTS_MAX + 1];
    int count;
};

static void argument_add(struct command *command, const char *text)
{
    if (command->count == ARGUMENTS_MAX || !(command->arguments[command->count] = strdup(text)))
        die("command line too long");
    command->count++;
}

static void option_add(struct command *command, const char *name, const char *text)
{
    argument_add(command, name);
    argument_add(command, text);
}

static void number_add(struct command *command, const char *name, unsigned long long number)
{
    char text[32];
    format_text(text, sizeof text, "%llu", number);
    option_add(command, name, text);
}

static void command_free(struct command *command)
{
    for (int i = 0; i < command->count; i++)
        free(command->arguments[i]);
}

/* The options that every process gets. */
static void common_add(struct command *command, const struct options *options)
{
    option_add(command, "--control", listener_name);
    option_add(command, "--method", options->method);
    number_add(command, "--segment", options->segment);
    number_add(command, "--window", (unsigned long long)options->window);
    option_add(command, "--post", post_name(options->post));
    option_add(command, "--first", first_name(options->first));
    if (options->poll)
        argument_add(command, "--poll");
    number_add(command, "--timeout", (unsigned long long)options->timeout_s);
    if (options->memory)
        number_add(command, "--memory", options->memory);
    if (options->verify)
        argument_add(command, "--verify");
    argument_add(command, options->pattern->name);
}

/* If the pattern has the choice each contender gets its own progress; else the user's setting
 * stays. */
static const char *progress_of(const struct options *options, enum contender contender)
{
    if (contender == CONTENDER_BMI_BACKGROUND)
        return "background";
    bool choice = options->pattern->contenders & BIT(CONTENDER_BMI_BACKGROUND);
    return choice && BIT(contender) & BITS_BMI ? "caller" : NULL;
}

/* If the engines are compared each contender gets its own; else the user's setting stays. */
static const char *engine_of(const struct options *options, enum contender contender, bool server)
{
    if (!(options->contenders & BIT(CONTENDER_BMI_URING)))
        return NULL;
    return engine_is_uring(options, contender, server) ? "io_uring" : "epoll";
}

pid_t launch_self(const struct options *options, enum contender contender, const char *role,
                  int number, const char *urls)
{
    struct command command = {0};
    argument_add(&command, self_path);
    option_add(&command, "--role", role);
    option_add(&command, "--contender", contender_name(contender));
    number_add(&command, "--number", (unsigned long long)number);
    if (urls)
        option_add(&command, "--servers", urls);
    common_add(&command, options);
    pid_t child = child_start(
        &(struct child){.arguments = command.arguments,
                        .progress = progress_of(options, contender),
                        .engine = engine_of(options, contender, strcmp(role, "server") == 0),
                        .out = -1,
                        .bind = options->bind});
    command_free(&command);
    return child;
}

pid_t launch_mpi(const struct options *options, enum contender contender, const struct grid *grid)
{
    struct command command = {0};
    option_add(&command, "mpiexec", "-n");
    char ranks[16];
    format_text(ranks, sizeof ranks, "%d", grid->servers + grid->clients);
    argument_add(&command, ranks);
    argument_add(&command, mpi_path);
    number_add(&command, "--servers", (unsigned long long)grid->servers);
    number_add(&command, "--clients", (unsigned long long)grid->clients);
    option_add(&command, "--contender", contender_name(contender));
    if (options->bind)
        argument_add(&command, "--bind");
    common_add(&command, options);
    pid_t child = child_start(&(struct child){.arguments = command.arguments, .out = -1});
    command_free(&command);
    return child;
}

pid_t launch_other(const struct options *options, const char *const *arguments, int out)
{
    struct command command = {0};
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int i = 0; arguments[i]; i++)
        argument_add(&command, arguments[i]);
    pid_t child = child_start(&(struct child){.arguments = command.arguments,
                                              .out = out >= 0 ? out : nowhere,
                                              .bind = options->bind});
    command_free(&command);
    if (nowhere >= 0)
        close(nowhere);
    return child;
}

bool launch_mpi_found(void)
{
    return access(mpi_path, X_OK) == 0 && launch_found("mpiexec");
}

bool launch_found(const char *program)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        char candidate[4096];
        int length = (int)strcspn(path, ":");
        format_text(candidate, sizeof candidate, "%.*s/%s", length, path, program);
        if (access(candidate, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

void launch_end(pid_t process, int signal_number, int timeout_s)
{
    int status = 0;
    if (signal_number)
        kill(process, signal_number);
    if (!end_await(process, &status, timeout_s * 1000))
        die("a process does not end (--timeout)");
    if (WIFSIGNALED(status) && WTERMSIG(status) != signal_number)
        die("a process was ended by signal %d", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        die("a process ended with status %d", WEXITSTATUS(status));
}

bool launch_ended(pid_t process, const char *name)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
        return false;
    if (info.si_code != CLD_EXITED)
        die("%s was ended by signal %d", name, info.si_status);
    if (info.si_status != 0)
        die("%s ended with status %d", name, info.si_status);
    return true;
}
