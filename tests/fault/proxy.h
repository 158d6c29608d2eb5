/* SPDX-License-Identifier: BSD-3-Clause
 *
 * proxy.h - a process in the middle, which carries the bytes of one connection at a time
 * between a client and a server and may flip, cut, or hold them. It keeps a copy of what it
 * carried. A thread of the client's process.
 */
#ifndef BMI_TESTS_PROXY_H
#define BMI_TESTS_PROXY_H

#include "../stress/support.h"

enum proxy_way { TO_SERVER, TO_CLIENT };

enum proxy_deed {
    PASS,
    FLIP,       /* one bit of the byte at `place` */
    CUT,        /* closes both connections when `place` bytes were carried */
    HOLD,       /* carries `place` bytes, then none in either direction */
    CUT_RECORD, /* closes both at the first end of a TLS record from `place` on */
    SPLIT       /* in both directions, carries `place` bytes at a time; 0: up to the end of a TLS
                 * record's header, then to the next one's. The next ones follow when the receiver
                 * has read these */
};

struct proxy_order {
    enum proxy_way way; /* in which the bytes are counted */
    enum proxy_deed deed;
    size_t place;
};

struct proxy_carried {
    size_t bytes[2]; /* of each direction */
    bool done;       /* the deed that was ordered */
};

/* Starts it. The client connects to `url`, whose scheme is that of `server`. */
void proxy_start(const char *server, char url[BMI_MAX_ADDR_LEN]);
/* The next connection is treated so; the client connects after it. */
void proxy_begin(struct proxy_order order);
/* Ends that connection: it must have begun. */
struct proxy_carried proxy_end(void);
/* What went in one direction of the last connection; its first bytes, at most PROXY_COPY. */
enum { PROXY_COPY = 4 << 20 };
const uint8_t *proxy_copy(enum proxy_way way);

#endif
