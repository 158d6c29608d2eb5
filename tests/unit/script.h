/* SPDX-License-Identifier: BSD-3-Clause
 *
 * script.h - a peer that the test itself acts as, frame by frame.
 *
 * A script is a link of a method of its own, accepted by the core. Frames that the core writes are
 * kept until the test reads them: unread frames are "on their way", and each frame of the test has
 * the true count of messages read, so every crossing of two frames can be expressed. Three methods:
 * frames only, put, get; the test ends transfers. One thread only: the test's, which also makes
 * progress.
 */
#ifndef TESTS_UNIT_SCRIPT_H
#define TESTS_UNIT_SCRIPT_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

enum script_kind { SCRIPT_FRAMES, SCRIPT_PUT, SCRIPT_GET };

/* A frame that the core has written. */
struct script_frame {
    struct script_frame *next;
    struct wire_header header;
    size_t size;
    uint8_t body[];
};

struct script {
    struct bmi_link link;
    BMI_addr_t address;                     /* the program's address of this peer */
    struct wire_hello hello;                /* the core's */
    struct script_frame *first, **end;      /* written, not read */
    struct bmi_frame *queued, **queued_end; /* sent by the core, not written */
    struct bmi_transfer *transfers;         /* started by the core, latest first */
    struct bmi_sink sink;                   /* of the body under way */
    uint64_t body_left;
    uint32_t seen;                      /* messages read */
    unsigned exposed;                   /* registrations that the core holds */
    struct bmi_frame *held, **held_end; /* written, not returned to the core */
    bool stuck;                         /* the network accepts no frame: frames stay queued */
    bool holds;                         /* written frames come back with script_return only */
    bool refuse_memory;                 /* expose fails */
    bool writes;                        /* the peer is writing: a release without wait fails */
    bool manual_seen;                   /* the test sets header.seen itself */
    bool places;    /* asks the core again for the place of each part of a body */
    bool no_memory; /* regions are made up: transfers move no bytes */
    bool closing, down, linger, retracted, receiving;
    int status; /* of the link's end */
    struct bmi_deferred ender;
};

/* What the script's HELLO offers; 0: a generous value. */
struct script_offer {
    uint32_t eager_max, unexpected_max, eager_credit, unexpected_credit;
};

/* Connects and sends HELLO. NULL: that failed. */
struct script *script_open(enum script_kind kind, const struct script_offer *offer);
/* The same without a HELLO. */
struct script *script_accept(enum script_kind kind);
int script_hello(struct script *script, const struct script_offer *offer);
/* Ends the link, if it has not ended, and drops the test's reference. */
void script_close(struct script *script);
/* The link ends now with this status (0 or a negated errno). */
void script_cut(struct script *script, int status);

/* Writes so many of the waiting frames, also if the network is stuck. */
void script_write(struct script *script, unsigned count);

/* Returns the frames written meanwhile; from now on they come back at once. */
void script_return(struct script *script);

/* Makes progress until no immediate work is left. */
void script_drive(void);

/* Reads the next frame that the core wrote; the caller frees it. NULL: there is none. */
struct script_frame *script_read(struct script *script);
/* Reads the next frame, skipping CREDIT unless that is expected, and checks its type. Returns the
 * header; for a wrong or absent frame, type 0. Its body goes to `body`, if that is not NULL. */
struct wire_header script_expect(struct script *script, uint8_t type, void *body, size_t size);
/* Whether the core has written no frame that was not read. */
bool script_silent(struct script *script);

/* Sends a frame; returns the core's result: <0 ends the link (which it then does). */
int script_send(struct script *script, struct wire_header header, const void *body, size_t size);
/* Sends the header only; script_body sends the next bytes of its body. */
int script_begin(struct script *script, struct wire_header header);
int script_body(struct script *script, const void *bytes, size_t size);

/* Ends the oldest transfer that the core started; moves its bytes first, if status is 0. false:
 * there is none. */
bool script_transfer_end(struct script *script, int status);

/* Writes or reads registered memory by regions that the core sent. */
void script_put(const struct bmi_region *regions, uint32_t count, const void *bytes, size_t size);

/* The peer behind the script. */
struct peer *script_peer(const struct script *script);

extern struct bmi_method script_methods[3];

#endif
