/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.h - a peer: one other process (or this one), as far as the protocol knows it.
 *
 * A peer is a matching domain: operations posted to its addresses pair with the messages of its
 * link. It is made when an address is first posted to, or when a link comes in, and lives as long
 * as its link, operations, or address need it. Memory is type-stable until its instance ends.
 *
 * Everything in it is guarded by `lock` unless said otherwise. Lock order: a link's receive lock >
 * the book's lock (address.h) > a peer's lock > a link's send lock, the budget's, a context's,
 * progress's. Of two peers the one at the lower address is locked first; only the book's holder may
 * hold two.
 */
#ifndef BMI_PEER_H
#define BMI_PEER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "bmi/state/op.h"
#include "bmi/state/wire.h"

struct address;
struct question; /* handshake.c */

enum peer_state {
    PEER_FREE,      /* in the slab */
    PEER_IDLE,      /* looked up, not connected */
    PEER_DIALLING,  /* connecting, or waiting for the answer to our HELLO, or to our JOIN */
    PEER_HANDSHAKE, /* accepted, its HELLO has not come */
    PEER_UP,
    PEER_GONE, /* its link went; nothing can be posted */
};

enum peer_flags {
    PEER_ACCEPTED = 1,          /* the peer dialled; we accepted its link */
    PEER_SELF = 2,              /* this process */
    PEER_ANNOUNCE_ALL = 4,      /* the sender has no credit: announce every receive to it */
    PEER_WANTS_EAGER = 8,       /* we have reported that we lack credit */
    PEER_WANTS_UNEXPECTED = 16, /* likewise, for unexpected messages */
    PEER_IN_WANTS = 32,         /* in the budget's queue */
    PEER_ASKED = 64,      /* a JOIN of ours waits for its answer; accepted: the peer has sent one */
    PEER_PINGED = 128,    /* silent for long: asked for a sign of life */
    PEER_ATTENTION = 256, /* counted among those that the liveness tick has to look at */
    PEER_CLOSING = 512,   /* the method was asked to close its link, which is not down yet */
    PEER_DROPPED = 1024,  /* not to be dialled again for new posts */
    PEER_HUNGRY = 2048,   /* asked for eager credit and got none since */
    PEER_FULL = 4096, /* asked, and uses all of its share: gets credit as messages are consumed */
    PEER_HELLO_DONE = 8192,  /* accepted, and its HELLO answered */
    PEER_FORGOT = 16384,     /* we dropped announcements that the peer believes we keep */
    PEER_ASKED_SEEN = 32768, /* did not update `seen` for long, and was asked by PING */
    PEER_ANSWERING = 65536,  /* a frame from it is being handled */
    PEER_QUESTIONS = 131072, /* receives have OP_CANCEL_WAITS */
    PEER_KEPT = 262144,      /* dialling: our answer to the other side was that this link stays */
    PEER_HUNGRY_UNEXPECTED = 524288, /* HUNGRY and FULL, of the window for unexpected messages */
    PEER_FULL_UNEXPECTED = 1048576,
    PEER_TAKES_LARGE = 2097152, /* its receives are posted in time: large messages go eager to it */
    PEER_CONNECTING = 4194304,  /* as ATTENTION: counted among those without a connection yet */
};

/* An announcement received: where the message of that position may go unasked. */
struct announcement {
    struct announcement *next;
    uint64_t receive; /* the other side's operation */
    bmi_size_t capacity;
    uint32_t position;
    uint32_t region_count;
    uint32_t charge; /* to the peer's and the library's memory for announcements */
    struct bmi_region regions[];
};

/* A message that no receive waits for. */
struct unmatched {
    struct unmatched *next, *previous;
    struct unmatched *request_next; /* RTS: in its bucket of the queue's requests */
    struct op *claimed_by;          /* will take it once it is whole */
    void *buffer;                   /* == body, as a list of one */
    bmi_size_t size;
    uint64_t sender; /* RTS: the other side's operation; 0: eager, `body` holds it */
    wire_tag tag;
    uint32_t region_count; /* RTS: memory to get from, in `body` */
    uint32_t seen;         /* RTS: the peer's count of what we had seen, with this */
    bool whole;
    char body[];
};

/* The operations and messages in progress under one tag. Exists while there are any. */
struct tag_queue {
    struct tag_queue *next;
    struct op_list receives; /* RECV_POSTED */
    struct op_list pending;  /* SEND_PENDING */
    struct unmatched *unmatched_first, *unmatched_last;
    struct announcement *announced_first, *announced_last; /* by position */
    wire_tag tag;
    uint32_t position; /* messages started by us; the next one's number */
    uint32_t unseen;   /* of them, those that the other side has not said to have seen */
    uint32_t unseen_aborts;
    uint32_t settled;    /* see bmi__tag_queue_unsettle_locked */
    uint32_t live;       /* receives, without cancelled ones */
    uint32_t announced;  /* receives that the other side knows of */
    uint32_t tombstones; /* among the receives */
    uint32_t questions;  /* RTR_CANCELs that were not answered */
    bool asked;          /* sent WANT for forgotten announcements since the last message started */
    uint32_t unmatched_count;
    struct tag_queue *waiting_next, *waiting_previous; /* while pending has operations */
    struct unmatched **requests; /* RTS by sender, where many messages wait; else NULL */
};

/* Sent messages and aborts that the peer has not yet reported as seen, in order. Packed: each peer
 * has some, and a peer that sends much has many. */
enum sent_what { SENT_MESSAGE, SENT_ABORT, SENT_NOTHING };
struct __attribute__((packed)) sent_entry {
    int32_t tag;
    uint8_t space : 4, what : 4; /* enum wire_space, enum sent_what */
};

/* One kind of credit that we gave: bytes of unmatched messages that the peer may cause. */
struct window {
    uint32_t standing;   /* the size that the window returns to */
    uint32_t granted;    /* the peer may send so many bytes */
    uint32_t held;       /* bytes of messages that have arrived and are kept */
    uint32_t unreported; /* bytes freed since; the peer may send them when it learns of it */
};

enum { TAG_QUEUE_BUCKETS = 2, SENT_INLINE = 4 };
/* The most messages that are recorded before the peer must report which it has seen. Without a
 * PING a peer reports after 1024 messages, and credit and announcements bound the messages under
 * way. So under the present settings this bound delays no peer that keeps to the protocol. */
enum { SENT_MOST = 8192 };

/* Size of a small body, which is copied from the read-ahead buffer. A longer one is better read
 * straight to its place: its receive is expected, and if the sender knows the receive, it takes no
 * credit. */
enum { STRAIGHT_BYTES = 16384 };

struct peer_counters {
    uint64_t bytes_sent, bytes_received, copied_bytes, put_bytes, get_bytes;
    uint64_t messages_sent, messages_received;
    uint32_t unexpected_sent, unexpected_received;
    uint32_t eager_sent, rendezvous_sent, announced_sent, announcements;
    uint32_t puts, gets, copies, credit_waits, connects, reconnects, errors, cancels;
    uint32_t outstanding_sends, outstanding_receives;
    uint32_t unmatched_messages, unexpected_waiting;
    uint32_t unmatched_bytes, unexpected_bytes; /* no more than the windows' `held` */
};

/* Grouped by the files that use the members. Within a group and between groups the order leaves no
 * padding: an idle peer has to stay below 1 KiB. */
struct peer {
    struct bmi_instance *instance; /* of the slab; a new use keeps the members before `link` */
    struct bmi_lock lock;
    _Atomic uint8_t state; /* enum peer_state; written under lock */
    /* connection/ */
    uint8_t silent_ticks;
    uint8_t alternative;        /* which alternative of the address is being dialled */
    uint8_t flush_frames;       /* api: coalescing, as flush_pass */
    struct bmi_link *link;      /* where frames go; referenced; a new use clears from here on */
    struct bmi_link *self_link; /* PEER_SELF: the accepted end */
    struct address *address;    /* its addresses, linked by alias_next; NULL: none (yet) */
    struct question *question;  /* DIALLING: our JOIN that waits for an answer; from malloc */
    struct peer *matching_next; /* matching.c's lock */
    uint64_t bytes_in;          /* liveness: link's count at the last tick */
    uint64_t
        since_ns;   /* failure.c: time of accept; deadline of a dial; begin of silence, idleness */
    uint64_t epoch; /* differs for each use of the slab's memory */
    uint8_t incarnation[16];
    uint8_t secret[16];    /* of its link, see handshake.c; once a HELLO has gone or come */
    uint32_t matching_key; /* matching.c's lock */
    uint32_t flags;        /* enum peer_flags; all layers */
    /* op_end.c */
    struct op *ops_first, *ops_last; /* all operations, oldest first */
    uint32_t op_count;
    int16_t cause; /* GONE: the reason; else the failure that is being handled */
    /* tag_queue.c, match.c, send.c, rendezvous.c, cancel.c */
    uint16_t questions;         /* RTR_CANCELs that were not answered */
    struct op_list unexpected;  /* SEND_PENDING, unexpected */
    struct op_list streams;     /* SEND_STREAM */
    struct tag_queue **buckets; /* == inline_buckets, or larger */
    struct tag_queue *inline_buckets[TAG_QUEUE_BUCKETS];
    struct tag_queue *waiting_first, *waiting_last; /* queues with pending sends, longest first */
    struct sent_entry *sent; /* ring, a power of two; == inline_sent, or larger */
    struct sent_entry inline_sent[SENT_INLINE];
    uint32_t queue_count, bucket_count;
    uint32_t sent_size, sent_count, sent_seen; /* ring: entries ever made, reported as seen */
    uint32_t seen, seen_reported;
    uint32_t stream_bytes;              /* of DATA frames with the method */
    uint32_t eager_max, unexpected_max; /* what the peer takes */
    uint32_t announcement_bytes;        /* charged for the announcements that are kept */
    uint32_t answers : 20; /* control frames with the method that the peer caused; a few thousand */
    uint32_t in_time : 8;  /* its last large messages that found their receive in time, match.c */
    uint32_t too_late : 4; /* permissions for such that ended, up to a few */
    uint32_t flush_pass;   /* api: coalescing, see flush_wanted_locked */
    /* credit.c */
    struct peer *wants_next;                 /* budget's lock */
    int64_t eager_credit, unexpected_credit; /* what the peer lets us send */
    struct window eager, unexpected_window;  /* what we let it send */
    uint32_t eager_window;                   /* credit that it gave at first */
    uint32_t unexpected_wanted;              /* IN_WANTS or FULL: what the peer needs to get on */
    struct peer_counters counters;           /* all layers */
};

/* ---- memory (peer.c) ------------------------------------------------------------------------ */

struct peer *bmi__peer_take(struct bmi_instance *instance);
/* The peer ends, in this order: its counters are added to the library's; all but its lock is
 * cleared; it returns to the slab. connection/peer_end.c does the rest. */
void bmi__peer_retire_locked(struct peer *peer);
void bmi__peer_clear_locked(struct peer *peer);
void bmi__peer_put(struct peer *peer);
void bmi__peer_each(struct bmi_instance *instance, void (*visit)(struct peer *peer, void *argument),
                    void *argument);
int bmi__peers_open(struct bmi_instance *instance);
void bmi__peers_close(struct bmi_instance *instance);
/* Sum of all peers, present and past. */
void bmi__peers_statistics(struct bmi_instance *instance, struct bmi_statistics *statistics);
/* An unexpected message of a past peer was freed. */
void bmi__peers_past_unexpected(struct bmi_instance *instance, uint64_t bytes);
void bmi__peer_statistics(const struct peer *peer, struct bmi_statistics *statistics);

/* The name of a peer for the log: the address that it was looked up by, or its host and a number
 * that distinguishes it from others there, while it is connected. Valid until the thread's next
 * call, with the peer's lock held. */
const char *bmi__peer_name(const struct peer *peer);

static inline void peer_lock(struct peer *peer)
{
    bmi_lock_take(&peer->lock);
}

static inline void peer_unlock(struct peer *peer)
{
    bmi_lock_give(&peer->lock);
}

/* Sets the peer of a link. Only the poller sets it; threads that give control frames back read it,
 * too. */
static inline void link_own(struct bmi_link *link, struct peer *owner)
{
    __atomic_store_n(&link->owner, owner, __ATOMIC_RELEASE);
}

static inline struct peer *link_owner(struct bmi_link *link)
{
    return __atomic_load_n(&link->owner, __ATOMIC_ACQUIRE);
}

/* Whether a posted receive counts for the receives announced behind it: until its cancel was sent
 * to its sender. */
static inline bool bmi__receive_live(const struct op *op)
{
    return !(op->flags & OP_CANCEL_ASKED) &&
           (!(op->flags & OP_TOMBSTONE) || (op->flags & OP_CANCEL_WAITS));
}

/* ---- kinds of sink owners, in the sink's cookie ---------------------------------------------- */
enum sink_kind { SINK_DRAIN, SINK_OP, SINK_UNMATCHED, SINK_UNEXPECTED, SINK_DATA, SINK_CONTROL };

#endif
