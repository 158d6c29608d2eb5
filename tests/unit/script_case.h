/* SPDX-License-Identifier: BSD-3-Clause
 *
 * script_case.h - shared by the protocol tests on scripts: a running library, one context,
 * operations posted to it, and frames of the other side.
 */
#ifndef TESTS_UNIT_SCRIPT_CASE_H
#define TESTS_UNIT_SCRIPT_CASE_H

#include <errno.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "tests/unit/script.h"
#include "tests/unit/unit.h"

enum { TAG = 5, LARGE = 40000, SMALL = 100 };

/* Frames that a peer may cause and not read: in all, and in addition for each operation. */
enum { ANSWERS_MOST = 2048, ANSWERS_AN_OPERATION = 4 };

struct posted {
    bmi_op_id_t id;
    bmi_size_t size, actual;
    bmi_error_code_t error;
    bool done;
    uint8_t buffer[LARGE];
};

extern bmi_context_id case_context;

/* Bytes of the budget that are given out. */
int64_t credit_used(void);

/* Runs a suite, each test with its own start and end of the library, with known settings, and
 * without leftovers at the end. Returns the program's exit status. */
int script_suite_run(const char *name, CU_TestInfo *tests);

/* Connects and sends HELLO; ends the test if that fails. */
struct script *open_script(enum script_kind kind, const struct script_offer *offer);

/* The same over frames of 32 KiB, in which an eager message may come; the network's limit is
 * restored at the close. */
struct script *open_long_script(void);
void close_long_script(struct script *script);

void post_receive(struct script *script, struct posted *posted, bmi_size_t size, int tag);
void post_send(struct script *script, struct posted *posted, bmi_size_t size, int tag);
void post_unexpected(struct script *script, struct posted *posted, bmi_size_t size, int tag);
void cancel(struct posted *posted);

/* Whether it has completed, without waiting. */
bool done(struct posted *posted);
/* Waits for it. */
bool done_within(struct posted *posted, int ms);
/* Whether it has completed without an error, with `size` bytes of the message `number`. */
bool received(struct posted *posted, int number, bmi_size_t size);
bool failed(struct posted *posted, int32_t error);

/* Bytes of a message. */
const uint8_t *message(int number, size_t size);

/* Whether all of the message goes straight to this announced receive, without other
 * frames between. */
bool goes_to(struct script *script, struct posted *posted, uint64_t receive);
/* Reads the request of the message: the sender's number for it, or 0: no request was sent. */
uint64_t asks(struct script *script, struct posted *posted);
/* Posts two large receives and expects their announcements. */
void announce_two(struct script *script, struct posted *first, struct posted *second);
/* Two receives are announced, perhaps again; the next two messages, posted here, go to them. */
void announced_and_used(struct script *script, struct posted *one, struct posted *two,
                        uint64_t first, uint64_t second);

/* Sends whole frames as the other side. */
int send_eager(struct script *script, int number, size_t size, int tag);
int send_rts(struct script *script, uint64_t sender, uint64_t size, int tag);
/* All of a message as one DATA frame to a receive; first: to an announced one. */
int send_data(struct script *script, uint64_t receive, int number, size_t size, bool first,
              int tag);
int send_abort(struct script *script, uint64_t sender, uint64_t receive, bool moved, int tag);
int send_rtr(struct script *script, uint64_t receive, uint64_t capacity, uint32_t ahead, int tag);
/* Announces a large receive with `length` bytes of its memory. */
int send_rtr_memory(struct script *script, uint64_t receive, void *memory, uint64_t length);
/* The sender has forgotten an announcement. */
int send_cancelled(struct script *script, uint64_t receive);
int send_cts(struct script *script, uint64_t sender, uint64_t receive, uint8_t flags);
int send_credit(struct script *script, uint32_t eager, uint32_t unexpected);
int send_want(struct script *script, uint8_t flags, uint64_t bytes, int tag);
/* Requests that the large message 4 is fetched from its memory, as the sender's number 66. */
int request_for_get(struct script *script);
/* The header of the first frame of an announced message of so many bytes. */
struct wire_header stream_start(uint64_t receive, uint64_t size);

#define ALIVE(script) CU_ASSERT_FALSE((script)->down || (script)->closing)

#endif
