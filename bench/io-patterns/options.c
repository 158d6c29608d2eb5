/* SPDX-License-Identifier: BSD-3-Clause
 *
 * options.c - the command line of bmi-bench and bmi-bench-mpi.
 */
#include "bmi.h"

#include "bench.h"
#include "is_sort.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_METHOD = 256,
    OPTION_SERVERS,
    OPTION_CLIENTS,
    OPTION_GRID,
    OPTION_BIND,
    OPTION_REFERENCE,
    OPTION_BUFFERS,
    OPTION_PROGRESS,
    OPTION_ENGINE,
    OPTION_SIZE,
    OPTION_COMPUTE,
    OPTION_ON,
    OPTION_TREE,
    OPTION_CLASS,
    OPTION_ACTIVE,
    OPTION_BYTES,
    OPTION_MESSAGES,
    OPTION_SEGMENT,
    OPTION_WINDOW,
    OPTION_MEMORY,
    OPTION_POST,
    OPTION_FIRST,
    OPTION_POLL,
    OPTION_REPS,
    OPTION_TIMEOUT,
    OPTION_VERIFY,
    OPTION_JSON,
    OPTION_PLOT,
    OPTION_ROLE,
    OPTION_LISTEN,
    OPTION_CONTROL,
    OPTION_CONTENDER,
    OPTION_NUMBER
};

static const struct option long_options[] = {
    {"method", required_argument, NULL, OPTION_METHOD},
    {"servers", required_argument, NULL, OPTION_SERVERS},
    {"clients", required_argument, NULL, OPTION_CLIENTS},
    {"grid", required_argument, NULL, OPTION_GRID},
    {"bind", no_argument, NULL, OPTION_BIND},
    {"reference", required_argument, NULL, OPTION_REFERENCE},
    {"buffers", required_argument, NULL, OPTION_BUFFERS},
    {"progress", required_argument, NULL, OPTION_PROGRESS},
    {"engine", required_argument, NULL, OPTION_ENGINE},
    {"size", required_argument, NULL, OPTION_SIZE},
    {"threads", required_argument, NULL, OPTION_SIZE},
    {"compute", required_argument, NULL, OPTION_COMPUTE},
    {"on", required_argument, NULL, OPTION_ON},
    {"tree", required_argument, NULL, OPTION_TREE},
    {"class", required_argument, NULL, OPTION_CLASS},
    {"active", required_argument, NULL, OPTION_ACTIVE},
    {"msg", required_argument, NULL, OPTION_SIZE},
    {"bytes", required_argument, NULL, OPTION_BYTES},
    {"messages", required_argument, NULL, OPTION_MESSAGES},
    {"segment", required_argument, NULL, OPTION_SEGMENT},
    {"window", required_argument, NULL, OPTION_WINDOW},
    {"memory", required_argument, NULL, OPTION_MEMORY},
    {"post", required_argument, NULL, OPTION_POST},
    {"first", required_argument, NULL, OPTION_FIRST},
    {"poll", no_argument, NULL, OPTION_POLL},
    {"reps", required_argument, NULL, OPTION_REPS},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"verify", no_argument, NULL, OPTION_VERIFY},
    {"json", required_argument, NULL, OPTION_JSON},
    {"plot", required_argument, NULL, OPTION_PLOT},
    {"role", required_argument, NULL, OPTION_ROLE},
    {"listen", required_argument, NULL, OPTION_LISTEN},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {"control", required_argument, NULL, OPTION_CONTROL},
    {"contender", required_argument, NULL, OPTION_CONTENDER},
    {"number", required_argument, NULL, OPTION_NUMBER},
    {0},
};

static const char help_text[] =
    "\n"
    "Options:\n"
    "  --method NAME        BMI's method: tcp, gm, ofi+tcp, ofi+shm, ib, ... (that of the URLs, "
    "or\n"
    "                       tcp); beside those over shared memory MPI uses it too\n"
    "  --servers N          server processes, or URL,URL,... of servers that run already\n"
    "  --clients M          client processes\n"
    "  --grid NxM,NxM,...   several numbers of servers and clients, one after the other, in place\n"
    "                       of --servers and --clients\n"
    "  --bind               bind each process to a CPU, servers first, in turn\n"
    "  --reference LIST     what to run beside BMI: raw, raw-poll (latency, rpc), mpi, mpi-probe\n"
    "                       (rpc: MPI_Mprobe), mpi-yield (is: ranks yield while they wait),\n"
    "                       post (rpc: posted messages), tls, tls-poll\n"
    "                       (latency, rpc): OpenSSL on sockets, fi (latency, bandwidth:\n"
    "                       libfabric's fi_pingpong on the method's provider),\n"
    "                       memcpy (bandwidth: one process's copies within its memory)\n"
    "  --buffers LIST       latency (both), read, write, bandwidth, is: BMI's memalloc, plain;\n"
    "                       flow: plain: the bare messages beside it; none: references only\n"
    "  --progress LIST      latency, threads, overlap, flow: BMI's progress by its caller,\n"
    "                       background\n"
    "  --engine LIST        latency, read, write, bandwidth, rate, clients: how tcp receives: "
    "epoll,\n"
    "                       io_uring\n"
    "  --size LIST          bytes of a message; testcost: outstanding operations;\n"
    "                       handshake: 0, or 1 for tickets (tls); clients: connected clients;\n"
    "                       place: bytes of a vector\n"
    "  --active LIST        clients: active ones, each with one request under way\n"
    "  --msg LIST           the same\n"
    "  --threads LIST       threads, tasks: how many (the same option under another name)\n"
    "  --bytes SIZE         read, write, flow: bytes a pair; bandwidth: bytes\n"
    "  --messages COUNT     rate: messages; rpc, clients: calls; latency, threads: round trips; "
    "overlap: "
    "messages;\n"
    "                       testcost, reapcost: calls; tasks, job: of these; idle: ms;\n"
    "                       handshake: connections\n"
    "  --segment SIZE       read, write: bytes of a client's list segment (64K)\n"
    "  --window COUNT       messages under way for each pair (read, write, flow: 8; rate: 1000)\n"
    "  --post NAME          read, write, bandwidth: how many messages a side posts at once: all,\n"
    "                       each in memory of its own; a window; or one (bandwidth: all; else a\n"
    "                       window)\n"
    "  --first NAME         read, write, bandwidth: which side posts its first messages before\n"
    "                       the other: receiver, sender; or both at once: together (receiver)\n"
    "  --poll               read, write, bandwidth: test calls and socket calls do not wait\n"
    "  --memory SIZE        bandwidth: a side's messages take turns in so much memory, which then\n"
    "                       stays in the caches if it fits (each has its own)\n"
    "  --compute LIST       overlap: microseconds to compute (by size: to 200, to 2000);\n"
    "                       flow: for so long at a time clients in the background compute\n"
    "  --on LIST            overlap: computing side: sender, receiver, both (each in turn)\n"
    "  --tree TEXT          tasks, place: a synthetic tree, as hwloc writes it; place:\n"
    "                       or an XML file\n"
    "  --class LIST         is: S, W, A, B: 2^16, 2^20, 2^23, 2^25 keys (A)\n"
    "  --reps COUNT         samples; the value is their median (5; place: 3; tasks: 21)\n"
    "  --verify             check every byte (not a measurement)\n"
    "  --json FILE          add one JSON object a line\n"
    "  --plot FILE.svg      draw the values\n"
    "  --timeout SECONDS    end the run where a sample takes longer (60)\n"
    "  -V, --version        print the version\n"
    "  -h, --help           print this\n"
    "Sizes: K, M, G are powers of 1024; KB, MB, GB of 1000.\n"
    "\n"
    "Several hosts:\n"
    "  bmi-bench --role server --listen tcp://HOST:PORT    serves until it is ended\n"
    "  bmi-bench --role server --listen raw://HOST:PORT    the same for --reference raw\n"
    "  bmi-bench PATTERN --role client --servers tcp://A:1,tcp://B:1[,raw://A:2,raw://B:2]\n"
    "  mpiexec -n N+M -hosts A,B,... bmi-bench-mpi PATTERN --servers N --clients M\n";

static void help_print(void)
{
    printf("Usage: bmi-bench PATTERN [options]\n"
           "Measures BMI, and plain sockets and MPI beside it, on this host.\n"
           "\nPatterns:\n");
    for (int i = 0; patterns[i]; i++)
        printf("  %-10s %s\n", patterns[i]->name, patterns[i]->summary);
    fputs(help_text, stdout);
}

/* Reads a number with a unit: 24, 64K, 10MB. Returns: whether it is one. */
bool size_parse(const char *text, uint64_t *size)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {{"", 1},           {"K", 1u << 10},     {"M", 1u << 20},   {"G", 1u << 30},
                 {"KiB", 1u << 10}, {"MiB", 1u << 20},   {"GiB", 1u << 30}, {"KB", 1000},
                 {"MB", 1000000},   {"GB", 1000000000u}, {"k", 1u << 10}};
    char *rest;
    errno = 0;
    unsigned long long number = strtoull(text, &rest, 10);
    if (rest == text || errno || *text == '-')
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(rest, units[i].name) == 0 && number <= UINT64_MAX / units[i].factor) {
            *size = number * units[i].factor;
            return true;
        }
    return false;
}

static uint64_t value_read(const char *name, const char *kind, const char *text, uint64_t least,
                           uint64_t most)
{
    uint64_t value;
    if (!size_parse(text, &value) || value < least || value > most)
        refuse("--%s %s: a %s from %llu to %llu is wanted", name, text, kind,
               (unsigned long long)least, (unsigned long long)most);
    return value;
}

static uint64_t size_read(const char *name, const char *text, uint64_t least, uint64_t most)
{
    return value_read(name, "size", text, least, most);
}

static uint64_t number_read(const char *name, const char *text, uint64_t least, uint64_t most)
{
    return value_read(name, "number", text, least, most);
}

/* Calls `take` with each member of a comma list. */
static void list_each(const char *list, struct options *options,
                      void (*take)(struct options *, const char *))
{
    char *copy = strdup(list), *rest = copy, *member;
    if (!copy)
        die("no memory");
    while ((member = strsep(&rest, ",")))
        take(options, member);
    free(copy);
}

static void grid_take(struct options *options, const char *text)
{
    struct grid grid;
    char end;
    if (options->grid_count == GRIDS_MAX)
        refuse("--grid: at most %d", GRIDS_MAX);
    if (sscanf(text, "%dx%d%c", &grid.servers, &grid.clients, &end) != 2 || grid.servers < 1 ||
        grid.servers > SERVERS_MAX || grid.clients < 1 || grid.clients > 65535)
        refuse("--grid %s: servers x clients, as 2x4, are wanted", text);
    options->grids[options->grid_count++] = grid;
}

static void size_take(struct options *options, const char *text)
{
    if (options->size_count == SIZES_MAX)
        refuse("--size: at most %d", SIZES_MAX);
    options->sizes[options->size_count++] = size_read("size", text, 0, 1u << 30);
}

static void class_take(struct options *options, const char *text)
{
    const struct is_class *kind = is_class_named(text);
    if (!kind)
        refuse("--class %s: S, W, A, or B is wanted", text);
    if (options->size_count == SIZES_MAX)
        refuse("--class: at most %d", SIZES_MAX);
    options->sizes[options->size_count++] = 1ull << kind->keys_log2;
}

static void active_take(struct options *options, const char *text)
{
    if (options->active_count == SIZES_MAX)
        refuse("--active: at most %d", SIZES_MAX);
    options->actives[options->active_count++] = number_read("active", text, 1, CLIENTS_MAX);
}

static void url_take(struct options *options, const char *text)
{
    size_t bytes = (size_t)(options->url_count + 1) * sizeof *options->urls;
    options->urls = realloc(options->urls, bytes);
    if (!options->urls || !(options->urls[options->url_count++] = strdup(text)))
        die("no memory");
}

static void reference_take(struct options *options, const char *text)
{
    for (enum contender i = CONTENDER_POST; i <= CONTENDER_MEMCPY; i++)
        if (strcmp(text, contender_name(i)) == 0 || (i == CONTENDER_FI && !strcmp(text, "fi"))) {
            options->contenders |= BIT(i);
            return;
        }
    if (strcmp(text, "none") != 0)
        refuse("--reference %s: post, raw, raw-poll, tls, tls-poll, mpi, mpi-probe, mpi-yield, fi, "
               "memcpy, or none is wanted",
               text);
}

static void buffers_take(struct options *options, const char *text)
{
    if (strcmp(text, "memalloc") == 0)
        options->contenders |= BIT(CONTENDER_BMI);
    else if (strcmp(text, "plain") == 0)
        options->contenders |= BIT(CONTENDER_BMI_PLAIN);
    else if (strcmp(text, "none") == 0)
        options->references_only = true;
    else
        refuse("--buffers %s: memalloc, plain, or none is wanted", text);
}

static void progress_take(struct options *options, const char *text)
{
    if (strcmp(text, "caller") == 0)
        options->contenders |= BIT(CONTENDER_BMI);
    else if (strcmp(text, "background") == 0)
        options->contenders |= BIT(CONTENDER_BMI_BACKGROUND);
    else
        refuse("--progress %s: caller or background is wanted", text);
}

static void engine_take(struct options *options, const char *text)
{
    if (strcmp(text, "epoll") == 0)
        options->contenders |= BIT(CONTENDER_BMI);
    else if (strcmp(text, "io_uring") == 0)
        options->contenders |= BIT(CONTENDER_BMI_URING);
    else
        refuse("--engine %s: epoll or io_uring is wanted", text);
}

static void time_take(struct options *options, const char *text)
{
    if (options->time_count == TIMES_MAX)
        refuse("--compute: at most %d", TIMES_MAX);
    options->times[options->time_count++] = number_read("compute", text, 1, UINT16_MAX);
}

static void on_take(struct options *options, const char *text)
{
    if (strcmp(text, "sender") == 0)
        options->on |= 1u << ON_SENDER;
    else if (strcmp(text, "receiver") == 0)
        options->on |= 1u << ON_RECEIVER;
    else if (strcmp(text, "both") == 0)
        options->on |= 1u << ON_BOTH;
    else
        refuse("--on %s: sender, receiver, or both is wanted", text);
}

static void post_take(struct options *options, const char *text)
{
    for (enum post i = POST_ALL; i <= POST_ONE; i++)
        if (strcmp(text, post_name(i)) == 0) {
            options->post = i;
            return;
        }
    refuse("--post %s: all, window, or one is wanted", text);
}

static void first_take(struct options *options, const char *text)
{
    for (enum first i = FIRST_RECEIVER; i <= FIRST_TOGETHER; i++)
        if (strcmp(text, first_name(i)) == 0) {
            options->first = i;
            return;
        }
    refuse("--first %s: receiver, sender, or together is wanted", text);
}

static void role_take(struct options *options, const char *text)
{
    if (strcmp(text, "server") == 0)
        options->role = ROLE_SERVER;
    else if (strcmp(text, "client") == 0)
        options->role = ROLE_CLIENT;
    else
        refuse("--role %s: server or client is wanted", text);
}

static void contender_take(struct options *options, const char *text)
{
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (strcmp(text, contender_name(i)) == 0) {
            options->contender = i;
            return;
        }
    refuse("--contender %s: there is none", text);
}

struct counts {
    int servers, clients;
};

static void servers_take(struct options *options, struct counts *counts, const char *text)
{
    if (strstr(text, "://"))
        list_each(text, options, url_take);
    else
        counts->servers = (int)number_read("servers", text, 1, SERVERS_MAX);
}

/* Takes an option about the participants. Returns: whether it is one. */
static bool participants_option_take(struct options *options, struct counts *counts, int option,
                                     const char *text)
{
    switch (option) {
    case OPTION_METHOD:
        options->method = text;
        break;
    case OPTION_SERVERS:
        servers_take(options, counts, text);
        break;
    case OPTION_CLIENTS:
        counts->clients = (int)number_read("clients", text, 1, 65535);
        break;
    case OPTION_GRID:
        list_each(text, options, grid_take);
        break;
    case OPTION_BIND:
        options->bind = true;
        break;
    case OPTION_REFERENCE:
        list_each(text, options, reference_take);
        break;
    case OPTION_BUFFERS:
        list_each(text, options, buffers_take);
        break;
    case OPTION_PROGRESS:
        list_each(text, options, progress_take);
        break;
    case OPTION_ENGINE:
        list_each(text, options, engine_take);
        break;
    case OPTION_ROLE:
        role_take(options, text);
        break;
    case OPTION_LISTEN:
        options->listen = text;
        break;
    case OPTION_CONTROL:
        options->control = text;
        break;
    case OPTION_CONTENDER:
        contender_take(options, text);
        break;
    case OPTION_NUMBER:
        options->number = (int)number_read("number", text, 0, 65535);
        break;
    default:
        return false;
    }
    return true;
}

/* Takes an option about how messages are posted. Returns: whether it is one. */
static bool post_option_take(struct options *options, int option, const char *text)
{
    switch (option) {
    case OPTION_WINDOW:
        options->window = (int)number_read("window", text, 1, 1u << 20);
        break;
    case OPTION_MEMORY:
        options->memory = size_read("memory", text, 1, 1u << 30);
        break;
    case OPTION_POST:
        post_take(options, text);
        break;
    case OPTION_FIRST:
        first_take(options, text);
        break;
    case OPTION_POLL:
        options->poll = true;
        break;
    default:
        return false;
    }
    return true;
}

/* Returns: the TAKES_* bit of an option, 0 for one that all patterns know. */
static unsigned option_takes(int option)
{
    switch (option) {
    case OPTION_METHOD:
    case OPTION_SERVERS:
    case OPTION_CLIENTS:
    case OPTION_GRID:
    case OPTION_BIND:
    case OPTION_ROLE:
    case OPTION_LISTEN:
        return TAKES_PARTICIPANTS;
    case OPTION_SIZE:
        return TAKES_SIZE;
    case OPTION_BYTES:
        return TAKES_BYTES;
    case OPTION_MESSAGES:
        return TAKES_MESSAGES;
    case OPTION_SEGMENT:
        return TAKES_SEGMENT;
    case OPTION_WINDOW:
        return TAKES_WINDOW;
    case OPTION_MEMORY:
        return TAKES_MEMORY;
    case OPTION_POST:
    case OPTION_FIRST:
    case OPTION_POLL:
        return TAKES_POST;
    case OPTION_VERIFY:
        return TAKES_VERIFY;
    case OPTION_COMPUTE:
        return TAKES_COMPUTE;
    case OPTION_ON:
        return TAKES_ON;
    case OPTION_TREE:
        return TAKES_TREE;
    case OPTION_CLASS:
        return TAKES_CLASS;
    case OPTION_ACTIVE:
        return TAKES_ACTIVE;
    default:
        return 0;
    }
}

static void option_take(struct options *options, struct counts *counts, int option,
                        const char *text)
{
    options->given |= option_takes(option);
    if (participants_option_take(options, counts, option, text) ||
        post_option_take(options, option, text))
        return;
    switch (option) {
    case OPTION_SIZE:
        list_each(text, options, size_take);
        break;
    case OPTION_BYTES:
        options->bytes = size_read("bytes", text, 1, 1ull << 40);
        break;
    case OPTION_MESSAGES:
        options->messages = number_read("messages", text, 1, 1u << 30);
        break;
    case OPTION_COMPUTE:
        list_each(text, options, time_take);
        break;
    case OPTION_ON:
        list_each(text, options, on_take);
        break;
    case OPTION_TREE:
        options->tree = text;
        break;
    case OPTION_CLASS:
        list_each(text, options, class_take);
        break;
    case OPTION_ACTIVE:
        list_each(text, options, active_take);
        break;
    case OPTION_SEGMENT:
        options->segment = size_read("segment", text, 1, 1u << 30);
        break;
    case OPTION_REPS:
        options->reps = (int)number_read("reps", text, 1, REPS_MAX);
        break;
    case OPTION_TIMEOUT:
        options->timeout_s = (int)number_read("timeout", text, 1, 86400);
        break;
    case OPTION_VERIFY:
        options->verify = true;
        break;
    case OPTION_JSON:
        options->json = text;
        break;
    case OPTION_PLOT:
        options->plot = text;
        break;
    case 'h':
        help_print();
        output_flush();
        exit(0);
    case 'V':
        printf("bmi-bench (libbmi) %s\n", bmi_version());
        output_flush();
        exit(0);
    default:
        refuse("bmi-bench --help lists the options");
    }
}

/* A URL names the method, except one of plain sockets. */
static void method_take(struct options *options, const char *option, const char *url)
{
    const char *end = strstr(url, "://");
    if (!end || strncmp(url, "raw://", 6) == 0)
        return;
    if ((size_t)(end - url) >= sizeof options->scheme)
        refuse("--%s %s: there is no such method", option, url);
    if (options->method && (strncmp(options->method, url, (size_t)(end - url)) != 0 ||
                            options->method[end - url] != 0))
        refuse("--%s %s: not of the method %s", option, url, options->method);
    format_text(options->scheme, sizeof options->scheme, "%.*s", (int)(end - url), url);
    options->method = options->scheme;
}

static void method_fill(struct options *options)
{
    if (!options->control && options->listen)
        method_take(options, "listen", options->listen);
    for (int i = 0; !options->control && i < options->url_count; i++)
        method_take(options, "servers", options->urls[i]);
    if (!options->method)
        options->method = "tcp";
}

/* Sets the pattern's defaults where no option was given. */
static void defaults_fill(struct options *options, const struct counts *counts)
{
    const struct pattern *pattern = options->pattern;
    if (options->grid_count > 0 && (counts->servers || counts->clients || options->url_count > 0))
        refuse("--grid says how many servers and clients: not with --servers or --clients");
    if (options->grid_count == 0)
        list_each(pattern->grid ? pattern->grid : "1x1", options, grid_take);
    if (counts->servers)
        options->grids[0].servers = counts->servers;
    if (counts->clients)
        options->grids[0].clients = counts->clients;
    if (options->size_count == 0)
        list_each(pattern->sizes, options, size_take);
    if (options->active_count == 0 && pattern->actives)
        list_each(pattern->actives, options, active_take);
    if (!options->bytes && pattern->amount_is_bytes)
        size_parse(pattern->amount, &options->bytes);
    if (pattern->amount_unit) {
        uint64_t units = (options->bytes + pattern->amount_unit - 1) / pattern->amount_unit;
        options->bytes = units * pattern->amount_unit;
    }
    if (!options->messages && !pattern->amount_is_bytes)
        size_parse(pattern->amount, &options->messages);
    if (options->post == POST_DEFAULT)
        options->post = options->given & TAKES_WINDOW ? POST_WINDOW : pattern->post;
    if (!options->window)
        options->window = pattern->window ? pattern->window : 1;
    if (!options->reps)
        options->reps = pattern->reps ? pattern->reps : 5;
    if (!options->on)
        options->on = 1u << ON_SENDER | 1u << ON_RECEIVER | 1u << ON_BOTH;
    if (!(options->contenders & BITS_OURS) && !options->references_only) {
        unsigned elsewhere = options->url_count > 0 ? BIT(CONTENDER_BMI_BACKGROUND) : 0;
        options->contenders |= pattern->contenders & BITS_OURS & ~pattern->on_request & ~elsewhere;
    }
    if (pattern->run_here)
        options->contenders |= pattern->contenders;
    if (!options->control && options->url_count > 0) /* all participants have as many */
        options->grids[0].servers = options_servers(options, !(options->contenders & BITS_BMI));
}

void options_parse(struct options *options, int argc, char **argv)
{
    struct counts counts = {0};
    int option;
    *options = (struct options){.segment = 64u << 10, .timeout_s = 60};
    while ((option = getopt_long(argc, argv, "hV", long_options, NULL)) != -1)
        option_take(options, &counts, option, optarg);
    method_fill(options);
    if (options->bind && options->role && !options->control)
        refuse("--bind: of the processes that are started here, not with --role");
    if (!options->control)
        options_method_check(options);
    if (optind == argc && options->role == ROLE_SERVER)
        return; /* requests name the pattern */
    if (optind + 1 != argc)
        refuse("one pattern is wanted; bmi-bench --help lists them");
    options->pattern = pattern_named(argv[optind]);
    if (!options->pattern)
        refuse("%s: no such pattern; bmi-bench --help lists them", argv[optind]);
    defaults_fill(options, &counts);
    options_check(options);
}

void options_free(struct options *options)
{
    for (int i = 0; i < options->url_count; i++)
        free(options->urls[i]);
    free(options->urls);
}
