/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nic.h - a software NIC with the rules of Myrinet's GM, over shared memory.
 *
 * Terms, GM's where GM has one:
 *   port      a program's access to the NIC. It may listen on names and has peers.
 *   node      the name under which peers reach a port: "host:number". Not a route: one host only.
 *   peer      the other port of a connection (GM has none: its NICs find each other by maps).
 *   token     the right to have one more operation outstanding. A send token goes with each send
 *             and directed send and comes back when its callback is called; a receive token goes
 *             with each buffer provided and comes back with the event that hands the buffer out.
 *   size      a power-of-two class. A buffer of size s holds messages of up to 2^s bytes. The
 *             sender names the class; the message takes a buffer of exactly that class and
 *             priority.
 *   priority  high and low are two independent, ordered channels to each peer.
 *   registered memory    the memory that the NIC may access. Counted in pages, with a limit and a
 *             cost.
 *   exposure     a peer's permission to write into a piece of registered memory, named by a key.
 *   directed send        writes into an exposed piece at the peer; the peer gets no event.
 *
 * A message that finds no buffer of its class and priority waits at the head of its channel, and so
 * do the messages behind it; after `resend_timeout_ms` it fails with -ETIMEDOUT and the channel
 * goes on. (Time-outs need a port that polls: messages to a port that does not poll wait until it
 * polls or dies.)
 *
 * The NIC has no thread: it works inside these calls.
 *
 * Threads. "Poller" below: nic_receive, nic_blocking_receive, nic_unknown, nic_arm, and
 * nic_close of one port are called by one thread at a time. Any thread may call everything else
 * at any time between nic_open and nic_close, also from callbacks. The poller calls callbacks from
 * within nic_unknown (nic_blocking_receive does not call them), with no lock of the NIC held. A
 * peer's handle stays valid until nic_peer_release, whatever happens to the peer.
 *
 * Errors are negated errno values. A callback or event may carry:
 *   -ETIMEDOUT    no buffer of that class and priority in time, or a dead link (GM_SEND_TIMED_OUT)
 *   -ECONNRESET   the peer closed its port, was killed, or broke the rules
 *                                                                (GM_SEND_TARGET_PORT_CLOSED)
 *   -ECONNREFUSED no port listens on that name                  (GM_SEND_PORT_NOT_OPEN)
 *   -EMFILE       this process has no descriptor left. A port that lacks one for a connection does
 *                 not end it: the dialling port waits for up to connect_timeout_ms
 *   -EACCES       peer of another user; or no such exposure, revoked, or out of its bounds
 *   -EPROTONOSUPPORT  the peer speaks another version
 *   -EPROTO       the peer wrote invalid data
 *   -ECANCELED    taken back by us                               (GM_SEND_DROPPED)
 *   -EFAULT       exposed memory is not mapped at the peer any more
 *
 * Trust: processes of one user trust each other with their memory, as the kernel lets them
 * (process_vm_writev). The NIC protects itself against a broken peer's shared data: it copies
 * rings, tables, and messages on the socket before it checks and uses them; invalid data ends that
 * peer only. docs/methods/gm-nic.md has the details.
 */
#ifndef BMI_GM_NIC_H
#define BMI_GM_NIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum nic_priority { NIC_LOW_PRIORITY, NIC_HIGH_PRIORITY, NIC_PRIORITIES };

enum {
    NIC_VERSION = 6,
    NIC_MIN_SIZE = 6,  /* smallest class: 64 bytes */
    NIC_MAX_SIZE = 20, /* largest class that a port may be opened with */
    NIC_NODE_MAX = 256 /* bytes of a host name, with the final 0 */
};

struct nic_port;
struct nic_peer;

/* ---- opening a port ------------------------------------------------------------------------- */

/* The timing model. All 0: off, and no time is spent on it. Both ends of a connection keep their
 * own side of it; a port with the model on paces its sends, by its own link and by the other's. */
struct nic_timing {
    uint64_t
        link_bytes_per_s;     /* of a port's link, each way; shared by all its peers; 0: no limit */
    uint64_t latency_ns;      /* first byte out to first byte in */
    uint64_t host_send_ns;    /* time of the processor for each send and directed send */
    uint64_t host_receive_ns; /* the same for each event of a message */
    uint64_t register_ns, register_page_ns;     /* for each call, for each page */
    uint64_t deregister_ns, deregister_page_ns; /* the same */
};

/* Faults that tests inject. All 0: none. Applied to this port's outgoing traffic. */
struct nic_faults {
    uint32_t drop_every; /* each nth message or directed send is lost once, then sent again */
    bool dead_link;      /* nothing goes out any more: fails after the resend time-out */
};

/* ERROR: caused by this process itself; a fault that a peer can cause is WARN at most. */
enum nic_log_level { NIC_LOG_ERROR, NIC_LOG_WARN, NIC_LOG_INFO, NIC_LOG_DEBUG };

struct nic_options {
    uint32_t send_tokens;              /* 2 or more */
    uint32_t receive_tokens;           /* 2 or more */
    uint32_t max_size[NIC_PRIORITIES]; /* largest class of messages; a ring holds four of those */
    uint64_t registered_pages_max;
    uint32_t exposures_max;     /* outstanding at once */
    uint32_t resend_timeout_ms; /* at least 1 */
    uint32_t resend_ms;         /* a lost message is sent again after this; at least 1 */
    uint32_t connect_timeout_ms;
    uint32_t revoke_timeout_ms; /* how long to wait for a peer that is writing */
    bool allow_other_users;
    bool refuse_vm_write; /* acts as if the kernel refused process_vm_writev: for tests */
    bool refuse_mapping;  /* does not map peers' dma_malloc'ed memory: for tests */
    struct nic_timing timing;
    /* Reports an event worth a user's attention. Any thread calls it, perhaps with locks held:
     * it must not call the NIC. NULL: silent. */
    void (*log)(void *context, enum nic_log_level level, const char *text);
    void *log_context;
};

/* Fills in the defaults: 256 tokens of both kinds, classes up to 15 (low) and 12 (high), half of
 * the machine's memory in pages, 65,536 exposures, 30 s, 1 ms, 10 s, 10 s, all else off.
 * Returns: nothing. Owns: nothing. Threads: any. Blocks: no. */
void nic_options_default(struct nic_options *options);

/* Sets options->timing by name: "off", or "myrinet2000" (2 Gb/s links, 7 us one way for a short
 * message, 3 us a page to register, 200 us to deregister).
 * Returns: 0, -EINVAL no such preset. Owns: nothing. Threads: any. Blocks: no. */
int nic_options_preset(struct nic_options *options, const char *name);

/* Opens a port.
 * Returns: 0; -EINVAL an option out of its range (logged, with its name); -ENOMEM; -EMFILE.
 * Owns: options are copied; *port is the caller's until nic_close. Threads: any. Blocks: no. */
int nic_open(const struct nic_options *options, struct nic_port **port);

/* Closes the port: peers are closed, their sends dropped without callbacks, memory of dma_malloc is
 * unmapped (but what nic_dma_keep keeps), peers not yet released are released. Waits until no peer
 * writes into our memory.
 * Returns: nothing. Owns: takes the port. Threads: poller, and no other call is under way.
 * Blocks: at most as nic_revoke.
 */
void nic_close(struct nic_port *port);

/* Listens as host:*number; an empty host stands for every host name without a listener of its own,
 * NIC_THIS_HOST for each name of this machine, and its numeric addresses. *number 0 takes
 * a free one and is set. A port may listen on several names. Returns: 0; -EADDRINUSE; -EINVAL host
 * is not of letters, digits, '.', '-', '_', ':', '[', ']', '%'; -ENAMETOOLONG; -EMFILE. Owns: host
 * is copied. Threads: any. Blocks: no. */
#define NIC_THIS_HOST "localhost"
int nic_listen(struct nic_port *port, const char *host, uint16_t *number);

/* ---- peers ---------------------------------------------------------------------------------- */

/* Connects to host:number. The outcome is an event, NIC_PEER_UP_EVENT or NIC_PEER_DOWN_EVENT, that
 * carries the peer. Until it is up sends are refused with -ENOTCONN.
 * Returns: 0; -EINVAL; -ENAMETOOLONG; -ENOMEM. Owns: *peer is the caller's until nic_peer_release;
 * context is kept for nic_peer_context. Threads: any. Blocks: no. */
int nic_connect(struct nic_port *port, const char *host, uint16_t number, void *context,
                struct nic_peer **peer);

/* Ends a connection. Unsent messages fail with -ECANCELED; the peer still receives the messages
 * in its rings, if it has buffers. All callbacks come, then NIC_PEER_DOWN_EVENT with status 0
 * (unless it was down before, or the event has been handed out). Returns: nothing. Owns:
 * nothing. Threads: any. Blocks: no. */
void nic_peer_close(struct nic_peer *peer);

/* Gives a peer back, after its NIC_PEER_DOWN_EVENT.
 * Returns: nothing. Owns: takes the peer. Threads: any. Blocks: no. */
void nic_peer_release(struct nic_peer *peer);

/* The caller's pointer of a peer; NULL for an accepted one until it is set.
 * Returns: it. Owns: nothing. Threads: poller, or any that orders it itself. Blocks: no.
 */
void *nic_peer_context(const struct nic_peer *peer);
void nic_peer_set_context(struct nic_peer *peer, void *context);

/* The known identity of a peer's process: pid as seen from here (0: of another PID namespace) and
 * user.
 * Returns: nothing. Owns: nothing. Threads: any, once it was up. Blocks: no.
 */
void nic_peer_process(const struct nic_peer *peer, int *pid, unsigned *uid);

/* ---- sending -------------------------------------------------------------------------------- */

/* The poller calls it once for each send that was accepted with 0. The token is back. */
typedef void nic_callback(struct nic_port *port, void *context, int status);

/* The smallest class that holds `length` bytes, and the reverse (GM's gm_min_size_for_length and
 * gm_max_length_for_size). Returns: it. Owns: nothing. Threads: any. Blocks: no. */
unsigned nic_min_size_for_length(uint64_t length);
uint64_t nic_max_length_for_size(unsigned size);

/* Longest message to this peer: the smaller of the two ports' max_size.
 * Returns: bytes. Owns: nothing. Threads: any, once the peer was up. Blocks: no. */
uint64_t nic_peer_max_length(const struct nic_peer *peer, enum nic_priority priority);

enum nic_send_flags {
    /* Done when the message is copied into the NIC, not when it took a buffer at the peer. If it
     * could be copied at once, nic_send returns 1: no callback follows, no token was used. One of
     * these that finds no buffer in time takes the connection down with -ETIMEDOUT. */
    NIC_BUFFERED = 1
};

/* Sends a message, gathered from `count` segments, to a buffer of class `size` and `priority`.
 * Messages of one priority to one peer arrive in the order of the calls.
 * Returns: 0 accepted, the callback follows; 1 done, no callback follows (NIC_BUFFERED only);
 * -EAGAIN no send token: try again after a callback; -EMSGSIZE more than class `size` holds or than
 * nic_peer_max_length; -EINVAL size or priority; -ENOTCONN not up yet, or down. Nothing happened
 * where <0.
 * Owns: the array and the memory are lent until the callback; after 1 they are free at once.
 * Threads: any. Blocks: no. */
int nic_send_with_callback(struct nic_peer *peer, const struct iovec *message, size_t count,
                           unsigned size, enum nic_priority priority, unsigned flags,
                           nic_callback *callback, void *context);

enum { NIC_HEAD = 16 };

/* Sends a short message of low priority: NIC_HEAD bytes, then `length` of `body`, to a buffer of
 * class `size`, if it can be copied into the NIC at once. In order with the others.
 * Returns: whether it was; else nothing happened: call nic_send, which reports the reason or waits.
 * Owns: nothing is kept. Threads: any. Blocks: no.
 */
bool nic_send_now(struct nic_peer *peer, const void *head, const void *body, size_t length,
                  unsigned size);

/* Writes the segments, one after another, to `offset` of the memory that the peer exposed under
 * `key`. Always copies from registered memory. Not ordered with messages, but a message sent after
 * its callback arrives after the data. The poller and nic_push do the work.
 * Returns: 0 accepted, the callback follows; -EAGAIN; -EFAULT; -ENOTCONN; -EINVAL as above. The
 * callback reports a wrong key.
 * Owns: the array and the memory are lent until the callback. Threads: any. Blocks: no.
 */
int nic_directed_send_with_callback(struct nic_peer *peer, const struct iovec *source, size_t count,
                                    uint64_t key, uint64_t offset, nic_callback *callback,
                                    void *context);

/* Runs pending directed sends to this peer in the calling thread, at most about `bytes` of them,
 * unless another thread runs them or the timing model paces them. The poller calls their callbacks,
 * and is woken if it sleeps; the callback of a send through shared memory comes when the peer has
 * taken the data from there.
 * Returns: whether some are left to be done by us. Owns: nothing. Threads: any. Blocks: for the
 * copying.
 */
bool nic_push(struct nic_peer *peer, uint64_t bytes);

/* Takes back sends of `context` to this peer. A message: only as long as nothing of it went out. A
 * directed send: the written part stays written, and the peer still takes the data in shared
 * memory. The call waits for a piece (256 KiB) that is being written right now. No callback comes
 * for a send that was taken back, and its token is back.
 * Returns: whether one was taken back (else its callback came or will come). Owns: the lent memory
 * is the caller's again. Threads: any. Blocks: for that piece.
 */
bool nic_cancel_send(struct nic_peer *peer, const void *context);

/* Send tokens that are left. Returns: a number, old when it is looked at. Threads: any. Blocks: no.
 */
uint32_t nic_num_send_tokens(const struct nic_port *port);

/* ---- receiving ------------------------------------------------------------------------------ */

/* Provides a buffer of 2^size bytes for one message of that class and priority, from whatever peer.
 * Returns: 0; -EAGAIN no receive token; -EFAULT not all registered; -EINVAL size or priority.
 * Owns: lent until an event hands it out, or nic_close. Threads: any. Blocks: no. */
int nic_provide_receive_buffer(struct nic_port *port, void *buffer, unsigned size,
                               enum nic_priority priority);

enum nic_event_type {
    NIC_NO_RECV_EVENT,   /* nothing */
    NIC_RECV_EVENT,      /* a message lies in `buffer` */
    NIC_FAST_RECV_EVENT, /* a message lies at `message`, still in the NIC; `buffer` was reserved for
                          * it and is handed out unused. `message` is in memory that the peer can
                          * still write: copy what you check, then check the copy
                          * (nic_memorize_message copies it to the buffer) */
    NIC_PEER_ACCEPTED_EVENT, /* a port connected to ours: `peer` is ours until nic_peer_release.
                              * Comes before any message of it, as does UP */
    NIC_PEER_UP_EVENT,       /* a connection of ours is there */
    NIC_PEER_DOWN_EVENT,     /* it is gone, or could not be made: `status` gives the reason. All its
                          * messages were handed out and all its callbacks called before */
    NIC_CROWDED_EVENT,       /* a connection found no descriptor in this process and waits: the
                              * program should close a peer that is idle */
    NIC_SENT_EVENT           /* nic_unknown calls callbacks of sends */
};

struct nic_event {
    enum nic_event_type type;
    enum nic_priority priority;
    struct nic_peer *peer;
    int status;
    unsigned size;       /* class of the buffer */
    void *buffer;        /* as provided; its token is back at the next nic_receive, if nic_unknown
                          * does not provide the buffer again */
    const void *message; /* RECV: the buffer; FAST_RECV: in the NIC */
    uint32_t length;     /* of the message */
};

/* Polls for one event: always one of the kinds above, with type NIC_NO_RECV_EVENT where there is
 * none. High priority messages come first. While the peers poll, too, the only system call is a
 * look at the descriptor every millisecond.
 * Returns: the event, valid, with `message`, until the next nic_receive, nic_blocking_receive,
 * nic_arm or nic_close. Owns: the port's. Threads: poller. Blocks: no.
 */
struct nic_event *nic_receive(struct nic_port *port);

/* Whether nic_receive is known to have something to do: a message of a recently active peer, or
 * a send that has ended. Takes a few instructions, while nic_receive looks at everything.
 * Returns: that; false is no guarantee. Owns: nothing. Threads: poller. Blocks: no. */
bool nic_pending(const struct nic_port *port);

/* As nic_receive, but sleeps until there is an event, or for at most timeout_ms (<0: for ever; then
 * NIC_NO_RECV_EVENT).
 * Returns: as nic_receive. Owns: as there. Threads: poller. Blocks: yes. */
struct nic_event *nic_blocking_receive(struct nic_port *port, int timeout_ms);

/* An event loop calls this for each event that it does not handle itself, as with GM: it calls the
 * callbacks of sends, and provides a message's buffer again.
 * Returns: nothing. Owns: nothing. Threads: poller. Blocks: no (callbacks may).
 */
void nic_unknown(struct nic_port *port, struct nic_event *event);

/* Copies the message of a FAST_RECV event to its buffer.
 * Returns: event->buffer. Owns: nothing. Threads: poller. Blocks: no. */
void *nic_memorize_message(struct nic_event *event);

/* A descriptor that is readable once nic_arm has returned true and there is something to receive;
 * level-triggered; for poll or epoll only. Until nic_receive is called again.
 * Returns: the descriptor. Owns: the port's. Threads: any. Blocks: no. */
int nic_descriptor(const struct nic_port *port);

/* Called before the poller sleeps on the descriptor: from now on peers ring the doorbell. The next
 * nic_receive reverses that.
 *     while (nic_arm(port) == false || poll(...) > 0) { event = nic_receive(port); ... }
 * Returns: false: there is something already: do not sleep, receive. Owns: nothing.
 * Threads: poller. Blocks: no.
 */
bool nic_arm(struct nic_port *port);

/* ---- memory --------------------------------------------------------------------------------- */

/* Registers memory: from now on the NIC may touch it. Ranges may overlap; pages count for each.
 * Returns: 0; -ENOSPC beyond registered_pages_max (logged with both figures); -EINVAL length 0 or
 * wrapping; -ENOMEM. Owns: nothing; the memory must stay mapped until deregistered.
 * Threads: any. Blocks: no (spends the modelled cost). */
int nic_register_memory(struct nic_port *port, void *memory, uint64_t length);

/* Ends one registration of exactly this range. Exposures of it must have been revoked and sends
 * from it be done. Returns: 0; -ENOENT no such registration. Owns: nothing. Threads: any. Blocks:
 * no. */
int nic_deregister_memory(struct nic_port *port, void *memory, uint64_t length);

/* Pages registered now. Returns: the number. Threads: any. Blocks: no. */
uint64_t nic_registered_pages(const struct nic_port *port);

/* Allocates registered memory that peers can map: the best place for both ends of a directed send,
 * and for receive buffers. Aligned to 64 bytes; to a page from 4096 bytes on.
 * Returns: the memory, zeroed only when new; NULL with errno ENOMEM, ENOSPC (limit of pages), or
 * EINVAL (0). Owns: the caller's until nic_dma_free or nic_close. Threads: any. Blocks: no. */
void *nic_dma_malloc(struct nic_port *port, uint64_t length);

/* Gives it back. Exposures of it must have been revoked.
 * Returns: nothing. Owns: takes the memory. Threads: any. Blocks: no. */
void nic_dma_free(struct nic_port *port, void *memory);

/* Lets memory of nic_dma_malloc, of 4096 bytes or more, stay mapped when the port closes: the
 * caller unmaps it. Do not free it. Returns: nothing. Owns: the caller's. Threads: any. Blocks: no.
 */
void nic_dma_keep(struct nic_port *port, void *memory);

/* Lets a peer (NULL: all peers of the port) write into registered memory, by directed sends that
 * name `key`. Exposures to a peer are to be revoked before nic_peer_release.
 * Returns: 0; -EFAULT not all registered; -ENOSPC exposures_max are outstanding; -EINVAL length 0.
 * Owns: the memory is open to peers until nic_revoke. Threads: any. Blocks: no. */
int nic_expose(struct nic_port *port, struct nic_peer *peer, void *memory, uint64_t length,
               uint64_t *key);

/* Ends an exposure: from its return on no peer writes into the memory. Waits for a peer that is
 * writing a piece (256 KiB at most); if the peer is stopped there for longer than
 * revoke_timeout_ms, its connection is ended. Returns: 0; -ENOENT no such exposure; -EBUSY revoked,
 * but a stopped peer may still write that piece when it wakes: keep the memory. Owns: the memory
 * is the caller's alone again. Threads: any. Blocks: up to revoke_timeout_ms. */
int nic_revoke(struct nic_port *port, uint64_t key);

/* The same in two steps, for a caller that must not wait. From the return of the first on no peer
 * begins to write there; it does not wait for a peer that has begun.
 * Returns: 0; -ENOENT no such exposure. Owns: the memory is lent on until nic_revoke_end returns 0.
 * Threads: any. Blocks: while this process copies a chunk for a peer (64 KiB).
 */
int nic_revoke_begin(struct nic_port *port, uint64_t key);

/* Called after nic_revoke_begin until it returns 0: checks that no peer writes. Ends no connection.
 * Returns: 0 no peer writes there any more, the key is forgotten; -EBUSY one does still.
 * Owns: with 0 the memory is the caller's alone again. Threads: any. Blocks: up to wait_ms.
 */
int nic_revoke_end(struct nic_port *port, uint64_t key, uint32_t wait_ms);

/* Called instead of nic_revoke_end by a caller that stops waiting. The caller must end the
 * connections of the peers that claim to write there; when they have gone, another exposure may use
 * this one's place. Until then it counts as outstanding. Returns: nothing. Owns: takes the key;
 * the memory must be kept, as nothing reports when it is safe. Threads: any. Blocks: no. */
void nic_revoke_leave(struct nic_port *port, uint64_t key);

/* ---- faults, figures ------------------------------------------------------------------------ */

/* Changes the injected faults; peer NULL: for all peers of the port, also later ones.
 * Returns: nothing. Owns: copied. Threads: any. Blocks: no.
 */
void nic_set_faults(struct nic_port *port, struct nic_peer *peer, const struct nic_faults *faults);

struct nic_statistics {
    uint64_t sent, sent_bytes; /* messages */
    uint64_t received, received_bytes;
    uint64_t waited_for_buffer;            /* messages that found no buffer at first; receiver */
    uint64_t timed_out;                    /* messages that never found one; sender */
    uint64_t lost;                         /* by nic_faults */
    uint64_t mapped, mapped_bytes;         /* pieces of directed sends by shared mapping */
    uint64_t vm_written, vm_written_bytes; /* by process_vm_writev */
    uint64_t bounced, bounced_bytes;       /* through shared memory */
    uint64_t doorbells;                    /* rung at sleeping peers */
    uint64_t sleeps;                       /* nic_arm that returned true */
    uint64_t refused;                      /* connections */
    uint64_t broken_peers;                 /* ended for invalid data */
};

/* Reads the figures since nic_open. Returns: nothing. Threads: any. Blocks: no. */
void nic_statistics(const struct nic_port *port, struct nic_statistics *statistics);

#endif
