/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_read.h - reads the reports of running processes (BMI_REPORT=on), several at the same time,
 * each bounded in size and all of them in time.
 */
#ifndef REPORT_READ_H
#define REPORT_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "bmi/instance.h"

enum report_status {
    REPORT_WAITING, /* used by reports_read only */
    REPORT_WHOLE,   /* the process has closed the connection after its text */
    REPORT_ABSENT,  /* no socket of that instance; `error` has the errno */
    REPORT_FOREIGN, /* another process answers: `from` */
    REPORT_DENIED,  /* the process is neither ours nor root's, and we are not root */
    REPORT_CLOSED,  /* the process sent nothing: it does not report to us */
    REPORT_SILENT,  /* not all of it came in time */
    REPORT_BROKEN   /* too large, or a fault of the connection or of this host; `error` */
};

/* In bytes, with the final null: the name of an instance, and that of its socket. */
enum { REPORT_INSTANCE_SIZE = BMI_INSTANCE_NAME_MAX, REPORT_SOCKET_SIZE = 80 };

struct report_source {
    long process;                        /* in; all others but `instance` are set by reports_read */
    char instance[REPORT_INSTANCE_SIZE]; /* in: its name; "": the default one */
    enum report_status status;
    int error;
    struct ucred from;
    int fd;
    char *text; /* the received bytes, with a NUL behind them; NULL: none */
    size_t size, room;
};

/* Reads the report of each source. Returns when all have a status, after at most `patience_ms`.
 * The reports take at most `most` bytes each, and 16 times that together. A
 * report that is broken is kept only if it is the only one. */
void reports_read(struct report_source *sources, int count, int patience_ms, size_t most);
void report_free(struct report_source *source);

/* Writes the name of the abstract socket of a process and instance. Returns its length. */
size_t report_socket_name(const struct report_source *source, char name[REPORT_SOCKET_SIZE]);

enum { REPORT_NAME_SIZE = 64 };
/* Reads the name of a process's program. Returns false if there is no such process. */
bool report_process_name(long process, char name[REPORT_NAME_SIZE]);
/* Returns the effective user of a process; -1: there is no such process. */
long report_process_user(long process);

#endif
