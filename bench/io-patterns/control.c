/* SPDX-License-Identifier: BSD-3-Clause
 *
 * control.c - a process's line to its coordinator: an abstract Unix socket, lines of text.
 *
 * A server sends "address URL", a client and each MPI rank "ready"; they receive "run ..." for each
 * sample and answer "result FIGURE". End of file from the coordinator ends the process.
 */
#include "bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int control_connect(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length >= sizeof address.sun_path)
        die("control name too long");
    memcpy(address.sun_path + 1, name, length); /* the first byte 0: abstract */
    int control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    if (control < 0 || connect(control, (struct sockaddr *)&address, size) < 0)
        die("coordinator not reached: %s", strerror(errno));
    return control;
}

/* Says hello to the coordinator. Returns: the line's descriptor, -1 where there is no coordinator.
 */
int control_open(const struct options *options, const char *role)
{
    if (!options->control)
        return -1;
    int control = control_connect(options->control);
    control_tell(control, "hello %s %d", role, options->number);
    return control;
}

/* Writes a line. */
void control_tell(int control, const char *format, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line - 1)
        die("control line too long");
    line[length++] = '\n';
    if (send(control, line, (size_t)length, MSG_NOSIGNAL) != length)
        die("coordinator is gone");
}

/* Reports where this server listens, to the coordinator or to the user that started it. */
void address_tell(int control, const char *url)
{
    if (control >= 0) {
        control_tell(control, "address %s", url);
    } else {
        printf("%s\n", url);
        output_flush();
    }
}

/* Waits for the next sample's description, and stores it in *work. Returns: false when the
 * coordinator has no more. */
bool control_work(int control, struct work *work, uint64_t *start_ns)
{
    char line[256];
    size_t used = 0;
    for (;;) {
        ssize_t got = read(control, line + used, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        if (line[used] == '\n')
            break;
        if (++used == sizeof line)
            die("control line too long");
    }
    line[used] = 0;
    if (sscanf(line,
               "run %" SCNu32 " %" SCNu64 " %" SCNu32 " %" SCNu64 " %" SCNu8 " %" SCNu8 " %" SCNu16
               " %" SCNu32,
               &work->size, &work->amount, &work->sequence, start_ns, &work->on, &work->figure,
               &work->compute_us, &work->window) != 8)
        die("control line not understood: %s", line);
    return true;
}

/* Waits for the moment at which all clients of this host begin. */
void start_await(uint64_t start_ns)
{
    struct timespec start = {.tv_sec = (time_t)(start_ns / 1000000000u),
                             .tv_nsec = (long)(start_ns % 1000000000u)};
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL) == EINTR)
        ;
}

void samples_take(int control, const struct options *options, const char *note,
                  double (*run)(void *client, const struct work *work), void *client)
{
    struct work work;
    uint64_t start_ns;
    work_start(&work, options);
    control_tell(control, "ready %s", note);
    while (control_work(control, &work, &start_ns)) {
        start_await(start_ns);
        control_tell(control, "result %.9g", run(client, &work));
    }
}
