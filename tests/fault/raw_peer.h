/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_peer.h - a peer made by hand: a socket, and frames encoded here, not by the library, so that
 * a test can send invalid frames, and notices a change of the wire format.
 *
 * A frame is a header of 40 or 16 bytes, little-endian, and a body: docs/wire-protocol.md.
 */
#ifndef BMI_TESTS_RAW_PEER_H
#define BMI_TESTS_RAW_PEER_H

#include "../stress/support.h"

enum {
    RAW_HEADER = 40,
    RAW_SHORT = 16,
    RAW_MAGIC = 0xb31f,
    RAW_VERSION = 3,
    RAW_BODY_MAX = 1 << 20,
    RAW_TYPE_MASK = 31 /* the upper bits of a type name the space of its tag */
};

enum { RAW_REPLY = 1, RAW_FIRST = 1, RAW_LAST = 2 }; /* flags of a HELLO or JOIN; of DATA */

enum raw_type {
    RAW_HELLO = 1,
    RAW_JOIN,
    RAW_REJECT,
    RAW_EAGER,
    RAW_UNEXPECTED,
    RAW_RTS,
    RAW_CTS,
    RAW_DATA,
    RAW_PUT_DONE,
    RAW_GET_DONE,
    RAW_RTR,
    RAW_RTR_CANCEL,
    RAW_RTR_CANCELLED,
    RAW_ABORT,
    RAW_VOID,
    RAW_CREDIT,
    RAW_WANT,
    RAW_PING,
    RAW_PONG,
    RAW_BYE,
    RAW_CANCEL,
    RAW_TYPES
};

struct raw_frame {
    uint8_t type, flags;
    uint16_t magic; /* 0: the right one */
    int32_t tag;
    uint64_t length;
    uint32_t seen, credit;
    uint64_t source, target;
    bool brief; /* to be sent, or came, with a short header */
};

struct raw_hello {
    uint8_t incarnation[16], nonce[16];
    uint16_t version;
    uint32_t eager_max, unexpected_max, eager_credit, unexpected_credit;
    char listen[BMI_MAX_ADDR_LEN];
};

/* A HELLO as an honest peer sends it: random identity, generous credit. */
struct raw_hello raw_hello_make(struct chance *chance);

/* A socket bound to a free port of a numeric host, or (host "@") a Unix socket with a free name;
 * returns its address; it refuses connections until it listens. */
int raw_bind(const char *host, char listening[BMI_MAX_ADDR_LEN]);
/* Connects to a "tcp://host:port", or to an address of another method with sockets. To a
 * "tls://" the bytes go through a TLS session, with credentials of the environment (raw_tls.h);
 * `receive_buffer`: its bytes, 0 for the default. */
int raw_connect(const char *listening, int receive_buffer);
/* The same without TLS, also to a "tls://". */
int raw_connect_plain(const char *listening, int receive_buffer);
/* The same, from another numeric host of this machine, or "@". */
int raw_connect_from(const char *host, const char *listening);
/* Accepts a connection at a socket of raw_bind that listens at this address. */
int raw_accept(int listener, const char *listening);
/* Connects, sends a HELLO, and waits for the other's, which is returned if `theirs` is not NULL. */
int raw_join(const char *listening, const struct raw_hello *ours, struct raw_hello *theirs);

/* Sends bytes as they are. Return false when the connection has ended. */
bool raw_write(int socket, const void *bytes, size_t size);
bool raw_send(int socket, const struct raw_frame *frame, const void *body);
bool raw_send_hello(int socket, const struct raw_hello *hello);
/* The answer to a received HELLO. */
bool raw_answer_hello(int socket, const struct raw_hello *hello);
/* An unexpected message of 8 bytes: a number. */
bool raw_send_unexpected(int socket, int32_t tag, uint64_t number);

/* Returns the header's bytes. */
size_t raw_encode(uint8_t bytes[RAW_HEADER], const struct raw_frame *frame);
size_t raw_hello_encode(uint8_t *bytes, const struct raw_hello *hello);
void raw_hello_decode(const uint8_t *bytes, struct raw_hello *hello);

/* The next frame, its body into `body` (RAW_BODY_MAX bytes) or, if NULL, to nowhere. Returns false
 * when the connection has ended, or no frame came within `wait_ms`. */
bool raw_receive(int socket, struct raw_frame *frame, void *body, int wait_ms);
/* Reads and forgets until the connection ends. Returns whether it did within `wait_ms`. */
bool raw_ended(int socket, int wait_ms);

/* Closes with RST. */
void raw_reset(int socket);

#endif
