/* SPDX-License-Identifier: BSD-3-Clause
 *
 * calls_test.c - calls of bmi/rpc.h, frame by frame. To a scripted server: cancels without credit,
 * time-outs while the connection is being closed, and replies that the server withdraws. Of a
 * scripted client: requests that wait for memory, and that time out.
 */
#include <unistd.h>

#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/rpc.h"
#include "bmi/rpc/head.h"
#include "tests/unit/script_case.h"

/* The charge of a request to "s" without pieces. */
enum { REQUEST_CHARGE = 40 + WIRE_MESSAGE_CHARGE, SOON_MS = 10000 };

static int byte_unpack(struct bmi_message *reply, void *argument)
{
    return bmi_unpack(reply, argument, 1, BMI_UNPACK_CHEAPER);
}

static void call(struct script *script, struct posted *posted, int timeout_ms)
{
    static char byte;
    const struct bmi_rpc_options options = {.timeout_ms = timeout_ms};
    posted->done = false;
    CU_ASSERT_EQUAL(bmi_rpc_call(&posted->id, script->address, "s", NULL, byte_unpack, &byte,
                                 &options, posted, case_context),
                    0);
    script_drive();
}

/* The server has credit for one request only: a second one waits, and its WANT has gone. */
static wire_tag one_waits(struct script *script, struct posted *one, struct posted *two)
{
    call(script, one, 0);
    wire_tag tag = script_expect(script, WIRE_UNEXPECTED, NULL, 0).tag;
    call(script, two, 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_UNEXPECTED_CREDIT);
    CU_ASSERT_TRUE(script_silent(script));
    return tag;
}

static void cancelled_without_credit(void)
{
    static struct posted one, two;
    const struct script_offer offer = {.eager_max = 4096,
                                       .unexpected_max = 4096,
                                       .eager_credit = 100000,
                                       .unexpected_credit = REQUEST_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    wire_tag tag = one_waits(script, &one, &two);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    struct wire_header notice = script_expect(script, WIRE_CANCEL, NULL, 0);
    CU_ASSERT_TRUE(notice.tag == tag && notice.flags == 0);
    script_close(script);
    CU_ASSERT_TRUE(failed(&two, BMI_ECONNRESET));
}

/* The peer as one that was looked up, whose connection is being closed. */
static void closing_set(struct script *script, bool closing)
{
    struct peer *peer = script_peer(script);
    peer_lock(peer);
    peer->flags ^= PEER_ACCEPTED | PEER_CLOSING;
    CU_ASSERT_EQUAL((peer->flags & PEER_CLOSING) != 0, closing);
    peer_unlock(peer);
}

static void timed_out_while_closing(void)
{
    static struct posted posted;
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    closing_set(script, true);
    call(script, &posted, 20);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_TRUE(done_within(&posted, SOON_MS));
    CU_ASSERT_EQUAL(posted.error, -BMI_ETIMEDOUT);
    closing_set(script, false);
    script_close(script);
}

/* A call whose reply's header will not come, and one that has the header of a reply whose body will
 * not come. Nothing is sent for either. */
static void reply_withdrawn(void)
{
    static struct posted one, two;
    const uint64_t piece = UINT64_C(2) << 56 | 1; /* cheaper, 1 byte */
    const struct rpc_head head = {.kind = RPC_REPLY,
                                  .flags = RPC_BODY_APART,
                                  .stream = sizeof piece,
                                  .body = 1};
    uint8_t bytes[RPC_HEAD_MAX + sizeof piece];
    size_t size = bmi__rpc_head_encode(bytes, &head);
    memcpy(bytes + size, &piece, sizeof piece);
    size += sizeof piece;
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    call(script, &one, 0);
    int32_t number = (int32_t)script_expect(script, WIRE_UNEXPECTED, NULL, 0).tag;
    call(script, &two, 0);
    struct wire_header cancel = {.type = WIRE_CANCEL,
                                 .flags = WIRE_NO_HEAD,
                                 .tag = wire_tag_of(SPACE_REPLY, number)};
    CU_ASSERT_EQUAL(script_send(script, cancel, NULL, 0), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ETIMEDOUT));
    number = (int32_t)script_expect(script, WIRE_UNEXPECTED, NULL, 0).tag;
    struct wire_header reply = {.type = WIRE_EAGER,
                                .tag = wire_tag_of(SPACE_REPLY, number),
                                .length = (uint32_t)size};
    CU_ASSERT_EQUAL(script_send(script, reply, bytes, size), 0);
    cancel = (struct wire_header){.type = WIRE_CANCEL, .flags = WIRE_NO_BODY, .tag = reply.tag};
    CU_ASSERT_EQUAL(script_send(script, cancel, NULL, 0), 0);
    CU_ASSERT_TRUE(failed(&two, BMI_ETIMEDOUT));
    script_close(script);
}

/* ---- a scripted client ----------------------------------------------------------------------- */

enum { STREAM = LARGE }; /* two of them are more than peer_memory */

static struct bmi_rpc_request *runs;

static void hold(struct bmi_rpc_request *request)
{
    runs = request;
}

/* A request whose stream travels apart. */
static void send_head(struct script *script, int32_t number, unsigned flags)
{
    const struct rpc_head head = {.kind = RPC_REQUEST,
                                  .flags = flags | RPC_STREAM_APART,
                                  .stream = STREAM,
                                  .name = "hold"};
    uint8_t bytes[RPC_HEAD_MAX];
    size_t size = bmi__rpc_head_encode(bytes, &head);
    struct wire_header header = {.type = WIRE_UNEXPECTED,
                                 .tag = wire_tag_of(SPACE_REQUEST, number),
                                 .length = (uint32_t)size};
    CU_ASSERT_EQUAL(script_send(script, header, bytes, size), 0);
    script_drive();
}

/* A one-way one, whose sender asks for a receive of the stream. */
static void send_request(struct script *script, int32_t number)
{
    send_head(script, number, RPC_ONE_WAY);
    struct wire_header header = {.type = WIRE_RTS,
                                 .tag = wire_tag_of(SPACE_REQUEST, number),
                                 .source = (uint64_t)number,
                                 .target = STREAM};
    CU_ASSERT_EQUAL(script_send(script, header, NULL, 0), 0);
    script_drive();
}

/* With timers, unlike script_drive. */
static void drive_for(int time_ms)
{
    uint64_t end_ns = bmi__monotonic_ns() + (uint64_t)time_ms * 1000000u;
    while (bmi__monotonic_ns() < end_ns) {
        struct BMI_unexpected_info info;
        int count;
        CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &info, 1), 0);
    }
}

static struct script *open_client(const struct bmi_rpc_service *service)
{
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "peer_memory=64K"), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_rpc_register("hold", service), 0);
    runs = NULL;
    return open_script(SCRIPT_FRAMES, NULL);
}

/* The first of three requests ends and the second is cancelled before the library looks at either:
 * the third one gets the memory. */
static void memory_passes_a_cancelled_one(void)
{
    struct script *script = open_client(&(struct bmi_rpc_service){.run = hold});
    for (int32_t number = 1; number <= 3; number++)
        send_request(script, number);
    struct wire_header clear = script_expect(script, WIRE_CTS, NULL, 0);
    CU_ASSERT_TRUE(clear.target == 1 && script_silent(script));
    CU_ASSERT_EQUAL(send_data(script, clear.source, 1, STREAM, false, 0), 0);
    script_drive();
    CU_ASSERT_PTR_NOT_NULL_FATAL(runs);
    CU_ASSERT_EQUAL(bmi_rpc_fail(runs, -BMI_EINVAL), 0);
    struct wire_header cancel = {.type = WIRE_CANCEL,
                                 .flags = WIRE_NO_STREAM,
                                 .tag = wire_tag_of(SPACE_REQUEST, 2)};
    CU_ASSERT_EQUAL(script_send(script, cancel, NULL, 0), 0);
    script_drive();
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 3);
    script_close(script);
    CU_ASSERT_EQUAL(bmi_rpc_unregister("hold"), 0);
}

/* A request whose stream waits for the memory of one that runs does not time out. */
static void memory_is_not_the_callers_time(void)
{
    const struct bmi_rpc_service service = {.run = hold, .timeout_ms = 40};
    struct script *script = open_client(&service);
    send_request(script, 1);
    send_request(script, 2);
    struct wire_header clear = script_expect(script, WIRE_CTS, NULL, 0);
    CU_ASSERT_EQUAL(send_data(script, clear.source, 1, STREAM, false, 0), 0);
    script_drive();
    CU_ASSERT_PTR_NOT_NULL_FATAL(runs);
    drive_for(500);
    CU_ASSERT_TRUE(script_silent(script)); /* one that timed out would be received, and discarded */
    CU_ASSERT_EQUAL(bmi_rpc_fail(runs, -BMI_EINVAL), 0);
    script_drive();
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 2);
    script_close(script);
    CU_ASSERT_EQUAL(bmi_rpc_unregister("hold"), 0);
}

/* While the program makes no progress, nobody reads the caller's frames. */
static void a_pause_is_not_the_callers_time(void)
{
    const struct bmi_rpc_service service = {.run = hold, .timeout_ms = 40};
    struct script *script = open_client(&service);
    send_head(script, 1, 0);
    usleep(100000);
    drive_for(1);
    CU_ASSERT_TRUE(script_silent(script)); /* no reply with an error */
    struct wire_header ask = {.type = WIRE_RTS,
                              .tag = wire_tag_of(SPACE_REQUEST, 1),
                              .source = 1,
                              .target = STREAM};
    CU_ASSERT_EQUAL(script_send(script, ask, NULL, 0), 0);
    script_drive();
    uint64_t receive = script_expect(script, WIRE_CTS, NULL, 0).source;
    CU_ASSERT_EQUAL(send_data(script, receive, 1, STREAM, false, 0), 0);
    script_drive();
    CU_ASSERT_PTR_NOT_NULL_FATAL(runs);
    CU_ASSERT_EQUAL(bmi_rpc_fail(runs, -BMI_EINVAL), 0);
    script_drive();
    script_close(script);
    CU_ASSERT_EQUAL(bmi_rpc_unregister("hold"), 0);
}

/* Waits for the reply of a request that timed out. */
static void times_out(struct script *script, int32_t number)
{
    for (int i = 0; i < 100 && script_silent(script); i++)
        drive_for(10);
    CU_ASSERT_TRUE(script_expect(script, WIRE_EAGER, NULL, 0).tag ==
                   wire_tag_of(SPACE_REPLY, number));
}

/* The caller withdraws the stream for which the library still waits. */
static void nothing_is_left_of_one_that_timed_out(void)
{
    const struct bmi_rpc_service service = {.run = hold, .timeout_ms = 8};
    struct script *script = open_client(&service);
    send_head(script, 1, 0);
    times_out(script, 1);
    CU_ASSERT_PTR_NOT_NULL(script_peer(script)->ops_first);
    struct wire_header cancel = {.type = WIRE_CANCEL,
                                 .flags = WIRE_NO_STREAM,
                                 .tag = wire_tag_of(SPACE_REQUEST, 1)};
    CU_ASSERT_EQUAL(script_send(script, cancel, NULL, 0), 0);
    script_drive();
    CU_ASSERT_PTR_NULL(script_peer(script)->ops_first);
    ALIVE(script);
    script_close(script);
    CU_ASSERT_EQUAL(bmi_rpc_unregister("hold"), 0);
}

static void many_that_time_out_end_the_connection(void)
{
    enum { MOST = 100 };
    const struct bmi_rpc_service service = {.run = hold, .timeout_ms = 8};
    struct script *script = open_client(&service);
    int32_t number = 1;
    for (; number < MOST && !script->closing && !script->down; number++) {
        send_head(script, number, RPC_ONE_WAY);
        drive_for(20);
    }
    CU_ASSERT_TRUE(number > 64 && number < MOST);
    script_close(script);
    CU_ASSERT_EQUAL(bmi_rpc_unregister("hold"), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"memory is not the caller's time", memory_is_not_the_callers_time},
        {"a pause is not the caller's time", a_pause_is_not_the_callers_time},
        {"nothing is left of one that timed out", nothing_is_left_of_one_that_timed_out},
        {"many that time out end the connection", many_that_time_out_end_the_connection},
        {"memory passes a cancelled one", memory_passes_a_cancelled_one},
        {"cancelled without credit", cancelled_without_credit},
        {"timed out while closing", timed_out_while_closing},
        {"reply withdrawn", reply_withdrawn},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("calls", tests);
}
