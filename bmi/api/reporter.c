/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reporter.c - sends a running process's report to a client on request: `bmi-info --process`.
 *
 * A listening Unix socket in the abstract name space, whose name contains the process id; so no
 * file is left behind. A client that connects gets the report, and nothing else is read from it.
 * Only the user that runs the process, and root, get it. One client is served at a time; a client
 * that does not read is dropped after a while. The poller does all of it: a process of which no
 * thread makes progress does not answer.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bmi/api/report.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/method.h"

enum { PATIENCE_MS = 5000, PAUSE_MS = 1000, BACKLOG = 8 };

/* Used by the poller, except for `follower`. The listener is not watched while a client is served,
 * nor for a while after no descriptor was free for a new client. */
struct bmi__reporter {
    struct bmi_instance *instance;
    struct bmi_watch listener, caller; /* fd -1: none */
    struct bmi_timer patience, pause;
    char *text;
    size_t size, sent;
    pid_t process; /* the id in the listener's name */
    struct bmi_deferred follower;
};

static void listener_watch(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = instance->reporter;
    int status = bmi_method_watch_add(instance, &reporter->listener, EPOLLIN);
    if (status < 0)
        bmi__log(instance, BMI_LOG_WARN, "no more reports: %s", strerror(-status));
}

/* ---- one that asks -------------------------------------------------------------------------- */

static void caller_end(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = instance->reporter;
    bmi_method_timer_clear(instance, &reporter->patience);
    bmi_method_watch_remove(instance, &reporter->caller);
    close(reporter->caller.fd);
    reporter->caller.fd = -1;
    free(reporter->text);
    reporter->text = NULL;
    listener_watch(instance);
}

static void caller_reads(struct bmi_watch *watch, uint32_t events)
{
    struct bmi__reporter *reporter =
        (struct bmi__reporter *)((char *)watch - offsetof(struct bmi__reporter, caller));
    struct bmi_instance *instance = reporter->instance;
    (void)events;
    while (reporter->sent < reporter->size) {
        ssize_t sent = send(watch->fd, reporter->text + reporter->sent,
                            reporter->size - reporter->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (sent < 0)
            break;
        reporter->sent += (size_t)sent;
    }
    caller_end(instance);
}

static void caller_late(struct bmi_timer *timer)
{
    struct bmi__reporter *reporter =
        (struct bmi__reporter *)((char *)timer - offsetof(struct bmi__reporter, patience));
    caller_end(reporter->instance);
}

static bool caller_may_know(int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}

static void caller_comes(struct bmi_watch *watch, uint32_t events)
{
    struct bmi__reporter *reporter =
        (struct bmi__reporter *)((char *)watch - offsetof(struct bmi__reporter, listener));
    struct bmi_instance *instance = reporter->instance;
    (void)events;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (fd < 0) { /* it stays in the queue, and the listener would stay readable */
        bmi_method_watch_remove(instance, &reporter->listener);
        bmi_method_timer_set(instance, &reporter->pause, PAUSE_MS);
        return;
    }
    reporter->text = caller_may_know(fd) ? bmi__report_make(instance, &reporter->size) : NULL;
    reporter->sent = 0;
    reporter->caller.fd = fd;
    if (reporter->text == NULL || bmi_method_watch_add(instance, &reporter->caller, EPOLLOUT) < 0) {
        free(reporter->text);
        reporter->text = NULL;
        reporter->caller.fd = -1;
        close(fd);
        return;
    }
    bmi_method_watch_remove(instance, &reporter->listener);
    bmi_method_timer_set(instance, &reporter->patience, PATIENCE_MS);
}

static void pause_over(struct bmi_timer *timer)
{
    struct bmi__reporter *reporter =
        (struct bmi__reporter *)((char *)timer - offsetof(struct bmi__reporter, pause));
    listener_watch(reporter->instance);
}

/* ---- on and off ----------------------------------------------------------------------------- */

static void listener_close(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = instance->reporter;
    if (reporter->caller.fd >= 0)
        caller_end(instance);
    if (reporter->listener.fd < 0)
        return;
    bmi_method_timer_clear(instance, &reporter->pause);
    bmi_method_watch_remove(instance, &reporter->listener);
    close(reporter->listener.fd);
    reporter->listener.fd = -1;
}

/* Returns 0 or an errno. */
static int listener_open(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = instance->reporter;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char *path = name.sun_path + 1;
    size_t room = sizeof name.sun_path - 1;
    int length = instance->name[0] == '\0' ? snprintf(path, room, BMI_REPORT_NAME, (long)getpid())
                                           : snprintf(path, room, BMI_REPORT_INSTANCE_NAME,
                                                      (long)getpid(), instance->name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (bind(fd, (struct sockaddr *)&name, size) < 0 || listen(fd, BACKLOG) < 0) {
        int status = -errno;
        close(fd);
        return status;
    }
    reporter->listener.fd = fd;
    reporter->process = getpid();
    listener_watch(instance);
    return 0;
}

static void follow(struct bmi_deferred *deferred)
{
    struct bmi__reporter *reporter =
        (struct bmi__reporter *)((char *)deferred - offsetof(struct bmi__reporter, follower));
    struct bmi_instance *instance = reporter->instance;
    if (bmi__setting(instance, SETTING_REPORT) == 0) {
        listener_close(instance);
        return;
    }
    if (reporter->listener.fd >= 0 && reporter->process != getpid())
        listener_close(instance); /* we are the child that goes on in its parent's place */
    int status = reporter->listener.fd < 0 ? listener_open(instance) : 0;
    if (status < 0)
        bmi__log(instance, BMI_LOG_WARN, "no reports: cannot listen for who asks: %s",
                 strerror(-status));
}

void bmi__reporter_follow(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = instance->reporter;
    bmi_method_defer(instance, &reporter->follower);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__reporter_open(struct bmi_instance *instance)
{
    struct bmi__reporter *reporter = calloc(1, sizeof *reporter);
    if (reporter == NULL)
        return -ENOMEM;
    *reporter = (struct bmi__reporter){.instance = instance,
                                       .listener = {.fd = -1, .ready = caller_comes},
                                       .caller = {.fd = -1, .ready = caller_reads},
                                       .patience = {.expired = caller_late},
                                       .pause = {.expired = pause_over},
                                       .follower = {.run = follow}};
    instance->reporter = reporter;
    return 0;
}

void bmi__reporter_close(struct bmi_instance *instance)
{
    if (instance->reporter == NULL)
        return;
    listener_close(instance);
    free(instance->reporter);
    instance->reporter = NULL;
}
