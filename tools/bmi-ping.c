/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-ping - checks whether a BMI server answers, and how long a round trip takes.
 *
 * The peer's library answers (bmi_ping), without its program. The first answer includes the time to
 * connect. An interrupt (Ctrl-C) ends the program with the summary: a thread waits for the signal
 * and wakes the main one. If the main thread waits for an answer that does not come, the signal
 * thread ends the program itself.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bmi.h"
#include "line.h"

static const char usage[] =
    "usage: bmi-ping [-c count] [-i interval] [-W timeout] [-q] URL\n"
    "       bmi-ping --version | --help\n"
    "Pings the BMI server at URL (tcp://host:port) and prints the round-trip times, and the name\n"
    "that the server has proved (tls://host:port).\n"
    "  -c count     stop after this many pings (default: go on until interrupted)\n"
    "  -i interval  seconds from one ping to the next (1)\n"
    "  -W timeout   seconds to wait for an answer (2)\n"
    "  -q           print the summary only\n"
    "Exit status: 0 an answer arrived, 1 no answer, 2 wrong usage.\n";

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

struct ping {
    struct request request;
    sigset_t signals;     /* blocked everywhere */
    pthread_mutex_t lock; /* of the members below, and of standard output */
    pthread_cond_t changed;
    struct summary summary;
    struct bmi_peer_identity identity; /* that the peer has proved; an empty name: none */
    bool interrupted;
    bool over; /* the summary is printed */
};

/* ---- options --------------------------------------------------------------------------------- */

/* Reads the options; exits after one that needs nothing more. */
static struct request parse_options(int argc, char **argv)
{
    static const struct option options[] = {{.name = "version", .val = 'V'},
                                            {.name = "help", .val = 'h'},
                                            {.name = NULL}};
    struct request request = {.interval_s = 1, .timeout_ms = 2000};
    int option;

    while ((option = getopt_long(argc, argv, "c:i:W:qVh", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            request.count = (long)option_number('c', optarg, 1, 1e9);
            break;
        case 'i':
            request.interval_s = option_number('i', optarg, 0, 86400);
            break;
        case 'W':
            request.timeout_ms = (int)(option_number('W', optarg, 0.001, 86400) * 1000);
            break;
        case 'q':
            request.quiet = true;
            break;
        default:
            option_end(option, usage);
        }
    }
    if (optind + 1 != argc)
        option_end('?', usage);
    request.url = argv[optind];
    return request;
}

/* ---- identity -------------------------------------------------------------------------------- */

static void identity_print(const struct bmi_peer_identity *identity)
{
    char expiry[64] = "";
    int64_t days = (identity->expires_s - time(NULL)) / 86400;

    if (identity->expires_s != 0)
        snprintf(expiry, sizeof expiry, "; its certificate expires in %" PRId64 " days", days);
    line_print(stdout, "the peer is %s (%s)%s", identity->name, identity->protection, expiry);
}

/* With the first answer. */
static void identity_take_locked(struct ping *ping, BMI_addr_t addr)
{
    if (ping->identity.name[0] != '\0' ||
        BMI_get_info(addr, BMI_PEER_IDENTITY, &ping->identity) < 0)
        return;
    if (!ping->request.quiet)
        identity_print(&ping->identity);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void answer_add(struct summary *summary, double us)
{
    if (summary->answered == 0 || us < summary->least_us)
        summary->least_us = us;
    if (us > summary->most_us)
        summary->most_us = us;
    summary->answered++;
    summary->sum_us += us;
    summary->square_sum_us += us * us;
}

/* Called and returns with the lock held; releases it while it waits. */
static void ask_locked(struct ping *ping, BMI_addr_t addr)
{
    double us = 0;
    long number = ++ping->summary.sent;
    pthread_mutex_unlock(&ping->lock);
    int status = bmi_ping(addr, ping->request.timeout_ms, &us);
    pthread_mutex_lock(&ping->lock);
    if (status >= 0) {
        identity_take_locked(ping, addr);
        answer_add(&ping->summary, us);
    }
    if (ping->request.quiet)
        return;
    if (status < 0)
        line_print(stdout, "%ld: no answer: %s", number, bmi_status_string(status));
    else
        line_print(stdout, "%ld: %.1f us", number, us);
}

static void time_add(struct timespec *time, double seconds)
{
    double whole = floor(seconds);

    time->tv_sec += (time_t)whole;
    time->tv_nsec += (long)((seconds - whole) * 1e9);
    if (time->tv_nsec >= 1000000000) {
        time->tv_nsec -= 1000000000;
        time->tv_sec++;
    }
}

/* The time of the next ping: an interval after the last one, not before now. A late answer does not
 * shorten the next interval. */
static void due_next(struct timespec *due, double interval_s)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    time_add(due, interval_s);
    if (due->tv_sec < now.tv_sec || (due->tv_sec == now.tv_sec && due->tv_nsec < now.tv_nsec))
        *due = now;
}

static void ask_all_locked(struct ping *ping, BMI_addr_t addr)
{
    struct timespec due;

    clock_gettime(CLOCK_MONOTONIC, &due);
    for (;;) {
        ask_locked(ping, addr);
        if (fflush(stdout) != 0 || ping->interrupted ||
            (ping->request.count && ping->summary.sent >= ping->request.count))
            return;
        due_next(&due, ping->request.interval_s);
        while (!ping->interrupted &&
               pthread_cond_timedwait(&ping->changed, &ping->lock, &due) != ETIMEDOUT)
            ;
        if (ping->interrupted)
            return;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Prints the summary. Returns the exit status. */
static int finish_locked(struct ping *ping)
{
    const struct summary *summary = &ping->summary;
    long lost = summary->sent - summary->answered;
    double percent = summary->sent > 0 ? 100.0 * (double)lost / (double)summary->sent : 0;

    line_print(stdout, "--- %s ---", ping->request.url);
    if (ping->request.quiet && ping->identity.name[0] != '\0')
        identity_print(&ping->identity);
    line_print(stdout, "%ld asked, %ld answered, %.0f %% lost", summary->sent, summary->answered,
               percent);
    if (summary->answered) {
        double count = (double)summary->answered;
        double mean = summary->sum_us / count;
        double variance = summary->square_sum_us / count - mean * mean;

        line_print(stdout, "round trip min/mean/max/deviation = %.1f/%.1f/%.1f/%.1f us",
                   summary->least_us, mean, summary->most_us, sqrt(variance > 0 ? variance : 0));
    }
    ping->over = true;
    pthread_cond_broadcast(&ping->changed);
    return output_end(summary->answered ? 0 : 1);
}

/* Wakes the main thread; then gives an outstanding answer half a second more. */
static void *interrupt_await(void *argument)
{
    struct ping *ping = argument;
    struct timespec due;
    int number;

    sigwait(&ping->signals, &number);
    pthread_mutex_lock(&ping->lock);
    ping->interrupted = true;
    pthread_cond_broadcast(&ping->changed);
    clock_gettime(CLOCK_MONOTONIC, &due);
    time_add(&due, 0.5);
    while (!ping->over && pthread_cond_timedwait(&ping->changed, &ping->lock, &due) != ETIMEDOUT)
        ;
    if (!ping->over)
        _exit(finish_locked(ping));
    pthread_mutex_unlock(&ping->lock);
    return NULL;
}

/* Before BMI_initialize, so that the library's threads inherit the blocked signals. */
static void interrupt_open(struct ping *ping)
{
    pthread_condattr_t attributes;
    pthread_t thread;

    pthread_mutex_init(&ping->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ping->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    sigemptyset(&ping->signals);
    sigaddset(&ping->signals, SIGINT);
    sigaddset(&ping->signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ping->signals, NULL);
    if (pthread_create(&thread, NULL, interrupt_await, ping) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &ping->signals, NULL);
}

/* Prints why no ping is possible. Returns the exit status: 2 if the URL is invalid. */
static int failure(const char *what, int status)
{
    bool usage_is_wrong =
        status == -BMI_EINVAL || status == -BMI_ENAMETOOLONG || status == -BMI_ENOPROTOOPT;

    line_print(stderr, "bmi-ping: %s: %s (set BMI_LOG=error for details)", what,
               bmi_status_string(status));
    return usage_is_wrong ? 2 : 1;
}

int main(int argc, char **argv)
{
    static struct ping ping; /* the signal thread uses it until the process ends */
    BMI_addr_t addr;

    ping.request = parse_options(argc, argv);
    interrupt_open(&ping);
    int status = BMI_initialize(NULL, NULL, 0);
    if (status < 0) {
        failure("cannot start", status);
        return 1;
    }
    status = BMI_addr_lookup(&addr, ping.request.url);
    if (status < 0) {
        status = failure(ping.request.url, status);
        BMI_finalize();
        return status;
    }
    pthread_mutex_lock(&ping.lock);
    ask_all_locked(&ping, addr);
    status = finish_locked(&ping);
    pthread_mutex_unlock(&ping.lock);
    BMI_finalize();
    return status;
}
