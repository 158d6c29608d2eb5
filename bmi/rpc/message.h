/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message.h - messages of RPC as the rest of the folder sees them.
 *
 * A message has a stream and a body. The stream holds, for each piece in order, 8 bytes that
 * describe it (size, kind, width), and the bytes of an express piece, padded to 8. The body holds
 * the bytes of cheaper pieces, one after the other. The stream is complete when the receiver looks
 * at it; the body is put straight to the places that unpacking names.
 */
#ifndef BMI_RPC_MESSAGE_H
#define BMI_RPC_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "bmi/rpc.h"

enum {
    RPC_EXPRESS_MAX = 1 << 20, /* bytes of a stream */
    RPC_PIECES_MAX = 65536,    /* cheaper pieces of a message */
    MESSAGE_HEAD = 0,          /* places in the list */
    MESSAGE_STREAM = 1,
    MESSAGE_BODY = 2,
    MESSAGE_STREAM_INLINE = 240,
    MESSAGE_LIST_INLINE = 6,
};

struct bmi_message {
    uint8_t *stream; /* == inline_stream, from malloc, or lent, with no room */
    size_t stream_size, stream_room;
    void **buffers; /* list: head and stream, then the cheaper pieces, or their places */
    bmi_size_t *sizes;
    uint32_t count, room;
    bmi_size_t body;     /* bytes of the cheaper pieces, or of those that have a place */
    struct copy *copies; /* of SAFER pieces */
    struct later *later; /* express pieces that are read when the message is posted */
    int error;           /* the first one */
    bool unpacking;
    bool placing;                /* unpacking: cheaper pieces can be taken */
    const uint8_t *cursor, *end; /* unpacking: of the stream */
    const uint8_t *whole;        /* unpacking: the body, where it came with the stream; else NULL */
    bmi_size_t body_size;        /* unpacking: of the whole body */
    uint64_t inline_stream[MESSAGE_STREAM_INLINE / 8];
    void *inline_buffers[MESSAGE_LIST_INLINE];
    bmi_size_t inline_sizes[MESSAGE_LIST_INLINE];
};

/* Makes it an empty one to pack, in place. */
void bmi__message_init(struct bmi_message *message);
/* Frees what it holds. */
void bmi__message_clear(struct bmi_message *message);
/* Makes it one to unpack. `body`: the body, if it is there, else NULL. */
void bmi__message_open(struct bmi_message *message, const uint8_t *stream, size_t size,
                       const uint8_t *body, bmi_size_t body_size);
/* Before it is sent: reads the LATER pieces of the stream, and fills the list. Returns 0 or the
 * first error of packing. */
int bmi__message_close(struct bmi_message *message);
/* No cheaper piece can be taken from now on. Returns 0, or -BMI_EBADMSG: some have no place. */
int bmi__message_placed(struct bmi_message *message);

/* A message to send of the pieces of one that was unpacked, which lends their memory: the stream,
 * and the body where it was put. NULL: no memory. */
struct bmi_message *bmi__message_again(const struct bmi_message *from);
/* Before that is sent: numbers in the stream are as they came. */
void bmi__message_restore(struct bmi_message *from);
/* Unpacks all pieces of a message at once: returns one to send, which has a copy of the stream, and
 * the memory to which the body is received. NULL: no memory. */
struct bmi_message *bmi__message_take(struct bmi_message *from);

#endif
