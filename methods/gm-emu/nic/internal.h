/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - declarations that the NIC's files share. nic.h is for its users, share.h for the
 * other process.
 *
 * Locks, outermost first; no thread holds one while a callback or the user's code runs:
 *   peer->directed_lock   held by a thread that writes a piece of a directed send, or that must
 *                         wait for that
 *   port->lock            the list of peers, events of peers, arenas
 *   peer->lock            the send side: rings that we fill, queues, `state` from UP on
 *   port->memory_lock     registrations;  port->exposure_lock  exposures
 *   port->buffer_lock     receive buffers;  port->token_lock  tokens and completed sends
 *   port->wire_lock       the timing model
 * Fields marked "poller" belong to the thread that polls the port.
 */
#ifndef BMI_GM_NIC_INTERNAL_H
#define BMI_GM_NIC_INTERNAL_H

#include <bmi/lock.h>
#include <string.h>

#include "share.h"

enum {
    NIC_PIECE = 256 << 10,       /* bytes of a directed send written at a time: a revocation waits
                                  * for one piece */
    NIC_TIMED_PIECE = 32 << 10,  /* the same while the timing model shares links */
    NIC_BOUNCE_PIECE = 28 << 10, /* the same through the ring: whole pages that fit a message */
    NIC_WINDOW = 64,             /* most segments of one piece */
    NIC_MEMORIZED = 128,         /* messages up to this size are copied to their buffer at once */
    NIC_HOT = 8,                 /* each nic_receive polls so many recently active peers, */
    NIC_COLD = 16,               /* and so many of the others */
    NIC_NAMES = 1024,            /* hash lists of peers by the names of their connections */
    NIC_LOOK_NS = 1000000        /* how often a polling thread checks the descriptor */
};

/* Loads before it are not reordered with loads and stores after it. */
static inline void nic__fence_read(void)
{
#ifdef BMI_NO_FENCES
    bmi_fence();
#else
    atomic_thread_fence(memory_order_acquire);
#endif
}

/* A ring as one side sees it, in memory of its own. */
struct nic_ring {
    uint8_t *base;
    uint64_t size;
    uint64_t position; /* producer: written so far; consumer: consumed so far */
    uint64_t seen;     /* producer: consumed, as last read; consumer: position as last reported */
    uint64_t cleared;  /* producer: the stamp there was cleared ahead of time */
    bool looked;       /* consumer: found empty since it last took something */
};

/* A send token, in use. */
struct nic_send {
    struct nic_send *next;
    nic_callback *callback;
    void *context;
    const struct iovec *iov;
    size_t count;
    uint64_t length;
    uint64_t begin, end;         /* positions of its record, once it is in the ring */
    uint64_t full_at;            /* if ring_full: what the receiver had consumed then */
    uint64_t since_ns, retry_ns; /* time of the first attempt; no new attempt before retry_ns */
    int status;
    uint8_t size, priority;
    bool buffered, lost_once;
    /* directed sends */
    uint64_t key, offset, done;
    size_t index, index_offset; /* the place in iov */
    uint64_t due_ns;
    uint32_t number; /* of a bounced send; 0: it has none yet */
    bool answer_wanted, ring_full;
    bool bounced; /* from plain to plain memory: through the ring while the receiver polls */
};

struct nic_queue {
    struct nic_send *head, **tail;
};

/* The kind of object that an epoll event points to. */
enum nic_source_kind {
    NIC_SOURCE_DOORBELL,
    NIC_SOURCE_TIMER,
    NIC_SOURCE_LISTENER,
    NIC_SOURCE_SOCKET,
    NIC_SOURCE_PROCESS
};
struct nic_source {
    enum nic_source_kind kind;
    int fd; /* -1: none */
    void *owner;
};

struct nic_listener {
    struct nic_listener *next;
    struct nic_source source;
};

enum nic_state {
    NIC_DIALLING,  /* not connected yet; connecting is tried again */
    NIC_HANDSHAKE, /* HELLO was sent, or is awaited */
    NIC_UP,
    NIC_ENDING, /* takes no more sends; outstanding ones are returned to the user */
    NIC_DOWN    /* the event is queued, or was handed out */
};

/* Peer's arena, mapped here. */
struct nic_mapping {
    uint8_t *base;
    uint64_t length;
};

struct nic_peer {
    struct nic_port *port;
    void *context;
    _Atomic int state; /* enum nic_state; UP and beyond: written with peer->lock held, by poller */
    uint64_t max_length[NIC_PRIORITIES];

    /* receive side; poller */
    struct nic_ring in[NIC_PRIORITIES];
    bool stalled[NIC_PRIORITIES];
    uint32_t bounce_number; /* the directed send that comes through the ring, and its status */
    int bounce_status;
    uint64_t stall_until_ns; /* a peer that closed in order: until when its messages may wait */

    /* send side; peer->lock */
    _Alignas(NIC_LINE) struct bmi_lock lock;
    struct nic_ring out[NIC_PRIORITIES];
    struct nic_queue waiting[NIC_PRIORITIES]; /* not in the ring yet */
    struct nic_queue flying[NIC_PRIORITIES];  /* in the ring, without buffered sends */
    struct nic_queue directed;                /* the first is being written */
    struct nic_queue answering;               /* all data in the ring; the answer is awaited */
    struct nic_queue landing;                 /* written; they end at a time of the timing model */
    _Atomic uint32_t busy;                    /* number of sends in these queues */
    atomic_bool unsettled;                    /* some send may time out */
    uint32_t bounces;                         /* number of the last bounced send */
    uint64_t stall_position[NIC_PRIORITIES], stall_since_ns[NIC_PRIORITIES];
    uint64_t directed_next_ns;
    struct nic_faults faults;
    uint32_t fault_count;
    _Atomic uint64_t sent, sent_bytes;
    struct bmi_lock directed_lock;
    uint64_t unrung;                 /* directed_lock: bytes in the ring since the last doorbell */
    uint32_t turns_seen, turns_same; /* directed_lock: the receiver's `turns`, and for how many
                                      * pieces they were the same */

    /* shared; set before UP, unmapped when the peer is freed */
    struct nic_shared_end *mine, *theirs;
    struct nic_shared_port *their_port;
    struct nic_shared_wire *their_wire;
    void *link_memory;
    uint64_t link_size, their_port_size, link_name;
    _Atomic(struct nic_mapping *) arenas[NIC_ARENAS_MAX];
    int doorbell;           /* their eventfd */
    bool vm_write;          /* process_vm_writev works and reaches the process that sent the
                             * handshake */
    atomic_bool vm_refused; /* the kernel has refused it since */
    int pid;
    unsigned uid;
    uint64_t nonce[2], nonce_address;

    /* life; poller, or before the poller knows it */
    struct nic_source socket, process;
    bool accepted;
    bool crowded;            /* the kernel refused to send more descriptors during the handshake */
    bool said_bye;           /* the peer sent BYE */
    bool hung_up;            /* we ended it: its socket is watched for its end only */
    atomic_bool remote_gone; /* its socket or process has ended: it writes nothing any more */
    bool closed_by_us;
    bool announced; /* the user got an event of it */
    int status;
    uint64_t deadline_ns; /* of its handshake; once it is down, of writes that it may still make */
    uint64_t retry_ns;    /* no new attempt to connect before */
    uint64_t
        line_ns; /* interval of attempts while the other port lacks descriptors; 0: it does not */
    char host[NIC_NODE_MAX];
    uint16_t number;
    uint32_t arenas_told; /* how many of our arenas the peer knows */
    uint64_t arena_bytes; /* of its arenas that are mapped here */

    /* requests of other threads */
    atomic_bool close_asked, released, broken;

    struct nic_peer *next;       /* port->lock: all peers */
    struct nic_peer *named_next; /* port->lock: peers that were up, by hash of the name */
    struct nic_peer *event_next; /* port->lock: events */
    bool event_queued, event_up, event_down;
    bool in_table; /* poller */
    bool hot;      /* poller */
};

struct nic_registration {
    uint64_t begin, end;
    uint64_t furthest; /* the largest `end` of this and all earlier entries */
};

struct nic_extent { /* of an arena: used or free */
    struct nic_extent *next, *previous;
    uint64_t offset, length;
    bool used;
    bool kept; /* stays mapped when the port closes */
};

struct nic_arena {
    int fd;
    uint8_t *base;
    uint64_t length, used;
    struct nic_extent *first;
};

struct nic_buffer {
    struct nic_buffer *next;
    void *memory;
};

struct nic_port {
    struct nic_options options;
    bool timed; /* the model is on, in part at least */
    struct nic_shared_port *shared;
    uint64_t shared_size;
    struct nic_shared_wire *wire;
    int shared_fd, wire_fd, epoll;
    int reserve_fd; /* closed to accept and refuse a connection when no descriptor is left; -1:
                     * in use */
    struct nic_source doorbell, timer;
    uint64_t nonce[2];

    /* poller */
    struct nic_event event;
    struct nic_peer *held; /* the peer whose record the last event still refers to */
    enum nic_priority held_priority;
    uint64_t held_end;
    bool armed;
    struct nic_peer **table; /* all peers that are polled */
    uint32_t table_count, table_room, cold_cursor, hot_cursor, hot_burst, hot_count;
    struct nic_peer *hot[NIC_HOT];
    uint32_t calls;
    uint64_t looked_ns, timer_ns;
    uint64_t accept_ns;   /* no connection is accepted before; 0: no such limit */
    uint64_t crowded_ns;  /* no NIC_CROWDED_EVENT before */
    bool crowded;         /* a NIC_CROWDED_EVENT is due; counts in event_count */
    bool shortage_logged; /* since the last accepted connection */
    uint64_t next_due_ns; /* the earliest record seen that is not due yet; 0: none */
    uint64_t arena_bytes; /* of all peers' arenas that are mapped here */
    struct nic_buffer *own[NIC_PRIORITIES][NIC_MAX_SIZE + 1]; /* provided again by nic_unknown */
    struct nic_buffer *event_buffer; /* the last event's, unless nic_unknown provided it again */

    _Alignas(NIC_LINE) struct bmi_lock lock;
    struct nic_peer *peers, *named[NIC_NAMES]; /* a peer in either is not freed while a thread
                                                * holds `lock` */
    struct nic_peer *event_first, **event_last;
    struct nic_listener *listeners;
    struct nic_arena arenas[NIC_ARENAS_MAX];
    _Atomic uint32_t arena_count;
    struct nic_faults faults;
    _Atomic uint32_t event_count;
    atomic_bool attention; /* peers were added, closed, released, or broke */

    _Alignas(NIC_LINE) struct bmi_lock memory_lock;
    struct nic_registration *registrations;
    size_t registration_count, registration_room, registration_last;
    _Atomic uint64_t registered_pages, dma_bytes;
    struct bmi_lock exposure_lock;
    uint32_t *exposure_free, exposure_free_count, exposure_used; /* places */
    /* places that a peer may still claim: at the end of exposure_free */
    uint32_t exposure_left_count;
    uint64_t exposure_generation;

    _Alignas(NIC_LINE) struct bmi_lock buffer_lock;
    struct nic_buffer *buffers; /* the pool of tokens */
    struct nic_buffer *buffer_free, *ready[NIC_PRIORITIES][NIC_MAX_SIZE + 1],
        **ready_last[NIC_PRIORITIES][NIC_MAX_SIZE + 1];
    _Atomic uint32_t ready_count[NIC_PRIORITIES][NIC_MAX_SIZE + 1];

    _Alignas(NIC_LINE) struct bmi_lock token_lock;
    struct nic_send *tokens, *token_free;
    _Atomic uint32_t tokens_left;
    struct nic_queue completed;
    _Atomic uint32_t completed_count;

    _Alignas(NIC_LINE) struct bmi_lock wire_lock;
    uint64_t wire_free_ns; /* when the last of our outgoing traffic has left */

    struct {
        _Atomic uint64_t received, received_bytes, waited_for_buffer, timed_out, lost, mapped,
            mapped_bytes, vm_written, vm_written_bytes, bounced, bounced_bytes, doorbells, sleeps,
            refused, broken_peers, sent, sent_bytes;
    } counters;
};

/* ---- port.c --------------------------------------------------------------------------------- */
uint64_t nic__now(void);
void nic__log(struct nic_port *port, enum nic_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Rings a doorbell. All processes that can ring it share its counter. A write to a full counter
 * would wake no thread, so it is emptied first. Returns 0 or an errno. Any thread. */
int nic__ring(int doorbell);
/* Wakes our own poller, if it sleeps. The caller stores its data for the poller before. Any
 * thread. */
void nic__wake(struct nic_port *port);
/* Makes the poller look at all peers. Any thread. */
void nic__attention(struct nic_port *port);
/* For counters that only the poller changes. */
static inline void nic__count_own(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}
static inline void nic__count(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

/* Shows peers that this port reads its rings. Poller. */
static inline void nic__turn(struct nic_port *port)
{
    _Atomic uint32_t *turns = &port->shared->turns;
    atomic_store_explicit(turns, atomic_load_explicit(turns, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* ---- copy.c --------------------------------------------------------------------------------- */
/* As memcpy; a long copy goes past the caches. Any thread. */
void nic__copy(void *to, const void *from, uint64_t bytes);
/* Copies the pieces, one behind the other; none is empty. */
void nic__copy_all(uint8_t *to, const struct iovec *window, size_t count);

/* ---- memfd.c -------------------------------------------------------------------------------- */
/* Makes shared memory: *fd, and its mapping. Returns 0 or an errno. */
int nic__memory_make(uint64_t length, bool read_only_to_others, int *fd, void **memory);
/* Maps memory of another process, if it is of the kind that nic__memory_make makes, and long
 * enough. */
int nic__memory_map(int fd, uint64_t length, bool write, void **memory);

/* ---- address.c ------------------------------------------------------------------------------ */
struct sockaddr_un;
/* Fills the abstract address of host:number. Returns 0 or an errno; *length is the address's. */
int nic__address(const char *host, uint16_t number, struct sockaddr_un *address, uint32_t *length);
/* Whether it is "localhost", the machine's name, or a numeric address of the machine's. */
bool nic__host_is_here(const char *host);

/* ---- handshake.c: sockets and the messages on them ------------------------------------------- */
int nic__source_add(struct nic_port *port, struct nic_source *source, uint32_t events);
void nic__source_remove(struct nic_port *port, struct nic_source *source);
int nic__handshake_send(int fd, const struct nic_handshake *handshake, const int *fds,
                        size_t count);
void nic__hello_fill(struct nic_port *port, struct nic_handshake *handshake, uint16_t kind);
/* Reads and handles the messages on a peer's socket, or connections of a listener. Poller. */
void nic__socket_ready(struct nic_peer *peer, uint32_t events);
void nic__listener_ready(struct nic_port *port, struct nic_listener *listener);
/* Looks again at listeners that had no descriptor to accept with. Poller. */
void nic__listeners_resume(struct nic_port *port, uint64_t now);
/* Tries to connect, sends HELLO. Returns 0, -EAGAIN (again later), or the error. */
int nic__dial(struct nic_peer *peer);
/* Answers HELLO and goes up; where the kernel takes no more descriptors, `crowded`: again later.
 * Returns 0, or the error. */
int nic__welcome(struct nic_peer *peer);
/* Whether the pid still is the process that sent the handshake, as far as we may look. */
bool nic__process_is_peer(const struct nic_peer *peer);
/* Handles the end of the peer's process. Poller. */
void nic__process_ended(struct nic_peer *peer);
/* Sends a peer the arenas that it does not know yet. Poller. */
void nic__arenas_tell(struct nic_peer *peer);

/* ---- peer.c: life ---------------------------------------------------------------------------- */
struct nic_peer *nic__peer_new(struct nic_port *port);
void nic__peer_add(struct nic_peer *peer); /* to the port's list */
void nic__peer_free(struct nic_peer *peer);
/* Iterates over the peers that may use exposures of that connection (0: all peers): returns the one
 * after `before`, the first after NULL. With a port that is connected to itself a connection has
 * two ends here. port->lock held. */
struct nic_peer *nic__exposed_locked(struct nic_port *port, uint64_t link,
                                     const struct nic_peer *before);
/* The rings are mapped: the peer is up. Poller. */
int nic__peer_up(struct nic_peer *peer);
/* Begins to end the peer; the first status counts. Poller. */
void nic__peer_end(struct nic_peer *peer, int status);
/* The peer wrote invalid data: makes the poller end it. Any thread. */
void nic__peer_broken(struct nic_peer *peer);
/* Whether messages of an ending peer may still be handed out. Poller. */
bool nic__last_messages(struct nic_peer *peer);
/* Goes on with the end of a peer. Poller. */
void nic__peer_drain(struct nic_peer *peer);
void nic__peers_look(struct nic_port *port, uint64_t now); /* after attention, each millisecond */
/* Outputs the next NIC_PEER_* event, if there is one. */
bool nic__peer_event(struct nic_port *port, struct nic_event *event);

/* ---- ring.c ---------------------------------------------------------------------------------- */
/* Reserves room for a record of `length` bytes. Returns where they go; NULL: the ring is full. */
uint8_t *nic__ring_reserve(struct nic_ring *ring, uint64_t length);
/* The record is complete. */
void nic__ring_publish(struct nic_ring *ring, uint64_t length, uint8_t kind, uint8_t size,
                       uint64_t due_ns);
/* Reads the other end's position. False: invalid. */
bool nic__ring_refresh(struct nic_ring *ring, const _Atomic uint64_t *consumed);
static inline uint64_t nic__record_span(uint64_t length)
{
    return (sizeof(struct nic_record) + length + NIC_LINE - 1) / NIC_LINE * NIC_LINE;
}
/* Whether a record, or padding, is at the consumer's position. */
bool nic__ring_speaks(const struct nic_ring *ring);
/* The header at the consumer's position: copied to *head, true if one is there. Padding is
 * skipped. *bad is set where it is invalid. */
bool nic__ring_head(struct nic_ring *ring, struct nic_record_head *head, const uint8_t **payload,
                    bool *bad);

/* ---- send.c ---------------------------------------------------------------------------------- */
void nic__queue_init(struct nic_queue *queue);
void nic__queue_add(struct nic_queue *queue, struct nic_send *send);
struct nic_send *nic__queue_take(struct nic_queue *queue);
struct nic_send *nic__token_take(struct nic_port *port);
void nic__token_return(struct nic_port *port, struct nic_send *send);
/* Counts a send that is about to be queued. peer->lock held. */
void nic__busy_add(struct nic_peer *peer);
/* Ends a send, which is off its queue: the poller will call its callback. peer->lock held. */
void nic__send_done(struct nic_peer *peer, struct nic_send *send, int status);
void nic__send_timed_out(struct nic_peer *peer, struct nic_send *send);
/* Reserves room in a ring that we fill, as nic__ring_reserve; where it seems full, reads first how
 * much the peer has consumed. peer->lock held. */
uint8_t *nic__out_reserve(struct nic_peer *peer, int priority, uint64_t length);
/* Goes on with sends that wait or are in flight. Poller. */
void nic__send_progress(struct nic_peer *peer, uint64_t now);
/* Resend time-outs; each millisecond or so. Poller. */
void nic__send_timeouts(struct nic_peer *peer, uint64_t now);
/* Before sleeping: whether the poller could go on with a send. */
bool nic__send_runnable(struct nic_peer *peer, uint64_t now);
void nic__send_fail_all(struct nic_peer *peer, int status);
/* When a time-out or repetition may be due; UINT64_MAX: never. */
uint64_t nic__send_deadline(struct nic_peer *peer, uint64_t now);
/* Copies segments into a ring, one behind the other: messages, and pieces of directed sends. */
void nic__gather(uint8_t *to, const struct iovec *iov, size_t count);
/* Rings the peer's doorbell if it sleeps: after something was stored for it. */
void nic__doorbell(struct nic_peer *peer);

/* ---- directed.c ------------------------------------------------------------------------------ */
/* Writes up to `bytes`. Returns true when something is left. */
bool nic__directed_run(struct nic_peer *peer, uint64_t bytes, uint64_t now);
bool nic__directed_runnable(struct nic_peer *peer, uint64_t now);
/* Fails all, unless a piece is being written at the moment: false then. */
bool nic__directed_fail_all(struct nic_peer *peer, int status);
/* Outputs the next segments of the send's data, at most `limit` bytes. Returns how many; *bytes
 * is their sum. directed_lock. */
size_t nic__source_window(const struct nic_send *send, struct iovec window[NIC_WINDOW],
                          uint64_t limit, uint64_t *bytes);
void nic__source_advance(struct nic_send *send, uint64_t bytes);
/* The exposure that the key names, perhaps of another key by now; NULL: there is no such place. */
const struct nic_shared_exposure *nic__exposure_named(const struct nic_peer *peer, uint64_t key);

/* Where a part of a peer's arena is in our mapping of it, or NULL. */
uint8_t *nic__mapped(struct nic_peer *peer, uint32_t arena, uint64_t offset, uint64_t bytes);

/* ---- bounce.c -------------------------------------------------------------------------------- */
/* The result of one step of a directed send. TOLD: all data is in the ring; the answer is due. */
enum nic_step { NIC_STEP_MORE, NIC_STEP_FINISHED, NIC_STEP_TOLD, NIC_STEP_BLOCKED };
/* Called when a directed send begins: decides whether it goes through the ring although it could
 * be written. */
void nic__bounce_choose(struct nic_peer *peer, struct nic_send *send);
/* Whether the receiver has looked at its rings since the last pieces, or sleeps: then it copies
 * ring data at once. To be asked once a piece; directed_lock. */
bool nic__receiver_looks(struct nic_peer *peer);
/* Puts the next piece into the ring, at most `limit` bytes. MORE, TOLD, BLOCKED. directed_lock. */
enum nic_step nic__bounce_step(struct nic_peer *peer, struct nic_send *send, uint64_t limit);
/* Whether as many answers are outstanding as there are places for them. peer->lock. */
bool nic__answers_full_locked(const struct nic_peer *peer);
/* Whether the peer has answered; its errno goes to *status. */
bool nic__answered(const struct nic_peer *peer, const struct nic_send *send, int *status);
/* Copies a piece that arrived through the ring. False: the record is invalid. Poller. */
bool nic__bounce_arrived(struct nic_peer *peer, const uint8_t *payload, uint64_t length);

/* ---- receive.c ------------------------------------------------------------------------------- */
bool nic__peer_poll(struct nic_peer *peer, struct nic_event *event);
/* Whether a poll would return an event; changes nothing. */
bool nic__peer_ready(struct nic_peer *peer, uint64_t now, uint64_t *due_ns);
/* Adds the peer to those that each nic_receive polls, until more recently active ones replace it.
 * The peer must be in the table. Poller. */
void nic__hot_add(struct nic_peer *peer);
/* Reports our position to the peer, if it does not know it. */
void nic__told(struct nic_peer *peer, int priority);
void nic__hold_finish(struct nic_port *port);
void nic__buffers_init(struct nic_port *port);
static inline bool nic__lock_try(struct bmi_lock *lock)
{
    uint32_t unlocked = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &unlocked, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* ---- memory.c, dma.c, expose.c -----------------------------------------------------------------
 */
/* Counts memory of nic_dma_malloc. */
int nic__dma_count(struct nic_port *port, uint64_t bytes);
bool nic__registered(struct nic_port *port, const void *memory, uint64_t length);
bool nic__registered_all(struct nic_port *port, const struct iovec *iov, size_t count);
/* The arena that holds this range, or NIC_NO_ARENA. */
uint32_t nic__arena_of(struct nic_port *port, const void *memory, uint64_t length,
                       uint64_t *offset);
void nic__arenas_free(struct nic_port *port);
int nic__exposures_init(struct nic_port *port);
/* Copies into exposed memory, if it is exposed to that link: 0 or an errno. Poller. */
int nic__exposure_write(struct nic_port *port, uint64_t link, uint64_t key, uint64_t offset,
                        const void *from, uint64_t length);
/* Where exposed memory is, or NULL. */
uint8_t *nic__exposure_place_locked(struct nic_port *port, uint64_t link, uint64_t key,
                                    uint64_t offset, uint64_t length);
void nic__exposures_end(struct nic_port *port);
/* A connection has gone (0: none): reuses the places of its abandoned exposures, or of abandoned
 * exposures to all, if no peer claims them. port->lock held. Poller, nic_revoke_leave. */
void nic__exposures_left_look_locked(struct nic_port *port, uint64_t link);
/* Whether the peer writes into our memory now. */
bool nic__claimed(struct nic_peer *peer);

/* ---- timing.c -------------------------------------------------------------------------------- */
void nic__spend(uint64_t ns); /* time of the processor */
/* Takes a share of both links for `length` bytes: when the last byte arrives. *next_ns: when one
 * of that length may follow. */
uint64_t nic__wire_reserve(struct nic_peer *peer, uint64_t length, uint64_t now, uint64_t *next_ns);
/* Whether an injected fault drops the next transmission to this peer. peer->lock held. */
bool nic__fault_drops(struct nic_peer *peer);

/* ---- wait.c ---------------------------------------------------------------------------------- */
void nic__look(struct nic_port *port, uint64_t now); /* at descriptors and deadlines */
void nic__disarm(struct nic_port *port);

#endif
