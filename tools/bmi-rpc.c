/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-rpc - lists the services of a BMI server and their counters, or prints the calls per second
 * of one service.
 *
 * It calls the service "bmi.services", which the server's library offers (bmi/rpc/builtin.c). The
 * reply is text and numbers of a peer: line_print escapes the text.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bmi/rpc.h"
#include "line.h"

static const char usage[] =
    "usage: bmi-rpc [-i interval] [-W timeout] URL [SERVICE]\n"
    "       bmi-rpc --version | --help\n"
    "Lists the services of the BMI server at URL (tcp://host:port) and their counters; with\n"
    "SERVICE, prints how many calls per second it had during an interval.\n"
    "  -i interval  seconds between the two requests (1)\n"
    "  -W timeout   seconds to wait for an answer (2)\n"
    "Exit status: 0 success, 1 no answer or no such service, 2 wrong usage.\n";

struct request {
    const char *url, *service; /* service NULL: list all */
    double interval_s;
    int timeout_ms;
};

enum { REQUESTS, FAILED, CANCELLED, RUNNING, BYTES_IN, BYTES_OUT, COUNTERS };

/* The answer. */
struct answer {
    const char *wanted; /* NULL: print all */
    bool found;
    uint64_t counters[COUNTERS]; /* of `wanted` */
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

    while ((option = getopt_long(argc, argv, "i:W:Vh", options, NULL)) != -1) {
        switch (option) {
        case 'i':
            request.interval_s = option_number('i', optarg, 0.001, 86400);
            break;
        case 'W':
            request.timeout_ms = (int)(option_number('W', optarg, 0.001, 86400) * 1000);
            break;
        default:
            option_end(option, usage);
        }
    }
    if (optind + 1 != argc && optind + 2 != argc)
        option_end('?', usage);
    request.url = argv[optind];
    request.service = argv[optind + 1];
    return request;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void service_take(struct answer *answer, const char *name, const uint64_t *counters)
{
    if (answer->wanted == NULL)
        line_print(stdout,
                   "%-24s %10" PRIu64 " %8" PRIu64 " %9" PRIu64 " %7" PRIu64 " %12" PRIu64
                   " %12" PRIu64,
                   name, counters[REQUESTS], counters[FAILED], counters[CANCELLED],
                   counters[RUNNING], counters[BYTES_IN], counters[BYTES_OUT]);
    else if (strcmp(name, answer->wanted) == 0) {
        answer->found = true;
        memcpy(answer->counters, counters, sizeof answer->counters);
    }
}

static int answer_unpack(struct bmi_message *reply, void *argument)
{
    bmi_size_t size;
    int status;

    while ((status = bmi_unpack_size(reply, &size)) == 0) {
        const char *name;
        const void *counters;
        size_t count;

        status = bmi_unpack_string(reply, &name);
        if (status == 0)
            status = bmi_unpack_array(reply, &counters, &count, sizeof(uint64_t));
        if (status == 0 && count != COUNTERS)
            status = -BMI_EBADMSG;
        if (status < 0)
            return status;
        service_take(argument, name, counters);
    }
    return status == -BMI_ENODATA ? 0 : status;
}

/* Returns 0, or an error. */
static int ask(BMI_addr_t server, bmi_context_id context, int timeout_ms, struct answer *answer)
{
    const struct bmi_rpc_options options = {.timeout_ms = timeout_ms};
    bmi_op_id_t call;
    bmi_error_code_t error = 0;
    bmi_size_t size;
    int count = 0;
    int status = bmi_rpc_call(&call, server, "bmi.services", NULL, answer_unpack, answer, &options,
                              NULL, context);

    while (status == 0 && count == 0)
        status = BMI_test(call, &count, &error, &size, NULL, 1000, context);
    return status < 0 ? status : error;
}

static int list(BMI_addr_t server, bmi_context_id context, const struct request *request)
{
    struct answer answer = {.wanted = NULL};

    printf("%-24s %10s %8s %9s %7s %12s %12s\n", "service", "requests", "failed", "cancelled",
           "running", "bytes in", "bytes out");
    return ask(server, context, request->timeout_ms, &answer);
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int rate(BMI_addr_t server, bmi_context_id context, const struct request *request)
{
    struct answer first = {.wanted = request->service}, second = first;
    struct timespec interval = {.tv_sec = (time_t)request->interval_s};
    interval.tv_nsec = (long)((request->interval_s - (double)interval.tv_sec) * 1e9);
    int status = ask(server, context, request->timeout_ms, &first);
    double begin = now_s();

    if (status == 0 && !first.found)
        status = -BMI_ENOSYS;
    if (status == 0) {
        nanosleep(&interval, NULL);
        status = ask(server, context, request->timeout_ms, &second);
    }
    if (status < 0)
        return status;
    double calls = (double)(second.counters[REQUESTS] - first.counters[REQUESTS]);
    line_print(stdout, "%s: %.1f calls/s", request->service, calls / (now_s() - begin));
    return 0;
}

int main(int argc, char **argv)
{
    struct request request = parse_options(argc, argv);
    BMI_addr_t server;
    bmi_context_id context;
    int status = BMI_initialize(NULL, NULL, 0);

    if (status < 0) {
        fprintf(stderr, "bmi-rpc: %s\n", bmi_status_string(status));
        return 1;
    }
    status = BMI_addr_lookup(&server, request.url);
    if (status < 0) {
        line_print(stderr, "bmi-rpc: %s: %s", request.url, bmi_status_string(status));
        BMI_finalize();
        return 2;
    }
    status = BMI_open_context(&context);
    if (status == 0) {
        status = request.service != NULL ? rate(server, context, &request)
                                         : list(server, context, &request);
        BMI_close_context(context);
    }
    BMI_finalize();
    if (status == -BMI_ENOSYS)
        line_print(stderr, "bmi-rpc: %s: no such service, or the server offers none",
                   request.service != NULL ? request.service : request.url);
    else if (status < 0)
        line_print(stderr, "bmi-rpc: %s: %s", request.url, bmi_status_string(status));
    return output_end(status < 0 ? 1 : 0);
}
