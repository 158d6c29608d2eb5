/* SPDX-License-Identifier: BSD-3-Clause
 *
 * limits_fault.c - a first connection under a limit of address space or of descriptors, for limits
 * from nothing more than the process has to one that suffices.
 *
 * Given a client, a server, or a server that is its own client, that has started, when its limit is
 * little above what it uses, then its operations with a new peer end in time, with success or with
 * ENOMEM (EMFILE), and no process crashes. A server without descriptors leaves new clients waiting,
 * as does one without memory to post a receive. When the limit is lifted, the server serves those,
 * and the next client.
 *
 * usage: limits_fault SCHEME
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "serve.h"

enum {
    CALL_BYTES = 100,
    SOON_MS = 8000, /* less than any timeout of libfabric's */
    WAITS_MS = 300,
    ALONE_MS = 2000 /* more than the time-out there */
};

/* How far above what a process uses the limits go, which is more than any needs, and in how many
 * steps. */
static const struct range {
    const char *scheme;
    rlim_t space, files;
    unsigned space_steps, file_steps;
    bool alone; /* the network is within one process */
} ranges[] = {
    {"tcp", 2 << 20, 8, 128, 8, false},     {"gm", 16 << 20, 16, 64, 16, false},
    {"loop", 1 << 20, 4, 64, 4, true},      {"ofi+tcp", 96 << 20, 16, 8, 16, false},
    {"ofi+shm", 96 << 20, 16, 8, 8, false}, {"unix", 2 << 20, 8, 128, 8, false},
};
enum { RANGES = sizeof ranges / sizeof ranges[0] };
static const struct range *range;

struct limit {
    __rlimit_resource_t resource; /* an enumeration of the C library, where that has one */
    rlim_t room;                  /* beyond what the process uses */
};

struct outcome {
    bmi_error_code_t status; /* the first that is not 0 */
    uint64_t took_ms;
    bool waited; /* until the limit was lifted */
};

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1, "/proc/self/statm");
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Returns the lowest free descriptor. */
static rlim_t descriptors(void)
{
    int fd = dup(STDIN_FILENO);
    CHECK(fd >= 0, "no descriptor");
    close(fd);
    return (rlim_t)fd;
}

static struct rlimit limit_set(const struct limit *limit)
{
    struct rlimit usual, little;
    rlim_t has = limit->resource == RLIMIT_AS ? address_space() : descriptors();
    CHECK(getrlimit(limit->resource, &usual) == 0, "getrlimit");
    little = usual;
    little.rlim_cur = has + limit->room;
    CHECK(setrlimit(limit->resource, &little) == 0, "setrlimit");
    return usual;
}

/* One exchange with an echo server, which may fail. */
static struct noted noted[3];

static uint64_t exchange_begin(BMI_addr_t server)
{
    static char out[CALL_BYTES], in[ECHO_MAX];
    uint64_t start = now_ns();
    note_receive(&noted[0], server, in, ECHO_MAX, ECHO_REPLY_TAG);
    note_sendunexpected(&noted[1], server, "", 0, ECHO_HELLO_TAG);
    note_send(&noted[2], server, out, CALL_BYTES, ECHO_CALL_TAG);
    return start;
}

static struct outcome exchange_end(uint64_t start)
{
    struct outcome outcome = {0};
    CHECK(noted_wait(noted, 3, TEST_BOUND_MS), "an operation does not end");
    outcome.took_ms = (now_ns() - start) / 1000000;
    for (int i = 0; i < 3 && outcome.status == 0; i++)
        outcome.status = noted[i].status;
    return outcome;
}

static int client_run(void *argument, int channel)
{
    const struct limit *limit = argument;
    BMI_addr_t server = client_open(channel);
    if (limit->room != RLIM_INFINITY)
        limit_set(limit);
    tell_number(channel, 0);
    struct outcome outcome = exchange_end(exchange_begin(server));
    tell(channel, &outcome, sizeof outcome);
    hear_number(channel);
    return 0;
}

static void limit_lift(const struct limit *limit, const struct rlimit *usual)
{
    CHECK(setrlimit(limit->resource, usual) == 0, "setrlimit");
}

/* A server that is its own client. */
static int alone_run(void *argument, int channel)
{
    const struct limit *limit = argument;
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t itself;
    serve_here(0, listening);
    operations_open();
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1000"), "BMI_SETTING");
    must(BMI_addr_lookup(&itself, listening), "BMI_addr_lookup");
    struct rlimit usual = limit_set(limit);
    uint64_t start = exchange_begin(itself);
    bool ended = noted_wait(noted, 3, ALONE_MS);
    limit_lift(limit, &usual);
    struct outcome outcome = exchange_end(start);
    outcome.waited = !ended;
    tell(channel, &outcome, sizeof outcome);
    outcome = exchange_end(exchange_begin(itself));
    CHECK(outcome.status == 0, "without a limit: %s", status_name(outcome.status));
    return 0;
}

static int server_run(void *argument, int channel)
{
    const struct limit *limit = argument;
    char listening[BMI_MAX_ADDR_LEN];
    serve_here(0, listening);
    operations_open();
    struct rlimit usual = limit_set(limit);
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0))
        operations_step(5);
    hear_number(channel);
    limit_lift(limit, &usual);
    tell_number(channel, 0);
    while (!heard(channel, 0))
        operations_step(5);
    _exit(0);
}

static struct child client_start(const char *listening, struct limit *limit)
{
    struct child client = child_start("client", client_run, limit);
    tell(client.channel, listening, BMI_MAX_ADDR_LEN);
    hear_number(client.channel); /* it begins */
    return client;
}

static struct outcome client_outcome(const struct child *client)
{
    struct outcome outcome;
    hear(client->channel, &outcome, sizeof outcome);
    return outcome;
}

static void client_end(struct child *client)
{
    tell_number(client->channel, 0);
    child_end(client);
}

static void next_client(const char *listening)
{
    struct limit none = {.room = RLIM_INFINITY};
    struct child client = client_start(listening, &none);
    struct outcome outcome = client_outcome(&client);
    CHECK(outcome.status == 0, "the next client: %s", status_name(outcome.status));
    client_end(&client);
}

/* Prints the first of outcomes that are alike. */
static void outcome_print(const char *whose, const struct limit *limit, struct outcome outcome)
{
    static struct limit last_limit;
    static struct outcome last;
    static const char *last_whose = "";
    bool same = strcmp(whose, last_whose) == 0 && limit->resource == last_limit.resource &&
                outcome.status == last.status && outcome.waited == last.waited;
    if (!same)
        printf("  %s with %lu %s more: %s after %lu ms%s\n", whose, (unsigned long)limit->room,
               limit->resource == RLIMIT_AS ? "bytes" : "descriptors", status_name(outcome.status),
               (unsigned long)outcome.took_ms, outcome.waited ? ", when the limit was lifted" : "");
    last_limit = *limit;
    last = outcome;
    last_whose = whose;
}

/* Returns whether the limit sufficed. `also`: another status than ENOMEM or EMFILE that may be. */
static bool outcome_check(const char *whose, const struct limit *limit, struct outcome outcome,
                          bmi_error_code_t also)
{
    bool space = limit->resource == RLIMIT_AS;
    bmi_error_code_t expected = space ? -BMI_ENOMEM : -BMI_EMFILE;
    outcome_print(whose, limit, outcome);
    CHECK(outcome.status == 0 || outcome.status == expected || outcome.status == also, "%s: %s",
          whose, status_name(outcome.status));
    CHECK(outcome.took_ms < SOON_MS, "%s: after %lu ms", whose, (unsigned long)outcome.took_ms);
    return outcome.status == 0 && !outcome.waited;
}

static bool client_limited(struct limit limit)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child server = echo_server_start(0);
    echo_server_address(&server, listening);
    struct child client = client_start(listening, &limit);
    bool enough = outcome_check("a client", &limit, client_outcome(&client), 0);
    next_client(listening);
    client_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
    return enough;
}

static bool alone_limited(struct limit limit)
{
    struct child alone = child_start("both", alone_run, &limit);
    struct outcome outcome;
    hear(alone.channel, &outcome, sizeof outcome);
    /* Its dial may hold the last descriptor, and waits for one that accepts it. */
    bool waits = limit.resource == RLIMIT_NOFILE;
    bool enough = outcome_check("its own client", &limit, outcome, waits ? -BMI_ETIMEDOUT : 0);
    child_end(&alone);
    return enough;
}

/* Connects to a server that is under the limit, then lifts the limit. */
static bool server_limited(struct limit limit)
{
    struct limit none = {.room = RLIM_INFINITY};
    char listening[BMI_MAX_ADDR_LEN];
    struct child server = child_start("server", server_run, &limit);
    hear(server.channel, listening, sizeof listening);
    struct child client = client_start(listening, &none);
    bool files = limit.resource == RLIMIT_NOFILE;
    bool may_wait = limit.room < (files ? range->files : range->space);
    bool ended = heard(client.channel, may_wait ? WAITS_MS : TEST_BOUND_MS), enough = false;
    CHECK(ended || may_wait, "no outcome");
    if (ended)
        enough = outcome_check("a client of a server", &limit, client_outcome(&client), 0);
    CHECK(!files || !ended || enough, "the client of a server without descriptors is refused");
    tell_number(server.channel, 0);
    hear_number(server.channel);
    if (!ended) {
        struct outcome outcome = client_outcome(&client);
        outcome.waited = true;
        outcome_print("a client of a server", &limit, outcome);
        CHECK(outcome.status == 0, "a client that waited: %s", status_name(outcome.status));
    }
    next_client(listening);
    client_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
    return enough;
}

/* Raises the limit step by step up to the end of its range, until it suffices. */
static void limits_try(__rlimit_resource_t resource, bool (*limited)(struct limit limit))
{
    bool enough = false, space = resource == RLIMIT_AS;
    rlim_t most = space ? range->space : range->files, least = space ? 1 : 0;
    unsigned steps = test_scaled(space ? range->space_steps : range->file_steps, 4);
    for (unsigned i = 0; i <= steps && !enough; i++)
        enough = limited((struct limit){.resource = resource, .room = least + most * i / steps});
    CHECK(enough, "no limit suffices");
}

static void limits_try_all(bool (*limited)(struct limit limit))
{
    limits_try(RLIMIT_AS, limited);
    limits_try(RLIMIT_NOFILE, limited);
}

int main(int argc, char **argv)
{
    setenv("BMI_TEST_METHOD", argc > 1 ? argv[1] : "tcp", 1);
    test_begin("limits_fault", 200);
    for (unsigned i = 0; i < RANGES; i++)
        if (strcmp(ranges[i].scheme, test_scheme()) == 0)
            range = &ranges[i];
    CHECK(range != NULL, "no limits for %s", test_scheme());
    limits_try_all(alone_limited);
    if (range->alone)
        return test_passed();
    limits_try_all(client_limited);
    limits_try_all(server_limited);
    return test_passed();
}
