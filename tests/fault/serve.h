/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.h - the other half of a fault test: operations with what to do when they end, a server that
 * gives messages back, and healthy clients of it that must not notice the fault.
 *
 * All operations of a test's process have a struct operation as user pointer, and one context.
 */
#ifndef BMI_TESTS_SERVE_H
#define BMI_TESTS_SERVE_H

#include "../stress/support.h"

struct operation {
    void (*done)(struct operation *operation, bmi_error_code_t status, bmi_size_t size);
};

/* The process's context; what to do with unexpected messages other than the echo's. */
extern bmi_context_id test_context;
extern void (*test_unexpected)(const struct BMI_unexpected_info *info);

/* Opens the context. */
void operations_open(void);
/* A client, in a child of the test: hears where the server listens, starts, and looks that up. */
BMI_addr_t client_open(int channel);
/* One round: hands out what has completed and what came unexpectedly; waits up to wait_ms. */
void operations_step(int wait_ms);
/* To be called with a post's result: hands out a completion that was immediate, or a refusal. */
void operation_posted(struct operation *operation, int result, bmi_size_t size);

/* An operation whose end is noted. */
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
/* Waits, and checks that it ended well. */
void noted_good(const struct noted *noted, const char *what);

/* ---- echo ------------------------------------------------------------------------------------ */

enum { ECHO_HELLO_TAG = 1000001, ECHO_CALL_TAG, ECHO_REPLY_TAG, ECHO_MAX = 64 << 10 };

/* A server's side: sessions begin by an unexpected ECHO_HELLO_TAG, which operations_step takes. A
 * session ends when its peer does. */
unsigned echo_sessions(void);

/* A client's side: makes one exchange, any bytes wrong or failure but none ends the test. */
void echo_hello(BMI_addr_t server);
void echo_call(BMI_addr_t server, uint64_t number, bmi_size_t size);

/* What a healthy client tells while it runs; in shared memory. */
struct echo_report {
    atomic_ulong exchanges;
    atomic_ulong longest_ns; /* of one exchange; reset it by storing 0 */
    atomic_bool stop;
    char listening[BMI_MAX_ADDR_LEN];
};
/* A child that calls report->listening again and again until report->stop. Start it before the
 * library is, then fill in `listening` and tell it (any number) to begin. */
struct child echo_client_start(struct echo_report *report);
/* Has it begin, and serves until it has made some calls. */
void echo_client_go(struct echo_report *report, const struct child *client, const char *listening);
/* Stops it, and serves until all sessions have ended. */
void echo_client_end(struct echo_report *report, struct child *client);

/* How well it goes: measures over `window_ms`, while `operations_step` is called. */
struct echo_pace {
    double exchanges_per_s;
    uint64_t longest_ns;
};
struct echo_pace echo_pace(struct echo_report *report, unsigned window_ms);
/* Checks that others did not suffer: within a factor that leaves room for a busy machine. */
void echo_pace_unharmed(const struct echo_pace *before, const struct echo_pace *now);

/* A child that serves echoes at a free port of 127.0.0.1, or at `port`; it tells its address on its
 * channel and ends when it hears anything. */
struct child echo_server_start(unsigned port);
void echo_server_address(const struct child *server, char listening[BMI_MAX_ADDR_LEN]);

#endif
