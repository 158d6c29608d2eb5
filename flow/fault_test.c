/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fault_test.c - a loop over the nth call that fails: each storage operation, and each call of the
 * network (frames, transfers, registrations, connects), in turn, over the loop methods with and
 * without put and get. After any failure both sides of a flow end, once, with a cause; the bytes
 * that they report as good are good; and the next flow succeeds.
 */
#include <errno.h>

#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "flow/flow_testing.h"
#include "methods/loop/loop_test.h"

enum { SIZE = 300000, BUFFER = 20000, SERVERS = 2, ROUNDS_MOST = 400 };

static char file[SIZE], packed[SIZE], arrived[SIZE];
static const struct bmi_flow_extent extent = {.offset = 0, .size = SIZE, .count = 1};
static const struct bmi_flow_stripe stripe = {.stripe_size = 7000};
static bmi_msg_tag_t tag;

static struct {
    const char *method, *url;
    struct bmi_method *loop;
    bmi_size_t eager_max; /* 0: the method's own; a small value makes messages go by put or get */
} over;

static int over_method(struct bmi_method *loop, const char *method, const char *url,
                       bmi_size_t eager_max)
{
    over.loop = loop;
    over.method = method;
    over.url = url;
    over.eager_max = eager_max;
    return 0;
}

static int over_loop(void)
{
    return over_method(&bmi__method_loop, "bmi_loop", "loop://flow", 0);
}

static int over_loopput(void)
{
    return over_method(&bmi__method_loopput, "bmi_loopput", "loopput://flow", 4096);
}

static int over_loopget(void)
{
    return over_method(&bmi__method_loopget, "bmi_loopget", "loopget://flow", 4096);
}

static void set_up(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__loop_limits(over.loop, over.eager_max, 0, 0), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(over.method, over.url, BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self, over.url), 0);
    bytes_make(file, SIZE, 11);
    store_open();
}

static void tear_down(void)
{
    bmi__loop_reset(over.loop);
    store_close();
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static struct bmi_flow_description server_flow(uint32_t server)
{
    return (struct bmi_flow_description){.extents = &extent,
                                         .extent_count = 1,
                                         .distribution = &bmi_flow_simple_stripe,
                                         .distribution_parameters = &stripe,
                                         .server = server,
                                         .servers = SERVERS,
                                         .buffer_size = BUFFER,
                                         .buffer_count = 3,
                                         .flags = BMI_FLOW_DRAIN};
}

/* Whether the first `good` bytes of a server's part are those of the file: in memory, at their
 * logical places, or in its stream. */
static bool good_in_memory(const char *memory, uint32_t server, bmi_size_t good)
{
    for (bmi_size_t at = 0; at < good; at++) {
        bmi_size_t logical = bmi_flow_simple_stripe.to_logical(&stripe, server, SERVERS, at);
        if (memory[logical] != file[logical])
            return false;
    }
    return true;
}

static bool good_in_stream(const struct bmi_trove_place *place, uint32_t server, bmi_size_t good)
{
    object_read(place, packed, SIZE);
    for (bmi_size_t at = 0; at < good; at++)
        if (packed[at] != file[bmi_flow_simple_stripe.to_logical(&stripe, server, SERVERS, at)])
            return false;
    return true;
}

static bmi_size_t part_of(uint32_t server)
{
    return bmi_flow_request_size(&extent, 1, &bmi_flow_simple_stripe, &stripe, server, SERVERS);
}

/* No frame moves until all halves are posted: a half whose other half has failed before waits for
   it.
 */
static void network_hold(void)
{
    bmi__loop_hold(over.loop, BMI__LOOP_FROM_DIALLER | BMI__LOOP_FROM_ACCEPTOR, 0);
}

static void network_release(void)
{
    bmi__loop_release(over.loop, BMI__LOOP_FROM_DIALLER | BMI__LOOP_FROM_ACCEPTOR);
}

static uint32_t losses_now(void)
{
    bmi_error_code_t cause;
    return bmi__address_losses(&bmi__default, self, &cause);
}

/* Posts the halves of a flow. With progress in the background the connection may end between the
 * two posts: the first half then ends, and the second would wait for another connection, which
 * never comes. A program must know that; this one cancels them. */
static void halves_post(struct flows *flows, const struct bmi_flow_description *receiving,
                        const struct bmi_flow_description *sending)
{
    uint32_t losses = losses_now();
    int first = flows_post(flows, receiving), second = flows_post(flows, sending);
    if (losses_now() == losses)
        return;
    bmi_flow_cancel(flows->ids[first], context);
    bmi_flow_cancel(flows->ids[second], context);
}

/* Waits for all. Returns whether any failed, which must be with one of these causes. */
static bool any_failed(struct flows *flows, bmi_error_code_t cause, bmi_error_code_t other)
{
    bool failed = false;
    network_release();
    flows_wait(flows);
    for (int i = 0; i < flows->count; i++) {
        bmi_error_code_t error = flows->errors[i];
        CU_ASSERT(error == 0 || error == cause ||
                  (cause != 0 && (error == other || error == -BMI_ECANCEL)));
        failed = failed || error != 0;
    }
    return failed;
}

static bmi_size_t good_of(const struct flows *flows, uint32_t server)
{
    uint32_t half = 2 * server;
    bmi_size_t good = flows->errors[half] == 0 ? part_of(server) : flows->actuals[half];
    CU_ASSERT(good >= 0 && good <= part_of(server));
    return good;
}

/* Puts the file to the servers, or gets it back, with a fault of the caller. Returns whether any
 * flow failed. */
static bool put_all(struct bmi_trove_place places[SERVERS], bmi_error_code_t cause)
{
    struct region memory = {file, SIZE};
    struct flows flows = {0};
    tag += 10;
    network_hold();
    for (uint32_t i = 0; i < SERVERS; i++) {
        struct bmi_flow_description receiving = server_flow(i), sending = server_flow(i);
        receiving.source = from_network(tag + (bmi_msg_tag_t)i);
        receiving.destination = on_storage(&places[i]);
        receiving.destination.u.storage.flags = BMI_TROVE_SYNC;
        sending.source = in_memory(&memory);
        sending.destination = from_network(tag + (bmi_msg_tag_t)i);
        halves_post(&flows, &receiving, &sending);
    }
    bool failed = any_failed(&flows, cause, cause);
    for (uint32_t i = 0; i < SERVERS; i++) {
        bmi_trove_inject(store, NULL);
        CU_ASSERT(good_in_stream(&places[i], i, good_of(&flows, i)));
    }
    return failed;
}

static bool get_all(struct bmi_trove_place places[SERVERS], bmi_error_code_t cause)
{
    struct region memory = {arrived, SIZE};
    struct flows flows = {0};
    tag += 10;
    memset(arrived, 0x55, SIZE);
    network_hold();
    for (uint32_t i = 0; i < SERVERS; i++) {
        struct bmi_flow_description receiving = server_flow(i), sending = server_flow(i);
        receiving.source = from_network(tag + (bmi_msg_tag_t)i);
        receiving.destination = in_memory(&memory);
        sending.source = on_storage(&places[i]);
        sending.destination = from_network(tag + (bmi_msg_tag_t)i);
        halves_post(&flows, &receiving, &sending);
    }
    bool failed = any_failed(&flows, cause, -BMI_EPIPE);
    for (uint32_t i = 0; i < SERVERS; i++)
        CU_ASSERT(good_in_memory(arrived, i, good_of(&flows, i)));
    return failed;
}

static void places_make(struct bmi_trove_place places[SERVERS])
{
    for (int i = 0; i < SERVERS; i++)
        places[i] = object_make("", 0);
}

static void each_storage_operation_fails_in_turn(void)
{
    static const bmi_error_code_t causes[] = {-BMI_EIO, -BMI_ENOSPC};
    struct bmi_trove_place places[SERVERS];
    bool failed = true;
    uint64_t skip;
    for (skip = 0; failed && skip < ROUNDS_MOST; skip++) {
        struct bmi_trove_fault fault = {.kinds = BMI_TROVE_ALL,
                                        .skip = skip,
                                        .times = 1,
                                        .error = causes[skip % 2],
                                        .limit = skip % 3 == 0 ? 1234 : 0};
        places_make(places);
        CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
        failed = put_all(places, fault.error);
    }
    /* 24 buffers and two flushes, and the round without a fault */
    CU_ASSERT_EQUAL(skip, 2 * ((SIZE / 2 + BUFFER - 1) / BUFFER) + SERVERS + 1);
    failed = true;
    for (skip = 0; failed && skip < ROUNDS_MOST; skip++) {
        struct bmi_trove_fault fault = {.kinds = BMI_TROVE_READS,
                                        .skip = skip,
                                        .times = 1,
                                        .error = causes[skip % 2],
                                        .limit = skip % 3 == 0 ? 1234 : 0};
        CU_ASSERT_EQUAL(bmi_trove_inject(store, &fault), 0);
        failed = get_all(places, fault.error);
        CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    }
    CU_ASSERT_EQUAL(skip, 2 * ((SIZE / 2 + BUFFER - 1) / BUFFER) + 1);
    CU_ASSERT_EQUAL(memcmp(arrived, file, SIZE), 0);
}

/* Ends the fault, and waits for a connection that works: with progress in the background the one
 * that failed may end later than its flows. */
static void network_mend(void)
{
    double us;
    bmi__loop_fail(over.loop, BMI__LOOP_SEND, 0, 0);
    while (bmi_ping(self, 1000, &us) != 0)
        continue;
}

/* The link goes down at the nth frame that the network gets, in a put, then in a get; each is done
 * again without a fault. */
static void each_frame_fails_in_turn(void)
{
    struct bmi_trove_place places[SERVERS];
    int in_a_row = 0, failures = 0;
    for (unsigned nth = 1; in_a_row < 3 && nth < ROUNDS_MOST; nth++) {
        places_make(places);
        bmi__loop_fail(over.loop, BMI__LOOP_SEND, nth, ECONNRESET);
        bool failed = put_all(places, -BMI_ECONNRESET);
        network_mend();
        CU_ASSERT_FALSE(put_all(places, 0));
        bmi__loop_fail(over.loop, BMI__LOOP_SEND, nth, ECONNRESET);
        failed = get_all(places, -BMI_ECONNRESET) || failed;
        network_mend();
        CU_ASSERT_FALSE(get_all(places, 0));
        in_a_row = failed ? 0 : in_a_row + 1;
        failures += failed;
    }
    CU_ASSERT_EQUAL(in_a_row, 3); /* beyond the last frame no fault occurs */
    CU_ASSERT(failures > 10);
}

/* The nth put or get fails, or the nth piece of memory cannot be registered: that message goes in
 * frames, and the flows do not fail. A put or get of the file has 32 messages. */
static void flow_is_not_affected(enum bmi__loop_failure place, int error)
{
    struct bmi_trove_place places[SERVERS];
    for (unsigned nth = 1; nth <= 33; nth++) {
        places_make(places);
        bmi__loop_fail(over.loop, place, nth, error);
        CU_ASSERT_FALSE(put_all(places, 0));
        bmi__loop_fail(over.loop, place, nth, error);
        CU_ASSERT_FALSE(get_all(places, 0));
        bmi__loop_fail(over.loop, place, 0, 0);
        CU_ASSERT_EQUAL(memcmp(arrived, file, SIZE), 0);
    }
}

static void each_transfer_fails_in_turn(void)
{
    flow_is_not_affected(BMI__LOOP_TRANSFER, EIO);
}

static void each_registration_fails_in_turn(void)
{
    flow_is_not_affected(BMI__LOOP_EXPOSE, ENOMEM);
}

/* The connection has ended and cannot be made anew: at once, or after a while. */
static void connecting_fails(void)
{
    static const enum bmi__loop_failure kinds[] = {BMI__LOOP_CONNECT, BMI__LOOP_CONNECT_NOW};
    struct region memory = {file, SIZE};
    struct bmi_trove_place places[SERVERS];
    places_make(places);
    CU_ASSERT_FALSE(put_all(places, 0));
    for (int i = 0; i < 2; i++) {
        struct bmi_flow_description what = server_flow(0);
        uint32_t losses = losses_now();
        int count;
        bmi_flow_id_t id;
        bmi_error_code_t error;
        what.source = in_memory(&memory);
        what.destination = from_network(++tag);
        bmi__loop_cut(over.loop, ECONNRESET);
        while (losses_now() == losses)
            bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, 1, context);
        bmi__loop_fail(over.loop, kinds[i], 1, ECONNREFUSED);
        CU_ASSERT_EQUAL(flow_run(&what, NULL), -BMI_ECONNREFUSED);
        CU_ASSERT_FALSE(put_all(places, 0));
    }
}

/* Waits until a flow has moved so many bytes: into it from its source, or out of it. */
static void moved_wait(bmi_flow_id_t id, bmi_size_t taken, bmi_size_t delivered)
{
    struct bmi_flow_progress progress;
    do {
        bmi_error_code_t error;
        int count;
        bmi_flow_test(id, &count, &error, NULL, NULL, 1, context);
        CU_ASSERT_EQUAL_FATAL(bmi_flow_progress(id, &progress, context), 0);
    } while (progress.taken < taken || progress.delivered < delivered);
}

static void slow_down(unsigned kinds, uint64_t skip)
{
    struct bmi_trove_fault slow = {.kinds = kinds, .skip = skip, .times = 1, .delay_ms = 200};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &slow), 0);
}

/* One message goes to a flow with one buffer, and while the slow storage handles it the connection
 * ends. Only then the flow posts its next receive, or send: it would be for another connection, on
 * which the other side does not exist. */
static void connection_ends_while_nothing_is_posted(void)
{
    struct region memory = {file, SIZE};
    struct bmi_flow_extent first = {.offset = 0, .size = BUFFER, .count = 1};
    struct bmi_trove_place place = object_make(file, SIZE);
    for (int sends = 0; sends < 2; sends++) {
        struct flows flows = {0};
        struct bmi_flow_description what = {.extents = &extent,
                                            .extent_count = 1,
                                            .buffer_size = BUFFER,
                                            .buffer_count = 1};
        tag += 10;
        slow_down(sends ? BMI_TROVE_READS : BMI_TROVE_WRITES, sends ? 1 : 0);
        what.source = sends ? on_storage(&place) : from_network(tag);
        what.destination = sends ? from_network(tag) : on_storage(&place);
        flows_post(&flows, &what);
        bmi_flow_id_t id = flows.ids[0];
        what.source = sends ? from_network(tag) : in_memory(&memory);
        what.destination = sends ? in_memory(&memory) : from_network(tag);
        what.extents = &first;
        flows_post(&flows, &what);
        moved_wait(id, BUFFER, sends ? BUFFER : 0);
        bmi__loop_cut(over.loop, ECONNRESET);
        flows_wait(&flows);
        CU_ASSERT_EQUAL(flows.errors[0], -BMI_ECONNRESET);
        CU_ASSERT_EQUAL(flows.actuals[0], BUFFER);
        bmi_trove_inject(store, NULL);
    }
}

/* A flow is cancelled after each number of its messages: it ends once, and others are
 * not affected. */
static void cancelled_at_each_message(void)
{
    struct region memory = {file, SIZE}, to = {arrived, SIZE};
    for (bmi_size_t messages = 0; messages * BUFFER < SIZE; messages++) {
        struct flows flows = {0};
        bmi_flow_id_t id;
        struct bmi_flow_description what = server_flow(0);
        what.distribution = NULL;
        what.servers = 1;
        tag += 10;
        what.source = from_network(tag);
        what.destination = in_memory(&to);
        flows_post(&flows, &what);
        id = flows.ids[0];
        /* as many messages as should pass, from a sender that sends no more */
        struct bmi_flow_extent some = {.offset = 0, .size = messages * BUFFER, .count = 1};
        what.source = in_memory(&memory);
        what.destination = from_network(tag);
        what.extents = &some;
        flows_post(&flows, &what);
        moved_wait(id, messages * BUFFER, messages * BUFFER);
        CU_ASSERT_EQUAL(bmi_flow_cancel(id, context), 0);
        flows_wait(&flows);
        CU_ASSERT_EQUAL(flows.errors[0], -BMI_ECANCEL);
        CU_ASSERT_EQUAL(flows.actuals[0], messages * BUFFER);
        CU_ASSERT_EQUAL(flows.errors[1], 0);
        CU_ASSERT_EQUAL(memcmp(file, arrived, (size_t)(messages * BUFFER)), 0);
    }
}

static CU_TestInfo cases[] = {{"each storage operation fails in turn",
                               each_storage_operation_fails_in_turn},
                              {"each frame fails in turn", each_frame_fails_in_turn},
                              {"connecting fails", connecting_fails},
                              {"connection ends while nothing is posted",
                               connection_ends_while_nothing_is_posted},
                              {"cancelled at each message", cancelled_at_each_message},
                              CU_TEST_INFO_NULL};
static CU_TestInfo memory_cases[] = {{"each frame fails in turn", each_frame_fails_in_turn},
                                     {"each transfer fails in turn", each_transfer_fails_in_turn},
                                     {"each registration fails in turn",
                                      each_registration_fails_in_turn},
                                     {"connection ends while nothing is posted",
                                      connection_ends_while_nothing_is_posted},
                                     CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"frames", over_loop, NULL, set_up, tear_down, cases},
                             {"puts", over_loopput, NULL, set_up, tear_down, memory_cases},
                             {"gets", over_loopget, NULL, set_up, tear_down, memory_cases},
                             CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
