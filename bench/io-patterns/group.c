/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group.c - starting, instructing and ending a contender's processes.
 */
#include "group.h"
#include "fi_pingpong.h"
#include "launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_LEAD_NS 1000000u /* clients get the time of a start so long before it */

static int members_count(const struct group *group)
{
    return group->servers + group->clients;
}

static void member_name(const struct group *group, int member, char name[64])
{
    bool server = member < group->servers;
    format_text(name, 64, "%s %s %d", contender_name(group->contender),
                server ? "server" : "client", server ? member : member - group->servers);
}

/* Ends the run because a member has gone, or sends nothing in time. */
static void member_lost(const struct group *group, int member, const char *what)
{
    char name[64];
    member_name(group, member, name);
    die("%s %s; the run ends", name, what);
}

static int remaining_ms(uint64_t deadline)
{
    uint64_t now = now_ns();
    return now >= deadline ? 0 : (int)((deadline - now) / 1000000u) + 1;
}

/* Reads a member's output. Returns: whether its line is whole, without the newline then. */
static bool member_read(struct group *group, int place)
{
    struct member *member = &group->members[place];
    ssize_t got =
        read(member->line, member->text + member->used, sizeof member->text - 1 - member->used);
    if (got < 0 && errno == EINTR)
        return false;
    if (got <= 0)
        member_lost(group, place, "has ended");
    member->used += (size_t)got;
    if (member->used == sizeof member->text - 1)
        member_lost(group, place, "talks too much");
    if (member->text[member->used - 1] != '\n')
        return false;
    member->text[member->used - 1] = 0;
    member->used = 0;
    return true;
}

/* Waits for one line of each of the members [first, end), and watches for the ends of all. */
static void lines_await(struct group *group, int first, int end, const char *prefix)
{
    int count = members_count(group), missing = end - first;
    uint64_t deadline = now_ns() + (uint64_t)group->options->timeout_s * 1000000000u;
    struct pollfd *waits = allocate((size_t)count * sizeof *waits);
    for (int i = 0; i < count; i++)
        waits[i] = (struct pollfd){.fd = group->members[i].line, .events = POLLIN};
    while (missing > 0) {
        int found = poll(waits, (nfds_t)count, remaining_ms(deadline));
        if (found < 0 && errno != EINTR)
            die("poll: %s", strerror(errno));
        for (int i = 0; i < count && found > 0; i++) {
            if (!waits[i].revents || !member_read(group, i))
                continue;
            if (i < first || i >= end || waits[i].fd < 0 ||
                strncmp(group->members[i].text, prefix, strlen(prefix)) != 0)
                member_lost(group, i, group->members[i].text);
            /* polled no more in this call; a member that has ended is found by the next call */
            waits[i].fd = -1 - waits[i].fd;
            missing--;
        }
        if (found == 0 && remaining_ms(deadline) == 0)
            for (int i = first; i < end; i++)
                if (waits[i].fd >= 0)
                    member_lost(group, i, "did not answer in time (--timeout)");
    }
    free(waits);
}

/* Ends the run where one of the group's processes has ended. */
static void processes_mind(const struct group *group)
{
    for (int i = 0; i < group->process_count; i++) {
        int status;
        if (waitpid(group->processes[i], &status, WNOHANG) != group->processes[i])
            continue;
        launch_forget(group->processes[i]);
        die("a process of %s ended before it was ready; the run ends",
            contender_name(group->contender));
    }
}

/* Takes the hello of one process, in any order. */
static void hello_take(struct group *group, int line)
{
    struct member *member;
    char text[64], role[16];
    size_t used = 0;
    int number;
    while (used < sizeof text - 1 && read(line, text + used, 1) == 1 && text[used] != '\n')
        used++;
    text[used] = 0;
    if (sscanf(text, "hello %15s %d", role, &number) != 2)
        die("a process of %s ended before it was ready; the run ends",
            contender_name(group->contender));
    bool server = strcmp(role, "server") == 0;
    int count = server ? group->servers : group->clients;
    member = &group->members[(server ? 0 : group->servers) + number];
    if (number < 0 || number >= count || member->line >= 0)
        die("hello from a process that was not started: %s", text);
    member->line = line;
}

/* Waits until `missing` more processes have sent hello. */
static void hellos_await(struct group *group, int missing)
{
    uint64_t deadline = now_ns() + (uint64_t)group->options->timeout_s * 1000000000u;
    struct pollfd wait = {.fd = launch_listener(), .events = POLLIN};
    while (missing > 0) {
        int found = poll(&wait, 1, 50); /* the bound is for processes_mind */
        if (found < 0 && errno != EINTR)
            die("poll: %s", strerror(errno));
        if (found > 0) {
            hello_take(group, launch_accept());
            missing--;
        } else {
            processes_mind(group);
            if (remaining_ms(deadline) == 0)
                die("a process of %s does not become ready (--timeout)",
                    contender_name(group->contender));
        }
    }
}

static void process_add(struct group *group, pid_t process)
{
    group->processes[group->process_count++] = process;
}

/* Joins the servers' "address URL" lines to the comma list that clients are given. */
static void urls_join(struct group *group)
{
    size_t size = 1;
    for (int i = 0; i < group->servers; i++)
        size += strlen(group->members[i].text);
    group->urls = allocate(size);
    for (int i = 0; i < group->servers; i++) {
        strcat(group->urls, i ? "," : "");
        strcat(group->urls, group->members[i].text + strlen("address "));
    }
}

/* Picks the contender's servers among those that run elsewhere. */
static void urls_pick(struct group *group)
{
    const struct options *options = group->options;
    size_t size = 1;
    bool raw = BIT(group->contender) & BITS_RAW;
    for (int i = 0; i < options->url_count; i++)
        size += strlen(options->urls[i]) + 1;
    group->urls = allocate(size);
    for (int i = 0; i < options->url_count; i++) {
        if ((strncmp(options->urls[i], "raw://", 6) == 0) != raw)
            continue;
        strcat(group->urls, *group->urls ? "," : "");
        strcat(group->urls, options->urls[i]);
    }
}

static void own_servers_start(struct group *group)
{
    for (int i = 0; i < group->servers; i++)
        process_add(group, launch_self(group->options, group->contender, "server", i, NULL));
    hellos_await(group, group->servers);
    lines_await(group, 0, group->servers, "address ");
    urls_join(group);
}

void group_start(struct group *group, enum contender contender, const struct options *options,
                 const struct grid *grid)
{
    bool elsewhere = options->url_count > 0;
    launch_group_begin();
    *group = (struct group){.contender = contender,
                            .options = options,
                            .servers = elsewhere ? 0 : grid->servers,
                            .clients = grid->clients};
    if (contender == CONTENDER_FI || contender == CONTENDER_MEMCPY) {
        /* fi_pingpong gets two new processes for each sample, memcpy needs none */
        group->servers = group->clients = 0;
        return;
    }
    int count = members_count(group);
    group->processes = allocate((size_t)count * sizeof *group->processes);
    group->members = allocate((size_t)count * sizeof *group->members);
    for (int i = 0; i < count; i++)
        group->members[i].line = -1;
    if (BIT(contender) & BITS_MPI) {
        if (elsewhere)
            die("--reference mpi: MPI places its own processes; see --help");
        process_add(group, launch_mpi(options, contender, grid));
        hellos_await(group, count);
        lines_await(group, 0, count, "ready");
        return;
    }
    if (elsewhere)
        urls_pick(group);
    else
        own_servers_start(group);
    for (int i = 0; i < group->clients; i++)
        process_add(group, launch_self(options, contender, "client", i, group->urls));
    hellos_await(group, group->clients);
    lines_await(group, group->servers, count, "ready ");
    format_text(group->note, sizeof group->note, "%.255s",
                group->members[group->servers].text + strlen("ready "));
}

/* One sample of copying the messages by memcpy in this process: the least that a message through
 * shared memory costs. */
static double memcpy_sample(const struct work *work)
{
    const uint8_t *from = data_source(0, memory_size(work));
    uint8_t *to = data_arena(memory_size(work));
    if (work->verify)
        memset(to, 0, work->amount);
    uint64_t messages = message_count(work), start = now_ns();
    for (uint64_t i = 0; i < messages; i++)
        memcpy(to + memory_place(work, i), from + memory_place(work, i), message_size(work, i));
    double seconds = seconds_since(start);
    if (work->verify)
        data_check(to, work->amount, 0, 0);
    return seconds;
}

double group_sample(struct group *group, const struct work *work)
{
    int count = members_count(group);
    bool mpi = BIT(group->contender) & BITS_MPI;
    double slowest = 0;
    if (group->contender == CONTENDER_FI)
        return fi_pingpong_sample(group->options, work);
    if (group->contender == CONTENDER_MEMCPY)
        return memcpy_sample(work);
    uint64_t traffic = mpi ? traffic_carried() : 0;
    uint64_t start = now_ns() + START_LEAD_NS + (uint64_t)count * 20000u;
    for (int i = mpi ? 0 : group->servers; i < count; i++) {
        char text[256];
        format_text(text, sizeof text, "run %u %llu %u %llu %u %u %u %u\n", work->size,
                    (unsigned long long)work->amount, work->sequence, (unsigned long long)start,
                    work->on, work->figure, work->compute_us, work->window);
        if (send(group->members[i].line, text, strlen(text), MSG_NOSIGNAL) < 0)
            member_lost(group, i, "has ended");
    }
    lines_await(group, mpi ? 0 : group->servers, count, "result ");
    for (int i = group->servers; i < count; i++) {
        double figure = strtod(group->members[i].text + strlen("result "), NULL);
        slowest = figure > slowest ? figure : slowest;
    }
    if (mpi && !options_use_memory(group->options))
        traffic_check(group->options, work, (uint64_t)group->servers * (uint64_t)group->clients,
                      traffic);
    return slowest;
}

/* The coordinator does not ask MPI to end: over UCX's tcp MPI_Finalize now and then waits for ever,
 * and ranks that leave without it make mpiexec complain. A killed mpiexec ends its ranks without a
 * message. */
static void mpi_end(const struct group *group)
{
    launch_end(group->processes[0], SIGKILL, group->options->timeout_s);
}

void group_end(struct group *group)
{
    bool mpi = BIT(group->contender) & BITS_MPI;
    if (mpi)
        mpi_end(group);
    for (int i = 0; i < members_count(group); i++)
        close(group->members[i].line); /* clients end at that */
    for (int i = 0; !mpi && i < group->servers; i++)
        kill(group->processes[i], SIGTERM); /* all at once: each may take 100 ms to see it */
    for (int i = 0; !mpi && i < group->process_count; i++)
        launch_end(group->processes[i], i < group->servers ? SIGTERM : 0,
                   group->options->timeout_s);
    free(group->processes);
    free(group->members);
    free(group->urls);
}
