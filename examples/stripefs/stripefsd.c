/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stripefsd.c - a server of stripefs: listens, opens its store, and serves until a signal ends it.
 */
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

enum { WAIT_MS = 60000, BATCH = 64 };

/* A job of the loop waits for the signals that end the server. */
static void signals_block(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static void usage(FILE *file)
{
    fprintf(file, "usage: bmi-stripefsd --listen URL --store DIR [--place N/COUNT] [--requests N]\n"
                  "                    [--allow PATTERN]... [--fault N] [--trace]\n"
                  "       bmi-stripefsd --version | --help\n"
                  "The manual page bmi-stripefsd(1) says more.\n");
}

struct choices {
    const char *listen, *store;
    long requests, fault;
    unsigned position, count; /* the number of this server, and of all; count 0: not given */
    bool trace;
    struct allow_list allowed;
};

static const char program[] = "bmi-stripefsd";

/* Reads "N/COUNT", counted from 1. */
static bool place_take(struct choices *choices, const char *text)
{
    char first[8];
    size_t size = strcspn(text, "/");
    long position, count;
    if (text[size] == '\0' || size >= sizeof first) {
        fprintf(stderr, "%s: --place %s: N/COUNT is wanted, as 1/4\n", program, text);
        return false;
    }
    memcpy(first, text, size);
    first[size] = '\0';
    if (!sfs_number(program, "--place", text + size + 1, 1, SFS_SERVERS_MAX, &count) ||
        !sfs_number(program, "--place", first, 1, count, &position))
        return false;
    choices->position = (unsigned)position - 1;
    choices->count = (unsigned)count;
    return true;
}

static bool allow_take(struct allow_list *allowed, const char *pattern)
{
    if (*pattern == '\0' || allowed->count == ALLOW_PATTERNS) {
        fprintf(stderr, "%s: --allow: 1 to %d patterns are wanted, none of them empty\n", program,
                ALLOW_PATTERNS);
        return false;
    }
    allowed->patterns[allowed->count++] = pattern;
    return true;
}

/* Returns the exit status to end with, or -1 to continue. */
static int choices_take(struct choices *choices, int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'}, {"store", required_argument, NULL, 's'},
        {"allow", required_argument, NULL, 'a'},  {"requests", required_argument, NULL, 'r'},
        {"trace", no_argument, NULL, 't'},        {"fault", required_argument, NULL, 'f'},
        {"help", no_argument, NULL, 'h'},         {"version", no_argument, NULL, 'V'},
        {"place", required_argument, NULL, 'p'},  {0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "hV", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            choices->listen = optarg;
            break;
        case 's':
            choices->store = optarg;
            break;
        case 'a':
            if (!allow_take(&choices->allowed, optarg))
                return 2;
            break;
        case 'r':
            if (!sfs_number(program, "--requests", optarg, 1, 4096, &choices->requests))
                return 2;
            break;
        case 'p':
            if (!place_take(choices, optarg))
                return 2;
            break;
        case 't':
            choices->trace = true;
            break;
        case 'f':
            if (!sfs_number(program, "--fault", optarg, 0, LONG_MAX, &choices->fault))
                return 2;
            break;
        case 'h':
            usage(stdout);
            return !sfs_output_good(program);
        case 'V':
            printf("bmi-stripefsd %s\n", bmi_version());
            return !sfs_output_good(program);
        default:
            usage(stderr);
            return 2;
        }
    }
    if (optind < argc || choices->listen == NULL || choices->store == NULL) {
        usage(stderr);
        return 2;
    }
    if (!allow_list_usable(&choices->allowed, choices->listen))
        return 2;
    return -1;
}

/* Listens with the methods of the URLs, and on their hosts only: any client that can connect, and
 * that --allow names, may do everything. */
static int network_open(const char *listen)
{
    char methods[256] = "";
    for (const char *at = listen; at != NULL && *at != '\0';) {
        size_t scheme = strcspn(at, ":");
        size_t used = strlen(methods);
        snprintf(methods + used, sizeof methods - used, "%sbmi_%.*s", used > 0 ? "," : "",
                 (int)(scheme < 32 ? scheme : 32), at);
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    char tells[] = "report=on"; /* for bmi-info --process, unless the environment sets it */
    BMI_set_info(0, BMI_SETTING, tells);
    return BMI_initialize(methods, listen,
                          BMI_INIT_SERVER | BMI_AUTO_REF_COUNT | BMI_TCP_BIND_SPECIFIC);
}

static void ready_notify(const char *url)
{
    char state[BMI_MAX_ADDR_LEN + 64];
    snprintf(state, sizeof state, "READY=1\nSTATUS=listens on %s", url);
    manager_notify(state);
}

static int serve(struct server *server)
{
    struct bmi_job_status statuses[BATCH];
    int count;
    bool ended = false;
    int result = bmi_job_signal(server->jobs, SIGINT, NULL, NULL, NULL);
    if (result >= 0)
        result = bmi_job_signal(server->jobs, SIGTERM, NULL, NULL, NULL);
    while (!ended && result >= 0) {
        result = bmi_job_testcontext(server->jobs, BATCH, &count, statuses, WAIT_MS);
        for (int i = 0; i < count && result >= 0; i++)
            ended = ended || statuses[i].kind == BMI_JOB_SIGNAL;
    }
    return result < 0 ? result : 0;
}

int main(int argc, char **argv)
{
    struct choices choices = {.requests = 64, .fault = -1};
    static struct server server;
    char url[BMI_MAX_ADDR_LEN] = "";
    int result = choices_take(&choices, argc, argv);
    if (result >= 0)
        return result;
    signals_block();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* EFBIG reports it */
    result = network_open(choices.listen);
    if (result < 0) {
        fprintf(stderr, "bmi-stripefsd: cannot listen on %s: %s (set BMI_LOG=error for details)\n",
                choices.listen, bmi_status_string(result));
        return 1;
    }
    server.allowed = choices.allowed;
    result = server_open(&server, choices.store, choices.position, choices.count);
    if (result == 0) {
        if (choices.fault >= 0)
            store_fault(&server, (uint64_t)choices.fault);
        if (choices.trace)
            bmi_sm_trace_to(server.jobs, bmi_sm_trace_print, stderr);
        result = server_start(&server, (int)choices.requests);
    }
    if (result == 0) {
        BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
        printf("%s\n", url);
        /* Without its URL no client could find it. */
        result = sfs_output_good(program) ? 0 : -BMI_EIO;
        if (result == 0) {
            ready_notify(url);
            result = serve(&server);
            manager_notify("STOPPING=1");
        }
        if (result < 0)
            fprintf(stderr, "bmi-stripefsd: %s\n", bmi_status_string(result));
    }
    if (server_close(&server) < 0)
        result = -1;
    BMI_finalize();
    return result < 0;
}
