/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dialled_fault.c - what a server that we dial can do to us: it answers as if it were ourselves, it
 * connects back while we dial, it says that our connections are not wanted, while others are being
 * closed, it speaks another version of the protocol; it goes, and another one of its address's
 * alternatives is there; it waits for a connection of ours that is lost.
 *
 * The servers are sockets of this process, so that what they do is in order with what we do.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bmi/digest.h"
#include "raw_peer.h"
#include "serve.h"

enum { TAG = 7, ASK_TAG = 9, SIZE = 200000, BACKLOG = 8, SMALL_BUFFER = 2048 };

static char ours[BMI_MAX_ADDR_LEN];
static struct chance chance;
static uint8_t body[RAW_BODY_MAX];

/* ---- sockets, while we make progress ----------------------------------------------------------
 */

static bool readable(int socket)
{
    struct pollfd polled = {.fd = socket, .events = POLLIN};
    return poll(&polled, 1, 0) == 1;
}

/* Until the socket has something to read, or one to accept. */
static void readable_await(int socket, const char *what)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    while (!readable(socket)) {
        operations_step(5);
        CHECK(now_ns() < until, "%s does not come", what);
    }
}

static struct raw_frame frame_await(int socket, uint8_t type, const char *what)
{
    struct raw_frame frame;
    do {
        readable_await(socket, what);
        CHECK(raw_receive(socket, &frame, body, TEST_BOUND_MS), "%s does not come whole", what);
    } while (frame.type != type);
    return frame;
}

static void end_await(int socket, const char *what)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    while (!raw_ended(socket, 0)) {
        operations_step(5);
        CHECK(now_ns() < until, "%s is not ended", what);
    }
    close(socket);
}

/* Accepts what we dial. Returns the connection, and our HELLO on it. */
static int dial_await(int listener, struct raw_hello *hello)
{
    readable_await(listener, "our connection");
    int socket = accept(listener, NULL, NULL);
    CHECK(socket >= 0, "accept");
    frame_await(socket, RAW_HELLO, "our HELLO");
    raw_hello_decode(body, hello);
    return socket;
}

/* As an honest server does. */
static int dial_answer(int listener, const char *listening)
{
    struct raw_hello hello, answer = raw_hello_make(&chance);
    int socket = dial_await(listener, &hello);
    strcpy(answer.listen, listening);
    CHECK(raw_answer_hello(socket, &answer), "the connection has ended");
    return socket;
}

static int server_open(char listening[BMI_MAX_ADDR_LEN])
{
    int listener = raw_bind("127.0.0.1", listening);
    CHECK(listen(listener, BACKLOG) == 0, "listen");
    return listener;
}

/* Connects to us with a HELLO of the incarnation and nonce. */
static int back_connect(const struct raw_hello *identity, const char *listening)
{
    struct raw_hello hello = raw_hello_make(&chance);
    memcpy(hello.incarnation, identity->incarnation, sizeof hello.incarnation);
    memcpy(hello.nonce, identity->nonce, sizeof hello.nonce);
    strcpy(hello.listen, listening);
    int socket = raw_connect(ours, 0);
    CHECK(raw_send_hello(socket, &hello), "our side has closed");
    return socket;
}

static void redundant_send(int socket, const uint8_t nonce[16])
{
    struct raw_frame frame = {.type = RAW_REDUNDANT, .length = 16};
    uint8_t digest[16];
    bmi__digest16(digest, nonce);
    CHECK(raw_send(socket, &frame, digest), "the connection has ended");
}

/* Forgets an address, with what is posted to it. */
static void drop(BMI_addr_t address)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    BMI_set_info(address, BMI_TCP_CLOSE_SOCKET, NULL); /* it may have none */
    while (BMI_set_info(address, BMI_DROP_ADDR, NULL) == -BMI_EBUSY) {
        operations_step(5);
        CHECK(now_ns() < until, "an address stays busy");
    }
}

/* ---- as ourselves -----------------------------------------------------------------------------
 */

/* The server has from our HELLO what our own other end would say. Of its two connections only one
 * brings messages: else one could write to memory that the other's message has given back. */
static void mirror(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello dialled, answer = raw_hello_make(&chance);
    struct noted receive;
    BMI_addr_t address;
    int listener = server_open(listening);
    char *memory = malloc(SIZE);
    CHECK(memory != NULL, "no memory");
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_receive(&receive, address, memory, SIZE, TAG);
    int front = dial_await(listener, &dialled);
    int back = back_connect(&dialled, "");
    frame_await(back, RAW_HELLO, "the answer to ourselves");
    CHECK(raw_answer_hello(front, &answer), "the dialled connection has ended");
    struct raw_frame announced = frame_await(front, RAW_RTR, "the announcement");
    struct raw_frame whole = {.type = RAW_DATA,
                              .flags = RAW_FIRST | RAW_LAST,
                              .tag = TAG,
                              .length = SIZE,
                              .source = SIZE,
                              .target = announced.source};
    uint8_t header[RAW_HEADER];
    raw_write(front, header, raw_encode(header, &whole));
    raw_write(front, body, SIZE / 2);
    for (int i = 0; i < 20; i++)
        operations_step(5); /* it was there when the first one looked */
    whole.flags = RAW_LAST;
    whole.source = 0;
    raw_send(back, &whole, body);
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS) && receive.status != 0,
          "two connections have written to one receive, which has ended well");
    end_await(front, "the connection on which we do not listen to ourselves");
    free(memory);
    close(back);
    close(listener);
    drop(address);
}

/* The dialled end goes while the other one brings a message. If that is seen first the receive ends
 * with it, and nothing is written to it any more. */
static void mirror_ends_in_mid_body(void)
{
    enum { REST = 1000 };
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello dialled, answer = raw_hello_make(&chance);
    struct noted receive;
    BMI_addr_t address;
    int listener = server_open(listening);
    char *memory = calloc(1, SIZE);
    CHECK(memory != NULL, "no memory");
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_receive(&receive, address, memory, SIZE, TAG);
    int front = dial_await(listener, &dialled);
    int back = back_connect(&dialled, "");
    frame_await(back, RAW_HELLO, "the answer to ourselves");
    CHECK(raw_answer_hello(front, &answer), "the dialled connection has ended");
    struct raw_frame announced = frame_await(front, RAW_RTR, "the announcement");
    struct raw_frame whole = {.type = RAW_DATA,
                              .flags = RAW_FIRST | RAW_LAST,
                              .tag = TAG,
                              .length = SIZE,
                              .source = SIZE,
                              .target = announced.source};
    uint8_t header[RAW_HEADER];
    memset(body, 1, SIZE);
    raw_write(back, header, raw_encode(header, &whole));
    raw_write(back, body, SIZE - REST);
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    while (memory[SIZE - REST - 1] == 0 && now_ns() < until)
        operations_step(5);
    raw_reset(front);
    raw_write(back, body, REST);
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS), "a receive outlives its connection");
    end_await(back, "the connection to ourselves without its other end");
    CHECK(memory[SIZE - REST - 1] != 0, "the message did not begin");
    for (unsigned i = SIZE - REST; i < SIZE; i++)
        CHECK(memory[i] == (receive.status == 0), "a receive that has ended is written to");
    free(memory);
    close(listener);
    drop(address);
}

/* Ourselves would connect once, and want the connection. */
static void mirror_twice(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello dialled;
    struct noted ask;
    uint64_t number = 0;
    BMI_addr_t address;
    int listener = server_open(listening);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int front = dial_await(listener, &dialled);
    int back = back_connect(&dialled, "");
    frame_await(back, RAW_HELLO, "the answer to ourselves");
    int again = back_connect(&dialled, "");
    end_await(again, "the second connection of ourselves");
    redundant_send(front, dialled.nonce);
    end_await(front, "the connection that ourselves does not want");
    end_await(back, "its other end");
    CHECK(noted_wait(&ask, 1, TEST_BOUND_MS) && ask.status != 0, "the message has gone");
    close(listener);
    drop(address);
}

/* A server that tells us to wait for a connection of its own, which never comes, and again when we
 * insist: what is posted to it ends. */
static void redundant_for_ever(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    uint64_t number = 0, until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    struct noted ask;
    BMI_addr_t address;
    int listener = server_open(listening);
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1500"), "BMI_SETTING");
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    while (!ask.ended) {
        struct raw_hello dialled;
        CHECK(now_ns() < until, "a message waits for ever");
        operations_step(5);
        if (!readable(listener))
            continue;
        struct raw_frame redundant = {.type = RAW_REDUNDANT, .length = 16};
        int front = dial_await(listener, &dialled);
        raw_send(front, &redundant, body); /* to whom it was too slow it has ended */
        end_await(front, "a connection that is redundant");
    }
    CHECK(ask.status != 0, "the message has gone");
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
    close(listener);
    drop(address);
}

/* ---- a server of another version --------------------------------------------------------------
 */

static char logged[4096];

static void log_take(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(logged);
    (void)argument;
    (void)level;
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

/* It refuses our HELLO, or answers it: what was posted fails with EPROTO, and the log says why. */
static void other_version(bool refuses, const char *why)
{
    struct bmi_log_callback callback = {.write = log_take, .level = BMI_LOG_WARN};
    struct raw_frame reject = {.type = RAW_REJECT, .target = EPROTO};
    struct raw_hello dialled, answer = raw_hello_make(&chance);
    char listening[BMI_MAX_ADDR_LEN];
    uint64_t number = 0;
    struct noted ask;
    BMI_addr_t address;
    int listener = server_open(listening);
    logged[0] = '\0';
    answer.version = 999;
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int socket = dial_await(listener, &dialled);
    CHECK(refuses ? raw_send(socket, &reject, NULL) : raw_answer_hello(socket, &answer),
          "the connection has ended");
    end_await(socket, "a connection to another version");
    CHECK(noted_wait(&ask, 1, TEST_BOUND_MS), "a message to another version waits for ever");
    CHECK(ask.status == -BMI_EPROTO, "it ends with %s", bmi_status_string(ask.status));
    callback.write = NULL;
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    CHECK(strstr(logged, why) != NULL && strstr(logged, "bad frame") == NULL, "the log says: %s",
          logged);
    close(listener);
    drop(address);
}

/* ---- what was told holds ------------------------------------------------------------------------
 */

/* The largest message that it may send unasked is set anew before the server's answer is here: what
 * our HELLO has told it holds. */
static void eager_max_set_while_greeted(void)
{
    enum { EAGER = 8000 };
    static char memory[EAGER];
    struct raw_hello dialled, answer = raw_hello_make(&chance);
    struct raw_frame eager = {.type = RAW_EAGER, .tag = TAG, .length = EAGER};
    char listening[BMI_MAX_ADDR_LEN];
    struct noted receive;
    BMI_addr_t address;
    int listener = server_open(listening);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_receive(&receive, address, memory, sizeof memory, TAG);
    int socket = dial_await(listener, &dialled);
    CHECK(dialled.eager_max >= EAGER, "we take small messages only");
    must(BMI_set_info(0, BMI_SETTING, "eager_max=4K"), "BMI_SETTING");
    CHECK(raw_answer_hello(socket, &answer) && raw_send(socket, &eager, body),
          "the connection has ended");
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS) && receive.status == 0,
          "a message of the size that was agreed on: %s", bmi_status_string(receive.status));
    must(BMI_set_info(0, BMI_SETTING, "eager_max=0"), "BMI_SETTING");
    close(socket);
    close(listener);
    drop(address);
}

/* ---- two strings of one server ----------------------------------------------------------------
 */

struct two {
    char listening[BMI_MAX_ADDR_LEN];
    int listener, fronts[2];
    struct raw_hello identity; /* the server's; last of all, so that its HELLO is held */
    struct noted asks[2];
    BMI_addr_t addresses[2];
};

static void two_begin(struct two *two)
{
    static uint64_t numbers[2];
    struct raw_hello hello;
    two->listener = server_open(two->listening);
    two->identity = raw_hello_make(&chance);
    memset(two->identity.incarnation, 0xff, sizeof two->identity.incarnation);
    strcpy(two->identity.listen, two->listening);
    for (int i = 0; i < 2; i++) {
        char string[BMI_MAX_ADDR_LEN + 16];
        snprintf(string, sizeof string, "%s/%d", two->listening, i);
        must(BMI_addr_lookup(&two->addresses[i], string), "BMI_addr_lookup");
        note_sendunexpected(&two->asks[i], two->addresses[i], &numbers[i], sizeof numbers[i],
                            ASK_TAG);
    }
    for (int i = 0; i < 2; i++)
        two->fronts[i] = dial_await(two->listener, &hello);
}

static void two_end(struct two *two)
{
    close(two->listener);
    for (int i = 0; i < 2; i++) {
        CHECK(noted_wait(&two->asks[i], 1, TEST_BOUND_MS), "a message has neither gone nor failed");
        drop(two->addresses[i]);
    }
}

/* What we keep of a HELLO is used up when the first string is answered: the second is told of the
 * connection that it came on. */
static void answered_and_redundant(void)
{
    struct two two;
    two_begin(&two);
    int back = back_connect(&two.identity, two.listening);
    for (int i = 0; i < 20; i++)
        operations_step(5); /* it is held: nothing is said that we could wait for */
    struct raw_hello answer = raw_hello_make(&chance);
    memcpy(answer.incarnation, two.identity.incarnation, sizeof answer.incarnation);
    CHECK(raw_answer_hello(two.fronts[0], &answer), "the connection has ended");
    redundant_send(two.fronts[1], two.identity.nonce);
    frame_await(two.fronts[0], RAW_UNEXPECTED, "the first string's message");
    end_await(back, "the connection that is redundant");
    close(two.fronts[0]);
    close(two.fronts[1]);
    two_end(&two);
}

/* Both strings are told to wait for the server's connection to us. */
static void both_wait(void)
{
    struct two two;
    two_begin(&two);
    for (int i = 0; i < 2; i++)
        redundant_send(two.fronts[i], two.identity.nonce);
    for (int i = 0; i < 2; i++)
        end_await(two.fronts[i], "a connection that is redundant");
    int back = back_connect(&two.identity, two.listening);
    for (int i = 0; i < 2; i++) {
        while (!readable(back) && !readable(two.listener))
            operations_step(5);
        CHECK(!readable(two.listener), "a string is dialled again, though its server is connected");
        frame_await(back, RAW_UNEXPECTED, "a string's message");
    }
    close(back);
    two_end(&two);
}

/* ---- each dials the other by a name that it does not know itself by ---------------------------
 */

enum { LESSER = 0, GREATER = 0xff };

struct twins {
    int listener, front, back;
    struct raw_hello dialled, identity;
    struct noted ask;
    BMI_addr_t address;
};

/* We dial the server, which has dialled us by then, and is greeted there; it answers us, too. */
static void twins_begin(struct twins *twins, int incarnation)
{
    static uint64_t number;
    char listening[BMI_MAX_ADDR_LEN];
    twins->listener = server_open(listening);
    twins->identity = raw_hello_make(&chance);
    memset(twins->identity.incarnation, incarnation, sizeof twins->identity.incarnation);
    must(BMI_addr_lookup(&twins->address, listening), "BMI_addr_lookup");
    note_sendunexpected(&twins->ask, twins->address, &number, sizeof number, ASK_TAG);
    twins->front = dial_await(twins->listener, &twins->dialled);
    twins->back = back_connect(&twins->identity, "tcp://127.0.0.1:1");
    frame_await(twins->back, RAW_HELLO, "the answer to the server's own connection");
    CHECK(raw_answer_hello(twins->front, &twins->identity), "the connection has ended");
}

static void twins_end(struct twins *twins, int socket)
{
    frame_await(socket, RAW_UNEXPECTED, "the message");
    CHECK(noted_wait(&twins->ask, 1, TEST_BOUND_MS) && twins->ask.status == 0,
          "the message is not told to have gone");
    close(twins->front);
    close(twins->back);
    close(twins->listener);
    drop(twins->address);
}

static void nothing_comes(int socket, const char *what)
{
    for (int i = 0; i < 20; i++)
        operations_step(5);
    CHECK(!readable(socket), "%s", what);
}

/* The server's connection stays, and it says so. */
static void twin_of_a_greater(void)
{
    struct twins twins;
    twins_begin(&twins, GREATER);
    nothing_comes(twins.front, "our connection is used, though the server's is there");
    redundant_send(twins.front, twins.identity.nonce);
    twins_end(&twins, twins.back);
}

/* Ours stays, and we say so. */
static void twin_of_a_lesser(void)
{
    struct twins twins;
    uint8_t digest[16];
    twins_begin(&twins, LESSER);
    frame_await(twins.back, RAW_REDUNDANT, "the word that another connection is to be used");
    bmi__digest16(digest, twins.dialled.nonce);
    CHECK(memcmp(body, digest, sizeof digest) == 0, "it names another one");
    twins_end(&twins, twins.front);
}

/* What seemed to be the server's connection goes before any word of it comes. */
static void twin_goes(void)
{
    struct twins twins;
    twins_begin(&twins, GREATER);
    nothing_comes(twins.front, "our connection is used, though the server's is there");
    shutdown(twins.back, SHUT_RDWR);
    twins_end(&twins, twins.front);
}

/* It was somebody else's, who had the server's incarnation: no word of it comes. */
static void twin_of_a_liar(void)
{
    struct twins twins;
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1500"), "BMI_SETTING");
    twins_begin(&twins, GREATER);
    end_await(twins.front, "the connection of which it seemed that there is another");
    twins.front = dial_await(twins.listener, &twins.dialled);
    CHECK(raw_answer_hello(twins.front, &twins.identity), "the connection has ended");
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
    twins_end(&twins, twins.front);
}

/* A server that we dial names a connection of another host's as its own, whose digest it was told
 * as it greeted that one in our name. */
static void named_by_another_host(void)
{
    struct twins twins = {.back = -1};
    struct raw_hello innocent = raw_hello_make(&chance);
    char listening[BMI_MAX_ADDR_LEN];
    uint64_t number = 0;
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1500"), "BMI_SETTING");
    twins.listener = server_open(listening);
    strcpy(innocent.listen, "tcp://127.0.0.2:1");
    twins.back = raw_connect_from("127.0.0.2", ours);
    CHECK(raw_send_hello(twins.back, &innocent), "our side has closed");
    frame_await(twins.back, RAW_HELLO, "the answer to the innocent");
    must(BMI_addr_lookup(&twins.address, listening), "BMI_addr_lookup");
    note_sendunexpected(&twins.ask, twins.address, &number, sizeof number, ASK_TAG);
    twins.front = dial_await(twins.listener, &twins.dialled);
    redundant_send(twins.front, innocent.nonce);
    end_await(twins.front, "a connection that is redundant");
    twins.front = dial_await(twins.listener, &twins.dialled);
    CHECK(!readable(twins.back), "what is posted for one goes to another");
    twins.identity = raw_hello_make(&chance);
    CHECK(raw_answer_hello(twins.front, &twins.identity), "the connection has ended");
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
    twins_end(&twins, twins.front);
}

/* ---- a connection that is just closing --------------------------------------------------------
 */

enum { QUESTIONS = 1500 };

/* We close the connection for being idle. The end does not come before the other side, which reads
 * nothing of all the answers that it has asked for, reads them. */
static void idle_close(int socket)
{
    struct raw_frame ping = {.type = RAW_PING};
    int seconds = 0;
    for (int i = 0; i < QUESTIONS; i++) {
        CHECK(raw_send(socket, &ping, NULL), "the connection has ended");
        if (i % 50 == 49)
            operations_step(1);
    }
    for (int i = 0; i < 10; i++) {
        operations_step(1);
        must(BMI_set_info(0, BMI_REAP_IDLE, &seconds), "BMI_REAP_IDLE"); /* the 2nd one closes */
    }
}

/* Until we know that the connection has gone. */
static void lose(BMI_addr_t address, int socket)
{
    static char memory[8];
    struct noted receive;
    note_receive(&receive, address, memory, sizeof memory, TAG);
    close(socket);
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS) && receive.status != 0,
          "a connection has not gone");
}

static void *ping_run(void *address)
{
    double us;
    must(bmi_ping(*(BMI_addr_t *)address, TEST_BOUND_MS, &us), "bmi_ping");
    return NULL;
}

/* What goes over to a connection that is closing waits for the next one. */
static void joins_one_that_closes(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello identity = raw_hello_make(&chance), hello;
    uint64_t number = 0;
    struct noted ask;
    struct bmi_statistics statistics;
    BMI_addr_t address;
    pthread_t pinger;
    int listener = server_open(listening), back = raw_connect(ours, SMALL_BUFFER);
    CHECK(raw_send_hello(back, &identity), "our side has closed");
    frame_await(back, RAW_HELLO, "the answer");
    idle_close(back);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    pthread_create(&pinger, NULL, ping_run, &address);
    int front = dial_await(listener, &hello);
    do {
        operations_step(1);
        must(BMI_get_info(address, BMI_GET_STATISTICS, &statistics), "BMI_get_info");
    } while (statistics.outstanding_sends < 2); /* the ping is one */
    redundant_send(front, identity.nonce);
    end_await(front, "the connection that is redundant");
    CHECK(!ask.ended, "a message ends with a connection that it was not posted to");
    end_await(back, "the connection that is closing");
    front = dial_answer(listener, listening);
    frame_await(front, RAW_UNEXPECTED, "the message");
    noted_good(&ask, "a message after a connection that was closing");
    struct raw_frame pong = {.type = RAW_PONG};
    pong.target = frame_await(front, RAW_PING, "the ping").source;
    CHECK(raw_send(front, &pong, NULL), "the connection has ended");
    pthread_join(pinger, NULL);
    lose(address, front);
    close(listener);
    drop(address);
}

/* Who connects is not told to use a connection that we are closing. */
static void not_told_of_one_that_closes(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello identity = raw_hello_make(&chance), hello;
    uint64_t number = 0;
    struct noted ask;
    BMI_addr_t address;
    int bytes = SMALL_BUFFER, listener = server_open(listening);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int front = dial_await(listener, &hello);
    CHECK(raw_answer_hello(front, &identity), "the connection has ended");
    noted_good(&ask, "a message");
    idle_close(front);
    int back = back_connect(&identity, listening);
    frame_await(back, RAW_HELLO, "the answer to who connects while its other connection closes");
    end_await(front, "the connection that is closing");
    close(back);
    close(listener);
    drop(address);
}

/* ---- alternatives -----------------------------------------------------------------------------
 */

static BMI_addr_t speaker;

static void spoken(const struct BMI_unexpected_info *info)
{
    speaker = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void heard_await(int socket)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    speaker = 0;
    CHECK(raw_send_unexpected(socket, ASK_TAG, 1), "the connection has ended");
    while (speaker == 0) {
        operations_step(5);
        CHECK(now_ns() < until, "an unexpected message does not come");
    }
}

/* Posts a message, which a listener's server takes. Returns the connection. */
static int reach(BMI_addr_t address, int listener, const char *listening)
{
    static uint64_t number;
    struct noted asked;
    note_sendunexpected(&asked, address, &number, sizeof number, ASK_TAG);
    int socket = dial_answer(listener, listening);
    noted_good(&asked, "a message to an alternative");
    return socket;
}

/* Who looks at an address's host sees that of the server, not of one that was tried before it. */
static void host_check(const char *host, const char *other)
{
    char range[64];
    const char *told = BMI_addr_rev_lookup_unexpected(speaker);
    CHECK(told != NULL && strcmp(told, host) == 0, "the host is %s", told != NULL ? told : "NULL");
    snprintf(range, sizeof range, "tcp://%s", host);
    CHECK(BMI_query_addr_range(speaker, range, 32) == 1, "%s is not in its range", host);
    snprintf(range, sizeof range, "tcp://%s", other);
    CHECK(BMI_query_addr_range(speaker, range, 32) == 0, "%s is in the range of %s", host, other);
}

static void alternatives(void)
{
    char first[BMI_MAX_ADDR_LEN], second[BMI_MAX_ADDR_LEN], both[2 * BMI_MAX_ADDR_LEN + 2];
    BMI_addr_t address;
    int one = raw_bind("127.0.0.1", first), two = raw_bind("127.0.0.2", second);
    CHECK(listen(two, BACKLOG) == 0, "listen");
    snprintf(both, sizeof both, "%s,%s", first, second);
    must(BMI_addr_lookup(&address, both), "BMI_addr_lookup");
    int socket = reach(address, two, second); /* the first refuses */
    heard_await(socket);
    host_check("127.0.0.2", "127.0.0.1");
    const char *former = BMI_addr_rev_lookup_unexpected(speaker);

    /* The server comes again at its first address, and only there. */
    CHECK(listen(one, BACKLOG) == 0, "listen");
    close(two);
    lose(address, socket);
    socket = reach(address, one, first);
    heard_await(socket);
    host_check("127.0.0.1", "127.0.0.2");
    CHECK(strcmp(former, "127.0.0.2") == 0, "a string that was handed out has changed: %s", former);
    lose(address, socket);
    close(one);
    drop(address);
}

/* Which alternative an address was at says nothing of the one that is looked up in its place. */
static void in_the_place_of_another(void)
{
    char first[BMI_MAX_ADDR_LEN], second[BMI_MAX_ADDR_LEN], both[2 * BMI_MAX_ADDR_LEN + 2];
    BMI_addr_t address, other;
    int one = raw_bind("127.0.0.1", first), two = server_open(second);
    snprintf(both, sizeof both, "%s,%s", first, second);
    must(BMI_addr_lookup(&address, both), "BMI_addr_lookup");
    int socket = reach(address, two, second);
    must(BMI_set_info(address, BMI_DROP_ADDR, NULL), "BMI_DROP_ADDR");
    end_await(socket, "a dropped address's connection");
    must(BMI_addr_lookup(&other, second), "BMI_addr_lookup");
    socket = reach(other, two, second);
    close(one);
    close(two);
    lose(other, socket);
    drop(other);
}

/* ---- a connection of ours that the other side waits for, and that is lost ---------------------
 */

/* Until we have handled all that was sent before. */
static void settled_await(int socket)
{
    struct raw_frame ping = {.type = RAW_PING};
    CHECK(raw_send(socket, &ping, NULL), "the connection has ended");
    frame_await(socket, RAW_PONG, "the answer to a ping");
}

struct lost {
    char listening[BMI_MAX_ADDR_LEN], memory[8];
    int listener;
    BMI_addr_t address;
    struct raw_hello identity, first; /* the server's; of what was lost */
    struct noted receive;
};

/* The server dials us, too, and is told to wait for ours. That is reset before we know that the
 * server has taken it, or after. The server knows the next one by its nonce alone: if that were
 * another, the two would be connected twice, and each would send where the other does not receive.
 * Returns the next one. */
static int told_and_lost(struct lost *lost, bool up)
{
    struct raw_hello second;
    uint8_t digest[16];
    lost->identity = raw_hello_make(&chance);
    memset(lost->identity.incarnation, 0, 16); /* ours is larger: it has to wait */
    lost->listener = server_open(lost->listening);
    must(BMI_addr_lookup(&lost->address, lost->listening), "BMI_addr_lookup");
    note_receive(&lost->receive, lost->address, lost->memory, sizeof lost->memory, TAG);
    int socket = dial_await(lost->listener, &lost->first);
    if (up) {
        CHECK(raw_answer_hello(socket, &lost->identity), "the connection has ended");
        settled_await(socket);
    }
    int back = back_connect(&lost->identity, lost->listening);
    frame_await(back, RAW_REDUNDANT, "REDUNDANT");
    bmi__digest16(digest, lost->first.nonce);
    CHECK(memcmp(body, digest, sizeof digest) == 0, "another connection is named");
    end_await(back, "the connection that is redundant");
    raw_reset(socket);
    CHECK(noted_wait(&lost->receive, 1, TEST_BOUND_MS) && lost->receive.status == -BMI_ECONNRESET,
          "a receive does not end with its connection");
    note_receive(&lost->receive, lost->address, lost->memory, sizeof lost->memory, TAG);
    socket = dial_await(lost->listener, &second);
    CHECK(memcmp(second.nonce, lost->first.nonce, sizeof second.nonce) == 0,
          "the connection that is waited for comes under another name");
    return socket;
}

static void lost_end(struct lost *lost, int socket)
{
    close(socket);
    CHECK(noted_wait(&lost->receive, 1, TEST_BOUND_MS), "a receive outlives its connection");
    close(lost->listener);
    drop(lost->address);
}

static void told_of_one_that_is_lost(bool up)
{
    struct lost lost;
    struct raw_hello third;
    int socket = told_and_lost(&lost, up);
    CHECK(raw_answer_hello(socket, &lost.identity), "the connection has ended");
    settled_await(socket);
    raw_reset(socket);
    CHECK(noted_wait(&lost.receive, 1, TEST_BOUND_MS), "a receive outlives its connection");
    note_receive(&lost.receive, lost.address, lost.memory, sizeof lost.memory, TAG);
    socket = dial_await(lost.listener, &third);
    CHECK(memcmp(third.nonce, lost.first.nonce, sizeof third.nonce) != 0,
          "a nonce is used on though nobody waits for it");
    lost_end(&lost, socket);
}

/* It is we who have to wait, after all, and in vain. What the server has named is not ours. */
static void told_of_one_and_then_told(void)
{
    struct lost lost;
    struct raw_hello third;
    uint8_t digest[16];
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=2000"), "BMI_SETTING");
    int socket = told_and_lost(&lost, false);
    redundant_send(socket, lost.identity.nonce);
    end_await(socket, "a connection that is redundant");
    socket = dial_await(lost.listener, &third);
    bmi__digest16(digest, lost.identity.nonce);
    CHECK(memcmp(third.nonce, digest, sizeof digest) != 0,
          "the other side's name is taken for ours");
    CHECK(memcmp(third.nonce, lost.first.nonce, sizeof third.nonce) != 0,
          "a nonce is used on though nobody waits for it");
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
    lost_end(&lost, socket);
}

int main(void)
{
    test_begin("dialled_fault", 120);
    chance = (struct chance){.state = test_seed()};
    serve("tcp://127.0.0.1:0", 0, ours);
    operations_open();
    mirror();
    mirror_ends_in_mid_body();
    mirror_twice();
    redundant_for_ever();
    other_version(true, "refuses us: it speaks another version of the protocol");
    other_version(false, "speaks version 999 of the protocol");
    eager_max_set_while_greeted();
    answered_and_redundant();
    both_wait();
    twin_of_a_greater();
    twin_of_a_lesser();
    twin_goes();
    twin_of_a_liar();
    named_by_another_host();
    joins_one_that_closes();
    not_told_of_one_that_closes();
    test_unexpected = spoken;
    alternatives();
    in_the_place_of_another();
    told_of_one_that_is_lost(false);
    told_of_one_that_is_lost(true);
    told_of_one_and_then_told();
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
