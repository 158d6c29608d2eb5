/* SPDX-License-Identifier: BSD-3-Clause
 *
 * keys.c - see keys.h. The coordinator is one thread; no locks.
 */
#include "keys.h"
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST "localhost"

static char folder[256];
static int folder_fd;

/* Also in a signal's handler. */
static void keys_remove(void)
{
    static const char *const names[] = {"authority.key", "authority.pem", HOST ".key", HOST ".pem"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlinkat(folder_fd, names[i], 0);
    rmdir(folder);
}

/* The other processes end with this one (launch.c). */
static void interrupted(int signal_number)
{
    keys_remove();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void variable_set(const char *variable, const char *name)
{
    char path[512];
    format_text(path, sizeof path, "%s/%s", folder, name);
    setenv(variable, path, 1);
}

static bool is_set(const char *variable)
{
    const char *text = getenv(variable);
    return text && *text;
}

void keys_make(const struct options *options)
{
    char program[4096];
    const char *temporary = getenv("TMPDIR");
    if (is_set("BMI_TLS_CERTIFICATE") || is_set("BMI_TLS_PSK"))
        return;
    launch_beside(program, sizeof program, "bmi-keys");
    if (access(program, X_OK) < 0)
        die("%s: %s; it makes the credentials, or name yours by BMI_TLS_CERTIFICATE, BMI_TLS_KEY "
            "and BMI_TLS_AUTHORITIES",
            program, strerror(errno));
    format_text(folder, sizeof folder, "%s/bmi-bench-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(folder))
        die("%s: %s", folder, strerror(errno));
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    atexit(keys_remove);
    signal(SIGINT, interrupted);
    signal(SIGTERM, interrupted);
    const char *const authority[] = {program, "authority", folder, NULL};
    const char *const host[] = {program, "host", folder, HOST, "127.0.0.1", "::1", NULL};
    launch_end(launch_other(options, authority, -1), 0, options->timeout_s);
    launch_end(launch_other(options, host, -1), 0, options->timeout_s);
    variable_set("BMI_TLS_CERTIFICATE", HOST ".pem");
    variable_set("BMI_TLS_KEY", HOST ".key");
    variable_set("BMI_TLS_AUTHORITIES", "authority.pem");
}
