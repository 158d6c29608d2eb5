/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_handshake_fault.c - a bad peer at the listen address of a method on libfabric, and at one
 * that the library dials: silence, invalid bytes, another version, another provider, an endpoint of
 * no process (one that has ended), our own page instead of its own, invalid bytes after the
 * handshake.
 *
 * Each loses its connection, and only its own: a healthy client continues meanwhile, and no memory
 * is left afterwards. The log names the fault. A refused peer learns the reason, but no data that
 * it could use: no token, no wake-up flag, no endpoint. The bad peer first gets a valid handshake
 * message, by listening where the library dials, and changes that.
 *
 * Over TCP it also names endpoints that cannot be reached, more of them than names are kept:
 * libfabric has no connection to any of them, and crashes when it should close one.
 *
 * usage: ofi_handshake_fault      (BMI_TEST_METHOD: ofi+tcp, ofi+shm)
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

/* Both hellos, one after the other, as methods/ib/handshake.c describes them: spelled out here, so
 * that a change of the protocol is noticed. */
enum {
    HELLO = 248,
    WHOLE = 2 * HELLO,
    VERSION_AT = 12,
    STATUS_AT = 16,
    FORMAT_AT = 20,
    MESSAGE_AT = 24,
    PROVIDER_AT = 56,
    PROVIDER_BYTES = 64,
    NAME_SIZE_AT = HELLO + 28,
    TOKEN_AT = HELLO + 32,
    FLAG_AT = HELLO + 40,
    FLAG_BYTES = 16,
    NAME_AT = HELLO + 120,
    STATUS_BYTES = 4,
    VERSION = 4,
    OLDER_HELLO = 96 /* of version 3 */
};

static char listening[BMI_MAX_ADDR_LEN];
static uint8_t librarys[WHOLE]; /* its own */
static uint8_t honest[WHOLE];   /* the same with the bad peer's page, if pages are shared */

/* ---- the bad peer: a child that never starts the library ------------------------------------- */

static void nothing(uint8_t *hello)
{
    (void)hello;
}

static void garbage(uint8_t *hello)
{
    struct chance chance = {.state = test_seed()};
    for (int i = 0; i < WHOLE; i++)
        hello[i] = (uint8_t)chance_next(&chance);
}

static void web_request(uint8_t *hello)
{
    memset(hello, ' ', WHOLE);
    memcpy(hello, "GET / HTTP/1.1\r\n", 16);
}

static void tcp_frame(uint8_t *hello)
{
    static const uint8_t frame_start[4] = {RAW_HELLO, 0, RAW_MAGIC & 0xff, RAW_MAGIC >> 8};
    memset(hello, 0, WHOLE);
    memcpy(hello, frame_start, sizeof frame_start);
}

static void other_version(uint8_t *hello)
{
    hello[VERSION_AT] = 99;
}

static void older_version(uint8_t *hello)
{
    hello[VERSION_AT] = 3;
}

static void other_format(uint8_t *hello)
{
    hello[FORMAT_AT] ^= 0x40;
}

static void other_provider(uint8_t *hello)
{
    strcpy((char *)hello + PROVIDER_AT, "pigeons");
}

static void endless_provider(uint8_t *hello)
{
    memset(hello + PROVIDER_AT, 'p', PROVIDER_BYTES);
}

static void no_name(uint8_t *hello)
{
    memset(hello + NAME_SIZE_AT, 0, 4);
}

static void name_too_long(uint8_t *hello)
{
    memset(hello + NAME_SIZE_AT, 0xff, 4);
}

static void other_messages(uint8_t *hello)
{
    hello[MESSAGE_AT + 2] ^= 1;
}

/* The text continues to the end of the hello; an address that is not text has another size. */
static void endless_name(uint8_t *hello)
{
    memset(hello + NAME_SIZE_AT, 0, 4);
    hello[NAME_SIZE_AT] = WHOLE - NAME_AT;
    memset(hello + NAME_AT, 'n', WHOLE - NAME_AT);
}

static void short_name(uint8_t *hello)
{
    memset(hello + NAME_SIZE_AT, 0, 4);
    hello[NAME_SIZE_AT] = 3;
}

/* shm's has a wake-up flag, tcp's none. */
static bool has_flag(const uint8_t *hello)
{
    static const uint8_t none[FLAG_BYTES];
    return memcmp(hello + FLAG_AT, none, sizeof none) != 0;
}

static void other_flag(uint8_t *hello)
{
    memset(hello + FLAG_AT, has_flag(hello) ? 0 : 0x5a, FLAG_BYTES);
}

static void flag_of_no_process(uint8_t *hello)
{
    memset(hello + FLAG_AT, 0x5a, FLAG_BYTES);
}

/* A page that would make the library read its own memory, if it shares pages. */
static void flag_of_the_librarys(uint8_t *hello)
{
    flag_of_no_process(hello);
    if (has_flag(librarys))
        memcpy(hello + FLAG_AT, librarys + FLAG_AT, FLAG_BYTES);
}

/* The endpoint name of a process that has ended. */
static void endpoint_of_no_process(uint8_t *hello)
{
    hello[NAME_AT + 2] ^= 0x15; /* a port, or a letter */
    hello[NAME_AT + 3] ^= 0x15;
}

/* How far the library gets with a peer. */
enum stage {
    AT_FIRST,  /* it refuses the first hello */
    AT_SECOND, /* it refuses the second one */
    AFTER_BOTH
};

/* The bytes sent, after which the library must end the connection. `told`: the text in its log. */
static const struct {
    const char *name;
    void (*spoil)(uint8_t *hello);
    unsigned size; /* bytes that are sent */
    enum stage stage;
    const char *rings; /* the bytes after the hellos */
    const char *told;
} cases[] = {
    {"silence", nothing, 0, AT_FIRST, "", NULL},
    {"half a hello, then silence", nothing, 50, AT_FIRST, "", NULL},
    {"one hello, then silence", nothing, HELLO, AT_SECOND, "", NULL},
    {"garbage", garbage, WHOLE, AT_FIRST, "", "speaks no BMI"},
    {"a web request", web_request, 18, AT_FIRST, "", "speaks no BMI"},
    {"a frame of tcp's", tcp_frame, 40, AT_FIRST, "", "speaks no BMI"},
    {"another version", other_version, WHOLE, AT_FIRST, "",
     "speaks version 99 of the exchange, we speak 4"},
    {"a shorter hello of an older version", older_version, OLDER_HELLO, AT_FIRST, "",
     "speaks version 3 of the exchange, we speak 4"},
    {"another provider", other_provider, WHOLE, AT_FIRST, "", "uses another provider"},
    {"a provider's name without end", endless_provider, WHOLE, AT_FIRST, "", "another provider"},
    {"another kind of address", other_format, WHOLE, AT_FIRST, "", "address of another family"},
    {"messages of another size", other_messages, WHOLE, AT_FIRST, "", "messages of another size"},
    {"an endpoint without a name", no_name, WHOLE, AT_SECOND, "", "name of no possible size"},
    {"a name of 4 GiB", name_too_long, WHOLE, AT_SECOND, "", "name of no possible size"},
    {"a name without end", endless_name, WHOLE, AT_SECOND, "", "name that is none"},
    {"a name cut short", short_name, WHOLE, AT_SECOND, "", "name that is none"},
    {"a flag of no process", flag_of_no_process, WHOLE, AT_SECOND, "", "page"},
    {"the library's own flag", flag_of_the_librarys, WHOLE, AT_SECOND, "", "page"},
    {"a flag or none, as is wrong", other_flag, WHOLE, AT_SECOND, "", "page to share"},
    {"an endpoint of no process", endpoint_of_no_process, WHOLE, AFTER_BOTH, "", NULL},
    {"honest hellos, then silence", nothing, WHOLE, AFTER_BOTH, "", NULL},
    {"honest hellos, then garbage", nothing, WHOLE, AFTER_BOTH, "?!", NULL},
    {"a confirmation of no end of stream", nothing, WHOLE, AFTER_BOTH, "c", NULL},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The answers of the bad peer that we dial. The first case must get the library's hello. */
static const struct {
    unsigned which;
    int status; /* of the operation that dialled */
} answers[] = {{13, -BMI_EPROTO}, {3, -BMI_EPROTO}, {5, -BMI_EPROTO},
               {6, -BMI_EPROTO},  {7, -BMI_EPROTO}, {8, -BMI_EPROTONOSUPPORT}};
enum { ANSWERS = sizeof answers / sizeof answers[0] };

/* Unreachable endpoints that it names if names are addresses, each with its own port. */
static const char *const far[] = {"255.255.255.255", "240.0.0.1"};
enum { FAR_NAMES = 140, FAR_PORT = 2000, FAR_KINDS = sizeof far / sizeof far[0] };

static bool names_are_addresses(void)
{
    return strcmp(test_scheme(), "ofi+tcp") == 0;
}

static void case_send(int socket, unsigned i)
{
    uint8_t hello[WHOLE];
    memcpy(hello, honest, WHOLE);
    cases[i].spoil(hello);
    raw_write(socket, hello, cases[i].size);
    raw_write(socket, cases[i].rings, strlen(cases[i].rings));
}

/* A page of this process, as methods/ib/doorbell.c describes it. */
static void flag_make(uint8_t *record)
{
    enum { PAGE = 128 };
    static int fd = -1;
    const uint64_t number = 77;
    const int32_t pid = getpid();
    if (fd < 0) {
        fd = memfd_create("flag", MFD_ALLOW_SEALING);
        CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0 && pwrite(fd, &number, 8, 0) == 8 &&
                  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
              "no page to share");
    }
    memcpy(record, &number, 8);
    memcpy(record + 8, &pid, 4);
    memcpy(record + 12, &fd, 4);
}

static void bytes_read(int socket, uint8_t *bytes, size_t size)
{
    size_t have = 0;
    while (have < size) {
        ssize_t got = recv(socket, bytes + have, size - have, 0);
        CHECK(got > 0, "no hello from the library");
        have += (size_t)got;
    }
}

static void first_read(int socket)
{
    bytes_read(socket, librarys, HELLO);
    CHECK(memcmp(librarys, "BMI ib\r\n\r\n", 10) == 0 && librarys[VERSION_AT] == VERSION,
          "the library's own hello is another than this test knows");
}

/* Answers with the library's own first hello, so that it sends its second one. */
static void hello_learn(int socket)
{
    raw_write(socket, librarys, HELLO);
    bytes_read(socket, librarys + HELLO, HELLO);
    memcpy(honest, librarys, WHOLE);
    if (has_flag(librarys))
        flag_make(honest + FLAG_AT);
}

/* Whether it is a hello that refuses, and has no secrets: else it is the library's first one. */
static bool refuses(const uint8_t *hello)
{
    uint8_t like[HELLO];
    memcpy(like, librarys, HELLO);
    memcpy(like + STATUS_AT, hello + STATUS_AT, STATUS_BYTES);
    return memcmp(hello, like, HELLO) == 0 && hello[STATUS_AT] != 0;
}

/* Reads to the end of the connection. Returns whether the library sends only data that a refused
 * peer may learn. */
static bool refused(int socket, unsigned i)
{
    uint8_t said[2 * WHOLE] = {0};
    size_t have = 0;
    ssize_t got;
    while (have < sizeof said && (got = recv(socket, said + have, sizeof said - have, 0)) > 0)
        have += (size_t)got;
    if (cases[i].stage == AT_FIRST)
        return have == HELLO && refuses(said);
    return have == WHOLE && memcmp(said, librarys, HELLO) == 0 && refuses(said + HELLO);
}

static void far_name_send(int socket, unsigned i)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(FAR_PORT + i))};
    uint8_t hello[WHOLE];
    memcpy(hello, honest, WHOLE);
    inet_pton(AF_INET, far[i % FAR_KINDS], &name.sin_addr);
    memcpy(hello + NAME_AT, &name, sizeof name);
    raw_write(socket, hello, WHOLE);
}

static void far_names_answer(int listener)
{
    for (unsigned i = 0; i < FAR_NAMES && names_are_addresses(); i++) {
        int dialled = accept(listener, NULL, NULL);
        first_read(dialled);
        far_name_send(dialled, i);
        CHECK(raw_ended(dialled, TEST_BOUND_MS), "the library bears a peer out of reach");
        close(dialled);
    }
}

static int bad_peer(void *argument, int channel)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    (void)argument;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 8) == 0 &&
              getsockname(listener, (struct sockaddr *)&address, &size) == 0,
          "no listener");
    tell_number(channel, ntohs(address.sin_port));
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < ANSWERS; i++) {
        int dialled = accept(listener, NULL, NULL);
        first_read(dialled);
        if (i == 0) {
            uint8_t hello[WHOLE];
            hello_learn(dialled);
            memcpy(hello, honest, WHOLE);
            cases[answers[i].which].spoil(hello);
            raw_write(dialled, hello + HELLO, HELLO);
        } else {
            case_send(dialled, answers[i].which);
        }
        CHECK(raw_ended(dialled, TEST_BOUND_MS), "the library bears a bad answer");
        close(dialled);
    }
    far_names_answer(listener);
    for (unsigned i = 0; i < CASES; i++) {
        hear_number(channel);
        int connection = raw_connect(listening, 0);
        case_send(connection, i);
        bool ended = cases[i].stage == AFTER_BOTH ? raw_ended(connection, TEST_BOUND_MS)
                                                  : refused(connection, i);
        close(connection);
        tell_number(channel, ended);
    }
    return 0;
}

/* ---- the library ----------------------------------------------------------------------------- */

static char said[1 << 16]; /* the log since it was last cleared */

static void log_take(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(said);
    (void)argument, (void)level;
    snprintf(said + used, sizeof said - used, "%s\n", text);
}

static void others_unharmed(const char *name, struct echo_report *report, unsigned long exchanges)
{
    while (method_statistics(test_method()).links > 1)
        operations_step(10);
    CHECK(echo_sessions() == 1, "%s: the healthy client was harmed", name);
    while (atomic_load(&report->exchanges) < exchanges + 10)
        operations_step(5);
    /* The healthy client's own messages may be waiting at this moment. */
    struct bmi_statistics gauges = statistics_of(0);
    for (unsigned i = 0; i < 1000 && gauges.unmatched_bytes + gauges.unexpected_bytes > 0; i++) {
        operations_step(5);
        gauges = statistics_of(0);
    }
    CHECK(gauges.unmatched_bytes == 0 && gauges.unexpected_bytes == 0, "%s: memory is left", name);
}

/* Checks that the reason of a refusal is the tested fault, not a page that differs from
 * ours here. */
static void told_check(const char *name, const char *told)
{
    if (told == NULL)
        CHECK(strstr(said, "page") == NULL, "%s: %s", name, said);
    else
        CHECK(strstr(said, told) != NULL, "%s: the log does not say \"%s\", but: %s", name, told,
              said);
}

static void answer_run(BMI_addr_t bad, unsigned i)
{
    const char *name = cases[answers[i].which].name;
    struct noted send;
    said[0] = '\0';
    note_send(&send, bad, "", 0, 1);
    CHECK(noted_wait(&send, 1, TEST_BOUND_MS), "%s in answer: the send does not end", name);
    printf("  %-40s in answer: %s\n", name, status_name(send.status));
    CHECK(send.status == answers[i].status, "%s in answer: %s", name, status_name(send.status));
    told_check(name, cases[answers[i].which].told);
}

static void far_names_run(BMI_addr_t bad)
{
    struct noted send;
    for (unsigned i = 0; i < FAR_NAMES && names_are_addresses(); i++) {
        note_send(&send, bad, "", 0, 1);
        CHECK(noted_wait(&send, 1, TEST_BOUND_MS) && send.status != 0,
              "endpoint %u out of reach: the send ends with %s", i, status_name(send.status));
    }
}

static void case_run(struct child *peer, unsigned i, struct echo_report *report)
{
    unsigned long exchanges = atomic_load(&report->exchanges);
    uint64_t start = now_ns();
    said[0] = '\0';
    tell_number(peer->channel, (int64_t)i);
    while (!heard(peer->channel, 0))
        operations_step(5);
    bool ended = hear_number(peer->channel) != 0;
    printf("  %-40s %s after %4.0f ms\n", cases[i].name, ended ? "ended" : "is borne",
           (double)(now_ns() - start) / 1e6);
    CHECK(ended, "%s: the connection was not ended, or the peer learned what it must not",
          cases[i].name);
    told_check(cases[i].name, cases[i].told);
    others_unharmed(cases[i].name, report, exchanges);
}

int main(void)
{
    test_begin("ofi_handshake_fault", 90);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child peer = child_start("bad peer", bad_peer, NULL);
    struct child client = echo_client_start(report);
    char address[64];
    BMI_addr_t bad;

    struct bmi_log_callback callback = {.write = log_take, .level = BMI_LOG_INFO};
    serve_here(0, listening);
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    operations_open();
    echo_client_go(report, &client, listening);
    while (atomic_load(&report->exchanges) == 0) /* with a sanitizer it connects slowly */
        operations_step(10);
    must(BMI_set_info(0, BMI_SETTING, (void *)"connect_timeout_ms=1000"), "connect_timeout_ms");
    test_address(address, (unsigned)hear_number(peer.channel));
    must(BMI_addr_lookup(&bad, address), "BMI_addr_lookup");
    tell(peer.channel, listening, sizeof listening);
    for (unsigned i = 0; i < ANSWERS; i++)
        answer_run(bad, i);
    far_names_run(bad);
    for (unsigned i = 0; i < CASES; i++)
        case_run(&peer, i, report);
    child_end(&peer);
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
