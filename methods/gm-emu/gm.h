/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm.h - declarations that the files of the gm method share: BMI's links on the software NIC
 * (nic/nic.h).
 *
 * A link is one peer of the port, and a stream of frames cut into messages: each message is the
 * next bytes of the stream, so small frames share one and large ones take several (gm_send.c,
 * gm_receive.c). Remote writes are directed sends (gm_put.c), memory is registered through the
 * core's cache (gm_memory.c).
 *
 * Locks, in this order:
 *   receive_lock  one link's receive side. The poller holds it over calls of frame_arrived and
 *                 body_arrived.
 *   (the core's peer lock)
 *   send_lock     one link's send side and state. Held over calls of the NIC that do not call back
 *                 (all but nic_unknown), and of the core only over bmi_method_defer, the memory
 *                 cache, and the log.
 *   lock          the method's lists (state); a leaf.
 * "Poller": only the thread that polls touches it. The NIC's callbacks run in the poller.
 */
#ifndef GM_H
#define GM_H

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <urcu/hlist.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "nic/nic.h"

enum {
    GM_DEFAULT_NUMBER = 3334,
    GM_EAGER_MAX = 16 << 10,
    GM_FRAME_MAX = 256 << 10,
    GM_SIZE = 15,          /* size class of all messages: with one class two tokens are enough */
    GM_BUFFERS = 16,       /* most receive buffers provided at a time */
    GM_IOVECS = 24,        /* segments of one message */
    GM_REGIONS = 64,       /* regions of one operation's memory */
    GM_PUT_IOVECS = 16,    /* segments of one directed send */
    GM_LINK_PUTS = 8,      /* most directed sends of one link at a time */
    GM_FREE_PUTS = 16,     /* records of directed sends kept for the next ones */
    GM_PASS_EVENTS = 32,   /* most events taken in one pass; a pass ends with the last event that
                            * is there, so that a thread which waits for it is not delayed */
    GM_STOPPED_MS = 10000, /* how long an ended link waits for a stopped writer */
    GM_STOP_MS = 100,      /* the same at the stop, for all links: they had time to linger */
    GM_PIECE_MS = 10,      /* the same for a peer that reported that it writes no more: all links
                            * wait meanwhile */
    GM_ENDING_MS = 10      /* how often an ending link checks for the writer */
};

enum gm_phase { GM_NEW, GM_UP, GM_DOWN };
/* How to treat a peer that is writing to memory that we revoke. BRIEFLY: it has reported that it
 * does not write; a peer that still claims to write is ended. */
enum gm_patience { GM_LATER, GM_WAIT, GM_BRIEFLY, GM_GIVE_UP };
/* The resource that a link lacks and waits for: a token for a message; a directed send. */
enum gm_want { GM_WANT_MESSAGE, GM_WANT_PUT, GM_WANTS };
enum gm_closing { GM_OPEN, GM_CLOSE_LINGERING, GM_CLOSE_NOW };

struct gm_state;
struct gm_put;
struct gm_exposed;

struct gm_link {
    struct bmi_link base;
    struct nic_peer *peer;
    struct cds_hlist_node listed;           /* state's lock */
    struct gm_link *starved_next[GM_WANTS]; /* state's lock */
    bool starved[GM_WANTS];                 /* state's lock */
    struct bmi_deferred deferred;           /* runs gm_link_step; holds a reference */
    atomic_bool kicked;
    atomic_bool deaf; /* the core takes no more frames from this link */

    /* send_lock */
    struct bmi_lock send_lock;
    enum gm_phase phase;
    enum gm_closing closing;
    int failure; /* the error for which we close it; 0: none */
    struct bmi_frame_queue queue;
    struct bmi_frame *pending_last; /* the last frame with bytes in the pending message */
    size_t pending_bytes;           /* bytes of the queue that are in the pending message */
    struct gm_put *puts;            /* puts that were begun */
    struct bmi_transfer *waiting, *waiting_last; /* transfers not begun yet, in order */
    struct cds_hlist_head exposed;               /* memory that the peer may write to */
    uint32_t message_max;                        /* longest message */
    unsigned puts_out;                           /* directed sends in the NIC */
    bool pending;  /* a message waits in the NIC, which could not copy it at once */
    bool closed;   /* nic_peer_close was called */
    bool given_up; /* the peer was stopped in the midst of writing for too long */
    /* Poller: the peer has gone, but may be writing to memory of ours. */
    bool ending;
    uint16_t ending_tries;
    int ending_status;
    struct nic_peer *ending_peer;
    struct gm_link *ending_next;
    struct gm_put **puts_tail;
    struct bmi_transfer *refused; /* transfers that failed at once */
    struct iovec iov[GM_IOVECS];

    /* receive_lock */
    struct bmi_lock receive_lock;
    struct bmi_sink sink;
    uint64_t body_left;
    bool retracted;
    uint8_t header_have;
    uint8_t header[BMI_FRAME_HEADER];
};

struct gm_state {
    struct bmi_instance *instance;
    _Atomic int64_t *counters; /* the method's */
    struct nic_port *port;
    struct bmi_watch watch;
    struct bmi_registration_cache *cache;
    uint32_t puts_most;      /* directed sends at a time: leaves tokens for messages */
    uint32_t link_puts_most; /* the same for one link, while at most half of puts_most are used */
    atomic_uint puts_out;
    atomic_bool any_starved[GM_WANTS];
    struct bmi_deferred retry;
    struct bmi_deferred gone; /* frees the state after the stop */
    atomic_int number;        /* the first one listened on, 0: none */

    struct bmi_lock lock;
    struct cds_hlist_head links;                                 /* lock */
    struct gm_link *starved[GM_WANTS], **starved_tail[GM_WANTS]; /* lock: wait for something */
    struct gm_put *put_free;                                     /* lock: for the next ones */
    unsigned put_free_count;                                     /* lock */

    bool busy;                     /* poller: the last look found something */
    uint64_t stop_ms;              /* poller: until when the stop waits; 0: it has not waited */
    struct gm_link *ending;        /* poller */
    struct bmi_timer ending_timer; /* poller */
};

extern const struct bmi_method bmi__method_gm;

#define gm_container(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline struct gm_link *gm_link_of(struct bmi_link *base)
{
    return gm_container(base, struct gm_link, base);
}

static inline struct gm_state *gm_state_of(const struct gm_link *link)
{
    return link->base.state;
}

static inline void gm_lock(struct bmi_lock *lock)
{
    bmi_lock_take(lock);
}

static inline void gm_unlock(struct bmi_lock *lock)
{
    bmi_lock_give(lock);
}

static inline void gm_assert_locked(struct bmi_lock *lock)
{
    assert(bmi_lock_held(lock));
    (void)lock;
}

static inline void gm_count(const struct gm_link *link, enum bmi_method_counter counter,
                            int64_t amount)
{
    if (amount != 0)
        bmi_counter_add(gm_state_of(link)->counters, counter, amount);
}

/* gm_address.c */
struct gm_address {
    char host[NIC_NODE_MAX]; /* "" for every host name */
    uint16_t number;
};
/* Parses "host:number"; -EINVAL with the reason. */
int gm_address_parse(const char *text, struct gm_address *address, const char **reason);
int gm_address_format(const struct gm_address *address, char *out, size_t size);
int gm_parse(const char *address, char *canonical, size_t size, const char **reason);

/* gm_link.c */
int gm_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void gm_close(struct bmi_link *base, bool linger);
/* The port's events. Poller, no lock. */
void gm_link_accepted(struct gm_state *state, struct nic_peer *peer);
void gm_link_up(struct gm_link *link, struct nic_peer *peer);
/* Takes the link down, and releases the NIC's peer (unless NULL). With GM_LATER, where the peer
 * is stopped while it writes to our memory, the rest follows when it has written, so that the
 * poller's other links do not wait. The link may be gone at return. Poller, no lock. */
void gm_link_end(struct gm_link *link, struct nic_peer *peer, int status,
                 enum gm_patience patience);
void gm_ending_retry(struct bmi_timer *timer);
/* Ends a link that lingers and has nothing left; sends its queued frames. Poller, no lock. */
void gm_link_step(struct gm_link *link);
/* Whether a lingering link has nothing left to send. */
bool gm_link_idle_locked(const struct gm_link *link);
/* Makes the poller run gm_link_step. Any thread, send_lock held or not. */
void gm_link_kick(struct gm_link *link);
/* The peer broke the rules, or the core accepts no more frames: ends the link. Any thread, no
 * send_lock. */
void gm_link_fail(struct gm_link *link, int status);
void gm_link_fail_locked(struct gm_link *link, int status);
/* Lists the link as waiting for a resource; it is flushed when one may be free. Any thread,
 * send_lock held or not. */
void gm_link_starve(struct gm_link *link, enum gm_want want);
void gm_starved_retry(struct bmi_deferred *deferred);
void gm_starved_drop(struct gm_state *state);

/* gm_send.c */
void gm_send(struct bmi_link *base, struct bmi_frame *frames);
void gm_flush(struct bmi_link *base);
bool gm_send_now(struct bmi_link *base, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                 size_t bytes);
bool gm_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement);

/* gm_receive.c */
bool gm_retract(struct bmi_link *base, void *owner);
/* A message. Poller, no lock. Returns <0 to end the link. */
int gm_message_arrived(struct gm_link *link, const void *message, size_t length);
/* Drops the partly received frame. Poller. */
void gm_receive_end(struct gm_link *link);

/* gm_memory.c */
extern const struct bmi_registrar gm_registrar;
int gm_memory_option(struct gm_state *state, struct bmi_method_memory *memory, bool set);
/* Blocks of BMI_memalloc that were not freed go with the port. */
void gm_memory_stop(struct gm_state *state);
/* Whether the range lies in one block of BMI_memalloc from this port: it is registered for good. */
bool gm_memory_is_ours(const struct gm_state *state, const void *memory, size_t length);
int gm_expose(struct bmi_link *link, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle);
bool gm_release(struct bmi_link *link, void *handle, bool wait);
/* Ends the exposures that were not released, and prevents new ones. false: GM_LATER, and some are
 * left. */
bool gm_exposures_end(struct gm_link *link, enum gm_patience patience);

/* gm_put.c */
void gm_transfer(struct bmi_link *base, struct bmi_transfer *transfer);
/* Starts transfers that wait for a token or their turn. Any thread, no lock. */
void gm_puts_start(struct gm_link *link);
/* Gives back the transfers that could not be started. Poller, no lock. */
void gm_puts_refuse(struct gm_link *link);
/* Gives all of them back. Poller, no lock; the link is down, and the NIC has none of them. */
void gm_puts_end(struct gm_link *link, int status);
/* Whether there are transfers that are not over. send_lock held. */
bool gm_puts_left_locked(const struct gm_link *link);
/* At the stop: frees the kept records. */
void gm_puts_free(struct gm_state *state);

#endif
