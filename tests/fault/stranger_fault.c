/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stranger_fault.c - tcp:// to a port where no BMI listens: servers that speak first, that answer a
 * line they do not understand, and that say less than a header and wait.
 *
 * Each operation ends with EPROTO as soon as the stranger has said anything, and the log says what
 * it seems to be. A stranger that stays silent is given up after connect_timeout_ms.
 *
 * usage: stranger_fault
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

enum { NO_SERVER = -1 };

struct stranger {
    const char *name;
    child_main *run;
    const char *says, *logged; /* what it says; what the log calls it */
    bool first;                /* it speaks first, else it answers an empty line */
    bool silent;
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

/* Reads until an empty line, as a server does that reads requests. */
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

/* Keeps each connection open after its word, until the other side closes it. */
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

/* Python's own server of files, where there is Python. */
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

/* ---- the client ------------------------------------------------------------------------------ */

static char heard_of[4096]; /* the log's warnings since the last call */

static void log_keep(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(heard_of);
    (void)argument;
    (void)level;
    snprintf(heard_of + used, sizeof heard_of - used, "%s\n", text);
}

static void stranger_dial(struct stranger *stranger)
{
    char url[64];
    struct noted noted;
    BMI_addr_t address;
    int64_t port = hear_number(stranger->child.channel);
    if (port == NO_SERVER) {
        printf("  %s: not here\n", stranger->name);
    } else {
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", (int)port);
        must(BMI_addr_lookup(&address, url), "BMI_addr_lookup");
        char wait[] = "connect_timeout_ms=300", patient[] = "connect_timeout_ms=200000";
        must(BMI_set_info(0, BMI_SETTING, stranger->silent ? wait : patient), "BMI_set_info");
        heard_of[0] = '\0';
        uint64_t start = now_ns();
        note_sendunexpected(&noted, address, "", 0, 1);
        CHECK(noted_wait(&noted, 1, TEST_BOUND_MS), "%s: the send does not end", stranger->name);
        printf("  %s: %s after %.3f s: %s\n", stranger->name, status_name(noted.status),
               (double)(now_ns() - start) / 1e9, heard_of);
        int expected = stranger->silent ? -BMI_ETIMEDOUT : -BMI_EPROTO;
        CHECK(noted.status == expected, "%s: %s", stranger->name, status_name(noted.status));
        CHECK(strstr(heard_of, stranger->logged) != NULL, "the log does not say \"%s\"",
              stranger->logged);
    }
    tell_number(stranger->child.channel, 0);
    child_end(&stranger->child);
}

int main(void)
{
    static struct stranger strangers[] = {
        {"HTTP, a status line", stranger_run, "HTTP/1.0 400 Bad request\r\n\r\n",
         "is an HTTP server, and speaks no BMI", .first = false},
        {"HTTP, a page alone", stranger_run, "<!DOCTYPE HTML>\n<html>Error 400</html>\n",
         "is an HTTP server, and speaks no BMI", .first = false},
        {"SSH", stranger_run, "SSH-2.0-OpenSSH_9.2p1\r\n", "is an SSH server", .first = true},
        {"a rendezvous", stranger_run, "BMI ib\r\n", "rendezvous of another method of BMI, ib,",
         .first = true},
        {"one byte", stranger_run, "\xff", "speaks no BMI: it answers \"\\xff\"", .first = true},
        {"a terminal's worth", stranger_run, "\x1b[31m\nforged", "\"\\x1b[31m\\x0aforged\"",
         .first = true},
        {"Python's HTTP server", python_run, NULL, "is an HTTP server, and speaks no BMI",
         .first = false},
        {"silence", stranger_run, NULL, "not connected in time", .silent = true},
    };
    const struct bmi_log_callback callback = {.write = log_keep, .level = BMI_LOG_WARN};
    const unsigned count = sizeof strangers / sizeof *strangers;
    test_begin("stranger_fault", 40);
    for (unsigned i = 0; i < count; i++)
        strangers[i].child = child_start(strangers[i].name, strangers[i].run, &strangers[i]);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_set_info(0, BMI_LOG_CALLBACK, (void *)&callback), "BMI_LOG_CALLBACK");
    for (unsigned i = 0; i < count; i++)
        stranger_dial(&strangers[i]);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
