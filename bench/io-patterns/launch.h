/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launch.h - starting and ending processes. The coordinator is one thread; no locks.
 */
#ifndef BENCH_LAUNCH_H
#define BENCH_LAUNCH_H

#include "bench.h"

#include <sys/types.h>

/* Opens the socket to which processes report, and ensures that none is left at exit. */
void launch_open(void);
/* The next process is the first of a group: with --bind it gets the first CPU. */
void launch_group_begin(void);
int launch_listener(void);
int launch_accept(void); /* a process's line; only this user's processes get one */

/* Starts a process of this program; `urls` are the servers for a client. */
pid_t launch_self(const struct options *options, enum contender contender, const char *role,
                  int number, const char *urls);
/* Starts mpiexec with all ranks. */
pid_t launch_mpi(const struct options *options, enum contender contender, const struct grid *grid);
/* Starts another program; its output goes to `out`, -1: nowhere. */
pid_t launch_other(const struct options *options, const char *const *arguments, int out);
/* The path of a program that was installed with this one. */
void launch_beside(char *path, size_t size, const char *name);
/* Whether bmi-bench-mpi and mpiexec are there. */
bool launch_mpi_found(void);
/* Whether PATH has the program. */
bool launch_found(const char *program);

/* Waits for a process's end, after a signal if not 0. Ends the run if the process failed
 * otherwise. */
void launch_end(pid_t process, int signal_number, int timeout_s);
/* Whether a process has ended; it remains to be reaped. Ends the run if it failed. */
bool launch_ended(pid_t process, const char *name);
void launch_forget(pid_t process); /* has been waited for */

#endif
