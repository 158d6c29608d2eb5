/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-info - prints the properties of this libbmi: version, methods and their limits, settings; on
 * request the task manager's tree of queues, or the state of a running process.
 *
 * All data comes from the library's own tables (bmi_method_next, bmi_setting_next). Settings have
 * the values that a program started now would have, since BMI_initialize reads the environment. The
 * provider that a method would choose depends on the host (bmi_method_choose). So does the tree: it
 * has the CPUs that a program started from here may use. With several NUMA nodes, --topology
 * measures the costs of memory as a program would.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi.h"
#include "bmi/task.h"
#include "bmi/task_group.h"
#include "line.h"
#include "openmetrics.h"
#include "report_find.h"
#include "report_parse.h"
#include "report_read.h"

static const char usage[] =
    "usage: bmi-info [--methods] [--settings] [--topology] [--json]\n"
    "       bmi-info --process PID [--openmetrics [--peers]]\n"
    "       bmi-info --version | --help\n"
    "Prints the version of libbmi, its methods and their limits, and every setting; or the\n"
    "report of a running process.\n"
    "  -m, --methods   the methods only\n"
    "  -s, --settings  the settings only\n"
    "  -t, --topology  the tree of the task manager's queues, with their CPUs; the NUMA nodes;\n"
    "                  and the costs by which groups of tasks are placed\n"
    "  -j, --json      one JSON object\n"
    "  -p, --process   totals, methods, contexts, and peers of the process with that number,\n"
    "                  if its setting `report` is on (BMI_REPORT=on in its environment)\n"
    "  -o, --openmetrics  that report as metrics, in OpenMetrics text\n"
    "  -P, --peers     metrics for each peer, beside the sums\n";

static const char *yes_no(int value)
{
    return value ? "yes" : "no";
}

/* ---- valid values: the library lists them when it refuses a value --------------------------- */

enum { VALID_MAX = 128 };

static void valid_take(void *argument, enum bmi_log_level level, const char *text)
{
    const char *valid = strstr(text, "valid: ");

    (void)level;
    if (valid != NULL)
        snprintf(argument, VALID_MAX, "%s", valid + strlen("valid: "));
}

/* The values that a setting takes, in words; empty if they are unknown. */
static void valid_find(const char *name, char valid[VALID_MAX])
{
    const struct bmi_log_callback heard = {.write = valid_take,
                                           .argument = valid,
                                           .level = BMI_LOG_ERROR};
    const struct bmi_log_callback none = {.write = NULL};
    char text[64];

    *valid = '\0';
    snprintf(text, sizeof text, "%s=?", name);
    BMI_set_info(0, BMI_LOG_CALLBACK, (void *)&heard);
    BMI_set_info(0, BMI_SETTING, text);
    BMI_set_info(0, BMI_LOG_CALLBACK, (void *)&none);
}

/* ---- as text --------------------------------------------------------------------------------- */

/* The provider that a method would choose on this host, if it has a choice; of tls, whether its
 * credentials expire. */
static void print_choice(int index)
{
    struct bmi_method_choice choice;
    int status = bmi_method_choose(index, &choice);

    if (status == 0 && !choice.provider[0] && choice.reason[0])
        line_print(stdout, "    here                %s", choice.reason);
    else if (status == 0 && choice.provider[0])
        line_print(stdout, "    here                provider %s, device %s: %s", choice.provider,
                   choice.device, choice.reason);
    else if (status != 0)
        line_print(stdout, "    here                not usable: %s: %s", bmi_status_string(status),
                   choice.reason);
}

static void print_methods(void)
{
    struct bmi_method_info info;

    line_print(stdout, "methods");
    for (int i = 0; bmi_method_next(i, &info) == 0; i++) {
        line_print(stdout, "  %-10s %s", info.name, info.description);
        line_print(stdout, "    schemes             %s", info.schemes);
        line_print(stdout, "    eager up to         %" PRId64 " bytes", info.eager_max);
        line_print(stdout, "    unexpected up to    %" PRId64 " bytes", info.unexpected_max);
        line_print(stdout, "    segments at once    %d", info.segments_max);
        line_print(stdout, "    remote put, get     %s, %s", yes_no(info.can_put),
                   yes_no(info.can_get));
        line_print(stdout, "    needs registration  %s", yes_no(info.needs_registration));
        line_print(stdout, "    proves identities   %s", yes_no(info.proves_identity));
        print_choice(i);
    }
}

/* Prints a help text indented, broken at blanks before column 100. */
static void print_wrapped(const char *text)
{
    const size_t width = 94;

    while (*text) {
        size_t length = strlen(text);

        if (length > width) {
            for (length = width; length > 0 && text[length] != ' '; length--)
                ;
            if (length == 0)
                length = width;
        }
        line_print(stdout, "      %.*s", (int)length, text);
        text += length;
        text += strspn(text, " ");
    }
}

static void print_settings(void)
{
    const char *name, *value, *help;
    char valid[VALID_MAX];

    line_print(stdout, "settings (name in the environment, in capitals with BMI_ in front: value)");
    for (int i = 0; bmi_setting_next(i, &name, &value, &help) == 0; i++) {
        line_print(stdout, "  %s: %s", name, *value ? value : "(none)");
        print_wrapped(help);
        valid_find(name, valid);
        if (*valid)
            line_print(stdout, "      valid: %s", valid);
    }
}

static void print_nodes(void)
{
    struct bmi_task_numa from, to;
    double ns;
    int distance;

    line_print(stdout, "nodes");
    for (int i = 0; bmi_task_numa_node(NULL, i, &from) == 0; i++) {
        line_print(stdout, "  node %d: %" PRIu64 " MiB; its CPUs have queue %d", from.node,
                   from.memory >> 20, from.queue);
        for (int j = 0; bmi_task_numa_node(NULL, j, &to) == 0; j++) {
            if (bmi_task_numa_access(NULL, from.node, to.node, &distance, &ns) != 0)
                continue;
            if (ns > 0)
                line_print(stdout, "    to node %d: distance %d, %.3g ns/KiB", to.node, distance,
                           ns);
            else
                line_print(stdout, "    to node %d: distance %d", to.node, distance);
        }
    }
}

static const char *source_name(enum bmi_task_cost_source source)
{
    static const char *const names[] = {
        [BMI_TASK_COST_DEFAULT] = "default",
        [BMI_TASK_COST_MEASURED] = "measured",
        [BMI_TASK_COST_GIVEN] = "given",
    };
    return names[source];
}

static void print_costs(void)
{
    struct bmi_task_cost cost;

    line_print(stdout, "costs of the placement of groups of tasks");
    for (int i = 0; bmi_task_group_cost(NULL, i, &cost) == 0; i++)
        line_print(stdout, "  %-16s %8.4g  %s%s%s", cost.name, cost.value, source_name(cost.source),
                   *cost.cause ? ": " : "", cost.cause);
}

/* Returns false if there is no tree. */
static bool print_topology(void)
{
    size_t length = bmi_task_topology_text(NULL, NULL, 0);
    char *text = length > 0 ? malloc(length + 1) : NULL;

    if (text == NULL)
        return false;
    bmi_task_topology_text(NULL, text, length + 1);
    line_print(stdout, "topology");
    text_print(stdout, text, strlen(text));
    free(text);
    print_nodes();
    print_costs();
    return true;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static void json_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void json_member(const char *name, const char *value)
{
    json_string(name);
    putchar(':');
    json_string(value);
}

static void json_choice(int index)
{
    struct bmi_method_choice choice;
    int status = bmi_method_choose(index, &choice);

    printf(",\"usable\":%s,", status == 0 ? "true" : "false");
    json_member("provider", choice.provider);
    putchar(',');
    json_member("device", choice.device);
    putchar(',');
    json_member("reason", choice.reason);
    putchar('}');
}

static void json_methods(void)
{
    struct bmi_method_info info;

    printf(",\n \"methods\": [");
    for (int i = 0; bmi_method_next(i, &info) == 0; i++) {
        printf("%s\n  {", i ? "," : "");
        json_member("name", info.name);
        putchar(',');
        json_member("schemes", info.schemes);
        putchar(',');
        json_member("description", info.description);
        printf(",\"eager_max\":%" PRId64 ",\"unexpected_max\":%" PRId64 ",\"segments_max\":%d",
               info.eager_max, info.unexpected_max, info.segments_max);
        printf(",\"put\":%s,\"get\":%s,\"needs_registration\":%s", info.can_put ? "true" : "false",
               info.can_get ? "true" : "false", info.needs_registration ? "true" : "false");
        printf(",\"proves_identity\":%s", info.proves_identity ? "true" : "false");
        json_choice(i);
    }
    printf("]");
}

static void json_settings(void)
{
    const char *name, *value, *help;
    char valid[VALID_MAX];

    printf(",\n \"settings\": [");
    for (int i = 0; bmi_setting_next(i, &name, &value, &help) == 0; i++) {
        printf("%s\n  {", i ? "," : "");
        json_member("name", name);
        putchar(',');
        json_member("value", value);
        putchar(',');
        json_member("help", help);
        putchar(',');
        valid_find(name, valid);
        json_member("valid", valid);
        putchar('}');
    }
    printf("]");
}

static void json_cpus(const struct bmi_cpuset *cpus)
{
    const char *comma = "";

    printf(",\"cpus\":[");
    for (int cpu = bmi_cpuset_next(cpus, 0); cpu >= 0; cpu = bmi_cpuset_next(cpus, cpu + 1)) {
        printf("%s%d", comma, cpu);
        comma = ",";
    }
    printf("]");
}

/* The distances, and where they were measured the times, from a node to all. */
static void json_accesses(int from)
{
    struct bmi_task_numa to;
    const char *comma = "";
    double ns;
    int distance;

    printf(",\"accesses\":[");
    for (int i = 0; bmi_task_numa_node(NULL, i, &to) == 0; i++) {
        if (bmi_task_numa_access(NULL, from, to.node, &distance, &ns) != 0)
            continue;
        printf("%s{\"node\":%d,\"distance\":%d", comma, to.node, distance);
        if (ns > 0)
            printf(",\"ns_per_kib\":%.9g", ns);
        putchar('}');
        comma = ",";
    }
    printf("]");
}

static void json_nodes(void)
{
    struct bmi_task_numa numa;

    printf(",\n \"nodes\": [");
    for (int i = 0; bmi_task_numa_node(NULL, i, &numa) == 0; i++) {
        printf("%s\n  {\"node\":%d,\"queue\":%d,\"memory\":%" PRIu64, i ? "," : "", numa.node,
               numa.queue, numa.memory);
        json_accesses(numa.node);
        putchar('}');
    }
    printf("]");
}

static void json_costs(void)
{
    struct bmi_task_cost cost;

    printf(",\n \"costs\": [");
    for (int i = 0; bmi_task_group_cost(NULL, i, &cost) == 0; i++) {
        printf("%s\n  {", i ? "," : "");
        json_member("name", cost.name);
        printf(",\"value\":%.9g,", cost.value);
        json_member("source", source_name(cost.source));
        putchar(',');
        json_member("cause", cost.cause);
        putchar('}');
    }
    printf("]");
}

static bool json_topology(void)
{
    struct bmi_task_queue_statistics queue;
    int count = bmi_task_queue_count(NULL);

    if (count <= 0)
        return false;
    printf(",\n \"topology\": [");
    for (int i = 0; i < count && bmi_task_queue_statistics(NULL, i, &queue) == 0; i++) {
        printf("%s\n  {\"queue\":%d,", i ? "," : "", i);
        json_member("name", queue.name);
        printf(",\"parent\":%d,\"depth\":%d", queue.parent, queue.depth);
        json_cpus(&queue.cpus);
        putchar('}');
    }
    printf("]");
    json_nodes();
    json_costs();
    return true;
}

/* ---- a running process ----------------------------------------------------------------------- */

/* The time that bmi-info waits for a process; the library drops a reader slower than 5000 ms. */
enum { PATIENCE_MS = 6000, REPORT_MOST = 64 << 20, SOURCES = 1 + REPORT_INSTANCES };

/* The one that was asked, in words. */
static const char *source_words(const struct report_source *source, char words[80])
{
    snprintf(words, 80, "%s%sprocess %ld", source->instance,
             source->instance[0] != '\0' ? " of " : "", source->process);
    return words;
}

/* Prints why there is no report. */
static void report_failed(const struct report_source *source)
{
    char words[80];
    const char *asked = source_words(source, words);

    if (source->status == REPORT_ABSENT)
        line_print(stderr, "bmi-info: no answer from %s: %s%s", asked, strerror(source->error),
                   source->error == ECONNREFUSED
                       ? " (is there such a process, with BMI_REPORT=on, and has a thread of it "
                         "been in a test call?)"
                       : "");
    else if (source->status == REPORT_FOREIGN)
        line_print(stderr, "bmi-info: process %ld of user %ld answers for %s: refused",
                   (long)source->from.pid, (long)source->from.uid, asked);
    else if (source->status == REPORT_DENIED)
        line_print(stderr, "bmi-info: %s is of user %ld, neither yours nor root's", asked,
                   (long)source->from.uid);
    else if (source->status == REPORT_CLOSED)
        line_print(stderr, "bmi-info: %s reports only to its own user and to root", asked);
    else if (source->status == REPORT_SILENT)
        line_print(stderr,
                   "bmi-info: %s does not answer: no thread of it is in a test call (nor is its "
                   "setting `progress` background)",
                   asked);
    else
        line_print(stderr, "bmi-info: cannot read the report of %s: %s", asked,
                   strerror(source->error));
}

/* Reads the report of each instance of a process. Where none is found, that of the default one has
 * the cause. Returns how many, at least 1. */
static int process_read(long process, struct report_source sources[SOURCES])
{
    uint64_t skipped;
    int count = reports_find(process, sources, SOURCES, &skipped);

    if (count == 0)
        sources[count++] = (struct report_source){.process = process};
    reports_read(sources, count, PATIENCE_MS, REPORT_MOST);
    if (skipped > 0)
        line_print(stderr, "bmi-info: process %ld has %" PRIu64 " instances beyond the %d asked",
                   process, skipped, count);
    return count;
}

static int process_print(long process)
{
    static struct report_source sources[SOURCES];
    int count = process_read(process, sources), failed = 0;

    for (int i = 0; i < count; i++) {
        if (sources[i].text != NULL)
            text_print(stdout, sources[i].text, sources[i].size);
        if (sources[i].status != REPORT_WHOLE) {
            report_failed(&sources[i]);
            failed = 1;
        }
        report_free(&sources[i]);
    }
    return output_end(failed);
}

/* Fills in an instance. Returns whether it is to be shown; prints why its numbers are not. */
static bool instance_take(struct metrics_instance *instance, const struct report_source *source)
{
    char words[80];
    bool shown = metrics_take(instance, source);

    if (source->status != REPORT_WHOLE)
        report_failed(source);
    else if (!shown)
        line_print(stderr, "bmi-info: process %ld has ended", source->process);
    else if (!instance->up)
        line_print(stderr, "bmi-info: the report of %s is not whole", source_words(source, words));
    return shown;
}

/* Prints nothing if no instance has sent its report. */
static int metrics_print(long process, bool peers)
{
    static struct report_source sources[SOURCES];
    static struct metrics_instance instances[SOURCES];
    int asked = process_read(process, sources), shown = 0, up = 0;
    size_t size = 0;
    char *text = NULL;

    for (int i = 0; i < asked; i++) {
        if (instance_take(&instances[shown], &sources[i]))
            up += instances[shown++].up;
    }
    if (up > 0)
        text = metrics_text(&(struct metrics){instances, shown, .peers = peers}, &size);
    if (text != NULL)
        fwrite(text, 1, size, stdout);
    free(text);
    for (int i = 0; i < shown; i++)
        report_release(&instances[i].report);
    for (int i = 0; i < asked; i++)
        report_free(&sources[i]);
    return output_end(text != NULL && up == asked ? 0 : 1);
}

/* ---- the program ----------------------------------------------------------------------------- */

struct request {
    bool methods, settings, topology, json, openmetrics, peers;
    long process; /* 0: none */
};

/* Parses a process id; exits if it is none. */
static long process_parse(const char *text)
{
    char *end;
    long process = strtol(text, &end, 10);

    if (end != text && *end == '\0' && process > 0)
        return process;
    fprintf(stderr, "bmi-info: '%s': not a process number\n%s", text, usage);
    exit(2);
}

/* Exits if the options do not go together. */
static void request_check(struct request *request)
{
    bool about_library =
        request->methods || request->settings || request->topology || request->json;
    const char *error = NULL;

    if (request->process > 0 && about_library)
        error = "--process cannot be combined with an option about the library";
    else if (request->openmetrics && request->process == 0)
        error = "--openmetrics needs --process";
    else if (request->peers && !request->openmetrics)
        error = "--peers needs --openmetrics";
    if (error != NULL) {
        fprintf(stderr, "bmi-info: %s\n%s", error, usage);
        exit(2);
    }
    if (!request->methods && !request->settings && !request->topology)
        request->methods = request->settings = true;
}

/* Reads the options; exits after one that needs nothing more. */
static struct request parse_options(int argc, char **argv)
{
    static const struct option options[] = {
        {.name = "methods", .val = 'm'},
        {.name = "settings", .val = 's'},
        {.name = "topology", .val = 't'},
        {.name = "json", .val = 'j'},
        {.name = "process", .has_arg = required_argument, .val = 'p'},
        {.name = "openmetrics", .val = 'o'},
        {.name = "peers", .val = 'P'},
        {.name = "version", .val = 'V'},
        {.name = "help", .val = 'h'},
        {.name = NULL},
    };
    struct request request = {.json = false};
    int option;

    while ((option = getopt_long(argc, argv, "mstjp:oPVh", options, NULL)) != -1) {
        switch (option) {
        case 'm':
            request.methods = true;
            break;
        case 's':
            request.settings = true;
            break;
        case 't':
            request.topology = true;
            break;
        case 'j':
            request.json = true;
            break;
        case 'p':
            request.process = process_parse(optarg);
            break;
        case 'o':
            request.openmetrics = true;
            break;
        case 'P':
            request.peers = true;
            break;
        default:
            option_end(option, usage);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "bmi-info: '%s': takes no arguments\n%s", argv[optind], usage);
        exit(2);
    }
    request_check(&request);
    return request;
}

int main(int argc, char **argv)
{
    struct request request = parse_options(argc, argv);
    bool whole = true;

    if (request.openmetrics)
        return metrics_print(request.process, request.peers);
    if (request.process > 0)
        return process_print(request.process);
    int status = BMI_initialize(NULL, NULL, 0); /* reads the environment, starts no method */

    if (status < 0) {
        fprintf(stderr, "bmi-info: cannot start: %s (set BMI_LOG=error for details)\n",
                bmi_status_string(status));
        return 1;
    }
    if (request.json) {
        printf("{");
        json_member("version", bmi_version());
        if (request.methods)
            json_methods();
        if (request.settings)
            json_settings();
        if (request.topology)
            whole = json_topology();
        printf("}\n");
    } else {
        printf("libbmi %s\n", bmi_version());
        if (request.methods)
            print_methods();
        if (request.settings)
            print_settings();
        if (request.topology)
            whole = print_topology();
    }
    BMI_finalize();
    if (!whole) {
        fprintf(stderr, "bmi-info: the machine's topology cannot be read\n");
        return 1;
    }
    return output_end(0);
}
