/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_core.h - the smallest core for the method's own test: the services of bmi/method.h, a log of
 * the method's reports, and a clock that the test moves.
 *
 * A header is: [0] type, [1] how the receiver handles it (FAKE_*), [8..15] length, [16..23] id. The
 * log holds a peer's events as words: "up down:-104 head:7 body:7 sent:7:0 done:1:-13".
 */
#ifndef LOOP_FAKE_CORE_H
#define LOOP_FAKE_CORE_H

#include <pthread.h>

#include "methods/loop/loop_test.h"

enum { FAKE_REFUSE_HEADER = 1, FAKE_REFUSE_BODY = 2, FAKE_DRAIN = 4 };
enum { FAKE_HELLO = 1, FAKE_DATA = 2 };
enum { FAKE_PEERS = 16, FAKE_EVENTS = 4096 };

struct fake_message {
    struct fake_message *next;
    uint64_t id;
    size_t length; /* of memory */
    bool arrived;
    uint8_t *memory;
    void **buffers; /* its segments */
    bmi_size_t *sizes;
};

struct fake_peer {
    pthread_mutex_t lock;
    struct bmi_link *link;
    struct bmi_link *gone; /* the link after its link_down, referenced */
    char events[FAKE_EVENTS];
    bool quiet;     /* no log: for stress */
    size_t segment; /* messages arrive in segments this long; 0: in one */
    size_t room;    /* and at most this many bytes are kept; 0: all */
    struct fake_message *messages;
    unsigned sent, failed, arrived;
};

struct fake_frame {
    struct bmi_frame frame;
    uint64_t id;
    void *buffer;
    bmi_size_t size;
    bool back;
};

extern struct fake_peer fake_peers[FAKE_PEERS]; /* accepted ones, in order */
extern unsigned fake_accepted;
extern int fake_accept_status; /* the return value of link_accepted */
extern int64_t fake_counters[BMI_COUNT_COUNTERS];
extern void (*fake_body_hook)(void); /* called once, from within the next body_arrived */
extern unsigned fake_rounds;         /* deferred calls run */

void fake_reset(void);
void fake_peer_clear(struct fake_peer *peer);
/* Runs deferred calls until there are none; `rounds` at most. Returns whether none is left. */
bool fake_drive(unsigned rounds);
/* Sleeps until there is a deferred call, or fake_wake. */
void fake_wait(void);
void fake_wake(void);
/* Moves the clock, runs the timers that are due, then the work that follows. */
void fake_advance(uint64_t ms);
struct fake_message *fake_message_find(struct fake_peer *peer, uint64_t id);

/* Starts a method and opens a link from `dialler` to fake_peers[0] of it; their logs are empty
 * then. */
extern struct fake_peer fake_dialler;
void fake_pair_open(const struct bmi_method *method);
/* Stops the method, ends the links that are left, and resets the test hooks. */
void fake_pair_close(void);
extern void *fake_state; /* of the method started */
/* Starts a connection of one more peer. Returns connect's status. */
int fake_dial(const struct bmi_method *method, struct fake_peer *peer, const char *name);

/* A frame whose body is `memory` as it stands. */
void fake_frame_make(struct fake_frame *frame, uint8_t type, uint64_t id, const void *memory,
                     size_t size);
/* Posts the frames under the peer's lock. */
void fake_send(struct fake_peer *peer, struct fake_frame *frames, unsigned count);

#endif
