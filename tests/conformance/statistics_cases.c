/* SPDX-License-Identifier: BSD-3-Clause
 *
 * statistics_cases.c - BMI_get_info and BMI_set_info: counters (also that a large message with a
 * posted receive is never copied), settings, options, and the log.
 */
#include "harness.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LARGE = 4 * MIB };

static void small_messages(struct rank *rank)
{
    enum { COUNT = 50, SIZE = 100 };
    uint64_t shared = rank_is_self(rank) ? 2 : 1; /* both directions in one process */
    char in[SIZE], out[SIZE] = "";
    rank_warm_up(rank);
    struct bmi_statistics before = statistics_of(rank, rank->peer);
    struct bmi_method_statistics method = method_statistics(rank);
    rank_barrier(rank);
    for (int i = 0; i < COUNT; i++) {
        struct op send, receive;
        op_receive(rank, &receive, in, SIZE, rank_other(rank));
        op_send(rank, &send, out, SIZE, rank->role);
        op_finish(rank, &send, SIZE);
        op_finish(rank, &receive, SIZE);
    }
    rank_barrier(rank);
    struct bmi_statistics after = statistics_of(rank, rank->peer);
    struct bmi_statistics all = statistics_of(rank, 0);
    CHECK_EQUAL(rank, after.messages_sent - before.messages_sent, COUNT * shared);
    CHECK_EQUAL(rank, after.messages_received - before.messages_received, COUNT * shared);
    CHECK_EQUAL(rank, after.bytes_sent - before.bytes_sent, COUNT * SIZE * shared);
    CHECK_EQUAL(rank, after.bytes_received - before.bytes_received, COUNT * SIZE * shared);
    CHECK_EQUAL(rank, after.eager_sent - before.eager_sent, COUNT * shared);
    CHECK_EQUAL(rank, after.rendezvous_sent - before.rendezvous_sent, 0);
    CHECK_EQUAL(rank, after.errors, before.errors);
    CHECK_EQUAL(rank, after.outstanding_sends + after.outstanding_receives, 0);
    CHECK_EQUAL(rank, after.unmatched_messages + after.unmatched_bytes, 0);
    CHECK(rank, all.messages_sent >= after.messages_sent && all.bytes_sent >= after.bytes_sent);
    CHECK(rank, method_statistics(rank).frames_sent >= method.frames_sent + COUNT * shared);
    CHECK(rank, method_statistics(rank).bytes_sent >= method.bytes_sent + COUNT * SIZE * shared);
    CHECK(rank, method_statistics(rank).writes > method.writes);
}

/* A large message whose receive the sender knows of: the marker was sent after the announcement. */
static void pass_announced(struct rank *rank)
{
    struct op op, marker;
    char byte = 'm', *memory = memory_take(rank, LARGE);
    if (rank->role == SENDER) {
        op_receive(rank, &marker, &byte, 1, 2);
        pattern_fill(memory, LARGE, 1);
        op_finish(rank, &marker, 1);
        op_send(rank, &op, memory, LARGE, 1);
    } else {
        op_receive(rank, &op, memory, LARGE, 1);
        op_send(rank, &marker, &byte, 1, 2);
        op_finish(rank, &marker, 1);
    }
    op_finish(rank, &op, LARGE);
    CHECK(rank, pattern_holds(memory, LARGE, 1));
    memory_give_back(memory);
}

/* The body is sent at once, and arrives in place. */
static void announced(struct rank *rank)
{
    enum { COUNT = 10 };
    rank_warm_up(rank);
    struct bmi_statistics before = statistics_of(rank, 0);
    struct bmi_method_statistics method = method_statistics(rank);
    rank_barrier(rank);
    for (int i = 0; i < COUNT; i++)
        pass_announced(rank);
    rank_barrier(rank);
    struct bmi_statistics after = statistics_of(rank, 0);
    struct bmi_method_statistics then = method_statistics(rank);
    struct bmi_method_info info = method_info(rank);
    bool pulled = info.can_get && !info.can_put; /* the receiver's exposed memory is not
                                                    used then */
    if (rank->role == SENDER) {
        CHECK_EQUAL(rank, after.announced_sent - before.announced_sent, pulled ? 0 : COUNT);
        CHECK_EQUAL(rank, after.rendezvous_sent - before.rendezvous_sent, pulled ? COUNT : 0);
    } else {
        CHECK(rank, pulled || after.announcements - before.announcements >= COUNT);
    }
    CHECK(rank, after.copied_bytes - before.copied_bytes <= COUNT); /* the markers at most */
    CHECK(rank, then.copied_bytes - method.copied_bytes <= COUNT);
    if (rank_is_self(rank) || rank->role == (info.can_put ? SENDER : RECEIVER))
        CHECK(rank, !(info.can_put || info.can_get) ||
                        after.put_bytes + after.get_bytes - before.put_bytes - before.get_bytes >=
                            (uint64_t)COUNT * LARGE);
}

/* The receive comes later: the sender uses a rendezvous, and still no byte is copied. */
static void rendezvous(struct rank *rank)
{
    enum { COUNT = 5 };
    rank_warm_up(rank);
    struct bmi_statistics before = statistics_of(rank, 0);
    struct bmi_method_statistics method = method_statistics(rank);
    rank_barrier(rank);
    for (int i = 0; i < COUNT; i++)
        message_pass(rank, LARGE, 1, SEND_FIRST);
    rank_barrier(rank);
    struct bmi_statistics after = statistics_of(rank, 0);
    if (rank->role == SENDER)
        CHECK_EQUAL(rank, after.rendezvous_sent - before.rendezvous_sent, COUNT);
    CHECK_EQUAL(rank, after.copied_bytes - before.copied_bytes, 0);
    uint64_t staged = method_statistics(rank).copied_bytes - method.copied_bytes;
    CHECK(rank, staged <= 2 * COUNT); /* the markers at most */
}

static void unexpected_counted(struct rank *rank)
{
    struct BMI_unexpected_info info;
    struct bmi_statistics before = statistics_of(rank, 0);
    rank_barrier(rank);
    if (rank->role == SENDER) {
        rank_hello_send(rank);
        CHECK_EQUAL(rank, statistics_of(rank, 0).unexpected_sent - before.unexpected_sent, 1);
    } else {
        unexpected_take(rank, &info);
        CHECK_EQUAL(rank, statistics_of(rank, 0).unexpected_received - before.unexpected_received,
                    1);
        CHECK(rank, statistics_of(rank, 0).unexpected_bytes >= 5);
        unexpected_give_back(rank, &info);
        CHECK_EQUAL(rank, statistics_of(rank, 0).unexpected_bytes, 0);
    }
}

static void gauges(struct rank *rank)
{
    struct op receives[3];
    struct bmi_context_statistics context = {.context = rank->context};
    char bytes[3];
    uint64_t cancels = statistics_of(rank, 0).cancels;
    for (int i = 0; i < 3; i++)
        op_receive(rank, &receives[i], &bytes[i], 1, i);
    CHECK_EQUAL(rank, statistics_of(rank, 0).outstanding_receives, 3);
    CHECK_EQUAL(rank, statistics_of(rank, rank->peer).outstanding_receives, 3);
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(rank, BMI_cancel(receives[i].id, rank->context), 0);
    for (int i = 0; i < 3; i++)
        op_finish_error(rank, &receives[i], BMI_ECANCEL);
    CHECK_EQUAL(rank, statistics_of(rank, 0).outstanding_receives, 0);
    CHECK_EQUAL(rank, statistics_of(rank, 0).cancels - cancels, 3);
    CHECK_EQUAL(rank, statistics_of(rank, 0).errors, 0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &context), 0);
    CHECK_EQUAL(rank, context.completions, 3);
    CHECK_EQUAL(rank, context.queue_depth, 0);
    CHECK_EQUAL(rank, context.waiters, 0);
}

/* ---- settings and options -------------------------------------------------------------------- */

static void settings(struct rank *rank)
{
    const char *name, *value, *help;
    for (int i = 0; bmi_setting_next(i, &name, &value, &help) == 0; i++) {
        struct bmi_setting setting = {.name = name};
        char text[600];
        NEED_STATUS(rank, BMI_get_info(0, BMI_SETTING, &setting), 0);
        snprintf(text, sizeof text, "%s=%s", name, setting.value);
        int status = BMI_set_info(0, BMI_SETTING, text);
        if (status != 0)
            rank_fail(rank, false, __FILE__, __LINE__, "%s is refused: %s", text,
                      bmi_status_string(status));
    }
    struct bmi_setting unknown = {.name = "no_such_setting"}, none = {.name = NULL};
    CHECK_STATUS(rank, BMI_get_info(0, BMI_SETTING, &unknown), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_SETTING, &none), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "no_such_setting=1"), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "immediate"), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "immediate=perhaps"), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, NULL), -BMI_EINVAL);
    message_pass_self(rank);
}

static void unknown_options(struct rank *rank)
{
    static const int unknown[] = {0, -1, 18, 999, 1999, 5000, INT_MAX, INT_MIN};
    int value = 0;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        CHECK_STATUS(rank, BMI_set_info(0, unknown[i], &value), -BMI_ENOSYS);
        CHECK_STATUS(rank, BMI_get_info(0, unknown[i], &value), -BMI_ENOSYS);
        CHECK_STATUS(rank, BMI_set_info(rank->peer, unknown[i], &value), -BMI_ENOSYS);
        CHECK_STATUS(rank, BMI_get_info(rank->peer, unknown[i], &value), -BMI_ENOSYS);
    }
    CHECK_EQUAL(rank, value, 0);
}

/* A parameter for the answer is required. */
static void options_without_parameter(struct rank *rank)
{
    static const int gets[] = {BMI_CHECK_MAXSIZE,
                               BMI_GET_METH_ADDR,
                               BMI_DROP_ADDR_QUERY,
                               BMI_GET_UNEXP_SIZE,
                               BMI_TRANSPORT_METHODS_STRING,
                               BMI_GET_LISTEN_ADDR,
                               BMI_GET_CONTEXT_FD,
                               BMI_GET_STATISTICS,
                               BMI_SETTING,
                               BMI_GET_METHOD_STATISTICS,
                               BMI_GET_CONTEXT_STATISTICS};
    struct bmi_method_statistics method = {.name = "bmi_nosuch"}, none = {.name = NULL};
    for (size_t i = 0; i < sizeof gets / sizeof *gets; i++)
        CHECK_STATUS(rank, BMI_get_info(rank->peer, gets[i], NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &method), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &none), -BMI_EINVAL);
}

static void accepted_options(struct rank *rank)
{
    struct bmi_optimistic_buffer_info memory = {.buffer = &memory,
                                                .len = sizeof memory,
                                                .rw = BMI_IO_READ};
    int on = 1, droppable = -1;
    void *link = NULL;
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_TRUSTED_CONNECTION, &on), 0);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_OPTIMISTIC_BUFFER_REG, &memory), 0);
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_FORCEFUL_CANCEL_MODE, &on), 0);
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_FORCEFUL_CANCEL_MODE, NULL), 0);
    message_pass_self(rank);
    CHECK_STATUS(rank, BMI_get_info(rank->peer, BMI_GET_METH_ADDR, &link), 0);
    CHECK(rank, link != NULL);
    struct op op;
    char byte;
    op_receive(rank, &op, &byte, 1, 1);
    CHECK_STATUS(rank, BMI_get_info(rank->peer, BMI_DROP_ADDR_QUERY, &droppable), 0);
    CHECK_EQUAL(rank, droppable, 0); /* an operation is outstanding */
    op_cancel(rank, &op, false);
}

static void socket_buffers(struct rank *rank)
{
    for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE; option++) {
        int size = 300000, got = 0;
        CHECK_STATUS(rank, BMI_set_info(0, option, &size), 0);
        CHECK_STATUS(rank, BMI_get_info(0, option, &got), 0);
        CHECK_EQUAL(rank, got, size);
        /* the setting is another name of the option: the later value holds */
        bool sending = option == BMI_TCP_BUFFER_SEND_SIZE;
        char text[] = "tcp_sndbuf=200000";
        memcpy(text, sending ? "tcp_snd" : "tcp_rcv", 7);
        CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, text), 0);
        CHECK_STATUS(rank, BMI_get_info(0, option, &got), 0);
        CHECK_EQUAL(rank, got, 200000);
        size = -1;
        CHECK_STATUS(rank, BMI_set_info(0, option, &size), -BMI_EINVAL);
        size = 0;
        CHECK_STATUS(rank, BMI_set_info(0, option, &size), 0);
    }
    message_pass_self(rank);
}

struct logged {
    atomic_int count;
    char text[1000];
};

static void log_write(void *argument, enum bmi_log_level level, const char *text)
{
    struct logged *logged = argument;
    (void)level;
    if (atomic_fetch_add(&logged->count, 1) == 0)
        snprintf(logged->text, sizeof logged->text, "%s", text);
}

/* The message that names the bad part of an address. */
static void log_callback(struct rank *rank)
{
    struct logged logged = {.text = ""};
    struct bmi_log_callback callback = {.write = log_write,
                                        .argument = &logged,
                                        .level = BMI_LOG_ERROR};
    BMI_addr_t addr;
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "nosuch://a:1"), -BMI_ENOPROTOOPT);
    CHECK_EQUAL(rank, atomic_load(&logged.count), 1); /* once, where it was detected */
    CHECK(rank, strstr(logged.text, "nosuch") != NULL);
    callback.level = BMI_LOG_OFF;
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "log=error"), 0);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "nosuch://a:1"), -BMI_ENOPROTOOPT);
    CHECK_EQUAL(rank, atomic_load(&logged.count), 1);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "log=off"), 0);
    callback.write = NULL;
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "nosuch://a:1"), -BMI_ENOPROTOOPT);
    CHECK_EQUAL(rank, atomic_load(&logged.count), 1);
}

const struct conformance_case statistics_cases[] = {
    {.section = "Functions", .name = "statistics of small messages", .run = small_messages},
    {.section = "Functions",
     .name = "an announced large message is never copied",
     .run = announced},
    {.section = "Functions",
     .name = "a large message that was asked for is never copied",
     .run = rendezvous},
    {.section = "Functions",
     .name = "statistics of unexpected messages",
     .run = unexpected_counted},
    {.section = "Functions", .name = "statistics that are gauges", .run = gauges, .where = SOLO},
    {.section = "Functions",
     .name = "settings are read and written",
     .run = settings,
     .where = SOLO},
    {.section = "Functions",
     .name = "unknown options are refused",
     .run = unknown_options,
     .where = SOLO},
    {.section = "Functions",
     .name = "options want their parameter",
     .run = options_without_parameter,
     .where = SOLO},
    {.section = "Functions",
     .name = "options that are accepted",
     .run = accepted_options,
     .where = SOLO},
    {.section = "Functions",
     .name = "socket buffer sizes",
     .run = socket_buffers,
     .where = SOLO | SOCKETS},
    {.section = "Functions",
     .name = "the log goes to a callback",
     .run = log_callback,
     .where = SOLO},
    {0},
};
