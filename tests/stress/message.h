/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message.h - messages whose every byte depends on stream, number, and position, scattered over
 * lists of pieces.
 *
 * A numbered message (8 bytes at least) begins with its number, encoded with its stream's key, so
 * that a receiver that does not know the next message can identify the one that it got.
 */
#ifndef BMI_TESTS_MESSAGE_H
#define BMI_TESTS_MESSAGE_H

#include "support.h"

enum { PIECES_MAX = 24, NUMBER_BYTES = 8 };

/* Piece i follows piece i - 1 in the message, but precedes it in memory. */
struct scatter {
    int count;
    void *buffers[PIECES_MAX];
    bmi_size_t sizes[PIECES_MAX];
};

/* Cuts the first `size` bytes of a buffer into `count` pieces at random places, some empty. */
void scatter_make(struct scatter *scatter, void *buffer, bmi_size_t size, int count,
                  struct chance *chance);

struct message {
    uint64_t stream, number;
    bool numbered;
    bmi_size_t size;
};

void message_fill(const struct scatter *scatter, const struct message *message);
/* The offset of the first wrong byte among the first message->size, or -1. */
int64_t message_wrong(const struct scatter *scatter, const struct message *message);
/* The number of a numbered message. */
uint64_t message_number(const struct scatter *scatter, uint64_t stream);

#endif
