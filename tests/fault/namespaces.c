/* SPDX-License-Identifier: BSD-3-Clause
 *
 * namespaces.c - see namespaces.h.
 */
#include "namespaces.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../stress/support.h"

void namespaces_needed(void)
{
    if (geteuid() != 0)
        test_skip("only root may make network namespaces");
}

bool namespace_enter(void)
{
    return unshare(CLONE_NEWNET) == 0;
}

void namespace_enter_child(int channel)
{
    tell_number(channel, namespace_enter());
    hear_number(channel);
}

void namespace_check_child(int channel)
{
    if (!hear_number(channel))
        test_skip("no network namespaces here");
}

bool namespace_run(pid_t pid, const char *format, ...)
{
    char command[512];
    int used = snprintf(command, sizeof command, "nsenter -t %d -n sh -c '", (int)pid);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(command + used, sizeof command - (size_t)used, format, arguments);
    va_end(arguments);
    CHECK((size_t)used + 2 < sizeof command, "a command is too long");
    snprintf(command + used, sizeof command - (size_t)used, "'");
    return system(command) == 0;
}
