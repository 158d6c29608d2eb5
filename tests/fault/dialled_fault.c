/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dialled_fault.c - a dialled server that answers with our own identity, connects back while we
 * dial, claims truly or falsely that one of two connections is its own, or is silent; speaks
 * another version of the protocol; ends, while another alternative of its address has a server.
 *
 * The servers are sockets of this process, so that their actions and ours have one order.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bmi/base/crypto.h"
#include "raw_peer.h"
#include "serve.h"

enum { TAG = 7, ASK_TAG = 9, SIZE = 200000, BACKLOG = 8, SMALL_BUFFER = 2048 };

static char ours[BMI_MAX_ADDR_LEN];
static struct chance chance;
static uint8_t body[RAW_BODY_MAX];

/* ---- sockets, while we make progress --------------------------------------------------------- */

static bool readable(int socket)
{
    struct pollfd polled = {.fd = socket, .events = POLLIN};
    return poll(&polled, 1, 0) == 1;
}

/* Waits until the socket is readable, or has a connection to accept. */
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

/* Accepts our connection. Returns it, and our HELLO on it. */
static int dial_await(int listener, struct raw_hello *hello)
{
    readable_await(listener, "our connection");
    int socket = accept(listener, NULL, NULL);
    CHECK(socket >= 0, "accept");
    frame_await(socket, RAW_HELLO, "our HELLO");
    raw_hello_decode(body, hello);
    return socket;
}

/* Answers as an honest server. */
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

/* ---- names and proofs of connections --------------------------------------------------------- */

enum { SECRET = 16, ITEM = 32, PROOF = 16, END = 18 };
enum { NAME_LABEL = 1, QUESTION_LABEL, ANSWER_LABEL };

/* Address and port, in the form of an IPv6 socket. */
static void end_put(uint8_t end[END], const struct sockaddr_in *address)
{
    memset(end, 0, END);
    memset(end + 10, 0xff, 2);
    memcpy(end + 12, &address->sin_addr, 4);
    memcpy(end + 16, &address->sin_port, 2);
}

/* The secret of a connection whose dialler's HELLO had that nonce; `dialled`: by us. */
static void secret_make(uint8_t secret[SECRET], int socket, bool dialled, const uint8_t nonce[16])
{
    struct sockaddr_in here, there;
    socklen_t size = sizeof here;
    uint8_t ends[2 * END], bytes[32];
    getsockname(socket, (struct sockaddr *)&here, &size);
    size = sizeof there;
    getpeername(socket, (struct sockaddr *)&there, &size);
    end_put(ends, dialled ? &there : &here);
    end_put(ends + END, dialled ? &here : &there);
    memcpy(bytes, nonce, 16);
    bmi__digest16(bytes + 16, ends, sizeof ends);
    bmi__digest16(secret, bytes, sizeof bytes);
}

static void proof_make(uint8_t proof[PROOF], uint8_t label, const uint8_t of[SECRET],
                       const uint8_t over[SECRET])
{
    uint8_t bytes[1 + 2 * SECRET] = {label};
    memcpy(bytes + 1, of, SECRET);
    memcpy(bytes + 1 + SECRET, over, SECRET);
    bmi__digest16(proof, bytes, sizeof bytes);
}

/* A name, and the proof of a question over the other connection. */
static void item_make(uint8_t item[ITEM], const uint8_t of[SECRET], const uint8_t over[SECRET])
{
    uint8_t bytes[1 + SECRET] = {NAME_LABEL};
    memcpy(bytes + 1, of, SECRET);
    bmi__digest16(item, bytes, sizeof bytes);
    proof_make(item + SECRET, QUESTION_LABEL, of, over);
}

static void join_send(int socket, uint8_t flags, const uint8_t *bytes, size_t size)
{
    struct raw_frame frame = {.type = RAW_JOIN, .flags = flags, .length = size};
    CHECK(raw_send(socket, &frame, bytes), "the connection has ended");
}

/* Answers "that one is mine" over the dialled connection. */
static void join_answer(int socket, const uint8_t of[SECRET], const uint8_t over[SECRET])
{
    uint8_t proof[PROOF];
    proof_make(proof, ANSWER_LABEL, of, over);
    join_send(socket, RAW_REPLY, proof, sizeof proof);
}

static void join_deny(int socket)
{
    uint8_t none[PROOF] = {0};
    join_send(socket, RAW_REPLY, none, sizeof none);
}

/* Forgets an address, with its operations. */
static void drop(BMI_addr_t address)
{
    uint64_t until = now_ns() + UINT64_C(1000000) * TEST_BOUND_MS;
    BMI_set_info(address, BMI_TCP_CLOSE_SOCKET, NULL); /* it may have no connection */
    while (BMI_set_info(address, BMI_DROP_ADDR, NULL) == -BMI_EBUSY) {
        operations_step(5);
        CHECK(now_ns() < until, "an address stays busy");
    }
}

/* ---- as ourselves ---------------------------------------------------------------------------- */

/* The server copies our identity from our HELLO. Only one of its two connections brings messages:
 * otherwise one could write to memory that the other's message has freed. */
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
        operations_step(5); /* it was in the queue at the first check */
    whole.flags = RAW_LAST;
    whole.source = 0;
    raw_send(back, &whole, body);
    struct raw_frame ping = {.type = RAW_PING};
    raw_send(back, &ping, NULL);
    frame_await(back, RAW_PONG, "the answer to a ping behind another connection's message");
    CHECK(!receive.ended, "two connections have written to one receive");
    raw_write(front, body, SIZE - SIZE / 2);
    noted_good(&receive, "the message over its own connection");
    close(front);
    close(back);
    free(memory);
    close(listener);
    drop(address);
}

/* ---- a server of another version ------------------------------------------------------------- */

static char logged[4096];

static void log_take(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(logged);
    (void)argument;
    (void)level;
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

/* It refuses our HELLO, or answers it: operations fail with EPROTO, and the log has the reason. */
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

/* ---- values that were sent stay valid -------------------------------------------------------- */

/* eager_max changes before the server's answer arrives: the value in our HELLO stays valid. */
static void eager_max_set_during_the_handshake(void)
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

/* ---- a server that has connected to us ------------------------------------------------------- */

enum { LESSER = 0, GREATER = 0xff };

/* A server with a connection to us, which we dial `count` times, by as many strings. */
struct both {
    char listening[BMI_MAX_ADDR_LEN];
    int listener, back, count, fronts[2];
    struct raw_hello identity;
    struct noted asks[2];
    BMI_addr_t addresses[2];
    uint8_t back_secret[SECRET], front_secrets[2][SECRET];
};

/* Its answer to our HELLO has the incarnation that it connected with: we send a JOIN. */
static void both_begin(struct both *both, int count, int incarnation)
{
    static uint64_t number;
    uint8_t item[ITEM];
    struct raw_hello dialled;
    both->count = count;
    both->listener = server_open(both->listening);
    both->identity = raw_hello_make(&chance);
    memset(both->identity.incarnation, incarnation, sizeof both->identity.incarnation);
    both->back = back_connect(&both->identity, both->listening);
    frame_await(both->back, RAW_HELLO, "the answer to the server's own connection");
    secret_make(both->back_secret, both->back, false, both->identity.nonce);
    for (int i = 0; i < count; i++) {
        char string[BMI_MAX_ADDR_LEN + 16];
        snprintf(string, sizeof string, "%s/%d", both->listening, i);
        must(BMI_addr_lookup(&both->addresses[i], string), "BMI_addr_lookup");
        note_sendunexpected(&both->asks[i], both->addresses[i], &number, sizeof number, ASK_TAG);
        both->fronts[i] = dial_await(both->listener, &dialled);
        secret_make(both->front_secrets[i], both->fronts[i], true, dialled.nonce);
        CHECK(raw_answer_hello(both->fronts[i], &both->identity), "the connection has ended");
        struct raw_frame question = frame_await(both->fronts[i], RAW_JOIN, "the question");
        CHECK(question.length == ITEM && question.flags == 0, "a question of %llu bytes",
              (unsigned long long)question.length);
        item_make(item, both->back_secret, both->front_secrets[i]);
        CHECK(memcmp(body, item, sizeof item) == 0, "it asks for another connection");
    }
}

/* The messages come over that connection. */
static void both_end(struct both *both, bool over_back)
{
    for (int i = 0; i < both->count; i++) {
        frame_await(over_back ? both->back : both->fronts[i], RAW_UNEXPECTED, "the message");
        noted_good(&both->asks[i], "a message");
        if (over_back)
            end_await(both->fronts[i], "a connection that is not used");
        else
            close(both->fronts[i]);
    }
    close(both->back);
    close(both->listener);
    for (int i = 0; i < both->count; i++)
        drop(both->addresses[i]);
}

/* Both addresses move to the server's connection, for either order of the incarnations. */
static void joined(int incarnation)
{
    struct both both;
    both_begin(&both, 2, incarnation);
    for (int i = 0; i < 2; i++)
        join_answer(both.fronts[i], both.back_secret, both.front_secrets[i]);
    both_end(&both, true);
}

/* The connection belongs to another process, with the server's incarnation: we use our own at once,
 * without a time-out. */
static void denied(void)
{
    struct both both;
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), "BMI_SETTING");
    both_begin(&both, 1, GREATER);
    join_deny(both.fronts[0]);
    both_end(&both, false);
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
}

/* The server's connection ends before the answer that names it arrives. */
static void named_one_has_gone(void)
{
    struct both both;
    both_begin(&both, 1, GREATER);
    shutdown(both.back, SHUT_RDWR);
    for (int i = 0; i < 20; i++)
        operations_step(5);
    join_answer(both.fronts[0], both.back_secret, both.front_secrets[0]);
    both_end(&both, false);
}

/* The server knows the nonce of a connection, but not its ends: it was relayed. Or it repeats the
 * proof of the question, or an answer that was for another connection. */
static void forged(int how)
{
    struct both both;
    uint8_t bytes[32] = {0}, other[SECRET], item[ITEM];
    both_begin(&both, 1, GREATER);
    memcpy(bytes, both.identity.nonce, 16);
    bmi__digest16(other, bytes, sizeof bytes);
    item_make(item, both.back_secret, both.front_secrets[0]);
    if (how == 0)
        join_answer(both.fronts[0], other, both.front_secrets[0]);
    else if (how == 1)
        join_answer(both.fronts[0], both.back_secret, other);
    else
        join_send(both.fronts[0], RAW_REPLY, item + SECRET, PROOF);
    both_end(&both, false);
}

/* A server that does not answer a question: operations to it end in time. */
static void no_answer(void)
{
    struct both both;
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1500"), "BMI_SETTING");
    both_begin(&both, 1, GREATER);
    CHECK(noted_wait(both.asks, 1, TEST_BOUND_MS), "a message waits for ever");
    CHECK(both.asks[0].status == -BMI_ETIMEDOUT, "it ends with %s",
          bmi_status_string(both.asks[0].status));
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), "BMI_SETTING");
    end_await(both.fronts[0], "the connection without an answer");
    close(both.back);
    close(both.listener);
    drop(both.addresses[0]);
}

/* ---- a server that asks us ------------------------------------------------------------------- */

/* We are connected to the server, which connects to us and asks about that connection. Returns
 * whether we answered that it is ours; `right`: with the right proof. */
static bool question_put(int front, const uint8_t front_secret[SECRET], struct raw_hello *identity,
                         const char *listening, bool right)
{
    uint8_t back_secret[SECRET], item[ITEM], proof[PROOF], none[PROOF] = {0};
    int back = back_connect(identity, listening);
    frame_await(back, RAW_HELLO, "the answer to the server's own connection");
    secret_make(back_secret, back, false, identity->nonce);
    item_make(item, front_secret, right ? back_secret : front_secret);
    join_send(back, 0, item, sizeof item);
    struct raw_frame answer = frame_await(back, RAW_JOIN, "the answer to a question");
    CHECK(answer.flags == RAW_REPLY && answer.length == PROOF, "no answer");
    proof_make(proof, ANSWER_LABEL, front_secret, back_secret);
    bool yes = memcmp(body, proof, PROOF) == 0;
    CHECK(yes || memcmp(body, none, PROOF) == 0, "an answer that is none");
    join_send(back, 0, item, sizeof item);
    end_await(back, "a connection over which we are asked twice");
    CHECK(!readable(front), "the other connection suffers");
    return yes;
}

static void asked(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello dialled, identity = raw_hello_make(&chance);
    uint8_t front_secret[SECRET];
    uint64_t number = 0;
    struct noted ask;
    BMI_addr_t address;
    int listener = server_open(listening);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int front = dial_await(listener, &dialled);
    secret_make(front_secret, front, true, dialled.nonce);
    CHECK(raw_answer_hello(front, &identity), "the connection has ended");
    frame_await(front, RAW_UNEXPECTED, "the message");
    noted_good(&ask, "a message");
    CHECK(question_put(front, front_secret, &identity, listening, true),
          "we do not know our own connection");
    CHECK(!question_put(front, front_secret, &identity, listening, false),
          "we take a proof that was made for another connection");
    close(front);
    close(listener);
    drop(address);
}

/* ---- a connection that is just closing ------------------------------------------------------- */

enum { QUESTIONS = 1500 };

/* We close the idle connection. Its end does not come before the other side, which has requested
 * many answers and reads none, reads them. */
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

/* Until we have noticed the end of the connection. */
static void lose(BMI_addr_t address, int socket)
{
    static char memory[8];
    struct noted receive;
    note_receive(&receive, address, memory, sizeof memory, TAG);
    close(socket);
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS) && receive.status != 0,
          "a connection has not gone");
}

/* We send no question about a closing connection. */
static void not_joined_to_one_that_closes(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello identity = raw_hello_make(&chance), hello;
    uint64_t number = 0;
    struct noted ask;
    BMI_addr_t address;
    int listener = server_open(listening), back = raw_connect(ours, SMALL_BUFFER);
    CHECK(raw_send_hello(back, &identity), "our side has closed");
    frame_await(back, RAW_HELLO, "the answer");
    idle_close(back);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int front = dial_await(listener, &hello);
    CHECK(raw_answer_hello(front, &identity), "the connection has ended");
    struct raw_frame first;
    readable_await(front, "the message");
    CHECK(raw_receive(front, &first, body, TEST_BOUND_MS) && first.type == RAW_UNEXPECTED,
          "a frame of type %u comes first", first.type);
    noted_good(&ask, "a message beside a connection that is closing");
    end_await(back, "the connection that is closing");
    lose(address, front);
    close(listener);
    drop(address);
}

/* Nor do we answer that the other side may use a closing connection. */
static void not_answered_with_one_that_closes(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct raw_hello identity = raw_hello_make(&chance), hello;
    uint8_t front_secret[SECRET];
    uint64_t number = 0;
    struct noted ask;
    BMI_addr_t address;
    int bytes = SMALL_BUFFER, listener = server_open(listening);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    note_sendunexpected(&ask, address, &number, sizeof number, ASK_TAG);
    int front = dial_await(listener, &hello);
    secret_make(front_secret, front, true, hello.nonce);
    CHECK(raw_answer_hello(front, &identity), "the connection has ended");
    noted_good(&ask, "a message");
    idle_close(front);
    uint8_t back_secret[SECRET], item[ITEM], none[PROOF] = {0};
    int back = back_connect(&identity, listening);
    frame_await(back, RAW_HELLO, "the answer to who connects while its other connection closes");
    secret_make(back_secret, back, false, identity.nonce);
    item_make(item, front_secret, back_secret);
    join_send(back, 0, item, sizeof item);
    frame_await(back, RAW_JOIN, "the answer to a question");
    CHECK(memcmp(body, none, PROOF) == 0, "a connection that is closing is to be used");
    end_await(front, "the connection that is closing");
    close(back);
    close(listener);
    drop(address);
}

/* ---- alternatives ---------------------------------------------------------------------------- */

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

/* Posts a message, which a listener's server receives. Returns the connection. */
static int reach(BMI_addr_t address, int listener, const char *listening)
{
    static uint64_t number;
    struct noted asked;
    note_sendunexpected(&asked, address, &number, sizeof number, ASK_TAG);
    int socket = dial_answer(listener, listening);
    noted_good(&asked, "a message to an alternative");
    return socket;
}

/* The host of an address is that of the connected server, not of an alternative that was tried
 * before. */
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

    /* The server is restarted at its first address, and only there. */
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

/* The alternative that an address used does not affect an address that takes its place. */
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

int main(void)
{
    test_begin("dialled_fault", 120);
    chance = (struct chance){.state = test_seed()};
    serve("tcp://127.0.0.1:0", 0, ours);
    operations_open();
    mirror();
    other_version(true, "refuses us: it speaks another version of the protocol");
    other_version(false, "speaks version 999 of the protocol");
    eager_max_set_during_the_handshake();
    joined(GREATER);
    joined(LESSER);
    denied();
    named_one_has_gone();
    for (int how = 0; how < 3; how++)
        forged(how);
    no_answer();
    asked();
    not_joined_to_one_that_closes();
    not_answered_with_one_that_closes();
    test_unexpected = spoken;
    alternatives();
    in_the_place_of_another();
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
