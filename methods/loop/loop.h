/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop.h - declarations that the files of the loop method share.
 *
 * A network holds all of one scheme inside this process: the names that are listened on, links in
 * pairs, and the test hooks of loop_test.h. Each link of a pair queues its outgoing frames; the
 * poller delivers them into the other link, copying from the sender's memory straight to the sink.
 *
 * Locks, in order: a link's receive_lock > (the core's peer lock) > network.lock. network.lock is
 * the send lock of all links of the network. A thread holds it for list moves only, and calls no
 * service of the core but bmi_method_defer under it. network.memory_lock guards registrations; no
 * thread holds it together with network.lock. Fields of "the poller" need no lock. A thread holds
 * at most one receive_lock at a time.
 */
#ifndef LOOP_H
#define LOOP_H

#include <pthread.h>

#include "loop_test.h"

enum {
    LOOP_NETWORKS = 3,
    LOOP_ADDRESS_MAX = 256,       /* bytes of "name:number", its NUL included */
    LOOP_REGIONS_MAX = 16,        /* segments of one registration */
    LOOP_WINDOW = 64,             /* segments looked at in one step of a copy */
    LOOP_PASS_FRAMES = 64,        /* frames that one link delivers before another has its turn */
    LOOP_PASS_BYTES = 1024 * 1024 /* the same in bytes */
};

struct loop_failure {
    unsigned countdown; /* 0: off; 1: the next one fails */
    int status;
};

/* The settings of a test; all zero: off. */
struct loop_hooks {
    unsigned delay_ms; /* before each frame or transfer */
    size_t piece;      /* bytes a pass; 0: LOOP_PASS_BYTES */
    struct loop_failure failures[BMI__LOOP_FAILURES];
    bool refuse_memory;
    bool strangers;
    bool held[2];        /* by direction: from the dialler, the acceptor */
    uint64_t allowed[2]; /* body bytes that a held direction still moves */
};

struct loop_name {
    struct loop_name *next;
    char address[LOOP_ADDRESS_MAX];
};

/* The deferred call of one start. The next start, perhaps by another instance, has one of its own:
 * this one may still be in the list of the instance that has stopped. */
struct loop_work {
    struct bmi_deferred deferred;
    struct loop_network *network; /* poller; NULL: stopped, and the call frees this */
};

struct loop_network {
    struct bmi_instance *instance; /* its user, or the last one */
    struct bmi_method *table;
    struct bmi_method_limits limits; /* as they are without a test's changes */
    pthread_mutex_t lock;
    pthread_cond_t copied; /* some link's delivery.copying ended */
    /* under lock */
    bool running;
    struct loop_work *work;    /* of the present start; NULL: no instance has the network */
    struct loop_network *next; /* another one of the same scheme */
    struct loop_hooks hooks;
    struct loop_name *names;
    struct loop_link *links;
    struct loop_link *ready, **ready_tail; /* links that the poller must look at, each referenced */
    pthread_mutex_t memory_lock;
    uint64_t keys; /* given out so far; under memory_lock */
};

enum loop_phase {
    LOOP_DIALLED, /* made by connect, its peer not found yet */
    LOOP_UP,
    LOOP_DOWN
};

/* Frames in order; `tail` points at the last one's next. */
struct loop_queue {
    struct bmi_frame *first, **tail;
};

/* The frame on its way into the peer. */
struct loop_delivery {
    bool active;
    bool header_gone;
    uint8_t header[BMI_FRAME_HEADER];
    uint64_t length, left; /* of its body */
    /* under network->lock */
    struct bmi_frame *frame; /* NULL: taken back; its rest is in `kept` */
    bool copying;            /* the poller is reading the body: it must stay where it is */
    struct bmi_segments *body;
    struct bmi_segments kept_body;
    void *kept;
    bmi_size_t kept_size;
};

struct loop_registration {
    struct loop_registration *next, **link_to_me;
    uint32_t count;
    struct bmi_region regions[LOOP_REGIONS_MAX];
};

struct loop_link {
    struct bmi_link base;
    struct loop_network *network;
    bool dialled;
    char address[LOOP_ADDRESS_MAX]; /* the address that a dialled link connects to */

    /* the poller's */
    struct loop_link *peer;
    struct bmi_transfer *moving; /* under way */
    struct bmi_timer delay;
    bool delaying, delay_served;
    bool counted; /* in BMI_COUNT_LINKS */
    struct loop_delivery delivery;

    pthread_mutex_t receive_lock;
    /* under receive_lock */
    struct bmi_sink sink;
    bool receiving; /* the sink is in use */
    bool retracted; /* the rest of its body is discarded without a report */

    /* under network->lock */
    enum loop_phase phase;
    bool closing, linger;
    int doom;                 /* the status that a test ends this link with, or 0 */
    struct loop_queue queued; /* sent, not flushed */
    struct loop_queue flight; /* flushed, not a byte delivered */
    struct bmi_transfer *transfers, **transfers_tail;
    bool is_ready;
    struct loop_link *ready_next;
    struct loop_link *next, **link_to_me;

    struct loop_registration *registrations; /* under network->memory_lock */
};

/* loop.c: the networks, one a scheme, and their names. */
extern struct loop_network loop_networks[LOOP_NETWORKS];
bool loop_name_known(struct loop_network *network, const char *address);

/* link.c: the operations on links. Those ending in _locked need network->lock held. */
struct loop_link *loop_link_new(struct loop_network *network, bool dialled);
void loop_link_ready_locked(struct loop_link *link);
void loop_link_ready(struct loop_link *link);
void loop_link_flush_locked(struct loop_link *link);
int loop_failure_strike_locked(struct loop_network *network, enum bmi__loop_failure place);
struct bmi_frame *loop_queue_pop(struct loop_queue *queue);
/* Discards the rest of the present body without a report. Receive lock held. */
void loop_sink_drop_locked(struct loop_link *link);
/* Ends a link that the core refused to accept. Poller. */
void loop_link_forget(struct loop_link *link);
/* Ends a link and its peer, if it has one; each gets its link_down. Poller. */
void loop_pair_end(struct loop_link *link, int status, int peer_status);

int loop_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void loop_send(struct bmi_link *link, struct bmi_frame *frames);
void loop_flush(struct bmi_link *link);
bool loop_withdraw(struct bmi_link *link, struct bmi_frame *frame, struct bmi_frame *replacement);
bool loop_retract(struct bmi_link *link, void *owner);
void loop_close(struct bmi_link *link, bool linger);

/* deliver.c: gives a link its turn. Poller. */
void loop_delivery_end_locked(struct loop_delivery *delivery);
void loop_link_pump(struct loop_link *link);
void loop_delay_expired(struct bmi_timer *timer);

/* memory.c: registrations, puts and gets. */
int loop_expose(struct bmi_link *link, const struct bmi_segments *memory,
                struct bmi_region *regions, uint32_t *count, void **handle);
bool loop_release(struct bmi_link *link, void *handle, bool wait);
void loop_transfer(struct bmi_link *link, struct bmi_transfer *transfer);
void loop_registrations_free(struct loop_link *link);
/* Moves up to `most` bytes of link->moving. Returns the number moved, or why the transfer fails. */
bmi_size_t loop_transfer_move(struct loop_link *link, size_t most);
/* The status that a test wants this transfer to fail with, or 0. */
int loop_transfer_doom(const struct bmi_transfer *transfer);

static inline struct loop_link *loop_link_of(struct bmi_link *link)
{
    return (struct loop_link *)link; /* its first member */
}

#endif
