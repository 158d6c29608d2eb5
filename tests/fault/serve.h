/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.h - the common half of fault tests: operations with a function for their end, an echo
 * server, and healthy clients of it that the fault must not affect.
 *
 * All operations of a test's process have a struct operation as user pointer, and one context.
 */
#ifndef BMI_TESTS_SERVE_H
#define BMI_TESTS_SERVE_H

#include "../stress/support.h"

struct operation {
    void (*done)(struct operation *operation, bmi_error_code_t status, bmi_size_t size);
};

/* The process's context; the function for unexpected messages other than the echo's. */
extern bmi_context_id test_context;
extern void (*test_unexpected)(const struct BMI_unexpected_info *info);

/* Opens the context. */
void operations_open(void);
/* A client, in a child of the test: gets the server's address, starts, and looks that up. */
BMI_addr_t client_open(int channel);
/* One round: distributes completions and unexpected messages; waits up to wait_ms. */
void operations_step(int wait_ms);
/* Call it with a post's result: handles an immediate completion, or a refusal. */
void operation_posted(struct operation *operation, int result, bmi_size_t size);

/* An operation whose end is recorded. */
struct noted {
    struct operation operation; /* first */
    bool posted, ended;
    bmi_error_code_t status;
    bmi_size_t size;
    uint64_t ended_ns;
    bmi_op_id_t id;
};
void note_send(struct noted *noted, BMI_addr_t peer, const void *buffer, bmi_size_t size,
               bmi_msg_tag_t tag);
void note_sendunexpected(struct noted *noted, BMI_addr_t peer, const void *buffer, bmi_size_t size,
                         bmi_msg_tag_t tag);
void note_receive(struct noted *noted, BMI_addr_t peer, void *buffer, bmi_size_t size,
                  bmi_msg_tag_t tag);
/* Steps until all of them have ended. Returns whether they have within `wait_ms`. */
bool noted_wait(const struct noted *noted, unsigned count, int wait_ms);
/* Waits, and checks that it ended without an error. */
void noted_good(const struct noted *noted, const char *what);

/* ---- echo ------------------------------------------------------------------------------------ */

enum { ECHO_HELLO_TAG = 1000001, ECHO_CALL_TAG, ECHO_REPLY_TAG, ECHO_MAX = 64 << 10 };

/* A server's side: sessions begin by an unexpected ECHO_HELLO_TAG, which operations_step takes. A
 * session ends when its peer does. */
unsigned echo_sessions(void);

/* A client's side: makes one exchange; wrong bytes or any failure, except none, end the test. */
void echo_hello(BMI_addr_t server);
void echo_call(BMI_addr_t server, uint64_t number, bmi_size_t size);

/* The report of a running healthy client; in shared memory. */
struct echo_report {
    atomic_ulong exchanges;
    atomic_ulong longest_ns; /* of one exchange; reset it by storing 0 */
    atomic_bool stop;
    char listening[BMI_MAX_ADDR_LEN];
};
/* A child that calls report->listening again and again until report->stop. Start it before the
 * library, then fill in `listening` and send it any number to begin. */
struct child echo_client_start(struct echo_report *report);
/* Starts its calls, and serves until it has made some. */
void echo_client_go(struct echo_report *report, const struct child *client, const char *listening);
/* Stops it, and serves until all sessions have ended. */
void echo_client_end(struct echo_report *report, struct child *client);

/* The pace of exchanges: measures over `window_ms`, while `operations_step` is called. */
struct echo_pace {
    double exchanges_per_s;
    uint64_t longest_ns;
};
struct echo_pace echo_pace(struct echo_report *report, unsigned window_ms);
/* Checks that others did not suffer: within a factor that leaves room for a busy machine. */
void echo_pace_unharmed(const struct echo_pace *before, const struct echo_pace *now);

/* A child that serves echoes at a free port of 127.0.0.1, or at `port`; it sends its address on its
 * channel and ends when it receives anything there. */
struct child echo_server_start(unsigned port);
void echo_server_address(const struct child *server, char listening[BMI_MAX_ADDR_LEN]);

#endif
