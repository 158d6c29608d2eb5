/* SPDX-License-Identifier: BSD-3-Clause
 *
 * classic_cases.c - the expectations of file-system code for the classic header: its prototypes,
 * with an options string for BMI_initialize and BMI_addr_lookup, and behaviour that no header
 * states (docs/compatibility.md). This file includes bmi.h as such a program does.
 */
#define BMI_CLASSIC_API
#include "bmi.h"

#include "harness.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void classic_start(struct rank *rank, const char *options)
{
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t addr = 0, again = 0;
    NEED_STATUS(rank,
                BMI_initialize(rank->method->name, rank->method->listen, BMI_INIT_SERVER, options),
                0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), 0);
    NEED_STATUS(rank, BMI_addr_lookup(&addr, url, NULL), 0);
    NEED_STATUS(rank, BMI_addr_lookup(&again, url, "ignored=yes"), 0);
    CHECK_EQUAL(rank, again, addr);
    CHECK(rank, BMI_addr_rev_lookup(addr) && strcmp(BMI_addr_rev_lookup(addr), url) == 0);
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    rank->peer = addr;
}

static void classic_message(struct rank *rank)
{
    struct op send, receive;
    char from[100], to[100];
    pattern_fill(from, sizeof from, 1);
    op_receive(rank, &receive, to, sizeof to, 5);
    op_send(rank, &send, from, sizeof from, 5);
    op_finish(rank, &send, sizeof from);
    op_finish(rank, &receive, sizeof to);
    CHECK(rank, pattern_holds(to, sizeof to, 1));
    rank_stop(rank);
}

static void classic(struct rank *rank)
{
    classic_start(rank, NULL);
    classic_message(rank);
    classic_start(rank, "");
    classic_message(rank);
}

static void classic_settings(struct rank *rank)
{
    const char *name, *value, *help;
    char options[600], first[256];
    NEED_STATUS(rank, bmi_setting_next(0, &name, &value, &help), 0);
    strcpy(first, name);
    strcpy(options, first);
    strcat(options, "=");
    strcat(options, value);
    classic_start(rank, options);
    classic_message(rank);
    CHECK_STATUS(rank,
                 BMI_initialize(rank->method->name, rank->method->listen, BMI_INIT_SERVER,
                                "no_such_setting=1"),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
}

static void expect_setting(struct rank *rank, const char *name, const char *value)
{
    struct bmi_setting setting = {.name = name};
    NEED_STATUS(rank, BMI_get_info(0, BMI_SETTING, &setting), 0);
    CHECK(rank, strcmp(setting.value, value) == 0);
}

/* The options hold until the library ends; if it does not start, they have no effect. */
static void classic_settings_end(struct rank *rank)
{
    struct bmi_setting before = {.name = "dead_peers"};
    NEED_STATUS(rank, BMI_get_info(0, BMI_SETTING, &before), 0);
    CHECK_STATUS(rank, BMI_initialize(NULL, NULL, 1 << 20, "dead_peers=77"), -BMI_EINVAL);
    expect_setting(rank, "dead_peers", before.value);
    classic_start(rank, "dead_peers=77,linger_ms=123");
    expect_setting(rank, "dead_peers", "77");
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "linger_ms=321"), 0);
    classic_message(rank);
    expect_setting(rank, "dead_peers", before.value);
    expect_setting(rank, "linger_ms", "321"); /* set by the program, permanently */
}

/* Later calls only count: their options are ignored, too. */
static void classic_counted(struct rank *rank)
{
    struct bmi_setting setting = {.name = "dead_peers"};
    classic_start(rank, NULL);
    CHECK_STATUS(rank, BMI_initialize(NULL, NULL, 0, "dead_peers=77"), 0);
    CHECK_STATUS(rank, BMI_initialize(NULL, NULL, 0, "no_such_setting=1"), 0);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_SETTING, &setting), 0);
    CHECK(rank, strcmp(setting.value, "77") != 0);
    CHECK_STATUS(rank, BMI_finalize(), 0);
    CHECK_STATUS(rank, BMI_finalize(), 0);
    classic_message(rank);
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
}

/* ---- the log -------------------------------------------------------------------------------- */

/* Lines that contain a text. */
struct scan {
    const char *text;
    atomic_int lines;
    char last[600];
};

static void scan_line(void *argument, enum bmi_log_level level, const char *text)
{
    struct scan *scan = argument;
    if (level > BMI_LOG_WARN || strstr(text, scan->text) == NULL)
        return;
    snprintf(scan->last, sizeof scan->last, "%s", text);
    atomic_fetch_add(&scan->lines, 1);
}

static void scan_begin(struct rank *rank, struct scan *scan, const char *text)
{
    *scan = (struct scan){.text = text};
    struct bmi_log_callback callback = {.write = scan_line,
                                        .argument = scan,
                                        .level = BMI_LOG_WARN};
    NEED_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
}

static void scan_end(struct rank *rank)
{
    struct bmi_log_callback none = {.write = NULL};
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &none), 0);
}

/* ---- options -------------------------------------------------------------------------------- */

/* The string goes to all modules of the classic library: it may hold options of others. */
static void classic_options_of_modules(struct rank *rank)
{
    static const char *const options[] = {"ib_port=1", "ib_port=2,dead_peers=77",
                                          " dead_peers=77 , ib_port=1\n", "mx_board=0,ib_port=1"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct scan scan;
        scan_begin(rank, &scan, "ib_port");
        classic_start(rank, options[i]);
        scan_end(rank);
        CHECK_EQUAL(rank, atomic_load(&scan.lines), 1);
        if (strstr(options[i], "77") != NULL)
            expect_setting(rank, "dead_peers", "77");
        classic_message(rank);
    }
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "ib_port=1"), -BMI_EINVAL);
}

/* ---- memory --------------------------------------------------------------------------------- */

static bool is_zeroed(const char *memory, bmi_size_t size)
{
    return size == 0 || (memory[0] == 0 && memcmp(memory, memory + 1, (size_t)size - 1) == 0);
}

/* Given: memory that was used and freed. When: it is allocated anew. Then: it is zeroed. */
static void classic_memory_zeroed(struct rank *rank)
{
    static const bmi_size_t sizes[] = {1,     7,   24,  600,          4095,        4096,
                                       65537, MIB, MIB, 4 * MIB + 77, 9 * MIB + 1, 32};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    for (int round = 0; round < 3; round++) {
        char *memory[COUNT];
        for (int i = 0; i < COUNT; i++) {
            memory[i] = BMI_memalloc(rank->peer, sizes[i], i % 2 ? BMI_SEND : BMI_RECV);
            NEED(rank, memory[i] != NULL);
            CHECK(rank, is_zeroed(memory[i], sizes[i]));
            memset(memory[i], 0xa5, (size_t)sizes[i]);
        }
        for (int i = 0; i < COUNT; i++)
            CHECK_STATUS(rank, BMI_memfree(rank->peer, memory[i], sizes[i], BMI_RECV), 0);
    }
}

/* A read beyond the end of a file allocates, sends, and frees a buffer of 0 bytes. */
static void classic_memory_empty(struct rank *rank)
{
    bmi_size_t actual = 7;
    void *from = BMI_memalloc(rank->peer, 0, BMI_SEND);
    void *to = BMI_memalloc(rank->peer, 0, BMI_RECV);
    struct op send = {.size = 0}, receive = {.size = 0};
    NEED(rank, from != NULL && to != NULL && from != to);
    receive.posted = BMI_post_recv(&receive.id, rank->peer, to, 0, &actual, BMI_PRE_ALLOC, 9,
                                   &receive, rank->context, NULL);
    NEED_STATUS(rank, receive.posted, 0);
    rank->pending++;
    send.sends = true;
    send.posted =
        BMI_post_send(&send.id, rank->peer, from, 0, BMI_PRE_ALLOC, 9, &send, rank->context, NULL);
    NEED(rank, send.posted >= 0);
    rank->pending += send.posted == 0;
    send.done = send.posted == 1;
    op_finish(rank, &send, 0);
    op_finish(rank, &receive, 0);
    CHECK_STATUS(rank, BMI_memfree(rank->peer, from, 0, BMI_SEND), 0);
    CHECK_STATUS(rank, BMI_memfree(rank->peer, to, 0, BMI_RECV), 0);
}

/* The classic modules ignore the purpose of memory, so programs pass any value. */
static void classic_memory_any_use(struct rank *rank)
{
    static const int uses[] = {0, BMI_SEND, BMI_RECV, 3, 7};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        void *memory = BMI_memalloc(rank->peer, 100, (enum bmi_op_type)uses[i]);
        NEED(rank, memory != NULL);
        CHECK_STATUS(rank, BMI_memfree(rank->peer, memory, 100, (enum bmi_op_type)0), 0);
    }
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static int reported_size(struct rank *rank, BMI_addr_t addr)
{
    int size = -1;
    CHECK_STATUS(rank, BMI_get_info(addr, BMI_GET_UNEXP_SIZE, &size), 0);
    return size;
}

static void unexpected_pass(struct rank *rank, bmi_size_t size)
{
    struct BMI_unexpected_info info;
    struct op send;
    char *memory = memory_take(rank, size);
    pattern_fill(memory, size, 4);
    op_send_unexpected(rank, &send, memory, size, 4);
    unexpected_take(rank, &info);
    op_finish(rank, &send, size);
    CHECK_EQUAL(rank, info.size, size);
    CHECK(rank, pattern_holds(info.buffer, size, 4));
    unexpected_give_back(rank, &info);
    memory_give_back(memory);
}

/* Programs size their requests by the reported value, and have buffers for no more. Larger messages
 * are sent nevertheless. */
static void classic_unexpected_size(struct rank *rank)
{
    int limit = unexpected_limit(rank), less = 1000, none = 0, more = 1 << 24;
    unexpected_pass(rank, limit);
    CHECK_EQUAL(rank, reported_size(rank, 0), 16384);
    CHECK_EQUAL(rank, reported_size(rank, rank->peer), 16384);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_GET_UNEXP_SIZE, &less), 0);
    CHECK_EQUAL(rank, reported_size(rank, rank->peer), 1000);
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_GET_UNEXP_SIZE, &more), 0);
    CHECK_EQUAL(rank, reported_size(rank, rank->peer), limit);
    CHECK_EQUAL(rank, reported_size(rank, 0), limit);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_GET_UNEXP_SIZE, &none), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_GET_UNEXP_SIZE, NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "unexpected_size=2K"), 0);
    CHECK_EQUAL(rank, reported_size(rank, rank->peer), 2048);
    unexpected_pass(rank, limit);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_SETTING, "unexpected_size=16384"), 0);
}

/* ---- methods and addresses ------------------------------------------------------------------ */

/* Programs prefix an address's scheme with "bmi_". */
static void classic_method_names(struct rank *rank)
{
    char list[300];
    const char *const lists[] = {"bmi_%s", "%s", "\tbmi_%s\n", "bmi_loop, bmi_%s"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(list, sizeof list, lists[i], rank->method->scheme);
        NEED_STATUS(rank, BMI_initialize(list, rank->method->listen, BMI_INIT_SERVER, NULL), 0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen), 0);
        NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
        rank->peer = rank_look_up(rank, rank->listen);
        message_pass_self(rank);
        rank_stop(rank);
    }
    snprintf(list, sizeof list, "bmi_bmi_%s", rank->method->scheme);
    CHECK_STATUS(rank, BMI_initialize(list, rank->method->listen, BMI_INIT_SERVER, NULL),
                 -BMI_ENOPROTOOPT);
}

static void pass_by_host(struct rank *rank, const char *host)
{
    char url[BMI_MAX_ADDR_LEN];
    snprintf(url, sizeof url, " %s://%s:%d/path\n", rank->method->scheme, host,
             url_port(rank->listen));
    rank->peer = rank_look_up(rank, url);
    CHECK(rank, strcmp(BMI_addr_rev_lookup(rank->peer), url) == 0);
    message_pass_self(rank);
}

/* Given: a host that no resolver knows, or white space around it. Then: the server listens on all
 * interfaces, and a client that uses another name of the machine connects. */
static void classic_listen(struct rank *rank)
{
    static const char *const listens[] = {"%s://NULL:0", "%s://no-such-host.invalid:0\n",
                                          " %s://localhost:0\t", "%s://127.0.0.1:0/pvfs2-fs\n"};
    struct addrinfo *found = NULL;
    char listen[BMI_MAX_ADDR_LEN], name[256] = "";
    if (strcmp(rank->method->scheme, "gm") != 0 && !(rank->method->features & CONFORMANCE_PORTS))
        rank_skip(rank, "addresses are names, not hosts");
    gethostname(name, sizeof name - 1);
    bool known = getaddrinfo(name, NULL, NULL, &found) == 0;
    if (known)
        freeaddrinfo(found);
    for (size_t i = 0; i < sizeof listens / sizeof *listens; i++) {
        snprintf(listen, sizeof listen, listens[i], rank->method->scheme);
        NEED_STATUS(rank, BMI_initialize(rank->method->name, listen, BMI_INIT_SERVER, NULL), 0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen), 0);
        NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
        rank->peer = rank_look_up(rank, rank->listen);
        message_pass_self(rank);
        pass_by_host(rank, "localhost");
        pass_by_host(rank, "127.0.0.1");
        if (known)
            pass_by_host(rank, name);
        rank_stop(rank);
    }
}

/* With the flag the host is the one to bind to. */
static void classic_listen_specific(struct rank *rank)
{
    char listen[200];
    snprintf(listen, sizeof listen, "%s://no-such-host.invalid:0", rank->method->scheme);
    int status =
        BMI_initialize(rank->method->name, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC, NULL);
    CHECK(rank, status == -BMI_EHOSTNTFD || status == -BMI_ETRYAGAIN);
}

/* A configuration names networks of all servers; an address that this server does not use is
 * ignored. */
static void classic_listen_more(struct rank *rank)
{
    char listen[BMI_MAX_ADDR_LEN];
    snprintf(listen, sizeof listen, "nosuch://a:1, %s,mx://NULL:5", rank->method->listen);
    NEED_STATUS(rank, BMI_initialize(rank->method->name, listen, BMI_INIT_SERVER, NULL), 0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen), 0);
    CHECK(rank, strchr(rank->listen, ',') == NULL);
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    rank->peer = rank_look_up(rank, rank->listen);
    message_pass_self(rank);
    rank_stop(rank);
}

static void classic_lookup_fails(struct rank *rank)
{
    static const char *const bad[] = {"nosuch://a:1", "nothing", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        BMI_addr_t addr = 7;
        CHECK(rank, BMI_addr_lookup(&addr, bad[i], NULL) < 0);
        CHECK_EQUAL(rank, addr, 0);
    }
    CHECK_STATUS(rank, BMI_addr_lookup(NULL, rank->listen, NULL), -BMI_EINVAL);
}

/* Programs print and compare the host without checking for NULL. */
static void classic_host_unknown(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t addr;
    made_up_address(rank, 3, url, sizeof url);
    NEED_STATUS(rank, BMI_addr_lookup(&addr, url, NULL), 0);
    CHECK(rank, strcmp(BMI_addr_rev_lookup_unexpected(addr), "UNKNOWN") == 0);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(rank, strcmp(BMI_addr_rev_lookup_unexpected(addr), "UNKNOWN") == 0);
    CHECK(rank, strcmp(BMI_addr_rev_lookup_unexpected(0), "UNKNOWN") == 0);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
}

/* Export lists name hosts and wildcards without a netmask: -1. */
static void classic_ranges(struct rank *rank)
{
    static const struct {
        const char *text;
        int expected;
    } table[] = {{"%s://127.0.0.1", 1},
                 {"%s://127.0.0.2", 0},
                 {"%s://*", 1},
                 {"%s://127.*", 1},
                 {"%s://127.*.*.*", 1},
                 {"%s://127.0.*.*", 1},
                 {"%s://10.*.*.*", 0},
                 {"%s://*.*.*.*", 1},
                 {"%s://127.0.0.*.*", -BMI_EINVAL},
                 {"%s://127.*.0.*", -BMI_EINVAL}};
    char url[BMI_MAX_ADDR_LEN], text[200];
    BMI_addr_t addr;
    snprintf(url, sizeof url, "%s://127.0.0.1:9", rank->method->scheme);
    NEED_STATUS(rank, BMI_addr_lookup(&addr, url, NULL), 0);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(text, sizeof text, table[i].text, rank->method->scheme);
        CHECK_STATUS(rank, BMI_query_addr_range(addr, text, -1), table[i].expected);
    }
    CHECK_STATUS(rank, BMI_query_addr_range(addr, text, -2), -BMI_EINVAL);
}

/* ---- buffers that a program keeps ----------------------------------------------------------- */

enum { KEPT_SIZE = 8000, KEPT_SENDS = 60 };

static void kept_send(struct rank *rank)
{
    struct op ops[KEPT_SENDS];
    char *memory = memory_take(rank, KEPT_SIZE);
    rank_start_client(rank);
    rank_read_idle(rank, RECEIVER, rank->peer_url, sizeof rank->peer_url);
    rank->peer = rank_look_up(rank, rank->peer_url);
    rank_hello_send(rank);
    for (int i = 0; i < KEPT_SENDS; i++)
        op_send_unexpected(rank, &ops[i], memory, KEPT_SIZE, i);
    for (int i = 0; i < KEPT_SENDS; i++)
        op_finish(rank, &ops[i], KEPT_SIZE);
    rank_barrier(rank);
    rank_stop(rank);
    memory_give_back(memory);
}

/* Fetches messages and keeps their buffers until the log has warned so often. */
static int kept_fetch(struct rank *rank, struct BMI_unexpected_info *infos, struct scan *scan,
                      int warnings)
{
    int64_t deadline = now_ms() + 30000 * patience();
    int kept = 0;
    while (atomic_load(&scan->lines) < warnings) {
        int count = 0;
        NEED(rank, now_ms() < deadline);
        NEED(rank, kept < KEPT_SENDS);
        NEED(rank, BMI_testunexpected(1, &count, &infos[kept], 50) >= 0);
        kept += count;
    }
    return kept;
}

/* Given: a program that keeps unexpected buffers until their sender has to wait. Then: the log has
 * their number and bytes once a second. After they are freed all other messages arrive. */
static void kept_receive(struct rank *rank)
{
    struct BMI_unexpected_info infos[KEPT_SENDS];
    struct scan scan;
    char expected[100];
    scan_begin(rank, &scan, "the program holds");
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "peer_memory=64K"), 0);
    rank_start_server(rank, NULL, 0);
    rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
    rank->peer = rank_hello_receive(rank);
    int64_t start = now_ms();
    int kept = kept_fetch(rank, infos, &scan, 2);
    int64_t seconds = (now_ms() - start) / 1000;
    CHECK(rank, atomic_load(&scan.lines) <= seconds + 1);
    snprintf(expected, sizeof expected, "holds %d buffers of %d bytes", kept, kept * KEPT_SIZE);
    if (strstr(scan.last, expected) == NULL)
        rank_fail(rank, false, __FILE__, __LINE__, "\"%s\" has no \"%s\"", scan.last, expected);
    for (int i = 0; i < kept; i++)
        unexpected_give_back(rank, &infos[i]);
    for (int i = kept; i < KEPT_SENDS; i++) {
        unexpected_take(rank, &infos[i]);
        CHECK_EQUAL(rank, infos[i].tag, i);
        unexpected_give_back(rank, &infos[i]);
    }
    rank_barrier(rank);
    rank_stop(rank);
    scan_end(rank);
}

static void classic_kept(struct rank *rank)
{
    if (rank->role == SENDER)
        kept_send(rank);
    else
        kept_receive(rank);
}

/* ---- a request ------------------------------------------------------------------------------- */

enum { REQUEST_SIZE = 9000, RESPONSE_SIZE = 3000, REQUEST_TAG = 1 };

static void request_make(struct rank *rank)
{
    char *request = memory_take(rank, REQUEST_SIZE), response[RESPONSE_SIZE + 100];
    struct op sent, received;
    NEED_STATUS(rank, BMI_initialize(NULL, NULL, 0, NULL), 0);
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    rank_read_idle(rank, RECEIVER, rank->peer_url, sizeof rank->peer_url);
    NEED_STATUS(rank, BMI_addr_lookup(&rank->peer, rank->peer_url, NULL), 0);
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_FORCEFUL_CANCEL_MODE, NULL), 0);
    pattern_fill(request, REQUEST_SIZE, 1);
    op_receive(rank, &received, response, sizeof response, REQUEST_TAG);
    op_send_unexpected(rank, &sent, request, REQUEST_SIZE, REQUEST_TAG);
    op_finish(rank, &sent, REQUEST_SIZE);
    op_finish(rank, &received, RESPONSE_SIZE);
    CHECK(rank, pattern_holds(response, RESPONSE_SIZE, 2));
    rank_crash(rank);
}

/* The client has gone when the server drops its reference, the last one, before the buffer. */
static void request_end(struct rank *rank, const struct BMI_unexpected_info *info)
{
    char byte;
    struct op lost;
    rank_wait_for_end(rank, SENDER);
    op_post(rank, &lost, POST_RECEIVE, info->addr, &byte, 1, REQUEST_TAG);
    op_wait(rank, &lost);
    CHECK(rank, error_is_loss(lost.error));
    CHECK(rank, strcmp(BMI_addr_rev_lookup_unexpected(info->addr), "UNKNOWN") != 0);
    CHECK_STATUS(rank, BMI_set_info(info->addr, BMI_DEC_ADDR_REF, NULL), 0);
    CHECK(rank, strcmp(BMI_addr_rev_lookup_unexpected(info->addr), "UNKNOWN") == 0);
    CHECK(rank, pattern_holds(info->buffer, REQUEST_SIZE, 1));
    CHECK_STATUS(rank, BMI_unexpected_free(info->addr, info->buffer), 0);
}

static void request_serve(struct rank *rank)
{
    struct BMI_unexpected_info info;
    struct op answer;
    int unset = 0;
    NEED_STATUS(rank,
                BMI_initialize(rank->method->name, rank->method->listen,
                               BMI_INIT_SERVER | BMI_AUTO_REF_COUNT, "ib_port=1"),
                0);
    /* The configuration of the file system, which the library must not read. */
    CHECK_STATUS(rank, BMI_set_info(0, BMI_TRUSTED_CONNECTION, (void *)(uintptr_t)1), 0);
    BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &unset);
    BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &unset);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen), 0);
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
    unexpected_take(rank, &info);
    CHECK_EQUAL(rank, info.size, REQUEST_SIZE);
    char *response = BMI_memalloc(info.addr, RESPONSE_SIZE, BMI_SEND);
    NEED(rank, response != NULL);
    pattern_fill(response, RESPONSE_SIZE, 2);
    op_post(rank, &answer, POST_SEND, info.addr, response, RESPONSE_SIZE, info.tag);
    op_finish(rank, &answer, RESPONSE_SIZE);
    request_end(rank, &info);
    CHECK_STATUS(rank, BMI_memfree(info.addr, response, RESPONSE_SIZE, BMI_SEND), 0);
    rank_stop(rank);
}

static void classic_request(struct rank *rank)
{
    if (rank->role == SENDER)
        request_make(rank);
    else
        request_serve(rank);
}

#define SECTION .section = "Functions"
const struct conformance_case classic_cases[] = {
    {SECTION, .name = "BMI_CLASSIC_API's initialize and lookup", .run = classic, .where = RAW},
    {SECTION, .name = "BMI_CLASSIC_API's options are settings", .run = classic_settings,
     .where = RAW},
    {SECTION, .name = "BMI_CLASSIC_API's options end with the library", .run = classic_settings_end,
     .where = RAW},
    {SECTION, .name = "BMI_CLASSIC_API's later calls count", .run = classic_counted, .where = RAW},
    {SECTION, .name = "classic: options of other modules are ignored",
     .run = classic_options_of_modules, .where = RAW},
    {SECTION, .name = "classic: BMI_memalloc gives zeroed memory", .run = classic_memory_zeroed,
     .where = SOLO},
    {SECTION, .name = "classic: BMI_memalloc gives memory of 0 bytes", .run = classic_memory_empty,
     .where = SOLO},
    {SECTION, .name = "classic: BMI_memalloc for any use", .run = classic_memory_any_use,
     .where = SOLO},
    {SECTION, .name = "classic: BMI_GET_UNEXP_SIZE is 16384, or the value set",
     .run = classic_unexpected_size, .where = SOLO},
    {SECTION, .name = "classic: a method by its scheme", .run = classic_method_names, .where = RAW},
    {SECTION, .name = "classic: the host listened on is not looked up", .run = classic_listen,
     .where = RAW},
    {SECTION, .name = "classic: the host bound to is looked up", .run = classic_listen_specific,
     .where = RAW | PORTS},
    {SECTION, .name = "classic: listen addresses of other networks", .run = classic_listen_more,
     .where = RAW},
    {SECTION, .name = "classic: a look-up that fails sets 0", .run = classic_lookup_fails,
     .where = SOLO | OF_PROCESS},
    {SECTION, .name = "classic: a host that is not known", .run = classic_host_unknown,
     .where = SOLO | OF_PROCESS},
    {SECTION, .name = "classic: ranges without a netmask", .run = classic_ranges,
     .where = SOLO | PORTS | OF_PROCESS},
    {SECTION, .name = "classic: a program that keeps unexpected buffers is warned",
     .run = classic_kept, .where = CAST | OF_PROCESS, .roles = 2},
    {SECTION, .name = "classic: a request and its references", .run = classic_request,
     .where = CAST | OF_PROCESS, .roles = 2},
    {0},
};
