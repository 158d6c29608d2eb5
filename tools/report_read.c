/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_read.c - see report_read.h. The other end is bmi/api/reporter.c.
 *
 * Sockets do not block: a process that has stopped, or is slow, delays no other one. Where too many
 * clients wait for a process already, connecting is tried again until the time is over.
 */
#include "report_read.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bmi.h"

enum { FIRST_ROOM = 16384, RETRY_MS = 20, TOGETHER = 16 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void source_end(struct report_source *source, enum report_status status, int error)
{
    source->status = status;
    source->error = error;
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
}

/* Any process of the network namespace can take the name of another's socket. The kernel reports
 * which process began to listen: it must be the requested one, of our user or root's; root itself
 * may query all. That process may have ended, with the socket kept by another one and its number
 * used again: so the user that began to listen must be that of the present process, or root. */
static void source_check(struct report_source *source)
{
    socklen_t size = sizeof source->from;

    if (getsockopt(source->fd, SOL_SOCKET, SO_PEERCRED, &source->from, &size) < 0)
        source_end(source, REPORT_BROKEN, errno);
    else if (source->from.pid != source->process ||
             (source->from.uid != 0 &&
              (long)source->from.uid != report_process_user(source->process)))
        source_end(source, REPORT_FOREIGN, 0);
    else if (source->from.uid != geteuid() && source->from.uid != 0 && geteuid() != 0)
        source_end(source, REPORT_DENIED, 0);
}

size_t report_socket_name(const struct report_source *source, char name[REPORT_SOCKET_SIZE])
{
    return (size_t)(source->instance[0] == '\0'
                        ? snprintf(name, REPORT_SOCKET_SIZE, BMI_REPORT_NAME, source->process)
                        : snprintf(name, REPORT_SOCKET_SIZE, BMI_REPORT_INSTANCE_NAME,
                                   source->process, source->instance));
}

/* Connects to the thread that answers for the instance. */
static void source_connect(struct report_source *source)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = report_socket_name(source, name.sun_path + 1); /* an abstract name */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);

    source->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (source->fd < 0)
        source_end(source, REPORT_BROKEN, errno);
    else if (connect(source->fd, (struct sockaddr *)&name, size) == 0)
        source_check(source);
    else if (errno != EAGAIN && errno != EINTR)
        source_end(source, REPORT_ABSENT, errno);
    else
        source_end(source, REPORT_WAITING, 0);
}

/* Makes room for more bytes, and for a NUL. Returns false if there is none. */
static bool source_grow(struct report_source *source, size_t most, size_t *left)
{
    size_t room = source->room > 0 ? 2 * source->room : FIRST_ROOM;

    if (source->size + 1 < source->room)
        return true;
    if (room > most || room - source->room > *left)
        return false;
    char *text = realloc(source->text, room);
    if (text == NULL)
        return false;
    *left -= room - source->room;
    source->text = text;
    source->room = room;
    return true;
}

static void source_read(struct report_source *source, size_t most, size_t *left)
{
    if (!source_grow(source, most, left)) {
        source_end(source, REPORT_BROKEN, EFBIG);
        return;
    }
    ssize_t got = read(source->fd, source->text + source->size, source->room - 1 - source->size);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        source->size += (size_t)got;
    source->text[source->size] = '\0';
    if (got < 0)
        source_end(source, REPORT_BROKEN, errno);
    else if (got == 0)
        source_end(source, source->size > 0 ? REPORT_WHOLE : REPORT_CLOSED, 0);
}

/* Connects where that is not done yet, and fills `polled` with all sources that wait. Returns how
 * many; *all: whether all of those are connected. */
static int sources_poll(struct report_source *sources, int count, struct pollfd *polled, bool *all)
{
    int waiting = 0;

    *all = true;
    for (int i = 0; i < count; i++) {
        if (sources[i].status == REPORT_WAITING && sources[i].fd < 0)
            source_connect(&sources[i]);
        bool waits = sources[i].status == REPORT_WAITING;
        polled[i] = (struct pollfd){.fd = sources[i].fd, .events = POLLIN};
        *all &= !waits || sources[i].fd >= 0;
        waiting += waits;
    }
    return waiting;
}

void reports_read(struct report_source *sources, int count, int patience_ms, size_t most)
{
    struct pollfd *polled = calloc((size_t)count + 1, sizeof *polled);
    size_t left = TOGETHER * most;
    int64_t end_ms = now_ms() + patience_ms, left_ms;
    bool all;

    for (int i = 0; i < count; i++) {
        struct report_source source = {.process = sources[i].process, .fd = -1};

        memcpy(source.instance, sources[i].instance, sizeof source.instance);
        sources[i] = source;
    }
    while (polled != NULL && (left_ms = end_ms - now_ms()) > 0) {
        if (sources_poll(sources, count, polled, &all) == 0)
            break;
        int wait_ms = !all && left_ms > RETRY_MS ? RETRY_MS : (int)left_ms;
        if (poll(polled, (nfds_t)count, wait_ms) <= 0)
            continue;
        for (int i = 0; i < count; i++) {
            if (polled[i].revents != 0)
                source_read(&sources[i], most, &left);
            if (count > 1 && sources[i].status == REPORT_BROKEN) { /* others may have its room */
                left += sources[i].room;
                sources[i].room = sources[i].size = 0;
                report_free(&sources[i]);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        if (sources[i].status == REPORT_WAITING)
            source_end(&sources[i], REPORT_SILENT, 0);
    }
    free(polled);
}

void report_free(struct report_source *source)
{
    free(source->text);
    source->text = NULL;
}

bool report_process_name(long process, char name[REPORT_NAME_SIZE])
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/comm", process);
    FILE *file = fopen(path, "re");
    size_t size = file != NULL ? fread(name, 1, REPORT_NAME_SIZE - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    if (size > 0 && name[size - 1] == '\n')
        size--;
    name[size] = '\0';
    return file != NULL && size > 0;
}

long report_process_user(long process)
{
    char path[64], line[256];
    long user = -1;

    snprintf(path, sizeof path, "/proc/%ld/status", process);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    while (user < 0 && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "Uid:\t%*u\t%ld", &user);
    fclose(file);
    return user;
}
