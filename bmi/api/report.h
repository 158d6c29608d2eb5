/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.h - the present state of the library, in lines for people, and access to it.
 */
#ifndef BMI_REPORT_H
#define BMI_REPORT_H

#include <stddef.h>

#include "bmi.h"

struct bmi_instance;

/* -EINVAL: no method has that name. */
int bmi__method_statistics(struct bmi_instance *instance, struct bmi_method_statistics *out);
/* -EINVAL: no such context. */
int bmi__context_statistics(struct bmi_context_statistics *out);

/* Prints totals and methods to standard error. */
void bmi__report_print(struct bmi_instance *instance);
/* All of it, to be freed. NULL: no memory. Any thread, no lock. */
char *bmi__report_make(struct bmi_instance *instance, size_t *size);

/* reporter.c: opens or closes the socket, as the setting requires. Any thread: the poller does the
 * work. */
void bmi__reporter_follow(struct bmi_instance *instance);
int bmi__reporter_open(struct bmi_instance *instance);
/* Closes the socket. No thread polls any more. */
void bmi__reporter_close(struct bmi_instance *instance);

#endif
