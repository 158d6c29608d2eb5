/* SPDX-License-Identifier: BSD-3-Clause
 *
 * options_check.c - refuses options that a pattern cannot use: instead of ignoring such an option
 * silently, it lists the patterns that use it.
 */
#include "bmi.h"

#include "bench.h"

#include <stdio.h>
#include <string.h>

/* Lists the patterns for which `knows` is true. */
static void patterns_list(char text[512], bool (*knows)(const struct pattern *, unsigned),
                          unsigned bits)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; patterns[i]; i++)
        if (knows(patterns[i], bits) && used < 512)
            used += (size_t)snprintf(text + used, 512 - used, "%s%s", used ? ", " : "",
                                     patterns[i]->name);
}

static bool takes(const struct pattern *pattern, unsigned bits)
{
    return pattern->takes & bits;
}

static bool contends(const struct pattern *pattern, unsigned bits)
{
    return pattern->contenders & bits;
}

static void given_check(const struct options *options)
{
    static const struct {
        unsigned takes;
        const char *names;
    } names[] = {
        {TAKES_PARTICIPANTS, "--method, --servers, --clients, --grid, --bind, --role"},
        {TAKES_SIZE, "--size"},
        {TAKES_BYTES, "--bytes"},
        {TAKES_MESSAGES, "--messages"},
        {TAKES_SEGMENT, "--segment"},
        {TAKES_WINDOW, "--window"},
        {TAKES_MEMORY, "--memory"},
        {TAKES_POST, "--post, --first, --poll"},
        {TAKES_VERIFY, "--verify"},
        {TAKES_COMPUTE, "--compute"},
        {TAKES_ON, "--on"},
        {TAKES_TREE, "--tree"},
        {TAKES_CLASS, "--class"},
        {TAKES_ACTIVE, "--active"},
    };
    char known[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!(options->given & names[i].takes & ~options->pattern->takes))
            continue;
        patterns_list(known, takes, names[i].takes);
        refuse("%s: not for %s, but for: %s", names[i].names, options->pattern->name, known);
    }
}

static void contenders_check(const struct options *options)
{
    static const char *const asked_by[CONTENDER_COUNT] = {
        [CONTENDER_BMI] = "--progress caller or --buffers memalloc",
        [CONTENDER_BMI_PLAIN] = "--buffers plain",
        [CONTENDER_BMI_BACKGROUND] = "--progress background",
        [CONTENDER_BMI_URING] = "--engine io_uring",
        [CONTENDER_POST] = "--reference post",
        [CONTENDER_RAW] = "--reference raw",
        [CONTENDER_RAW_POLL] = "--reference raw-poll",
        [CONTENDER_TLS] = "--reference tls",
        [CONTENDER_TLS_POLL] = "--reference tls-poll",
        [CONTENDER_MPI] = "--reference mpi",
        [CONTENDER_MPI_PROBE] = "--reference mpi-probe",
        [CONTENDER_MPI_YIELD] = "--reference mpi-yield",
        [CONTENDER_FI] = "--reference fi",
        [CONTENDER_MEMCPY] = "--reference memcpy",
    };
    char known[512];
    for (enum contender i = 0; i < CONTENDER_COUNT; i++) {
        if (!(options->contenders & BIT(i) & ~options->pattern->contenders))
            continue;
        patterns_list(known, contends, BIT(i));
        refuse("%s: not for %s, but for: %s", asked_by[i], options->pattern->name, known);
    }
#ifndef BENCH_TLS
    if (options->contenders & BITS_TLS)
        refuse("--reference tls: bmi-bench was built without OpenSSL's libssl");
#endif
    if (options->references_only && !(options->contenders & ~BITS_OURS))
        refuse("--buffers none: nothing is left to measure without --reference");
}

bool options_use_memory(const struct options *options)
{
    return strcmp(options->method, "gm") == 0 || strcmp(options->method, "ofi+shm") == 0;
}

const char *listen_host(const struct options *options)
{
    bool everywhere = options->pattern && options->pattern->listens_everywhere;
    return everywhere ? "0.0.0.0" : "127.0.0.1";
}

bool engine_is_uring(const struct options *options, enum contender contender, bool server)
{
    return contender == CONTENDER_BMI_URING && (server || !options->pattern->engine_of_server);
}

static bool list_has(const char *list, const char *name)
{
    size_t size = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, size) == 0 && (at[size] == ',' || at[size] == 0))
            return true;
    }
    return false;
}

/* Ends the process where libbmi has no such method. */
void options_method_check(const struct options *options)
{
    struct bmi_method_info info;
    for (int i = 0; bmi_method_next(i, &info) == 0; i++)
        if (list_has(info.schemes, options->method))
            return;
    refuse("%s: there is no such method; bmi-info --methods lists them", options->method);
}

static void engine_check(const struct options *options)
{
    if (options->contenders & BIT(CONTENDER_BMI_URING) && strcmp(options->method, "tcp") != 0)
        refuse("--engine io_uring: of the method tcp");
}

static void memory_check(const struct options *options)
{
    if (options->memory && options->verify)
        refuse("--memory: messages take each other's place there, so not with --verify");
    for (int i = 0; options->memory && i < options->size_count; i++)
        if (options->sizes[i] > options->memory)
            refuse("--memory: %llu bytes do not hold a message of %llu",
                   (unsigned long long)options->memory, (unsigned long long)options->sizes[i]);
}

/* The references that have one way to post. */
static void post_check(const struct options *options)
{
    const unsigned others = BITS_MPI | BIT(CONTENDER_FI);
    bool whole = options->post == POST_ALL || options->post == POST_ONE;
    if (options->given & TAKES_WINDOW && options->pattern->takes & TAKES_POST && whole)
        refuse("--window: with --post window");
    if (options->memory && options->post != POST_ALL)
        refuse("--memory: with --post all");
    if (options->given & TAKES_POST && options->contenders & others)
        refuse("--post, --first, --poll: not beside mpi and fi");
}

int options_servers(const struct options *options, bool raw)
{
    int count = 0;
    for (int i = 0; i < options->url_count; i++)
        count += (strncmp(options->urls[i], "raw://", 6) == 0) == raw;
    return count;
}

/* Ends the process if the participants do not have equal numbers of servers. */
static void servers_check(const struct options *options)
{
    bool bmi = options->contenders & BITS_BMI, raw = options->contenders & BITS_RAW;
    int of_bmi = options_servers(options, false), of_raw = options_servers(options, true);
    if (options->url_count == 0)
        return;
    if (options->contenders & BITS_TLS)
        refuse("--reference tls: on this host only, not with --servers URL");
    if (options->contenders & BIT(CONTENDER_BMI_BACKGROUND))
        refuse("--progress background: servers that run already have the progress that they were "
               "started with");
    if (options->contenders & BIT(CONTENDER_BMI_URING))
        refuse("--engine io_uring: servers that run already have the engine that they were started "
               "with");
    if ((bmi && of_bmi == 0) || (raw && of_raw == 0))
        refuse("--servers names none for %s", bmi && of_bmi == 0 ? "bmi" : "raw");
    if (bmi && raw && of_bmi != of_raw)
        refuse("--servers: %d of BMI and %d of plain sockets; as many of each are wanted", of_bmi,
               of_raw);
    if (of_bmi > SERVERS_MAX || of_raw > SERVERS_MAX)
        refuse("--servers: at most %d", SERVERS_MAX);
}

/* Ends the process if the pattern cannot do the requested run. */
void options_check(const struct options *options)
{
    const struct pattern *pattern = options->pattern;
    if (!options->control) { /* the coordinator passes on all that it knows */
        given_check(options);
        contenders_check(options);
        engine_check(options);
        memory_check(options);
        post_check(options);
        servers_check(options);
        if (pattern->options_check)
            pattern->options_check(options);
    }
    for (int i = 0; pattern->one_pair && i < options->grid_count; i++)
        if (options->grids[i].servers != 1 || options->grids[i].clients != 1)
            refuse("%s: one server and one client only", pattern->name);
    for (int i = 0; i < options->size_count; i++)
        if (options->sizes[i] == 0 && !pattern->size_is_clients &&
            (!pattern->empty_messages || options->contenders & ~BITS_BMI))
            refuse("%s: a size of 0 is for latency only, without references", pattern->name);
    if (options->listen && options->role != ROLE_SERVER)
        refuse("--listen: of servers, with --role server");
    if (options->role == ROLE_CLIENT && options->url_count == 0)
        refuse("--role client wants --servers URL,...");
}
