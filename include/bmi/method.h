/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/method.h - the boundary between the message protocol and the networks.
 *
 * The protocol (matching, eager and rendezvous, credits, cancel, failure) is written once, in bmi/.
 * A method moves frames. It knows *links*: ordered, reliable, two-way channels of frames between
 * two processes, each made by connect() or accepted. It
 *   1. sends a frame (a header of 40 or 16 bytes, a body by reference) and says when it has gone;
 *   2. on arrival shows the core the header, is told where the body goes, and puts it there;
 *   3. where the network can, registers memory and moves it remotely (transfer);
 *   4. makes progress when asked and says when a link came, went up, or went down.
 * A new method is a folder with an operations table, and three lines of CMake.
 *
 * Threads. `progress`, watch callbacks, and the timer are called by one thread at a time (the
 * driver). send, send_now, flush, withdraw, retract, close, transfer may be called by any thread at
 * any time between the link's making and its link_down. Core calls send and send_now with the
 * peer's lock held, so they must never call back into the core; every other operation is called
 * with no core lock held, except where its comment says more. Lock order: a method's receive lock >
 * the core's peer lock > a method's send lock. The core's services (bmi_method_*) may take the peer
 * lock: never call one with a send lock held.
 *
 * Life of a link. The method allocates it with `bmi_link` as its first member, references = 1 (the
 * method's own). The core takes further references with bmi_link_ref. After bmi_method_link_down
 * the method makes no further call about the link and drops its own reference; when the last is
 * gone, `destroy` is called, from any thread. Between link_down and destroy the core may still call
 * flush, withdraw, retract, and close: they do nothing. It does not call send or transfer any more.
 *
 * Errors are negated errno values (-ECONNREFUSED), as the system gives them; the core translates.
 */
#ifndef BMI_METHOD_H
#define BMI_METHOD_H

#ifdef __cplusplus
#error "bmi/method.h is for methods, which are written in C; programs want bmi.h"
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "../bmi.h"
#include "lock.h"

enum { BMI_FRAME_HEADER = 40, BMI_FRAME_SHORT = 16 }; /* bytes of a frame's header: one of these */
enum { BMI_SEND_NOW = 256 };                          /* bytes of a body that goes by send_now */

struct bmi_method;
struct bmi_link;

/* ---- memory lists -------------------------------------------------------------------------- */

/* A cursor over a scatter list: what is left of it. The arrays are lent, never written. A single
 * buffer is a list of one whose arrays are the owner's fields. */
struct bmi_segments {
    void *const *buffers;
    const bmi_size_t *sizes;
    uint32_t count;    /* segments in the arrays */
    uint32_t index;    /* the first that is not used up */
    bmi_size_t offset; /* bytes of it that are */
    bmi_size_t left;   /* bytes still to move, at most; may be less than the list holds */
};

/* Fills up to `max` entries of iov with what comes next, at most `limit` bytes; skips empty
 * segments. Returns: the number of entries, 0 when nothing is left; *bytes (may be NULL) is their
 * sum. Owns: nothing; the entries point into the list's memory. Threads: who has the cursor.
 * Blocks: no. */
size_t bmi_segments_window(const struct bmi_segments *segments, struct iovec *iov, size_t max,
                           size_t limit, size_t *bytes);
/* Moves the cursor by `bytes` (<= left). Returns: nothing. Owns: nothing; the arrays are read
 * unless `bytes` is 0. Threads: who has the cursor. Blocks: no. */
void bmi_segments_advance(struct bmi_segments *segments, size_t bytes);
/* Copies min(bytes, left) into (scatter) or out of (gather) the list and advances. Returns: the
 * number of bytes copied. Owns: nothing. Threads: who has the cursor and the memory. Blocks: no. */
size_t bmi_segments_scatter(struct bmi_segments *segments, const void *from, size_t bytes);
size_t bmi_segments_gather(struct bmi_segments *segments, void *to, size_t bytes);

/* ---- frames -------------------------------------------------------------------------------- */

/* Returns: bytes of the header that begins with this byte. Owns: nothing. Threads: any.
 * Blocks: no. */
static inline uint32_t bmi_frame_header_size(uint8_t first)
{
    return first & 0x80 ? BMI_FRAME_SHORT : BMI_FRAME_HEADER;
}

/* A frame to send. The core's memory, lent from send() until it comes back by
 * bmi_method_frames_sent. The method may use `next` and advances `body`. */
struct bmi_frame {
    struct bmi_frame *next;
    struct bmi_segments body;
    uint32_t header_sent;             /* method's: bytes of the header already moved; 0 at send() */
    int32_t status;                   /* out: 0, or why it was not sent */
    uint8_t header[BMI_FRAME_HEADER]; /* of bmi_frame_header_size(header[0]) bytes */
};

/* Returns: bytes of the frame's header that have not been moved. Owns: nothing. Threads: who has
 * the frame. Blocks: no. */
static inline uint32_t bmi_frame_header_left(const struct bmi_frame *frame)
{
    return bmi_frame_header_size(frame->header[0]) - frame->header_sent;
}

/* Where an arriving body goes. Filled by bmi_method_frame_arrived; the method keeps it (in its
 * link) until it gives it back by bmi_method_body_arrived. `length` bytes follow on the wire; the
 * first `body.left` of them go to the list, the rest to nowhere. */
struct bmi_sink {
    struct bmi_segments body;
    uint64_t length;
    void *owner;     /* the core's: the operation or message; NULL when drained */
    uint64_t cookie; /* the core's */
};

/* Memory that the peer may put into or get from; travels in frames as it stands. */
struct bmi_region {
    uint64_t address; /* or offset, as the network wants */
    uint64_t length;
    uint64_t key;
};

/* A remote memory operation. The core's memory, lent until bmi_method_transfer_done. */
struct bmi_transfer {
    struct bmi_transfer *next;
    struct bmi_segments local;       /* source of a put, destination of a get */
    const struct bmi_region *remote; /* lent as well; their sum is >= local.left */
    uint32_t remote_count;
    bool get;    /* false: put */
    void *owner; /* the core's */
    void *method_private[4];
};

/* ---- what a method tells of itself ---------------------------------------------------------- */

struct bmi_method_limits {
    bmi_size_t eager_max;      /* largest body that the core should send unasked */
    bmi_size_t unexpected_max; /* largest unexpected message, >= 16384 */
    bmi_size_t frame_max;      /* largest body of one frame (larger messages go in several) */
    uint32_t segments_max; /* segments it gathers in one operation; a figure to tell, no limit */
    uint32_t regions_max;  /* segments of one registration; 0: no put or get */
    bool put, get;         /* remote memory operations */
    bool registration;     /* local memory of transfers must be registered */
};

/* ---- the operations ------------------------------------------------------------------------- */

struct bmi_method {
    const char *name;        /* "bmi_tcp" */
    const char *schemes;     /* "tcp", or several: "ofi+tcp,ofi+shm" */
    const char *description; /* one line, for bmi-info */
    struct bmi_method_limits limits;

    /* 1. Starts the method: *state is its own. Called once before anything else, from
     * BMI_initialize or a first look-up; one instance a process. Returns 0 or an errno: then
     * nothing is left. May block briefly, takes no address. */
    int (*start)(void **state);

    /* 2. Stops: ends listening, closes what is left of links (each gets its link_down), frees
     * state. The core has closed all links before and driven their lingering. */
    void (*stop)(void *state);

    /* 3. Listens on an address (without scheme: "host:port"). `flags`: BMI_TCP_BIND_SPECIFIC.
     * Fills `bound` with the address as peers should dial it, real port included. May block for a
     * name look-up. EADDRINUSE and the like are logged with the address by the method. */
    int (*listen)(void *state, const char *address, int flags, char *bound, size_t size);

    /* 4. Checks an address (without scheme and /path) without any I/O and writes its canonical
     * form (numeric hosts normalised, default port added). -EINVAL: `reason` names the bad part
     * in words. Pure: may be called before start, by any thread. */
    int (*parse)(const char *address, char *canonical, size_t size, const char **reason);

    /* 5. Starts a connection to a canonical address; never blocks (names are looked up elsewhere).
     * Sets *link, with link->owner = owner. Called with the peer's lock held: no core service may
     * be called from within; the outcome comes later, from the driver: bmi_method_link_up or
     * bmi_method_link_down. An error here: nothing was made. */
    int (*connect)(void *state, const char *canonical, void *owner, struct bmi_link **link);

    /* 6. Queues frames (a chain by next) to go in order. Called with the peer's lock held, also
     * before link_up (then they wait). Never fails: if the link is down or goes down, frames come
     * back with that status from the driver, never from within send or close. */
    void (*send)(struct bmi_link *link, struct bmi_frame *frames);

    /* 7. Writes what is queued, as much as the network takes now, gathering as many frames as it
     * can into each system call. Frames that have gone come back by bmi_method_frames_sent before
     * it returns, or from another thread's flush that was under way. What is left is written by
     * the driver when there is room. Any thread; no core lock held, perhaps the receive lock. */
    void (*flush)(struct bmi_link *link);

    /* 8. Takes a queued frame back. Not a byte of it has gone: `replacement` (if not NULL) takes
     * its place in the queue, and the frame is the core's again: returns true. Some of it has gone:
     * the method copies what is left of the body to memory of its own, sends that in its place, and
     * gives the frame back with body.left 0: returns true too, with frame->header_sent > 0, and the
     * replacement is not used. All of it has gone, or there is no memory: false; frames_sent has
     * come or will come. Waits for another thread's write of that frame to end (a write never
     * blocks). Called with the peer's lock held. */
    bool (*withdraw)(struct bmi_link *link, struct bmi_frame *frame, struct bmi_frame *replacement);

    /* 9. Stops putting an arriving body to its owner's memory: if the link's present sink has this
     * owner, the rest is drained, owner is forgotten, and no bmi_method_body_arrived follows for
     * it. Returns true then. Takes the receive lock: called with no lock held. After return of
     * either value no byte is written for that owner by this link (a pending transfer aside). */
    bool (*retract)(struct bmi_link *link, void *owner);

    /* 10. Ends a link: queued frames are still written if `linger` (up to the core's limit: a
     * second close without linger cuts it), else they come back with -ECANCELED. No frame is shown
     * to the core any more. The link_down follows from the driver (status 0). Takes no receive
     * lock: may be called from a core service. Called with any of the core's locks held, or none:
     * calls no core service but bmi_method_defer and the timers. */
    void (*close)(struct bmi_link *link, bool linger);

    /* 11. Polls without blocking, for methods (or moments) in which descriptors do not tell enough:
     * rings in memory, the busy link that is likeliest to have something. NULL: nothing to poll.
     * Returns the number of events handled. Driver only. */
    int (*progress)(void *state);

    /* 12. Before the driver blocks: makes sure that whatever comes from now on makes a watched
     * descriptor readable. Returns false if something is there already (then progress is called
     * again). NULL: descriptors are always armed. Driver only. */
    bool (*arm)(void *state);

    /* 13. Reads (set false) or sets an option of bmi.h that concerns the method; link may be NULL
     * for the method as a whole, and to read its default. -ENOSYS: not one of its options. Any
     * thread, perhaps with a peer's lock held. What is set of a link that is not up yet holds from
     * its connecting on, in place of the default: the core sets right after connect() what its
     * address was given before. */
    int (*option)(void *state, struct bmi_link *link, int option, void *value, bool set);

    /* 14. Registers memory for put and get: fills at most `*count` regions, tells how many, and a
     * handle. There is room for one for each segment, up to limits.regions_max (a longer list:
     * -EMSGSIZE, the core falls back to frames). NULL where put and get are absent.
     * Called with the peer's lock held or not; must not block. */
    int (*enroll)(struct bmi_link *link, const struct bmi_segments *memory,
                  struct bmi_region *regions, uint32_t *count, void **handle);

    /* 15. Ends a registration: from its return on the peer can no longer reach the memory (or the
     * method says in its page how long it still can). Where the peer is in the midst of writing
     * there and cannot be kept from it, waits, or, if not `wait`, returns false: then the handle is
     * still valid, and the core calls again until the peer has answered; a method that has seen
     * enough of that ends the link. Called with the peer's lock held. */
    bool (*release)(struct bmi_link *link, void *handle, bool wait);

    /* 16. Starts a put or get; bmi_method_transfer_done follows, also when the link goes down
     * (before its link_down). Called with the peer's lock held; never calls back from within. A put
     * is visible to the peer before any frame sent after its transfer_done, or those do not
     * come. */
    void (*transfer)(struct bmi_link *link, struct bmi_transfer *transfer);

    /* 17. Sends one frame at once: a short header, and a body of 1 to BMI_SEND_NOW bytes that lies
     * in one piece. Returns true: it has gone, or is copied to where nothing keeps it from going,
     * before whatever is sent later, and what was sent before has gone. false: nothing was done,
     * send() it. NULL: never. Called with the peer's lock held; neither waits nor calls the
     * core. */
    bool (*send_now)(struct bmi_link *link, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                     size_t bytes);
};

/* ---- links ---------------------------------------------------------------------------------- */

enum { BMI_LINK_END = 20, BMI_LINK_ENDS = 16 };

struct bmi_link {
    const struct bmi_method *method;
    void *state;                            /* the method's state */
    void *owner;                            /* the core's, set by connect and link_accepted */
    void *arriving;                         /* the core's: memory that a body is coming to */
    void (*destroy)(struct bmi_link *link); /* frees the memory; any thread, no lock held */
    atomic_uint references;
    /* Frames whose body is large and goes straight into users' memory are on their way: the core
     * sets it. While above 0 a stream reads no further than the next header, so that no body byte
     * is copied; at 0 it may read ahead as much as it likes. */
    atomic_uint large_expected;
    _Atomic uint64_t bytes_in;             /* method: whatever has arrived; liveness */
    _Atomic(struct bmi_link *) dirty_next; /* the core's list of links to flush */
    atomic_bool dirty;
    uint32_t host_number; /* this and host are the core's, see bmi_method_link_host */
    char *host;
    uint8_t ends[BMI_LINK_ENDS]; /* the core's, see bmi_method_link_ends */
};

/* Takes a reference. Returns: nothing. Owns: the link stays until it is dropped. Threads: any that
 * has a reference. Blocks: no. */
static inline void bmi_link_ref(struct bmi_link *link)
{
    if (bmi_one_thread())
        atomic_store_explicit(&link->references,
                              atomic_load_explicit(&link->references, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&link->references, 1, memory_order_relaxed);
}

/* Drops a reference; who drops the last calls destroy. Returns: nothing. Owns: not to be used
 * afterwards. Threads: any, no lock held that destroy takes. Blocks: as destroy does. */
static inline void bmi_link_unref(struct bmi_link *link)
{
    unsigned before = atomic_load_explicit(&link->references, memory_order_relaxed);
    if (bmi_one_thread())
        atomic_store_explicit(&link->references, before - 1, memory_order_relaxed);
    else
        before = atomic_fetch_sub_explicit(&link->references, 1, memory_order_acq_rel);
    if (before == 1)
        link->destroy(link);
}

/* ---- the core's services --------------------------------------------------------------------
 *
 * What a method calls. "Driver" is the thread that makes progress, see the top. None of them waits
 * for the network or for a peer; those that say "briefly" take a lock of the core's that others
 * hold for a few instructions or a copy of an eager body.
 */

/* A link came in. Sets link->owner. Returns: 0, or -ENOMEM: then close and forget it without
 * link_down. Owns: the core takes a reference of its own. Threads: driver, no lock held.
 * Blocks: briefly. */
int bmi_method_link_accepted(struct bmi_link *link);

/* A link of connect() reached its peer: frames flow from now on. A peer that cannot be greeted has
 * the link closed from within. Returns: nothing. Owns: nothing new. Threads: driver, no lock held.
 * Blocks: briefly. */
void bmi_method_link_up(struct bmi_link *link);

/* A link is gone; status 0 (closed by us or the peer) or the errno. Frames and transfers of it have
 * been given back before; those that another thread queued meanwhile are given back right after it
 * returns. Returns: nothing. Owns: the core drops its references; then the method drops its own.
 * Threads: driver, no lock held. Blocks: briefly. */
void bmi_method_link_down(struct bmi_link *link, int status);

/* A whole header arrived. Fills *sink (length 0: no body, nothing further to do; body_arrived is
 * not called then). Returns: 0; <0: no valid frame, end the link with this status. Owns: the header
 * is read before it returns; the sink's memory is the method's to write until body_arrived or
 * retract. Threads: driver, receive lock held. Blocks: briefly. */
int bmi_method_frame_arrived(struct bmi_link *link, const uint8_t *header, struct bmi_sink *sink);

/* The first `have` bytes of a header arrived, of a link that brought no whole one so far. For
 * streams: a server of another protocol may say less than a header and wait. Returns: 0: read on;
 * <0: it is none of ours, end the link with this status. Owns: nothing is kept. Threads: driver,
 * receive lock held. Blocks: briefly. */
int bmi_method_header_begun(struct bmi_link *link, const uint8_t *bytes, size_t have);

/* As frame_arrived and body_arrived in one, for a small message, with a short header, whose body is
 * in memory already: `have` bytes follow its header. Nothing of it waits between two calls, so no
 * receive lock is needed. Returns: how many bytes the frame has; 0: it is not for this, show it to
 * frame_arrived; <0: end the link with this status. Owns: nothing is kept. Threads: driver, between
 * two frames of the link. Blocks: briefly. */
int bmi_method_frame_whole(struct bmi_link *link, const uint8_t *header, const uint8_t *body,
                           size_t have);

/* A method may call this whenever it is about to put more of the present body to its place: where
 * the message had no receive when its header came, and has one by now, *sink names the receive's
 * memory from here on. Returns: nothing. Owns: as frame_arrived's sink; memory named before is the
 * core's again. Threads: driver, receive lock held. Blocks: briefly. */
void bmi_method_body_place(struct bmi_link *link, struct bmi_sink *sink);

/* The whole body of the sink has arrived (or was drained). Not called for a retracted sink.
 * Returns: 0; <0: end the link with this status (a control frame's body was bad). Owns: the sink's
 * memory is the core's again, perhaps the program's. Threads: driver, receive lock held.
 * Blocks: briefly. */
int bmi_method_body_arrived(struct bmi_link *link, struct bmi_sink *sink);

/* Frames (a chain by next, each with its status) have gone or failed. Returns: nothing. Owns: the
 * frames and their bodies are the core's again. Threads: any, no send lock held.
 * Blocks: briefly. */
void bmi_method_frames_sent(struct bmi_link *link, struct bmi_frame *frames);

/* A transfer is complete, status 0 or an errno. Returns: nothing. Owns: the transfer and its memory
 * are the core's again. Threads: driver, no send lock held. Blocks: briefly. */
void bmi_method_transfer_done(struct bmi_link *link, struct bmi_transfer *transfer, int status);

/* A descriptor that the driver waits for, together with all others: one wait over all methods.
 * `ready` is called by the driver with EPOLL* events. EPOLLIN is level-triggered unless `events`
 * has EPOLLET. The structure is embedded in its owner and must outlive the watch; removal is to be
 * done by the driver, or before the owner was shown to it. */
struct bmi_watch {
    void (*ready)(struct bmi_watch *watch, uint32_t events);
    int fd;
};

/* Waits for `events` of watch->fd from now on (epoll_ctl(2)). Returns: 0, or epoll_ctl's errno
 * (-ENOMEM, -ENOSPC, -EEXIST). Owns: the watch is lent until it is removed; the descriptor stays
 * the caller's. Threads: any. Blocks: no. */
int bmi_method_watch_add(struct bmi_watch *watch, uint32_t events);

/* Waits for it no more: `ready` is not called again. Before the descriptor is closed. Returns:
 * nothing. Owns: the watch is the caller's again. Threads: driver, or any before the owner was
 * shown to it. Blocks: no. */
void bmi_method_watch_remove(struct bmi_watch *watch);

/* A one-shot timer, embedded in its owner. */
struct bmi_timer {
    void (*expired)(struct bmi_timer *timer);
    uint64_t due_ns;
    struct bmi_timer *next, **link_to_me; /* the core's; zero before first use */
};

/* Has `expired` called by the driver, not before `delay_ms` milliseconds from now; set again to
 * move it, also from within `expired`. Returns: nothing. Owns: the timer is lent until it has run
 * or was cleared. Threads: driver; others through bmi_method_defer. Blocks: no. */
void bmi_method_timer_set(struct bmi_timer *timer, uint64_t delay_ms);

/* It does not run any more; one that is not set: nothing. Returns: nothing. Owns: the timer is the
 * caller's again. Threads: driver. Blocks: no. */
void bmi_method_timer_clear(struct bmi_timer *timer);

/* The clock that timers go by. Returns: nanoseconds since some moment (CLOCK_MONOTONIC). Owns:
 * nothing. Threads: any. Blocks: no. */
uint64_t bmi_method_now_ns(void);

/* A call that the driver is to make. */
struct bmi_deferred {
    void (*run)(struct bmi_deferred *deferred);
    _Atomic(struct bmi_deferred *) next;
    atomic_bool pending;
};

/* Has `run` called by the driver soon; wakes it if it sleeps. One pending call at a time for each
 * structure: a second before it ran is merged. Returns: nothing. Owns: the structure is lent until
 * `run` is called, and not looked at after that. Threads: any, any lock held. Blocks: no. */
void bmi_method_defer(struct bmi_deferred *deferred);

/* The value of a setting of the table in bmi/settings.c ("tcp_sndbuf"): a method's settings live
 * there too. Returns: the value, in the unit that the table states; a name that is not in the table
 * is a defect of the method and aborts. Owns: nothing. Threads: any. Blocks: no. */
int64_t bmi_method_setting(const char *name);

/* Logs, if the level is on: printf-like, a line of at most 1,099 bytes; longer ones are cut. `link`
 * (may be NULL) names the method. Returns: nothing. Owns: nothing is kept. Threads: any, any lock
 * held: a program's callback must not call BMI. Blocks: as the callback or standard error does. */
void bmi_method_log(enum bmi_log_level level, const struct bmi_link *link, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The method's counters, told by BMI_GET_METHOD_STATISTICS. */
enum bmi_method_counter {
    BMI_COUNT_FRAMES_SENT,
    BMI_COUNT_FRAMES_RECEIVED,
    BMI_COUNT_BYTES_SENT,
    BMI_COUNT_BYTES_RECEIVED,
    BMI_COUNT_WRITES,
    BMI_COUNT_READS,
    BMI_COUNT_COPIES,
    BMI_COUNT_COPIED_BYTES,
    BMI_COUNT_LINKS,
    BMI_COUNT_LINKS_OPENED,
    BMI_COUNT_LINKS_ACCEPTED,
    BMI_COUNT_LINKS_FAILED,
    BMI_COUNT_BAD_FRAMES,
    BMI_COUNT_PUTS,
    BMI_COUNT_PUT_BYTES,
    BMI_COUNT_GETS,
    BMI_COUNT_GET_BYTES,
    BMI_COUNT_REGISTRATIONS,
    BMI_COUNT_REGISTRATION_HITS,
    BMI_COUNT_COUNTERS
};

/* The counters of a method, BMI_COUNT_COUNTERS of them, for bmi_counter_add. Returns: where they
 * are; NULL: no such method. Owns: the library's, for as long as it is loaded. Threads: any.
 * Blocks: no. */
_Atomic int64_t *bmi_method_counters(const struct bmi_method *method);

/* Adds `amount` to one of bmi_method_counters: what a method that counts on each message's way
 * calls, in a few instructions. What arrives is counted by the driver alone, and before who waits
 * for it looks: no atomic addition, nor in a process of one thread. Returns: nothing. Owns:
 * nothing. Threads: what is received (frames, bytes, reads, copies) the driver alone, the rest any.
 * Blocks: no. */
static inline void bmi_counter_add(_Atomic int64_t *counters, enum bmi_method_counter counter,
                                   int64_t amount)
{
    _Atomic int64_t *value = &counters[counter];
    bool drivers = counter == BMI_COUNT_FRAMES_RECEIVED || counter == BMI_COUNT_BYTES_RECEIVED ||
                   counter == BMI_COUNT_READS || counter == BMI_COUNT_COPIES ||
                   counter == BMI_COUNT_COPIED_BYTES;
    if (drivers || bmi_one_thread())
        atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + amount,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(value, amount, memory_order_relaxed);
}

/* Adds `amount` to a counter; BMI_COUNT_LINKS is a gauge, which goes down too. Returns: nothing; a
 * method that does not run counts nothing. Owns: nothing. Threads: what is received (frames, bytes,
 * reads, copies) the driver alone, the rest any. Blocks: no. */
void bmi_method_count(const struct bmi_method *method, enum bmi_method_counter counter,
                      int64_t amount);

/* Tells the numeric host of the link's other side, before link_accepted or link_up; a network that
 * has none leaves it empty. And a number that tells the peers of one host apart, for the log: a
 * port, or that of the process; 0: not known. NULL takes it back, of a link that the core is never
 * told of. Returns: nothing; without memory the host stays unknown. Owns: copied. Threads: driver.
 * Blocks: no. */
void bmi_method_link_host(struct bmi_link *link, const char *host, uint32_t number);

/* Tells the two ends of the connection, before link_accepted or link_up: `size` bytes each, at most
 * BMI_LINK_END, in a form that is the same on both sides (tcp: address and port of both sockets).
 * They distinguish a direct connection from two with a relay between them; a network whose
 * processes trust each other can leave them out, on both sides. Returns: nothing. Owns: copied.
 * Threads: driver. Blocks: no. */
void bmi_method_link_ends(struct bmi_link *link, const void *dialler, const void *accepter,
                          size_t size);

/* ---- registrations -------------------------------------------------------------------------- */

/* A cache of registrations of the program's memory, for networks that want it registered. Keyed by
 * address range, in whole pages; each registration has its users counted and ends when it is not
 * wanted. It is bounded (settings registration_bytes, registration_count): beyond them unused ones
 * go, least recently used first. Correct when a program gives memory back and maps other memory at
 * the same address, without being told of it: bmi/registration.c says how.
 *
 * Memory that is to stay registered, BMI_memalloc's, is got once, whole, when it is allocated and
 * put when it is freed; whatever is got within it meanwhile costs a look-up. Keep it from sharing
 * pages with other memory. */
struct bmi_registrar {
    /* Registers whole pages: 0 and a handle, or an errno; after -ENOMEM and -ENOBUFS it is called
     * again when an unused one has been given up. leave ends a registration. Both are called with
     * the cache's lock held, by any thread, perhaps with a peer's lock held: they must not call the
     * core, nor the cache. */
    int (*enter)(void *owner, uintptr_t address, size_t length, void **handle);
    void (*leave)(void *owner, uintptr_t address, size_t length, void *handle);
    /* A registration stands for addresses, whatever is mapped there when the network uses it (a
     * copy by the processor, on-demand paging), not for the pages of now: then unused ones are
     * kept, and neighbours merged. */
    bool follows_mapping;
};

struct bmi_registration {
    uintptr_t address; /* of the registered range, which holds what was asked for */
    size_t length;
    void *handle;            /* enter's */
    uint32_t users, holders; /* the rest is the cache's own */
    bool is_found;
    struct bmi_registration *older, *newer;
};

struct bmi_registration_cache;

/* Makes a cache, which counts for the method. Returns: 0 or -ENOMEM. Owns: the cache is the
 * caller's, until bmi_method_cache_destroy; the registrar is copied, `owner` is handed to it.
 * Threads: any. Blocks: no. */
int bmi_method_cache_create(const struct bmi_method *method, const struct bmi_registrar *registrar,
                            void *owner, struct bmi_registration_cache **cache);
/* Ends what nobody uses, and the cache. NULL: nothing. Returns: nothing. Owns: everything got has
 * been put; no handle is valid afterwards. Threads: one, the last user. Blocks: as leave does. */
void bmi_method_cache_destroy(struct bmi_registration_cache *cache);
/* A registration that holds these bytes. Returns: 0, -EINVAL (no bytes, or none that a program can
 * have), -ENOBUFS (over the bounds, all in use), -ENOMEM, or what enter returned. Owns: the
 * registration is the cache's, lent until it is put. Threads: any; takes only the cache's lock.
 * Blocks: as enter and leave do. */
int bmi_method_cache_get(struct bmi_registration_cache *cache, const void *memory, size_t length,
                         struct bmi_registration **registration);
/* Gives it back, with the bytes it was got for. Returns: nothing. Owns: it is not the caller's any
 * more. Threads: any; takes only the cache's lock. Blocks: as leave does. */
void bmi_method_cache_put(struct bmi_registration_cache *cache,
                          struct bmi_registration *registration, const void *memory, size_t length);
/* Has nothing found any more that touches these bytes: to be called before the method itself unmaps
 * memory. Returns: nothing. Owns: what is in use stays its users', and ends with the last. Threads:
 * any; takes only the cache's lock. Blocks: as leave does. */
void bmi_method_cache_forget(struct bmi_registration_cache *cache, const void *memory,
                             size_t length);
/* What a cache did: `uses` - `registrations` were found. */
struct bmi_cache_statistics {
    uint64_t uses, registrations, evictions;
    uint64_t bytes, count; /* gauge: registered now */
};

/* Fills *statistics. Returns: nothing. Owns: nothing. Threads: any; takes only the cache's lock.
 * Blocks: no. */
void bmi_method_cache_statistics(struct bmi_registration_cache *cache,
                                 struct bmi_cache_statistics *statistics);

/* Memory of BMI_memalloc. A method that has better memory than malloc's for its transfers (in reach
 * of its peers, registered for good) knows this option: `set` false allocates, sets `buffer` to
 * zeroed memory, page-aligned where size >= 4096; `set` true frees. Returns: 0; an errno
 * (allocate): the core takes plain memory; -ENOENT (free): not this method's. Owns: the memory is
 * the program's until it is freed. `link` is NULL; so is `state` when memory is freed while the
 * method does not run. Threads: any. Blocks: no. */
enum { BMI_METHOD_MEMORY = 1 << 20 };
struct bmi_method_memory {
    void *buffer;
    bmi_size_t size;
};

/* What the method would take on this host, into a struct bmi_method_choice (bmi.h), which is
 * zeroed; `state` and `link` are NULL. Returns: 0, or what start would return; -ENOSYS: there is
 * nothing to choose. Owns: nothing. Threads: any. Blocks: briefly, as start does. */
enum { BMI_METHOD_CHOICE = BMI_METHOD_MEMORY + 1 };

#endif
