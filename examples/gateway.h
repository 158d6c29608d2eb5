/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gateway.h - the messages between gateway_client, gateway, and gateway_server.
 *
 * A request is an unexpected message: the number of a block, a uint64_t. The answer goes to its
 * sender, under its tag.
 */
#ifndef GATEWAY_H
#define GATEWAY_H

#include <bmi.h>
#include <stdint.h>

enum { GATEWAY_BLOCK = 256 << 10, GATEWAY_BLOCKS = 1000 };

struct gateway_answer {
    bmi_error_code_t error; /* not 0: the message ends here */
    unsigned char bytes[GATEWAY_BLOCK];
};

/* What a block has at a place, so that a client can check it. */
static inline unsigned char gateway_byte(uint64_t block, uint64_t place)
{
    return (unsigned char)(block * 31 + place % 251);
}

#endif
