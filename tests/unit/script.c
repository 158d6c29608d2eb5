/* SPDX-License-Identifier: BSD-3-Clause
 *
 * script.c - see script.h. Regions name real memory by its address; a put copies it.
 */
#include "tests/unit/script.h"
#include "bmi/base/instance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/connection/address.h"
#include "bmi/progress/progress.h"
#include "methods/ip/hosts.h"

enum { MOST_PASSES = 4, EAGER_MAX = 16384 };

static struct script *script_of(struct bmi_link *link)
{
    return (struct script *)link; /* its first member */
}

/* ---- the method's operations ---------------------------------------------------------------- */

static void send(struct bmi_link *link, struct bmi_frame *frames)
{
    struct script *script = script_of(link);
    *script->queued_end = frames;
    while (*script->queued_end != NULL)
        script->queued_end = &(*script->queued_end)->next;
}

static struct bmi_frame *queue_take(struct script *script)
{
    struct bmi_frame *frames = script->queued;
    script->queued = NULL;
    script->queued_end = &script->queued;
    return frames;
}

/* Keeps a copy of a frame for the test to read. */
static void frame_keep(struct script *script, struct bmi_frame *frame)
{
    size_t size = (size_t)frame->body.left;
    struct script_frame *copy = malloc(sizeof *copy + size);
    const char *reason;
    if (copy == NULL || wire_decode(frame->header, &copy->header, &reason) < 0 ||
        copy->header.length != size)
        abort(); /* the core made an invalid frame */
    copy->next = NULL;
    copy->size = bmi_segments_gather(&frame->body, copy->body, size);
    *script->end = copy;
    script->end = &copy->next;
}

void script_return(struct script *script)
{
    struct bmi_frame *frames = script->held;
    script->holds = false;
    script->held = NULL;
    script->held_end = &script->held;
    if (frames != NULL)
        bmi_method_frames_sent(&script->link, frames);
}

static void frames_write(struct script *script, struct bmi_frame *frames)
{
    for (struct bmi_frame *frame = frames; frame != NULL; frame = frame->next) {
        frame_keep(script, frame);
        frame->header_sent = bmi_frame_header_size(frame->header[0]);
        frame->status = 0;
    }
    *script->held_end = frames;
    while (*script->held_end != NULL)
        script->held_end = &(*script->held_end)->next;
    if (!script->holds)
        script_return(script);
}

static void flush(struct bmi_link *link)
{
    struct script *script = script_of(link);
    if (!script->stuck && !script->down && !script->closing)
        frames_write(script, queue_take(script));
}

void script_write(struct script *script, unsigned count)
{
    while (count-- > 0 && script->queued != NULL && !script->down && !script->closing) {
        struct bmi_frame *frame = script->queued;
        script->queued = frame->next;
        if (script->queued == NULL)
            script->queued_end = &script->queued;
        frame->next = NULL;
        frames_write(script, frame);
    }
}

static bool withdraw(struct bmi_link *link, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct script *script = script_of(link);
    struct bmi_frame **place = &script->queued;
    while (*place != NULL && *place != frame)
        place = &(*place)->next;
    if (*place == NULL)
        return false;
    struct bmi_frame *next = frame->next;
    *place = replacement != NULL ? replacement : next;
    if (replacement != NULL)
        replacement->next = next;
    if (next == NULL)
        script->queued_end = replacement != NULL ? &replacement->next : place;
    frame->next = NULL;
    return true;
}

static bool retract(struct bmi_link *link, void *owner)
{
    struct script *script = script_of(link);
    if (!script->receiving || script->retracted || script->sink.owner != owner)
        return false;
    script->retracted = true;
    script->sink.owner = NULL;
    script->sink.body.left = 0;
    return true;
}

static void frames_return(struct script *script, int status)
{
    struct bmi_frame *frames = queue_take(script);
    for (struct bmi_frame *frame = frames; frame != NULL; frame = frame->next)
        frame->status = status;
    if (frames != NULL)
        bmi_method_frames_sent(&script->link, frames);
}

static void end(struct script *script, int status)
{
    if (script->down)
        return;
    script->down = true;
    script->receiving = false;
    script->status = status;
    script_return(script);
    frames_return(script, status != 0 ? status : -ECANCELED);
    while (script->transfers != NULL)
        script_transfer_end(script, -ECONNRESET);
    bmi_method_link_down(&script->link, status);
    frames_return(script, status != 0 ? status : -ECANCELED);
    bmi_link_unref(&script->link);
}

static void end_deferred(struct bmi_deferred *deferred)
{
    struct script *script = (struct script *)((char *)deferred - offsetof(struct script, ender));
    if (script->linger && !script->stuck) {
        script->closing = false;
        flush(&script->link);
        script->closing = true;
    }
    end(script, 0);
    bmi_link_unref(&script->link);
}

static void close_link(struct bmi_link *link, bool linger)
{
    struct script *script = script_of(link);
    if (script->down)
        return;
    script->linger = linger;
    if (script->closing)
        return;
    script->closing = true;
    bmi_link_ref(link);
    bmi_method_defer(link->instance, &script->ender);
}

static int expose(struct bmi_link *link, const struct bmi_segments *memory,
                  struct bmi_region *regions, uint32_t *count, void **handle)
{
    struct script *script = script_of(link);
    struct iovec window[WIRE_REGIONS_MAX];
    size_t covered;
    if (script->refuse_memory)
        return -ENOMEM;
    size_t entries = bmi_segments_window(memory, window, *count, SIZE_MAX, &covered);
    if (covered < (size_t)memory->left)
        return -EMSGSIZE;
    for (size_t i = 0; i < entries; i++)
        regions[i] = (struct bmi_region){.address = (uintptr_t)window[i].iov_base,
                                         .length = window[i].iov_len,
                                         .key = 4711};
    *count = (uint32_t)entries;
    *handle = script;
    script->exposed++;
    return 0;
}

static bool release(struct bmi_link *link, void *handle, bool wait)
{
    struct script *script = script_of(link);
    (void)handle;
    if (script->writes && !wait)
        return false;
    script->exposed--;
    return true;
}

static void transfer(struct bmi_link *link, struct bmi_transfer *one)
{
    struct script *script = script_of(link);
    one->next = script->transfers;
    script->transfers = one;
}

#define FRAME_OPERATIONS                                                                         \
    .send = send, .flush = flush, .withdraw = withdraw, .retract = retract, .close = close_link, \
    .hosts = &ip_hosts
#define FRAME_LIMITS \
    .eager_max = EAGER_MAX, .unexpected_max = 16384, .frame_max = 16384, .segments_max = 64

struct bmi_method script_methods[3] = {
    {.name = "script", .schemes = "script", .limits = {FRAME_LIMITS}, FRAME_OPERATIONS},
    {.name = "scriptput",
     .schemes = "scriptput",
     .limits = {FRAME_LIMITS, .regions_max = 16, .put = true},
     FRAME_OPERATIONS,
     .expose = expose,
     .release = release,
     .transfer = transfer},
    {.name = "scriptget",
     .schemes = "scriptget",
     .limits = {FRAME_LIMITS, .regions_max = 16, .get = true},
     FRAME_OPERATIONS,
     .expose = expose,
     .release = release,
     .transfer = transfer},
};

/* ---- opening and closing -------------------------------------------------------------------- */

static void destroy(struct bmi_link *link)
{
    struct script *script = script_of(link);
    while (script->first != NULL)
        free(script_read(script));
    free(script);
}

struct script *script_accept(enum script_kind kind)
{
    struct script *script = calloc(1, sizeof *script);
    if (script == NULL)
        return NULL;
    script->link.method = &script_methods[kind];
    script->link.instance = &bmi__default;
    script->link.destroy = destroy;
    atomic_init(&script->link.references, 2); /* the method's and the test's */
    script->end = &script->first;
    script->queued_end = &script->queued;
    script->held_end = &script->held;
    script->ender.run = end_deferred;
    bmi_method_link_host(&script->link, "127.0.0.9", 0);
    if (bmi_method_link_accepted(&script->link) < 0) {
        free(script);
        return NULL;
    }
    return script;
}

int script_hello(struct script *script, const struct script_offer *offer)
{
    static uint8_t number;
    const struct script_offer generous = {.eager_max = EAGER_MAX,
                                          .unexpected_max = 16384,
                                          .eager_credit = 1 << 20,
                                          .unexpected_credit = 1 << 20};
    uint8_t bytes[WIRE_HELLO_MAX];
    struct wire_hello hello = {.version = WIRE_VERSION};
    memset(hello.incarnation, ++number, sizeof hello.incarnation);
    memset(hello.nonce, number, sizeof hello.nonce);
    if (offer == NULL)
        offer = &generous;
    hello.eager_max = offer->eager_max;
    hello.unexpected_max = offer->unexpected_max;
    hello.eager_credit = offer->eager_credit;
    hello.unexpected_credit = offer->unexpected_credit;
    size_t size = wire_hello_encode(bytes, &hello);
    int status = script_send(script, (struct wire_header){.type = WIRE_HELLO}, bytes, size);
    script_drive();
    if (status < 0)
        return status;
    struct script_frame *answer = script_read(script);
    const char *reason;
    if (answer == NULL || answer->header.type != WIRE_HELLO ||
        wire_hello_decode(answer->body, answer->size, &script->hello, &reason) < 0)
        status = -EPROTO;
    free(answer);
    if (status == 0)
        script->address = bmi__peer_handle_locked(script_peer(script));
    return status;
}

struct script *script_open(enum script_kind kind, const struct script_offer *offer)
{
    struct script *script = script_accept(kind);
    if (script != NULL && script_hello(script, offer) < 0) {
        script_close(script);
        return NULL;
    }
    return script;
}

void script_cut(struct script *script, int status)
{
    end(script, status);
}

void script_close(struct script *script)
{
    end(script, 0);
    script_drive();
    bmi_link_unref(&script->link);
}

struct peer *script_peer(const struct script *script)
{
    return script->link.owner;
}

void script_drive(void)
{
    for (int i = 0; i < MOST_PASSES; i++)
        bmi__progress_chores(&bmi__default); /* a script has no descriptor to watch */
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool starts_message(const struct wire_header *header)
{
    return header->type == WIRE_EAGER || header->type == WIRE_RTS || header->type == WIRE_VOID ||
           header->type == WIRE_ABORT ||
           (header->type == WIRE_DATA && (header->flags & WIRE_FIRST));
}

struct script_frame *script_read(struct script *script)
{
    struct script_frame *frame = script->first;
    if (frame == NULL)
        return NULL;
    script->first = frame->next;
    if (script->first == NULL)
        script->end = &script->first;
    script->seen += starts_message(&frame->header);
    return frame;
}

struct wire_header script_expect(struct script *script, uint8_t type, void *body, size_t size)
{
    script_drive();
    struct script_frame *frame = script_read(script);
    struct wire_header header = {0};
    while (frame != NULL && frame->header.type == WIRE_CREDIT && type != WIRE_CREDIT) {
        free(frame);
        frame = script_read(script);
    }
    if (frame != NULL && frame->header.type == type)
        header = frame->header;
    if (header.type != 0 && body != NULL)
        memcpy(body, frame->body, size < frame->size ? size : frame->size);
    free(frame);
    return header;
}

bool script_silent(struct script *script)
{
    script_drive();
    return script->first == NULL;
}

/* ---- sending -------------------------------------------------------------------------------- */

/* The core refuses the frame: the link ends, as the method interface requires. */
static int refused(struct script *script, int status)
{
    if (status < 0)
        end(script, status);
    return status;
}

static int body_over(struct script *script)
{
    script->receiving = false;
    if (script->retracted)
        return 0;
    return refused(script, bmi_method_body_arrived(&script->link, &script->sink));
}

int script_begin(struct script *script, struct wire_header header)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    if (script->down || script->closing || script->receiving)
        return -EPIPE;
    if (!script->manual_seen)
        header.seen = script->seen;
    wire_encode(bytes, &header);
    script->retracted = false;
    int status = bmi_method_frame_arrived(&script->link, bytes, &script->sink);
    if (status < 0)
        return refused(script, status);
    if (script->sink.length != header.length)
        abort(); /* the core miscounted the stream */
    script->body_left = script->sink.length;
    script->receiving = script->sink.length > 0;
    return 0;
}

int script_body(struct script *script, const void *bytes, size_t size)
{
    if (!script->receiving || size > script->body_left)
        return -EPIPE;
    if (script->places)
        bmi_method_body_place(&script->link, &script->sink);
    bmi_segments_scatter(&script->sink.body, bytes, size);
    script->body_left -= size;
    atomic_fetch_add(&script->link.bytes_in, size);
    return script->body_left == 0 ? body_over(script) : 0;
}

int script_send(struct script *script, struct wire_header header, const void *body, size_t size)
{
    header.length = size;
    int status = script_begin(script, header);
    return status == 0 && size > 0 ? script_body(script, body, size) : status;
}

/* ---- transfers ------------------------------------------------------------------------------ */

void script_put(const struct bmi_region *regions, uint32_t count, const void *bytes, size_t size)
{
    const char *from = bytes;
    for (uint32_t i = 0; i < count && size > 0; i++) {
        size_t part = regions[i].length < size ? (size_t)regions[i].length : size;
        memcpy((void *)(uintptr_t)regions[i].address, from, part);
        from += part;
        size -= part;
    }
}

static void transfer_move(struct bmi_transfer *one)
{
    for (uint32_t i = 0; i < one->remote_count && one->local.left > 0; i++) {
        void *memory = (void *)(uintptr_t)one->remote[i].address;
        size_t size = (size_t)one->remote[i].length;
        if (one->get)
            bmi_segments_scatter(&one->local, memory, size);
        else
            bmi_segments_gather(&one->local, memory, size);
    }
}

bool script_transfer_end(struct script *script, int status)
{
    struct bmi_transfer **place = &script->transfers;
    if (*place == NULL)
        return false;
    while ((*place)->next != NULL)
        place = &(*place)->next;
    struct bmi_transfer *one = *place;
    *place = NULL;
    if (status == 0 && !script->no_memory)
        transfer_move(one);
    bmi_method_transfer_done(&script->link, one, status);
    return true;
}
