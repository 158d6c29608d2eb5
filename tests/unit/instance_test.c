/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance_test.c - several instances in a process: they talk to each other as processes do, and
 * share nothing else.
 */
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bmi/instance.h"
#include "bmi/rpc.h"
#include "unit.h"

enum { LARGE = 1 << 20, PATIENCE_MS = 10000 };

/* One side: an instance that listens, a context, and the address of the other side. */
struct side {
    struct bmi_instance *instance;
    bmi_context_id context;
    BMI_addr_t other;
    char url[BMI_MAX_ADDR_LEN];
};

static void side_open(struct side *side, const char *name, const char *settings)
{
    *side = (struct side){.context = 0};
    const struct bmi_instance_options options = {.name = name,
                                                 .methods = "bmi_tcp",
                                                 .listen = "tcp://127.0.0.1:0",
                                                 .settings = settings,
                                                 .flags = BMI_INIT_SERVER};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&side->instance, &options), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open_context(side->instance, &side->context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_get_info(side->instance, BMI_GET_LISTEN_ADDR, side->url), 0);
}

static void sides_open(struct side sides[2])
{
    side_open(&sides[0], "one", NULL);
    side_open(&sides[1], "other", NULL);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[i].instance, &sides[i].other,
                                                       sides[1 - i].url),
                              0);
}

static void sides_close(struct side sides[2])
{
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(bmi_instance_close(sides[i].instance), 0);
}

/* Drives all sides, since each instance needs a thread that polls, until the operation of the first
 * one has completed. Returns its error. */
static bmi_error_code_t complete(struct side *sides, int count, bmi_op_id_t id, bmi_size_t *size)
{
    bmi_error_code_t error = 0;
    for (int tries = 0, done = 0; tries < PATIENCE_MS; tries++) {
        CU_ASSERT_FATAL(BMI_test(id, &done, &error, size, NULL, 1, sides[0].context) >= 0);
        if (done > 0)
            return error;
        for (int i = 1; i < count; i++) {
            bmi_op_id_t none;
            int some = 0;
            CU_ASSERT_FATAL(
                BMI_testcontext(0, &none, &some, &error, NULL, NULL, 0, sides[i].context) >= 0);
        }
    }
    return -BMI_ETIMEDOUT;
}

/* Sends from the first side to the second and waits at both. */
static void message(struct side *from, struct side *to, BMI_addr_t source, bmi_size_t size)
{
    static char out[LARGE], in[LARGE];
    bmi_op_id_t sending, receiving;
    bmi_size_t got = 0;
    out[0] = out[size - 1] = (char)(out[0] + 1);
    int received = BMI_post_recv(&receiving, source, in, size, &got, BMI_EXT_ALLOC, 7, NULL,
                                 to->context, NULL);
    CU_ASSERT_FATAL(received >= 0);
    int sent = BMI_post_send(&sending, from->other, out, size, BMI_EXT_ALLOC, 7, NULL,
                             from->context, NULL);
    CU_ASSERT_FATAL(sent >= 0);
    struct side backward[2] = {*to, *from}, forward[2] = {*from, *to};
    if (received == 0)
        CU_ASSERT_EQUAL(complete(backward, 2, receiving, &got), 0);
    if (sent == 0)
        CU_ASSERT_EQUAL(complete(forward, 2, sending, NULL), 0);
    CU_ASSERT_EQUAL(got, size);
    CU_ASSERT_EQUAL(memcmp(in, out, (size_t)size), 0);
}

static void they_talk_to_each_other(void)
{
    struct side sides[2];
    sides_open(sides);
    for (int i = 0; i < 4; i++) {
        message(&sides[0], &sides[1], sides[1].other, 100);
        message(&sides[1], &sides[0], sides[0].other, LARGE);
    }
    struct bmi_statistics statistics;
    CU_ASSERT_EQUAL(bmi_instance_get_info(sides[0].instance, BMI_GET_STATISTICS, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.messages_sent, 4);
    CU_ASSERT_EQUAL(statistics.messages_received, 4);
    sides_close(sides);
}

/* From the first side to the second; nothing comes to the first. */
static void take_unexpected(struct side sides[2], struct BMI_unexpected_info *info)
{
    bmi_op_id_t id;
    int count = 0;
    int sent = BMI_post_sendunexpected(&id, sides[0].other, "hello", 6, BMI_EXT_ALLOC, 3, NULL,
                                       sides[0].context, NULL);
    CU_ASSERT_FATAL(sent >= 0);
    if (sent == 0)
        CU_ASSERT_EQUAL(complete(sides, 2, id, NULL), 0);
    for (int tries = 0; count == 0 && tries < PATIENCE_MS; tries++) {
        CU_ASSERT_EQUAL(bmi_instance_testunexpected(sides[0].instance, 1, &count, info, 0), 0);
        CU_ASSERT_EQUAL_FATAL(count, 0);
        CU_ASSERT_FATAL(bmi_instance_testunexpected(sides[1].instance, 1, &count, info, 1) >= 0);
    }
    CU_ASSERT_EQUAL_FATAL(count, 1);
}

static void an_unexpected_message_comes_to_the_instance_that_listens(void)
{
    struct side sides[2];
    struct BMI_unexpected_info info;
    sides_open(sides);
    take_unexpected(sides, &info);
    CU_ASSERT_STRING_EQUAL(info.buffer, "hello");
    CU_ASSERT_PTR_EQUAL(bmi_instance_of_addr(info.addr), sides[1].instance);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    sides_close(sides);
}

/* Given messages that the program holds, when their instance ends, then it can read them and free
 * them by any address. */
static void an_unexpected_message_outlives_its_instance(void)
{
    enum { HELD = 3 };
    struct side ended[2], sides[2];
    struct BMI_unexpected_info held[HELD];
    sides_open(ended);
    sides_open(sides);
    for (int i = 0; i < HELD; i++)
        take_unexpected(ended, &held[i]);
    sides_close(ended);
    const BMI_addr_t by[HELD] = {0, held[1].addr, sides[0].other};
    for (int i = 0; i < HELD; i++) {
        CU_ASSERT_STRING_EQUAL(held[i].buffer, "hello");
        CU_ASSERT_EQUAL(BMI_unexpected_free(by[i], held[i].buffer), 0);
    }
    sides_close(sides);
}

static void loop_open(struct side *side, const char *listen)
{
    const struct bmi_instance_options options = {.methods = "bmi_loop,bmi_loopput",
                                                 .listen = listen,
                                                 .flags = BMI_INIT_SERVER};
    *side = (struct side){.context = 0};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&side->instance, &options), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open_context(side->instance, &side->context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(side->instance, &side->other, "loop://same"), 0);
}

/* Given two instances that listen on one name of loop, each reaches itself by it, and not the other
 * one by a name that only that one has. */
static void each_has_its_own_loop(void)
{
    struct side one, other;
    BMI_addr_t unknown;
    bmi_op_id_t id;
    for (int repeat = 0; repeat < 3; repeat++) {
        loop_open(&one, "loop://same");
        loop_open(&other, "loop://same,loop://further");
        message(&one, &one, one.other, LARGE);
        message(&other, &other, other.other, LARGE);
        CU_ASSERT_EQUAL(bmi_instance_addr_lookup(one.instance, &unknown, "loop://further"), 0);
        int sent = BMI_post_sendunexpected(&id, unknown, "x", 1, BMI_EXT_ALLOC, 1, NULL,
                                           one.context, NULL);
        CU_ASSERT_EQUAL(sent == 0 ? complete(&one, 1, id, NULL) : sent, -BMI_ECONNREFUSED);
        CU_ASSERT_EQUAL(bmi_instance_close(repeat == 0 ? one.instance : other.instance), 0);
        struct side *left = repeat == 0 ? &other : &one;
        message(left, left, left->other, 100);
        CU_ASSERT_EQUAL(bmi_instance_close(left->instance), 0);
    }
}

/* A program's own loop polls a descriptor of each context. */
static void a_context_has_its_instances_descriptor(void)
{
    struct side sides[2];
    bmi_op_id_t id;
    sides_open(sides);
    struct bmi_context_fd fd = {.context = sides[1].context};
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_CONTEXT_FD, &fd), 0);
    int sent = BMI_post_sendunexpected(&id, sides[0].other, "x", 1, BMI_EXT_ALLOC, 3, NULL,
                                       sides[0].context, NULL);
    CU_ASSERT_FATAL(sent >= 0);
    struct BMI_unexpected_info info;
    struct pollfd polled = {.fd = fd.fd, .events = POLLIN};
    int count = 0;
    for (int tries = 0; count == 0 && tries < PATIENCE_MS; tries++) {
        CU_ASSERT_FATAL(bmi_instance_testunexpected(sides[0].instance, 0, &count, NULL, 0) >= 0);
        if (poll(&polled, 1, 1) == 1)
            CU_ASSERT_FATAL(bmi_instance_testunexpected(sides[1].instance, 1, &count, &info, 0) >=
                            0);
    }
    CU_ASSERT_EQUAL_FATAL(count, 1);
    BMI_unexpected_free(info.addr, info.buffer);
    struct bmi_context_statistics statistics = {.context = sides[1].context};
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    for (int i = 0; i < 3; i++) {
        struct bmi_instance *asked = i < 2 ? sides[i].instance : bmi_instance_default();
        int status = i == 1 ? 0 : -BMI_EINVAL;
        CU_ASSERT_EQUAL(bmi_instance_get_info(asked, BMI_GET_CONTEXT_FD, &fd), status);
        CU_ASSERT_EQUAL(bmi_instance_get_info(asked, BMI_GET_CONTEXT_STATISTICS, &statistics),
                        status);
    }
    sides_close(sides);
}

static void settings_are_an_instances_own(void)
{
    struct side sides[2];
    struct bmi_setting setting = {.name = "peer_memory"};
    CU_ASSERT_EQUAL_FATAL(setenv("BMI_PEER_MEMORY", "64K", 1), 0);
    side_open(&sides[0], "one", "peer_memory=128K,spin_us=0");
    side_open(&sides[1], "other", NULL);
    CU_ASSERT_EQUAL_FATAL(unsetenv("BMI_PEER_MEMORY"), 0);
    CU_ASSERT_EQUAL(bmi_instance_get_info(sides[0].instance, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "131072"); /* ahead of the environment */
    CU_ASSERT_EQUAL(bmi_instance_get_info(sides[1].instance, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "65536");
    CU_ASSERT_EQUAL(bmi_instance_set_info(sides[1].instance, BMI_SETTING, "peer_memory=256K"), 0);
    CU_ASSERT_EQUAL(bmi_instance_get_info(sides[0].instance, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "131072");
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "1048576"); /* the default instance read no variable */
    sides_close(sides);
}

/* An instance logs to the default one's callback, with its name, until it has one of its own. */
static void where_an_instance_logs(void)
{
    struct caught all = {.text = ""}, own = {.text = ""};
    struct bmi_log_callback callback = {.write = caught_write,
                                        .argument = &all,
                                        .level = BMI_LOG_ERROR};
    struct bmi_instance *instance;
    BMI_addr_t address;
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance,
                                            &(struct bmi_instance_options){.name = "part"}),
                          0);
    CU_ASSERT_TRUE(bmi_instance_addr_lookup(instance, &address, "nowhere") < 0);
    CU_ASSERT_PTR_EQUAL(strstr(all.text, "part: address \"nowhere\""), all.text);
    callback.argument = &own;
    CU_ASSERT_EQUAL(bmi_instance_set_info(instance, BMI_LOG_CALLBACK, &callback), 0);
    all.text[0] = '\0';
    CU_ASSERT_TRUE(bmi_instance_addr_lookup(instance, &address, "nowhere") < 0);
    CU_ASSERT_PTR_EQUAL(strstr(own.text, "address \"nowhere\""), own.text);
    CU_ASSERT_STRING_EQUAL(all.text, "");
    CU_ASSERT_EQUAL(bmi_instance_close(instance), 0);
    callback.write = NULL;
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
}

static void two_instances_in_a_call_are_refused(void)
{
    struct side sides[2];
    struct caught caught = {.text = ""};
    struct bmi_log_callback callback = {.write = caught_write,
                                        .argument = &caught,
                                        .level = BMI_LOG_ERROR};
    bmi_op_id_t id;
    int count;
    bmi_error_code_t error;
    sides_open(sides);
    CU_ASSERT_EQUAL(bmi_instance_set_info(sides[1].instance, BMI_LOG_CALLBACK, &callback), 0);
    CU_ASSERT_EQUAL(BMI_post_send(&id, sides[0].other, "x", 1, BMI_EXT_ALLOC, 1, NULL,
                                  sides[1].context, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(caught.text, "instance \"other\" and an address of instance "
                                               "\"one\""));
    int posted = BMI_post_recv(&id, sides[0].other, caught.text, 1, &(bmi_size_t){0}, BMI_EXT_ALLOC,
                               1, NULL, sides[0].context, NULL);
    CU_ASSERT_EQUAL(posted, 0);
    CU_ASSERT_EQUAL(BMI_test(id, &count, &error, NULL, NULL, 0, sides[1].context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_cancel(id, sides[1].context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_cancel(id, sides[0].context), 0);
    CU_ASSERT_EQUAL(complete(sides, 2, id, NULL), -BMI_ECANCEL);
    sides_close(sides);
}

static void one_that_is_closed_disturbs_no_other(void)
{
    struct side sides[2], third;
    bmi_op_id_t id;
    char byte;
    sides_open(sides);
    side_open(&third, "third", NULL);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(third.instance, &third.other, sides[0].url), 0);
    message(&sides[0], &sides[1], sides[1].other, 1000);
    CU_ASSERT_EQUAL(BMI_post_recv(&id, third.other, &byte, 1, &(bmi_size_t){0}, BMI_EXT_ALLOC, 1,
                                  NULL, third.context, NULL),
                    0);
    CU_ASSERT_EQUAL(bmi_instance_close(third.instance), 0); /* with an operation under way */
    message(&sides[1], &sides[0], sides[0].other, LARGE);
    CU_ASSERT_PTR_NULL(bmi_instance_of_context(third.context));
    CU_ASSERT_PTR_NULL(bmi_instance_of_addr(third.other));
    CU_ASSERT_EQUAL(BMI_post_send(&id, third.other, &byte, 1, BMI_EXT_ALLOC, 1, NULL,
                                  sides[0].context, NULL),
                    -BMI_EINVAL);
    sides_close(sides);
}

static void drive(struct side *sides, int count, int times)
{
    for (int i = 0; i < times; i++)
        for (int k = 0; k < count; k++) {
            bmi_op_id_t none;
            bmi_error_code_t error;
            int some = 0;
            CU_ASSERT_FATAL(
                BMI_testcontext(0, &none, &some, &error, NULL, NULL, 0, sides[k].context) >= 0);
        }
}

/* One peer sends to an instance of little memory that fetches nothing, and which is closed then. */
static void one_that_is_flooded_disturbs_no_other(void)
{
    enum { FLOOD = 200, PIECE = 4096, TOTAL = 128 << 10 };
    struct side sides[2], flood[2];
    static bmi_op_id_t ids[FLOOD];
    struct bmi_statistics statistics;
    sides_open(sides);
    side_open(&flood[0], "flooder", NULL);
    side_open(&flood[1], "flooded", "total_memory=128K,peer_memory=32K,linger_ms=0");
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(flood[0].instance, &flood[0].other,
                                                   flood[1].url),
                          0);
    static char piece[PIECE];
    int waiting = 0;
    for (int i = 0; i < FLOOD; i++) {
        int status = BMI_post_sendunexpected(&ids[i], flood[0].other, piece, PIECE, BMI_EXT_ALLOC,
                                             1, NULL, flood[0].context, NULL);
        CU_ASSERT_FATAL(status >= 0);
        waiting += status == 0;
    }
    drive(flood, 2, 1000);
    CU_ASSERT_EQUAL(bmi_instance_get_info(flood[1].instance, BMI_GET_STATISTICS, &statistics), 0);
    CU_ASSERT_TRUE(statistics.unexpected_waiting > 0);
    CU_ASSERT_TRUE(statistics.unexpected_waiting * PIECE < TOTAL);
    CU_ASSERT_EQUAL(bmi_instance_get_info(flood[0].instance, BMI_GET_STATISTICS, &statistics), 0);
    CU_ASSERT_TRUE(statistics.outstanding_sends > FLOOD / 2);
    message(&sides[0], &sides[1], sides[1].other, LARGE);
    message(&sides[1], &sides[0], sides[0].other, 100);
    CU_ASSERT_EQUAL(bmi_instance_close(flood[1].instance), 0);
    message(&sides[0], &sides[1], sides[1].other, LARGE);
    for (int tries = 0; waiting > 0 && tries < PATIENCE_MS; tries++) {
        bmi_op_id_t done[16];
        bmi_error_code_t errors[16];
        int count = 0;
        CU_ASSERT_FATAL(
            BMI_testcontext(16, done, &count, errors, NULL, NULL, 1, flood[0].context) >= 0);
        waiting -= count; /* each with 0 or the error of the connection */
    }
    CU_ASSERT_EQUAL(waiting, 0);
    CU_ASSERT_EQUAL(bmi_instance_get_info(sides[0].instance, BMI_GET_STATISTICS, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.errors, 0);
    CU_ASSERT_EQUAL(bmi_instance_close(flood[0].instance), 0);
    sides_close(sides);
}

static void the_default_instance_is_one_of_them(void)
{
    struct side sides[2];
    BMI_addr_t self;
    bmi_context_id context;
    CU_ASSERT_STRING_EQUAL(bmi_instance_name(bmi_instance_default()), "");
    CU_ASSERT_EQUAL(bmi_instance_close(bmi_instance_default()), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_instance_open_context(bmi_instance_default(), &context), -BMI_EINVAL);
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", NULL, 0), 0);
    sides_open(sides);
    CU_ASSERT_EQUAL(BMI_addr_lookup(&self, sides[0].url), 0);
    CU_ASSERT_PTR_EQUAL(bmi_instance_of_addr(self), bmi_instance_default());
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
    CU_ASSERT_PTR_EQUAL(bmi_instance_of_context(context), bmi_instance_default());
    CU_ASSERT_EQUAL(bmi_instance_set_info(NULL, BMI_SETTING, "spin_us=0"), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    message(&sides[0], &sides[1], sides[1].other, LARGE);
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", NULL, 0), 0);
    sides_close(sides);
    CU_ASSERT_EQUAL(BMI_addr_lookup(&self, "tcp://127.0.0.1:1"), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static struct side *forked; /* two sides; NULL: the next line of the log causes no fork */
static int fork_status;     /* of the child */

/* Afterwards ids of theirs are invalid, and another fork finds nothing of them. */
static void close_and_exit(struct side sides[2])
{
    bmi_op_id_t none;
    bmi_error_code_t error;
    int count, good = 0;
    alarm(PATIENCE_MS / 1000);
    for (int i = 0; i < 2; i++) {
        good += bmi_instance_close(sides[i].instance) == 0;
        good += BMI_testcontext(0, &none, &count, &error, NULL, NULL, 0, sides[i].context) ==
                -BMI_EINVAL;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    good += waitpid(child, NULL, 0) == child;
    _exit(good == 5 ? 0 : 1);
}

static void fork_once(void *argument, enum bmi_log_level level, const char *text)
{
    struct side *sides = forked;
    (void)argument, (void)level, (void)text;
    forked = NULL;
    if (sides == NULL)
        return;
    pid_t child = fork();
    if (child == 0)
        close_and_exit(sides);
    waitpid(child, &fork_status, 0);
}

/* A child lets go of its parent's instances, also of those whose poller forked within a callback;
 * the parent goes on. */
static void a_child_closes_them(void)
{
    struct side sides[2];
    struct bmi_log_callback callback = {.write = fork_once, .level = BMI_LOG_WARN};
    BMI_addr_t nobody;
    bmi_op_id_t id;
    sides_open(sides);
    message(&sides[0], &sides[1], sides[1].other, 1000);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(bmi_instance_set_info(sides[i].instance, BMI_LOG_CALLBACK, &callback), 0);
        CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[i].instance, &nobody,
                                                       "tcp://127.0.0.1:1"),
                              0);
        fork_status = -1;
        forked = sides;
        CU_ASSERT_EQUAL(BMI_post_send(&id, nobody, "x", 1, BMI_EXT_ALLOC, 1, NULL, sides[i].context,
                                      NULL),
                        0);
        CU_ASSERT_TRUE(complete(&sides[i], 1, id, NULL) < 0); /* refused, which is logged */
        CU_ASSERT_EQUAL(fork_status, 0);
    }
    pid_t child = fork();
    if (child == 0)
        close_and_exit(sides);
    CU_ASSERT_EQUAL(waitpid(child, &fork_status, 0), child);
    CU_ASSERT_EQUAL(fork_status, 0);
    message(&sides[1], &sides[0], sides[0].other, LARGE);
    sides_close(sides);
}

static void answer(struct bmi_rpc_request *request)
{
    struct bmi_message *reply = bmi_message_new();
    bmi_pack_string(reply, bmi_rpc_argument(request));
    bmi_rpc_reply(request, reply);
}

static int unpack(struct bmi_message *reply, void *argument)
{
    const char *text;
    int status = bmi_unpack_string(reply, &text);
    snprintf(argument, 32, "%s", status == 0 ? text : "none");
    return status;
}

static void each_has_services_of_its_own(void)
{
    struct side sides[2];
    char text[32] = "";
    sides_open(sides);
    for (int i = 0; i < 2; i++) {
        const struct bmi_rpc_service service = {.run = answer,
                                                .argument = i == 0 ? "the one" : "the other"};
        CU_ASSERT_EQUAL(bmi_instance_rpc_register(sides[i].instance, "who", &service), 0);
    }
    for (int i = 0; i < 2; i++) {
        struct side order[2] = {sides[i], sides[1 - i]};
        bmi_op_id_t id;
        int posted = bmi_rpc_call(&id, sides[i].other, "who", NULL, unpack, text, NULL, NULL,
                                  sides[i].context);
        CU_ASSERT_EQUAL_FATAL(posted, 0);
        CU_ASSERT_EQUAL(complete(order, 2, id, NULL), 0);
        CU_ASSERT_STRING_EQUAL(text, i == 0 ? "the other" : "the one");
    }
    CU_ASSERT_EQUAL(bmi_instance_rpc_unregister(sides[0].instance, "who"), 0);
    CU_ASSERT_EQUAL(bmi_instance_rpc_unregister(sides[0].instance, "who"), -BMI_ENOENT);
    struct bmi_rpc_statistics statistics;
    CU_ASSERT_EQUAL(bmi_instance_rpc_service_next(sides[0].instance, 1, &statistics), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_instance_rpc_service_next(sides[1].instance, 1, &statistics), 0);
    sides_close(sides);
}

static void memory_of_each(void)
{
    struct side sides[2];
    sides_open(sides);
    char *one = bmi_instance_memalloc(sides[0].instance, 100),
         *other = BMI_memalloc(sides[1].other, LARGE, BMI_SEND);
    CU_ASSERT_TRUE_FATAL(one != NULL && other != NULL);
    memset(one, 1, 100);
    memset(other, 1, LARGE);
    CU_ASSERT_EQUAL(BMI_memfree(0, one, 100, BMI_SEND), 0);
    CU_ASSERT_EQUAL(BMI_memfree(sides[1].other, other, LARGE, BMI_SEND), 0);
    CU_ASSERT_PTR_NULL(bmi_instance_memalloc(NULL, 1));
    sides_close(sides);
}

/* More of them than the task manager has threads for a program's tasks that block. A large message
 * needs its receiver, which calls nothing meanwhile. */
static void many_make_progress_in_the_background(void)
{
    enum { SIDES = 12 };
    static struct side sides[SIDES + 1]; /* the first one sends */
    static char out[LARGE], in[SIDES + 1][LARGE];
    bmi_op_id_t receiving[SIDES + 1], sending;
    bmi_size_t size;
    side_open(&sides[0], "sender", NULL);
    for (int i = 1; i <= SIDES; i++) {
        BMI_addr_t source;
        side_open(&sides[i], "receiver", "progress=background");
        CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[i].instance, &source, sides[0].url),
                              0);
        CU_ASSERT_EQUAL_FATAL(BMI_post_recv(&receiving[i], source, in[i], LARGE, &size,
                                            BMI_EXT_ALLOC, 2, NULL, sides[i].context, NULL),
                              0);
    }
    memset(out, 'x', sizeof out);
    for (int i = 1; i <= SIDES; i++) {
        BMI_addr_t to;
        CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[0].instance, &to, sides[i].url), 0);
        int done =
            BMI_post_send(&sending, to, out, LARGE, BMI_EXT_ALLOC, 2, NULL, sides[0].context, NULL);
        CU_ASSERT_FATAL(done >= 0);
        if (done == 0)
            CU_ASSERT_EQUAL_FATAL(complete(&sides[0], 1, sending, &size), 0);
    }
    for (int i = 1; i <= SIDES; i++) {
        CU_ASSERT_EQUAL(complete(&sides[i], 1, receiving[i], &size), 0);
        CU_ASSERT_EQUAL(memcmp(in[i], out, LARGE), 0);
    }
    for (int i = 0; i <= SIDES; i++)
        CU_ASSERT_EQUAL(bmi_instance_close(sides[i].instance), 0);
}

static void one_that_cannot_open_leaves_nothing(void)
{
    struct bmi_instance *instance = bmi_instance_default();
    const struct bmi_instance_options bad[] = {
        {.settings = "no_such=1"},
        {.methods = "no_such"},
        {.name = ""},
        {.name = "two words"},
        {.name = "a name that is longer than the thirty-one bytes of one"},
        {.listen = "tcp://127.0.0.1:0"}, /* without BMI_INIT_SERVER */
        {.methods = "bmi_tcp", .listen = "tcp://127.0.0.1:99999", .flags = BMI_INIT_SERVER},
        {.flags = 1 << 30},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        instance = bmi_instance_default();
        CU_ASSERT_TRUE(bmi_instance_open(&instance, &bad[i]) < 0);
        CU_ASSERT_PTR_NULL(instance);
    }
    CU_ASSERT_EQUAL(bmi_instance_open(NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance, NULL), 0);
    CU_ASSERT_EQUAL(strncmp(bmi_instance_name(instance), "instance", 8), 0);
    CU_ASSERT_EQUAL(bmi_instance_close(instance), 0);
    CU_ASSERT_EQUAL(bmi_instance_close(NULL), 0);
}

/* ---- a clock and random numbers of its own --------------------------------------------------- */

struct simulation {
    uint64_t now_ns, random;
    unsigned waits;
    char log[1 << 16];
};

static uint64_t simulated_now(void *argument)
{
    struct simulation *simulation = argument;
    return simulation->now_ns;
}

static void simulated_wait(void *argument, uint64_t until_ns)
{
    struct simulation *simulation = argument;
    simulation->waits++;
    simulation->now_ns = until_ns;
}

static int simulated_random(void *argument, void *bytes, size_t size)
{
    struct simulation *simulation = argument;
    for (size_t i = 0; i < size; i++) {
        simulation->random = simulation->random * 6364136223846793005u + 1442695040888963407u;
        ((uint8_t *)bytes)[i] = (uint8_t)(simulation->random >> 56);
    }
    return 0;
}

static void simulated_log(void *argument, enum bmi_log_level level, const char *text)
{
    struct simulation *simulation = argument;
    size_t used = strlen(simulation->log);
    snprintf(simulation->log + used, sizeof simulation->log - used, "%llu %d %s\n",
             (unsigned long long)simulation->now_ns, (int)level, text);
}

static void never_answers(struct bmi_rpc_request *request)
{
    (void)request;
}

static struct bmi_instance *simulation_open(struct simulation *simulation, uint64_t seed)
{
    const struct bmi_instance_options options = {.name = "simulated",
                                                 .methods = "bmi_loop",
                                                 .listen = "loop://here",
                                                 .flags = BMI_INIT_SERVER,
                                                 .now_ns = simulated_now,
                                                 .wait = simulated_wait,
                                                 .random = simulated_random,
                                                 .argument = simulation};
    const struct bmi_log_callback callback = {.write = simulated_log,
                                              .argument = simulation,
                                              .level = BMI_LOG_TRACE};
    struct bmi_instance *instance;
    *simulation = (struct simulation){.now_ns = 1, .random = seed};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance, &options), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_set_info(instance, BMI_LOG_CALLBACK,
                                                (void *)(uintptr_t)&callback),
                          0);
    return instance;
}

/* A call to itself that nobody answers, for a minute of the instance's clock. */
static void simulate(struct simulation *simulation, uint64_t seed)
{
    struct bmi_instance *instance = simulation_open(simulation, seed);
    const struct bmi_rpc_service service = {.run = never_answers};
    const struct bmi_rpc_options options = {.timeout_ms = 60000};
    bmi_context_id context;
    BMI_addr_t self;
    bmi_op_id_t id;
    bmi_error_code_t error = 0;
    int done = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open_context(instance, &context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_rpc_register(instance, "silent", &service), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(instance, &self, "loop://here"), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_rpc_call(&id, self, "silent", NULL, NULL, NULL, &options, NULL,
                                       context),
                          0);
    CU_ASSERT_EQUAL(BMI_test(id, &done, &error, NULL, NULL, 59000, context), 0);
    CU_ASSERT_TRUE(BMI_test(id, &done, &error, NULL, NULL, 2000, context) >= 0);
    CU_ASSERT_EQUAL(done, 1);
    CU_ASSERT_EQUAL(error, -BMI_ETIMEDOUT);
    CU_ASSERT_TRUE(simulation->now_ns >= UINT64_C(60000000000) &&
                   simulation->now_ns < UINT64_C(62000000000));
    CU_ASSERT_TRUE(simulation->waits > 0);
    CU_ASSERT_EQUAL(bmi_instance_close(instance), 0);
}

static void a_run_is_a_function_of_its_seed(void)
{
    static struct simulation one, again, other;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    simulate(&one, 1);
    simulate(&again, 1);
    simulate(&other, 2);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CU_ASSERT_TRUE(end.tv_sec - begin.tv_sec < 30); /* three minutes of its clock */
    CU_ASSERT_TRUE(strlen(one.log) > 1000 && strlen(one.log) < sizeof one.log - 1);
    CU_ASSERT_STRING_EQUAL(one.log, again.log);
    CU_ASSERT_STRING_NOT_EQUAL(one.log, other.log);
    struct bmi_instance *instance;
    CU_ASSERT_EQUAL(bmi_instance_open(&instance,
                                      &(struct bmi_instance_options){.now_ns = simulated_now}),
                    -BMI_EINVAL);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes that malloc has given out. musl does not count them: the most that the process had. */
static size_t allocated(void)
{
#ifdef __GLIBC__
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    struct rusage usage;
    CU_ASSERT_EQUAL(getrusage(RUSAGE_SELF, &usage), 0);
    return (size_t)usage.ru_maxrss * 1024;
#endif
}

static void a_thousand_idle_ones(void)
{
    enum { MANY = 1000, MOST = 64 << 10, DESCRIPTORS = 3 };
    static struct bmi_instance *instances[MANY];
    struct rlimit limit;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    CU_ASSERT_TRUE_FATAL(limit.rlim_max > MANY * DESCRIPTORS + 100);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instances[0], NULL), 0); /* shared tables */
    size_t before = allocated();
    for (int i = 1; i < MANY; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instances[i], NULL), 0);
    size_t each = (allocated() - before) / (MANY - 1);
    printf("\n    an idle instance has %zu bytes ... ", each);
    CU_ASSERT_TRUE(each <= MOST);
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(bmi_instance_close(instances[i]), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"they talk to each other", they_talk_to_each_other},
        {"an unexpected message comes to the instance that listens",
         an_unexpected_message_comes_to_the_instance_that_listens},
        {"an unexpected message outlives its instance",
         an_unexpected_message_outlives_its_instance},
        {"each has its own loop", each_has_its_own_loop},
        {"a context has its instance's descriptor", a_context_has_its_instances_descriptor},
        {"settings are an instance's own", settings_are_an_instances_own},
        {"where an instance logs", where_an_instance_logs},
        {"two instances in a call are refused", two_instances_in_a_call_are_refused},
        {"one that is closed disturbs no other", one_that_is_closed_disturbs_no_other},
        {"one that is flooded disturbs no other", one_that_is_flooded_disturbs_no_other},
        {"the default instance is one of them", the_default_instance_is_one_of_them},
        {"a child closes them", a_child_closes_them},
        {"each has services of its own", each_has_services_of_its_own},
        {"memory of each", memory_of_each},
        {"many make progress in the background", many_make_progress_in_the_background},
        {"one that cannot open leaves nothing", one_that_cannot_open_leaves_nothing},
        {"a run is a function of its seed", a_run_is_a_function_of_its_seed},
        {"a thousand idle ones", a_thousand_idle_ones},
        CU_TEST_INFO_NULL,
    };
    return unit_run("instances", tests);
}
