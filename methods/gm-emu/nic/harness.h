/* SPDX-License-Identifier: BSD-3-Clause
 *
 * harness.h - ports for the NIC's tests: each host is a port with a pool of buffers and a record of
 * its events. One thread polls all hosts of a process, and sleeps on their descriptors when there
 * is no work, as programs do: a lost wake-up fails the test.
 */
#ifndef BMI_GM_NIC_HARNESS_H
#define BMI_GM_NIC_HARNESS_H

#include <CUnit/Basic.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nic.h"

enum { HOST_MESSAGE = 1 << 16, HOST_LIMIT_S = 40 };

struct host {
    struct nic_port *port;
    struct nic_peer *peer;    /* the last that connected, or was connected to */
    struct nic_peer *refused; /* the last that went down */
    unsigned ups, accepted, downs, crowded;
    int down_status;
    unsigned received, fast;
    unsigned callbacks, failures; /* all; with a status < 0 */
    int last_status;
    /* lines of the log; errors are our own faults, so a test of bad peers expects none */
    atomic_uint errors, warnings;
    enum nic_priority priority;
    unsigned size;
    uint32_t length;
    uint8_t message[HOST_MESSAGE]; /* the last one */
    bool keep_buffers;             /* does not provide a buffer again */
    bool stopped;                  /* is not driven */
    void (*on_message)(struct host *host, struct nic_event *event);
    void *context;
};

/* Opens a port and adds it to the polled hosts. */
void host_open(struct host *host, const struct nic_options *options);
void host_close(struct host *host);
/* In a child, first: the parent's hosts are not ours, and it ends with the parent. */
void host_forget(void);
/* Provides `count` buffers of a class and priority. */
void host_provide(struct host *host, unsigned count, unsigned size, enum nic_priority priority);
/* Makes a listening and a connected host. */
void hosts_pair(struct host *server, struct host *client, const struct nic_options *options);
/* Listens on "node" and a free number. */
uint16_t host_listen(struct host *host, const char *node);
/* Counts into the host that is its context. */
void host_callback(struct nic_port *port, void *context, int status);
/* One message from one segment. Returns as nic_send_with_callback. */
int host_send(struct host *host, const void *data, size_t length, unsigned size,
              enum nic_priority priority, unsigned flags);
/* Lets all hosts do their work, or sleep until there is some. False: too long. */
bool hosts_drive(void);
/* Lets all hosts do their work, once, without sleeping. True: there was some. */
bool hosts_drive_once(void);
/* Polls until the condition holds; false when that takes too long. */
#define UNTIL(condition)                                \
    ({                                                  \
        bool good_;                                     \
        while (!(good_ = (condition)) && hosts_drive()) \
            ;                                           \
        good_;                                          \
    })

/* How many descriptors this process has open. */
unsigned descriptors_open(void);

/* Bytes that depend on their position. */
void pattern_fill(void *memory, size_t length, unsigned seed);
bool pattern_is(const void *memory, size_t length, unsigned seed);

/* Runs the cases; returns main's status. */
struct test_case {
    const char *name;
    void (*run)(void);
};
int cases_run(const char *suite, const struct test_case *cases, size_t count);
#define CASES_RUN(suite, cases) cases_run(suite, cases, sizeof(cases) / sizeof(*(cases)))

#endif
