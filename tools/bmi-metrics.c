/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-metrics - serves the reports of the processes of this host as metrics, for Prometheus.
 *
 * Each request for /metrics asks all instances of all processes at the same time, and waits for a
 * bounded time (report_find.h, report_read.h).
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
#include "report_find.h"
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
enum { REPORTS = 512, PATIENCE_MS = 2000, REPORT_MOST = 4 << 20 };

struct collector {
    bool peers;
    struct metrics_collection collection;
    struct report_source sources[REPORTS];
    struct metrics_instance instances[REPORTS];
};

static volatile sig_atomic_t ending;

static void end(int signal)
{
    (void)signal;
    ending = 1;
}

/* ---- the page -------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Reads all reports. Returns how many sources there are; *count: instances to be shown. */
static int collect(struct collector *collector, int *count)
{
    struct metrics_collection *collection = &collector->collection;
    double start_s = now_s();
    int asked = reports_find(0, collector->sources, REPORTS, &collection->skipped);

    *count = 0;
    reports_read(collector->sources, asked, PATIENCE_MS, REPORT_MOST);
    for (int i = 0; i < asked; i++) {
        struct metrics_instance *instance = &collector->instances[*count];

        if (metrics_take(instance, &collector->sources[i])) {
            collection->failed += !instance->up;
            ++*count;
        } else
            collection->failed += collector->sources[i].status == REPORT_FOREIGN;
    }
    collection->seconds = now_s() - start_s;
    return asked;
}

static char *page_make(void *argument, bool openmetrics, size_t *size)
{
    struct collector *collector = argument;
    int count, asked = collect(collector, &count);
    const struct metrics metrics = {.instances = collector->instances,
                                    .count = count,
                                    .collection = &collector->collection,
                                    .peers = collector->peers,
                                    .plain = !openmetrics};
    char *text = metrics_text(&metrics, size);

    for (int i = 0; i < count; i++)
        report_release(&collector->instances[i].report);
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
