/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ib.h - what the files of the ib method share.
 *
 * A link is a TCP connection made at the listen address (the *address exchange*, in short exchange:
 * the two processes exchange their endpoints' names there, wake each other up, say goodbye, and
 * notice each other's death), and a token in each direction that marks the link's messages on a
 * reliable datagram endpoint of libfabric's. A process has one endpoint, over tcp one for each of
 * its addresses that a peer uses. Messages carry frames: a prefix (token, sequence number), then
 * headers and bodies, back to back; a body may go on in the next message.
 *
 * Locks, in this order; each is held for a few lines:
 *   receive_lock  one link's receive side. The poller holds it over a message, calls of
 *                 bmi_method_frame_arrived and body_arrived included.
 *   (the core's peer lock)
 *   send_lock     one link's queue, state, and the writing side of its exchange.
 *   fabric_lock   the fabric and its endpoints: every call of libfabric on them, slots and pieces.
 *                 Of the core only bmi_method_defer and the registration cache are called under it.
 * "Driver" below means: touched only by the polling thread, so by one thread at a time.
 *
 * A thread that flushes posts, under send_lock and, for each call, fabric_lock. Frames are copied
 * into a slot of registered memory and go back to the core at once: the network holds nothing that
 * the core lends but the memory of puts and gets.
 */
#ifndef IB_H
#define IB_H

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "methods/stream/accept.h"

struct fi_provider;

/* What is called of libfabric itself; set by ib_library_load. */
extern struct ib_library {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attributes, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int error);
    int (*getparams)(struct fi_param **parameters, int *count);
    void (*freeparams)(struct fi_param *parameters);
    int (*param_get)(struct fi_provider *provider, const char *name, void *value);
    uint32_t (*version)(void);
    bool cuts; /* an address that is removed takes its connection with it */
} ib_library;
/* Loads libfabric, once for all schemes. -ENOSYS, -ENOMEM: it cannot be used, for that reason. */
int ib_library_load(char *reason, size_t size);
/* What the program does at which signal: providers change it. */
enum { IB_SIGNALS = 65 };
struct ib_signals {
    struct sigaction actions[IB_SIGNALS];
    bool known[IB_SIGNALS];
};
void ib_signals_save(struct ib_signals *signals);
void ib_signals_restore(const struct ib_signals *signals);

enum {
    IB_VERSION = 3,           /* of the exchange, the doorbell's page, and the messages' prefix */
    IB_PREFIX = 16,           /* bytes before the frames of a message */
    IB_MESSAGE_BYTES = 16384, /* of one message: what providers send without a handshake */
    IB_SLOTS = 128,           /* messages under way, of all links, */
    IB_LINK_SLOTS = 16,       /* and of one */
    IB_SLOTS_MORE = 32,       /* made at a time when all are taken */
    IB_KEYS = 32,             /* of memory, drawn at a time */
    IB_BUFFERS = 4,           /* posted for messages to arrive in */
    IB_BUFFERS_SHM = 24,      /* the same: as many messages as may come between two looks */
    IB_QUEUE_SHM = 4096,      /* completions that have room, likewise */
    IB_BUFFER_BYTES = 256 << 10,
    IB_NAME_BYTES = 128,      /* of an endpoint's name */
    IB_HOST_BYTES = 64,       /* of a numeric host with its interface */
    IB_PROVIDER_BYTES = 64,   /* of a provider's name */
    IB_REGIONS = 64,          /* segments of one registration */
    IB_IOVECS = 16,           /* of one put or get; the provider's limit may be less */
    IB_PIECE_BYTES = 1 << 20, /* of one put or get */
    IB_PIECES = 8,          /* of one link under way: what frames, pings among them, wait behind */
    IB_PIECES_ALL = 512,    /* of all links: beyond that each has one */
    IB_PIECES_KEPT = 64,    /* free ones, of all links */
    IB_BATCH = 16,          /* completions read at a time */
    IB_PASS_BATCHES = 8,    /* of one pass; then others have their turn */
    IB_ENDPOINTS = 16,      /* of one process, each with a local address of its own */
    IB_PEER_ROOM = 1 << 20, /* for what shm has for a peer, beside memory that they share */
    IB_CONNECTION_ROOM = 40 << 20, /* for what the first connection of rxm and tcp takes */
    IB_IDLE_PEERS = 64,            /* names kept in the address vector though no link uses them */
    IB_RETRY_LEAST_MS = 1,         /* when a full network tells nothing of room */
    IB_RETRY_MOST_MS = 16,
    IB_TRANSFER_WAIT_MS = 2000 /* a dead link's transfers may still be with the network that long */
};

/* What the network is told apart by when it gives something back: first in each. */
enum ib_operation_kind {
    IB_OPERATION_RECEIVE,
    IB_OPERATION_SEND,
    IB_OPERATION_PIECE,
    IB_OPERATION_SPARE
};
struct ib_operation {
    struct fi_context2 context; /* libfabric's */
    enum ib_operation_kind kind;
};

/* Where messages arrive: many in each, one behind the other. */
struct ib_buffer {
    struct ib_operation operation;
    struct ib_endpoint *endpoint;
    uint8_t *memory;
    bool unposted; /* driver */
};

/* A message on its way out. */
struct ib_slot {
    struct ib_operation operation;
    struct ib_slot *next; /* fabric_lock: the free ones */
    uint64_t token;       /* our own, of the link that it belongs to */
    uint8_t *memory;
    void *descriptor; /* of its memory's registration */
};

/* More of them; kept until the endpoint is closed. */
struct ib_slots {
    struct ib_slots *next;
    struct fid_mr *registration; /* NULL: needs none */
    struct ib_slot slots[IB_SLOTS_MORE];
    uint8_t memory[IB_SLOTS_MORE][IB_MESSAGE_BYTES];
};

/* A scheme, and the providers that it takes, best first. */
struct ib_kind {
    const char *scheme;
    const char *const *providers;
    const char *advice; /* what to do when there is none */
};

/* An endpoint's name in the address vector. Driver. */
struct ib_peer {
    struct ib_peer *next; /* all, or the idle ones */
    fi_addr_t address;
    uint32_t users; /* links */
    uint32_t size;
    bool broken; /* not in the vector any more, or on its way out of it */
    /* fabric_lock: where a post to it has failed, or had to wait; NULL: nowhere */
    const struct ib_endpoint *doubtful;
    atomic_bool settled; /* any thread: its connection was looked for */
    uint8_t name[];
};

struct ib_doorbell; /* doorbell.c: a wake-up flag in memory that two processes share */
struct ib_dial;
struct ip_names;
struct ib_greeting;
struct ib_remainder;
struct ib_piece;
struct ib_move;

/* Memory of ours, registered where the provider wants that. */
struct ib_memory {
    uint8_t *bytes;
    size_t size;
    struct fid_mr *registration; /* NULL: needs none */
};

/* Constant once made, but for what posting needs. */
struct ib_endpoint {
    struct ib_endpoint *next; /* driver */
    struct fid_ep *id;
    char host[IB_HOST_BYTES]; /* the local address that it is for, where there are several */
    uint8_t name[IB_NAME_BYTES];
    size_t name_size;
    int name_hold; /* see ib_provider_name_hold */
    struct ib_memory memory;
    uint32_t buffer_count;
    uint32_t unposted;         /* driver: buffers that the provider did not take back yet */
    struct ib_operation spare; /* driver: a receive that holds what posting a buffer needs */
    bool spare_posted;         /* driver */
    struct ib_buffer buffers[IB_BUFFERS_SHM];
};

struct ib_fabric {
    /* constant once open */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fid_cq *queue;
    int wait_fd;            /* -1: the provider has none, the doorbell serves */
    bool local_memory;      /* local memory of transfers must be registered */
    bool virtual_addresses; /* regions are told by address, else by offset */
    bool provider_keys;     /* the provider chooses keys, else we */
    bool real_registration; /* costs much: through the cache */
    bool breaks;            /* there are connections: see ib_provider_connects */
    bool put_delivers;      /* a put asks for delivery: later messages may overtake it, or a
                               connection that breaks lose it unnoticed */
    bool tells_source;      /* see ib_provider_tells_source */
    bool shared;            /* the provider is shm: processes share memory */
    bool many;              /* it has an endpoint for each local address */
    size_t message_max;     /* bytes of a message */
    size_t inject_max, piece_max;
    size_t iovecs, remote_iovecs; /* of a piece */
    struct ib_memory memory;      /* of slots */

    /* fabric_lock */
    uint64_t keys[IB_KEYS]; /* random; the first `key_count` were not used yet */
    uint32_t key_count;
    struct ib_slot *free_slots;
    uint32_t taken_slots;
    struct ib_slots *more_slots;
    struct ib_piece *lost; /* pieces of dead links that were never given back */
    struct ib_piece *free_pieces;
    uint32_t free_piece_count;
    atomic_uint pieces; /* with the network, of all links that live */

    struct ib_slot slots[IB_SLOTS];
    struct ib_endpoint *endpoints; /* driver */
};

struct ib_state {
    struct bmi_method *method;
    _Atomic int64_t *counters; /* the method's */
    const struct ib_kind *kind;
    char provider[IB_PROVIDER_BYTES]; /* constant after start */
    bool reads; /* constant after start: gets are ours, out of the other process's memory */

    struct bmi_lock fabric_lock;
    struct ib_fabric *fabric; /* opened once, by listen or the driver; NULL: not yet. Others see it
                                 by a link that is up */
    atomic_bool registers;    /* any thread: it is open, and registering costs */
    struct bmi_watch wait_watch;
    bool armed;                   /* driver: our doorbell says that we sleep */
    struct ib_doorbell *doorbell; /* driver: our own; NULL: not needed */
    struct bmi_registration_cache *cache;

    struct bmi_lock list_lock;
    struct ib_link *links;             /* list_lock */
    _Atomic(struct ib_link *) blocked; /* links whose next message found no room; referenced */
    struct bmi_deferred kick;          /* has the driver look at the blocked ones */

    /* driver */
    struct bmi_timer retry;
    uint32_t retry_ms;       /* 0: not set */
    struct ib_link **tokens; /* by index; NULL: free */
    uint32_t token_count;
    struct ib_peer *peers, *idle_peers;
    uint32_t idle_count;
    struct stream_acceptor acceptor;
    struct ip_names *names;
    atomic_int port; /* the first one listened on, 0: none */
};

enum ib_phase {
    IB_NEW,      /* made by connect, not seen by the driver */
    IB_DIALLING, /* name being looked up, or connection under way */
    IB_GREETING, /* connected; the other side's endpoint is not known yet */
    IB_UP,
    IB_ENDING, /* nothing more moves; transfers are still with the network */
    IB_DOWN
};

enum ib_closing { IB_OPEN, IB_CLOSE_LINGERING, IB_CLOSE_NOW };

struct ib_link {
    struct bmi_link base;
    struct bmi_watch watch; /* watch.fd is the exchange, -1: none. Changed in the driver under
                               send_lock */
    struct ib_link *list_next, **list_to_me; /* list_lock */
    struct ib_link *blocked_next;            /* of the thread that put it there, then took it */
    struct bmi_deferred deferred;            /* runs ib_link_step; referenced while `kicked` */
    atomic_bool kicked;
    atomic_bool is_blocked;
    atomic_uint exposed; /* registrations that the peer was told of, and may be writing to */

    /* Changed in the driver under send_lock; read in the driver or under send_lock. */
    enum ib_phase phase;
    struct ib_endpoint *endpoint; /* ours, by which the peer is reached */
    struct ib_peer *peer;
    struct ib_doorbell *doorbell; /* the peer's; NULL: it needs none */
    uint64_t their_token;
    uint64_t token; /* ours; 0: none */

    /* send_lock */
    struct bmi_lock send_lock;
    struct bmi_frame *queue, *queue_last;
    struct ib_remainder *remainder;     /* the queue's first, if it is of our making */
    struct ib_move *moves, **moves_end; /* transfers that are not over */
    struct ib_move *posting;            /* the first of them that has pieces to post */
    struct ib_move *done;               /* transfers that are over, to be told by the driver */
    struct bmi_transfer *failed;        /* that there was no memory for, likewise */
    uint32_t sequence_out;              /* messages posted */
    int failure;                        /* 0, or what a post failed with */
    enum ib_closing closing;            /* what the core asked for */
    uint8_t out[12];                    /* what the exchange did not take yet */
    uint8_t out_size;
    uint32_t pieces; /* with the network */
    uint32_t slots;  /* fabric_lock: likewise, of messages */
    bool wants_slot; /* fabric_lock: waits for one of them */
    bool ready;      /* the peer is: it has dialled us, and sent its first message, or we it */
    uint32_t rung;   /* the peer's sleep that we rang for last */

    /* driver */
    bool watched;
    bool dialled;
    bool taken_down; /* its end is under way, or over */
    bool bye_sent, bye_seen, done_sent;
    bool room_watched; /* for room in the exchange */
    uint8_t in_size;
    uint8_t in[4];         /* a record cut in two */
    uint32_t bye_sequence; /* what the other side will have sent */
    int end_status;
    struct ib_dial *dial;         /* while dialling */
    struct ib_greeting *greeting; /* while greeting */
    struct bmi_timer timer;

    /* receive_lock */
    struct bmi_lock receive_lock;
    uint32_t sequence_in; /* messages that have come */
    bool retracted;       /* the sink's owner has gone */
    uint64_t body_left;   /* bytes of the present body still to come */
    struct bmi_sink sink;
};

#define ib_container(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline struct ib_link *ib_link_of(struct bmi_link *base)
{
    return ib_container(base, struct ib_link, base);
}

static inline struct ib_state *ib_state_of(const struct ib_link *link)
{
    return link->base.state;
}

static inline void ib_lock(struct bmi_lock *lock)
{
    bmi_lock_take(lock);
}

static inline void ib_unlock(struct bmi_lock *lock)
{
    bmi_lock_give(lock);
}

static inline void ib_assert_locked(struct bmi_lock *lock)
{
    assert(bmi_lock_held(lock));
    (void)lock;
}

static inline void ib_number_put(uint8_t *to, uint32_t number)
{
    number = htole32(number);
    memcpy(to, &number, 4);
}

static inline uint32_t ib_number_get(const uint8_t *from)
{
    uint32_t number;
    memcpy(&number, from, 4);
    return le32toh(number);
}

static inline void ib_count(const struct ib_state *state, enum bmi_method_counter counter,
                            int64_t amount)
{
    if (amount)
        bmi_counter_add(state->counters, counter, amount);
}

/* provider.c: which provider, and what it wants of us. */
/* Finds the best provider of the kind that this host has, without opening it. Tells what was found
 * and why, or what is missing. Any thread. */
int ib_provider_choose(const struct ib_kind *kind, struct bmi_method_choice *choice);
/* Whether it has connections: one failed operation ends all of one, for good, and what was begun on
 * it goes on until it is cut. */
bool ib_provider_connects(const char *provider);
/* Whether it says which endpoint a message comes from. */
bool ib_provider_tells_source(const char *provider);
/* The provider's description for an endpoint at this numeric host (NULL: any). To be freed with
 * fi_freeinfo. */
int ib_provider_info(const struct ib_state *state, const char *host, struct fi_info **info);
/* Chooses the endpoint's name where that is text. */
int ib_provider_name_choose(struct fi_info *info);
/* Keeps other processes from removing what an endpoint of that name shares, also when the process
 * has ended that its name tells of, and a child has it. Returns a descriptor to be closed with the
 * endpoint; -1: nothing is shared. */
int ib_provider_name_hold(const char *name);

/* fabric.c: what all endpoints share. */
/* Opens it, on the network of this numeric host (NULL: any), if it is not open. listen, before the
 * library runs, or driver. */
int ib_fabric_open(struct ib_state *state, const char *host);
void ib_fabric_close(struct ib_state *state);
/* Makes more slots. Returns 0, -ENOMEM, or what registering failed with. fabric_lock. */
int ib_slots_make_locked(struct ib_fabric *fabric);
/* Logs a failed step of opening, with what can be done. Returns the errno. */
int ib_step_failed(const struct ib_state *state, const char *step, ssize_t status);
/* The same where queues are made: providers refuse too large ones as a wrong argument. */
int ib_queues_failed(const struct ib_state *state, const char *step, ssize_t status);
/* Closes an object of libfabric's; NULL: none. */
void ib_id_close(struct fid *id);

/* endpoint.c */
/* The endpoint for this numeric local host (NULL: any), made if it is not there, as the fabric is.
 * listen, before the library runs, or driver. */
int ib_endpoint_get(struct ib_state *state, const char *host, struct ib_endpoint **endpoint);
/* Closes all; their memory is freed later, when nothing of libfabric's knows it. */
void ib_endpoints_close(struct ib_fabric *fabric);
void ib_endpoints_free(struct ib_fabric *fabric);
/* Posts a buffer for messages to arrive in. fabric_lock. */
int ib_buffer_post_locked(struct ib_buffer *buffer);
/* Posts a receive for a tag, which nobody sends to. fabric_lock. */
int ib_spare_post_locked(struct ib_endpoint *endpoint);
/* Maps memory of ours, and registers it where the provider wants that. Returns 0 or an errno; what
 * is there then is to be unmapped in any case. fabric_lock, or nobody else knows the fabric. */
int ib_memory_map_locked(struct ib_fabric *fabric, size_t size, struct ib_memory *memory);
void ib_memory_unmap(struct ib_memory *memory);

/* fabric.c: peers */
/* The peer of that name, counted up. Returns 0, -ENOMEM, -EADDRNOTAVAIL: the provider does not take
 * it. Driver. */
int ib_peer_get(struct ib_state *state, const uint8_t *name, uint32_t size, struct ib_peer **out);
void ib_peer_put(struct ib_state *state, struct ib_peer *peer);
/* The provider's connection to the peer broke: ends all links that use it, and takes its name out
 * of the vector, and the connection with it, so that the next link makes another one. Driver, no
 * lock. */
void ib_peer_break(struct ib_state *state, struct ib_peer *peer, int status);
/* What libfabric answered, as an errno. */
int ib_error(ssize_t status);

/* socket.c */
/* Gives the provider's connection to the link's peer, if it is one of TCP, the options of the tcp
 * method's. To be called when it has taken a message. Any thread. */
void ib_peer_settle(const struct ib_link *link);
/* Whether these are the two ends of one TCP connection. */
bool ib_sockets_joined(int one, int other);
/* The numeric local host of a connection, with the interface where the address needs that. */
int ib_socket_host(int fd, char *host, size_t size);
/* Makes a peer's name right for this host, where it is an address of one link, and logs a name
 * that is another host's than the exchange. Returns 0 or an errno. Driver. */
int ib_socket_name_check(const struct ib_link *link, uint8_t *name, size_t size);
/* The user whose process has the other end of a connection within this host. Returns 0 or an errno;
 * -ENOENT: it is not within this host. */
int ib_socket_peer_user(int fd, uid_t *user);

/* progress.c */
/* Looks at the completion queue. Driver. */
int ib_progress(void *state);
bool ib_arm(void *state);
/* Has the driver flush the link again when there is room. Any thread, send_lock. */
void ib_link_block_locked(struct ib_link *link);
/* Takes all blocked links off the list, and flushes them if asked to. Driver. */
void ib_blocked_flush(struct ib_state *state, bool flush);
void ib_kicked(struct bmi_deferred *deferred);
void ib_retry_expired(struct bmi_timer *timer);
void ib_wait_ready(struct bmi_watch *watch, uint32_t events);
/* Whether the other side has closed the exchange, which we may not have looked at yet. Driver. */
bool ib_link_hung_up(const struct ib_link *link);

/* message.c */
/* A message has arrived, from that endpoint; ends its link if it is bad. Driver, no lock. */
void ib_message_arrived(struct ib_state *state, fi_addr_t from, const uint8_t *bytes, size_t size);
bool ib_retract(struct bmi_link *base, void *owner);
/* The link with this token of ours, or NULL. Driver. */
struct ib_link *ib_token_find(const struct ib_state *state, uint64_t token);
int ib_token_make(struct ib_link *link);
void ib_token_drop(struct ib_link *link);

/* link.c: a link's life */
struct ib_link *ib_link_new(struct ib_state *state, int fd, bool dialled);
/* Takes back a link that the core has not kept. Driver. */
void ib_link_forget(struct ib_link *link);
/* Has the driver look at the link. Any thread, send_lock held or not. */
void ib_link_kick(struct ib_link *link);
/* Does what is due. Driver, no lock; the link may be gone at return. */
void ib_link_step(struct ib_link *link);
/* The link carries frames from now on. Driver, no lock. */
void ib_link_open(struct ib_link *link);
/* Has the driver end the link. Any thread, send_lock not held. */
void ib_link_fail(struct ib_link *link, int status);
/* Takes the link down; it may be gone at return. Driver, no lock. */
void ib_link_end(struct ib_link *link, int status);
/* Its two halves. From the first on nobody queues, posts, or receives; false: it was so already.
 * The core is told in the second, when nothing of the network's touches the program's memory. */
bool ib_link_shut_down(struct ib_link *link, int status);
void ib_link_take_down(struct ib_link *link);
/* The same at once, whatever the network still has: the method stops. */
void ib_link_cut(struct ib_link *link);
void ib_close(struct bmi_link *base, bool linger);

/* exchange.c: the TCP connection beside each link */
int ib_listen(void *state, const char *address, int flags, char *bound, size_t size);
void ib_listen_stop(struct ib_state *state);
int ib_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void ib_dial_start(struct ib_link *link);
/* The time for what is under way is over. Driver, no lock. */
void ib_dial_expired(struct ib_link *link);
void ib_dial_free(struct ib_link *link);
/* Watches the exchange, for these events instead of those before. Returns 0 or an errno. */
int ib_exchange_watch(struct ib_link *link, uint32_t events);
/* Goodbye: we send no more messages than these. Driver. */
void ib_bye_send(struct ib_link *link);
/* If the other side has said goodbye and all its messages are here, says so and ends the link
 * unless it lingers. Driver, no lock. */
void ib_bye_check(struct ib_link *link);
/* Wakes the other side if it sleeps, without a descriptor of its provider's. send_lock. */
void ib_ring_locked(struct ib_link *link);

/* greeting.c */
/* The exchange is connected. Returns 0 or an errno. Driver, no lock. */
int ib_greeting_start(struct ib_link *link);
/* Handles received bytes; the link may be up, or gone, at return. Poller, no lock. */
void ib_greeting_read(struct ib_link *link);
void ib_greeting_expired(struct ib_link *link);
/* Says why the link ends before it is up. Driver. */
void ib_greeting_refuse(struct ib_link *link, int status);
void ib_greeting_free(struct ib_link *link);

/* send.c */
void ib_send(struct bmi_link *base, struct bmi_frame *frames);
void ib_flush(struct bmi_link *base);
bool ib_send_now(struct bmi_link *base, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                 size_t bytes);
bool ib_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement);
/* Takes frames of our own making off the front of a chain that goes back to the core. */
struct bmi_frame *ib_send_strip_locked(struct ib_link *link, struct bmi_frame *chain);
/* A slot is back from the network. `link` has taken it; NULL: it is gone. Returns whether that one
 * waits for a slot. Driver. */
bool ib_slot_back(struct ib_state *state, struct ib_link *link, struct ib_slot *slot);

/* memory.c */
/* Registers memory, with a random key where the provider lets us choose. fabric_lock. */
int ib_region_register_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                              uint64_t access, struct fid_mr **region);
int ib_memory_start(struct ib_state *state);
/* Ends all registrations; memory of BMI_memalloc lives on as plain memory. */
void ib_memory_stop(struct ib_state *state);
int ib_expose(struct bmi_link *base, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle);
bool ib_release(struct bmi_link *base, void *handle, bool wait);
/* A local buffer's registration for a transfer, or NULL where none is wanted. fabric_lock not held.
 */
int ib_local_get(struct ib_state *state, void *memory, size_t size,
                 struct bmi_registration **registration);
int ib_memory_option(struct ib_state *state, struct bmi_method_memory *memory, bool set);
static inline void *ib_local_descriptor(const struct bmi_registration *registration)
{
    return registration ? fi_mr_desc(registration->handle) : NULL;
}

/* transfer.c */
void ib_transfer(struct bmi_link *base, struct bmi_transfer *transfer);
/* Posts what waits. send_lock. */
void ib_moves_post_locked(struct ib_link *link);
/* Whether this process may read the memory of others of its user. */
bool ib_reads_allowed(void);
/* Goes on with the link's gets where those are ours. Driver, no lock. */
void ib_moves_read(struct ib_link *link);
/* The link that waits for the piece, or NULL. Driver. */
struct ib_link *ib_piece_link(struct ib_operation *operation);
/* A piece is back from the network. Driver, no lock. */
void ib_piece_done(struct ib_state *state, struct ib_operation *operation, int status);
/* Ends what was not posted, with the status, and, if `all`, what the network has not given back.
 * Tells the core. Driver, no lock. */
void ib_moves_fail(struct ib_link *link, int status, bool all);
/* Tells the core of transfers that are over. Driver, no lock. */
void ib_moves_tell(struct ib_link *link);
/* The endpoint is closed. */
void ib_pieces_free(struct ib_state *state);

/* doorbell.c */
int ib_doorbell_make(struct ib_doorbell **doorbell);
/* The record as it is now: a forked child goes on with its parent's page. */
void ib_doorbell_record(const struct ib_doorbell *doorbell, uint8_t record[16]);
/* Opens the peer's from its record; NULL: it has none. Returns 0 or an errno. */
int ib_doorbell_open(const uint8_t record[16], struct ib_doorbell **doorbell);
void ib_doorbell_free(struct ib_doorbell *doorbell);
/* To map a peer's page and the provider's memory takes a descriptor for a moment. Our own doorbell
 * keeps one in reserve, and lends it then. NULL: none is needed. Driver. */
void ib_doorbell_spare_take(struct ib_doorbell *doorbell);
void ib_doorbell_spare_lend(struct ib_doorbell *doorbell);
/* Announces that the poller is about to sleep, or is awake. Driver. */
void ib_doorbell_sleep(struct ib_doorbell *doorbell, bool asleep);
/* Whether the peer sleeps and was not rung for this sleep, which `rung` then notes. To be called
 * after a post. */
bool ib_doorbell_wanted(const struct ib_doorbell *doorbell, uint32_t *rung);
/* The process that has it. */
int ib_doorbell_process(const struct ib_doorbell *doorbell);

#endif
