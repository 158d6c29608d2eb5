/* SPDX-License-Identifier: BSD-3-Clause
 *
 * init_cases.c - "Init and addresses": starting, counting, ending, and listening.
 */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void start_and_look_up(struct rank *rank)
{
    rank_start_server(rank, NULL, 0);
    rank->peer = rank_look_up(rank, rank->listen);
}

static bool is_initialized(void)
{
    int yes = 0, status = BMI_get_info(0, BMI_CHECK_INIT, NULL);
    return BMI_get_info(0, BMI_CHECK_INIT, &yes) == 0 && yes != 0 && status == 0;
}

/* The classic query passes no parameter for an answer. */
static void check_without_parameter(struct rank *rank)
{
    CHECK_STATUS(rank, BMI_get_info(0, BMI_CHECK_INIT, NULL), -BMI_ENETDOWN);
    start_and_look_up(rank);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_CHECK_INIT, NULL), 0);
    rank_stop(rank);
    CHECK_STATUS(rank, BMI_get_info(0, BMI_CHECK_INIT, NULL), -BMI_ENETDOWN);
}

static bool is_listed(char *names, const char *name)
{
    bool found = false;
    for (char *rest, *word = strtok_r(names, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest))
        found = found || strcmp(word, name) == 0;
    return found;
}

/* Programs query the protocols before they initialize, and free the answer. */
static void methods_string(struct rank *rank)
{
    for (int running = 0; running < 2; running++) {
        struct bmi_method_info info;
        char *names = NULL;
        int count = 0;
        while (bmi_method_next(count, &info) == 0)
            count++;
        NEED_STATUS(rank, BMI_get_info(0, BMI_TRANSPORT_METHODS_STRING, &names), count);
        NEED(rank, names != NULL);
        CHECK(rank, is_listed(names, rank->method->name + strlen("bmi_")));
        free(names);
        if (!running)
            start_and_look_up(rank);
    }
    rank_stop(rank);
}

static void counted(struct rank *rank)
{
    CHECK(rank, !is_initialized());
    start_and_look_up(rank);
    CHECK(rank, is_initialized());
    CHECK_STATUS(rank, BMI_initialize(NULL, NULL, 0), 0);
    CHECK_STATUS(rank, BMI_initialize(rank->method->name, rank->method->listen, BMI_INIT_SERVER),
                 0);
    CHECK_STATUS(rank, BMI_finalize(), 0);
    message_pass_self(rank);
    CHECK_STATUS(rank, BMI_finalize(), 0);
    message_pass_self(rank);
    rank_stop(rank);
    CHECK(rank, !is_initialized());
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
}

static void again(struct rank *rank)
{
    BMI_addr_t before = 0;
    for (int round = 0; round < 5; round++) {
        struct op op;
        start_and_look_up(rank);
        if (before && before != rank->peer) {
            op_post(rank, &op, POST_SEND, before, "x", 1, 1);
            CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
        }
        message_pass_self(rank);
        before = rank->peer;
        rank_stop(rank);
    }
}

static int unexpected_size(struct rank *rank)
{
    int size = 0;
    CHECK_STATUS(rank, BMI_get_info(0, BMI_GET_UNEXP_SIZE, &size), 0);
    return size;
}

static void client(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    struct bmi_method_info method;
    int size = 0, raised = 1 << 20;
    refused_address(rank, url, sizeof url);
    for (int i = 0; bmi_method_next(i, &method) == 0; i++)
        if (strcmp(method.name, rank->method->name) == 0)
            size = (int)method.unexpected_max;
    rank_start_client(rank);
    CHECK_EQUAL(rank, unexpected_size(rank), 16384);
    rank_look_up(rank, url);
    CHECK_EQUAL(rank, unexpected_size(rank), 16384);
    /* At most the limit of the method is reported. */
    NEED_STATUS(rank, BMI_set_info(0, BMI_GET_UNEXP_SIZE, &raised), 0);
    CHECK_EQUAL(rank, unexpected_size(rank), size);
    rank_stop(rank);
}

/* With any number of descriptors left, a method that cannot start for lack of them returns that
 * error, and starts when there are some. */
static void look_up_without_descriptors(struct rank *rank)
{
    enum { MOST = 256, LEFT = 40 };
    int taken[MOST];
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t addr;
    struct rlimit usual, few;
    refused_address(rank, url, sizeof url);
    NEED(rank, getrlimit(RLIMIT_NOFILE, &usual) == 0);
    few = usual;
    few.rlim_cur = MOST;
    for (int left = 0, status = -1; left < LEFT && status != 0; left++) {
        int count = 0;
        rank_start_client(rank);
        NEED(rank, setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (count < MOST && (taken[count] = dup(STDIN_FILENO)) >= 0)
            count++;
        for (int i = 0; i < left && count > 0; i++)
            close(taken[--count]);
        status = BMI_addr_lookup(&addr, url);
        if (status != 0)
            CHECK_STATUS(rank, status, -BMI_EMFILE);
        while (count > 0)
            close(taken[--count]);
        NEED(rank, setrlimit(RLIMIT_NOFILE, &usual) == 0);
        CHECK_STATUS(rank, BMI_addr_lookup(&addr, url), 0);
        rank_stop(rank);
    }
}

/* Options for all connections may be set before the method runs. */
static void set_before_first_look_up(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    refused_address(rank, url, sizeof url);
    rank_start_client(rank);
    for (int round = 0; round < 2; round++) {
        for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE;
             option++) {
            int size = 50000 + option, negative = -1, got = 0;
            if (round == 0) {
                CHECK_STATUS(rank, BMI_set_info(0, option, &size), 0);
                CHECK_STATUS(rank, BMI_set_info(0, option, &negative), -BMI_EINVAL);
            }
            CHECK_STATUS(rank, BMI_get_info(0, option, &got), 0);
            CHECK_EQUAL(rank, got, size);
        }
        rank_look_up(rank, url);
    }
    rank_stop(rank);
}

/* Ends a use that should not have begun, so that the next argument is tried, too. */
static void expect_refused(struct rank *rank, const char *methods, const char *listen, int flags,
                           int error)
{
    int status = BMI_initialize(methods, listen, flags);
    if (status != -error)
        rank_fail(rank, false, __FILE__, __LINE__, "methods %s, listen %.40s, flags %x: %s",
                  methods ? methods : "NULL", listen ? listen : "NULL", (unsigned)flags,
                  bmi_status_string(status));
    CHECK(rank, is_initialized() == (status == 0));
    CHECK_STATUS(rank, BMI_finalize(), status == 0 ? 0 : -BMI_EINVAL);
}

static void refused(struct rank *rank)
{
    const char *name = rank->method->name, *listen = rank->method->listen;
    char text[3000];
    expect_refused(rank, NULL, listen, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(rank, NULL, listen, 0, BMI_EINVAL);
    expect_refused(rank, name, NULL, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(rank, NULL, NULL, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(rank, name, listen, BMI_INIT_SERVER | 1 << 20, BMI_EINVAL);
    expect_refused(rank, "bmi_nosuch", listen, BMI_INIT_SERVER, BMI_ENOPROTOOPT);
    expect_refused(rank, name, "nosuch://a:1", BMI_INIT_SERVER, BMI_ENOPROTOOPT);
    expect_refused(rank, name, "", BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(rank, name, "no address", BMI_INIT_SERVER, BMI_EINVAL);
    snprintf(text, sizeof text, "%s://%%$", rank->method->scheme);
    expect_refused(rank, name, text, BMI_INIT_SERVER, BMI_EINVAL);
    snprintf(text, sizeof text, "%s/%02500d", listen, 0);
    expect_refused(rank, name, text, BMI_INIT_SERVER, BMI_ENAMETOOLONG);
    start_and_look_up(rank);
    message_pass_self(rank);
    rank_stop(rank);
}

/* Functions that take no pointer to a result of an earlier one: all refuse before BMI_initialize.
 */
static void not_initialized(struct rank *rank)
{
    struct op op;
    int count = 7;
    bmi_error_code_t error;
    bmi_context_id context = 7;
    BMI_addr_t addr = 7;
    struct BMI_unexpected_info info;
    char bytes[10] = "";
    rank->context = 1;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        op_post(rank, &op, (enum post_kind)kind, 1, bytes, sizeof bytes, 1);
        CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
    }
    CHECK_STATUS(rank, BMI_open_context(&context), -BMI_EINVAL);
    CHECK_EQUAL(rank, context, 7);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, rank->method->listen), -BMI_EINVAL);
    CHECK_EQUAL(rank, addr, 7);
    CHECK_STATUS(rank, BMI_test(1, &count, &error, NULL, NULL, 0, 1), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testunexpected(1, &count, &info, 0), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_cancel(1, 1), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(1, BMI_INC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_query_addr_range(1, "tcp://127.*", 0), -BMI_EINVAL);
    CHECK(rank, BMI_memalloc(1, 10, BMI_SEND) == NULL);
    CHECK(rank, BMI_addr_rev_lookup(1) == NULL);
    CHECK(rank, BMI_addr_rev_lookup_unexpected(1) == NULL);
}

static void strings_copied(struct rank *rank)
{
    char name[100], listen[200], url[BMI_MAX_ADDR_LEN];
    snprintf(name, sizeof name, "%s", rank->method->name);
    snprintf(listen, sizeof listen, "%s", rank->method->listen);
    NEED_STATUS(rank, BMI_initialize(name, listen, BMI_INIT_SERVER), 0);
    memset(name, '#', sizeof name);
    memset(listen, '#', sizeof listen);
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen), 0);
    snprintf(url, sizeof url, "%s", rank->listen);
    rank->peer = rank_look_up(rank, url);
    memset(url, '#', sizeof url);
    CHECK(rank, strcmp(BMI_addr_rev_lookup(rank->peer), rank->listen) == 0);
    message_pass_self(rank);
    rank_stop(rank);
}

/* Two methods at once, their listen addresses in the other order. */
static void several_methods(struct rank *rank)
{
    bool ours_is_loop = strcmp(rank->method->name, "bmi_loop") == 0;
    const char *other = ours_is_loop ? "bmi_tcp" : "bmi_loop";
    const char *other_listen = ours_is_loop ? "tcp://127.0.0.1:0" : "loop://conformance-other";
    struct bmi_method_info info = {.name = ""};
    char methods[200], listens[300], both[2 * BMI_MAX_ADDR_LEN], *comma;
    for (int i = 0; strcmp(info.name, other) != 0; i++) {
        if (bmi_method_next(i, &info) != 0)
            rank_skip(rank, "%s is not built in", other);
    }
    snprintf(methods, sizeof methods, "%s,%s", rank->method->name, other);
    snprintf(listens, sizeof listens, "%s,%s", other_listen, rank->method->listen);
    NEED_STATUS(rank, BMI_initialize(methods, listens, BMI_INIT_SERVER), 0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, both), 0);
    comma = strchr(both, ',');
    NEED(rank, comma != NULL);
    *comma = '\0';
    NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
    rank->peer = rank_look_up(rank, both);
    message_pass_self(rank);
    rank->peer = rank_look_up(rank, comma + 1);
    message_pass_self(rank);
    rank_stop(rank);
}

static void listen_scheme_without_method(struct rank *rank)
{
    const char *strange = strcmp(rank->method->scheme, "tcp") ? "tcp://127.0.0.1:0" : "loop://x";
    CHECK_STATUS(rank, BMI_initialize(rank->method->name, strange, BMI_INIT_SERVER),
                 -BMI_ENOPROTOOPT);
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
}

static void free_port(struct rank *rank)
{
    char url[100];
    const char *const listens[] = {"%s://127.0.0.1:0", "%s://127.0.0.1", "%s://localhost",
                                   "%s://127.0.0.1:0/path"};
    for (size_t i = 0; i < sizeof listens / sizeof *listens; i++) {
        int port = -1;
        snprintf(url, sizeof url, listens[i], rank->method->scheme);
        rank_start_server(rank, url, 0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_TCP_GET_PORT, &port), 0);
        CHECK(rank, port > 0 && port < 65536);
        CHECK_EQUAL(rank, url_port(rank->listen), port);
        CHECK(rank, strncmp(rank->listen, rank->method->scheme, strlen(rank->method->scheme)) == 0);
        rank->peer = rank_look_up(rank, rank->listen);
        message_pass_self(rank);
        rank_stop(rank);
    }
}

/* BMI_TCP_GET_PORT is tcp's, also while other methods run and listen. */
static void port_of_tcp(struct rank *rank)
{
    char methods[100], other[200], listen[BMI_MAX_ADDR_LEN];
    const char *ours = strcmp(rank->method->scheme, "tcp") == 0 ? "bmi_loop" : rank->method->name;
    snprintf(methods, sizeof methods, "%s,bmi_tcp", ours);
    snprintf(other, sizeof other, "%s://127.0.0.1:0", rank->method->scheme);
    for (int both = 0; both < 2; both++) {
        int port = -1;
        snprintf(listen, sizeof listen, "%s%stcp://127.0.0.1:0", both ? other : "",
                 both ? "," : "");
        NEED_STATUS(rank, BMI_initialize(methods, listen, BMI_INIT_SERVER), 0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_LISTEN_ADDR, listen), 0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_TCP_GET_PORT, &port), 0);
        const char *tcp = strncmp(listen, "tcp:", 4) == 0 ? listen : strstr(listen, ",tcp:");
        NEED(rank, tcp != NULL);
        CHECK_EQUAL(rank, port, atoi(strchr(tcp, '1') + strlen("127.0.0.1:")));
        CHECK_STATUS(rank, BMI_finalize(), 0);
    }
}

/* As BMI_TRANSPORT_METHODS_STRING returns them, and as users write lists. */
static void short_names(struct rank *rank)
{
    char methods[100];
    const char *name = rank->method->name + strlen("bmi_");
    const char *const lists[] = {"%s", " %s", "%s ,", "bmi_tcp, %s", "tcp,%s ", "%s , bmi_loop"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(methods, sizeof methods, lists[i], name);
        NEED_STATUS(rank, BMI_initialize(methods, rank->method->listen, BMI_INIT_SERVER), 0);
        NEED_STATUS(rank, BMI_finalize(), 0);
    }
}

/* The port given is the one taken, also again right after the end. */
static void fixed_port(struct rank *rank)
{
    char first[BMI_MAX_ADDR_LEN];
    rank_start_server(rank, NULL, 0);
    strcpy(first, rank->listen);
    rank_stop(rank);
    for (int i = 0; i < 3; i++) {
        rank_start_server(rank, first, 0);
        CHECK(rank, strcmp(rank->listen, first) == 0);
        rank->peer = rank_look_up(rank, rank->listen);
        message_pass_self(rank);
        rank_stop(rank);
    }
}

static void port_in_use(struct rank *rank)
{
    char url[100];
    int descriptor, port = plain_listener(rank, &descriptor);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    CHECK_STATUS(rank, BMI_initialize(rank->method->name, url, BMI_INIT_SERVER), -BMI_EADDRINUSE);
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
    close(descriptor);
    rank_start_server(rank, url, 0);
    rank_stop(rank);
}

static void address_of_no_interface(struct rank *rank)
{
    char url[100];
    snprintf(url, sizeof url, "%s://192.0.2.1:0", rank->method->scheme);
    CHECK_STATUS(rank,
                 BMI_initialize(rank->method->name, url, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC),
                 -BMI_EADDRNOTAVAIL);
    CHECK_STATUS(rank, BMI_finalize(), -BMI_EINVAL);
}

static int reach(const char *host, int port)
{
    int descriptor = plain_connect(host, port);
    if (descriptor < 0)
        return descriptor;
    close(descriptor);
    return 0;
}

static void bind_specific(struct rank *rank)
{
    rank_start_server(rank, NULL, 0);
    CHECK_EQUAL(rank, reach("127.0.0.1", url_port(rank->listen)), 0);
    CHECK_EQUAL(rank, reach("127.0.0.2", url_port(rank->listen)), 0);
    rank_stop(rank);
    rank_start_server(rank, NULL, BMI_TCP_BIND_SPECIFIC);
    CHECK_EQUAL(rank, reach("127.0.0.1", url_port(rank->listen)), 0);
    CHECK_EQUAL(rank, reach("127.0.0.2", url_port(rank->listen)), -ECONNREFUSED);
    rank_stop(rank);
}

/* Operations, contexts, messages: finalize frees all but a fetched message, which is the program's
 * to free. */
static void end_with_everything_open(struct rank *rank)
{
    static char small[100], large[4 * MIB];
    struct op receives[10], sends[10], unexpected[2];
    struct BMI_unexpected_info info;
    bmi_context_id contexts[3];
    start_and_look_up(rank);
    for (int i = 0; i < 3; i++)
        NEED_STATUS(rank, BMI_open_context(&contexts[i]), 0);
    for (int i = 0; i < 10; i++) {
        op_receive(rank, &receives[i], small, sizeof small, 100 + i);
        op_send(rank, &sends[i], i % 2 ? small : large, i % 2 ? sizeof small : sizeof large, i);
    }
    for (int i = 0; i < 2; i++)
        op_send_unexpected(rank, &unexpected[i], small, sizeof small, 1);
    unexpected_take(rank, &info);
    CHECK_STATUS(rank, BMI_finalize(), 0);
    CHECK(rank, !is_initialized());
    CHECK_EQUAL(rank, info.size, (bmi_size_t)sizeof small);
    CHECK(rank, memcmp(info.buffer, small, sizeof small) == 0);
    CHECK_STATUS(rank, BMI_unexpected_free(info.addr, info.buffer), 0);
}

/* Buffers go back in any order, also when the address has been dropped. */
static void unexpected_free_order(struct rank *rank)
{
    struct BMI_unexpected_info infos[8];
    struct op sends[8];
    char bytes[8][1000];
    start_and_look_up(rank);
    for (int i = 0; i < 8; i++) {
        pattern_fill(bytes[i], sizeof bytes[i], (uint64_t)i);
        op_send_unexpected(rank, &sends[i], bytes[i], sizeof bytes[i], i);
        op_finish(rank, &sends[i], sizeof bytes[i]);
    }
    for (int i = 0; i < 8; i++) {
        unexpected_take(rank, &infos[i]);
        CHECK_EQUAL(rank, infos[i].tag, i);
    }
    for (int i = 7; i >= 0; i -= 2) {
        CHECK(rank, pattern_holds(infos[i].buffer, infos[i].size, (uint64_t)i));
        unexpected_give_back(rank, &infos[i]);
    }
    BMI_set_info(infos[0].addr, BMI_DROP_ADDR, NULL);
    for (int i = 0; i < 8; i += 2) {
        CHECK(rank, pattern_holds(infos[i].buffer, infos[i].size, (uint64_t)i));
        unexpected_give_back(rank, &infos[i]);
    }
    CHECK_STATUS(rank, BMI_unexpected_free(infos[0].addr, NULL), -BMI_EINVAL);
    rank_stop(rank);
}

/* With BMI_LOG=error the log names the fault, once. */
static void log_names_it(struct rank *rank)
{
    struct capture capture;
    char url[100], text[2000];
    int descriptor, port = plain_listener(rank, &descriptor);
    BMI_addr_t addr;
    setenv("BMI_LOG", "error", 1);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    capture_begin(rank, &capture);
    CHECK_STATUS(rank, BMI_initialize(rank->method->name, url, BMI_INIT_SERVER), -BMI_EADDRINUSE);
    capture_end(rank, &capture, text, sizeof text);
    if (!strstr(text, url + strlen(rank->method->scheme) + 3))
        rank_fail(rank, false, __FILE__, __LINE__, "%s is in use; the log: %s", url, text);
    NEED_STATUS(rank, BMI_initialize(NULL, NULL, 0), 0);
    snprintf(url, sizeof url, "%s://127.0.0.1:port", rank->method->scheme);
    capture_begin(rank, &capture);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, url), -BMI_EINVAL);
    capture_end(rank, &capture, text, sizeof text);
    if (!strstr(text, url) || !strstr(text, "port is"))
        rank_fail(rank, false, __FILE__, __LINE__, "%s has a bad port; the log: %s", url, text);
    close(descriptor);
    rank_stop(rank);
}

/* The server would report a host to peers that is not this machine's. */
static void log_names_foreign_host(struct rank *rank)
{
    char url[100], text[1000];
    struct capture capture;
    for (int foreign = 0; foreign < 2; foreign++) {
        snprintf(url, sizeof url, "%s://%s:0", rank->method->scheme,
                 foreign ? "203.0.113.77" : "127.0.0.1");
        NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "log=warn"), 0);
        capture_begin(rank, &capture);
        NEED_STATUS(rank, BMI_initialize(rank->method->name, url, BMI_INIT_SERVER), 0);
        capture_end(rank, &capture, text, sizeof text);
        CHECK(rank, (strstr(text, "203.0.113.77") != NULL) == foreign);
        CHECK_STATUS(rank, BMI_finalize(), 0);
    }
}

#define SECTION .section = "Init and addresses"
const struct conformance_case init_cases[] = {
    {SECTION, .name = "init and finalize are counted", .run = counted, .where = RAW},
    {SECTION, .name = "init after finalize works again", .run = again, .where = RAW},
    {SECTION, .name = "BMI_CHECK_INIT without a parameter", .run = check_without_parameter,
     .where = RAW},
    {SECTION, .name = "BMI_TRANSPORT_METHODS_STRING", .run = methods_string, .where = RAW},
    {SECTION, .name = "a client's methods start on first lookup", .run = client, .where = RAW},
    {SECTION, .name = "a client's first look-up without descriptors",
     .run = look_up_without_descriptors, .where = RAW},
    {SECTION, .name = "init refuses and leaves nothing", .run = refused, .where = RAW},
    {SECTION, .name = "nothing works before init", .run = not_initialized, .where = RAW},
    {SECTION, .name = "strings are copied", .run = strings_copied, .where = RAW},
    {SECTION, .name = "methods and listen addresses match by scheme", .run = several_methods,
     .where = RAW},
    {SECTION, .name = "a listen scheme without its method", .run = listen_scheme_without_method,
     .where = RAW},
    {SECTION, .name = "methods by their short names", .run = short_names, .where = RAW},
    {SECTION, .name = "port 0 or none takes a free port", .run = free_port, .where = RAW | PORTS},
    {SECTION, .name = "the reported port is tcp's", .run = port_of_tcp, .where = RAW | PORTS},
    {SECTION, .name = "buffer sizes before the first look-up", .run = set_before_first_look_up,
     .where = RAW | SOCKETS},
    {SECTION, .name = "a port given is taken, also again", .run = fixed_port, .where = RAW | PORTS},
    {SECTION, .name = "a port in use", .run = port_in_use, .where = RAW | PORTS},
    {SECTION, .name = "a listen address of no interface", .run = address_of_no_interface,
     .where = RAW | PORTS},
    {SECTION, .name = "BMI_TCP_BIND_SPECIFIC", .run = bind_specific, .where = RAW | PORTS},
    {SECTION, .name = "the log names a host that is another's", .run = log_names_foreign_host,
     .where = RAW | SOCKETS},
    {SECTION, .name = "the log names the fault", .run = log_names_it, .where = RAW | PORTS},
    {SECTION, .name = "finalize with everything open", .run = end_with_everything_open,
     .where = RAW},
    {SECTION, .name = "unexpected buffers go back in any order", .run = unexpected_free_order,
     .where = RAW},
    {0},
};
