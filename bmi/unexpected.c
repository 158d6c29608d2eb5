/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unexpected.c - see unexpected.h.
 *
 * A message names its sender by address handle and by peer; the peer may be gone, and its memory be
 * another's, when the message is freed: `epoch`, which each use of that memory has its own of,
 * tells.
 */
#include "bmi/unexpected.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/address.h"
#include "bmi/context.h"
#include "bmi/credit.h"
#include "bmi/progress.h"

enum { COOKIE = 0x756e6578 };

struct unexpected {
    enum sink_kind kind;                      /* SINK_UNEXPECTED; first, see link.c */
    struct unexpected *next;                  /* queue of those to fetch */
    struct unexpected *all_next, **all_place; /* all that exist, also the program's */
    struct peer *peer;
    uint64_t epoch;
    BMI_addr_t address;
    void *buffer; /* == bytes, as a list of one */
    bmi_size_t size;
    bmi_msg_tag_t tag;
    uint32_t cookie; /* tells our buffers from others */
    _Alignas(16) char bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct unexpected *first, **end = &first; /* lock */
static struct unexpected *all;                   /* lock */
static atomic_uint waiting;
static _Atomic(void (*)(void)) hook;

bool bmi__unexpected_waiting(void)
{
    return atomic_load(&waiting) > 0;
}

static void enlist(struct unexpected *message)
{
    pthread_mutex_lock(&lock);
    message->all_next = all;
    message->all_place = &all;
    if (all != NULL)
        all->all_place = &message->all_next;
    all = message;
    pthread_mutex_unlock(&lock);
}

static void delist(struct unexpected *message)
{
    pthread_mutex_lock(&lock);
    *message->all_place = message->all_next;
    if (message->all_next != NULL)
        message->all_next->all_place = message->all_place;
    pthread_mutex_unlock(&lock);
}

static void tell(void)
{
    bmi__contexts_signal();
    bmi__progress_notify(NULL, 0);
    void (*call)(void) = atomic_load(&hook);
    if (call != NULL)
        call();
}

static void enqueue(struct unexpected *message)
{
    pthread_mutex_lock(&lock);
    message->next = NULL;
    *end = message;
    end = &message->next;
    atomic_fetch_add(&waiting, 1);
    pthread_mutex_unlock(&lock);
    tell();
}

void bmi__unexpected_set_hook(void (*call)(void))
{
    atomic_store(&hook, call);
}

int bmi__unexpected_arrived_locked(struct peer *peer, const struct wire_header *header,
                                   struct bmi_sink *sink)
{
    if ((bmi_size_t)header->length > peer->link->method->limits.unexpected_max)
        return -EMSGSIZE;
    int status = bmi__credit_charge_locked(peer, true, header->length);
    if (status < 0)
        return status;
    struct unexpected *message = malloc(sizeof *message + (size_t)header->length);
    if (message == NULL)
        return -ENOMEM;
    *message = (struct unexpected){.kind = SINK_UNEXPECTED,
                                   .peer = peer,
                                   .epoch = peer->epoch,
                                   .address = bmi__peer_handle_locked(peer),
                                   .size = (bmi_size_t)header->length,
                                   .tag = header->tag,
                                   .cookie = COOKIE};
    message->buffer = message->bytes;
    enlist(message);
    *sink =
        (struct bmi_sink){.length = header->length, .owner = message, .cookie = SINK_UNEXPECTED};
    sink->body = (struct bmi_segments){.buffers = &message->buffer,
                                       .sizes = &message->size,
                                       .count = 1,
                                       .left = message->size};
    peer->counters.unexpected_bytes += header->length + sizeof *message;
    peer->counters.unexpected_waiting++;
    if (header->length == 0)
        bmi__unexpected_done_locked(peer, sink);
    return 0;
}

void bmi__unexpected_done_locked(struct peer *peer, struct bmi_sink *sink)
{
    struct unexpected *message = sink->owner;
    message->address = bmi__peer_handle_locked(peer); /* as bmi__address_heard_locked counts */
    peer->counters.unexpected_received++;
    bmi__address_heard_locked(peer);
    peer->counters.bytes_received += (uint64_t)message->size;
    enqueue(message);
}

int bmi__unexpected_take(struct BMI_unexpected_info *info, int most)
{
    int count = 0;
    if (!bmi__unexpected_waiting())
        return 0;
    pthread_mutex_lock(&lock);
    while (count < most && first != NULL) {
        struct unexpected *message = first;
        first = message->next;
        if (first == NULL)
            end = &first;
        atomic_fetch_sub(&waiting, 1);
        info[count++] = (struct BMI_unexpected_info){.addr = message->address,
                                                     .buffer = message->bytes,
                                                     .size = message->size,
                                                     .tag = message->tag};
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static struct unexpected *message_of(void *buffer)
{
    return (struct unexpected *)((char *)buffer - offsetof(struct unexpected, bytes));
}

void bmi__unexpected_untake(void *buffer)
{
    struct unexpected *message = message_of(buffer);
    pthread_mutex_lock(&lock);
    message->next = first;
    if (first == NULL)
        end = &message->next;
    first = message;
    atomic_fetch_add(&waiting, 1);
    pthread_mutex_unlock(&lock);
    tell();
}

/* Frees a message that is in no queue. What it was charged is its sender's again, or, where that is
 * gone, the budget's. */
static void message_free(struct unexpected *message)
{
    uint64_t size = (uint64_t)message->size;
    delist(message);
    struct peer *peer = message->peer;
    peer_lock(peer);
    bool current = peer->epoch == message->epoch;
    if (current) {
        peer->counters.unexpected_bytes -= size + sizeof *message;
        peer->counters.unexpected_waiting--;
        bmi__credit_return_locked(peer, true, size);
        if (peer->state == PEER_UP)
            bmi__credit_tell_locked(peer);
    }
    peer_unlock(peer);
    if (!current) {
        bmi__credit_orphan_return(size);
        bmi__peers_past_unexpected(size + sizeof *message);
    }
    free(message);
}

int bmi__unexpected_release(void *buffer)
{
    struct unexpected *message = message_of(buffer);
    if (!bmi__running() || message->cookie != COOKIE)
        return -EINVAL; /* the last finalize has freed it, or it is none */
    message->cookie = 0;
    message_free(message);
    return 0;
}

void bmi__unexpected_lost(void *message)
{
    message_free(message);
}

int bmi__unexpected_count(BMI_addr_t address)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (struct unexpected *message = first; message != NULL; message = message->next)
        count += message->address == address;
    pthread_mutex_unlock(&lock);
    return count;
}

void bmi__unexpected_stop(void)
{
    while (all != NULL) {
        struct unexpected *message = all;
        all = message->all_next;
        free(message);
    }
    first = NULL;
    end = &first;
    atomic_store(&waiting, 0);
}
