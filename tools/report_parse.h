/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_parse.h - the numbers of a process's report (bmi_report).
 *
 * The text comes from another process, which may send anything: all is bounded, and words that are
 * not known are passed over, as those of a later version are.
 */
#ifndef REPORT_PARSE_H
#define REPORT_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bmi.h"

enum {
    REPORT_VALUES = 64,
    REPORT_METHODS = 16,
    /* the longest texts, in bytes; a line with a longer one is passed over */
    REPORT_VERSION = 32,
    REPORT_METHOD_NAME = 32,
    REPORT_TEXT = 4 * BMI_MAX_ADDR_LEN /* an address, each byte of it escaped */
};

/* A line of a name and a number: totals and gauges. */
struct report_value {
    const char *name;
    uint64_t value;
};

enum report_method_value {
    METHOD_FRAMES_SENT,
    METHOD_FRAMES_RECEIVED,
    METHOD_BYTES_SENT,
    METHOD_BYTES_RECEIVED,
    METHOD_WRITES,
    METHOD_READS,
    METHOD_STAGED,
    METHOD_LINKS,
    METHOD_LINKS_OPENED,
    METHOD_LINKS_ACCEPTED,
    METHOD_LINKS_FAILED,
    METHOD_PUTS,
    METHOD_PUT_BYTES,
    METHOD_GETS,
    METHOD_GET_BYTES,
    METHOD_REGISTRATIONS,
    METHOD_REGISTRATION_HITS,
    METHOD_HANDSHAKES,
    METHOD_HANDSHAKES_RESUMED,
    METHOD_BAD_FRAMES,
    METHOD_VALUES
};

struct report_method {
    const char *name, *listen; /* NULL: does not listen */
    uint64_t values[METHOD_VALUES];
    uint64_t certificates_end_s, revocations_end_s; /* as of time(2); 0: there are none */
};

enum report_peer_state {
    PEER_UP,
    PEER_CONNECTING,
    PEER_HANDSHAKE,
    PEER_NOT_CONNECTED,
    PEER_CLOSING,
    PEER_GONE,
    PEER_OTHER, /* of a later version */
    PEER_STATES
};

enum report_peer_value {
    PEER_SENT,
    PEER_RECEIVED,
    PEER_BYTES_SENT,
    PEER_BYTES_RECEIVED,
    PEER_ERRORS,
    PEER_OUTSTANDING_SENDS,
    PEER_OUTSTANDING_RECEIVES,
    PEER_UNMATCHED_BYTES,
    PEER_UNEXPECTED_BYTES,
    PEER_VALUES
};

struct report_peer {
    const char *name, *identity; /* NULL: it has proved none */
    enum report_peer_state state;
    bool waits, silent; /* sends wait; it is silent while operations are outstanding */
    uint64_t values[PEER_VALUES];
};

/* All texts are within the parsed text. */
struct report {
    const char *version;
    uint64_t memory_used, memory_limit;
    struct report_value values[REPORT_VALUES];
    struct report_method methods[REPORT_METHODS];
    int value_count, method_count;
    uint64_t contexts, queued, waiters; /* queued: completions that no test call has fetched yet */
    struct report_peer *peers;
    size_t peer_count;
};

/* Parses a report, whose text it changes. Returns false if it is not a whole one, or there is no
 * memory; then nothing is left to free. */
bool report_parse(struct report *report, char *text, size_t size);
void report_release(struct report *report);

/* The words of the report for a state. */
const char *report_peer_state_name(enum report_peer_state state);

#endif
