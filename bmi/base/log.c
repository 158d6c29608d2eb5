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
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/escape.h"
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/method.h"

enum { LINE_MOST = 1100 }; /* bytes of a message; a longer one is cut */

struct bmi__logging {
    pthread_mutex_t lock;
    const char *name;                 /* the instance's; "": the default one */
    struct bmi_log_callback callback; /* lock */
    bool inherited;                   /* lock: it is the default instance's callback */
    atomic_int callback_level;        /* below 0: there is none */
    unsigned lines_left_out;  /* lock, as the rest: of lines that standard error did not take */
    time_t second;            /* of the latest warning */
    unsigned count, left_out; /* warnings in that second */
};

struct bmi__logging bmi__default_logging = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                            .name = "",
                                            .callback_level = -1};

bool bmi__log_wanted(struct bmi_instance *instance, enum bmi_log_level level)
{
    struct bmi__logging *logging = instance->logging;
    int wanted = atomic_load_explicit(&logging->callback_level, memory_order_relaxed);
    if (wanted < 0)
        wanted = (int)bmi__setting(instance, SETTING_LOG);
    return (int)level <= wanted;
}

void bmi__log_callback(struct bmi_instance *instance, const struct bmi_log_callback *wanted)
{
    struct bmi__logging *logging = instance->logging;
    pthread_mutex_lock(&logging->lock);
    logging->callback = *wanted;
    logging->inherited = false;
    atomic_store(&logging->callback_level, wanted->write != NULL ? (int)wanted->level : -1);
    pthread_mutex_unlock(&logging->lock);
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

static void line_write(struct bmi__logging *logging, enum bmi_log_level level, const char *text)
{
    static const char *const names[] = {"", "error", "warning", "info", "debug", "trace"};
    char line[1200], when[32];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    int length = snprintf(line, sizeof line, "%s.%06ldZ libbmi[%d%s%s] %s: %s\n", when,
                          now.tv_nsec / 1000, (int)getpid(), *logging->name != '\0' ? " " : "",
                          logging->name, names[level], text);
    if (length >= (int)sizeof line)
        length = (int)sizeof line - 1;
    char told[64];
    int told_length =
        snprintf(told, sizeof told, "libbmi: %u lines were left out\n", logging->lines_left_out);
    if (logging->lines_left_out > 0 && bytes_write(told, (size_t)told_length))
        logging->lines_left_out = 0;
    logging->lines_left_out += !bytes_write(line, (size_t)length);
}

static void emit_locked(struct bmi__logging *logging, enum bmi_log_level level, const char *text)
{
    char named[LINE_MOST + BMI_INSTANCE_NAME_MAX + 2];
    if (logging->callback.write == NULL) {
        line_write(logging, level, text);
        return;
    }
    if (logging->inherited) {
        snprintf(named, sizeof named, "%s: %s", logging->name, text);
        text = named;
    }
    logging->callback.write(logging->callback.argument, level, text);
}

/* Whether one more warning may be written in this second. Reports how many were left out before it.
 */
static bool warning_may_locked(struct bmi__logging *logging)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_sec != logging->second) {
        char text[64];
        snprintf(text, sizeof text, "%u warnings were left out", logging->left_out);
        if (logging->left_out > 0)
            emit_locked(logging, BMI_LOG_WARN, text);
        logging->second = now.tv_sec;
        logging->count = logging->left_out = 0;
    }
    bool may = logging->count < BMI__LOG_WARNINGS;
    logging->count += may;
    logging->left_out += !may;
    return may;
}

/* Text of peers may be part of any message: control bytes would forge lines, or reach a
 * terminal. */
static void emit(struct bmi__logging *logging, enum bmi_log_level level, const char *message)
{
    char text[LINE_MOST];
    bmi__escape(text, sizeof text, message, strlen(message));
    pthread_mutex_lock(&logging->lock);
    if (level != BMI_LOG_WARN || warning_may_locked(logging))
        emit_locked(logging, level, text);
    pthread_mutex_unlock(&logging->lock);
}

void bmi__log(struct bmi_instance *instance, enum bmi_log_level level, const char *format, ...)
{
    struct bmi__logging *logging = instance->logging;
    if (!bmi__log_wanted(instance, level))
        return;
    char text[LINE_MOST];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emit(logging, level, text);
}

void bmi_method_log(struct bmi_instance *instance, enum bmi_log_level level,
                    const struct bmi_link *link, const char *format, ...)
{
    struct bmi__logging *logging = instance->logging;
    if (!bmi__log_wanted(instance, level))
        return;
    char text[LINE_MOST];
    size_t used = 0;
    if (link != NULL)
        used = (size_t)snprintf(text, sizeof text, "%s: ", link->method->name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    emit(logging, level, text);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__logging_open(struct bmi_instance *instance)
{
    instance->logging = calloc(1, sizeof *instance->logging);
    if (instance->logging == NULL)
        return -ENOMEM;
    struct bmi__logging *logging = instance->logging, *from = bmi__default.logging;
    pthread_mutex_init(&logging->lock, NULL);
    logging->name = instance->name;
    pthread_mutex_lock(&from->lock);
    logging->callback = from->callback;
    logging->inherited = true;
    atomic_init(&logging->callback_level, atomic_load(&from->callback_level));
    pthread_mutex_unlock(&from->lock);
    return 0;
}

void bmi__logging_close(struct bmi_instance *instance)
{
    free(instance->logging);
    instance->logging = NULL;
}
