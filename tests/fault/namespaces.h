/* SPDX-License-Identifier: BSD-3-Clause
 *
 * namespaces.h - network namespaces of a test's processes: each process enters its own, and the
 * parent joins them by virtual links. All of it ends with the processes.
 */
#ifndef BMI_TESTS_NAMESPACES_H
#define BMI_TESTS_NAMESPACES_H

#include <stdbool.h>
#include <sys/types.h>

/* Skips the test unless this process may make namespaces. */
void namespaces_needed(void);
/* Moves this process to a new namespace. Returns whether that worked. */
bool namespace_enter(void);
/* The same in a child, which then waits until its parent has made the links. */
void namespace_enter_child(int channel);
/* For the parent: skips the test if the child has no namespace. */
void namespace_check_child(int channel);
/* Runs a shell command in the namespace of a process. Returns whether it succeeded. */
bool namespace_run(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
