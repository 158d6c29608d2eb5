/* SPDX-License-Identifier: BSD-3-Clause
 *
 * head.h - the header with which each message of RPC begins, little endian. No I/O, no state.
 *
 *   0  kind      1  version     2  length of the name (4)     4  flags (4)
 *   8  bytes of the stream (8) 16  bytes of the body (8)     24  room for the reply's header (4)
 *  28  reply: status (4)
 *
 * A request's name follows, padded to 8, then the stream, then the body, as far as the flags do not
 * say that they come in messages of their own.
 */
#ifndef BMI_RPC_HEAD_H
#define BMI_RPC_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bmi/rpc.h"

enum {
    RPC_VERSION = 1,
    RPC_HEAD = 32,
    RPC_HEAD_MAX = RPC_HEAD + BMI_RPC_NAME_MAX,
    RPC_MESSAGE_MAX = 4096,          /* a message of this size goes as one */
    RPC_REQUEST_EXPRESS_MAX = 12288, /* a stream up to this goes with a request's header */
};

enum rpc_kind { RPC_REQUEST = 1, RPC_REPLY };

enum rpc_flags { RPC_ONE_WAY = 1, RPC_STREAM_APART = 2, RPC_BODY_APART = 4, RPC_FLAGS = 7 };

struct rpc_head {
    enum rpc_kind kind;
    uint32_t flags;
    uint64_t stream, body; /* bytes */
    uint32_t reply_room;   /* a reply's first message is at most so large */
    int32_t status;
    char name[BMI_RPC_NAME_MAX];
};

/* Sets the flags of the parts that travel apart: a stream of more than `stream_most` bytes, a body
 * if both together are more than `together_most` (not above stream_most: a body never stays behind
 * a header whose stream is elsewhere). */
void bmi__rpc_head_split(struct rpc_head *head, uint64_t stream_most, uint64_t together_most);
/* Returns the number of bytes written, a multiple of 8. */
size_t bmi__rpc_head_encode(uint8_t bytes[RPC_HEAD_MAX], const struct rpc_head *head);
/* Returns the number of bytes that the header takes; -1: it is none, or what it announces is not
 * behind it, or is too large. */
int bmi__rpc_head_decode(const uint8_t *bytes, size_t size, struct rpc_head *head);

#endif
