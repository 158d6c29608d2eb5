/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share.h - the layout of memory that two ports share, and the messages on their socket.
 *
 * One side writes each word and the other reads it, except `stall` (both write). A
 * reader copies a value once, checks the copy, and uses the copy. Positions in rings grow for ever;
 * the place in the ring is the position modulo its size. A killed process may leave any of this in
 * any state. That harms no other process, since the other side acts on stamps and positions only.
 *
 *   port memory   a memfd of each port, read-only to peers: whether it sleeps, and its exposures
 *   link memory   a memfd of each connection, made by the accepting port: both ends' words, and
 *                 four rings
 *   arenas        memfds of nic_dma_malloc
 *   wire memory   a memfd of a port with the timing model on: when its link is free again
 *
 * memfds are sealed against shrinking, so that no access can end in SIGBUS, and have no name.
 */
#ifndef BMI_GM_NIC_SHARE_H
#define BMI_GM_NIC_SHARE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "nic.h"

enum { NIC_LINE = 64 };

/* A record of a ring: this, then `length` bytes, from a multiple of NIC_LINE on, never wrapped. The
 * producer clears the stamp of the place behind a record before it sets the record's own, so a
 * consumer that waits there sees no old bytes as a stamp. */
struct nic_record {
    _Atomic uint32_t stamp; /* nic__stamp(position): it is there */
    uint32_t what;          /* length << 8 | kind << 5 | size class */
    uint64_t due_ns;        /* of the timing model: not to be seen before; 0: at once */
};
static_assert(sizeof(struct nic_record) == 16, "a message of 48 bytes is one cache line");

enum nic_record_kind { NIC_RECORD_PAD = 1, NIC_RECORD_MESSAGE, NIC_RECORD_BOUNCE };

/* The fields of a record's header, read once. */
struct nic_record_head {
    uint32_t length;
    uint8_t kind, size;
    uint64_t due_ns;
};
enum { NIC_RECORD_SIZES = 5, NIC_RECORD_KINDS = 3, NIC_RECORD_LENGTH = 24 }; /* bits */
static_assert(NIC_MAX_SIZE < 1 << NIC_RECORD_SIZES && NIC_MAX_SIZE + 2 <= NIC_RECORD_LENGTH,
              "a record says any length that a ring has, and any class");

static inline uint32_t nic__record_what(uint32_t length, uint8_t kind, uint8_t size)
{
    return length << 8 | (uint32_t)kind << NIC_RECORD_SIZES | size;
}

static inline struct nic_record_head nic__record_head(uint32_t what, uint64_t due_ns)
{
    return (struct nic_record_head){
        .length = what >> 8,
        .kind = what >> NIC_RECORD_SIZES & ((1 << NIC_RECORD_KINDS) - 1),
        .size = what & ((1 << NIC_RECORD_SIZES) - 1),
        .due_ns = due_ns,
    };
}

/* The start of a record of kind BOUNCE: a piece of a directed send on its way through a ring. */
struct nic_bounce {
    uint64_t key, offset;
    uint32_t number; /* of the directed send, on this connection */
    uint32_t last;   /* the receiver answers in `bounced` */
    uint64_t reserved[3];
};
static_assert((sizeof(struct nic_record) + sizeof(struct nic_bounce)) % NIC_LINE == 0,
              "long copies begin with a line");

static inline uint32_t nic__stamp(uint64_t position)
{
    return (uint32_t)(position / NIC_LINE) << 1 | 1;
}

enum { NIC_ANSWERS = 8 }; /* that a sender may wait for */

/* The words that one end of a connection writes. */
struct nic_shared_end {
    _Alignas(NIC_LINE) _Atomic uint64_t consumed[NIC_PRIORITIES]; /* of the other's rings */
    /* While the first record of one of the other's rings finds no buffer: its position +
     * NIC_STALLED. The sender may change that to NIC_GIVEN_UP; the side that changes it first
     * decides. */
    _Alignas(NIC_LINE) _Atomic uint64_t stall[NIC_PRIORITIES];
    _Alignas(NIC_LINE) _Atomic uint32_t wants; /* it wants doorbells for `consumed` and `bounced`
                                                * while it sleeps */
    _Alignas(NIC_LINE) _Atomic uint64_t claim; /* key of the exposure that it is writing to */
    _Atomic uint32_t claim_turn; /* futex: changes when a claim ends for which a thread waits */
    _Alignas(NIC_LINE) _Atomic uint32_t claim_waits; /* a thread waits for the other's claim */
    /* Answers to directed sends that came through the ring, each at number % NIC_ANSWERS: number <<
     * 32 | errno. */
    _Alignas(NIC_LINE) _Atomic uint64_t bounced[NIC_ANSWERS];
};
enum { NIC_STALLED = 1, NIC_GIVEN_UP = 2, NIC_STALL_BITS = 3 };

struct nic_shared_link {
    struct nic_shared_end end[2]; /* 0: the port that connected, 1: the one that accepted */
};                                /* rings: end 0's high and low, end 1's high and low */

struct nic_shared_exposure {
    _Alignas(NIC_LINE) _Atomic uint64_t key; /* 0: none; written last, cleared first */
    uint64_t link;                           /* the connection that may use it; 0: all */
    uint64_t address, length;
    uint64_t arena_offset;
    uint32_t arena; /* NIC_NO_ARENA: other memory */
};

struct nic_shared_port {
    uint32_t magic;
    uint32_t exposures;
    _Alignas(NIC_LINE) _Atomic uint32_t asleep;
    _Alignas(NIC_LINE) _Atomic uint32_t turns; /* changes while its poller looks at its rings */
    struct nic_shared_exposure exposure[];
};

struct nic_shared_wire {
    _Atomic uint64_t free_ns; /* when the data on its way to this port will have arrived */
};

enum {
    NIC_MAGIC = 0x4e494347,
    NIC_EXPOSURE_BITS = 20, /* of a key: its place; above: never the same again */
    NIC_ARENAS_MAX = 64,
    NIC_ARENA_BITS = 44 /* of the size of one */
};
#define NIC_NO_ARENA UINT32_MAX

/* A message on the socket. The first three fields stay where they are in all versions. */
struct nic_handshake {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    int32_t error;     /* REFUSE: an errno */
    uint32_t index;    /* ARENA */
    uint64_t length;   /* ARENA, HELLO and WELCOME: of the port memory */
    uint64_t link;     /* names the connection; WELCOME */
    uint64_t nonce[2]; /* the sender is the process that has these at this address */
    uint64_t nonce_address;
    uint32_t max_size[NIC_PRIORITIES];
    uint32_t wire; /* wire memory is sent, too */
    uint32_t reserved;
};

/* With descriptors: HELLO port memory, doorbell, [wire]; WELCOME link memory and then the same;
 * ARENA the arena. BYE: the port is closed in good order. */
enum nic_handshake_kind { NIC_HELLO = 1, NIC_WELCOME, NIC_REFUSE, NIC_ARENA, NIC_BYE };

#endif
