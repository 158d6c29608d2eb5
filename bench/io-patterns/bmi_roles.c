/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi_roles.c - the life of a BMI server and of a BMI client process.
 *
 * The server is one loop over BMI_testunexpected and BMI_testcontext. A request starts a state
 * machine of its pattern; the completions' user pointers lead back to it.
 */
#include "bmi_side.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 16
#define TURNS_BETWEEN_REQUESTS 8 /* busy turns after which it checks for requests in any case */

static volatile sig_atomic_t end_wanted;

static void end_want(int signal_number)
{
    (void)signal_number;
    end_wanted = 1;
}

/* Ends the process if the library does not use the requested progress. */
static void progress_check(const struct options *options)
{
    struct bmi_setting setting = {.name = "progress"};
    if (options->contender != CONTENDER_BMI_BACKGROUND)
        return;
    if (BMI_get_info(0, BMI_SETTING, &setting) < 0)
        die("this libbmi has no setting \"progress\": no background progress can be measured");
    if (strcmp(setting.value, "background") != 0)
        die("progress=background was asked for, the library says %s", setting.value);
}

/* Ends the process if tcp does not use the requested engine. */
static void engine_check(const struct options *options)
{
    struct bmi_method_choice choice;
    struct bmi_method_info info;
    if (!engine_is_uring(options, options->contender, options->role == ROLE_SERVER))
        return;
    for (int i = 0; bmi_method_next(i, &info) == 0; i++)
        if (strcmp(info.name, "bmi_tcp") == 0 && bmi_method_choose(i, &choice) == 0 &&
            strncmp(choice.reason, "engine io_uring", 15) != 0)
            die("tcp_engine=io_uring was asked for, the library says: %s", choice.reason);
}

static void side_open(struct bmi_side *side, const struct options *options)
{
    progress_check(options);
    engine_check(options);
    *side = (struct bmi_side){.timeout_s = options->timeout_s};
    bmi_check(BMI_open_context(&side->context), "BMI_open_context");
}

/* Starts BMI as a server, and reports its address. */
void bmi_server_open(struct bmi_side *side, const struct options *options, const char *listen,
                     char address[BMI_MAX_ADDR_LEN])
{
    bmi_check(BMI_initialize(options->method, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC),
              "BMI_initialize (set BMI_LOG=error for details)");
    side_open(side, options);
    bmi_check(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address), "BMI_get_info(BMI_GET_LISTEN_ADDR)");
}

void bmi_client_open(struct bmi_client *client, const struct options *options)
{
    bmi_check(BMI_initialize(NULL, NULL, 0), "BMI_initialize (set BMI_LOG=error for details)");
    *client = (struct bmi_client){.server_count = options->url_count};
    side_open(&client->side, options);
    client->servers = allocate((size_t)options->url_count * sizeof *client->servers);
    for (int i = 0; i < options->url_count; i++)
        bmi_check(BMI_addr_lookup(&client->servers[i], options->urls[i]), options->urls[i]);
}

void bmi_side_close(struct bmi_side *side)
{
    BMI_close_context(side->context);
    bmi_check(BMI_finalize(), "BMI_finalize");
}

/* ---- memory of BMI_memalloc ---------------------------------------------------------------- */

static BMI_addr_t memory_peer;

static void *memory_allocate(uint64_t size)
{
    void *memory = BMI_memalloc(memory_peer, (bmi_size_t)size, BMI_RECV);
    if (!memory)
        die("BMI_memalloc: no memory for %llu bytes", (unsigned long long)size);
    return memory;
}

static void memory_release(void *memory, uint64_t size)
{
    bmi_check(BMI_memfree(memory_peer, memory, (bmi_size_t)size, BMI_RECV), "BMI_memfree");
}

/* The data of a sample lies in memory of BMI_memalloc, for the network of this peer, or in plain
 * memory; bare messages beside flows use the same as the flows. */
static void memory_choose(const struct work *work, BMI_addr_t peer)
{
    static const struct data_allocator ours = {memory_allocate, memory_release};
    bool plain = work->plain && !pattern_numbered(work->pattern)->plain_is_bare;
    memory_peer = peer;
    data_allocator_set(plain ? NULL : &ours);
}

/* Begins to answer one request. */
static void request_serve(struct bmi_side *side, const struct BMI_unexpected_info *info)
{
    struct work work;
    bmi_check(info->error_code, "an unexpected message");
    if (info->size != REQUEST_SIZE)
        die("a request of %lld bytes", (long long)info->size);
    request_decode(&work, info->buffer);
    bmi_check(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    const struct pattern *pattern = pattern_numbered(work.pattern);
    if (!pattern || !pattern->serve_bmi)
        die("a request for pattern %d, which is none", work.pattern);
    memory_choose(&work, info->addr);
    side->polls = work.spin;
    pattern->serve_bmi(side, &work, info->addr);
}

static int requests_serve(struct bmi_side *side, int wait_ms)
{
    struct BMI_unexpected_info infos[REQUESTS_MAX];
    int count = 0;
    bmi_check(BMI_testunexpected(REQUESTS_MAX, &count, infos, wait_ms), "BMI_testunexpected");
    for (int i = 0; i < count; i++)
        request_serve(side, &infos[i]);
    return count;
}

static bool is_busy(const struct bmi_side *side)
{
    return side->outstanding > 0 || side->done_first || side->others > 0;
}

void bmi_server_run(struct bmi_side *side, uint64_t requests)
{
    uint64_t served = 0;
    int turns = 0;
    while (!end_wanted) {
        bool busy = is_busy(side);
        if (!busy && requests > 0 && served == requests)
            return;
        if (!busy) {
            served += (uint64_t)requests_serve(side, WAIT_MS);
        } else if (side_step(side, WAIT_MS) == 0 || side->polls ||
                   ++turns >= TURNS_BETWEEN_REQUESTS) {
            served += (uint64_t)requests_serve(side, 0);
            turns = 0;
        }
    }
    /* A client that has its last message may have this server ended before the server knows that
     * the message has gone. */
    side->ending = true;
    while (is_busy(side) && side_step(side, WAIT_MS) > 0)
        continue;
}

void bmi_server_main(const struct options *options)
{
    char listen[BMI_MAX_ADDR_LEN], address[BMI_MAX_ADDR_LEN];
    struct bmi_side side;
    int control = control_open(options, "server");
    signal(SIGTERM, end_want);
    signal(SIGINT, end_want);
    if (options->listen)
        format_text(listen, sizeof listen, "%s", options->listen);
    else
        format_text(listen, sizeof listen, "%s://%s:0", options->method, listen_host(options));
    bmi_server_open(&side, options, listen, address);
    address_tell(control, address);
    bmi_server_run(&side, 0);
    bmi_side_close(&side);
}

double bmi_client_run(struct bmi_client *client, const struct work *work)
{
    if (client->server_count > 0)
        memory_choose(work, client->servers[0]);
    client->side.polls = work->spin && pattern_numbered(work->pattern)->takes & TAKES_POST;
    return pattern_numbered(work->pattern)->run_bmi(client, work);
}

static double sample_run(void *client, const struct work *work)
{
    return bmi_client_run(client, work);
}

void bmi_client_main(const struct options *options)
{
    struct bmi_client client;
    int control = control_open(options, "client");
    bmi_client_open(&client, options);
    samples_take(control, options, "", sample_run, &client);
    bmi_side_close(&client.side);
    free(client.servers);
}
