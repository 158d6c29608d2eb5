/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instances_test.c - flows of the default instance and of others beside it, which talk to each
 * other and share nothing else. A thread for each instance waits for its flows.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "bmi/instance.h"
#include "flow/flow_testing.h"

enum { SIZE = 4 * 1024 * 1024, PIECE = 64 * 1024, SIDES = 4, TAG = 5, TURNS = 20 };

/* An instance, and its next one in a ring. */
struct side {
    struct bmi_instance *instance;
    bmi_flow_context_id_t flows;
    BMI_addr_t before, next;
    char url[BMI_MAX_ADDR_LEN];
    struct caught log; /* errors */
    char *in, *out;
    bmi_error_code_t errors[2]; /* of its receiving and its sending flow */
};

static struct side sides[SIDES];
static const struct bmi_flow_extent whole = {.size = SIZE, .count = 1};

/* ---- the sides ------------------------------------------------------------------------------- */

static struct bmi_instance *instance_open(const char *name)
{
    struct bmi_instance *instance = NULL;
    const struct bmi_instance_options options = {.name = name,
                                                 .methods = "bmi_tcp",
                                                 .listen = "tcp://127.0.0.1:0",
                                                 .flags = BMI_INIT_SERVER};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance, &options), 0);
    return instance;
}

static void side_begin(struct side *side, struct bmi_instance *instance)
{
    struct bmi_log_callback callback = {.write = caught_write,
                                        .argument = &side->log,
                                        .level = BMI_LOG_ERROR};
    *side = (struct side){.instance = instance};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_set_info(instance, BMI_LOG_CALLBACK, &callback), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_get_info(instance, BMI_GET_LISTEN_ADDR, side->url), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_flow_context_open(instance, &side->flows), 0);
    side->in = calloc(1, SIZE);
    side->out = malloc(SIZE);
    CU_ASSERT_FATAL(side->in != NULL && side->out != NULL);
    for (int i = 0; i < SIZE; i++)
        side->out[i] = (char)(i * 31 + i / PIECE + (int)(side - sides));
}

static void side_end(struct side *side)
{
    if (side->instance == NULL)
        return;
    CU_ASSERT_EQUAL(bmi_flow_context_close(side->flows), 0);
    bool is_default = side->instance == bmi_instance_default();
    CU_ASSERT_EQUAL(is_default ? BMI_finalize() : bmi_instance_close(side->instance), 0);
    free(side->in);
    free(side->out);
    side->instance = NULL;
}

static BMI_addr_t looked_up(const struct side *side, const struct side *other)
{
    BMI_addr_t address = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(side->instance, &address, other->url), 0);
    return address;
}

static void begin(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER), 0);
    side_begin(&sides[0], bmi_instance_default());
    for (int i = 1; i < SIDES; i++)
        side_begin(&sides[i], instance_open(NULL));
    for (int i = 0; i < SIDES; i++) {
        sides[i].next = looked_up(&sides[i], &sides[(i + 1) % SIDES]);
        sides[i].before = looked_up(&sides[i], &sides[(i + SIDES - 1) % SIDES]);
    }
    store_open();
}

static void end(void)
{
    store_close();
    for (int i = SIDES - 1; i >= 0; i--)
        side_end(&sides[i]);
}

/* ---- flows ----------------------------------------------------------------------------------- */

static struct bmi_flow_endpoint network(BMI_addr_t address, bmi_msg_tag_t tag)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_NETWORK,
                                      .u.network = {.address = address, .tag = tag}};
}

static struct bmi_flow_description described(struct bmi_flow_endpoint source,
                                             struct bmi_flow_endpoint destination)
{
    return (struct bmi_flow_description){.source = source,
                                         .destination = destination,
                                         .extents = &whole,
                                         .extent_count = 1,
                                         .buffer_size = PIECE,
                                         .timeout_ms = PATIENCE_MS};
}

/* Posts a flow and waits for its end. */
static bmi_error_code_t run(const struct side *side, const struct bmi_flow_description *what)
{
    bmi_flow_id_t id;
    bmi_error_code_t error = 0;
    int count = 0, posted = bmi_flow_post(&id, what, NULL, side->flows);
    if (posted != 0)
        return posted < 0 ? posted : 0;
    int result = bmi_flow_test(id, &count, &error, NULL, NULL, PATIENCE_MS, side->flows);
    return result == 1 ? error : result < 0 ? result : -BMI_EAGAIN;
}

static void *receive(void *argument)
{
    struct side *side = argument;
    const struct region region = {side->in, SIZE};
    struct bmi_flow_description what = described(network(side->before, TAG), in_memory(&region));
    side->errors[0] = run(side, &what);
    return NULL;
}

static void *send_memory(void *argument)
{
    struct side *side = argument;
    const struct region region = {side->out, SIZE};
    struct bmi_flow_description what = described(in_memory(&region), network(side->next, TAG));
    side->errors[1] = run(side, &what);
    return NULL;
}

static void *send_object(void *argument)
{
    struct side *side = argument;
    struct bmi_trove_place place = object_make(side->out, SIZE);
    struct bmi_flow_description what = described(on_storage(&place), network(side->next, TAG));
    side->errors[1] = run(side, &what);
    return NULL;
}

/* Whether the side's receive has brought the bytes of the one before it. */
static bool has_received(const struct side *side)
{
    const struct side *before = &sides[(side - sides + SIDES - 1) % SIDES];
    return side->errors[0] == 0 && before->errors[1] == 0 &&
           memcmp(side->in, before->out, SIZE) == 0;
}

static void pass(struct side *from, struct side *to, void *(*sends)(void *argument))
{
    pthread_t receiver;
    memset(to->in, 0, SIZE);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&receiver, NULL, receive, to), 0);
    sends(from);
    pthread_join(receiver, NULL);
    CU_ASSERT_TRUE(has_received(to));
}

static void from_one_to_the_next(void)
{
    for (int i = 0; i < SIDES; i++) {
        pass(&sides[i], &sides[(i + 1) % SIDES], send_memory);
        pass(&sides[i], &sides[(i + 1) % SIDES], send_object);
    }
}

/* Given a thread for each flow, each instance sends and receives at the same time. */
static void all_at_once(void)
{
    pthread_t threads[SIDES][2];
    for (int i = 0; i < SIDES; i++) {
        memset(sides[i].in, 0, SIZE);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i][0], NULL, receive, &sides[i]), 0);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i][1], NULL, send_memory, &sides[i]), 0);
    }
    for (int i = 0; i < SIDES; i++)
        for (int which = 0; which < 2; which++)
            pthread_join(threads[i][which], NULL);
    for (int i = 0; i < SIDES; i++)
        CU_ASSERT_TRUE(has_received(&sides[i]));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(struct side *side, const struct bmi_flow_description *what)
{
    bmi_flow_id_t id = 1;
    side->log.text[0] = '\0';
    CU_ASSERT_EQUAL(bmi_flow_post(&id, what, NULL, side->flows), -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(side->log.text, "a flow has a context of instance"));
}

static void an_address_of_another_is_refused(void)
{
    const struct region region = {sides[1].in, SIZE};
    struct bmi_flow_description what = described(network(sides[0].next, TAG), in_memory(&region));
    refused(&sides[1], &what);
    what = described(in_memory(&region), network(sides[1].next, TAG));
    refused(&sides[0], &what);
    refused(&sides[2], &what);
}

static void contexts_that_cannot_open(void)
{
    bmi_flow_context_id_t one;
    CU_ASSERT_EQUAL(bmi_instance_flow_context_open(NULL, &one), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_instance_flow_context_open(sides[1].instance, NULL), -BMI_EINVAL);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* A flow that waits for a sender. */
static bmi_flow_id_t endless(const struct side *side, int timeout_ms)
{
    static char unused[SIZE];
    static const struct region region = {unused, SIZE};
    struct bmi_flow_description what = described(network(side->next, TAG + 1), in_memory(&region));
    bmi_flow_id_t id = 0;
    what.timeout_ms = timeout_ms;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_post(&id, &what, NULL, side->flows), 0);
    return id;
}

static void one_times_out_and_the_other_waits(void)
{
    bmi_error_code_t error = 0;
    int count = 0;
    bmi_flow_id_t longer = endless(&sides[1], 0), shorter = endless(&sides[2], 20);
    CU_ASSERT_EQUAL(bmi_flow_test(shorter, &count, &error, NULL, NULL, PATIENCE_MS, sides[2].flows),
                    1);
    CU_ASSERT_EQUAL(error, -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_flow_test(longer, &count, &error, NULL, NULL, 0, sides[1].flows), 0);
    CU_ASSERT_EQUAL(bmi_flow_test(longer, &count, &error, NULL, NULL, 0, sides[2].flows),
                    -BMI_EINVAL); /* a context of another */
    CU_ASSERT_EQUAL(bmi_flow_cancel(longer, sides[1].flows), 0);
    CU_ASSERT_EQUAL(bmi_flow_test(longer, &count, &error, NULL, NULL, PATIENCE_MS, sides[1].flows),
                    1);
    CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
}

/* Without a thread that waits for the receiving flow. */
static void a_loop_with_a_descriptor(void)
{
    struct side *from = &sides[1], *to = &sides[2];
    const struct region region = {to->in, SIZE};
    struct bmi_flow_description what = described(network(to->before, TAG), in_memory(&region));
    struct pollfd poll_fd = {.fd = bmi_flow_context_fd(to->flows), .events = POLLIN};
    bmi_flow_id_t id;
    pthread_t sender;
    int count = 0;
    memset(to->in, 0, SIZE);
    CU_ASSERT_FATAL(poll_fd.fd >= 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_post(&id, &what, NULL, to->flows), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&sender, NULL, send_memory, from), 0);
    while (count == 0 && poll(&poll_fd, 1, PATIENCE_MS) > 0)
        CU_ASSERT(bmi_flow_test(id, &count, &to->errors[0], NULL, NULL, 0, to->flows) >= 0);
    CU_ASSERT_EQUAL(count, 1);
    pthread_join(sender, NULL);
    CU_ASSERT_TRUE(has_received(to));
}

static atomic_bool over;

/* Opens an instance, ends it with a flow under way, and again, as the next ones use its engine. */
static void *come_and_go(void *argument)
{
    struct side one;
    while (!atomic_load(&over)) {
        side_begin(&one, instance_open(NULL));
        one.next = looked_up(&one, &sides[0]);
        endless(&one, PATIENCE_MS);
        side_end(&one);
    }
    return argument;
}

static void others_end_meanwhile(void)
{
    enum { GUESTS = 2 };
    pthread_t guests[GUESTS];
    atomic_store(&over, false);
    for (int i = 0; i < GUESTS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&guests[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < TURNS; i++)
        pass(&sides[2], &sides[3], i % 2 == 0 ? send_memory : send_object);
    atomic_store(&over, true);
    for (int i = 0; i < GUESTS; i++)
        pthread_join(guests[i], NULL);
}

/* ---- a clock of its own ---------------------------------------------------------------------- */

static uint64_t clock_now(void *argument)
{
    return atomic_load((_Atomic uint64_t *)argument);
}

static void clock_wait(void *argument, uint64_t until_ns)
{
    atomic_store((_Atomic uint64_t *)argument, until_ns);
}

/* Given a clock that jumps to the next timer, when a flow waits for ten minutes, then it has timed
 * out by that clock. */
static void a_deadline_goes_by_the_clock_of_the_instance(void)
{
    enum { TIMEOUT_MS = 600000 };
    _Atomic uint64_t now = 1000000000;
    const struct bmi_instance_options options = {.methods = "bmi_loop",
                                                 .listen = "loop://flows",
                                                 .flags = BMI_INIT_SERVER,
                                                 .now_ns = clock_now,
                                                 .wait = clock_wait,
                                                 .argument = &now};
    struct side one = {.instance = NULL};
    bmi_error_code_t error = 0;
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&one.instance, &options), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_flow_context_open(one.instance, &one.flows), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(one.instance, &one.next, "loop://flows"), 0);
    bmi_flow_id_t id = endless(&one, TIMEOUT_MS);
    uint64_t begin_ns = atomic_load(&now);
    CU_ASSERT_EQUAL(bmi_flow_test(id, &count, &error, NULL, NULL, PATIENCE_MS, one.flows), 1);
    CU_ASSERT_EQUAL(error, -BMI_ETIMEDOUT);
    CU_ASSERT(atomic_load(&now) >= begin_ns + TIMEOUT_MS * (uint64_t)1000000);
    CU_ASSERT_EQUAL(bmi_flow_context_close(one.flows), 0);
    CU_ASSERT_EQUAL(bmi_instance_close(one.instance), 0);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"from one to the next", from_one_to_the_next},
        {"all at once", all_at_once},
        {"an address of another is refused", an_address_of_another_is_refused},
        {"contexts that cannot open", contexts_that_cannot_open},
        {"one times out and the other waits", one_times_out_and_the_other_waits},
        {"a loop with a descriptor", a_loop_with_a_descriptor},
        {"others end meanwhile", others_end_meanwhile},
        {"a deadline goes by the clock of the instance",
         a_deadline_goes_by_the_clock_of_the_instance},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "flows of instances", .pSetUpFunc = begin, .pTearDownFunc = end, .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
