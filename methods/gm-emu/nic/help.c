/* SPDX-License-Identifier: BSD-3-Clause
 *
 * help.c - a long directed send copied by both sides, each with its own processor.
 *
 * The sender cuts it into chunks and puts a request into the ring of low priority, with the source
 * and the destination; then it copies from the front. The receiver's poller, when it has no message
 * to look at, copies from the back: from its mapping of the sender's arena, or by process_vm_readv.
 * A side takes a chunk by a compare-and-swap of one shared word: the number of the request, and the
 * chunks between `front` and `back`, which are not taken yet. So a receiver that is busy elsewhere
 * costs nothing: the sender takes all chunks.
 *
 * The receiver checks the grant for each chunk under grant_lock, as with pieces that are bounced: a
 * revocation waits for the chunk. It reads only the addresses that the sender named, from the
 * sender's process only. When nothing is left to take, and it took something, it answers in
 * `helped`; the send is not done before. It gives back a chunk that it cannot copy. The sender
 * keeps `front` itself, so an invalid word can only make it copy too much of its own, or wait for a
 * peer that does not answer.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "internal.h"

enum {
    HELP_MIN = 64 << 10, /* for less, asking takes longer than copying */
    CHUNK_MIN = 32 << 10,
    CHUNK_MAX = 64 << 10, /* bounds how long the receiver's messages may have to wait */
    CHUNKS = 8,           /* as long as they are within these */
    PLACE_BITS = 20,
    PLACE_MAX = (1 << PLACE_BITS) - 1,
    NUMBER_MAX = (1 << 24) - 1
};

struct word {
    uint32_t number, front, back;
};

/* The number of chunks: both sides compute it, and a field of the word must hold it. */
static uint64_t chunks_of(uint64_t length, uint64_t chunk)
{
    return length / chunk + (length % chunk != 0);
}

static struct word word_take_apart(uint64_t value)
{
    return (struct word){.number = (uint32_t)(value >> 2 * PLACE_BITS),
                         .back = (uint32_t)(value >> PLACE_BITS) & PLACE_MAX,
                         .front = (uint32_t)value & PLACE_MAX};
}

static uint64_t word_make(struct word word)
{
    return (uint64_t)word.number << 2 * PLACE_BITS | (uint64_t)word.back << PLACE_BITS | word.front;
}

/* ---- the sender -------------------------------------------------------------------------------
 */

static bool sources_fill(struct nic_peer *peer, const struct nic_send *send,
                         struct nic_help_source *sources)
{
    for (size_t i = 0; i < send->count; i++) {
        uint64_t length = send->iov[i].iov_len, offset = 0;
        uint32_t arena = nic__arena_of(peer->port, send->iov[i].iov_base, length, &offset);
        if (arena == NIC_NO_ARENA && !peer->vm_write)
            return false;
        sources[i] = (struct nic_help_source){.address = (uintptr_t)send->iov[i].iov_base,
                                              .length = length,
                                              .arena_offset = offset,
                                              .arena = arena};
    }
    return true;
}

/* Numbers wrap around, and not each request is answered: skips the number of the last answer. */
static uint32_t number_next(struct nic_peer *peer)
{
    uint64_t answer = atomic_load_explicit(&peer->theirs->helped, memory_order_relaxed);
    peer->help_number = peer->help_number % NUMBER_MAX + 1;
    if ((uint32_t)(answer >> 32) == peer->help_number)
        peer->help_number = peer->help_number % NUMBER_MAX + 1;
    return peer->help_number;
}

/* Describes the data and its chunks, from the sender's own memory. peer->lock held. */
static void request_fill(struct nic_peer *peer, struct nic_send *send, uint64_t chunk,
                         struct nic_help_request *request)
{
    send->help = number_next(peer);
    send->chunk = (uint32_t)chunk;
    send->chunks = (uint32_t)chunks_of(send->length, chunk);
    *request = (struct nic_help_request){.key = send->key,
                                         .offset = send->offset,
                                         .length = send->length,
                                         .number = send->help,
                                         .chunk = send->chunk};
    struct word word = {send->help, 0, send->chunks};
    atomic_store_explicit(&peer->mine->help, word_make(word), memory_order_relaxed);
}

/* A sleeping receiver is not woken for it: with a processor for each side that gained nothing,
 * and with more processes than processors a third of the rate was lost. */
static bool may_ask(const struct nic_peer *peer, const struct nic_send *send, uint64_t chunk)
{
    return send->length >= HELP_MIN && chunks_of(send->length, chunk) <= PLACE_MAX &&
           send->count <= NIC_HELP_SOURCES && !peer->port->timed && peer->faults.drop_every == 0 &&
           atomic_load_explicit(&peer->their_port->asleep, memory_order_relaxed) == 0;
}

void nic__help_ask(struct nic_peer *peer, struct nic_send *send)
{
    struct {
        struct nic_help_request request;
        struct nic_help_source sources[NIC_HELP_SOURCES];
    } ask;
    struct nic_ring *ring = &peer->out[NIC_LOW_PRIORITY];
    size_t bytes = sizeof(ask.request) + send->count * sizeof(*ask.sources);
    uint64_t chunk = send->length / CHUNKS & ~(uint64_t)4095;
    chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk > CHUNK_MAX ? CHUNK_MAX : chunk;
    if (!may_ask(peer, send, chunk) || !sources_fill(peer, send, ask.sources))
        return;
    bmi_lock_take(&peer->lock);
    uint8_t *place = nic__ring_reserve(ring, bytes);
    if (place != NULL) {
        request_fill(peer, send, chunk, &ask.request);
        memcpy(place, &ask, bytes);
        nic__ring_publish(ring, bytes, NIC_RECORD_HELP, 0, 0);
        atomic_store_explicit(&peer->unsettled, true, memory_order_relaxed);
    }
    bmi_lock_give(&peer->lock);
}

/* Whether the receiver has answered; its errno goes to *status. */
static bool answered(struct nic_peer *peer, const struct nic_send *send, int *status)
{
    uint64_t answer = atomic_load_explicit(&peer->theirs->helped, memory_order_acquire);
    uint32_t error = (uint32_t)answer;
    if ((uint32_t)(answer >> 32) != send->help)
        return false;
    *status = error < 4096 ? -(int)error : -EPROTO;
    return true;
}

static bool word_is_good(const struct nic_send *send, struct word word)
{
    return word.number == send->help && word.front == send->front && word.front <= word.back &&
           word.back <= send->chunks;
}

bool nic__help_waits(struct nic_peer *peer, const struct nic_send *send)
{
    int status;
    if (send->chunks == 0 || (send->status == 0 && send->done < send->taken))
        return false;
    bool answer = answered(peer, send, &status);
    struct word word = word_take_apart(atomic_load(&peer->mine->help));
    if (answer || !word_is_good(send, word))
        return false;
    return send->status != 0 || (word.front == word.back && word.back < send->chunks);
}

/* One answer ends the request, and says where the receiver's share begins; without one it has
 * none. */
static enum nic_help_step request_end(struct nic_send *send, uint32_t back)
{
    uint64_t end = (uint64_t)back * send->chunk;
    if (end < send->length)
        send->length = end;
    send->chunks = 0;
    return NIC_HELP_OVER;
}

enum nic_help_step nic__help_take(struct nic_peer *peer, struct nic_send *send, int *status)
{
    if (nic__help_waits(peer, send))
        return NIC_HELP_WAITS;
    answered(peer, send, status); /* before the word: the chunks given back can be taken again */
    uint64_t value = atomic_load(&peer->mine->help);
    struct word word;
    do {
        word = word_take_apart(value);
        if (!word_is_good(send, word)) {
            atomic_store(&peer->broken, true);
            nic__attention(peer->port);
            return NIC_HELP_WAITS;
        }
        if (send->status != 0)
            *status = send->status;
        if (*status != 0 || word.front == word.back)
            return request_end(send, word.back);
        word.front++;
    } while (!atomic_compare_exchange_weak(&peer->mine->help, &value, word_make(word)));
    uint64_t end = (uint64_t)++send->front * send->chunk;
    send->taken = end < send->length ? end : send->length;
    return NIC_HELP_TAKEN;
}

bool nic__help_stop(struct nic_peer *peer, struct nic_send *send, int status)
{
    uint64_t value = atomic_load(&peer->mine->help);
    struct word word, closed;
    do {
        word = word_take_apart(value);
        closed = (struct word){send->help, send->front, send->front};
    } while (!atomic_compare_exchange_weak(&peer->mine->help, &value, word_make(closed)));
    if (word.back >= send->chunks)
        return true;
    send->status = status;
    return false;
}

/* ---- the receiver -----------------------------------------------------------------------------
 */

struct nic_help {
    struct nic_help_request request;
    struct nic_help_source sources[NIC_HELP_SOURCES];
    uint32_t count, chunks;
    bool any; /* a chunk was taken: the sender waits for an answer */
};

/* Reads a copy of the request; false: invalid. */
static bool request_read(struct nic_help *help, const uint8_t *payload, uint64_t length)
{
    struct nic_help_request *request = &help->request;
    uint64_t sum = 0;
    if (length < sizeof(*request) || (length - sizeof(*request)) % sizeof(*help->sources) != 0 ||
        (length - sizeof(*request)) / sizeof(*help->sources) > NIC_HELP_SOURCES)
        return false;
    memcpy(request, payload, sizeof(*request));
    memcpy(help->sources, payload + sizeof(*request), length - sizeof(*request));
    help->count = (uint32_t)((length - sizeof(*request)) / sizeof(*help->sources));
    for (uint32_t i = 0; i < help->count; i++)
        if (__builtin_add_overflow(sum, help->sources[i].length, &sum))
            return false;
    if (sum != request->length || request->chunk < CHUNK_MIN || request->chunk > CHUNK_MAX ||
        chunks_of(sum, request->chunk) > PLACE_MAX)
        return false;
    help->chunks = (uint32_t)chunks_of(sum, request->chunk);
    help->any = false;
    return true;
}

bool nic__help_asked(struct nic_peer *peer, const uint8_t *payload, uint64_t length)
{
    if (peer->help == NULL)
        peer->help = calloc(1, sizeof(*peer->help));
    if (peer->help == NULL)
        return true; /* the sender copies everything */
    nic__help_forget(peer);
    if (!request_read(peer->help, payload, length))
        return false;
    peer->helping = true;
    peer->port->helping++;
    return true;
}

void nic__help_forget(struct nic_peer *peer)
{
    if (peer->helping)
        peer->port->helping--;
    peer->helping = false;
}

/* Takes the last free chunk. False: there is none, or the request is over. */
static bool chunk_take(struct nic_peer *peer, uint32_t *chunk)
{
    const struct nic_help *help = peer->help;
    uint64_t value = atomic_load(&peer->theirs->help);
    struct word word;
    do {
        word = word_take_apart(value);
        if (word.number != help->request.number || word.front >= word.back ||
            word.back > help->chunks)
            return false;
        *chunk = --word.back;
    } while (!atomic_compare_exchange_weak(&peer->theirs->help, &value, word_make(word)));
    return true;
}

static void chunk_give_back(struct nic_peer *peer, uint32_t chunk)
{
    uint64_t value = atomic_load(&peer->theirs->help);
    struct word word;
    do {
        word = word_take_apart(value);
        if (word.number != peer->help->request.number || word.back != chunk)
            return; /* the sender has closed it */
        word.back++;
    } while (!atomic_compare_exchange_weak(&peer->theirs->help, &value, word_make(word)));
}

/* Whether there is a chunk to take, without taking it. */
static bool more_is_there(struct nic_peer *peer)
{
    struct word word = word_take_apart(atomic_load(&peer->theirs->help));
    return word.number == peer->help->request.number && word.front < word.back;
}

static void answer(struct nic_peer *peer, int status)
{
    uint32_t number = peer->help->request.number;
    bool any = peer->help->any;
    nic__help_forget(peer);
    if (!any)
        return;
    atomic_store_explicit(&peer->mine->helped, (uint64_t)number << 32 | (uint32_t)-status,
                          memory_order_release);
    nic__fence();
    if (atomic_load_explicit(&peer->theirs->wants, memory_order_relaxed) != 0)
        nic__doorbell(peer);
}

/* Where bytes of a source are in our mapping of the sender's arena, or NULL. */
static const uint8_t *source_place(struct nic_peer *peer, const struct nic_help_source *source,
                                   uint64_t offset, uint64_t bytes)
{
    if (source->arena_offset > UINT64_MAX - offset)
        return NULL;
    return nic__mapped(peer, source->arena, source->arena_offset + offset, bytes);
}

/* Copies from the sender's memory to ours: 0, an errno, or 1 where that way is closed. */
static int part_copy(struct nic_peer *peer, uint8_t *to, const struct nic_help_source *source,
                     uint64_t offset, uint64_t bytes)
{
    const uint8_t *from = source_place(peer, source, offset, bytes);
    if (from != NULL) {
        nic__copy(&peer->port->help_copier, to, from, bytes);
        return 0;
    }
    struct iovec here = {.iov_base = to, .iov_len = bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)(source->address + offset),
                          .iov_len = bytes};
    if (!peer->vm_write || atomic_load_explicit(&peer->vm_refused, memory_order_relaxed) ||
        !nic__process_is_peer(peer))
        return 1;
    ssize_t got = process_vm_readv(peer->pid, &here, 1, &there, 1, 0);
    if (got < 0 && errno != EFAULT)
        atomic_store_explicit(&peer->vm_refused, true, memory_order_relaxed);
    return got == (ssize_t)bytes ? 0 : got < 0 && errno != EFAULT ? 1 : -EFAULT;
}

/* Returns as part_copy. grant_lock held. */
static int chunk_copy_locked(struct nic_peer *peer, uint64_t begin, uint64_t bytes)
{
    const struct nic_help *help = peer->help;
    uint8_t *to = nic__grant_place_locked(peer->port, peer->link_name, help->request.key,
                                          help->request.offset + begin, bytes);
    int status = to != NULL ? 0 : -EACCES;
    for (uint32_t i = 0; i < help->count && bytes > 0 && status == 0; i++) {
        const struct nic_help_source *source = &help->sources[i];
        if (begin >= source->length) {
            begin -= source->length;
            continue;
        }
        uint64_t part = source->length - begin < bytes ? source->length - begin : bytes;
        status = part_copy(peer, to, source, begin, part);
        to += part;
        bytes -= part;
        begin = 0;
    }
    return status;
}

void nic__help_step(struct nic_peer *peer)
{
    struct nic_port *port = peer->port;
    struct nic_help *help = peer->help;
    uint32_t chunk;
    if (!peer->helping)
        return;
    if (atomic_load(&peer->state) != NIC_UP) {
        nic__help_forget(peer);
        return;
    }
    if (!chunk_take(peer, &chunk)) {
        answer(peer, 0);
        return;
    }
    help->any = true;
    uint64_t begin = (uint64_t)chunk * help->request.chunk, left = help->request.length - begin;
    uint64_t bytes = left < help->request.chunk ? left : help->request.chunk;
    bmi_lock_take(&port->grant_lock);
    int status = chunk_copy_locked(peer, begin, bytes);
    bmi_lock_give(&port->grant_lock);
    if (status == 1)
        chunk_give_back(peer, chunk);
    if (status == 0) {
        nic__count_own(&port->counters.helped, 1);
        nic__count_own(&port->counters.helped_bytes, bytes);
    }
    if (status != 0 || !more_is_there(peer))
        answer(peer, status < 0 ? status : 0);
}

bool nic__help_event(struct nic_port *port, struct nic_event *event)
{
    for (uint32_t i = 0; port->helping > 0 && i < port->table_count; i++) {
        port->help_cursor = (port->help_cursor + 1) % port->table_count;
        if (!port->table[port->help_cursor]->helping)
            continue;
        event->type = NIC_HELP_EVENT;
        event->peer = port->table[port->help_cursor];
        return true;
    }
    return false;
}
