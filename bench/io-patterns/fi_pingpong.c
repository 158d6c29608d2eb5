/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fi_pingpong.c - libfabric's own ping-pong as a reference, on the provider that BMI's method
 * takes.
 *
 * Two processes of fi_pingpong for each sample, on this host, print their result on standard
 * output: one line of figures of two decimals, of which the greater ones are the more exact. Its
 * "bandwidth" is that of a ping-pong: the size over the time one way.
 */
#include "fi_pingpong.h"
#include "bmi.h"
#include "launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "fi_pingpong"

static char provider[64];

/* Looks for the provider that the method would take. Returns: whether it is one of libfabric's. */
static bool provider_find(const char *scheme)
{
    struct bmi_method_info info;
    struct bmi_method_choice choice;
    for (int i = 0; bmi_method_next(i, &info) == 0; i++) {
        if (strcmp(info.schemes, scheme) != 0)
            continue;
        int status = bmi_method_choose(i, &choice);
        if (status < 0)
            die("--method %s: %s: %s", scheme, bmi_status_string(status), choice.reason);
        format_text(provider, sizeof provider, "%s", choice.provider);
    }
    return provider[0] != 0;
}

void fi_pingpong_open(const struct options *options)
{
    if (options->url_count > 0)
        die("--reference fi: " PROGRAM " runs on this host only");
    if (!provider_find(options->method))
        die("--reference fi: --method %s does not go through libfabric; ib, ofi+tcp, ofi+shm do",
            options->method);
    if (!launch_found(PROGRAM))
        die("--reference fi: " PROGRAM " is wanted (install libfabric-bin)");
}

/* A port that no process uses at the moment. */
static int port_find(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        die("a free port: %s", strerror(errno));
    close(fd);
    return ntohs(address.sin_port);
}

/* Whether a process listens at the port, by the kernel's table: the server would take a connect for
 * the client. */
static bool port_is_open(int port)
{
    FILE *file = fopen("/proc/net/tcp", "r");
    char line[256];
    bool open = false;
    if (!file)
        die("/proc/net/tcp: %s", strerror(errno));
    while (!open && fgets(line, sizeof line, file)) {
        unsigned local, state;
        open = sscanf(line, " %*d: %*8x:%4x %*8x:%*4x %2x", &local, &state) == 2 &&
               (int)local == port && state == 0x0a;
    }
    fclose(file);
    return open;
}

/* The two processes of a sample. */
struct sides {
    const struct options *options;
    uint32_t size;
    uint64_t rounds, deadline;
    int port;
    pid_t server, client;
};

static pid_t side_start(const struct sides *sides, bool server, int out)
{
    char size[16], count[32], number[16];
    format_text(size, sizeof size, "%u", sides->size);
    format_text(count, sizeof count, "%llu", (unsigned long long)sides->rounds);
    format_text(number, sizeof number, "%d", sides->port);
    /* -c: check the data */
    const char *const arguments[] = {PROGRAM,  "-p",
                                     provider, sides->options->verify ? "-ce" : "-e",
                                     "rdm",    "-S",
                                     size,     "-I",
                                     count,    server ? "-B" : "-P",
                                     number,   server ? NULL : "127.0.0.1",
                                     NULL};
    return launch_other(sides->options, arguments, out);
}

/* Starts the server, and the client when that listens. */
static void sides_start(struct sides *sides, int out)
{
    launch_group_begin();
    sides->server = side_start(sides, true, out);
    while (!port_is_open(sides->port)) {
        if (launch_ended(sides->server, PROGRAM "'s server"))
            die(PROGRAM "'s server ended before it listened");
        if (now_ns() >= sides->deadline)
            die(PROGRAM "'s server did not listen in time (--timeout)");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    sides->client = side_start(sides, false, -1);
}

/* Waits until the server prints a line, or has ended. */
static void text_await(const struct sides *sides, int from)
{
    struct pollfd wait = {.fd = from, .events = POLLIN};
    while (poll(&wait, 1, 20) <= 0) { /* the bound is for processes that ended */
        launch_ended(sides->server, PROGRAM "'s server");
        launch_ended(sides->client, PROGRAM "'s client");
        if (now_ns() >= sides->deadline)
            die(PROGRAM " did not answer in time (--timeout)");
    }
}

/* Reads the server's output, to its end. */
static void text_read(const struct sides *sides, int from, char *text, size_t size)
{
    size_t used = 0;
    for (;;) {
        text_await(sides, from);
        ssize_t got = read(from, text + used, size - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || (used += (size_t)got) == size - 1)
            break;
    }
    text[used] = 0;
}

/* The time one way in seconds, from "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec". */
static double time_parse(const char *text, const struct work *work)
{
    double rate, time_us;
    const char *line = strchr(text, '\n');
    if (!line || sscanf(line, " %*s %*s %*s %*s %*s %lf %lf", &rate, &time_us) != 2 ||
        (rate <= 0 && time_us <= 0))
        die(PROGRAM " -p \"%s\" says: %s", provider, text);
    return rate > time_us ? (double)work->size / rate * 1e-6 : time_us * 1e-6;
}

double fi_pingpong_sample(const struct options *options, const struct work *work)
{
    char text[1024];
    int ends[2];
    bool bytes = options->pattern->amount_is_bytes;
    struct sides sides = {.options = options,
                          .size = work->size,
                          .rounds = bytes ? message_count(work) : work->amount,
                          .deadline = now_ns() + (uint64_t)options->timeout_s * 1000000000u,
                          .port = port_find()};
    if (pipe(ends) < 0)
        die("pipe: %s", strerror(errno));
    sides_start(&sides, ends[1]);
    close(ends[1]);
    text_read(&sides, ends[0], text, sizeof text);
    close(ends[0]);
    launch_end(sides.server, 0, options->timeout_s);
    launch_end(sides.client, 0, options->timeout_s);
    double one_way = time_parse(text, work);
    return bytes ? one_way * (double)work->amount / work->size : 2 * one_way * (double)sides.rounds;
}
