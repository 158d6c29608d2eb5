/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/method.h - the boundary between the message protocol and the networks.
 *
 * The protocol (matching, eager and rendezvous, credits, cancel, failure) is written once, in bmi/.
 * A method moves frames. It knows *links*: ordered, reliable, two-way channels of frames between
 * two processes, each made by connect() or accepted. It
 *   1. sends a frame (a header of 40 or 16 bytes, a body by reference) and reports when it has
 *      gone;
 *   2. on arrival passes the header to the core, which returns the place of the body, and stores
 *      the body there;
 *   3. where the network can, registers memory and moves it remotely (transfer);
 *   4. makes progress when asked and reports when a link came, went up, or went down.
 * A new method is a folder with an operations table, and three lines of CMake.
 *
 * Instances. A process may have several instances of the core (bmi/instance.h), each with its own
 * poller, settings, log, and counters. A method runs in each instance that starts it, with a state
 * of its own there: `start` gets the instance, links name it, and most services take it as their
 * first argument. The table of operations, `parse`, and `hosts` know no instance. Two threads may
 * be in the method at once as pollers of two instances, so variables of the process need a lock.
 *
 * Threads. One thread at a time in each instance (the poller) calls `progress`, watch callbacks,
 * and timers. Any thread may call send, send_now, flush, withdraw, retract, close, transfer at any
 * time between the creation of the link and its link_down. The core calls send and send_now with
 * the peer's lock held, so they must never call back into the core; it calls every other operation
 * with no core lock held, except where its comment says more. Lock order: a method's receive lock >
 * the core's peer lock > a method's send lock. The core's services (bmi_method_*) may take the peer
 * lock: never call one with a send lock held.
 *
 * Life of a link. The method allocates it with `bmi_link` as its first member, references = 1 (the
 * method's own). The core takes further references with bmi_link_ref. After bmi_method_link_down
 * the method makes no further call about the link and drops its own reference; the thread that
 * drops the last reference, which may be any thread, calls `destroy`. Between link_down and destroy
 * the core may still call flush, withdraw, retract, and close: they do nothing. It does not call
 * send or transfer any more.
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

struct bmi_instance;
struct bmi_method;
struct bmi_link;

/* ---- memory lists -------------------------------------------------------------------------- */

/* A cursor over the rest of a scatter list. The arrays are lent, never written. A single buffer is
 * a list of one whose arrays are the owner's fields. */
struct bmi_segments {
    void *const *buffers;
    const bmi_size_t *sizes;
    uint32_t count;    /* segments in the arrays */
    uint32_t index;    /* the first that is not used up */
    bmi_size_t offset; /* bytes of it that are */
    bmi_size_t left;   /* bytes still to move, at most; may be less than the list holds */
};

/* Fills up to `max` entries of iov with the next segments, at most `limit` bytes; skips empty
 * segments. Returns: the number of entries, 0 when nothing is left; *bytes (may be NULL) is their
 * sum. Owns: nothing; the entries point into the list's memory. Threads: the owner of the cursor.
 * Blocks: no. */
size_t bmi_segments_window(const struct bmi_segments *segments, struct iovec *iov, size_t max,
                           size_t limit, size_t *bytes);
/* Moves the cursor by `bytes` (<= left). Returns: nothing. Owns: nothing; the arrays are read
 * unless `bytes` is 0. Threads: the owner of the cursor. Blocks: no. */
void bmi_segments_advance(struct bmi_segments *segments, size_t bytes);
/* Copies min(bytes, left) into (scatter) or out of (gather) the list and advances. Returns: the
 * number of bytes copied. Owns: nothing. Threads: the owner of the cursor and the memory. Blocks:
 * no. */
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
    int32_t status;                   /* out: 0, or the reason why it was not sent */
    uint8_t header[BMI_FRAME_HEADER]; /* of bmi_frame_header_size(header[0]) bytes */
};

/* Returns: bytes of the frame's header that have not been moved. Owns: nothing. Threads: the owner
 * of the frame. Blocks: no. */
static inline uint32_t bmi_frame_header_left(const struct bmi_frame *frame)
{
    return bmi_frame_header_size(frame->header[0]) - frame->header_sent;
}

/* Frames that wait to be sent on a link, in order. Zeroed: empty. Guarded by a lock of the method;
 * a frame that is being written stays in the queue. */
struct bmi_frame_queue {
    struct bmi_frame *first, *last;
    struct bmi_frame_rest *rest; /* stands first for a frame that was withdrawn half-sent */
};

/* Appends a chain (by next) of at least one frame. Returns: nothing. Owns: the frames are lent to
 * the queue. Threads: with the queue's lock. Blocks: no. */
void bmi_frame_queue_append(struct bmi_frame_queue *queue, struct bmi_frame *frames);
/* Removes `bytes` that have gone from the front. Appends the frames that are complete, with status
 * 0, to the chain that ends at *done; *count: how many they are. Returns: the chain's new end.
 * Owns: the caller gives the chain back by bmi_method_frames_sent. Threads: as above. Blocks:
 * no. */
struct bmi_frame **bmi_frame_queue_sent(struct bmi_frame_queue *queue, size_t bytes,
                                        struct bmi_frame **done, int64_t *count);
/* Removes all frames. Returns: them as a chain, or NULL; their status is as it was. Owns: as above.
 * Threads: as above. Blocks: no. */
struct bmi_frame *bmi_frame_queue_take(struct bmi_frame_queue *queue);
/* Returns: whether the frame is in the queue; then *before_end is whether it stands before or at
 * `end` (NULL: false). Owns: nothing. Threads: as above. Blocks: no. */
bool bmi_frame_queue_has(const struct bmi_frame_queue *queue, const struct bmi_frame *frame,
                         const struct bmi_frame *end, bool *before_end);
/* Takes a frame back, as struct bmi_method's withdraw; nobody may be writing it. Returns: whether
 * it was there, and there was memory. Owns: the frame is the core's again. Threads: as above.
 * Blocks: no. */
bool bmi_frame_queue_withdraw(struct bmi_frame_queue *queue, struct bmi_frame *frame,
                              struct bmi_frame *replacement);

/* The destination of an arriving body. bmi_method_frame_arrived fills it; the method keeps it (in
 * its link) until it gives it back by bmi_method_body_arrived. `length` bytes follow on the wire;
 * the first `body.left` of them go to the list, the method drops the rest. */
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

/* ---- a method's properties ------------------------------------------------------------------ */

/* One for the process: values that start() finds out hold for all instances. */
struct bmi_method_limits {
    bmi_size_t eager_max;      /* largest body that the core should send without a request */
    bmi_size_t unexpected_max; /* largest unexpected message, >= 16384 */
    bmi_size_t frame_max;      /* largest body of one frame (larger messages go in several) */
    uint32_t segments_max;     /* segments it gathers in one operation; for information, no limit */
    uint32_t regions_max;      /* segments of one registration; 0: no put or get */
    bool put, get;             /* remote memory operations */
    bool registration;         /* local memory of transfers must be registered */
};

enum bmi_setting_kind {
    BMI_SETTING_NUMBER,
    BMI_SETTING_BYTES,  /* a number that may end in K, M or G */
    BMI_SETTING_SWITCH, /* off or on; `least` 0, `most` 1 */
    BMI_SETTING_TEXT /* read by bmi_method_setting_text; preset is empty, the bounds are unused */
};

/* A setting that the method declares and reads by bmi_method_setting. Programs set it by the
 * variable BMI_NAME, by options of BMI_initialize, and by BMI_set_info. */
struct bmi_setting_spec {
    const char *name; /* lower case, begins with the method's: "gm_pages" */
    enum bmi_setting_kind kind;
    int64_t preset, least, most;
    const char *help; /* one line, for bmi-info */
};

/* An option of bmi.h whose default is one of the method's settings: the default of future
 * connections. Its value is an int; an address keeps one of its own for its next connections. */
struct bmi_option_default {
    int option;
    const char *setting;
};

/* Copies an address without the "/path" that may follow it, as much of it as fits. Returns:
 * nothing. Owns: nothing. Threads: any. Blocks: no. */
static inline void bmi_address_copy(const char *address, char *copy, size_t size)
{
    size_t length = 0;
    for (; length + 1 < size && address[length] != '\0' && address[length] != '/'; length++)
        copy[length] = address[length];
    copy[length] = '\0';
}

/* How the hosts of a method's links are written. The core keeps a host as a string, from
 * bmi_method_link_host or of_address, and does not look into it. The functions are pure: any
 * thread calls them, with any lock held, and they know no instance. Methods whose hosts are IP
 * addresses have methods/ip's. */
struct bmi_method_hosts {
    /* Writes the host of a canonical address. */
    void (*of_address)(const char *canonical, char *host, size_t size);

    /* <0, 0, >0: an order of hosts, for sorting. 0: they are the same host. */
    int (*compare)(const char *one, const char *other);

    /* Writes how the log names the process at a host: by both arguments of bmi_method_link_host. */
    void (*process_name)(const char *host, uint32_t number, char *name, size_t size);

    /* Whether a host is in a range of BMI_query_addr_range (bmi.h), which comes without its
     * scheme. `bits`: the netmask; BMI_HOST_WHOLE: all bits; negative: none is given. Returns 1,
     * 0, or -EINVAL. */
    int (*in_range)(const char *host, const char *range, int bits);
};

enum { BMI_HOST_WHOLE = -2 };

/* ---- the operations ------------------------------------------------------------------------- */

struct bmi_method {
    const char *name;        /* "bmi_tcp" */
    const char *schemes;     /* "tcp", or several: "ofi+tcp,ofi+shm" */
    const char *description; /* one line, for bmi-info */
    struct bmi_method_limits limits;
    const struct bmi_setting_spec *settings;   /* ends with an entry without a name; NULL: none.
                                              * Several methods may have one table in common */
    const struct bmi_option_default *defaults; /* ends with an entry without a setting; or NULL */
    const struct bmi_method_hosts *hosts;      /* never NULL; for methods in common, too */
    bool secure; /* links are encrypted, and peers authenticated: the core uses no link of another
                  * method in place of one of these, although the same process has both */

    /* 1. Starts the method in an instance. *state is the method's own; the other operations get it.
     * Called from BMI_initialize, bmi_instance_open, or a first look-up, and not again in this
     * instance before stop; perhaps by two threads at once, for two instances. Returns 0 or an
     * errno: then nothing is left. May block briefly, takes no address. */
    int (*start)(struct bmi_instance *instance, void **state);

    /* 2. Stops in the state's instance: ends listening, closes the remaining links (each gets its
     * link_down), frees state. The core has closed all links before and polled until their
     * lingering ended. It runs deferred calls once more afterwards: a method frees state that those
     * use by a call that it defers last. */
    void (*stop)(void *state);

    /* 3. Listens on an address (without scheme: "host:port"). `flags`: BMI_TCP_BIND_SPECIFIC.
     * Fills `bound` with the address as peers should dial it, real port included. May block for a
     * name look-up. EADDRINUSE and the like are logged with the address by the method. */
    int (*listen)(void *state, const char *address, int flags, char *bound, size_t size);

    /* 4. Checks an address (without scheme) without any I/O and writes its canonical form (numeric
     * hosts normalised, default port added). A "/path" behind a host or name is ignored, here and
     * by listen: see bmi_address_copy. -EINVAL: `reason` names the bad part in words. Pure, and of
     * no instance: may be called before start, by any thread. */
    int (*parse)(const char *address, char *canonical, size_t size, const char **reason);

    /* 5. Starts a connection to a canonical address; never blocks (names are looked up elsewhere).
     * Sets *link, with link->owner = owner. Called with the peer's lock held: it must not call a
     * core service. The poller reports the outcome later: bmi_method_link_up or
     * bmi_method_link_down. After an error here no link exists. */
    int (*connect)(void *state, const char *canonical, void *owner, struct bmi_link **link);

    /* 6. Queues frames (a chain by next) to go in order. Called with the peer's lock held, also
     * before link_up (then they wait). Never fails: if the link is down or goes down, the poller
     * gives the frames back with that status, never send or close themselves. */
    void (*send)(struct bmi_link *link, struct bmi_frame *frames);

    /* 7. Writes queued frames, as many as the network takes now, gathering as many frames as it can
     * into each system call. Frames that have gone come back by bmi_method_frames_sent before it
     * returns, or from another thread's flush that was under way. The poller writes the rest when
     * there is room. Any thread; no core lock held, perhaps the receive lock. */
    void (*flush)(struct bmi_link *link);

    /* 8. Takes a queued frame back. Three cases.
     *   - No byte of it has gone: `replacement` (if not NULL) takes its place in the queue, and the
     *     frame is the core's again: returns true.
     *   - Some of it has gone: the method copies the rest of the body to memory of its own, sends
     *     that in its place, and gives the frame back with body.left 0: returns true too, with
     *     frame->header_sent > 0, and does not use the replacement.
     *   - All of it has gone, or there is no memory: false; frames_sent has come or will come.
     * Waits for another thread's write of that frame to end (a write never blocks). Called with the
     * peer's lock held. */
    bool (*withdraw)(struct bmi_link *link, struct bmi_frame *frame, struct bmi_frame *replacement);

    /* 9. Stops writing an arriving body to its owner's memory: if the link's present sink has this
     * owner, the method drains the rest, forgets the owner, and does not call
     * bmi_method_body_arrived for it. Returns true then. Takes the receive lock: called with no
     * lock held. After it has returned, with either value, this link writes no byte for that owner
     * (except a pending transfer). */
    bool (*retract)(struct bmi_link *link, void *owner);

    /* 10. Ends a link: queued frames are still written if `linger` (up to the core's limit: a
     * second close without linger cuts it), else they come back with -ECANCELED. The method passes
     * no more frames to the core. The poller calls link_down later (status 0). Takes no receive
     * lock: may be called from a core service. Called with any of the core's locks held, or none:
     * calls no core service but bmi_method_defer and the timers. */
    void (*close)(struct bmi_link *link, bool linger);

    /* 11. Polls without blocking, for methods (or moments) in which descriptors do not report
     * everything: rings in memory, the busy link that most probably has data. NULL: nothing to
     * poll. Returns the number of events handled. Poller only. */
    int (*progress)(void *state);

    /* 12. Called before the poller blocks: makes sure that every later arrival makes a watched
     * descriptor readable. Returns false if something has arrived already (then progress is called
     * again). NULL: descriptors are always armed. Poller only. */
    bool (*arm)(void *state);

    /* 13. Reads (set false) or sets an option of bmi.h that concerns the method in the instance;
     * link may be NULL for the method as a whole, and to read its default. `state` is NULL only for
     * two options at the end of this header, while the method does not run in the instance. Returns
     * 0; 1: done, but of several methods that answer, one that returns 0 is preferred; -ENOSYS: not
     * one of its options; or an errno. Any thread, perhaps with a peer's lock held. An option that
     * is set on a link before link_up applies from the start of its connection, in place of the
     * default: right after connect() the core sets the options that the program gave to the address
     * before. */
    int (*option)(struct bmi_instance *instance, void *state, struct bmi_link *link, int option,
                  void *value, bool set);

    /* 14. Registers memory for put and get: fills at most `*count` regions, sets their number, and
     * a handle. There is room for one for each segment, up to limits.regions_max (a longer list:
     * -EMSGSIZE, the core falls back to frames). NULL where put and get are absent. Called with the
     * peer's lock held or not; must not block. */
    int (*expose)(struct bmi_link *link, const struct bmi_segments *memory,
                  struct bmi_region *regions, uint32_t *count, void **handle);

    /* 15. Ends a registration: after its return the peer can no longer access the memory (or the
     * method documents in its page how long it still can). If the peer is writing there and cannot
     * be stopped, it waits, or, if not `wait`, returns false: then the handle is still valid, and
     * the core calls again until the peer has answered. A method may end the link when that takes
     * too long. Called with the peer's lock held. */
    bool (*release)(struct bmi_link *link, void *handle, bool wait);

    /* 16. Starts a put or get; bmi_method_transfer_done follows, also when the link goes down
     * (before its link_down). Called with the peer's lock held; never calls back from within. A put
     * is visible to the peer before any frame sent after its transfer_done, or those do not
     * come. */
    void (*transfer)(struct bmi_link *link, struct bmi_transfer *transfer);

    /* 17. Sends one frame at once: a short header, and a body of 1 to BMI_SEND_NOW bytes in one
     * piece. Returns true: all earlier frames have gone, and this one has gone too or is copied to
     * a place from which nothing can stop it, ahead of all later frames. false: nothing was done,
     * use send(). NULL: never. Called with the peer's lock held; neither waits nor calls the
     * core. */
    bool (*send_now)(struct bmi_link *link, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                     size_t bytes);
};

/* ---- links ---------------------------------------------------------------------------------- */

enum { BMI_LINK_END = 20, BMI_LINK_ENDS = 16 };

struct bmi_link {
    const struct bmi_method *method;
    struct bmi_instance *instance;          /* method: as given to start; never changes */
    void *state;                            /* the method's state */
    void *owner;                            /* the core's, set by connect and link_accepted */
    void *arriving;                         /* the core's: memory that receives a body */
    void (*destroy)(struct bmi_link *link); /* frees the memory; any thread, no lock held */
    atomic_uint references;
    /* Number of frames under way with a large body that goes straight into users' memory; the core
     * sets it. While it is above 0 a stream reads no further than the next header, so that no body
     * byte is copied; at 0 it may read ahead as much as it likes. */
    atomic_uint large_expected;
    _Atomic uint64_t bytes_in;             /* method: all bytes that have arrived; liveness */
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
    bmi_add(&link->references, 1);
}

/* Drops a reference; the thread that drops the last one calls destroy. Returns: nothing. Owns: not
 * to be used afterwards. Threads: any, no lock held that destroy takes. Blocks: as destroy does. */
static inline void bmi_link_unref(struct bmi_link *link)
{
    if (bmi_reference_drop(&link->references))
        link->destroy(link);
}

/* ---- the core's services --------------------------------------------------------------------
 *
 * A method calls these functions. `instance` is the one that start() got; its poller, timers,
 * settings, log, or counters are used. Services that take a link use the link's instance. "Poller"
 * is the thread that makes progress in the instance, see the top. No service waits for the network
 * or for a peer; a service that blocks "briefly" takes a lock of the core that other threads hold
 * for a few instructions or a copy of an eager body.
 */

/* A link came in. Sets link->owner. Returns: 0, or -ENOMEM: then close and forget it without
 * link_down. Owns: the core takes a reference of its own. Threads: poller, no lock held. Blocks:
 * briefly. */
int bmi_method_link_accepted(struct bmi_link *link);

/* Writes the only frame for a connection that came in and that there is no memory for: the other
 * side's operations then end with ENOMEM. Returns: nothing. Owns: nothing is kept. Threads: any.
 * Blocks: no. */
void bmi_method_refusal(uint8_t bytes[BMI_FRAME_HEADER]);

/* A link of connect() reached its peer: frames flow from now on. If the core cannot start the
 * handshake, it closes the link within this call. Returns: nothing. Owns: nothing new. Threads:
 * poller, no lock held. Blocks: briefly. */
void bmi_method_link_up(struct bmi_link *link);

/* A link is gone; status 0 (closed by us or the peer) or the errno. The method has given back its
 * frames and transfers before; it gives back those that another thread queued meanwhile right after
 * this call returns. Returns: nothing. Owns: the core drops its references; then the method drops
 * its own. Threads: poller, no lock held. Blocks: briefly. */
void bmi_method_link_down(struct bmi_link *link, int status);

/* A whole header arrived. Fills *sink (length 0: no body, nothing further to do; body_arrived is
 * not called then). Returns: 0; <0: no valid frame, end the link with this status. Owns: the header
 * is read before it returns; the sink's memory is the method's to write until body_arrived or
 * retract. Threads: poller, receive lock held. Blocks: briefly. */
int bmi_method_frame_arrived(struct bmi_link *link, const uint8_t *header, struct bmi_sink *sink);

/* The first `have` bytes of a header arrived, on a link that has received no whole header so far.
 * For streams: a server of another protocol may send less than a header and wait. Returns: 0: read
 * on; <0: not our protocol, end the link with this status. Owns: nothing is kept. Threads: poller,
 * receive lock held. Blocks: briefly. */
int bmi_method_header_begun(struct bmi_link *link, const uint8_t *bytes, size_t have);

/* As frame_arrived and body_arrived in one, for a small message with a short header whose body is
 * in memory already: `have` bytes follow its header. No part of it waits between two calls, so no
 * receive lock is needed. Returns: how many bytes the frame has; 0: not suited, pass it to
 * frame_arrived; <0: end the link with this status. Owns: nothing is kept. Threads: poller, between
 * two frames of the link. Blocks: briefly. */
int bmi_method_frame_whole(struct bmi_link *link, const uint8_t *header, const uint8_t *body,
                           size_t have);

/* A method may call this whenever it is about to write more of the present body: if the message had
 * no receive when its header came, and has one now, *sink names the receive's memory from here on.
 * Returns: nothing. Owns: as frame_arrived's sink; memory named before is the core's again.
 * Threads: poller, receive lock held. Blocks: briefly. */
void bmi_method_body_place(struct bmi_link *link, struct bmi_sink *sink);

/* The whole body of the sink has arrived (or was drained). Not called for a retracted sink.
 * Returns: 0; <0: end the link with this status (a control frame's body was bad). Owns: the sink's
 * memory is the core's again, perhaps the program's. Threads: poller, receive lock held. Blocks:
 * briefly. */
int bmi_method_body_arrived(struct bmi_link *link, struct bmi_sink *sink);

/* Frames (a chain by next, each with its status) have gone or failed. Returns: nothing. Owns: the
 * frames and their bodies are the core's again. Threads: any, no send lock held.
 * Blocks: briefly. */
void bmi_method_frames_sent(struct bmi_link *link, struct bmi_frame *frames);

/* A transfer is complete, status 0 or an errno. Returns: nothing. Owns: the transfer and its memory
 * are the core's again. Threads: poller, no send lock held. Blocks: briefly. */
void bmi_method_transfer_done(struct bmi_link *link, struct bmi_transfer *transfer, int status);

/* A descriptor that the instance's poller waits for, together with all others: one wait over all
 * methods. The poller calls `ready` with EPOLL* events. EPOLLIN is level-triggered unless `events`
 * has EPOLLET. The structure is embedded in its owner and must outlive the watch. Only the poller
 * may remove it, or any thread while no other thread knows the owner yet. */
struct bmi_watch {
    void (*ready)(struct bmi_watch *watch, uint32_t events);
    int fd;
};

/* Waits for `events` of watch->fd from now on (epoll_ctl(2)). Returns: 0, or epoll_ctl's errno
 * (-ENOMEM, -ENOSPC, -EEXIST). Owns: the watch is lent until it is removed; the descriptor stays
 * the caller's. Threads: any. Blocks: no. */
int bmi_method_watch_add(struct bmi_instance *instance, struct bmi_watch *watch, uint32_t events);

/* Stops waiting for it: `ready` is not called again. Call it before the descriptor is closed.
 * Returns: nothing. Owns: the watch is the caller's again. Threads: poller, or any before the
 * poller knows the owner. Blocks: no. */
void bmi_method_watch_remove(struct bmi_instance *instance, struct bmi_watch *watch);

/* A one-shot timer, embedded in its owner. */
struct bmi_timer {
    void (*expired)(struct bmi_timer *timer);
    uint64_t due_ns;
    struct bmi_timer *next, **link_to_me; /* the core's; zero before first use */
};

/* Arms the timer: the poller calls `expired`, not before `delay_ms` milliseconds from now. Set it
 * again to move it, also from within `expired`. Returns: nothing. Owns: the timer is lent until it
 * has run or was cleared. Threads: any. Blocks: no. */
void bmi_method_timer_set(struct bmi_instance *instance, struct bmi_timer *timer,
                          uint64_t delay_ms);

/* Disarms a timer, which was set in this instance or never; does nothing if it is not set. Returns:
 * nothing. Owns: the timer is the caller's again. Threads: poller. Blocks: no. */
void bmi_method_timer_clear(struct bmi_instance *instance, struct bmi_timer *timer);

/* The clock that timers go by. Returns: nanoseconds since some moment (CLOCK_MONOTONIC). Owns:
 * nothing. Threads: any. Blocks: no. */
uint64_t bmi_method_now_ns(struct bmi_instance *instance);

/* A call that the poller is to make. */
struct bmi_deferred {
    void (*run)(struct bmi_deferred *deferred);
    _Atomic(struct bmi_deferred *) next; /* the core's; NULL: the call is not pending */
};

/* Queues a call: the poller calls `run` soon, and is woken if it sleeps. Each structure has one
 * pending call at a time; a second request before it ran is merged. Returns: nothing. Owns: the
 * structure is lent until `run` is called, and not accessed after that. Threads: any, any lock
 * held. Blocks: no. */
void bmi_method_defer(struct bmi_instance *instance, struct bmi_deferred *deferred);

/* The value of a setting: one of the method's own table, or one of the core's
 * ("connect_timeout_ms"). Returns: the value, in the unit that the table states; an unknown name is
 * a defect of the method and aborts. Owns: nothing. Threads: any. Blocks: no. */
int64_t bmi_method_setting(struct bmi_instance *instance, const char *name);

/* The value of a setting of kind BMI_SETTING_TEXT. Returns: the text, "" where none is set; an
 * unknown name aborts. Owns: the library's, valid until the process ends. Threads: any. Blocks:
 * no. */
const char *bmi_method_setting_text(struct bmi_instance *instance, const char *name);

/* Logs, if the level is on: printf-like, a line of at most 1,099 bytes; longer ones are cut. If
 * `link` is not NULL the line begins with its method's name. Returns: nothing. Owns: nothing is
 * kept. Threads: any, any lock held: a program's callback must not call BMI. Blocks: as the
 * callback or standard error does. */
void bmi_method_log(struct bmi_instance *instance, enum bmi_log_level level,
                    const struct bmi_link *link, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The method's counters in an instance, which BMI_GET_METHOD_STATISTICS returns. */
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
    BMI_COUNT_HANDSHAKES,
    BMI_COUNT_HANDSHAKES_RESUMED,
    BMI_COUNT_COUNTERS
};

/* A method counts what it sends in one of these stripes, by thread, and all else in the first. So
 * threads that send to different peers write different cache lines. */
enum { BMI_COUNTER_STRIPES = 17, BMI_COUNTER_STRIDE = 24 };
_Static_assert((int)BMI_COUNTER_STRIDE >= (int)BMI_COUNT_COUNTERS, "a stripe has room for all");

/* The counters of a method in an instance, BMI_COUNTER_STRIPES times BMI_COUNTER_STRIDE of them,
 * for bmi_counter_add. Returns: where they are; NULL: the method was not started there. Owns: the
 * instance's, from the call of `start` until `stop` has returned. Threads: any. Blocks: no. */
_Atomic int64_t *bmi_method_counters(struct bmi_instance *instance,
                                     const struct bmi_method *method);

/* Returns: the calling thread's stripe, not the first; each sixteenth thread has the same. Owns:
 * nothing. Threads: any. Blocks: no. */
unsigned bmi_method_counter_stripe(void);

/* Adds `amount` to one of bmi_method_counters, in a few instructions: for methods that count for
 * each message. Only the poller counts arrivals, and before the receiving thread reads the counter:
 * this needs no atomic addition, and neither does a process of one thread. Returns: nothing. Owns:
 * nothing. Threads: counters of received things (frames, bytes, reads, copies) the poller alone,
 * the rest any. Blocks: no. */
static inline void bmi_counter_add(_Atomic int64_t *counters, enum bmi_method_counter counter,
                                   int64_t amount)
{
    _Atomic int64_t *value = &counters[counter];
    bool pollers = counter == BMI_COUNT_FRAMES_RECEIVED || counter == BMI_COUNT_BYTES_RECEIVED ||
                   counter == BMI_COUNT_READS || counter == BMI_COUNT_COPIES ||
                   counter == BMI_COUNT_COPIED_BYTES;
    bool sent = counter == BMI_COUNT_FRAMES_SENT || counter == BMI_COUNT_BYTES_SENT ||
                counter == BMI_COUNT_WRITES;
    if (pollers)
        atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + amount,
                              memory_order_relaxed);
    else if (sent)
        bmi_add(value + (size_t)bmi_method_counter_stripe() * BMI_COUNTER_STRIDE, amount);
    else
        bmi_add(value, amount);
}

/* Adds `amount` to a counter; BMI_COUNT_LINKS is a gauge, which goes down too. Returns: nothing; a
 * method that does not run in the instance counts nothing. Owns: nothing. Threads: counters of
 * received things (frames, bytes, reads, copies) the poller alone, the rest any. Blocks: no. */
void bmi_method_count(struct bmi_instance *instance, const struct bmi_method *method,
                      enum bmi_method_counter counter, int64_t amount);

/* Sets the numeric host of the link's other side, before link_accepted or link_up; a network that
 * has none leaves it empty. `number` distinguishes the peers of one host in the log: a port, or a
 * process id; 0: not known. NULL removes the host of a link that the core never learns of. Returns:
 * nothing; without memory the host stays unknown. Owns: copied. Threads: poller. Blocks: no. */
void bmi_method_link_host(struct bmi_link *link, const char *host, uint32_t number);

/* Sets the two ends of the connection, before link_accepted or link_up: `size` bytes each, at most
 * BMI_LINK_END, in a form that is the same on both sides (tcp: address and port of both sockets).
 * They distinguish a direct connection from two with a relay between them; a network whose
 * processes trust each other can leave them out, on both sides. Returns: nothing. Owns: copied.
 * Threads: poller. Blocks: no. */
void bmi_method_link_ends(struct bmi_link *link, const void *dialler, const void *accepter,
                          size_t size);

/* The same for a network within a host: the ends are the effective users of both processes, `user`
 * that of the other one. Processes of one user trust each other, and in different user namespaces
 * each knows that user by another number, so they get no ends. Returns: nothing. Owns: nothing.
 * Threads: poller. Blocks: no. */
void bmi_method_link_user(struct bmi_link *link, uint32_t user, bool dialled);

/* Closes an accepted connection of the method that is idle or whose HELLO is overdue, because no
 * descriptor is left for a new connection, or its host has reached its limit. `host`: one of that
 * host's; NULL: one of the host that has most. Returns: whether one is being closed; its link ends
 * soon. Owns: nothing is kept. Threads: poller, no lock held. Blocks: no; looks at each peer. */
bool bmi_method_idle_close(struct bmi_instance *instance, const struct bmi_method *method,
                           const char *host);

/* ---- registrations -------------------------------------------------------------------------- */

/* A cache of registrations of the program's memory, for networks that need it registered. Keyed by
 * address range, in whole pages. Each registration counts its users and ends when it is no longer
 * needed. The cache is bounded (settings registration_bytes, registration_count): beyond the bounds
 * unused registrations end, least recently used first. The cache stays correct when a program frees
 * memory and maps other memory at the same address, without a notice from the program:
 * bmi/progress/registration.c explains how.
 *
 * Memory that stays registered (BMI_memalloc's) is registered once, whole, when it is allocated,
 * and put when it is freed; a get within it then costs only a look-up. Such memory must not share
 * pages with other memory. */
struct bmi_registrar {
    /* Registers whole pages: 0 and a handle, or an errno. After -ENOMEM and -ENOBUFS the cache ends
     * an unused registration and calls it again. leave ends a registration. Any thread may call
     * both, with the cache's lock held, perhaps with a peer's lock held: they must not call the
     * core, nor the cache. */
    int (*enter)(void *owner, uintptr_t address, size_t length, void **handle);
    void (*leave)(void *owner, uintptr_t address, size_t length, void *handle);
    /* A registration stands for addresses, for whichever pages are mapped there when the network
     * uses it (a copy by the processor, on-demand paging), not for the present pages: then the
     * cache keeps unused ones, and merges neighbours. */
    bool follows_mapping;
};

struct bmi_registration {
    uintptr_t address; /* of the registered range, which covers the requested one */
    size_t length;
    void *handle;            /* enter's */
    uint32_t users, holders; /* the rest is the cache's own */
    bool is_found;
    struct bmi_registration *older, *newer;
};

struct bmi_registration_cache;

/* Makes a cache, which uses the counters and settings of the instance. Returns: 0 or -ENOMEM. Owns:
 * the cache is the caller's, until bmi_method_cache_destroy; the registrar is copied, `owner` is
 * handed to it. Threads: any. Blocks: no. */
int bmi_method_cache_create(struct bmi_instance *instance, const struct bmi_method *method,
                            const struct bmi_registrar *registrar, void *owner,
                            struct bmi_registration_cache **cache);
/* Ends unused registrations, and the cache. NULL: nothing. Returns: nothing. Owns: the caller has
 * put every registration before; no handle is valid afterwards. Threads: one, the last user.
 * Blocks: as leave does. */
void bmi_method_cache_destroy(struct bmi_registration_cache *cache);
/* A registration that holds these bytes. Returns: 0, -EINVAL (no bytes, or none that a program can
 * have), -ENOBUFS (over the bounds, all in use), -ENOMEM, or an error of enter. Owns: the
 * registration is the cache's, lent until it is put. Threads: any; takes only the cache's lock.
 * Blocks: as enter and leave do. */
int bmi_method_cache_get(struct bmi_registration_cache *cache, const void *memory, size_t length,
                         struct bmi_registration **registration);
/* Gives it back, with the bytes it was got for. Returns: nothing. Owns: it is not the caller's any
 * more. Threads: any; takes only the cache's lock. Blocks: as leave does. */
void bmi_method_cache_put(struct bmi_registration_cache *cache,
                          struct bmi_registration *registration, const void *memory, size_t length);
/* Makes the cache forget every registration that touches these bytes: a method calls it before it
 * unmaps memory itself. Returns: nothing. Owns: registrations in use stay their users', and end
 * with the last. Threads: any; takes only the cache's lock. Blocks: as leave does. */
void bmi_method_cache_forget(struct bmi_registration_cache *cache, const void *memory,
                             size_t length);
/* Counters of a cache: `uses` - `registrations` were found. */
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
 * the program's until it is freed. `link` is NULL. To free memory of any instance, also of one that
 * has ended, the core passes the default instance and its `state`, which is NULL while the method
 * does not run there. Threads: any. Blocks: no. */
enum { BMI_METHOD_MEMORY = 1 << 20 };
struct bmi_method_memory {
    void *buffer;
    bmi_size_t size;
};

/* The method's choices on this host, into a struct bmi_method_choice (bmi.h), which is zeroed;
 * `state` and `link` are NULL, and the instance is the default one. Returns: 0, or the error that
 * start would return; -ENOSYS: there is nothing to choose. Owns: nothing. Threads: any. Blocks:
 * briefly, as start does. */
enum { BMI_METHOD_CHOICE = BMI_METHOD_MEMORY + 1 };

/* Whether the peer of an accepted link, which is up, has proved that its process may use an
 * address: value is a const char *, the address in its canonical form. Only of a `secure` method.
 * Returns 0: it has; another status: it has not. Owns: nothing. Threads: poller, the book's lock
 * held. Blocks: no. */
enum { BMI_METHOD_PROVED_ADDRESS = BMI_METHOD_MEMORY + 2 };

/* When the certificates and revocation lists of the instance expire, into a struct
 * bmi_method_expiry, which is zeroed; `link` is NULL. Only of a `secure` method that runs. Returns:
 * 0; -ENOSYS: it has none that expire. Owns: nothing. Threads: any. Blocks: briefly, it reads the
 * files if they have changed since. */
enum { BMI_METHOD_EXPIRY = BMI_METHOD_MEMORY + 3 };
struct bmi_method_expiry {
    int64_t certificates_s, revocations_s; /* as of time(2), the earliest; 0: there are none */
};

#endif
