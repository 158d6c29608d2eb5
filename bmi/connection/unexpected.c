/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unexpected.c - see unexpected.h.
 *
 * A message names its sender by address handle and by peer. When the message is freed, the peer may
 * be gone, and another peer may use its memory. `epoch` differs for each use of that memory, so it
 * shows that.
 */
#include "bmi/connection/unexpected.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/connection/address.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/credit.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/peer.h"

/* COOKIE_LEFT: of a message that the program held when its instance ended; it is the program's. */
enum { COOKIE = 0x756e6578, COOKIE_LEFT = 0x6c656674, STALLED_MS = 1000 };

struct unexpected {
    enum sink_kind kind;                      /* SINK_UNEXPECTED; first, see link.c */
    struct unexpected *next;                  /* queue of those to fetch */
    struct unexpected *all_next, **all_place; /* all that exist, also the program's */
    struct peer *peer;
    uint64_t epoch;
    BMI_addr_t address;
    void *buffer; /* == bytes, as a list of one */
    bmi_size_t size;
    wire_tag tag;
    uint32_t cookie; /* distinguishes our buffers from others */
    bool fetched;    /* lock: the program owns the buffer */
    _Alignas(16) char bytes[];
};

static void stalled_timer_expired(struct bmi_timer *timer);

struct bmi__unexpected {
    struct bmi_instance *instance;
    pthread_mutex_t lock;
    struct unexpected *first, **end; /* lock */
    struct unexpected *all;          /* lock */
    _Atomic(void (*)(struct bmi_instance *instance)) hook;
    struct bmi_timer stalled_timer; /* poller */
    bool stalled_timer_runs;        /* poller */
};

static void enlist(struct unexpected *message)
{
    struct bmi__unexpected *messages = message->peer->instance->unexpected;
    pthread_mutex_lock(&messages->lock);
    message->all_next = messages->all;
    message->all_place = &messages->all;
    if (messages->all != NULL)
        messages->all->all_place = &message->all_next;
    messages->all = message;
    pthread_mutex_unlock(&messages->lock);
}

static void delist(struct unexpected *message)
{
    struct bmi__unexpected *messages = message->peer->instance->unexpected;
    pthread_mutex_lock(&messages->lock);
    *message->all_place = message->all_next;
    if (message->all_next != NULL)
        message->all_next->all_place = message->all_place;
    pthread_mutex_unlock(&messages->lock);
}

static void tell(struct bmi_instance *instance)
{
    struct bmi__unexpected *messages = instance->unexpected;
    bmi__contexts_signal(instance);
    bmi__progress_notify(instance, NULL, 0);
    void (*call)(struct bmi_instance *) = atomic_load(&messages->hook);
    if (call != NULL)
        call(instance);
}

static void enqueue(struct unexpected *message)
{
    struct bmi__unexpected *messages = message->peer->instance->unexpected;
    pthread_mutex_lock(&messages->lock);
    message->next = NULL;
    *messages->end = message;
    messages->end = &message->next;
    bmi__unexpected_waiting_add(message->peer->instance, 1);
    pthread_mutex_unlock(&messages->lock);
    tell(message->peer->instance);
}

void bmi__unexpected_set_hook(struct bmi_instance *instance,
                              void (*call)(struct bmi_instance *instance))
{
    struct bmi__unexpected *messages = instance->unexpected;
    atomic_store(&messages->hook, call);
}

int bmi__unexpected_arrived_locked(struct peer *peer, const struct wire_header *header,
                                   struct bmi_sink *sink)
{
    if ((bmi_size_t)header->length > peer->link->method->limits.unexpected_max)
        return -EMSGSIZE;
    if (wire_tag_space(header->tag) == SPACE_REPLY)
        return -EPROTO; /* a call has a receive for its reply */
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
                                   .cookie = COOKIE,
                                   .fetched = wire_tag_space(header->tag) == SPACE_REQUEST};
    message->buffer = message->bytes;
    enlist(message);
    *sink =
        (struct bmi_sink){.length = header->length, .owner = message, .cookie = SINK_UNEXPECTED};
    sink->body = (struct bmi_segments){.buffers = &message->buffer,
                                       .sizes = &message->size,
                                       .count = 1,
                                       .left = message->size};
    peer->counters.unexpected_bytes += (uint32_t)(header->length + sizeof *message);
    peer->counters.unexpected_waiting++;
    if (header->length == 0)
        bmi__unexpected_done_locked(peer, sink);
    return 0;
}

/* A message of this peer is given back. */
static void charge_return_locked(struct peer *peer, const struct unexpected *message)
{
    peer->counters.unexpected_bytes -= (uint32_t)((uint64_t)message->size + sizeof *message);
    peer->counters.unexpected_waiting--;
    bmi__credit_return_locked(peer, true, (uint64_t)message->size);
    if (peer->state == PEER_UP)
        bmi__credit_tell_locked(peer);
}

static void message_drop_locked(struct peer *peer, struct unexpected *message)
{
    charge_return_locked(peer, message);
    delist(message);
    free(message);
}

void bmi__unexpected_done_locked(struct peer *peer, struct bmi_sink *sink)
{
    struct unexpected *message = sink->owner;
    message->address = bmi__peer_handle_locked(peer); /* as bmi__address_heard_locked counts */
    peer->counters.unexpected_received++;
    peer->counters.bytes_received += (uint64_t)message->size;
    if (wire_tag_space(message->tag) == SPACE_REQUEST) {
        if (!peer->instance->upcalls->request_arrived_locked(peer, (int32_t)message->tag,
                                                             message->bytes, message->size))
            message_drop_locked(peer, message);
        return;
    }
    bmi__address_heard_locked(peer);
    enqueue(message);
}

int bmi__unexpected_take(struct bmi_instance *instance, struct BMI_unexpected_info *info, int most)
{
    struct bmi__unexpected *messages = instance->unexpected;
    int count = 0;
    if (!bmi__unexpected_waiting(instance))
        return 0;
    pthread_mutex_lock(&messages->lock);
    while (count < most && messages->first != NULL) {
        struct unexpected *message = messages->first;
        messages->first = message->next;
        if (messages->first == NULL)
            messages->end = &messages->first;
        bmi__unexpected_waiting_add(instance, -1);
        message->fetched = true;
        info[count++] = (struct BMI_unexpected_info){.addr = message->address,
                                                     .buffer = message->bytes,
                                                     .size = message->size,
                                                     .tag = (bmi_msg_tag_t)message->tag};
    }
    pthread_mutex_unlock(&messages->lock);
    return count;
}

static struct unexpected *message_of(void *buffer)
{
    return (struct unexpected *)((char *)buffer - offsetof(struct unexpected, bytes));
}

void bmi__unexpected_untake(struct bmi_instance *instance, void *buffer)
{
    struct bmi__unexpected *messages = instance->unexpected;
    struct unexpected *message = message_of(buffer);
    pthread_mutex_lock(&messages->lock);
    message->fetched = false;
    message->next = messages->first;
    if (messages->first == NULL)
        messages->end = &message->next;
    messages->first = message;
    bmi__unexpected_waiting_add(instance, 1);
    pthread_mutex_unlock(&messages->lock);
    tell(instance);
}

/* Frees a message that is in no queue. Its charge returns to its sender or, if the sender is gone,
 * to the budget. */
static void message_free(struct unexpected *message)
{
    uint64_t size = (uint64_t)message->size;
    delist(message);
    struct peer *peer = message->peer;
    peer_lock(peer);
    bool current = peer->epoch == message->epoch;
    if (current)
        charge_return_locked(peer, message);
    peer_unlock(peer);
    if (!current) {
        bmi__credit_orphan_return(message->peer->instance, size);
        bmi__peers_past_unexpected(message->peer->instance, size + sizeof *message);
    }
    free(message);
}

int bmi__unexpected_release(void *buffer)
{
    struct unexpected *message = message_of(buffer);
    uint32_t cookie = message->cookie;
    if (cookie != COOKIE && cookie != COOKIE_LEFT)
        return -EINVAL;
    message->cookie = 0;
    if (cookie == COOKIE)
        message_free(message);
    else
        free(message);
    return 0;
}

void bmi__unexpected_lost(void *message)
{
    message_free(message);
}

/* The first member of each buffer that receives a body and that has no other owner until it is
 * whole. */
struct arriving {
    enum sink_kind kind;
};

/* Frees such a buffer, since the link ends and the rest will not arrive. */
void bmi__arriving_free(struct bmi_link *link)
{
    struct arriving *arriving = link->arriving;
    link->arriving = NULL;
    if (arriving != NULL && arriving->kind == SINK_UNEXPECTED)
        bmi__unexpected_lost(arriving);
    else
        free(arriving);
}

int bmi__unexpected_count(struct bmi_instance *instance, BMI_addr_t address)
{
    struct bmi__unexpected *messages = instance->unexpected;
    int count = 0;
    pthread_mutex_lock(&messages->lock);
    for (struct unexpected *message = messages->first; message != NULL; message = message->next)
        count += message->address == address;
    pthread_mutex_unlock(&messages->lock);
    return count;
}

/* ---- peers that wait for the program --------------------------------------------------------- */

/* A peer that lacks credit because the program has not freed its messages. */
struct stalled {
    struct peer *peer;
    uint64_t epoch;
    uint64_t held_bytes; /* of those held */
    unsigned held;       /* fetched, not freed */
    unsigned unfetched;
};

/* More warnings than the log writes in a second are of no use. */
struct survey {
    int count;
    struct stalled list[BMI__LOG_WARNINGS];
};

static bool is_stalled_locked(const struct peer *peer)
{
    return peer->state == PEER_UP && (peer->flags & PEER_FULL_UNEXPECTED) != 0;
}

static void survey_peer(struct peer *peer, void *argument)
{
    struct survey *survey = argument;
    peer_lock(peer);
    if (is_stalled_locked(peer) && survey->count < BMI__LOG_WARNINGS)
        survey->list[survey->count++] = (struct stalled){.peer = peer, .epoch = peer->epoch};
    peer_unlock(peer);
}

static int by_peer(const void *one, const void *other)
{
    uintptr_t a = (uintptr_t)((const struct stalled *)one)->peer;
    uintptr_t b = (uintptr_t)((const struct stalled *)other)->peer;
    return (a > b) - (a < b);
}

/* Counts each stalled peer's messages, in one walk. */
static void survey_messages(struct bmi__unexpected *messages, struct survey *survey)
{
    pthread_mutex_lock(&messages->lock);
    for (const struct unexpected *message = messages->all; message != NULL;
         message = message->all_next) {
        const struct stalled wanted = {.peer = message->peer};
        struct stalled *found =
            bsearch(&wanted, survey->list, (size_t)survey->count, sizeof wanted, by_peer);
        if (found == NULL || found->epoch != message->epoch)
            continue;
        found->unfetched += !message->fetched;
        found->held += message->fetched;
        found->held_bytes += message->fetched ? (uint64_t)message->size : 0;
    }
    pthread_mutex_unlock(&messages->lock);
}

static void stalled_warn(struct bmi_instance *instance, const struct stalled *stalled)
{
    struct peer *peer = stalled->peer;
    peer_lock(peer);
    if (peer->epoch == stalled->epoch && is_stalled_locked(peer))
        bmi__log(instance, BMI_LOG_WARN,
                 "%s waits to send unexpected messages: of its messages the program holds %u "
                 "buffers of %llu bytes (BMI_unexpected_free gives them back) and has %u to fetch; "
                 "the setting peer_memory is the limit",
                 bmi__peer_name(peer), stalled->held, (unsigned long long)stalled->held_bytes,
                 stalled->unfetched);
    peer_unlock(peer);
}

/* Once a second as long as there is such a peer. */
static void stalled_timer_expired(struct bmi_timer *timer)
{
    struct bmi__unexpected *messages =
        (struct bmi__unexpected *)((char *)timer - offsetof(struct bmi__unexpected, stalled_timer));
    struct bmi_instance *instance = messages->instance;
    struct survey survey = {.count = 0};
    bmi__peer_each(instance, survey_peer, &survey);
    messages->stalled_timer_runs = survey.count > 0;
    if (!messages->stalled_timer_runs)
        return;
    bmi_method_timer_set(instance, timer, STALLED_MS);
    if (!bmi__log_wanted(instance, BMI_LOG_WARN))
        return;
    qsort(survey.list, (size_t)survey.count, sizeof *survey.list, by_peer);
    survey_messages(messages, &survey);
    for (int i = 0; i < survey.count; i++)
        stalled_warn(instance, &survey.list[i]);
}

void bmi__unexpected_stalled(struct bmi_instance *instance)
{
    struct bmi__unexpected *messages = instance->unexpected;
    if (!messages->stalled_timer_runs)
        bmi_method_timer_set(instance, &messages->stalled_timer, STALLED_MS);
    messages->stalled_timer_runs = true;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__unexpected_open(struct bmi_instance *instance)
{
    struct bmi__unexpected *messages = calloc(1, sizeof *messages);
    if (messages == NULL)
        return -ENOMEM;
    pthread_mutex_init(&messages->lock, NULL);
    messages->end = &messages->first;
    messages->stalled_timer.expired = stalled_timer_expired;
    messages->instance = instance;
    instance->unexpected = messages;
    return 0;
}

/* By the program; the library holds requests of RPC. */
static bool is_held(const struct unexpected *message)
{
    return message->fetched && wire_tag_space(message->tag) != SPACE_REQUEST;
}

void bmi__unexpected_close(struct bmi_instance *instance)
{
    struct bmi__unexpected *messages = instance->unexpected;
    if (messages == NULL)
        return;
    while (messages->all != NULL) {
        struct unexpected *message = messages->all;
        messages->all = message->all_next;
        if (is_held(message))
            message->cookie = COOKIE_LEFT;
        else
            free(message);
    }
    bmi__unexpected_waiting_reset(instance);
    free(messages);
    instance->unexpected = NULL;
}
