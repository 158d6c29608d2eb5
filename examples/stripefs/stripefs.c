/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stripefs.c - the client program: options, servers, and the choice of the verb.
 */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client.h"

static const struct {
    const char *name, *arguments;
    int (*run)(struct client *client, int count, char **arguments);
    int least, most;
} verbs[] = {
    {"put", "[-r] LOCAL... REMOTE", verb_put, 2, INT_MAX},
    {"get", "[-r] REMOTE... LOCAL", verb_get, 2, INT_MAX},
    {"cat", "REMOTE...", verb_cat, 1, INT_MAX},
    {"ls", "[-r] [REMOTE...]", verb_ls, 0, INT_MAX},
    {"stat", "REMOTE...", verb_stat, 1, INT_MAX},
    {"rm", "[-r] REMOTE...", verb_rm, 1, INT_MAX},
    {"df", "", verb_df, 0, 0},
    {"check", "[--repair]", verb_check, 0, 0},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *file)
{
    fprintf(file, "usage: bmi-stripefs --servers URL,... [options] VERB ...\n"
                  "       bmi-stripefs --version | --help\n");
    for (int i = 0; i < VERBS; i++)
        fprintf(file, "  %-5s %s\n", verbs[i].name, verbs[i].arguments);
    fprintf(file, "options: --recursive --sync --parallel N --stripe BYTES --timeout SECONDS\n"
                  "         --trace\n"
                  "The manual page bmi-stripefs(1) says more.\n");
}

static int number(const char *option, const char *text, long least, long most)
{
    long value;
    if (!sfs_number("bmi-stripefs", option, text, least, most, &value))
        exit(2);
    return (int)value;
}

/* The exit status: checks that the output was written, for instance to a full disk. */
static int output_end(int status)
{
    return sfs_output_good("bmi-stripefs") ? status : 1;
}

static const char *options_take(struct client *client, int argc, char **argv)
{
    static const struct option options[] = {
        {"servers", required_argument, NULL, 's'},
        {"sync", no_argument, NULL, 'y'},
        {"parallel", required_argument, NULL, 'j'},
        {"stripe", required_argument, NULL, 'b'},
        {"timeout", required_argument, NULL, 't'},
        {"recursive", no_argument, NULL, 'r'},
        {"trace", no_argument, NULL, 'x'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {"repair", no_argument, NULL, 'R'},
        {0},
    };
    const char *servers = getenv("BMI_STRIPEFS_SERVERS");
    int option;
    while ((option = getopt_long(argc, argv, "rhV", options, NULL)) != -1) {
        switch (option) {
        case 's':
            servers = optarg;
            break;
        case 'y':
            client->sync = true;
            break;
        case 'j':
            client->parallel = number("--parallel", optarg, 1, WORKERS_MAX);
            break;
        case 'b':
            client->stripe = (uint32_t)number("--stripe", optarg, 512, SFS_STRIPE_MAX);
            break;
        case 't':
            client->timeout_ms = number("--timeout", optarg, 1, 86400) * 1000;
            break;
        case 'r':
            client->recursive = true;
            break;
        case 'R':
            client->repair = true;
            break;
        case 'x':
            client->trace = true;
            break;
        case 'h':
            usage(stdout);
            exit(output_end(0));
        case 'V':
            printf("bmi-stripefs %s\n", bmi_version());
            exit(output_end(0));
        default:
            usage(stderr);
            exit(2);
        }
    }
    return servers;
}

/* Returns the verb's number; exits if there is no such verb, or its arguments are too few or too
 * many. */
static int verb_find(int count, char **arguments)
{
    const char *wrong = NULL;
    int verb = 0;
    while (count > 0 && verb < VERBS && strcmp(arguments[0], verbs[verb].name) != 0)
        verb++;
    if (count == 0)
        fprintf(stderr, "bmi-stripefs: no verb\n");
    else if (verb == VERBS)
        fprintf(stderr, "bmi-stripefs: %s: there is no such verb\n", arguments[0]);
    else if (count - 1 < verbs[verb].least)
        wrong = "few";
    else if (count - 1 > verbs[verb].most)
        wrong = "many";
    else
        return verb;
    if (wrong != NULL)
        fprintf(stderr, "bmi-stripefs: %s: too %s arguments\n", arguments[0], wrong);
    usage(stderr);
    exit(2);
}

static void servers_check(const char *servers)
{
    if (servers != NULL && servers[strspn(servers, ",")] != '\0')
        return;
    fprintf(stderr, "bmi-stripefs: no servers: say --servers or BMI_STRIPEFS_SERVERS\n");
    usage(stderr);
    exit(2);
}

/* Prints an error of BMI; `url`: the server's, or NULL. */
static bool refused(const char *url, int result)
{
    fprintf(stderr, "bmi-stripefs: %s%s%s%s (set BMI_LOG=error for details)\n",
            url != NULL ? "server " : "", url != NULL ? url : "", url != NULL ? ": " : "",
            bmi_status_string(result));
    return false;
}

static bool server_add(struct client *client, const char *url)
{
    if (client->count == SFS_SERVERS_MAX) {
        fprintf(stderr, "bmi-stripefs: more than %d servers\n", SFS_SERVERS_MAX);
        return false;
    }
    char *copy = strdup(url);
    int result =
        copy == NULL ? -BMI_ENOMEM : BMI_addr_lookup(&client->addresses[client->count], url);
    if (result < 0) {
        free(copy);
        return refused(url, result);
    }
    client->urls[client->count++] = copy;
    return true;
}

/* The options name at least one server. Prints errors. */
static bool servers_find(struct client *client, const char *servers)
{
    char *copy = strdup(servers), *rest = copy, *url;
    bool good = copy != NULL || refused(NULL, -BMI_ENOMEM);
    while (good && (url = strsep(&rest, ",")) != NULL)
        good = *url == '\0' || server_add(client, url);
    free(copy);
    return good;
}

/* Prints errors. */
static bool client_open(struct client *client, const char *servers)
{
    int result = BMI_initialize(NULL, NULL, 0);
    if (result < 0)
        return refused(NULL, result);
    if (!servers_find(client, servers))
        return false;
    result = bmi_job_context_open(0, &client->jobs);
    if (result < 0)
        return refused(NULL, result);
    if (client->trace)
        bmi_sm_trace_to(client->jobs, bmi_sm_trace_print, stderr);
    if (getrandom(&client->next_tag, sizeof client->next_tag, 0) < 0)
        return refused(NULL, -BMI_EIO);
    result = signals_open(client);
    return result < 0 ? refused(NULL, result) : true;
}

/* Closes the opened parts. */
static void client_close(struct client *client)
{
    if (client->jobs != NULL)
        bmi_job_context_close(client->jobs);
    BMI_finalize();
    for (int i = 0; i < client->count; i++)
        free(client->urls[i]);
}

int main(int argc, char **argv)
{
    struct client client = {.stripe = BMI_FLOW_STRIPE_SIZE, .timeout_ms = 30000, .parallel = 8};
    const char *servers = options_take(&client, argc, argv);
    int verb = verb_find(argc - optind, argv + optind);
    servers_check(servers);
    signals_take(&client);
    client.show = isatty(STDERR_FILENO);
    int status = 1;
    bool open = client_open(&client, servers);
    if (open)
        status = verbs[verb].run(&client, argc - optind - 1, argv + optind + 1);
    client_close(&client);
    return open ? output_end(status) : status;
}
