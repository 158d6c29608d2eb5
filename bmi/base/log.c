/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log.c - formats a message and passes it to the callback or to standard error as one whole line:
 * emit() escapes control bytes in every message.
 * The callback and its level change under `lock`, which is also held while it runs.
 *
 * Warnings report the behaviour of peers, and a peer can repeat it without limit. So a limited
 * number per second is written, then the number of those left out.
 *
 * Callers hold locks while a line is written, so a write never waits for the reader of standard
 * error. A line that does not fit into a full pipe is left out. If the reader has gone, all lines
 * are left out, and SIGPIPE does not end the process.
 */
#include "bmi/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/escape.h"
#include "bmi/base/settings.h"
#include "bmi/method.h"

enum { LINE_MOST = 1100 }; /* bytes of a message; a longer one is cut */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi_log_callback callback; /* under lock */
static atomic_int callback_level = -1;   /* below 0: there is none */

bool bmi__log_wanted(enum bmi_log_level level)
{
    int wanted = atomic_load_explicit(&callback_level, memory_order_relaxed);
    if (wanted < 0)
        wanted = (int)bmi__setting(SETTING_LOG);
    return (int)level <= wanted;
}

void bmi__log_callback(const struct bmi_log_callback *wanted)
{
    pthread_mutex_lock(&lock);
    callback = *wanted;
    atomic_store(&callback_level, wanted->write != NULL ? (int)wanted->level : -1);
    pthread_mutex_unlock(&lock);
}

/* Writes to standard error without waiting and without SIGPIPE. Returns whether all was written. */
static bool bytes_write(const char *bytes, size_t size)
{
    struct pollfd polled = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&polled, 1, 0) == 1 && !(polled.revents & POLLOUT))
        return false;
    if (polled.revents == 0)
        return false;
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    ssize_t written = write(STDERR_FILENO, bytes, size);
    if (written < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return written == (ssize_t)size;
}

static void line_write(enum bmi_log_level level, const char *text)
{
    static unsigned left_out; /* lock */
    static const char *const names[] = {"", "error", "warning", "info", "debug", "trace"};
    char line[1200], when[32];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    int length = snprintf(line, sizeof line, "%s.%06ldZ libbmi[%d] %s: %s\n", when,
                          now.tv_nsec / 1000, (int)getpid(), names[level], text);
    if (length >= (int)sizeof line)
        length = (int)sizeof line - 1;
    char told[64];
    int told_length = snprintf(told, sizeof told, "libbmi: %u lines were left out\n", left_out);
    if (left_out > 0 && bytes_write(told, (size_t)told_length))
        left_out = 0;
    left_out += !bytes_write(line, (size_t)length);
}

static void emit_locked(enum bmi_log_level level, const char *text)
{
    if (callback.write != NULL)
        callback.write(callback.argument, level, text);
    else
        line_write(level, text);
}

/* Whether one more warning may be written in this second. Reports how many were left out before it.
 */
static bool warning_may_locked(void)
{
    static time_t second;
    static unsigned count, left_out;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_sec != second) {
        char text[64];
        snprintf(text, sizeof text, "%u warnings were left out", left_out);
        if (left_out > 0)
            emit_locked(BMI_LOG_WARN, text);
        second = now.tv_sec;
        count = left_out = 0;
    }
    bool may = count < BMI__LOG_WARNINGS;
    count += may;
    left_out += !may;
    return may;
}

/* Text of peers may be part of any message: control bytes would forge lines, or reach a
 * terminal. */
static void emit(enum bmi_log_level level, const char *message)
{
    char text[LINE_MOST];
    bmi__escape(text, sizeof text, message, strlen(message));
    pthread_mutex_lock(&lock);
    if (level != BMI_LOG_WARN || warning_may_locked())
        emit_locked(level, text);
    pthread_mutex_unlock(&lock);
}

void bmi__log(enum bmi_log_level level, const char *format, ...)
{
    if (!bmi__log_wanted(level))
        return;
    char text[LINE_MOST];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emit(level, text);
}

void bmi_method_log(enum bmi_log_level level, const struct bmi_link *link, const char *format, ...)
{
    if (!bmi__log_wanted(level))
        return;
    char text[LINE_MOST];
    size_t used = 0;
    if (link != NULL)
        used = (size_t)snprintf(text, sizeof text, "%s: ", link->method->name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    emit(level, text);
}
