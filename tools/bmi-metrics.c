/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-metrics - serves the reports of the processes of this host as metrics, for Prometheus.
 *
 * Each request for /metrics asks all processes at the same time, and waits for a bounded time. It
 * finds them by the names of their sockets in /proc/net/unix. A process is asked if it runs as the
 * user of bmi-metrics; by root, every one is.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bmi.h"
#include "http.h"
#include "line.h"
#include "openmetrics.h"
#include "report_parse.h"
#include "report_read.h"

static const char usage[] =
    "usage: bmi-metrics --listen ADDRESS:PORT [--peers]\n"
    "       bmi-metrics --version | --help\n"
    "Serves http://ADDRESS:PORT/metrics: the reports of all processes of this user (of all\n"
    "users, if it runs as root) that use libbmi with BMI_REPORT=on, for Prometheus. Prints that\n"
    "URL, and ends on SIGTERM.\n"
    "  -l, --listen    where to listen; a port of 0 takes a free one\n"
    "  -P, --peers     metrics for each peer, beside the sums; a server may have thousands\n";

/* PATIENCE_MS: in the worst case a request waits while pages of both formats are made for earlier
 * requests, and then for both formats again. Four times the patience is less than the 10 seconds
 * for which Prometheus waits by default. */
enum { PROCESSES = 256, PATIENCE_MS = 2000, REPORT_MOST = 4 << 20 };

struct collector {
    bool peers;
    struct metrics_collection collection;
    struct report_source sources[PROCESSES];
    struct metrics_process processes[PROCESSES];
};

static volatile sig_atomic_t ending;

static void end(int signal)
{
    (void)signal;
    ending = 1;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Whether a process runs as our user, or we are root. Others would not answer. */
static bool is_readable(long process)
{
    long user = report_process_user(process);

    return user >= 0 && (geteuid() == 0 || user == (long)geteuid());
}

/* The process in the name of a listening socket, or 0. */
static long line_process(const char *line)
{
    unsigned flags;
    long process;
    int path = 0, end = 0;

    if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s @%n" BMI_REPORT_NAME "%n", &flags, &path, &process,
               &end) != 2)
        return 0;
    return (flags & REPORT_LISTENS) != 0 && end > path && line[end] == '\n' && process > 0 ? process
                                                                                           : 0;
}

static bool is_known(const struct collector *collector, int count, long process)
{
    for (int i = 0; i < count; i++) {
        if (collector->sources[i].process == process)
            return true;
    }
    return false;
}

/* Returns how many processes there are to be asked. */
static int processes_find(struct collector *collector)
{
    FILE *file = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;
    int count = 0;

    collector->collection.skipped = 0;
    while (file != NULL && getline(&line, &room, file) > 0) {
        long process = line_process(line);

        if (process == 0 || is_known(collector, count, process) || !is_readable(process))
            continue;
        if (count == PROCESSES)
            collector->collection.skipped++;
        else
            collector->sources[count++].process = process;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return count;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* Fills in a process, if it is to be shown: one that has ended meanwhile, or does not report to us,
 * is not. */
static bool process_take(struct collector *collector, struct report_source *source,
                         struct metrics_process *process)
{
    if (source->status == REPORT_ABSENT || source->status == REPORT_DENIED ||
        source->status == REPORT_CLOSED)
        return false;
    *process = (struct metrics_process){.process = source->process};
    bool exists = report_process_name(source->process, process->name);
    if (source->status == REPORT_WHOLE && exists)
        process->up = report_parse(&process->report, source->text, source->size);
    if (!process->up && (exists || source->status == REPORT_FOREIGN))
        collector->collection.failed++;
    return exists && source->status != REPORT_FOREIGN;
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static char *page_make(void *argument, bool openmetrics, size_t *size)
{
    struct collector *collector = argument;
    double start_s = now_s();
    int asked = processes_find(collector), count = 0;

    reports_read(collector->sources, asked, PATIENCE_MS, REPORT_MOST);
    for (int i = 0; i < asked; i++) {
        if (process_take(collector, &collector->sources[i], &collector->processes[count]))
            count++;
    }
    collector->collection.seconds = now_s() - start_s;
    const struct metrics metrics = {.processes = collector->processes,
                                    .count = count,
                                    .collection = &collector->collection,
                                    .peers = collector->peers,
                                    .plain = !openmetrics};
    char *text = metrics_text(&metrics, size);
    for (int i = 0; i < count; i++)
        report_release(&collector->processes[i].report);
    for (int i = 0; i < asked; i++)
        report_free(&collector->sources[i]);
    return text;
}

/* ---- the program ----------------------------------------------------------------------------- */

static const char *parse_options(int argc, char **argv, struct collector *collector)
{
    static const struct option options[] = {
        {.name = "listen", .has_arg = required_argument, .val = 'l'},
        {.name = "peers", .val = 'P'},
        {.name = "version", .val = 'V'},
        {.name = "help", .val = 'h'},
        {.name = NULL},
    };
    const char *address = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "l:PVh", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            address = optarg;
            break;
        case 'P':
            collector->peers = true;
            break;
        default:
            option_end(option, usage);
        }
    }
    if (address == NULL || optind < argc)
        option_end('?', usage);
    return address;
}

/* The signals that end the program come only while it waits for clients: a page is finished
 * first. */
static sigset_t signals_set(void)
{
    const struct sigaction action = {.sa_handler = end};
    sigset_t blocked, before;

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigdelset(&before, SIGTERM);
    sigdelset(&before, SIGINT);
    return before;
}

int main(int argc, char **argv)
{
    static struct collector collector;
    const char *address = parse_options(argc, argv, &collector), *reason;
    sigset_t waiting = signals_set();
    char bound[256];
    struct http_server *server =
        http_listen(address, page_make, &collector, bound, sizeof bound, &reason);

    if (server == NULL) {
        line_print(stderr, "bmi-metrics: cannot listen at %s: %s", address, reason);
        return 1;
    }
    printf("http://%s/metrics\n", bound);
    if (output_end(0) != 0)
        return 1;
    if (http_serve(server, &waiting, &ending) < 0) {
        fprintf(stderr, "bmi-metrics: cannot wait for clients: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
