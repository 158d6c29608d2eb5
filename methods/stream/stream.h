/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream.h - frames over a byte stream, for methods over sockets. The method supplies the table
 * struct stream_socket; the rest is here: links, sending, receiving, accepting.
 *
 * A link is one socket. stream_connect or the acceptor creates it; the poller opens it; any thread
 * sends; the poller receives; stream_link_end, which only the poller calls, takes it down once.
 *
 * Locks, in this order. A thread holds each for a few lines, and never over a call of the core
 * except where said:
 *   receive_lock  one link's receive side. The poller holds it over a receive pass, including the
 *                 calls of bmi_method_frame_arrived and body_arrived.
 *   (the core's peer lock)
 *   send_lock     one link's send queue and state. Never held over a call of the core other than
 *                 bmi_method_defer, nor over a write.
 *   list_lock     the list of all links.
 * "Poller" below means: only the thread that polls touches it, so one thread at a time.
 *
 * Writer: the thread that sets `writing` writes until it clears the flag; other threads only
 * append. Before it clears the flag, the writer checks the queue again under send_lock, so no frame
 * is left behind. stream_link_end does nothing while a thread writes: the writer kicks the link
 * when it is done, and the poller calls stream_link_end again.
 */
#ifndef STREAM_H
#define STREAM_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "accept.h"
#include "bmi/lock.h"
#include "bmi/method.h"

enum {
    STREAM_IOVECS = 512,          /* entries gathered or scattered by one system call */
    STREAM_WRITE_BYTES = 1 << 20, /* bytes of one system call, about */
    STREAM_READ_BYTES = 1 << 20,
    STREAM_GATHER_BYTES = 2048,     /* up to this a write is put together first */
    STREAM_FLUSH_BYTES = 256 << 10, /* one flush; then the poller serves other links first */
    STREAM_PASS_BYTES = 4 << 20,    /* one link's receive pass; data left in the socket leaves the
                                     * cache */
    STREAM_PASS_READS = 64,
    STREAM_PASS_FRAMES = 2048,     /* a pass ends after about so many frames, */
    STREAM_PASS_NS = 5000000,      /* or after so long: the sender determines the cost of a frame */
    STREAM_HOT_READS = 64,         /* after so many reads by polling, the link is not watched */
    STREAM_REST_BYTES = 256 << 20, /* of a link whose writes fail */
    STREAM_AHEAD_BYTES = 64 << 10, /* read ahead */
    STREAM_SCRATCH_BYTES = 16 << 10, /* where unwanted bodies go, over and over */
};

/* Bodies above STREAM_EAGER_MAX go by rendezvous, so a body is not sent and buffered before the
 * receiver posts for it. (From 16 KiB on, the core reads the pieces straight to their place, also
 * unexpected ones.) STREAM_FRAME_MAX bounds how long a link sends one message before it sends
 * another's frame: a larger value means fewer headers, a smaller one less waiting. */
enum {
    STREAM_EAGER_MAX = 32768,
    STREAM_UNEXPECTED_MAX = 65536,
    STREAM_FRAME_MAX = 262144,
};

/* The events that a link is watched for. */
#define STREAM_WATCHED (EPOLLIN | EPOLLRDHUP)

enum stream_phase {
    STREAM_NEW,      /* made by stream_connect, not seen by the poller */
    STREAM_DIALLING, /* the method is making the connection */
    STREAM_SECURING, /* the socket is connected, the layer's handshake goes on (secure.c) */
    STREAM_UP,
    STREAM_DOWN
} __attribute__((packed));

enum stream_closing {
    STREAM_OPEN,
    STREAM_CLOSE_LINGERING,
    STREAM_CLOSE_NOW
} __attribute__((packed));

struct stream_link;
struct stream_state;

/* How arriving bytes of links that are up reach them. A method starts with one engine; links with a
 * layer need epoll's. The poller calls each function, with no lock held, except where said. An
 * engine calls stream_receive_ready, _poll and _given, in the poller, with no lock held. */
struct stream_engine {
    const char *name;
    /* 1. May be NULL. start returns 0 or an errno: then nothing is left. At stop no link is up. */
    int (*start)(struct stream_state *state);
    void (*stop)(struct stream_state *state);
    /* 2. The link's bytes are received from now on. Returns 0 or an errno. */
    int (*watch)(struct stream_link *link);
    /* 3. They are not any more: bytes that the engine has are dropped. Also before a watch. */
    void (*ignore)(struct stream_link *link);
    /* 4. Makes the link read by system calls only. Returns whether it is; if not, the engine passes
     * on what it has, and then kicks the link. NULL: it always is. */
    bool (*settle)(struct stream_link *link);
    /* 5. A frame is about to be written, and large bodies are expected: the engine makes sure that
     * they go to their place without a copy. NULL: they do. Any thread, no send lock. */
    void (*large)(struct stream_link *link);
    /* 6. A pass of reads has brought bytes. NULL: nothing. */
    void (*read)(struct stream_link *link);
    /* 7. Takes bytes, `wanted` in all, that the writer is about to write, to send them together
     * with those of other links. Returns whether it has; then link->sending is set until they are
     * in the socket, and they count as written. The writer calls it, with no lock. NULL: never. */
    bool (*send)(struct stream_link *link, const struct iovec *iov, size_t count, size_t wanted);
    /* 8. As bmi_method's. */
    int (*progress)(struct stream_state *state);
    bool (*arm)(struct stream_state *state);
};

extern const struct stream_engine stream_engine_epoll, stream_engine_uring;
enum { STREAM_WHY = 160 };
/* Whether this process can use stream_engine_uring; if not, `why` has the reason. Any thread. */
bool stream_uring_usable(char why[STREAM_WHY]);

/* How the bytes of links move. `stream_plain` is the socket itself; a method may put a layer
 * between frames and socket. write and `unsent` are the writer's (see above); the poller calls the
 * rest, with no lock held except where said. A layer has a lock of its own where writing and
 * reading touch the same data; it is innermost. */
struct stream_bytes {
    /* 1. Both return bytes moved, or -EAGAIN, or another negated errno. A write with a count of 0
     * sends unsent bytes. A read returns 0 at the stream's end, and less than asked for only if the
     * socket is empty or bytes are `unread`. The receive lock is held over it. */
    ssize_t (*write)(struct stream_link *link, struct iovec *iov, size_t count);
    ssize_t (*read)(struct stream_link *link, struct iovec *iov, size_t count);

    /* The rest is NULL where there is no layer. */

    /* 2. Makes the layer of a connected socket: sets link->layer. link->dial is still there if the
     * link was dialled. Returns 0 or an errno: then there is none. */
    int (*start)(struct stream_link *link);
    /* 3. A step of the handshake, on any thread; nothing else uses the layer meanwhile. Returns 0:
     * it is complete; -EAGAIN: it waits for bytes; -ENOBUFS: it waits for room; or the errno of a
     * failure, which the layer has logged. */
    int (*handshake)(struct stream_link *link);
    /* 4. Whether bytes that write or read accepted or made wait for room in the socket. Any thread.
     */
    bool (*unsent)(const struct stream_link *link);
    /* 5. Whether bytes, or the end, may be left that the socket does not report. */
    bool (*unread)(struct stream_link *link);
    /* 6. Queues the end of our direction, which becomes `unsent`. */
    void (*end)(struct stream_link *link);
    /* 7. Whether the peer has to close first, since the socket does not tell when it has written
     * everything. NULL: it does tell. */
    bool (*peer_first)(const struct stream_link *link);
    /* 8. Frees link->layer; writes what can be written at once. The socket is still open. No other
     * thread uses the link. */
    void (*free)(struct stream_link *link);
};

extern const struct stream_bytes stream_plain;

/* What a method supplies. The poller calls each function with no lock held, except where said. */
struct stream_socket {
    const struct bmi_method *method;
    const struct stream_bytes *bytes;

    /* 1. Begins a connection that stream_connect asked for. Calls stream_dial_socket_locked and
     * stream_dial_watch at once or later; stream_link_end when it fails. */
    void (*dial)(struct stream_link *link);
    /* 2. The dialled socket is connected or has failed. Calls stream_dial_done; or
     * stream_dial_close, and then begins again or calls stream_link_end. */
    void (*dial_ready)(struct stream_link *link);
    /* 3. link->timer has expired before stream_dial_done. Calls the same functions as 2. */
    void (*dial_expired)(struct stream_link *link);
    /* 4. Cancels the attempt that is under way, and frees link->dial. */
    void (*dial_free)(void *dial);

    /* 5. A connection came in: sets the socket's options, and the link's host and ends. Returns 0,
     * or an errno: the connection is refused and closed. */
    int (*accept)(struct stream_link *link, const struct sockaddr_storage *from);
    /* 6. Sets options of a connected socket. NULL: there are none. */
    void (*settle)(struct bmi_instance *instance, int fd);
    /* 7. Whether the other side's system has all bytes that were written. Closing a socket before
     * may lose them. NULL: always. */
    bool (*delivered)(int fd);
};

/* An idle peer, of which this is the larger part, takes 1 KiB at most (peers_stress). */
struct stream_link {
    struct bmi_link base;
    struct bmi_watch watch;          /* watch.fd is the socket, -1: none. The poller changes it
                                      * under send_lock */
    struct stream_link *list_next;   /* list_lock */
    struct stream_link **list_to_me; /* list_lock */
    struct bmi_deferred deferred;    /* runs stream_link_step; holds a reference while `kicked` */
    atomic_bool kicked;

    /* Changed in the poller under send_lock; read in the poller or under send_lock. */
    enum stream_phase phase;
    _Atomic uint8_t ring; /* the io_uring engine's, see there */
    uint8_t small_passes; /* poller: passes of reads since a large body was expected */

    /* send_lock */
    struct bmi_lock send_lock;
    struct bmi_frame_queue queue;
    struct bmi_frame *write_last; /* the last one that is being written; NULL: none is */
    atomic_uint write_ended;      /* a futex, counted up if `withdrawing` */
    int failure;                  /* 0, or the error of a write */
    int end_status;               /* status to end with, if `ending` */
    uint16_t withdrawing;         /* threads that wait for a write to end */
    enum stream_closing closing;  /* the core's request */
    atomic_bool closed; /* the core has requested it; the poller also reads it without the lock */
    bool writing;       /* one thread writes */
    bool blocked;       /* the socket was full, and the engine reported no room since */
    bool room;          /* the engine reported room while a thread was writing */
    bool room_watched;  /* the link is in the engine's set */
    bool go_on;         /* a flush stopped at STREAM_FLUSH_BYTES */
    bool ending;        /* stream_link_end waits for the writer */
    bool shut;          /* our direction has been shut down, nothing more is written */
    bool unsent;        /* the layer has bytes that wait for room */

    /* poller */
    bool watched;
    bool accepted;
    bool known;  /* to the core: it is notified of the link's end */
    bool ended;  /* the layer has queued the end of our direction */
    bool unread; /* the layer may have bytes that the socket does not report */
    bool has_handshake;
    uint8_t linger_wait_ms;
    _Atomic uint8_t sending; /* 0, or the engine's: it sends bytes, and no thread writes. The writer
                              * sets it, the poller clears it under send_lock */
    void *dial; /* the method's, until the link is up or has failed; changed under send_lock, too */
    struct bmi_timer timer;
    void *layer; /* of struct stream_bytes; set before STREAM_UP */

    /* receive_lock */
    struct bmi_lock receive_lock;
    bool body_direct;    /* no byte of the body went through the read-ahead buffer so far */
    bool retracted;      /* the sink's owner has gone */
    bool any_frame;      /* one header at least was whole */
    uint8_t header_have; /* bytes of the next header */
    struct bmi_sink sink;
    uint64_t body_left; /* bytes of the present body still to come */
    union {
        struct stream_handshake *handshake; /* poller: if `has_handshake`, before the first frame */
        uint8_t header[BMI_FRAME_HEADER];
    };
};

/* The counts of a receive pass, added to the core's counters once, at its end. */
struct stream_tally {
    int64_t frames, reads, copies, copied_bytes;
};

/* The handshakes of a layer that are under way; see secure.c. */
struct stream_securing {
    /* poller */
    struct stream_handshake *queue, *queue_last; /* that want a step */
    struct stream_handshake *first, **last;      /* of accepted links, the oldest first */
    uint32_t accepted;                           /* their number */
    uint32_t running, most;                      /* steps: submitted and not collected; at a time */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t tasks; /* lock: that use the state */
};

/* The first member of the method's state. */
struct stream_state {
    struct bmi_instance *instance;
    const struct stream_socket *socket;
    _Atomic int64_t *counters;

    const struct stream_engine *engine;
    struct stream_uring *uring; /* the io_uring engine's */

    /* room.c: sockets that may get room again */
    int room_epoll;
    struct bmi_watch room_watch;

    struct bmi_lock list_lock;
    struct stream_link *links; /* list_lock */

    /* poller */
    struct stream_link *hot; /* the link that received last */
    uint32_t hot_reads;      /* polls of `hot` since it became hot, or since a wait */
    struct stream_acceptor acceptor;
    struct stream_securing securing;
    struct stream_tally tally;
    uint8_t *ahead; /* STREAM_AHEAD_BYTES; behind them scratch, STREAM_SCRATCH_BYTES */
    uint8_t *scratch;
};

_Static_assert(sizeof(struct stream_link) <= 392, "an idle link stays small");

#define stream_container(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline struct stream_link *stream_link_of(struct bmi_link *base)
{
    return stream_container(base, struct stream_link, base);
}

static inline struct stream_state *stream_state_of(const struct stream_link *link)
{
    return link->base.state;
}

static inline void stream_lock(struct bmi_lock *lock)
{
    bmi_lock_take(lock);
}

static inline void stream_unlock(struct bmi_lock *lock)
{
    bmi_lock_give(lock);
}

static inline void stream_assert_locked(struct bmi_lock *lock)
{
    assert(bmi_lock_held(lock));
    (void)lock;
}

static inline void stream_count(const struct stream_link *link, enum bmi_method_counter counter,
                                int64_t amount)
{
    if (amount)
        bmi_counter_add(stream_state_of(link)->counters, counter, amount);
}

/* ---- for the method --------------------------------------------------------------------------
 */

/* Starts: makes the method's state of `size` bytes, zeroed, whose first member is struct
 * stream_state. Returns 0 or an errno: then nothing is left. */
int stream_method_start(struct bmi_instance *instance, size_t size,
                        const struct stream_socket *socket, const struct stream_engine *engine,
                        void **state);
/* Stops, and frees the state. */
void stream_method_stop(void *state);

/* connect: makes a link with this `dial`, which is not NULL, and starts it. Returns 0 or -ENOMEM:
 * the dial is still the caller's. Any thread, the peer's lock held. */
int stream_connect(struct stream_state *state, void *dial, void *owner, struct bmi_link **out);
/* The link has this socket from now on, which is connecting or connected. send_lock. */
void stream_dial_socket_locked(struct stream_link *link, int fd);
/* dial_ready is called as soon as it is writable or has failed. Returns 0, or an errno: then it is
 * closed. Poller, no lock. */
int stream_dial_watch(struct stream_link *link);
/* Closes it. Poller. */
void stream_dial_close(struct stream_link *link);
/* The dialled socket is connected; host and ends are set. Poller. */
void stream_dial_done(struct stream_link *link);
/* For `listen`: accepts connections from a listening socket, which stays the caller's after an
 * error. */
int stream_listen(struct stream_state *state, int fd);

/* Settings that methods with a layer have: entries of the method's table. */
#define STREAM_SECURE_SETTINGS                                                                     \
    {"handshake_timeout_ms",                                                                       \
     BMI_SETTING_NUMBER,                                                                           \
     10000,                                                                                        \
     1,                                                                                            \
     86400000,                                                                                     \
     "how long a peer has for its TLS handshake"},                                                 \
    {                                                                                              \
        "handshakes_max", BMI_SETTING_NUMBER, 1024, 1, 1 << 20,                                    \
            "accepted connections whose TLS handshake goes on, at most; further ones wait in the " \
            "backlog"                                                                              \
    }

/* Limits and operations: entries of the method's struct bmi_method. */
#define STREAM_METHOD                                                              \
    .limits = {.eager_max = STREAM_EAGER_MAX,                                      \
               .unexpected_max = STREAM_UNEXPECTED_MAX,                            \
               .frame_max = STREAM_FRAME_MAX,                                      \
               .segments_max = STREAM_IOVECS},                                     \
    .send = stream_send, .flush = stream_flush, .withdraw = stream_withdraw,       \
    .retract = stream_retract, .close = stream_close, .progress = stream_progress, \
    .arm = stream_arm

void stream_send(struct bmi_link *base, struct bmi_frame *frames);
void stream_flush(struct bmi_link *base);
bool stream_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement);
bool stream_retract(struct bmi_link *base, void *owner);
void stream_close(struct bmi_link *base, bool linger);
int stream_progress(void *state);
bool stream_arm(void *state);
/* BMI_TCP_CLOSE_SOCKET; -ENOSYS for others. */
int stream_option(struct bmi_instance *instance, void *state, struct bmi_link *base, int option,
                  void *value, bool set);

/* Takes the link down, now or when its writer is done; the link may be gone at return. Poller, no
 * lock. */
void stream_link_end(struct stream_link *link, int status);

/* ---- for the files of this folder ------------------------------------------------------------
 */

/* link.c: a link's life */
struct stream_link *stream_link_new(struct stream_state *state, int fd);
/* Frees a link that the core has not accepted. Poller. */
void stream_link_forget(struct stream_link *link);
/* The link carries frames from now on: watches it, writes the waiting frames. Poller, no lock. */
void stream_link_open(struct stream_link *link);
/* Frees what the method needed to dial. Poller, no lock. */
void stream_link_dial_free(struct stream_link *link);
/* Makes the poller run the work that is due. Any thread, send_lock held or not. */
void stream_link_kick(struct stream_link *link);

/* stream.c: the handshake of the layer is complete, or there is no layer. Poller, no lock. */
void stream_dialled(struct stream_link *link);
void stream_accepted(struct stream_link *link);

/* secure.c: the handshake of a link's layer. Poller, no lock; the link may be gone at return. */
/* The socket is connected. */
void stream_secure_start(struct stream_link *link);
/* A step may have ended. */
void stream_secure_step(struct stream_link *link);
/* The socket is readable; has room; the timer has expired. */
void stream_secure_ready(struct stream_link *link);
void stream_secure_room(struct stream_link *link);
void stream_secure_expired(struct stream_link *link);
/* Frees link->handshake. No step is running. */
void stream_secure_free(struct stream_link *link);
/* Functions of the acceptor: whether one more handshake may begin; ends one that waits for its peer
 * for long. */
bool stream_secure_may_accept(struct stream_acceptor *acceptor);
bool stream_secure_give_way(struct stream_acceptor *acceptor);
/* Start and stop. `quiesce` waits until no step runs, and none begins after it. */
int stream_secure_begin(struct stream_securing *securing);
void stream_secure_quiesce(struct stream_securing *securing);
void stream_secure_end(struct stream_securing *securing);

/* send.c */
/* The socket has room again. Poller, no lock. */
void stream_send_room(struct stream_link *link);

/* receive.c */
/* The socket is readable or has failed. Poller, no lock; the link may be gone at return. */
void stream_receive_ready(struct bmi_watch *watch, uint32_t events);
/* Reads the data that has arrived already, to the end. Poller, no lock. Returns 0 or an errno. */
int stream_receive_rest(struct stream_link *link);

/* Reads on where the layer has bytes that the socket does not report. Poller, no lock; the link may
 * be gone at return. */
void stream_receive_more(struct stream_link *link);

/* Reads the hot link. Poller, no lock; the link may be gone at return. Returns the bytes that came;
 * -1: it has ended. */
int64_t stream_receive_poll(struct stream_link *link);
/* Takes bytes that the engine has received; a count of 0: the stream's end. Poller, no lock. */
void stream_receive_given(struct stream_link *link, const uint8_t *bytes, size_t count);

/* Whether the pass that goes on has taken its time, which runs from the first call. */
bool stream_pass_is_long(struct bmi_instance *instance, uint64_t *until_ns);

/* Whether the next bytes may be a large body's, which is not to be copied. Poller; another thread
 * sees what the core expects. */
static inline bool stream_expects_large(const struct stream_link *link)
{
    return link->body_left > STREAM_AHEAD_BYTES ||
           atomic_load_explicit(&link->base.large_expected, memory_order_relaxed) > 0;
}

/* Frames are about to be written; one of them may make the peer send a large body. Any thread, no
 * send_lock. */
static inline void stream_announce_large(struct stream_link *link)
{
    const struct stream_engine *engine = stream_state_of(link)->engine;
    if (engine->large && atomic_load_explicit(&link->base.large_expected, memory_order_relaxed) > 0)
        engine->large(link);
}

static inline const struct stream_bytes *stream_bytes_of(const struct stream_link *link)
{
    return stream_state_of(link)->socket->bytes;
}

/* engine_epoll.c: the link is the hot one from now on. Poller. */
void stream_hot_set(struct stream_link *link);

/* room.c */
int stream_room_start(struct stream_state *state);
void stream_room_stop(struct stream_state *state);
/* Makes the poller call stream_send_room (or dial_ready) whenever the full socket gets room.
 * Called once for each socket. Any thread. */
int stream_room_watch(struct stream_link *link);
void stream_room_forget(struct stream_link *link);

#endif
