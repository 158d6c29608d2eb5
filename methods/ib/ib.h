/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ib.h - declarations that the files of the ib method share.
 *
 * A link has two parts. The *address exchange* (in short: exchange) is a TCP connection to the
 * listen address, over which the two processes exchange the names of their endpoints, wake each
 * other, end the link in order, and detect each other's death. The messages go over a reliable
 * datagram endpoint of libfabric's, marked by a token for each direction. A process has one
 * endpoint, over tcp one for each of its addresses that a peer uses. Messages carry frames: a
 * prefix (token, sequence number), then headers and bodies, back to back; a body may continue in
 * the next message.
 *
 * Locks, in this order; each is held for a few lines:
 *   receive_lock  one link's receive side. The poller holds it over a message, calls of
 *                 bmi_method_frame_arrived and body_arrived included.
 *   (the core's peer lock)
 *   list_lock     the list of links.
 *   send_lock     one link's queue, state, and writes to its exchange.
 *   fabric_lock   the fabric and its endpoints: every call of libfabric on them, slots and pieces.
 *                 Of the core only bmi_method_defer and the registration cache are called under it.
 * "Poller" below means: used only by the polling thread, so by one thread at a time.
 *
 * A thread that flushes posts messages under send_lock, with fabric_lock for each call. Frames are
 * copied into a slot of registered memory and return to the core at once: of the memory that the
 * core lends, the network holds only that of puts and gets.
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
#include <urcu/hlist.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "methods/stream/accept.h"

struct fi_provider;

/* The functions of libfabric that are called by name; set by ib_library_load. */
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
    bool cuts; /* removing an address from the vector closes its connection */
} ib_library;
/* Loads libfabric, once for all schemes. -ENOSYS, -ENOMEM: it cannot be used; `reason` has the
 * cause. */
int ib_library_load(char *reason, size_t size);
/* The program's signal actions, which providers change. */
enum { IB_SIGNALS = 65 };
void ib_signals_save(struct sigaction actions[IB_SIGNALS]);
void ib_signals_restore(const struct sigaction actions[IB_SIGNALS]);

enum {
    IB_VERSION = 4, /* of the exchange, the doorbell's page, and the messages' prefix */
    IB_PREFIX = 16, /* bytes before the frames of a message */
    IB_MESSAGE_BYTES =
        16384,           /* most bytes of a message: providers send these without a handshake */
    IB_SLOTS = 128,      /* most messages under way, of all links, */
    IB_LINK_SLOTS = 16,  /* and of one link */
    IB_SLOTS_MADE = 32,  /* slots made at a time when all are in use */
    IB_BUFFERS = 4,      /* receive buffers posted */
    IB_BUFFERS_SHM = 24, /* the same over shm: one for each message between two passes */
    IB_QUEUE_SHM = 4096, /* room of the completion queue over shm */
    IB_BUFFER_BYTES = 256 << 10,
    IB_BUFFER_ALIGNMENT = 4096,
    IB_NAME_BYTES = 128,      /* longest name of an endpoint */
    IB_HOST_BYTES = 64,       /* longest numeric host with its interface */
    IB_PROVIDER_BYTES = 64,   /* longest name of a provider */
    IB_REGIONS = 64,          /* most segments of one registration */
    IB_IOVECS = 16,           /* most segments of one put or get; the provider may allow fewer */
    IB_PIECE_BYTES = 1 << 20, /* most bytes of one put or get */
    IB_PIECES = 8,            /* pieces of one link under way: frames (PINGs, too) wait for them */
    IB_PIECES_ALL = 512,      /* pieces of all links under way; beyond that each link has one */
    IB_BATCH = 16,            /* completions read at a time */
    IB_PASS_BATCHES = 8,      /* batches read in one pass */
    IB_DESCRIPTORS = 8,       /* that a step of opening may need */
    IB_ENDPOINTS = 16,        /* endpoints of one process, each with its own local address */
    IB_PEER_ROOM = 1 << 20, /* memory that must be free for a peer of shm, besides shared memory */
    IB_CONNECTION_ROOM =
        40 << 20,              /* memory that must be free for rxm's first connection over tcp */
    IB_IDLE_PEERS = 64,        /* unused names kept in the address vector */
    IB_RETRY_LEAST_MS = 1,     /* first and longest interval of retries while the network is */
    IB_RETRY_MOST_MS = 16,     /* full and gives no notice of room */
    IB_TRANSFER_WAIT_MS = 2000 /* how long the network may keep the transfers of a dead link */
};

/* The beginning of a message. Numbers are little-endian. */
struct ib_prefix {
    uint64_t token; /* the receiver's, of the link */
    uint32_t sequence;
    uint32_t length; /* bytes of frames behind it; further bytes are ignored */
};
_Static_assert(sizeof(struct ib_prefix) == IB_PREFIX, "it has no padding");

/* The kind of object that a completion is for. struct ib_operation is the first member of each. */
enum ib_operation_kind {
    IB_OPERATION_RECEIVE,
    IB_OPERATION_SEND,
    IB_OPERATION_PIECE,
    IB_OPERATION_RESERVE
};
struct ib_operation {
    struct fi_context2 context; /* libfabric's */
    enum ib_operation_kind kind;
    uint64_t token; /* of a message or piece: our token of its link */
};

/* A receive buffer: many messages arrive in it, one behind the other. */
struct ib_buffer {
    struct ib_operation operation;
    struct ib_endpoint *endpoint;
    uint8_t *memory;
    bool unposted; /* poller */
};

/* An outgoing message. */
struct ib_slot {
    struct ib_operation operation;
    struct ib_slot *next; /* fabric_lock: list of free slots */
    uint8_t *memory;
    void *descriptor; /* of its memory's registration */
};

/* Slots; kept until the endpoint is closed. */
struct ib_slots {
    struct ib_slots *next;
    struct fid_mr *registration; /* NULL: none is needed */
    struct ib_slot slots[IB_SLOTS_MADE];
    uint8_t memory[IB_SLOTS_MADE][IB_MESSAGE_BYTES];
};

/* A scheme, and the providers that it may use, best first. */
struct ib_kind {
    const char *scheme;
    const char *providers[5]; /* ends with NULL */
    const char *advice;       /* what to do when there is none */
    unsigned running;         /* instances; under ib.c's limits_lock */
};

/* The name of another process's endpoint in the address vector. Poller. */
struct ib_peer {
    struct ib_peer *next; /* the last one used is the first of the list */
    fi_addr_t address;
    uint32_t users; /* number of links */
    uint32_t size;
    bool broken; /* removed from the vector, or about to be */
    /* fabric_lock: our endpoint on which a post to it failed or had to wait; NULL: none */
    const struct ib_endpoint *doubtful;
    atomic_bool settled; /* any thread: ib_peer_settle has looked for its connection */
    uint8_t name[];
};

struct ib_doorbell; /* doorbell.c: a wake-up flag in memory that two processes share */
/* What a peer on the same host needs to open it. */
struct ib_doorbell_record {
    uint64_t number; /* 0: there is none */
    int32_t process, fd;
};
struct ib_dial;
struct ip_names;
struct ib_handshake;

/* Constant once made, except for the fields of posted buffers. */
struct ib_endpoint {
    struct ib_endpoint *next; /* poller */
    struct fid_ep *id;
    char host[IB_HOST_BYTES]; /* its local address, if the process has several endpoints */
    uint8_t name[IB_NAME_BYTES];
    size_t name_size;
    int name_hold;               /* see ib_provider_name_hold */
    uint8_t *memory;             /* of the buffers */
    struct fid_mr *registration; /* of it; NULL: none is needed */
    uint32_t buffer_count;
    uint32_t unposted;           /* poller: buffers that could not be posted again yet */
    struct ib_operation reserve; /* poller: a receive whose resources serve to post a buffer */
    bool reserve_posted;         /* poller */
    struct ib_buffer buffers[IB_BUFFERS_SHM];
};

struct ib_fabric {
    /* constant once open */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fid_cq *queue;
    int wait_fd;            /* -1: the provider has none, and the doorbell is used */
    bool local_memory;      /* local memory of transfers must be registered */
    bool virtual_addresses; /* remote memory is given by address, else by offset in the region */
    bool provider_keys;     /* the provider chooses keys, else we do */
    bool real_registration; /* registering is expensive: goes through the cache */
    bool breaks;            /* there are connections: see ib_provider_connects */
    bool tells_source;      /* see ib_provider_tells_source */
    bool shared;            /* the provider is shm: processes share memory */
    bool many;              /* it has an endpoint for each local address */
    size_t message_max;     /* most bytes of a message */
    size_t inject_max, piece_max;
    size_t iovecs, remote_iovecs; /* most segments of a piece */

    /* fabric_lock */
    struct ib_slot *free_slots;
    uint32_t taken_slots;
    struct ib_slots *slots;
    struct cds_hlist_head pieces; /* those that the network has not returned */
    atomic_uint piece_count;      /* of them, those of live links */

    struct ib_endpoint *endpoints; /* poller */
};

struct ib_state {
    struct bmi_instance *instance;
    struct bmi_method *method;
    _Atomic int64_t *counters; /* the method's */
    struct ib_kind *kind;
    char provider[IB_PROVIDER_BYTES]; /* constant after start */
    bool reads;                       /* constant after start: gets are done by process_vm_readv */

    struct bmi_lock fabric_lock;
    struct ib_fabric *fabric; /* opened once, by listen or the poller; NULL: not yet. Other threads
                                 use it through a link that is up */
    atomic_bool registers;    /* any thread: the fabric is open, and registering is expensive */
    struct bmi_watch wait_watch;
    bool armed;                   /* poller: our doorbell shows that we sleep */
    struct ib_doorbell *doorbell; /* poller: our own; NULL: not needed */
    struct bmi_registration_cache *cache;

    struct bmi_lock list_lock;
    struct cds_hlist_head links;       /* list_lock */
    _Atomic(struct ib_link *) blocked; /* links whose next message found no room; referenced */
    struct bmi_deferred kick;          /* makes the poller flush the blocked links */
    struct bmi_deferred gone;          /* frees the state after the stop */

    /* poller */
    struct bmi_timer retry;
    uint32_t retry_ms;       /* 0: not set */
    struct ib_link **tokens; /* by index; NULL: free */
    uint32_t token_count;
    struct ib_peer *peers;
    struct stream_acceptor acceptor;
    struct ip_names *names;
    atomic_int port; /* the first one listened on, 0: none */
};

enum ib_phase {
    IB_NEW,       /* made by connect; the poller has not handled it yet */
    IB_DIALLING,  /* the name is being looked up, or the exchange connected */
    IB_HANDSHAKE, /* the exchange is connected; the other side's endpoint is not known yet */
    IB_UP,
    IB_ENDING, /* nothing is posted any more; the network still holds transfers */
    IB_DOWN
};

/* What the exchange carries after the handshake. */
enum ib_byte {
    IB_BYTE_RING = 'r',     /* read your completion queue */
    IB_BYTE_CONFIRMED = 'c' /* your end of stream has arrived, and so all your messages */
};

enum ib_closing { IB_OPEN, IB_CLOSE_LINGERING, IB_CLOSE_NOW };

struct ib_link {
    struct bmi_link base;
    struct bmi_watch watch;       /* watch.fd is the exchange, -1: none. The poller changes it under
                               send_lock */
    struct cds_hlist_node listed; /* list_lock */
    struct ib_link *blocked_next; /* of the thread that lists the link, then unlists it */
    struct bmi_deferred deferred; /* runs ib_link_step; referenced while `kicked` */
    atomic_bool kicked;
    atomic_bool is_blocked;
    atomic_uint exposed; /* registrations that the peer knows and may be writing to */

    /* Changed by the poller under send_lock; read by the poller or under send_lock. */
    enum ib_phase phase;
    struct ib_endpoint *endpoint; /* ours, from which messages go to the peer */
    struct ib_peer *peer;
    struct ib_doorbell *doorbell; /* the peer's; NULL: it needs none */
    uint64_t their_token;
    uint64_t token; /* ours; 0: none */

    /* send_lock */
    struct bmi_lock send_lock;
    struct bmi_frame_queue queue;
    struct bmi_transfer *transfers, **transfers_end; /* not reported to the core yet */
    uint32_t sequence_out;                           /* messages posted */
    int failure;                                     /* the error of a post; 0: none */
    enum ib_closing closing;                         /* as the core has requested */
    bool bye_sent;                                   /* our end of stream was posted */
    uint32_t pieces;                                 /* held by the network */
    uint32_t slots;                                  /* fabric_lock: the same, of messages */
    bool wants_slot; /* fabric_lock: waits for one of its own slots */
    bool ready;      /* messages may go: we dialled, or the first message of the peer has come */
    uint32_t rung;   /* the peer's sleep for which we have rung last */

    /* poller */
    bool watched;
    bool dialled;
    bool taken_down;    /* its end is under way, or over */
    bool bye_seen;      /* the other side's end of stream has arrived, and so all its messages */
    bool bye_confirmed; /* the same of ours, as the other side says */
    int end_status;
    struct ib_dial *dial;           /* while dialling */
    struct ib_handshake *handshake; /* during the handshake */
    struct bmi_timer timer;

    /* receive_lock */
    struct bmi_lock receive_lock;
    uint32_t sequence_in; /* messages that have arrived */
    bool retracted;       /* the owner of the latest sink has gone */
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

static inline const char *ib_host_of(const struct ib_link *link)
{
    return link->base.host ? link->base.host : "a peer";
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

static inline void ib_count(const struct ib_state *state, enum bmi_method_counter counter,
                            int64_t amount)
{
    if (amount)
        bmi_counter_add(state->counters, counter, amount);
}

/* provider.c: chooses the provider; differences between providers. */
/* Finds the best provider of the kind that this host has, without opening it. `choice` gets the
 * provider and the reason, or the missing parts. Any thread. */
int ib_provider_choose(const struct ib_kind *kind, struct bmi_method_choice *choice);
/* Whether the provider has connections: one failed operation fails all others of its connection,
 * for good, and operations under way may go on until the connection is cut. */
bool ib_provider_connects(const char *provider);
/* Whether the provider reports which endpoint a message comes from. */
bool ib_provider_tells_source(const char *provider);
/* The provider's description for an endpoint at this numeric host (NULL: any). To be freed with
 * fi_freeinfo. */
int ib_provider_info(const struct ib_state *state, const char *host, struct fi_info **info);
/* Chooses the endpoint's name if the provider's names are text. */
int ib_provider_name_choose(struct fi_info *info);
/* Keeps other processes from removing the shared memory of an endpoint of that name, also after the
 * process in the name has ended while a forked child uses the endpoint. Returns a descriptor to be
 * closed with the endpoint; -1: nothing is shared. */
int ib_provider_name_hold(const char *name);

/* fabric.c: objects that all endpoints share. */
/* Opens the fabric on the network of this numeric host (NULL: any), if it is not open. Called by
 * listen, before the library runs, or by the poller. */
int ib_fabric_open(struct ib_state *state, const char *host);
void ib_fabric_close(struct ib_state *state);
/* Makes more slots. Returns 0, -ENOMEM, or the error of registering. fabric_lock. */
int ib_slots_make_locked(struct ib_fabric *fabric);
/* Whether the process has fewer than so many descriptors left, IB_DESCRIPTORS at most. */
bool ib_descriptors_lack(int most);
/* Logs a failed step of opening, with advice. Returns the errno. */
int ib_step_failed(const struct ib_state *state, const char *step, ssize_t status);
/* The same for queues: providers refuse too large ones as a wrong argument. */
int ib_queues_failed(const struct ib_state *state, const char *step, ssize_t status);
/* Closes an object of libfabric's; NULL: none. */
void ib_id_close(struct fid *id);

/* endpoint.c */
/* Finds the endpoint for this numeric local host (NULL: any); makes it, and the fabric, if there is
 * none. Called by listen, before the library runs, or by the poller. */
int ib_endpoint_get(struct ib_state *state, const char *host, struct ib_endpoint **endpoint);
/* Closes all endpoints; their memory is freed later, when libfabric does not use it any more. */
void ib_endpoints_close(struct ib_fabric *fabric);
void ib_endpoints_free(struct ib_fabric *fabric);
/* Posts a buffer for messages to arrive in. fabric_lock. */
int ib_buffer_post_locked(struct ib_buffer *buffer);
/* Posts a receive for a tag that no process sends to: a reserve of the resources that posting a
 * buffer needs. fabric_lock. */
int ib_reserve_post_locked(struct ib_endpoint *endpoint);

/* peer.c */
/* Finds or adds the peer of that name, with one more user. Returns 0; -ENOMEM; -EADDRNOTAVAIL: the
 * provider does not accept the name. Poller. */
int ib_peer_get(struct ib_state *state, const uint8_t *name, uint32_t size, struct ib_peer **out);
void ib_peer_put(struct ib_state *state, struct ib_peer *peer);
/* The provider's connection to the peer broke: ends all links that use it, and removes its name
 * from the vector, and so the connection. The next link makes another one. Poller, no lock. */
void ib_peer_break(struct ib_state *state, struct ib_peer *peer, int status);
/* Converts a status of libfabric to an errno. */
int ib_error(ssize_t status);

/* socket.c */
/* Sets the tcp method's socket options on the provider's connection to the link's peer, if that is
 * a TCP connection. Call it when the connection has taken a message. Any thread. */
void ib_peer_settle(const struct ib_link *link);
/* The numeric local host of a connection, with the interface where the address needs that. */
int ib_socket_host(int fd, char *host, size_t size);
/* Completes a peer's name with this host's interface if it is a link-local address, and logs a name
 * of another host than that of the exchange. Returns 0 or an errno. Poller. */
int ib_socket_name_check(const struct ib_link *link, uint8_t *name, size_t size);
/* The user whose process has the other end of a connection within this host. Returns 0 or an errno;
 * -ENOENT: it is not within this host. */
int ib_socket_peer_user(int fd, uid_t *user);

/* progress.c */
/* Reads the completion queue. Poller. */
int ib_progress(void *state);
/* Reads it until it is empty, or for a number of passes. Poller. */
void ib_drain(struct ib_state *state);
bool ib_arm(void *state);
/* Lists the link as blocked: the poller flushes it when there is room. Any thread, send_lock. */
void ib_link_block_locked(struct ib_link *link);
/* Empties the list of blocked links; if `flush`, flushes them. Poller. */
void ib_blocked_flush(struct ib_state *state, bool flush);
void ib_kicked(struct bmi_deferred *deferred);
void ib_retry_expired(struct bmi_timer *timer);
void ib_wait_ready(struct bmi_watch *watch, uint32_t events);
/* Whether the other side has closed the exchange, perhaps before its end was read. Poller. */
bool ib_link_hung_up(const struct ib_link *link);

/* message.c */
/* Handles a message from that endpoint; ends its link if the message is invalid. Poller, no lock.
 */
void ib_message_arrived(struct ib_state *state, fi_addr_t from, const uint8_t *bytes, size_t size);
bool ib_retract(struct bmi_link *base, void *owner);
/* The link with this token of ours; NULL: there is none any more. Poller. */
struct ib_link *ib_token_find(const struct ib_state *state, uint64_t token);
int ib_token_make(struct ib_link *link);
void ib_token_drop(struct ib_link *link);

/* link.c: a link's life */
struct ib_link *ib_link_new(struct ib_state *state, int fd, bool dialled);
/* Poller, send_lock not held. */
void ib_phase_set(struct ib_link *link, enum ib_phase phase);
/* Frees a link that the core has not accepted. Poller. */
void ib_link_forget(struct ib_link *link);
/* Makes the poller call ib_link_step. Any thread, send_lock held or not. */
void ib_link_kick(struct ib_link *link);
/* The next step of a link's life, as its state requires. Poller, no lock; the link may be gone at
 * return. */
void ib_link_step(struct ib_link *link);
/* The link carries frames from now on. Poller, no lock. */
void ib_link_open(struct ib_link *link);
/* Makes the poller end the link. Any thread, send_lock not held. */
void ib_link_fail(struct ib_link *link, int status);
/* The other side's end of stream has arrived: confirms it, and answers with our own. Poller, no
 * lock; the link may be gone at return. */
void ib_bye_take(struct ib_link *link);
/* Ends the link if both sides have confirmed the other's end of stream. Poller, no lock; the link
 * may be gone at return. */
void ib_bye_check(struct ib_link *link);
/* Takes the link down; it may be gone at return. Poller, no lock. */
void ib_link_end(struct ib_link *link, int status);
/* The two halves of ib_link_end. After the first no thread queues, posts, or receives; false: that
 * was so already. The second reports link_down, when the network does not access the program's
 * memory any more. */
bool ib_link_shut_down(struct ib_link *link, int status);
void ib_link_take_down(struct ib_link *link);
/* Ends the link at once, although the network may still hold transfers: the method stops. */
void ib_link_cut(struct ib_link *link);
void ib_close(struct bmi_link *base, bool linger);

/* exchange.c: the TCP connection beside each link */
int ib_listen(void *state, const char *address, int flags, char *bound, size_t size);
void ib_listen_stop(struct ib_state *state);
int ib_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void ib_dial_start(struct ib_link *link);
/* Looking up or connecting has failed: tries the next address. Poller, no lock. */
void ib_dial_again(struct ib_link *link, int error);
void ib_dial_free(struct ib_link *link);
/* Watches the exchange for these events only. Returns 0 or an errno. */
int ib_exchange_watch(struct ib_link *link, uint32_t events);
void ib_exchange_close(struct ib_link *link);
/* Sends a byte of enum ib_byte. Poller, or send_lock. */
void ib_byte_send(const struct ib_link *link, char byte);
/* Wakes the other side through the exchange if it sleeps and its provider has no descriptor to wait
 * on. send_lock. */
void ib_ring_locked(struct ib_link *link);

/* handshake.c */
/* Begins the handshake over the connected exchange. Returns 0 or an errno. Poller, no lock. */
int ib_handshake_start(struct ib_link *link);
/* Handles received bytes; the link may be up, or gone, at return. Poller, no lock. */
void ib_handshake_read(struct ib_link *link);
void ib_handshake_expired(struct ib_link *link);
/* Sends the other side the reason why the link ends before it is up. Poller. */
void ib_handshake_refuse(const struct ib_link *link, int status);
void ib_handshake_free(struct ib_link *link);

/* send.c */
void ib_send(struct bmi_link *base, struct bmi_frame *frames);
void ib_flush(struct bmi_link *base);
/* Whether messages and puts may be posted. send_lock. */
bool ib_may_send_locked(const struct ib_link *link);
bool ib_send_now(struct bmi_link *base, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                 size_t bytes);
bool ib_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement);
/* The network has returned a slot. `link` used it; NULL: that link is gone. Returns whether the
 * link waits for a slot. Poller. */
bool ib_slot_back(struct ib_state *state, struct ib_link *link, struct ib_slot *slot);

/* memory.c */
/* Registers memory, with a random key if we choose keys. fabric_lock. */
int ib_region_register_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                              uint64_t access, struct fid_mr **region);
/* The same for memory of the method's own, if the provider wants that. */
int ib_region_own_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                         struct fid_mr **region);
int ib_memory_start(struct ib_state *state);
/* Ends all registrations; memory of BMI_memalloc remains as plain memory. */
void ib_memory_stop(struct ib_state *state);
int ib_expose(struct bmi_link *base, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle);
bool ib_release(struct bmi_link *base, void *handle, bool wait);
int ib_memory_option(struct ib_state *state, struct bmi_method_memory *memory, bool set);

/* transfer.c */
void ib_transfer(struct bmi_link *base, struct bmi_transfer *transfer);
/* Posts waiting pieces of transfers, if the link may send. send_lock. */
void ib_transfers_post_locked(struct ib_link *link);
/* Whether this process may read the memory of others of its user. */
bool ib_reads_allowed(struct bmi_instance *instance);
/* Continues the link's gets by process_vm_readv. Poller, no lock. */
void ib_transfers_read(struct ib_link *link);
/* Handles a piece that the network has returned. NULL: its link has gone. Poller, no lock. */
void ib_piece_done(struct ib_state *state, struct ib_link *link, struct ib_operation *operation,
                   int status);
/* Ends, with the status, transfers that were not posted, and if `all` also those that the network
 * has not returned. Reports them to the core. Poller, no lock. */
void ib_transfers_fail(struct ib_link *link, int status, bool all);
/* Reports finished transfers to the core. Poller, no lock. */
void ib_transfers_tell(struct ib_link *link);
/* Frees all pieces, when the endpoints are closed. */
void ib_pieces_free(struct ib_state *state);

/* doorbell.c */
int ib_doorbell_make(struct ib_doorbell **doorbell);
/* The record that the other side opens the page by. It is made anew each time, since a forked child
 * continues with its parent's page. */
struct ib_doorbell_record ib_doorbell_record(const struct ib_doorbell *doorbell);
/* Opens the peer's from its record; NULL: it has none. Returns 0 or an errno. */
int ib_doorbell_open(const struct ib_doorbell_record *record, struct ib_doorbell **doorbell);
void ib_doorbell_free(struct ib_doorbell *doorbell);
/* Shows that the poller is about to sleep, or is awake. Poller. */
void ib_doorbell_sleep(struct ib_doorbell *doorbell, bool asleep);
/* Whether the peer sleeps and was not rung for this sleep; if so `rung` records the sleep. Call it
 * after a post. */
bool ib_doorbell_wanted(const struct ib_doorbell *doorbell, uint32_t *rung);
/* The process that owns the doorbell. */
int ib_doorbell_process(const struct ib_doorbell *doorbell);

#endif
