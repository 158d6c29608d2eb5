/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-ping - asks whether a BMI server is there, and how long a round trip takes.
 *
 * The peer's library answers (bmi_ping), its program notices nothing. The first answer includes the
 * connection's making. An interrupt (Ctrl-C) ends it with the summary.
 */
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bmi.h"

static const char usage[] =
    "usage: bmi-ping [-c count] [-i interval] [-W timeout] [-q] URL\n"
    "       bmi-ping --version | --help\n"
    "Asks the BMI server at URL (tcp://host:port) for signs of life, with round-trip times.\n"
    "  -c count     ends after so many; without it, goes on until interrupted\n"
    "  -i interval  seconds from one to the next (1)\n"
    "  -W timeout   seconds to wait for an answer (2)\n"
    "  -q           the summary only\n"
    "Exit status: 0 an answer came, 1 none did, 2 wrong usage.\n";

struct request {
    const char *url;
    long count; /* 0: no end */
    double interval_s;
    int timeout_ms;
    bool quiet;
};

struct summary {
    long sent, answered;
    double least_us, most_us, sum_us, square_sum_us;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* ---- options --------------------------------------------------------------------------------- */

/* A number within limits from an option's text; exits where it is none. */
static double number(char option, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= least && value <= most)) {
        fprintf(stderr, "bmi-ping: -%c %s: a number from %g to %g is wanted\n", option, text, least,
                most);
        exit(2);
    }
    return value;
}

/* Reads the options; exits where there is nothing left to do. */
static struct request parse_options(int argc, char **argv)
{
    static const struct option options[] = {
        {.name = "version", .val = 'V'}, {.name = "help", .val = 'h'}, {.name = NULL}};
    struct request request = {.interval_s = 1, .timeout_ms = 2000};
    int option;

    while ((option = getopt_long(argc, argv, "c:i:W:qVh", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            request.count = (long)number('c', optarg, 1, 1e9);
            break;
        case 'i':
            request.interval_s = number('i', optarg, 0, 86400);
            break;
        case 'W':
            request.timeout_ms = (int)(number('W', optarg, 0.001, 86400) * 1000);
            break;
        case 'q':
            request.quiet = true;
            break;
        case 'V':
            printf("bmi-ping (libbmi) %s\n", bmi_version());
            exit(0);
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (optind + 1 != argc) {
        fputs(usage, stderr);
        exit(2);
    }
    request.url = argv[optind];
    return request;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask(const struct request *request, BMI_addr_t addr, struct summary *summary)
{
    double us = 0;
    int status = bmi_ping(addr, request->timeout_ms, &us);

    summary->sent++;
    if (status < 0) {
        if (!request->quiet)
            printf("%ld: no answer: %s\n", summary->sent, bmi_status_string(status));
        return;
    }
    if (summary->answered == 0 || us < summary->least_us)
        summary->least_us = us;
    if (us > summary->most_us)
        summary->most_us = us;
    summary->answered++;
    summary->sum_us += us;
    summary->square_sum_us += us * us;
    if (!request->quiet)
        printf("%ld: %.1f us\n", summary->sent, us);
}

/* Moves `due` on by the interval and sleeps until then; a signal ends the sleep. */
static void wait_next(struct timespec *due, double interval_s)
{
    double whole = floor(interval_s);

    due->tv_sec += (time_t)whole;
    due->tv_nsec += (long)((interval_s - whole) * 1e9);
    if (due->tv_nsec >= 1000000000) {
        due->tv_nsec -= 1000000000;
        due->tv_sec++;
    }
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, due, NULL);
}

static void ask_all(const struct request *request, BMI_addr_t addr, struct summary *summary)
{
    struct timespec due;

    clock_gettime(CLOCK_MONOTONIC, &due);
    for (;;) {
        ask(request, addr, summary);
        fflush(stdout);
        if (interrupted || (request->count && summary->sent >= request->count))
            return;
        wait_next(&due, request->interval_s);
        if (interrupted)
            return;
    }
}

static void print_summary(const struct request *request, const struct summary *summary)
{
    long lost = summary->sent - summary->answered;

    printf("--- %s ---\n%ld asked, %ld answered, %.0f %% lost\n", request->url, summary->sent,
           summary->answered, 100.0 * (double)lost / (double)summary->sent);
    if (summary->answered) {
        double count = (double)summary->answered;
        double mean = summary->sum_us / count;
        double variance = summary->square_sum_us / count - mean * mean;

        printf("round trip min/mean/max/deviation = %.1f/%.1f/%.1f/%.1f us\n", summary->least_us,
               mean, summary->most_us, sqrt(variance > 0 ? variance : 0));
    }
}

int main(int argc, char **argv)
{
    struct request request = parse_options(argc, argv);
    struct sigaction action = {.sa_handler = interrupt};
    struct summary summary = {.sent = 0};
    BMI_addr_t addr;
    int status;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    status = BMI_initialize(NULL, NULL, 0);
    if (status < 0) {
        fprintf(stderr, "bmi-ping: cannot start: %s\n", bmi_status_string(status));
        return 2;
    }
    status = BMI_addr_lookup(&addr, request.url);
    if (status < 0) {
        fprintf(stderr, "bmi-ping: %s: %s\n", request.url, bmi_status_string(status));
        BMI_finalize();
        return 2;
    }
    ask_all(&request, addr, &summary);
    print_summary(&request, &summary);
    BMI_finalize();
    return summary.answered ? 0 : 1;
}
