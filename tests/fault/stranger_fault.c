/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stranger_fault.c - tcp:// to a port where another service listens: servers that speak first, that
 * answer an unknown line, and that send less than a header and wait.
 *
 * Each operation ends with EPROTO as soon as the service has sent any bytes, and the log names its
 * probable protocol. A silent service ends with ETIMEDOUT after connect_timeout_ms. With "ofi": a
 * server of ofi+tcp that is dialled as tcp://, and a server of tcp that is dialled as ofi+tcp://.
 *
 * usage: stranger_fault [ofi]
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve.h"

enum { NO_SERVER = -1, SOON_MS = 1000 };

struct stranger {
    const char *name;
    child_main *run;
    const char *says, *logged; /* the bytes that it sends; its name in the log */
    bool first;                /* it speaks first, else it answers an empty line */
    bool silent;
    const char *scheme; /* the scheme to dial it by; NULL: tcp */
    struct child child;
};

/* ---- strangers: children that never start the library ---------------------------------------- */

static int port_listen(unsigned *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0, "bind");
    CHECK(listen(listener, 8) == 0, "listen");
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0, "getsockname");
    *port = ntohs(address.sin_port);
    return listener;
}

/* Reads until an empty line, as a server that reads requests. */
static bool request_read(int fd)
{
    char last[4] = "";
    while (memcmp(last, "\r\n\r\n", 4) != 0) {
        memmove(last, last + 1, 3);
        if (read(fd, last + 3, 1) != 1)
            return false;
    }
    return true;
}

/* Keeps each connection open after its bytes, until the other side closes it. */
static void connection_serve(int fd, const struct stranger *stranger)
{
    char rest[512];
    bool speaks = !stranger->silent && (stranger->first || request_read(fd));
    if (speaks && write(fd, stranger->says, strlen(stranger->says)) < 0)
        speaks = false;
    while (read(fd, rest, sizeof rest) > 0)
        ;
    close(fd);
}

static int stranger_run(void *argument, int channel)
{
    unsigned port;
    int listener = port_listen(&port);
    tell_number(channel, port);
    for (;;) {
        struct pollfd polled[] = {{.fd = listener, .events = POLLIN},
                                  {.fd = channel, .events = POLLIN}};
        poll(polled, 2, -1);
        if (polled[1].revents)
            return 0;
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0)
            connection_serve(fd, argument);
    }
}

/* Python's own file server, if Python exists. */
static int python_run(void *argument, int channel)
{
    int out[2];
    char line[200];
    unsigned port;
    (void)argument;
    CHECK(pipe(out) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        freopen("/dev/null", "w", stderr);
        execlp("python3", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0", NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    bool serves = fgets(line, sizeof line, lines) != NULL &&
                  sscanf(line, "Serving HTTP on 127.0.0.1 port %u", &port) == 1;
    tell_number(channel, serves ? (int64_t)port : NO_SERVER);
    hear_number(channel);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    fclose(lines);
    return 0;
}

/* A server of another method of this library; `says` is its scheme. */
static int server_run(void *argument, int channel)
{
    const struct stranger *stranger = argument;
    char listening[BMI_MAX_ADDR_LEN], address[64];
    snprintf(address, sizeof address, "%s://127.0.0.1:0", stranger->says);
    if (BMI_initialize(stranger->says, address, BMI_INIT_SERVER) < 0) {
        tell_number(channel, NO_SERVER);
        return 0;
    }
    must(BMI_get_info(0, BMI_GET_LISTEN_ADDR, listening), "BMI_GET_LISTEN_ADDR");
    operations_open();
    tell_number(channel, test_port(listening));
    while (!heard(channel, 0))
        operations_step(5);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- the client ------------------------------------------------------------------------------ */

static char heard_of[4096]; /* the log's warnings since the last call */

static void log_keep(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(heard_of);
    (void)argument;
    (void)level;
    snprintf(heard_of + used, sizeof heard_of - used, "%s\n", text);
}

static void stranger_meet(const struct stranger *stranger, int64_t port)
{
    char url[64];
    struct noted noted;
    BMI_addr_t address;
    snprintf(url, sizeof url, "%s://127.0.0.1:%d",
             stranger->scheme != NULL ? stranger->scheme : "tcp", (int)port);
    must(BMI_addr_lookup(&address, url), "BMI_addr_lookup");
    char wait[] = "connect_timeout_ms=300", patient[] = "connect_timeout_ms=200000";
    must(BMI_set_info(0, BMI_SETTING, stranger->silent ? wait : patient), "BMI_set_info");
    heard_of[0] = '\0';
    uint64_t start = now_ns();
    note_sendunexpected(&noted, address, "", 0, 1);
    CHECK(noted_wait(&noted, 1, TEST_BOUND_MS), "%s: the send does not end", stranger->name);
    uint64_t took_ms = (now_ns() - start) / 1000000;
    printf("  %s: %s after %.3f s: %s\n", stranger->name, status_name(noted.status),
           (double)took_ms / 1e3, heard_of);
    int expected = stranger->silent ? -BMI_ETIMEDOUT : -BMI_EPROTO;
    CHECK(noted.status == expected, "%s: %s", stranger->name, status_name(noted.status));
    CHECK(stranger->silent || took_ms < SOON_MS * test_slowness(), "%s: after %lu ms",
          stranger->name, (unsigned long)took_ms);
    CHECK(strstr(heard_of, stranger->logged) != NULL, "the log does not say \"%s\"",
          stranger->logged);
}

/* Returns whether the service exists. */
static bool stranger_dial(struct stranger *stranger)
{
    int64_t port = hear_number(stranger->child.channel);
    if (port == NO_SERVER)
        printf("  %s: not here\n", stranger->name);
    else
        stranger_meet(stranger, port);
    tell_number(stranger->child.channel, 0);
    child_end(&stranger->child);
    return port != NO_SERVER;
}

static void strangers_start(struct stranger *strangers, unsigned count)
{
    static struct bmi_log_callback callback = {.write = log_keep, .level = BMI_LOG_WARN};
    for (unsigned i = 0; i < count; i++)
        strangers[i].child = child_start(strangers[i].name, strangers[i].run, &strangers[i]);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
}

/* Two methods of this library. */
static void methods_meet(void)
{
    static struct stranger strangers[] = {
        {"a server of ofi+tcp", server_run, "ofi+tcp",
         "is the address exchange of another method of BMI", .scheme = "tcp"},
        {"a server of tcp", server_run, "tcp", "speaks no BMI of this scheme", .scheme = "ofi+tcp"},
    };
    strangers_start(strangers, 2);
    bool there = stranger_dial(&strangers[0]);
    if (!there) {
        children_kill();
        test_skip("no server of ofi+tcp can be started here");
    }
    stranger_dial(&strangers[1]);
}

int main(int argc, char **argv)
{
    static struct stranger strangers[] = {
        {"HTTP, a status line", stranger_run, "HTTP/1.0 400 Bad request\r\n\r\n",
         "is an HTTP server, and speaks no BMI", .first = false},
        {"HTTP, a page alone", stranger_run, "<!DOCTYPE HTML>\n<html>Error 400</html>\n",
         "is an HTTP server, and speaks no BMI", .first = false},
        {"SSH", stranger_run, "SSH-2.0-OpenSSH_9.2p1\r\n", "is an SSH server", .first = true},
        {"an address exchange", stranger_run, "BMI ib\r\n",
         "exchange of another method of BMI, ib,", .first = true},
        {"one byte", stranger_run, "\xff", "speaks no BMI: it answers \"\\xff\"", .first = true},
        {"a terminal's worth", stranger_run, "\x1b[31m\nforged", "\"\\x1b[31m\\x0aforged\"",
         .first = true},
        {"Python's HTTP server", python_run, NULL, "is an HTTP server, and speaks no BMI",
         .first = false},
        {"silence", stranger_run, NULL, "not connected in time", .silent = true},
    };
    const unsigned count = sizeof strangers / sizeof *strangers;
    test_begin("stranger_fault", 40);
    if (argc > 1 && strcmp(argv[1], "ofi") == 0) {
        methods_meet();
        BMI_close_context(test_context);
        must(BMI_finalize(), "BMI_finalize");
        return test_passed();
    }
    strangers_start(strangers, count);
    for (unsigned i = 0; i < count; i++)
        stranger_dial(&strangers[i]);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
