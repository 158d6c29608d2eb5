/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_peer.c - encoder, decoder, and socket of a peer made by hand: see raw_peer.h.
 */
#include "raw_peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#if TEST_SSL
#include "raw_tls.h"
#endif

enum { HELLO_FIXED = 52 };

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static size_t short_encode(uint8_t *at, const struct raw_frame *frame)
{
    at = put(at, 0x80 | frame->type, 1);
    at = put(at, (frame->magic ? frame->magic : RAW_MAGIC) >> 8, 1);
    at = put(at, frame->length, 2);
    at = put(at, (uint32_t)frame->tag, 4);
    at = put(at, frame->seen, 4);
    put(at, frame->credit, 4);
    return RAW_SHORT;
}

size_t raw_encode(uint8_t bytes[RAW_HEADER], const struct raw_frame *frame)
{
    uint8_t *at = bytes;
    if (frame->brief)
        return short_encode(bytes, frame);
    at = put(at, frame->type, 1);
    at = put(at, frame->flags, 1);
    at = put(at, frame->magic ? frame->magic : RAW_MAGIC, 2);
    at = put(at, (uint32_t)frame->tag, 4);
    at = put(at, frame->length, 8);
    at = put(at, frame->seen, 4);
    at = put(at, frame->credit, 4);
    at = put(at, frame->source, 8);
    put(at, frame->target, 8);
    return RAW_HEADER;
}

static void short_decode(const uint8_t *bytes, struct raw_frame *frame)
{
    *frame = (struct raw_frame){
        .type = bytes[0] & 0x7f,
        .magic = bytes[1] == RAW_MAGIC >> 8 ? RAW_MAGIC : 0,
        .length = get(bytes + 2, 2),
        .tag = (int32_t)get(bytes + 4, 4),
        .seen = (uint32_t)get(bytes + 8, 4),
        .credit = (uint32_t)get(bytes + 12, 4),
        .brief = true,
    };
}

static void raw_decode(const uint8_t bytes[RAW_HEADER], struct raw_frame *frame)
{
    *frame = (struct raw_frame){
        .type = bytes[0],
        .flags = bytes[1],
        .magic = (uint16_t)get(bytes + 2, 2),
        .tag = (int32_t)get(bytes + 4, 4),
        .length = get(bytes + 8, 8),
        .seen = (uint32_t)get(bytes + 16, 4),
        .credit = (uint32_t)get(bytes + 20, 4),
        .source = get(bytes + 24, 8),
        .target = get(bytes + 32, 8),
    };
}

size_t raw_hello_encode(uint8_t *bytes, const struct raw_hello *hello)
{
    size_t length = strlen(hello->listen);
    memcpy(bytes, hello->incarnation, 16);
    memcpy(bytes + 16, hello->nonce, 16);
    uint8_t *at = put(bytes + 32, hello->version, 2);
    at = put(at, length, 2);
    at = put(at, hello->eager_max, 4);
    at = put(at, hello->unexpected_max, 4);
    at = put(at, hello->eager_credit, 4);
    at = put(at, hello->unexpected_credit, 4);
    memcpy(at, hello->listen, length);
    return HELLO_FIXED + length;
}

void raw_hello_decode(const uint8_t *bytes, struct raw_hello *hello)
{
    size_t length = (size_t)get(bytes + 34, 2);
    memcpy(hello->incarnation, bytes, 16);
    memcpy(hello->nonce, bytes + 16, 16);
    hello->version = (uint16_t)get(bytes + 32, 2);
    hello->eager_max = (uint32_t)get(bytes + 36, 4);
    hello->unexpected_max = (uint32_t)get(bytes + 40, 4);
    hello->eager_credit = (uint32_t)get(bytes + 44, 4);
    hello->unexpected_credit = (uint32_t)get(bytes + 48, 4);
    CHECK(length < sizeof hello->listen, "a HELLO with a listen address of %zu bytes", length);
    memcpy(hello->listen, bytes + HELLO_FIXED, length);
    hello->listen[length] = '\0';
}

/* ---- sockets --------------------------------------------------------------------------------- */

struct raw_hello raw_hello_make(struct chance *chance)
{
    struct raw_hello hello = {.version = RAW_VERSION,
                              .eager_max = 1 << 16,
                              .unexpected_max = 1 << 14,
                              .eager_credit = 1 << 20,
                              .unexpected_credit = 1 << 20};
    for (unsigned i = 0; i < 16; i += 8) {
        put(hello.incarnation + i, chance_next(chance), 8);
        put(hello.nonce + i, chance_next(chance), 8);
    }
    return hello;
}

/* Of a method with sockets. */
struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_un un;
    } to;
    socklen_t size;
};

static struct address name_parse(const char *name)
{
    struct address address = {.to.un.sun_family = AF_UNIX};
    size_t length = strlen(name);
    CHECK(length < sizeof address.to.un.sun_path - 1, "no name: %s", name);
    memcpy(address.to.un.sun_path + 1, name, length);
    address.size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return address;
}

static struct address address_parse(const char *listening)
{
    struct address address = {.to.in.sin_family = AF_INET, .size = sizeof address.to.in};
    char host[64];
    unsigned port;
    if (strncmp(listening, "unix://@", 8) == 0)
        return name_parse(listening + 8);
    CHECK(sscanf(listening, "%*[a-z+]://%63[0-9.]:%u", host, &port) == 2, "no address: %s",
          listening);
    CHECK(inet_pton(AF_INET, host, &address.to.in.sin_addr) == 1, "no host: %s", host);
    address.to.in.sin_port = htons((uint16_t)port);
    return address;
}

int raw_bind(const char *host, char listening[BMI_MAX_ADDR_LEN])
{
    bool local = strcmp(host, "@") == 0;
    struct address address = {.to.any.sa_family = local ? AF_UNIX : AF_INET};
    int descriptor = socket(address.to.any.sa_family, SOCK_STREAM, 0);
    if (!local)
        inet_pton(AF_INET, host, &address.to.in.sin_addr);
    address.size = local ? sizeof address.to.any.sa_family : sizeof address.to.in;
    CHECK(descriptor >= 0 && bind(descriptor, &address.to.any, address.size) == 0,
          "a socket at %s: %s", host, strerror(errno));
    address.size = sizeof address.to;
    getsockname(descriptor, &address.to.any, &address.size);
    if (local) {
        size_t length = address.size - offsetof(struct sockaddr_un, sun_path) - 1;
        snprintf(listening, BMI_MAX_ADDR_LEN, "unix://@%.*s", (int)length,
                 address.to.un.sun_path + 1);
    } else {
        const char *scheme = strcmp(test_scheme(), "tls") == 0 ? "tls" : "tcp";
        snprintf(listening, BMI_MAX_ADDR_LEN, "%s://%s:%u", scheme, host,
                 ntohs(address.to.in.sin_port));
    }
    return descriptor;
}

static void socket_connect(int descriptor, const struct address *address, const char *listening)
{
    int on = 1;
    if (address->to.any.sa_family == AF_INET)
        setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int result = connect(descriptor, &address->to.any, address->size);
    CHECK(result == 0, "connect to %s: %s", listening, strerror(errno));
}

/* TLS, where the address has that scheme. */
static int layer_make(int descriptor, const char *listening, bool accepts)
{
#if TEST_SSL
    if (strncmp(listening, "tls://", 6) == 0)
        return raw_tls_make(descriptor, accepts);
#else
    (void)listening, (void)accepts;
#endif
    return descriptor;
}

int raw_connect_plain(const char *listening, int receive_buffer)
{
    struct address address = address_parse(listening);
    int descriptor = socket(address.to.any.sa_family, SOCK_STREAM, 0);
    CHECK(descriptor >= 0, "socket: %s", strerror(errno));
    if (receive_buffer > 0)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    socket_connect(descriptor, &address, listening);
    return descriptor;
}

int raw_connect(const char *listening, int receive_buffer)
{
    return layer_make(raw_connect_plain(listening, receive_buffer), listening, false);
}

int raw_connect_from(const char *host, const char *listening)
{
    char own[BMI_MAX_ADDR_LEN];
    struct address address = address_parse(listening);
    int descriptor = raw_bind(host, own);
    socket_connect(descriptor, &address, listening);
    return layer_make(descriptor, listening, false);
}

int raw_accept(int listener, const char *listening)
{
    int descriptor = accept(listener, NULL, NULL);
    CHECK(descriptor >= 0, "accept: %s", strerror(errno));
    return layer_make(descriptor, listening, true);
}

bool raw_write(int socket, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0) {
        ssize_t sent = send(socket, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        from += sent;
        size -= (size_t)sent;
    }
    return true;
}

bool raw_send(int socket, const struct raw_frame *frame, const void *body)
{
    size_t length = body ? (size_t)frame->length : 0;
    uint8_t *bytes = malloc(RAW_HEADER + length);
    CHECK(bytes != NULL, "no memory");
    size_t header = raw_encode(bytes, frame);
    if (length > 0)
        memcpy(bytes + header, body, length);
    bool sent = raw_write(socket, bytes, header + length);
    free(bytes);
    return sent;
}

static bool hello_send(int socket, const struct raw_hello *hello, uint8_t flags)
{
    uint8_t body[HELLO_FIXED + BMI_MAX_ADDR_LEN];
    struct raw_frame frame = {.type = RAW_HELLO,
                              .flags = flags,
                              .length = raw_hello_encode(body, hello)};
    return raw_send(socket, &frame, body);
}

bool raw_send_hello(int socket, const struct raw_hello *hello)
{
    return hello_send(socket, hello, 0);
}

bool raw_answer_hello(int socket, const struct raw_hello *hello)
{
    return hello_send(socket, hello, RAW_REPLY);
}

bool raw_send_unexpected(int socket, int32_t tag, uint64_t number)
{
    struct raw_frame frame = {.type = RAW_UNEXPECTED,
                              .tag = tag,
                              .length = sizeof number,
                              .brief = true};
    return raw_send(socket, &frame, &number);
}

/* Reads exactly `size` bytes, to nowhere if `to` is NULL. */
static bool raw_read(int socket, void *to, size_t size, int wait_ms)
{
    char scrap[4096];
    char *at = to;
    while (size > 0) {
        struct pollfd poller = {.fd = socket, .events = POLLIN};
        if (poll(&poller, 1, wait_ms) <= 0)
            return false;
        size_t part = at || size < sizeof scrap ? size : sizeof scrap;
        ssize_t got = recv(socket, at ? at : scrap, part, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        if (at)
            at += got;
        size -= (size_t)got;
    }
    return true;
}

bool raw_receive(int socket, struct raw_frame *frame, void *body, int wait_ms)
{
    uint8_t header[RAW_HEADER];
    if (!raw_read(socket, header, RAW_SHORT, wait_ms))
        return false;
    if (header[0] & 0x80)
        short_decode(header, frame);
    else if (raw_read(socket, header + RAW_SHORT, RAW_HEADER - RAW_SHORT, wait_ms))
        raw_decode(header, frame);
    else
        return false;
    unsigned type = frame->type & RAW_TYPE_MASK;
    CHECK(frame->magic == RAW_MAGIC && type > 0 && type < RAW_TYPES,
          "the library sent no frame: type %u, magic %x", frame->type, frame->magic);
    CHECK(body == NULL || frame->length <= RAW_BODY_MAX, "a body of %llu bytes",
          (unsigned long long)frame->length);
    return raw_read(socket, body, (size_t)frame->length, wait_ms);
}

int raw_join(const char *listening, const struct raw_hello *ours, struct raw_hello *theirs)
{
    static uint8_t body[RAW_BODY_MAX];
    struct raw_frame frame;
    int socket = raw_connect(listening, 0);
    CHECK(raw_send_hello(socket, ours), "the library closed before our HELLO");
    CHECK(raw_receive(socket, &frame, body, TEST_BOUND_MS), "no HELLO from the library");
    CHECK(frame.type == RAW_HELLO && frame.length >= HELLO_FIXED, "the first frame has type %u",
          frame.type);
    if (theirs)
        raw_hello_decode(body, theirs);
    return socket;
}

bool raw_ended(int socket, int wait_ms)
{
    char scrap[4096];
    uint64_t until = now_ns() + (uint64_t)wait_ms * 1000000u;
    for (;;) {
        ssize_t got = recv(socket, scrap, sizeof scrap, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return true;
        uint64_t now = now_ns();
        struct pollfd poller = {.fd = socket, .events = POLLIN};
        if (got < 0 && now >= until)
            return false;
        if (got < 0)
            poll(&poller, 1, (int)((until - now) / 1000000u) + 1);
    }
}

void raw_reset(int socket)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
#if TEST_SSL
    raw_tls_reset(socket);
#endif
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(socket);
}
