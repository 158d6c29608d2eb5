/* SPDX-License-Identifier: BSD-3-Clause
 *
 * limit.h - the limit of file sizes (RLIMIT_FSIZE). A write beyond it fails with EFBIG, and the
 * system sends the thread SIGXFSZ, which ends the process by default. Tasks that may block have all
 * signals blocked; code that writes on a thread of the program does so between these two calls,
 * which consume that signal and restore the thread's mask. Without a limit they make one system
 * call.
 */
#ifndef TROVE_LIMIT_H
#define TROVE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

struct size_guard {
    sigset_t before; /* the thread's mask */
    bool active;
};

struct size_guard bmi__size_guard(void);
void bmi__size_unguard(const struct size_guard *guard);

#endif
