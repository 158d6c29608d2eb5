/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_limits_fault.c - a first connection over libfabric under a limit of address space or of
 * descriptors, for limits from nothing more than the process has to one that suffices.
 *
 * Given a client (or a server) that has started, when its limit is little above what it uses, then
 * its operations with a new peer end in time, with success or with ENOMEM (EMFILE), and no process
 * crashes. A server without descriptors leaves new clients waiting. When the limit is lifted, the
 * server serves the next client.
 *
 * usage: ofi_limits_fault ofi+tcp|ofi+shm
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "serve.h"

enum {
    CALL_BYTES = 100,
    SOON_MS = 8000,   /* less than any timeout of libfabric's */
    SPACE = 96 << 20, /* more than any of them needs */
    SPACE_STEPS = 8,
    FILES = 16,
    FILE_STEPS = 4,
    WAITS_MS = 300
};

struct limit {
    __rlimit_resource_t resource; /* an enumeration of the C library, where that has one */
    rlim_t room;                  /* beyond what the process uses; 0: no limit */
};

struct outcome {
    bmi_error_code_t status; /* the first that is not 0 */
    uint64_t took_ms;
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
static struct outcome exchange(BMI_addr_t server)
{
    static char out[CALL_BYTES], in[ECHO_MAX];
    static struct noted noted[3];
    struct outcome outcome = {0};
    uint64_t start = now_ns();
    note_receive(&noted[0], server, in, ECHO_MAX, ECHO_REPLY_TAG);
    note_sendunexpected(&noted[1], server, "", 0, ECHO_HELLO_TAG);
    note_send(&noted[2], server, out, CALL_BYTES, ECHO_CALL_TAG);
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
    if (limit->room > 0)
        limit_set(limit);
    struct outcome outcome = exchange(server);
    tell(channel, &outcome, sizeof outcome);
    hear_number(channel);
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
    CHECK(setrlimit(limit->resource, &usual) == 0, "setrlimit");
    tell_number(channel, 0);
    while (!heard(channel, 0))
        operations_step(5);
    _exit(0);
}

static struct child client_start(const char *listening, struct limit *limit)
{
    struct child client = child_start("client", client_run, limit);
    tell(client.channel, listening, BMI_MAX_ADDR_LEN);
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
    static struct limit none;
    struct child client = client_start(listening, &none);
    struct outcome outcome = client_outcome(&client);
    CHECK(outcome.status == 0, "the next client: %s", status_name(outcome.status));
    client_end(&client);
}

static bool outcome_check(const char *whose, const struct limit *limit, struct outcome outcome)
{
    bool space = limit->resource == RLIMIT_AS;
    printf("  %s with %lu %s more: %s after %lu ms\n", whose, (unsigned long)limit->room,
           space ? "bytes" : "descriptors", status_name(outcome.status),
           (unsigned long)outcome.took_ms);
    CHECK(outcome.status == 0 || outcome.status == (space ? -BMI_ENOMEM : -BMI_EMFILE), "%s: %s",
          whose, status_name(outcome.status));
    CHECK(outcome.took_ms < SOON_MS, "%s: after %lu ms", whose, (unsigned long)outcome.took_ms);
    return outcome.status == 0;
}

/* Returns whether the limit sufficed. */
static bool client_limited(struct limit limit)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child server = echo_server_start(0);
    echo_server_address(&server, listening);
    struct child client = client_start(listening, &limit);
    bool enough = outcome_check("a client", &limit, client_outcome(&client));
    next_client(listening);
    client_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
    return enough;
}

/* Connects to a server that is under the limit, then lifts the limit. */
static bool server_limited(struct limit limit)
{
    static struct limit none;
    char listening[BMI_MAX_ADDR_LEN];
    struct child server = child_start("server", server_run, &limit);
    hear(server.channel, listening, sizeof listening);
    struct child client = client_start(listening, &none);
    int wait_ms = limit.resource == RLIMIT_AS || limit.room > FILES ? TEST_BOUND_MS : WAITS_MS;
    bool enough = heard(client.channel, wait_ms);
    CHECK(enough || wait_ms == WAITS_MS, "no outcome");
    if (enough)
        enough = outcome_check("a client of a server", &limit, client_outcome(&client));
    tell_number(server.channel, 0);
    hear_number(server.channel);
    if (limit.resource == RLIMIT_NOFILE && !enough) {
        struct outcome outcome = client_outcome(&client);
        printf("  a client waited for a server with %lu descriptors more: %s\n",
               (unsigned long)limit.room, status_name(outcome.status));
        CHECK(outcome.status == 0, "a client that waited: %s", status_name(outcome.status));
    }
    next_client(listening);
    client_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
    return enough;
}

/* Raises the limit step by step up to `most`, until it suffices. */
static void limits_try(__rlimit_resource_t resource, rlim_t most, unsigned steps,
                       bool (*limited)(struct limit limit))
{
    bool enough = false;
    for (unsigned i = 0; i <= steps && !enough; i++)
        enough = limited((struct limit){.resource = resource, .room = 1 + most * i / steps});
    CHECK(enough, "no limit suffices");
}

int main(int argc, char **argv)
{
    setenv("BMI_TEST_METHOD", argc > 1 ? argv[1] : "ofi+tcp", 1);
    test_begin("ofi_limits_fault", 200);
    unsigned steps = test_scaled(SPACE_STEPS, 4), files = test_scaled(FILE_STEPS, 4);
    limits_try(RLIMIT_AS, SPACE, steps, client_limited);
    limits_try(RLIMIT_AS, SPACE, steps, server_limited);
    limits_try(RLIMIT_NOFILE, FILES, files, client_limited);
    limits_try(RLIMIT_NOFILE, FILES, files, server_limited);
    return test_passed();
}
