/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_core.c - see fake_core.h. The peer's lock is taken in the services just as the real core
 * does, so that a method which calls one with its send lock held is found by ThreadSanitizer.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/loop/fake_core.h"

struct fake_peer fake_peers[FAKE_PEERS];
unsigned fake_accepted;
int fake_accept_status;
int64_t fake_counters[BMI_COUNT_COUNTERS];
unsigned fake_rounds;
void (*fake_body_hook)(void);

static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_there = PTHREAD_COND_INITIALIZER;
static struct bmi_deferred work_end;                            /* of the list of deferred calls */
static struct bmi_deferred *work_first = &work_end, *work_last; /* under work_lock */
static bool work_wake;
static uint64_t clock_ms;
static struct bmi_timer *timers;

/* ---- the log -------------------------------------------------------------------------------- */

static void note(struct fake_peer *peer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct fake_peer *peer, const char *format, ...)
{
    if (peer->quiet)
        return;
    size_t used = strlen(peer->events);
    if (used > 0 && used + 1 < sizeof peer->events)
        peer->events[used++] = ' ';
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(peer->events + used, sizeof peer->events - used, format, arguments);
    va_end(arguments);
    if (written < 0 || (size_t)written >= sizeof peer->events - used)
        abort();
}

static void message_free(struct fake_message *message)
{
    free(message->memory);
    free(message->buffers);
    free(message->sizes);
    free(message);
}

void fake_peer_clear(struct fake_peer *peer)
{
    while (peer->messages != NULL) {
        struct fake_message *message = peer->messages;
        peer->messages = message->next;
        message_free(message);
    }
    if (peer->gone != NULL)
        bmi_link_unref(peer->gone);
    memset(peer, 0, sizeof *peer);
    pthread_mutex_init(&peer->lock, NULL);
}

void fake_reset(void)
{
    for (unsigned i = 0; i < FAKE_PEERS; i++)
        fake_peer_clear(&fake_peers[i]);
    fake_accepted = fake_rounds = 0;
    fake_accept_status = 0;
    memset(fake_counters, 0, sizeof fake_counters);
}

/* ---- links ---------------------------------------------------------------------------------- */

int bmi_method_link_accepted(struct bmi_link *link)
{
    if (fake_accept_status != 0)
        return fake_accept_status;
    struct fake_peer *peer = &fake_peers[fake_accepted++];
    pthread_mutex_lock(&peer->lock);
    link->owner = peer;
    peer->link = link;
    note(peer, "accepted");
    pthread_mutex_unlock(&peer->lock);
    return 0;
}

void bmi_method_link_up(struct bmi_link *link)
{
    struct fake_peer *peer = link->owner;
    pthread_mutex_lock(&peer->lock);
    note(peer, "up");
    pthread_mutex_unlock(&peer->lock);
}

void bmi_method_link_down(struct bmi_link *link, int status)
{
    struct fake_peer *peer = link->owner;
    pthread_mutex_lock(&peer->lock);
    note(peer, "down:%d", status);
    bmi_link_ref(link);
    peer->gone = link;
    peer->link = NULL;
    pthread_mutex_unlock(&peer->lock);
}

/* ---- frames --------------------------------------------------------------------------------- */

static struct fake_message *message_make(uint64_t id, size_t length, size_t segment)
{
    size_t count = segment > 0 ? (length + segment - 1) / segment : 1;
    struct fake_message *message = calloc(1, sizeof *message);
    if (message == NULL)
        abort();
    *message = (struct fake_message){.id = id,
                                     .length = length,
                                     .memory = calloc(1, length),
                                     .buffers = calloc(count, sizeof *message->buffers),
                                     .sizes = calloc(count, sizeof *message->sizes)};
    if (message->memory == NULL || message->buffers == NULL || message->sizes == NULL)
        abort();
    for (size_t i = 0; i < count; i++) {
        size_t start = i * segment;
        size_t size = segment > 0 && length - start > segment ? segment : length - start;
        message->buffers[i] = message->memory + start;
        message->sizes[i] = (bmi_size_t)size;
    }
    return message;
}

int bmi_method_frame_arrived(struct bmi_link *link, const uint8_t *header, struct bmi_sink *sink)
{
    struct fake_peer *peer = link->owner;
    uint64_t length, id;
    memcpy(&length, header + 8, 8);
    memcpy(&id, header + 16, 8);
    if (header[1] & FAKE_REFUSE_HEADER)
        return -EBADMSG;
    pthread_mutex_lock(&peer->lock);
    note(peer, "head:%llu", (unsigned long long)id);
    sink->length = length;
    sink->cookie = id | (header[1] & FAKE_REFUSE_BODY ? 1ULL << 63 : 0);
    if (length > 0 && !(header[1] & FAKE_DRAIN)) {
        size_t keep = peer->room > 0 && peer->room < length ? peer->room : (size_t)length;
        struct fake_message *message = message_make(id, keep, peer->segment);
        message->next = peer->messages;
        peer->messages = message;
        size_t count = peer->segment > 0 ? (keep + peer->segment - 1) / peer->segment : 1;
        sink->owner = message;
        sink->body = (struct bmi_segments){.buffers = message->buffers,
                                           .sizes = message->sizes,
                                           .count = (uint32_t)count,
                                           .left = (bmi_size_t)keep};
    } else if (length == 0) {
        peer->arrived++;
    }
    pthread_mutex_unlock(&peer->lock);
    return 0;
}

int bmi_method_body_arrived(struct bmi_link *link, struct bmi_sink *sink)
{
    struct fake_peer *peer = link->owner;
    struct fake_message *message = sink->owner;
    if (sink->cookie >> 63)
        return -EBADMSG;
    if (fake_body_hook != NULL) {
        fake_body_hook();
        fake_body_hook = NULL;
    }
    pthread_mutex_lock(&peer->lock);
    note(peer, "body:%llu", (unsigned long long)sink->cookie);
    if (message != NULL)
        message->arrived = true;
    peer->arrived++;
    pthread_mutex_unlock(&peer->lock);
    return 0;
}

void bmi_method_frames_sent(struct bmi_link *link, struct bmi_frame *frames)
{
    struct fake_peer *peer = link->owner;
    pthread_mutex_lock(&peer->lock);
    while (frames != NULL) {
        struct fake_frame *frame = (struct fake_frame *)frames;
        frames = frames->next;
        note(peer, "sent:%llu:%d", (unsigned long long)frame->id, frame->frame.status);
        if (frame->frame.status == 0)
            peer->sent++;
        else
            peer->failed++;
        frame->back = true;
    }
    pthread_mutex_unlock(&peer->lock);
}

void bmi_method_transfer_done(struct bmi_link *link, struct bmi_transfer *transfer, int status)
{
    struct fake_peer *peer = link->owner;
    pthread_mutex_lock(&peer->lock);
    note(peer, "done:%d:%d", *(int *)transfer->owner, status);
    pthread_mutex_unlock(&peer->lock);
}

struct fake_message *fake_message_find(struct fake_peer *peer, uint64_t id)
{
    struct fake_message *message = peer->messages;
    while (message != NULL && message->id != id)
        message = message->next;
    return message;
}

void fake_frame_make(struct fake_frame *frame, uint8_t type, uint64_t id, const void *memory,
                     size_t size)
{
    uint64_t length = size;
    *frame = (struct fake_frame){.id = id,
                                 .buffer = (void *)(uintptr_t)memory,
                                 .size = (bmi_size_t)size};
    frame->frame.header[0] = type;
    memcpy(frame->frame.header + 8, &length, 8);
    memcpy(frame->frame.header + 16, &id, 8);
    frame->frame.body = (struct bmi_segments){.buffers = &frame->buffer,
                                              .sizes = &frame->size,
                                              .count = 1,
                                              .left = (bmi_size_t)size};
}

void fake_send(struct fake_peer *peer, struct fake_frame *frames, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        frames[i].frame.next = i + 1 < count ? &frames[i + 1].frame : NULL;
    pthread_mutex_lock(&peer->lock);
    struct bmi_link *link = peer->link;
    link->method->send(link, &frames[0].frame);
    bmi_link_ref(link);
    pthread_mutex_unlock(&peer->lock);
    link->method->flush(link);
    bmi_link_unref(link);
}

struct fake_peer fake_dialler;
void *fake_state;
static const struct bmi_method *started;

int fake_dial(const struct bmi_method *method, struct fake_peer *peer, const char *name)
{
    pthread_mutex_lock(&peer->lock);
    int status = method->connect(fake_state, name, peer, &peer->link);
    pthread_mutex_unlock(&peer->lock);
    return status;
}

void fake_pair_open(const struct bmi_method *method)
{
    char bound[BMI_MAX_ADDR_LEN];
    fake_reset();
    fake_peer_clear(&fake_dialler);
    started = method;
    if (method->start(NULL, &fake_state) != 0 ||
        method->listen(fake_state, "server", 0, bound, sizeof bound) != 0 ||
        fake_dial(method, &fake_dialler, "server") != 0 || !fake_drive(100) ||
        strcmp(fake_dialler.events, "up") != 0 || strcmp(fake_peers[0].events, "accepted") != 0)
        abort();
    fake_dialler.events[0] = fake_peers[0].events[0] = '\0';
    fake_rounds = 0;
}

void fake_pair_close(void)
{
    started->stop(fake_state);
    bmi__loop_reset(started);
    fake_drive(100);
    fake_reset();
    fake_peer_clear(&fake_dialler);
}

/* ---- the poller ----------------------------------------------------------------------------- */

void bmi_method_defer(struct bmi_instance *instance, struct bmi_deferred *deferred)
{
    (void)instance;
    pthread_mutex_lock(&work_lock);
    if (atomic_load(&deferred->next) == NULL) {
        atomic_store(&deferred->next, &work_end);
        if (work_first != &work_end)
            atomic_store(&work_last->next, deferred);
        else
            work_first = deferred;
        work_last = deferred;
    }
    pthread_cond_signal(&work_there);
    pthread_mutex_unlock(&work_lock);
}

bool fake_drive(unsigned rounds)
{
    for (;;) {
        pthread_mutex_lock(&work_lock);
        struct bmi_deferred *deferred = work_first;
        bool any = deferred != &work_end;
        if (any && rounds > 0)
            work_first = atomic_exchange(&deferred->next, NULL);
        pthread_mutex_unlock(&work_lock);
        if (!any || rounds == 0)
            return !any;
        deferred->run(deferred);
        fake_rounds++;
        rounds--;
    }
}

void fake_wait(void)
{
    pthread_mutex_lock(&work_lock);
    while (work_first == &work_end && !work_wake)
        pthread_cond_wait(&work_there, &work_lock);
    work_wake = false;
    pthread_mutex_unlock(&work_lock);
}

void fake_wake(void)
{
    pthread_mutex_lock(&work_lock);
    work_wake = true;
    pthread_cond_signal(&work_there);
    pthread_mutex_unlock(&work_lock);
}

void bmi_method_timer_set(struct bmi_instance *instance, struct bmi_timer *timer, uint64_t delay_ms)
{
    bmi_method_timer_clear(instance, timer);
    timer->due_ns = (clock_ms + delay_ms) * 1000000;
    struct bmi_timer **place = &timers;
    while (*place != NULL && (*place)->due_ns <= timer->due_ns)
        place = &(*place)->next;
    timer->next = *place;
    timer->link_to_me = place;
    if (timer->next != NULL)
        timer->next->link_to_me = &timer->next;
    *place = timer;
}

void bmi_method_timer_clear(struct bmi_instance *instance, struct bmi_timer *timer)
{
    (void)instance;
    if (timer->link_to_me == NULL)
        return;
    *timer->link_to_me = timer->next;
    if (timer->next != NULL)
        timer->next->link_to_me = timer->link_to_me;
    timer->link_to_me = NULL;
}

void fake_advance(uint64_t ms)
{
    clock_ms += ms;
    while (timers != NULL && timers->due_ns <= clock_ms * 1000000) {
        struct bmi_timer *timer = timers;
        bmi_method_timer_clear(NULL, timer);
        timer->expired(timer);
        fake_drive(1000);
    }
}

void bmi_method_log(struct bmi_instance *instance, enum bmi_log_level level,
                    const struct bmi_link *link, const char *format, ...)
{
    (void)instance;
    (void)link;
    if (getenv("BMI_LOG") == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%d ", (int)level);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

void bmi_method_count(struct bmi_instance *instance, const struct bmi_method *method,
                      enum bmi_method_counter counter, int64_t amount)
{
    (void)instance;
    (void)method;
    fake_counters[counter] += amount;
}
