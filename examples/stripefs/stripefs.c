/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stripefs.c - the client program: options, servers, and which verb.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client.h"

static const struct {
    const char *name, *arguments;
    int (*run)(struct client *client, int count, char **arguments);
    int least;
} verbs[] = {
    {"put", "[-r] LOCAL... REMOTE", verb_put, 2},
    {"get", "[-r] REMOTE... LOCAL", verb_get, 2},
    {"cat", "REMOTE...", verb_cat, 1},
    {"ls", "[-r] [REMOTE...]", verb_ls, 0},
    {"stat", "REMOTE...", verb_stat, 1},
    {"rm", "[-r] REMOTE...", verb_rm, 1},
    {"df", "", verb_df, 0},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *file)
{
    fprintf(file, "usage: bmi-stripefs --servers URL,... [options] VERB ...\n");
    for (int i = 0; i < VERBS; i++)
        fprintf(file, "  %-5s %s\n", verbs[i].name, verbs[i].arguments);
    fprintf(file, "options: --sync --parallel N --stripe BYTES --timeout SECONDS --trace\n"
                  "The manual page bmi-stripefs(1) says more.\n");
}

static int number(const char *text, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "bmi-stripefs: %s: a number from %ld to %ld is wanted\n", text, least,
                most);
        exit(2);
    }
    return (int)value;
}

static const char *options_take(struct client *client, int argc, char **argv)
{
    static const struct option options[] = {
        {"servers", required_argument, NULL, 's'},  {"sync", no_argument, NULL, 'y'},
        {"parallel", required_argument, NULL, 'j'}, {"stripe", required_argument, NULL, 'b'},
        {"timeout", required_argument, NULL, 't'},  {"recursive", no_argument, NULL, 'r'},
        {"trace", no_argument, NULL, 'x'},          {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},        {0},
    };
    const char *servers = getenv("BMI_STRIPEFS_SERVERS");
    int option;
    while ((option = getopt_long(argc, argv, "r", options, NULL)) != -1) {
        switch (option) {
        case 's':
            servers = optarg;
            break;
        case 'y':
            client->sync = true;
            break;
        case 'j':
            client->parallel = number(optarg, 1, WORKERS_MAX);
            break;
        case 'b':
            client->stripe = (uint32_t)number(optarg, 512, SFS_STRIPE_MAX);
            break;
        case 't':
            client->timeout_ms = number(optarg, 1, 86400) * 1000;
            break;
        case 'r':
            client->recursive = true;
            break;
        case 'x':
            client->trace = true;
            break;
        case 'h':
            usage(stdout);
            exit(0);
        case 'v':
            printf("bmi-stripefs %s\n", bmi_version());
            exit(0);
        default:
            usage(stderr);
            exit(2);
        }
    }
    return servers;
}

static int servers_find(struct client *client, const char *servers)
{
    char *copy = strdup(servers), *rest = copy, *url;
    int result = copy == NULL ? -BMI_ENOMEM : 0;
    while (result == 0 && (url = strsep(&rest, ",")) != NULL) {
        if (*url == '\0')
            continue;
        if (client->count == SFS_SERVERS_MAX) {
            fprintf(stderr, "bmi-stripefs: more than %d servers\n", SFS_SERVERS_MAX);
            result = -BMI_EINVAL;
            break;
        }
        client->urls[client->count] = strdup(url);
        result = BMI_addr_lookup(&client->addresses[client->count], url);
        if (result < 0)
            fprintf(stderr, "bmi-stripefs: server %s: %s\n", url, bmi_status_string(result));
        else
            client->count++;
    }
    free(copy);
    return result < 0 ? result : client->count > 0 ? 0 : -BMI_EINVAL;
}

static int client_open(struct client *client, const char *servers)
{
    int result = BMI_initialize(NULL, NULL, 0);
    if (result == 0)
        result = servers_find(client, servers);
    if (result == 0)
        result = bmi_job_context_open(0, &client->jobs);
    if (result == 0 && client->trace)
        bmi_sm_trace_to(client->jobs, bmi_sm_trace_print, stderr);
    if (getrandom(&client->next_tag, sizeof client->next_tag, 0) < 0)
        client->next_tag = 0;
    return result;
}

int main(int argc, char **argv)
{
    struct client client = {.stripe = BMI_FLOW_STRIPE_SIZE, .timeout_ms = 30000, .parallel = 8};
    int verb = 0;
    const char *servers = options_take(&client, argc, argv);
    while (optind < argc && verb < VERBS && strcmp(argv[optind], verbs[verb].name) != 0)
        verb++;
    if (servers == NULL || optind == argc || verb == VERBS ||
        argc - optind - 1 < verbs[verb].least) {
        if (servers == NULL)
            fprintf(stderr, "bmi-stripefs: no servers: say --servers or BMI_STRIPEFS_SERVERS\n");
        usage(stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    client.show = isatty(STDERR_FILENO);
    int result = client_open(&client, servers);
    if (result < 0) {
        fprintf(stderr, "bmi-stripefs: %s\n", bmi_status_string(result));
        return 1;
    }
    int status = verbs[verb].run(&client, argc - optind - 1, argv + optind + 1);
    bmi_job_context_close(client.jobs);
    BMI_finalize();
    for (int i = 0; i < client.count; i++)
        free(client.urls[i]);
    return status;
}
