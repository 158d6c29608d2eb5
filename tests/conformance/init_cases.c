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

static void start_and_look_up(struct party *party)
{
    party_start_server(party, NULL, 0);
    party->peer = party_look_up(party, party->listen);
}

static bool is_initialized(void)
{
    int yes = 0, status = BMI_get_info(0, BMI_CHECK_INIT, NULL);
    return BMI_get_info(0, BMI_CHECK_INIT, &yes) == 0 && yes != 0 && status == 0;
}

/* The classic query passes no parameter for an answer. */
static void check_without_parameter(struct party *party)
{
    CHECK_STATUS(party, BMI_get_info(0, BMI_CHECK_INIT, NULL), -BMI_ENETDOWN);
    start_and_look_up(party);
    CHECK_STATUS(party, BMI_get_info(0, BMI_CHECK_INIT, NULL), 0);
    party_stop(party);
    CHECK_STATUS(party, BMI_get_info(0, BMI_CHECK_INIT, NULL), -BMI_ENETDOWN);
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
static void methods_string(struct party *party)
{
    for (int running = 0; running < 2; running++) {
        struct bmi_method_info info;
        char *names = NULL;
        int count = 0;
        while (bmi_method_next(count, &info) == 0)
            count++;
        NEED_STATUS(party, BMI_get_info(0, BMI_TRANSPORT_METHODS_STRING, &names), count);
        NEED(party, names != NULL);
        CHECK(party, is_listed(names, party->method->name + strlen("bmi_")));
        free(names);
        if (!running)
            start_and_look_up(party);
    }
    party_stop(party);
}

static void counted(struct party *party)
{
    CHECK(party, !is_initialized());
    start_and_look_up(party);
    CHECK(party, is_initialized());
    CHECK_STATUS(party, BMI_initialize(NULL, NULL, 0), 0);
    CHECK_STATUS(party, BMI_initialize(party->method->name, party->method->listen, BMI_INIT_SERVER),
                 0);
    CHECK_STATUS(party, BMI_finalize(), 0);
    message_pass_self(party);
    CHECK_STATUS(party, BMI_finalize(), 0);
    message_pass_self(party);
    party_stop(party);
    CHECK(party, !is_initialized());
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
}

static void again(struct party *party)
{
    BMI_addr_t before = 0;
    for (int round = 0; round < 5; round++) {
        struct op op;
        start_and_look_up(party);
        if (before && before != party->peer) {
            op_post(party, &op, POST_SEND, before, "x", 1, 1);
            CHECK_STATUS(party, op.posted, -BMI_EINVAL);
        }
        message_pass_self(party);
        before = party->peer;
        party_stop(party);
    }
}

static int unexpected_size(struct party *party)
{
    int size = 0;
    CHECK_STATUS(party, BMI_get_info(0, BMI_GET_UNEXP_SIZE, &size), 0);
    return size;
}

static void client(struct party *party)
{
    char url[BMI_MAX_ADDR_LEN];
    int holder;
    struct bmi_method_info method;
    int size = 0, raised = 1 << 20;
    refused_address(party, url, sizeof url, &holder);
    for (int i = 0; bmi_method_next(i, &method) == 0; i++)
        if (strcmp(method.name, party->method->name) == 0)
            size = (int)method.unexpected_max;
    party_start_client(party);
    CHECK_EQUAL(party, unexpected_size(party), 16384);
    party_look_up(party, url);
    CHECK_EQUAL(party, unexpected_size(party), 16384);
    /* At most the limit of the method is reported. */
    NEED_STATUS(party, BMI_set_info(0, BMI_GET_UNEXP_SIZE, &raised), 0);
    CHECK_EQUAL(party, unexpected_size(party), size);
    party_stop(party);
}

/* With any number of descriptors left, a method that cannot start for lack of them returns that
 * error, and starts when there are some. */
static void look_up_without_descriptors(struct party *party)
{
    enum { MOST = 256, LEFT = 40 };
    int taken[MOST], holder;
    char url[BMI_MAX_ADDR_LEN];
    BMI_addr_t addr;
    struct rlimit usual, few;
    refused_address(party, url, sizeof url, &holder);
    NEED(party, getrlimit(RLIMIT_NOFILE, &usual) == 0);
    few = usual;
    few.rlim_cur = MOST;
    for (int left = 0, status = -1; left < LEFT && status != 0; left++) {
        int count = 0;
        party_start_client(party);
        NEED(party, setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (count < MOST && (taken[count] = dup(STDIN_FILENO)) >= 0)
            count++;
        for (int i = 0; i < left && count > 0; i++)
            close(taken[--count]);
        status = BMI_addr_lookup(&addr, url);
        if (status != 0)
            CHECK_STATUS(party, status, -BMI_EMFILE);
        while (count > 0)
            close(taken[--count]);
        NEED(party, setrlimit(RLIMIT_NOFILE, &usual) == 0);
        CHECK_STATUS(party, BMI_addr_lookup(&addr, url), 0);
        party_stop(party);
    }
}

/* Options for all connections may be set before the method runs. */
static void set_before_first_look_up(struct party *party)
{
    char url[BMI_MAX_ADDR_LEN];
    int holder;
    refused_address(party, url, sizeof url, &holder);
    party_start_client(party);
    for (int round = 0; round < 2; round++) {
        for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE;
             option++) {
            int size = 50000 + option, negative = -1, got = 0;
            if (round == 0) {
                CHECK_STATUS(party, BMI_set_info(0, option, &size), 0);
                CHECK_STATUS(party, BMI_set_info(0, option, &negative), -BMI_EINVAL);
            }
            CHECK_STATUS(party, BMI_get_info(0, option, &got), 0);
            CHECK_EQUAL(party, got, size);
        }
        party_look_up(party, url);
    }
    party_stop(party);
}

/* Ends a use that should not have begun, so that the next argument is tried, too. */
static void expect_refused(struct party *party, const char *methods, const char *listen, int flags,
                           int error)
{
    int status = BMI_initialize(methods, listen, flags);
    if (status != -error)
        party_fail(party, false, __FILE__, __LINE__, "methods %s, listen %.40s, flags %x: %s",
                   methods ? methods : "NULL", listen ? listen : "NULL", (unsigned)flags,
                   bmi_status_string(status));
    CHECK(party, is_initialized() == (status == 0));
    CHECK_STATUS(party, BMI_finalize(), status == 0 ? 0 : -BMI_EINVAL);
}

static void refused(struct party *party)
{
    const char *name = party->method->name, *listen = party->method->listen;
    char text[3000];
    expect_refused(party, NULL, listen, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(party, NULL, listen, 0, BMI_EINVAL);
    expect_refused(party, name, NULL, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(party, NULL, NULL, BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(party, name, listen, BMI_INIT_SERVER | 1 << 20, BMI_EINVAL);
    expect_refused(party, "bmi_nosuch", listen, BMI_INIT_SERVER, BMI_ENOPROTOOPT);
    expect_refused(party, name, "nosuch://a:1", BMI_INIT_SERVER, BMI_ENOPROTOOPT);
    expect_refused(party, name, "", BMI_INIT_SERVER, BMI_EINVAL);
    expect_refused(party, name, "no address", BMI_INIT_SERVER, BMI_EINVAL);
    snprintf(text, sizeof text, "%s://%%$", party->method->scheme);
    expect_refused(party, name, text, BMI_INIT_SERVER, BMI_EINVAL);
    snprintf(text, sizeof text, "%s/%02500d", listen, 0);
    expect_refused(party, name, text, BMI_INIT_SERVER, BMI_ENAMETOOLONG);
    start_and_look_up(party);
    message_pass_self(party);
    party_stop(party);
}

/* Functions that take no pointer to a result of an earlier one: all refuse before BMI_initialize.
 */
static void not_initialized(struct party *party)
{
    struct op op;
    int count = 7;
    bmi_error_code_t error;
    bmi_context_id context = 7;
    BMI_addr_t addr = 7;
    struct BMI_unexpected_info info;
    char bytes[10] = "";
    party->context = 1;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        op_post(party, &op, (enum post_kind)kind, 1, bytes, sizeof bytes, 1);
        CHECK_STATUS(party, op.posted, -BMI_EINVAL);
    }
    CHECK_STATUS(party, BMI_open_context(&context), -BMI_EINVAL);
    CHECK_EQUAL(party, context, 7);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, party->method->listen), -BMI_EINVAL);
    CHECK_EQUAL(party, addr, 7);
    CHECK_STATUS(party, BMI_test(1, &count, &error, NULL, NULL, 0, 1), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_testunexpected(1, &count, &info, 0), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_cancel(1, 1), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_set_info(1, BMI_INC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_query_addr_range(1, "tcp://127.*", 0), -BMI_EINVAL);
    CHECK(party, BMI_memalloc(1, 10, BMI_SEND) == NULL);
    CHECK(party, BMI_addr_rev_lookup(1) == NULL);
    CHECK(party, BMI_addr_rev_lookup_unexpected(1) == NULL);
}

static void strings_copied(struct party *party)
{
    char name[100], listen[200], url[BMI_MAX_ADDR_LEN];
    snprintf(name, sizeof name, "%s", party->method->name);
    snprintf(listen, sizeof listen, "%s", party->method->listen);
    NEED_STATUS(party, BMI_initialize(name, listen, BMI_INIT_SERVER), 0);
    memset(name, '#', sizeof name);
    memset(listen, '#', sizeof listen);
    NEED_STATUS(party, BMI_open_context(&party->context), 0);
    NEED_STATUS(party, BMI_get_info(0, BMI_GET_LISTEN_ADDR, party->listen), 0);
    snprintf(url, sizeof url, "%s", party->listen);
    party->peer = party_look_up(party, url);
    memset(url, '#', sizeof url);
    CHECK(party, strcmp(BMI_addr_rev_lookup(party->peer), party->listen) == 0);
    message_pass_self(party);
    party_stop(party);
}

/* Two methods at once, their listen addresses in the other order. */
static void several_methods(struct party *party)
{
    bool ours_is_loop = strcmp(party->method->name, "bmi_loop") == 0;
    const char *other = ours_is_loop ? "bmi_tcp" : "bmi_loop";
    const char *other_listen = ours_is_loop ? "tcp://127.0.0.1:0" : "loop://conformance-other";
    struct bmi_method_info info = {.name = ""};
    char methods[200], listens[300], both[2 * BMI_MAX_ADDR_LEN], *comma;
    for (int i = 0; strcmp(info.name, other) != 0; i++) {
        if (bmi_method_next(i, &info) != 0)
            party_skip(party, "%s is not built in", other);
    }
    snprintf(methods, sizeof methods, "%s,%s", party->method->name, other);
    snprintf(listens, sizeof listens, "%s,%s", other_listen, party->method->listen);
    NEED_STATUS(party, BMI_initialize(methods, listens, BMI_INIT_SERVER), 0);
    NEED_STATUS(party, BMI_get_info(0, BMI_GET_LISTEN_ADDR, both), 0);
    comma = strchr(both, ',');
    NEED(party, comma != NULL);
    *comma = '\0';
    NEED_STATUS(party, BMI_open_context(&party->context), 0);
    party->peer = party_look_up(party, both);
    message_pass_self(party);
    party->peer = party_look_up(party, comma + 1);
    message_pass_self(party);
    party_stop(party);
}

static void listen_scheme_without_method(struct party *party)
{
    const char *strange = strcmp(party->method->scheme, "tcp") ? "tcp://127.0.0.1:0" : "loop://x";
    CHECK_STATUS(party, BMI_initialize(party->method->name, strange, BMI_INIT_SERVER),
                 -BMI_ENOPROTOOPT);
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
}

static void free_port(struct party *party)
{
    char url[100];
    const char *const listens[] = {"%s://127.0.0.1:0", "%s://127.0.0.1", "%s://localhost",
                                   "%s://127.0.0.1:0/path"};
    for (size_t i = 0; i < sizeof listens / sizeof *listens; i++) {
        int port = -1;
        snprintf(url, sizeof url, listens[i], party->method->scheme);
        party_start_server(party, url, 0);
        NEED_STATUS(party, BMI_get_info(0, BMI_TCP_GET_PORT, &port), 0);
        CHECK(party, port > 0 && port < 65536);
        CHECK_EQUAL(party, url_port(party->listen), port);
        CHECK(party,
              strncmp(party->listen, party->method->scheme, strlen(party->method->scheme)) == 0);
        party->peer = party_look_up(party, party->listen);
        message_pass_self(party);
        party_stop(party);
    }
}

/* BMI_TCP_GET_PORT is tcp's, also while other methods run and listen. */
static void port_of_tcp(struct party *party)
{
    char methods[100], other[200], listen[BMI_MAX_ADDR_LEN];
    const char *ours = strcmp(party->method->scheme, "tcp") == 0 ? "bmi_loop" : party->method->name;
    snprintf(methods, sizeof methods, "%s,bmi_tcp", ours);
    snprintf(other, sizeof other, "%s://127.0.0.1:0", party->method->scheme);
    for (int both = 0; both < 2; both++) {
        int port = -1;
        snprintf(listen, sizeof listen, "%s%stcp://127.0.0.1:0", both ? other : "",
                 both ? "," : "");
        NEED_STATUS(party, BMI_initialize(methods, listen, BMI_INIT_SERVER), 0);
        NEED_STATUS(party, BMI_get_info(0, BMI_GET_LISTEN_ADDR, listen), 0);
        NEED_STATUS(party, BMI_get_info(0, BMI_TCP_GET_PORT, &port), 0);
        const char *tcp = strncmp(listen, "tcp:", 4) == 0 ? listen : strstr(listen, ",tcp:");
        NEED(party, tcp != NULL);
        CHECK_EQUAL(party, port, atoi(strchr(tcp, '1') + strlen("127.0.0.1:")));
        CHECK_STATUS(party, BMI_finalize(), 0);
    }
}

/* As BMI_TRANSPORT_METHODS_STRING returns them, and as users write lists. */
static void short_names(struct party *party)
{
    char methods[100];
    const char *name = party->method->name + strlen("bmi_");
    const char *const lists[] = {"%s", " %s", "%s ,", "bmi_tcp, %s", "tcp,%s ", "%s , bmi_loop"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        snprintf(methods, sizeof methods, lists[i], name);
        NEED_STATUS(party, BMI_initialize(methods, party->method->listen, BMI_INIT_SERVER), 0);
        NEED_STATUS(party, BMI_finalize(), 0);
    }
}

/* The port given is the one taken, also again right after the end. */
static void fixed_port(struct party *party)
{
    char first[BMI_MAX_ADDR_LEN];
    party_start_server(party, NULL, 0);
    strcpy(first, party->listen);
    party_stop(party);
    for (int i = 0; i < 3; i++) {
        party_start_server(party, first, 0);
        CHECK(party, strcmp(party->listen, first) == 0);
        party->peer = party_look_up(party, party->listen);
        message_pass_self(party);
        party_stop(party);
    }
}

static void port_in_use(struct party *party)
{
    char url[100];
    int descriptor, port = plain_listener(party, &descriptor);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    CHECK_STATUS(party, BMI_initialize(party->method->name, url, BMI_INIT_SERVER), -BMI_EADDRINUSE);
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
    close(descriptor);
    party_start_server(party, url, 0);
    party_stop(party);
}

static void address_of_no_interface(struct party *party)
{
    char url[100];
    snprintf(url, sizeof url, "%s://192.0.2.1:0", party->method->scheme);
    CHECK_STATUS(party,
                 BMI_initialize(party->method->name, url, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC),
                 -BMI_EADDRNOTAVAIL);
    CHECK_STATUS(party, BMI_finalize(), -BMI_EINVAL);
}

static int reach(const char *host, int port)
{
    int descriptor = plain_connect(host, port);
    if (descriptor < 0)
        return descriptor;
    close(descriptor);
    return 0;
}

static void bind_specific(struct party *party)
{
    party_start_server(party, NULL, 0);
    CHECK_EQUAL(party, reach("127.0.0.1", url_port(party->listen)), 0);
    CHECK_EQUAL(party, reach("127.0.0.2", url_port(party->listen)), 0);
    party_stop(party);
    party_start_server(party, NULL, BMI_TCP_BIND_SPECIFIC);
    CHECK_EQUAL(party, reach("127.0.0.1", url_port(party->listen)), 0);
    CHECK_EQUAL(party, reach("127.0.0.2", url_port(party->listen)), -ECONNREFUSED);
    party_stop(party);
}

/* Operations, contexts, fetched and unfetched messages: finalize frees all. */
static void end_with_everything_open(struct party *party)
{
    static char small[100], large[4 * MIB];
    struct op receives[10], sends[10], unexpected[2];
    struct BMI_unexpected_info info;
    bmi_context_id contexts[3];
    start_and_look_up(party);
    for (int i = 0; i < 3; i++)
        NEED_STATUS(party, BMI_open_context(&contexts[i]), 0);
    for (int i = 0; i < 10; i++) {
        op_receive(party, &receives[i], small, sizeof small, 100 + i);
        op_send(party, &sends[i], i % 2 ? small : large, i % 2 ? sizeof small : sizeof large, i);
    }
    for (int i = 0; i < 2; i++)
        op_send_unexpected(party, &unexpected[i], small, sizeof small, 1);
    unexpected_take(party, &info);
    CHECK_STATUS(party, BMI_finalize(), 0);
    CHECK(party, !is_initialized());
}

/* Buffers go back in any order, also when the address has been dropped. */
static void unexpected_free_order(struct party *party)
{
    struct BMI_unexpected_info infos[8];
    struct op sends[8];
    char bytes[8][1000];
    start_and_look_up(party);
    for (int i = 0; i < 8; i++) {
        pattern_fill(bytes[i], sizeof bytes[i], (uint64_t)i);
        op_send_unexpected(party, &sends[i], bytes[i], sizeof bytes[i], i);
        op_finish(party, &sends[i], sizeof bytes[i]);
    }
    for (int i = 0; i < 8; i++) {
        unexpected_take(party, &infos[i]);
        CHECK_EQUAL(party, infos[i].tag, i);
    }
    for (int i = 7; i >= 0; i -= 2) {
        CHECK(party, pattern_holds(infos[i].buffer, infos[i].size, (uint64_t)i));
        unexpected_give_back(party, &infos[i]);
    }
    BMI_set_info(infos[0].addr, BMI_DROP_ADDR, NULL);
    for (int i = 0; i < 8; i += 2) {
        CHECK(party, pattern_holds(infos[i].buffer, infos[i].size, (uint64_t)i));
        unexpected_give_back(party, &infos[i]);
    }
    CHECK_STATUS(party, BMI_unexpected_free(infos[0].addr, NULL), -BMI_EINVAL);
    party_stop(party);
}

/* With BMI_LOG=error the log names the fault, once. */
static void log_names_it(struct party *party)
{
    struct capture capture;
    char url[100], text[2000];
    int descriptor, port = plain_listener(party, &descriptor);
    BMI_addr_t addr;
    setenv("BMI_LOG", "error", 1);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    capture_begin(party, &capture);
    CHECK_STATUS(party, BMI_initialize(party->method->name, url, BMI_INIT_SERVER), -BMI_EADDRINUSE);
    capture_end(party, &capture, text, sizeof text);
    if (!strstr(text, url + strlen(party->method->scheme) + 3))
        party_fail(party, false, __FILE__, __LINE__, "%s is in use; the log: %s", url, text);
    NEED_STATUS(party, BMI_initialize(NULL, NULL, 0), 0);
    snprintf(url, sizeof url, "%s://127.0.0.1:port", party->method->scheme);
    capture_begin(party, &capture);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, url), -BMI_EINVAL);
    capture_end(party, &capture, text, sizeof text);
    if (!strstr(text, url) || !strstr(text, "port is"))
        party_fail(party, false, __FILE__, __LINE__, "%s has a bad port; the log: %s", url, text);
    close(descriptor);
    party_stop(party);
}

/* The server would report a host to peers that is not this machine's. */
static void log_names_foreign_host(struct party *party)
{
    char url[100], text[1000];
    struct capture capture;
    for (int foreign = 0; foreign < 2; foreign++) {
        snprintf(url, sizeof url, "%s://%s:0", party->method->scheme,
                 foreign ? "203.0.113.77" : "127.0.0.1");
        NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "log=warn"), 0);
        capture_begin(party, &capture);
        NEED_STATUS(party, BMI_initialize(party->method->name, url, BMI_INIT_SERVER), 0);
        capture_end(party, &capture, text, sizeof text);
        CHECK(party, (strstr(text, "203.0.113.77") != NULL) == foreign);
        CHECK_STATUS(party, BMI_finalize(), 0);
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
