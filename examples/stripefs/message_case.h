/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message_case.h - for tests: messages without a network. The pieces of stripefs are all express,
 * so that a packed message's stream is all of it.
 */
#ifndef STRIPEFS_MESSAGE_CASE_H
#define STRIPEFS_MESSAGE_CASE_H

#include <stdlib.h>
#include <string.h>

#include "bmi/rpc/message.h"

/* A copy of bytes, of exactly their size, so that a sanitizer notices a read beyond it; as a
 * message to unpack. */
struct opened {
    struct bmi_message message;
    uint8_t *bytes;
};

static inline struct bmi_message *message_open(struct opened *opened, const void *bytes,
                                               size_t size)
{
    opened->bytes = malloc(size > 0 ? size : 1);
    memcpy(opened->bytes, bytes, size);
    bmi__message_init(&opened->message);
    bmi__message_open(&opened->message, opened->bytes, size, NULL, 0);
    return &opened->message;
}

static inline void message_close(struct opened *opened)
{
    bmi__message_clear(&opened->message);
    free(opened->bytes);
}

#endif
