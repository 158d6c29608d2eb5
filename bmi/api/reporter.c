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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bmi/api/report.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/method.h"

enum { PATIENCE_MS = 5000, PAUSE_MS = 1000, BACKLOG = 8 };

static void caller_comes(struct bmi_watch *watch, uint32_t events);
static void caller_reads(struct bmi_watch *watch, uint32_t events);
static void caller_late(struct bmi_timer *timer);
static void pause_over(struct bmi_timer *timer);
static void follow(struct bmi_deferred *deferred);

/* Used by the poller, except for `follower`. The listener is not watched while a client is served,
 * nor for a while after no descriptor was free for a new client. */
static struct reporter {
    struct bmi_watch listener, caller; /* fd -1: none */
    struct bmi_timer patience, pause;
    char *text;
    size_t size, sent;
    pid_t process; /* the id in the listener's name */
} reporter = {.listener = {.fd = -1, .ready = caller_comes},
              .caller = {.fd = -1, .ready = caller_reads},
              .patience = {.expired = caller_late},
              .pause = {.expired = pause_over}};
static struct bmi_deferred follower = {.run = follow};

static void listener_watch(void)
{
    int status = bmi_method_watch_add(&reporter.listener, EPOLLIN);
    if (status < 0)
        bmi__log(BMI_LOG_WARN, "no more reports: %s", strerror(-status));
}

/* ---- one that asks -------------------------------------------------------------------------- */

static void caller_end(void)
{
    bmi_method_timer_clear(&reporter.patience);
    bmi_method_watch_remove(&reporter.caller);
    close(reporter.caller.fd);
    reporter.caller.fd = -1;
    free(reporter.text);
    reporter.text = NULL;
    listener_watch();
}

static void caller_reads(struct bmi_watch *watch, uint32_t events)
{
    (void)events;
    while (reporter.sent < reporter.size) {
        ssize_t sent = send(watch->fd, reporter.text + reporter.sent, reporter.size - reporter.sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (sent < 0)
            break;
        reporter.sent += (size_t)sent;
    }
    caller_end();
}

static void caller_late(struct bmi_timer *timer)
{
    (void)timer;
    caller_end();
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
    (void)events;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (fd < 0) { /* it stays in the queue, and the listener would stay readable */
        bmi_method_watch_remove(&reporter.listener);
        bmi_method_timer_set(&reporter.pause, PAUSE_MS);
        return;
    }
    reporter.text = caller_may_know(fd) ? bmi__report_make(&reporter.size) : NULL;
    reporter.sent = 0;
    reporter.caller.fd = fd;
    if (reporter.text == NULL || bmi_method_watch_add(&reporter.caller, EPOLLOUT) < 0) {
        free(reporter.text);
        reporter.text = NULL;
        reporter.caller.fd = -1;
        close(fd);
        return;
    }
    bmi_method_watch_remove(&reporter.listener);
    bmi_method_timer_set(&reporter.patience, PATIENCE_MS);
}

static void pause_over(struct bmi_timer *timer)
{
    (void)timer;
    listener_watch();
}

/* ---- on and off ----------------------------------------------------------------------------- */

static void listener_close(void)
{
    if (reporter.caller.fd >= 0)
        caller_end();
    if (reporter.listener.fd < 0)
        return;
    bmi_method_timer_clear(&reporter.pause);
    bmi_method_watch_remove(&reporter.listener);
    close(reporter.listener.fd);
    reporter.listener.fd = -1;
}

/* Returns 0 or an errno. */
static int listener_open(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, BMI_REPORT_NAME, (long)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (bind(fd, (struct sockaddr *)&name, size) < 0 || listen(fd, BACKLOG) < 0) {
        int status = -errno;
        close(fd);
        return status;
    }
    reporter.listener.fd = fd;
    reporter.process = getpid();
    listener_watch();
    return 0;
}

static void follow(struct bmi_deferred *deferred)
{
    (void)deferred;
    if (bmi__setting(SETTING_REPORT) == 0) {
        listener_close();
        return;
    }
    if (reporter.listener.fd >= 0 && reporter.process != getpid())
        listener_close(); /* we are the child that goes on in its parent's place */
    int status = reporter.listener.fd < 0 ? listener_open() : 0;
    if (status < 0)
        bmi__log(BMI_LOG_WARN, "no reports: cannot listen for who asks: %s", strerror(-status));
}

void bmi__reporter_follow(void)
{
    bmi_method_defer(&follower);
}

void bmi__reporter_stop(void)
{
    listener_close();
}
