/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_message.h - shared by the programs of docs/event-loops.md: a process that sends itself one
 * unexpected message over tcp.
 */
#ifndef LOOP_MESSAGE_H
#define LOOP_MESSAGE_H

#include <bmi.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(const char *what, int result)
{
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, bmi_status_string(result));
    exit(1);
}

/* Starts BMI as a server. Returns its own address. */
static inline BMI_addr_t start(void)
{
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t self = 0;
    check("BMI_initialize",
          BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC));
    check("BMI_get_info", BMI_get_info(0, BMI_GET_LISTEN_ADDR, url));
    check("BMI_addr_lookup", BMI_addr_lookup(&self, url));
    return self;
}

#endif
