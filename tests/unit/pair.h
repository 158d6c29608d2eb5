/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pair.h - two ends of one link of the loop method, both in this process, that treat each other as
 * different processes; and messages that carry their identity.
 */
#ifndef TESTS_UNIT_PAIR_H
#define TESTS_UNIT_PAIR_H

#include "methods/loop/loop_test.h"
#include "tests/unit/unit.h"

enum { DIALLER, ACCEPTOR, ENDS };
enum { LABEL = 24 }; /* least size of a message that differs from all others */

struct pair {
    const struct bmi_method *method;
    bmi_context_id context;
    BMI_addr_t end[ENDS]; /* end[DIALLER]: the dialler's destination, the acceptor's address */
};

/* Starts the library with a method, connects. Settings as for BMI_SETTING. */
void pair_open(struct pair *pair, const struct bmi_method *method, const char *settings);
/* The same, but does not connect: end[ACCEPTOR] is 0 until pair_connect. */
void pair_listen(struct pair *pair, const struct bmi_method *method, const char *settings);
/* Sends an unexpected message from the dialler to learn the acceptor's handle. Returns its error,
 * or 0. */
int pair_connect(struct pair *pair);
void pair_close(struct pair *pair);

/* One pass of progress; `one` handles each completion. */
void pair_drive(struct pair *pair,
                void (*one)(void *user_ptr, bmi_error_code_t error, bmi_size_t actual));

/* Fills a message with its end, its tag, and its number. */
void label_write(uint8_t *buffer, bmi_size_t size, int end, int tag, uint64_t number);
/* Reads and checks every byte. false: not a whole message. */
bool label_read(const uint8_t *buffer, bmi_size_t size, int *end, int *tag, uint64_t *number);

#endif
