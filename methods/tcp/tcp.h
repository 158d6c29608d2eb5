/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.h - declarations that the files of the tcp method share.
 *
 * A link is one socket. tcp_connect or the listener creates it; the poller opens it; any thread
 * sends; the poller receives; tcp_link_end, which only the poller calls, takes it down once.
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
 * is left behind. tcp_link_end does nothing while a thread writes: the writer kicks the link when
 * it is done, and the poller calls tcp_link_end again.
 */
#ifndef TCP_H
#define TCP_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "methods/ip/ip.h"

enum {
    TCP_IOVECS = 512,          /* entries gathered or scattered by one system call */
    TCP_WRITE_BYTES = 1 << 20, /* bytes of one system call, about */
    TCP_READ_BYTES = 1 << 20,
    TCP_GATHER_BYTES = 2048,     /* up to this a write is put together first */
    TCP_FLUSH_BYTES = 256 << 10, /* one flush; then the poller serves other links first */
    TCP_PASS_BYTES = 4 << 20,    /* one link's receive pass; data left in the socket leaves the
                                  * cache */
    TCP_PASS_READS = 64,
    TCP_PASS_FRAMES = 2048,       /* about so many frames: small ones cost much time for their
                                   * bytes, */
    TCP_PASS_NS = 5000000,        /* and so long: the sender determines the cost of a frame */
    TCP_HOT_READS = 64,           /* after so many reads by polling, the link is not watched */
    TCP_REST_BYTES = 256 << 20,   /* of a link whose writes fail */
    TCP_STAGE_BYTES = 64 << 10,   /* read ahead */
    TCP_SCRATCH_BYTES = 16 << 10, /* where unwanted bodies go, over and over */
    TCP_ACCEPT_BATCH = 32,        /* connections taken in one pass */
    TCP_ACCEPT_RETRY_MS = 100     /* after running out of descriptors */
};

/* The events that a link is watched for. */
#define TCP_WATCHED (EPOLLIN | EPOLLRDHUP)

enum tcp_phase {
    TCP_NEW,      /* made by tcp_connect, not seen by the poller */
    TCP_DIALLING, /* name being looked up, or connection under way */
    TCP_UP,
    TCP_DOWN
};

enum tcp_buffer { TCP_SEND_BUFFER, TCP_RECEIVE_BUFFER };

enum tcp_closing { TCP_OPEN, TCP_CLOSE_LINGERING, TCP_CLOSE_NOW };

struct tcp_dial;
struct tcp_listener;
struct tcp_remainder;

struct tcp_link {
    struct bmi_link base;
    struct bmi_watch watch;       /* watch.fd is the socket, -1: none. The poller changes it
                                   * under send_lock */
    struct tcp_link *list_next;   /* list_lock */
    struct tcp_link **list_to_me; /* list_lock */
    struct bmi_deferred deferred; /* runs tcp_link_step; holds a reference while `kicked` */
    atomic_bool kicked;

    /* Changed in the poller under send_lock; read in the poller or under send_lock. */
    enum tcp_phase phase;

    /* send_lock */
    struct bmi_lock send_lock;
    int failure; /* send_lock: 0, or the error of a write; here it fills a hole, as end_status */
    struct bmi_frame *queue;
    struct bmi_frame *queue_last;
    struct bmi_frame *write_last;    /* the last one that is being written; NULL: none is */
    struct tcp_remainder *remainder; /* the queue's first, if it is of our making */
    atomic_uint write_ended;         /* a futex, counted up if `withdrawing` */
    uint32_t withdrawing;            /* threads that wait for it */
    enum tcp_closing closing;        /* the core's request */
    atomic_bool closed;              /* the core asked; the poller also reads it without the lock */
    bool writing;                    /* one thread writes */
    bool blocked;                    /* the socket was full, and the engine reported no room
                                      * since */
    bool room;                       /* the engine reported room while a thread was writing */
    bool room_watched;               /* it is in the engine's set */
    bool go_on;                      /* a flush stopped at TCP_FLUSH_BYTES */
    bool ending;                     /* tcp_link_end waits for the writer */
    bool shut;                       /* our direction has been shut down, nothing more is written */

    /* poller */
    bool watched;
    bool accepted;
    uint8_t linger_wait_ms;
    struct tcp_dial *dial; /* until it is up or has failed; set and freed under send_lock, too */
    struct bmi_timer timer;

    /* receive_lock */
    struct bmi_lock receive_lock;
    int end_status; /* send_lock: status to end with, if `ending` */
    struct bmi_sink sink;
    uint64_t body_left;  /* bytes of the present body still to come */
    bool body_direct;    /* none of them was staged so far */
    bool retracted;      /* the sink's owner has gone */
    bool any_frame;      /* one header at least was whole */
    uint8_t header_have; /* bytes of the next header */
    uint8_t header[BMI_FRAME_HEADER];
};

/* The counts of a receive pass, added to the core's counters once, at its end. */
struct tcp_tally {
    int64_t frames, bytes, reads, copies, copied_bytes;
};

struct tcp_state {
    /* The engine (engine_epoll.c): sockets that may get room again. */
    int room_epoll;
    struct bmi_watch room_watch;

    struct bmi_lock list_lock;
    struct tcp_link *links; /* list_lock */

    struct tcp_link *hot;           /* poller: the link that received last */
    uint32_t hot_reads;             /* poller: polls of `hot` since it became hot, or since a
                                     * wait */
    struct tcp_listener *listeners; /* listen and stop */
    struct ip_names *names;         /* listen and stop */
    struct bmi_timer accept_timer;  /* poller */
    bool accept_paused;             /* poller: out of descriptors */
    bool accept_logged;             /* poller */

    atomic_int port; /* the first one listened on, 0: none */

    /* poller */
    struct tcp_tally tally;
    _Alignas(64) uint8_t stage[TCP_STAGE_BYTES];
    uint8_t scratch[TCP_SCRATCH_BYTES];
};

extern const struct bmi_method bmi__method_tcp;

#define tcp_container(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline struct tcp_link *tcp_link_of(struct bmi_link *base)
{
    return tcp_container(base, struct tcp_link, base);
}

static inline struct tcp_state *tcp_state_of(const struct tcp_link *link)
{
    return link->base.state;
}

static inline void tcp_lock(struct bmi_lock *lock)
{
    bmi_lock_take(lock);
}

static inline void tcp_unlock(struct bmi_lock *lock)
{
    bmi_lock_give(lock);
}

static inline void tcp_assert_locked(struct bmi_lock *lock)
{
    assert(bmi_lock_held(lock));
    (void)lock;
}

extern _Atomic int64_t *tcp_counters; /* from tcp_start on */

static inline void tcp_count(enum bmi_method_counter counter, int64_t amount)
{
    if (amount)
        bmi_counter_add(tcp_counters, counter, amount);
}

/* link.c: a link's life */
struct tcp_link *tcp_link_new(struct tcp_state *state, int fd);
/* Takes back a link that the core has not kept. Poller. */
void tcp_link_forget(struct tcp_link *link);
/* Makes the poller run tcp_link_step. Any thread, send_lock held or not. */
void tcp_link_kick(struct tcp_link *link);
/* Does the work that is due: dials, lingers, ends. Poller, no lock. */
void tcp_link_step(struct tcp_link *link);
/* The link carries frames from now on: watches it, writes the waiting frames. Poller, no lock. */
void tcp_link_open(struct tcp_link *link);
/* Takes the link down, now or when its writer is done; the link may be gone at return. Poller, no
 * lock. */
void tcp_link_end(struct tcp_link *link, int status);
void tcp_close(struct bmi_link *base, bool linger);

/* send.c */
void tcp_send(struct bmi_link *base, struct bmi_frame *frames);
void tcp_flush(struct bmi_link *base);
bool tcp_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement);
/* Removes the method's own frames from the front of a chain that goes back to the core. */
struct bmi_frame *tcp_send_strip_locked(struct tcp_link *link, struct bmi_frame *chain);
/* The socket has room again. Poller, no lock. */
void tcp_send_room(struct tcp_link *link);

/* receive.c */
bool tcp_retract(struct bmi_link *base, void *owner);
int tcp_progress(void *state);
/* The poller is about to wait. */
bool tcp_arm(void *state);
/* The socket is readable or has failed. Poller, no lock; the link may be gone at return. */
void tcp_receive_ready(struct bmi_watch *watch, uint32_t events);
/* Reads the data that has arrived already, to the end. Poller, no lock. Returns 0 or an errno. */
int tcp_receive_rest(struct tcp_link *link);

/* stream.c: the bytes of a link. Both return bytes moved, or -EAGAIN, or another negated errno;
 * read returns 0 at the stream's end. TLS belongs behind these two. */
ssize_t tcp_stream_write(struct tcp_link *link, struct iovec *iov, size_t count);
ssize_t tcp_stream_read(struct tcp_link *link, struct iovec *iov, size_t count);

/* engine_epoll.c */
int tcp_engine_start(struct tcp_state *state);
void tcp_engine_stop(struct tcp_state *state);
/* Makes the engine call tcp_send_room (or tcp_dial_ready) whenever the full socket gets room.
 * Called once for each socket. Any thread. */
int tcp_engine_watch_room(struct tcp_link *link);
void tcp_engine_forget(struct tcp_link *link);

/* socket.c */
/* Sets the buffer sizes of a link's socket, or (link NULL) of one that listens. The link's
 * send_lock. */
void tcp_socket_set_buffers_locked(struct tcp_link *link, int fd);
int tcp_option(void *state, struct bmi_link *base, int option, void *value, bool set);

/* dial.c */
int tcp_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void tcp_dial_start(struct tcp_link *link);
/* The connection under way has an outcome. Poller, no lock. */
void tcp_dial_ready(struct tcp_link *link);
/* The time limit of the present attempt has expired. Poller, no lock. */
void tcp_dial_expired(struct tcp_link *link);
void tcp_dial_free(struct tcp_link *link);
/* The buffer sizes that were set for the sockets to come, by enum tcp_buffer; -1: none was. NULL:
 * the link does not dial. send_lock held. */
int *tcp_dial_buffers_locked(struct tcp_link *link);

/* listen.c */
int tcp_listen(void *state, const char *address, int flags, char *bound, size_t size);
void tcp_listen_stop(struct tcp_state *state);
/* A descriptor is free again. Poller. */
void tcp_listen_resume(struct tcp_state *state);

#endif
