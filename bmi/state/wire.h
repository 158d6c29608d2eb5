/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wire.h - the frames of the message protocol, without any I/O.
 *
 * Every frame is a header of 40 bytes, or 16 where that says it all, little-endian, and `length`
 * bytes of body. A header that wire_decode accepted has a known type, flags that the type allows,
 * and a length within the type's bound; ids, credits and sizes in it are the peer's claims and are
 * checked where they are used. docs/wire-protocol.md explains how the frames work together.
 */
#ifndef BMI_WIRE_H
#define BMI_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bmi/method.h"

enum { WIRE_MAGIC = 0xB31F, WIRE_VERSION = 3 };

enum wire_type {
    WIRE_HELLO = 1,     /* body: struct wire_hello. The first frame both ways */
    WIRE_JOIN,          /* body: accepted connections, each a name and a proof: "is one of these
                           yours?" With REPLY: a proof, "that one, use it", or zeros, "none" */
    WIRE_REJECT,        /* target: errno. The connection is refused */
    WIRE_EAGER,         /* tag; body: the message. Expected, unasked. Starts a message */
    WIRE_UNEXPECTED,    /* tag; body: the message */
    WIRE_RTS,           /* tag; source: sender's op; target: size; body: regions to get.
                           Starts a message */
    WIRE_CTS,           /* target: sender's op; source: receiver's op; body: regions to put to */
    WIRE_DATA,          /* target: receiver's op; body: the next bytes. With FIRST: starts an
                           announced message, tag, source: its size */
    WIRE_PUT_DONE,      /* target: receiver's op. The put message is whole */
    WIRE_GET_DONE,      /* target: sender's op. The message was fetched */
    WIRE_RTR,           /* tag; source: receiver's op; target: capacity; credit: live receives of
                           the tag ahead of it; body: regions to put to. A receive announced */
    WIRE_RTR_CANCEL,    /* tag; source: receiver's op. Forget that announcement */
    WIRE_RTR_CANCELLED, /* target: receiver's op. It is forgotten, and was not used */
    WIRE_ABORT,         /* tag; source: sender's op; target: receiver's op or 0. A message that was
                           started ends here. With MOVED: its receive fails, for bytes of it
                           have come; else it counts as never sent and the receive waits on */
    WIRE_VOID,          /* tag. A message withdrawn before it went, in its place in the count */
    WIRE_CREDIT,        /* credit: eager bytes; source: unexpected bytes */
    WIRE_WANT,   /* flags: which credit the sender waits for; source: bytes of it that would get
                           it on. With ANNOUNCE: tag; announce its receives, also again.
                           With UNUSED, and nothing else: source bytes of unexpected credit that
                           were lent are not wanted any more */
    WIRE_PING,   /* source: to be sent back */
    WIRE_PONG,   /* target: as asked */
    WIRE_BYE,    /* nothing more comes: an orderly end */
    WIRE_CANCEL, /* tag: a request's, which came before: its call was cancelled; or a reply's, whose
                    messages that the flags name will not come */
    WIRE_TYPES
};

enum wire_flags {
    WIRE_REPLY = 1,        /* HELLO, JOIN: answers one */
    WIRE_FIRST = 1,        /* DATA: starts an announced message */
    WIRE_LAST = 2,         /* DATA: the message's last bytes */
    WIRE_BY_PUT = 4,       /* DATA with FIRST: the body comes by put */
    WIRE_MOVED = 1,        /* ABORT */
    WIRE_DISCARD = 1,      /* CTS: the message was too large for the receive; consider it sent */
    WIRE_EAGER_CREDIT = 1, /* WANT */
    WIRE_UNEXPECTED_CREDIT = 2, /* WANT */
    WIRE_ANNOUNCE = 4,          /* WANT: announcements of the tag were forgotten */
    WIRE_UNUSED = 8,            /* WANT: none; some comes back */
    WIRE_NO_HEAD = 1,           /* CANCEL: that message of the reply will not come */
    WIRE_NO_STREAM = 2,         /* CANCEL: the same, also of the request */
    WIRE_NO_BODY = 4            /* CANCEL: the same, also of the request */
};

/* The charge of an unmatched message beyond its bytes, both as credit and as memory. */
enum { WIRE_MESSAGE_CHARGE = 128 };
enum { WIRE_HELLO_MAX = 4096, WIRE_HELLO_TAIL = 4, WIRE_REGIONS_MAX = 64, WIRE_DATA_MAX = 1 << 26 };
enum { WIRE_JOIN_ITEM = 32, WIRE_JOIN_ITEMS = 64, WIRE_PROOF = 16 };

/* Messages of a space match receives of the same space only. The program's are in the first. */
enum wire_space { SPACE_PROGRAM, SPACE_REQUEST, SPACE_REPLY, SPACES };

/* A tag and its space. A program's tag (bmi_msg_tag_t) converts to it as it is. */
typedef int64_t wire_tag;

static inline wire_tag wire_tag_of(enum wire_space space, int32_t tag)
{
    return tag + (wire_tag)space * ((wire_tag)1 << 32);
}

static inline enum wire_space wire_tag_space(wire_tag tag)
{
    return (enum wire_space)((tag - (int32_t)tag) >> 32);
}

struct wire_header {
    uint8_t type, flags;
    wire_tag tag;
    uint64_t length; /* of the body */
    uint32_t seen;   /* messages and aborts of the other side seen so far, modulo 2^32 */
    uint32_t credit; /* eager bytes given back (RTR: see there) */
    uint64_t source, target;
};

struct wire_hello {
    uint8_t incarnation[16]; /* random, one a process and initialization */
    uint8_t nonce[16];       /* random, one a connection, its dialler's; zeros in a REPLY */
    uint16_t version;
    uint32_t eager_max; /* largest eager message that I take */
    uint32_t unexpected_max;
    uint32_t eager_credit, unexpected_credit;
    char listen[BMI_MAX_ADDR_LEN]; /* addresses that I say I listen on: for people to read */
};

/* Writes bmi_frame_header_size(bytes[0]) bytes. */
void wire_encode(uint8_t bytes[BMI_FRAME_HEADER], const struct wire_header *header);
/* Of as many bytes. Returns 0, or -EBADMSG with *reason set: not a frame of this protocol. */
int wire_decode(const uint8_t *bytes, struct wire_header *header, const char **reason);

/* The type that a header's first byte names, whether or not there is such a type. */
uint8_t wire_type_of(uint8_t first);

/* Whether a frame with a long header can begin with these bytes. */
bool wire_begins(const uint8_t *bytes, size_t have);

/* The name of a type, for the log. */
const char *wire_type_name(uint8_t type);

/* Returns the number of bytes written, at most WIRE_HELLO_MAX. The last WIRE_HELLO_TAIL of
 * them are an empty line, which is no part of the HELLO: a server of another protocol that reads
 * lines answers then, be it with an error, and so shows what it is. */
size_t wire_hello_encode(uint8_t *bytes, const struct wire_hello *hello);
int wire_hello_decode(const uint8_t *bytes, size_t size, struct wire_hello *hello,
                      const char **reason);

enum { WIRE_REGION = 24 };
void wire_regions_encode(uint8_t *bytes, const struct bmi_region *regions, uint32_t count);
/* Returns the number of regions, or -EBADMSG: not whole, or their lengths overflow. */
int wire_regions_decode(const uint8_t *bytes, size_t size, struct bmi_region *regions);

#endif
