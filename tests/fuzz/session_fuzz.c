/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session_fuzz.c - a peer that sends any frames at any time, while the program posts and cancels.
 * The input is a list of commands: frames (made up, or with numbers that exist), posts, cancels,
 * ends of transfers, the end of a grace, a stuck network; calls, requests and their parts, replies,
 * and whatever a service may do with a request.
 *
 * For every input: no crash, the memory that the library holds for the peer stays within its
 * budget, and at the end of the link every operation has completed, once.
 */
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/credit.h"
#include "bmi/rpc/head.h"
#include "bmi/rpc/message.h"
#include "tests/unit/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OPERATIONS = 48, BUFFER = 24576, PEER_MEMORY = 1 << 17, TOTAL_MEMORY = 1 << 17 };
enum { FETCHED = 16, BODY = 1 << 16 };
/* Beyond the budget: slots of operations, tag queues, frames under way, the allocator's
 * own memory. */
enum { HEAP_SLACK = 3 * PEER_MEMORY };
/* For remote procedure calls: a record of each request that the window admits, one stream that
 * travels apart, and the body of a reply that is forwarded; and a record of each call. */
enum { HEAP_REQUESTS = PEER_MEMORY / WIRE_MESSAGE_CHARGE * 2560 + 2 * RPC_EXPRESS_MAX };
enum { HEAP_CALL = 8192 + BUFFER, SERVED = 8 };

struct operation {
    bmi_op_id_t id; /* 0: none outstanding */
    bmi_size_t actual;
    uint8_t buffer[BUFFER];
};

static struct {
    const uint8_t *next, *end;
    struct script *script;
    bmi_context_id context;
    struct operation operations[OPERATIONS];
    unsigned posted, completed;
    struct BMI_unexpected_info fetched[FETCHED];
    size_t heap;
    bool calls_used;
    unsigned calls;          /* made by the program, and by forwards */
    int32_t numbers[SERVED]; /* of the latest ones whose request was read */
    unsigned numbers_read;
    struct bmi_rpc_request *served[SERVED]; /* they run, or are deferred; NULL: none */
} session;

static uint8_t body[BODY];

/* Defined if an allocator that counts is linked in. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t heap_now(void)
{
    return __sanitizer_get_current_allocated_bytes != NULL
               ? __sanitizer_get_current_allocated_bytes()
               : 0;
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- the input ------------------------------------------------------------------------------ */

static bool more(void)
{
    return session.next < session.end;
}

static uint8_t take(void)
{
    return more() ? *session.next++ : 0;
}

static uint64_t take_number(int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | take();
    return number;
}

/* A number that may be valid for the library, or any number. */
static uint64_t take_meaning(void)
{
    uint8_t choice = take();
    if (choice < 128)
        return (uint64_t)session.operations[choice % OPERATIONS].id;
    switch (choice % 6) {
    case 0:
        return choice / 6;
    case 1:
        return take_number(2);
    case 2:
        return take_number(8);
    case 3:
        return UINT64_MAX - take();
    case 4:
        return (uint64_t)INT64_MAX;
    default:
        return BUFFER - take();
    }
}

/* ---- frames --------------------------------------------------------------------------------- */

/* None, one or two, the most, or incomplete ones. */
static size_t region_bytes(uint8_t choice)
{
    if (choice < 192)
        return choice % 3 * WIRE_REGION;
    if (choice < 240)
        return (size_t)(choice - 192) * 2 % WIRE_REGIONS_MAX * WIRE_REGION;
    return choice;
}

static size_t body_size(uint8_t type)
{
    switch (type) {
    case WIRE_EAGER:
    case WIRE_UNEXPECTED:
    case WIRE_DATA:
        return (size_t)take_number(2) % (BUFFER + 2);
    case WIRE_RTS:
    case WIRE_CTS:
    case WIRE_RTR:
        return region_bytes(take());
    case WIRE_HELLO:
        return (size_t)take_number(2) % (WIRE_HELLO_MAX + 1);
    case WIRE_JOIN:
        return take() % 4 * WIRE_PROOF;
    default:
        return 0;
    }
}

/* Regions that are mostly large enough. */
static void regions_fill(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct bmi_region region = {.address = i, .length = BUFFER, .key = take()};
        if (region.key & 128)
            region.length = take_number(8);
        wire_regions_encode(body + i * WIRE_REGION, &region, 1);
    }
}

static void body_fill(uint8_t type, size_t size)
{
    if (type == WIRE_RTS || type == WIRE_CTS || type == WIRE_RTR) {
        regions_fill(size / WIRE_REGION);
        return;
    }
    for (size_t i = 0; i < size && i < 96; i++)
        body[i] = take();
    for (size_t i = 96; i < size; i++)
        body[i] = body[i % 96];
}

/* The program's calls have numbers of their own. */
static wire_tag frame_tag(enum wire_space space, unsigned number)
{
    if (space == SPACE_REPLY)
        return wire_tag_of(space, session.numbers[number % SERVED]);
    return wire_tag_of(space, (int32_t)number);
}

static void send_frame(enum wire_space space)
{
    struct wire_header header = {.type = (uint8_t)(1 + take() % WIRE_BYE)};
    uint8_t shape = take();
    header.flags = shape & 7;
    header.tag = frame_tag(space, shape >> 3 & 3);
    header.source = take_meaning();
    header.target = take_meaning();
    header.credit = shape & 32 ? (uint32_t)take_number(4) : take();
    session.script->manual_seen = (shape & 192) == 192;
    if (session.script->manual_seen)
        header.seen = (uint32_t)take_number(4);
    size_t size = body_size(header.type);
    unsigned times = take();
    body_fill(header.type, size);
    times = times < 224 ? 1 : (times - 223) * 16;
    while (times-- > 0 && !session.script->down && !session.script->closing)
        script_send(session.script, header, body, size);
}

static void send_begin(void)
{
    struct wire_header header = {.type = (uint8_t)(WIRE_EAGER + take() % 2), .tag = take() & 3};
    header.length = take_number(2) % BUFFER;
    if (take() & 1) {
        header.type = WIRE_DATA;
        header.flags = take() & 3;
        header.source = take_meaning();
        header.target = take_meaning();
    }
    script_begin(session.script, header);
}

static void send_body(void)
{
    size_t size = (size_t)take_number(2);
    if (size > session.script->body_left)
        size = (size_t)session.script->body_left;
    script_body(session.script, body, size < BODY ? size : BODY);
}

static void send_raw(void)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct bmi_sink sink;
    struct script *script = session.script;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = take();
    if (script->down || script->closing || script->receiving)
        return;
    int status = bmi_method_frame_arrived(&script->link, bytes, &sink);
    if (status < 0) {
        script_cut(script, status);
        return;
    }
    script->sink = sink;
    script->body_left = sink.length;
    script->receiving = sink.length > 0;
    script->retracted = false;
}

/* ---- the program ---------------------------------------------------------------------------- */

static struct operation *free_operation(void)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (session.operations[i].id == 0)
            return &session.operations[i];
    return NULL;
}

static void post(uint8_t what)
{
    struct operation *one = free_operation();
    uint8_t shape = take();
    bmi_size_t size = shape & 4 ? (bmi_size_t)(take_number(2) % (BUFFER + 1)) : shape >> 3;
    int tag = shape & 3, status;
    if (one == NULL)
        return;
    if (what == 0)
        status = BMI_post_recv(&one->id, session.script->address, one->buffer, size, &one->actual,
                               BMI_EXT_ALLOC, tag, one, session.context, NULL);
    else if (what == 1)
        status = BMI_post_send(&one->id, session.script->address, one->buffer, size, BMI_EXT_ALLOC,
                               tag, one, session.context, NULL);
    else
        status = BMI_post_sendunexpected(&one->id, session.script->address, one->buffer, size,
                                         BMI_EXT_ALLOC, tag, one, session.context, NULL);
    require((status == 0) == (one->id != 0));
    session.posted += status == 0;
}

static void test(void)
{
    bmi_op_id_t ids[OPERATIONS];
    bmi_error_code_t errors[OPERATIONS];
    bmi_size_t actuals[OPERATIONS];
    void *user_ptrs[OPERATIONS];
    int count = 0;
    require(BMI_testcontext(OPERATIONS, ids, &count, errors, actuals, user_ptrs, 0,
                            session.context) >= 0);
    for (int i = 0; i < count; i++) {
        struct operation *one = user_ptrs[i];
        require(one->id == ids[i] && actuals[i] >= 0 && actuals[i] <= BUFFER);
        require(errors[i] == 0 || actuals[i] == 0);
        one->id = 0;
        session.completed++;
    }
}

static void fetch(void)
{
    struct BMI_unexpected_info *info = &session.fetched[take() % FETCHED];
    int count = 0;
    if (info->buffer != NULL) {
        require(BMI_unexpected_free(info->addr, info->buffer) == 0);
        info->buffer = NULL;
    }
    require(BMI_testunexpected(1, &count, info, 0) >= 0);
    if (count == 0)
        info->buffer = NULL;
}

static void grace_over(void)
{
    struct peer *peer = script_peer(session.script);
    if (peer == NULL)
        return;
    peer_lock(peer);
    if (peer->state == PEER_UP && !(peer->flags & PEER_CLOSING))
        bmi__cancel_graces_locked(peer, UINT64_MAX);
    peer_unlock(peer);
}

/* ---- remote procedure calls ------------------------------------------------------------------ */

static uint8_t served_memory[SERVED][BUFFER];

static struct bmi_message *pieces_pack(void)
{
    struct bmi_message *message = bmi_message_new();
    for (int left = take() % 4; left > 0; left--) {
        unsigned mode = take() & 1 ? BMI_UNPACK_EXPRESS : BMI_UNPACK_CHEAPER;
        bmi_pack(message, body, (bmi_size_t)(take_number(2) % 18000), BMI_PACK_CHEAPER | mode);
    }
    return message;
}

static int pieces_unpack(struct bmi_message *message, uint8_t memory[BUFFER])
{
    bmi_size_t size, used = 0;
    while (bmi_unpack_size(message, &size) == 0) {
        unsigned mode = take() & 1 ? BMI_UNPACK_EXPRESS : BMI_UNPACK_CHEAPER;
        int status = size > BUFFER - used ? -BMI_ENOMEM : 0;
        if (status == 0)
            status = bmi_unpack(message, memory + used, size, mode);
        if (status < 0)
            return status;
        used += size;
    }
    return 0;
}

static int reply_unpack(struct bmi_message *reply, void *argument)
{
    struct operation *one = argument;
    return pieces_unpack(reply, one->buffer);
}

static struct bmi_rpc_options call_options(void)
{
    return (struct bmi_rpc_options){.reply_max = BUFFER, .one_way = (take() & 1) != 0};
}

static void call(void)
{
    struct operation *one = free_operation();
    if (one == NULL)
        return;
    const struct bmi_rpc_options options = call_options();
    int status = bmi_rpc_call(&one->id, session.script->address, "s", pieces_pack(), reply_unpack,
                              one, &options, one, session.context);
    require((status == 0) == (one->id != 0));
    session.posted += status == 0;
    session.calls++;
}

static size_t list_gather(uint8_t *to, const struct bmi_message *message, uint32_t from,
                          uint32_t end)
{
    size_t size = 0;
    for (uint32_t i = from; i < end; i++) {
        memcpy(to + size, message->buffers[i], (size_t)message->sizes[i]);
        size += (size_t)message->sizes[i];
    }
    return size;
}

static void message_send(enum wire_type type, wire_tag tag, const void *bytes, size_t size)
{
    struct wire_header header = {.type = (uint8_t)type, .tag = tag};
    session.script->manual_seen = false;
    if (!session.script->down && !session.script->closing && !session.script->receiving)
        script_send(session.script, header, bytes, size);
}

/* A part that travels apart: whole, cut, announced, or absent. */
static void part_send(wire_tag tag, const uint8_t *bytes, size_t size)
{
    uint8_t how = take();
    struct wire_header request = {.type = WIRE_RTS, .tag = tag, .source = how, .target = size};
    if (how % 4 == 0)
        message_send(WIRE_EAGER, tag, bytes, size);
    else if (how % 4 == 1)
        message_send(WIRE_EAGER, tag, bytes, size > how ? size - how : 0);
    else if (how % 4 == 2 && !session.script->down && !session.script->closing &&
             !session.script->receiving)
        script_send(session.script, request, NULL, 0);
}

/* A request, or a reply, with its parts. */
static void message_of_rpc_send(enum rpc_kind kind)
{
    static uint8_t bytes[RPC_HEAD_MAX + 3 * 18100], *stream, *rest;
    struct bmi_message *message = pieces_pack();
    bool request = kind == RPC_REQUEST;
    wire_tag tag = frame_tag(request ? SPACE_REQUEST : SPACE_REPLY, take() % SERVED);
    uint8_t shape = take();
    require(bmi__message_close(message) == 0);
    struct rpc_head head = {.kind = kind,
                            .flags = shape & (request ? RPC_ONE_WAY : 0),
                            .stream = message->stream_size,
                            .body = (uint64_t)message->body,
                            .reply_room = shape & 2 ? take() : RPC_MESSAGE_MAX,
                            .status = shape & 4 && !request ? -BMI_EIO : 0};
    if (request)
        strcpy(head.name, shape & 8 ? "?" : "s");
    bmi__rpc_head_split(&head, request ? RPC_REQUEST_EXPRESS_MAX : RPC_MESSAGE_MAX - RPC_HEAD,
                        RPC_MESSAGE_MAX - RPC_HEAD_MAX);
    size_t size = bmi__rpc_head_encode(bytes, &head);
    stream = bytes + size;
    rest = stream + list_gather(stream, message, MESSAGE_STREAM, MESSAGE_BODY);
    size_t left = list_gather(rest, message, MESSAGE_BODY, message->count);
    size += head.flags & RPC_STREAM_APART ? 0 : message->stream_size;
    size += head.flags & (RPC_STREAM_APART | RPC_BODY_APART) ? 0 : left;
    message_send(request ? WIRE_UNEXPECTED : WIRE_EAGER, tag, bytes, size);
    if (head.flags & RPC_STREAM_APART)
        part_send(tag, stream, message->stream_size);
    if (head.flags & RPC_BODY_APART)
        part_send(tag, rest, left);
    bmi_message_free(message);
}

static void cancel_send(void)
{
    uint8_t flags = take();
    struct wire_header header = {.type = WIRE_CANCEL, .flags = flags & (flags & 8 ? 7 : 6)};
    header.tag = frame_tag(flags & 8 ? SPACE_REPLY : SPACE_REQUEST, take() % SERVED);
    session.script->manual_seen = false;
    if (!session.script->down && !session.script->closing && !session.script->receiving)
        script_send(session.script, header, NULL, 0);
}

/* ---- the service ----------------------------------------------------------------------------- */

static size_t slot_of(struct bmi_rpc_request *request)
{
    return (size_t)((struct bmi_rpc_request **)bmi_rpc_data(request) - session.served);
}

static int served_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    size_t slot = 0;
    while (slot < SERVED && session.served[slot] != NULL)
        slot++;
    if (slot == SERVED)
        return -BMI_ENOMEM;
    session.served[slot] = request;
    bmi_rpc_set_data(request, &session.served[slot]);
    uint8_t how = take() % 4;
    return how == 0   ? BMI_RPC_LATER
           : how == 1 ? -BMI_EIO
                      : pieces_unpack(arguments, served_memory[slot]);
}

enum { REPLY, FAIL, RESUME, FORWARD, HOLD };

/* Does that with a request, in whatever state it is. */
static void served_do(struct bmi_rpc_request *request, unsigned what)
{
    const struct bmi_rpc_options options = call_options();
    if (what == REPLY)
        bmi_rpc_reply(request, pieces_pack());
    else if (what == FAIL)
        bmi_rpc_fail(request, -BMI_EIO);
    else if (what == FORWARD)
        session.calls += bmi_rpc_forward(request, session.script->address, "s", &options) == 0;
    else if (what == RESUME && pieces_unpack(bmi_rpc_arguments(request),
                                             served_memory[slot_of(request)]) != -BMI_EINVAL)
        bmi_rpc_resume(request);
}

static void served_run(struct bmi_rpc_request *request)
{
    served_do(request, take() % (HOLD + 1));
}

static void served_cancelled(struct bmi_rpc_request *request)
{
    served_do(request, take() % (HOLD + 1));
}

static void served_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    require(status <= 0);
    if (bmi_rpc_data(request) != NULL)
        session.served[slot_of(request)] = NULL;
}

/* The link is down: all requests that are left end. */
static void served_end(void)
{
    for (int i = 0; i < SERVED; i++)
        if (session.served[i] != NULL) {
            bmi_rpc_resume(session.served[i]);
            bmi_rpc_fail(session.served[i], -BMI_EIO);
        }
    script_drive();
    for (int i = 0; i < SERVED; i++)
        require(session.served[i] == NULL);
}

static void call_command(unsigned what)
{
    struct bmi_rpc_request *request = session.served[what >= 10 ? take() % SERVED : 0];
    session.calls_used = true;
    if (what < 4)
        message_of_rpc_send(RPC_REQUEST);
    else if (what < 6)
        message_of_rpc_send(RPC_REPLY);
    else if (what < 8)
        call();
    else if (what < 10)
        cancel_send();
    else if (request != NULL)
        served_do(request, (what - 10) % HOLD);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static uint64_t window_sum(const struct window *window)
{
    return (uint64_t)window->granted + window->held + window->unreported;
}

static size_t heap_most(void)
{
    size_t most = PEER_MEMORY + HEAP_SLACK + (size_t)session.calls * HEAP_CALL;
    return session.calls_used ? most + HEAP_REQUESTS : most;
}

static void check(void)
{
    struct peer *peer = script_peer(session.script);
    require(bmi__credit_used(&bmi__default) >= 0 &&
            bmi__credit_used(&bmi__default) <= TOTAL_MEMORY);
    if (heap_now() > 0)
        require(heap_now() <= session.heap + heap_most());
    if (peer == NULL)
        return;
    require(window_sum(&peer->eager) + window_sum(&peer->unexpected_window) <= PEER_MEMORY);
    require(peer->counters.unmatched_messages <= PEER_MEMORY / WIRE_MESSAGE_CHARGE);
}

static void read_all(void)
{
    struct script_frame *frame;
    script_drive();
    while ((frame = script_read(session.script)) != NULL) {
        if (frame->header.type == WIRE_UNEXPECTED &&
            wire_tag_space(frame->header.tag) == SPACE_REQUEST)
            session.numbers[session.numbers_read++ % SERVED] = (int32_t)frame->header.tag;
        free(frame);
    }
}

/* It stalls, lets a few frames through, or continues. */
static void network(unsigned how)
{
    session.script->stuck = how != 0;
    script_write(session.script, how == 0 ? UINT32_MAX : how - 1);
}

/* ---- one session ---------------------------------------------------------------------------- */

static void command(void)
{
    uint8_t what = take();
    switch (what & 15) {
    case 0:
    case 1:
    case 2:
        post(what & 15);
        break;
    case 3:
        BMI_cancel(session.operations[take() % OPERATIONS].id, session.context);
        break;
    case 4:
        script_transfer_end(session.script, what & 16 ? 0 : what & 32 ? -13 : -5);
        break;
    case 5:
        network(what >> 4);
        break;
    case 6:
        session.script->refuse_memory = (what & 16) != 0;
        break;
    case 7:
        fetch();
        break;
    case 8:
        grace_over();
        break;
    case 9:
        send_begin();
        break;
    case 10:
        send_body();
        break;
    case 11:
        what & 16 ? send_raw() : test();
        break;
    case 14:
        what >> 4 == 0 ? send_frame(SPACE_PROGRAM) : call_command(what >> 4);
        break;
    case 15:
        send_frame((enum wire_space)((what >> 4) % SPACES));
        break;
    default:
        send_frame(SPACE_PROGRAM);
        break;
    }
}

static void start(void)
{
    static bool started;
    if (started)
        return;
    started = true;
    require(bmi__settings_set(&bmi__default,
                              "immediate=off,peer_memory=128K,total_memory=128K,spin_us=0,"
                              "cancel_grace_ms=60000,peer_timeout_ms=0") == 0);
    require(BMI_initialize(NULL, NULL, 0) == 0);
    const struct bmi_rpc_service service = {.arrived = served_arrived,
                                            .run = served_run,
                                            .cancelled = served_cancelled,
                                            .ended = served_ended};
    require(bmi_rpc_register("s", &service) == 0);
}

static bool begin(void)
{
    uint8_t shape = take();
    const struct script_offer poor = {.eager_max = 2048,
                                      .unexpected_max = 4096,
                                      .eager_credit = 1000,
                                      .unexpected_credit = 1000};
    memset(&session.operations, 0, sizeof session.operations);
    memset(session.fetched, 0, sizeof session.fetched);
    session.posted = session.completed = session.calls = session.numbers_read = 0;
    memset(session.numbers, 0, sizeof session.numbers);
    session.calls_used = false;
    require(BMI_open_context(&session.context) == 0);
    session.script = script_accept(shape % 3);
    require(session.script != NULL);
    session.script->no_memory = true;
    if (shape & 128)
        return true; /* no handshake: frames come at once */
    session.script->stuck = false;
    require(script_hello(session.script, shape & 64 ? &poor : NULL) == 0);
    return true;
}

static void end(void)
{
    if (!session.script->down)
        script_cut(session.script, 0);
    script_drive();
    served_end();
    test();
    test();
    require(session.posted == session.completed);
    script_close(session.script);
    BMI_close_context(session.context);
    for (int i = 0; i < FETCHED; i++)
        if (session.fetched[i].buffer != NULL)
            require(BMI_unexpected_free(session.fetched[i].addr, session.fetched[i].buffer) == 0);
    struct BMI_unexpected_info info;
    int count;
    while (BMI_testunexpected(1, &count, &info, 0) == 1)
        require(BMI_unexpected_free(info.addr, info.buffer) == 0);
    require(bmi__credit_used(&bmi__default) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    session.next = data;
    session.end = data + size;
    session.heap = heap_now();
    if (begin())
        while (more() && !session.script->down) {
            command();
            read_all();
            check();
        }
    end();
    return 0;
}
