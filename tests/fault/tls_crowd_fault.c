/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_crowd_fault.c - many clients connect at once, while one reads.
 *
 * Given a reader that is connected, when a crowd connects, then each of the crowd is served (full),
 * or refused in time if it says nothing after its ClientHello (half), and the reader goes on. For
 * measurements, printed: the reader's bytes a second before and while the crowd connects, and the
 * memory of each idle peer: OpenSSL's, and the rest. BMI_TEST_NICE=19 gives the crowd's processes
 * the lowest priority, as if they were on other hosts.
 *
 * usage: tls_crowd_fault full|half [CLIENTS]
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "raw_tls.h"
#include "serve.h"

enum { PROCESSES = 4, CROWD = 1000, SIZE = 256 << 10, ASK_TAG = 5, ANSWER_TAG = 6 };
enum { WINDOW_MS = 1000, HALF_TIMEOUT_MS = 2000, HEADER_MOST = 40, HELLO_MOST = 128 };

static char listening[BMI_MAX_ADDR_LEN];
static bool full;
static unsigned crowd = CROWD;

/* ---- OpenSSL's memory ------------------------------------------------------------------------ */

static atomic_long ssl_bytes;

/* What the allocator takes for a block. */
static long footprint(void *block)
{
    return block ? (long)(malloc_usable_size(block) + sizeof(size_t)) : 0;
}

static void *ssl_malloc(size_t size, const char *file, int line)
{
    void *made = malloc(size);
    (void)file, (void)line;
    ssl_bytes += footprint(made);
    return made;
}

static void ssl_free(void *old, const char *file, int line)
{
    (void)file, (void)line;
    ssl_bytes -= footprint(old);
    free(old);
}

static void *ssl_realloc(void *old, size_t size, const char *file, int line)
{
    (void)file, (void)line;
    ssl_bytes -= footprint(old);
    void *made = realloc(old, size);
    ssl_bytes += footprint(made);
    return made;
}

/* ---- the crowd ------------------------------------------------------------------------------- */

struct one {
    SSL *ssl;
    int socket;
    bool said, done; /* its HELLO; it is served, or refused */
};

/* Encodes a HELLO. Returns its bytes. */
static size_t hello_make(uint8_t *bytes, struct chance *chance)
{
    uint8_t body[HELLO_MOST];
    struct raw_hello hello = raw_hello_make(chance);
    struct raw_frame frame = {.type = RAW_HELLO, .length = raw_hello_encode(body, &hello)};
    size_t header = raw_encode(bytes, &frame);
    memcpy(bytes + header, body, (size_t)frame.length);
    return header + (size_t)frame.length;
}

/* A step of its handshake, and its HELLO; the first byte of the answer shows that it is served. */
static void one_step(struct one *one, struct chance *chance)
{
    uint8_t bytes[HEADER_MOST + HELLO_MOST];
    size_t have;
    ERR_clear_error();
    int result = one->said ? 1 : SSL_connect(one->ssl);
    if (result == 1 && !one->said) {
        one->said = true;
        CHECK(SSL_write_ex(one->ssl, bytes, hello_make(bytes, chance), &have) == 1, "a HELLO");
    }
    if (result == 1)
        result = SSL_read_ex(one->ssl, bytes, sizeof bytes, &have);
    one->done = result == 1;
    CHECK(one->done || SSL_get_error(one->ssl, result) == SSL_ERROR_WANT_READ,
          "one of the crowd fails: %s", ERR_reason_error_string(ERR_peek_error()));
}

/* It says no more after its ClientHello; the server ends the connection. */
static void half_step(struct one *one)
{
    if (!one->said) {
        SSL_connect(one->ssl);
        one->said = true;
    } else {
        one->done = raw_ended(one->socket, 0);
    }
}

static void crowd_step(struct one *ones, struct pollfd *polled, unsigned count,
                       struct chance *chance)
{
    CHECK(poll(polled, count, TEST_BOUND_MS) > 0, "the crowd waits for ever");
    for (unsigned i = 0; i < count; i++) {
        if (polled[i].revents == 0)
            continue;
        full ? one_step(&ones[i], chance) : half_step(&ones[i]);
        polled[i].events = POLLIN;
        if (ones[i].done)
            polled[i].fd = -1;
    }
}

static unsigned waiting(const struct one *ones, unsigned count)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        left += !ones[i].done;
    return left;
}

static int crowd_run(void *argument, int channel)
{
    const char *nice = getenv("BMI_TEST_NICE");
    unsigned count = crowd / PROCESSES;
    struct one *ones = calloc(count, sizeof *ones);
    struct pollfd *polled = calloc(count, sizeof *polled);
    struct chance chance = {.state = test_seed() + (uint64_t)getpid()};
    (void)argument;
    descriptors_allow(count + 64);
    CHECK(ones && polled, "no memory");
    setpriority(PRIO_PROCESS, 0, nice ? atoi(nice) : 0);
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < count; i++) {
        ones[i].socket = raw_connect_plain(listening, 0);
        ones[i].ssl = raw_tls_session(ones[i].socket);
        fcntl(ones[i].socket, F_SETFL, O_NONBLOCK);
        polled[i] = (struct pollfd){.fd = ones[i].socket, .events = POLLOUT};
    }
    while (waiting(ones, count) > 0)
        crowd_step(ones, polled, count, &chance);
    tell_number(channel, 0);
    hear_number(channel);
    for (unsigned i = 0; i < count; i++) {
        SSL_free(ones[i].ssl);
        close(ones[i].socket);
    }
    free(ones);
    free(polled);
    return 0;
}

/* ---- the reader ------------------------------------------------------------------------------ */

static struct report {
    atomic_ulong bytes;
    atomic_bool stop;
} * report;

static int reader(void *argument, int channel)
{
    static char bytes[SIZE];
    (void)argument;
    BMI_addr_t server = client_open(channel);
    while (!report->stop) {
        struct noted noted[2];
        note_receive(&noted[0], server, bytes, SIZE, ANSWER_TAG);
        note_sendunexpected(&noted[1], server, "", 0, ASK_TAG);
        noted_good(&noted[0], "a read");
        noted_good(&noted[1], "a request");
        report->bytes += SIZE;
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static struct noted answer;

static void asked(const struct BMI_unexpected_info *info)
{
    static char bytes[SIZE];
    BMI_addr_t peer = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    note_send(&answer, peer, bytes, SIZE, ANSWER_TAG);
}

/* ---- the server ------------------------------------------------------------------------------ */

static struct child children[PROCESSES];

static bool crowd_done(unsigned *done)
{
    while (*done < PROCESSES && heard(children[*done].channel, 0)) {
        hear_number(children[*done].channel);
        ++*done;
    }
    return *done == PROCESSES;
}

/* Serves until the crowd is done, or for a time. Returns the reader's MB a second. */
static double serve_window(bool with_crowd)
{
    unsigned long before = report->bytes;
    uint64_t start = now_ns(), took = 0;
    unsigned done = 0;
    for (bool goes = true; goes; took = now_ns() - start) {
        operations_step(2);
        goes = with_crowd ? !crowd_done(&done) : took < WINDOW_MS * UINT64_C(1000000);
    }
    CHECK(report->bytes > before, "the reader stands still");
    if (with_crowd)
        printf("  a crowd of %u is done after %.2f s\n", crowd, (double)took / 1e9);
    return (double)(report->bytes - before) / ((double)took / 1e3);
}

static void memory_print(size_t in_use, long ssl)
{
    double all = (double)(memory_in_use() - in_use) / crowd,
           theirs = (double)(ssl_bytes - ssl) / crowd;
    if (full && test_memory_measurable())
        printf("  memory of each idle peer: %.0f bytes of OpenSSL's, %.0f others\n", theirs,
               all - theirs);
}

static void measure(void)
{
    double before = serve_window(false);
    size_t in_use = memory_in_use();
    long ssl = ssl_bytes;
    for (int i = 0; i < PROCESSES; i++)
        tell(children[i].channel, listening, sizeof listening);
    double during = serve_window(true);
    printf("  the reader: %.0f MB/s before, %.0f MB/s during, %.2f\n", before, during,
           during / before);
    serve_window(false);
    uint64_t links = method_statistics("bmi_tls").links;
    CHECK(links == (full ? crowd + 1 : 1), "%llu connections stand", (unsigned long long)links);
    memory_print(in_use, ssl);
}

int main(int argc, char **argv)
{
    CHECK(CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free) == 1, "OpenSSL's memory");
    test_begin("tls_crowd_fault", 60);
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    crowd = argc > 2 ? (unsigned)atoi(argv[2]) : test_scaled(CROWD, 200) / PROCESSES * PROCESSES;
    if (descriptors_allow(crowd + 100) < crowd + 100)
        test_skip("not enough descriptors");
    report = shared_memory(sizeof *report);
    for (int i = 0; i < PROCESSES; i++)
        children[i] = child_start("crowd", crowd_run, NULL);
    struct child reads = child_start("reader", reader, NULL);
    char timeout[32];
    snprintf(timeout, sizeof timeout, "%u", full ? 600000 : HALF_TIMEOUT_MS * test_slowness());
    setenv("BMI_HANDSHAKE_TIMEOUT_MS", timeout, 1);
    setenv("BMI_CONNECT_TIMEOUT_MS", "600000", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = asked;
    tell(reads.channel, listening, sizeof listening);
    while (report->bytes == 0)
        operations_step(10);
    measure();
    report->stop = true;
    for (int i = 0; i < PROCESSES; i++) {
        tell_number(children[i].channel, 0);
        child_end(&children[i]);
    }
    while (method_statistics("bmi_tls").links > 0)
        operations_step(10);
    child_end(&reads);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
