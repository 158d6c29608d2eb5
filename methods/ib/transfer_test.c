/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer_test.c - puts and gets between processes, without the core: also those that the protocol
 * does not use, and forbidden ones. The test's own process is the server, which lends memory; two
 * clients, forked first, get commands over a socket.
 *
 * OFI_METHOD (bmi_ofi_tcp) and OFI_HOST (127.0.0.1) in the environment choose the network: in a
 * guest that has RDMA devices it is bmi_ib.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "methods/ib/ib.h"
#include "methods/stream/fake_core.h"
#include "tests/unit/unit.h"

extern const struct bmi_method bmi__method_ib, bmi__method_ofi_tcp, bmi__method_ofi_verbs;

enum { CLIENTS = 2, REGIONS = 4, PAGE = 4096, SERVER_BYTES = 4 << 20, PLACES = 8, LINGER_MS = 200 };

enum kind { CONNECT, TRANSFER, MARK, DISCONNECT, COUNTERS, CONNECT_AGAIN, DISCONNECT_AGAIN };

/* A command to a client, and the client's answer at its end. */
struct command {
    enum kind kind;
    char url[200];
    bool get;
    uint8_t fill; /* every byte of a put; the expected value of each byte of a get */
    uint64_t bytes;
    uint32_t segments; /* of the client's memory */
    uint32_t count;
    struct bmi_region regions[REGIONS];
};
struct answer {
    int status;
    int64_t puts, gets, put_bytes, get_bytes;
    bool link_is_up;
    int unpaced; /* its TCP sockets whose congestion control is reno */
    int guarded; /* those with a time-out for data that is not acknowledged */
};

static struct client {
    pid_t pid;
    int wire;
} clients[CLIENTS];
static char url[200];
static uint8_t *memory; /* the server's: pages around it are not lent */

/* ---- a client ---------------------------------------------------------------------------------
 */

static struct {
    struct fake_owner owner;
    struct fake_owner again; /* a second link to the same server */
    bool over;
    int status;
} self;

static void transfer_over(struct bmi_transfer *transfer, int status)
{
    (void)transfer;
    self.over = true;
    self.status = status;
}

static int client_connect(const struct command *command, struct fake_owner *owner)
{
    static uint8_t into[PAGE];
    int status = fake_dial(command->url, owner, into);
    if (status)
        return status;
    return FAKE_UNTIL(owner->ups + owner->downs > 0) ? owner->status : -ETIMEDOUT;
}

static int bytes_check(const uint8_t *bytes, uint64_t count, uint8_t fill)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != fill)
            return -EBADMSG;
    return 0;
}

/* The client's memory in `segments` pieces, in the reverse order of their addresses. */
static int client_transfer(const struct command *command)
{
    void *buffers[PLACES];
    bmi_size_t sizes[PLACES];
    uint8_t *bytes = malloc(command->bytes);
    uint64_t each = command->bytes / command->segments, end = command->bytes;
    memset(bytes, command->get ? (uint8_t)~command->fill : command->fill, command->bytes);
    for (uint32_t i = 0; i < command->segments; i++) {
        sizes[i] = (bmi_size_t)(i + 1 == command->segments ? end : each);
        end -= (uint64_t)sizes[i];
        buffers[i] = bytes + end;
    }
    struct bmi_transfer transfer = {.local = {.buffers = buffers,
                                              .sizes = sizes,
                                              .count = command->segments,
                                              .left = (bmi_size_t)command->bytes},
                                    .remote = command->regions,
                                    .remote_count = command->count,
                                    .get = command->get};
    self.over = false;
    if (!self.owner.link)
        return -ENOTCONN;
    fake_method->transfer(self.owner.link, &transfer);
    int status = FAKE_UNTIL(self.over) ? self.status : -ETIMEDOUT;
    if (status == 0 && command->get)
        status = bytes_check(bytes, command->bytes, command->fill);
    free(bytes);
    return status;
}

/* Sends a frame after the end of a put: the put must have arrived before it. */
static int client_mark(void)
{
    static struct bmi_frame frame;
    int sent = self.owner.sent;
    frame = (struct bmi_frame){0};
    if (!self.owner.link)
        return -ENOTCONN;
    fake_header_write(frame.header, 1, 0, 0);
    fake_method->send(self.owner.link, &frame);
    fake_method->flush(self.owner.link);
    bool gone = FAKE_UNTIL(self.owner.sent > sent || self.owner.failed > 0);
    return !gone ? -ETIMEDOUT : self.owner.sent > sent ? 0 : self.owner.last_error;
}

static int client_put_or_get(const struct command *command)
{
    int status = client_transfer(command);
    return status || command->get ? status : client_mark();
}

/* Closes in order; if that takes long (a message of ours was lost), at once, as the core does. */
static int client_disconnect(struct fake_owner *owner)
{
    int64_t end = fake_now_ms() + LINGER_MS;
    if (owner->link)
        fake_method->close(owner->link, true);
    while (owner->link && fake_now_ms() < end)
        fake_drive(5);
    if (owner->link)
        fake_method->close(owner->link, false);
    return FAKE_UNTIL(!owner->link) ? 0 : -ETIMEDOUT;
}

static bool is_unpaced(int fd)
{
    char name[16] = "";
    socklen_t size = sizeof(name);
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 &&
           strcmp(name, "reno") == 0;
}

static int unpaced_count(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += is_unpaced(fd);
    return count;
}

static int guarded_count(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        unsigned timeout_ms = 0;
        socklen_t size = sizeof(timeout_ms);
        getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size);
        count += timeout_ms == (unsigned)fake_peer_timeout_ms;
    }
    return count;
}

static int client_obey(const struct command *command)
{
    switch (command->kind) {
    case CONNECT:
        return client_connect(command, &self.owner);
    case CONNECT_AGAIN:
        return client_connect(command, &self.again);
    case TRANSFER:
        return client_put_or_get(command);
    case MARK:
        return client_mark();
    case DISCONNECT:
        return client_disconnect(&self.owner);
    case DISCONNECT_AGAIN:
        return client_disconnect(&self.again);
    case COUNTERS:
        return 0;
    }
    return -EINVAL;
}

_Noreturn static void client_main(int wire)
{
    struct command command;
    struct pollfd polled = {.fd = wire, .events = POLLIN};
    fake_on_transfer = transfer_over;
    fake_start();
    for (;;) {
        while (poll(&polled, 1, 0) == 0)
            fake_drive(5);
        if (recv(wire, &command, sizeof(command), MSG_WAITALL) != sizeof(command))
            break;
        struct answer answer = {.status = client_obey(&command),
                                .puts = fake_counters[BMI_COUNT_PUTS],
                                .gets = fake_counters[BMI_COUNT_GETS],
                                .put_bytes = fake_counters[BMI_COUNT_PUT_BYTES],
                                .get_bytes = fake_counters[BMI_COUNT_GET_BYTES],
                                .link_is_up = self.owner.link != NULL,
                                .unpaced = unpaced_count(),
                                .guarded = guarded_count()};
        if (send(wire, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
            break;
    }
    exit(fake_stop());
}

static void clients_fork(void)
{
    for (int i = 0; i < CLIENTS; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
            abort();
        fflush(NULL);
        clients[i].pid = fork();
        if (clients[i].pid < 0)
            abort();
        if (clients[i].pid == 0) {
            close(pair[0]);
            for (int k = 0; k < i; k++)
                close(clients[k].wire);
            client_main(pair[1]);
        }
        close(pair[1]);
        clients[i].wire = pair[0];
    }
}

/* ---- the server -------------------------------------------------------------------------------
 */

static void tell(int client, const struct command *command)
{
    CU_ASSERT_EQUAL_FATAL(send(clients[client].wire, command, sizeof(*command), MSG_NOSIGNAL),
                          sizeof(*command));
}

/* Polls until the client has answered. */
static struct answer hear(int client)
{
    struct answer answer = {.status = -EPIPE};
    struct pollfd polled = {.fd = clients[client].wire, .events = POLLIN};
    while (poll(&polled, 1, 0) == 0)
        fake_drive(5);
    CU_ASSERT_EQUAL_FATAL(recv(clients[client].wire, &answer, sizeof(answer), MSG_WAITALL),
                          sizeof(answer));
    return answer;
}

static struct answer ask(int client, const struct command *command)
{
    tell(client, command);
    return hear(client);
}

/* Connects a client; returns the server's side of the link. */
static struct fake_owner *connected_by(int client, enum kind kind)
{
    struct command command = {.kind = kind};
    int before = fake_accepted_count;
    snprintf(command.url, sizeof(command.url), "%s", url);
    CU_ASSERT_EQUAL_FATAL(ask(client, &command).status, 0);
    CU_ASSERT_EQUAL_FATAL(fake_accepted_count, before + 1);
    return &fake_accepted[before];
}

static struct fake_owner *connected(int client)
{
    return connected_by(client, CONNECT);
}

static void disconnected(int client, struct fake_owner *owner)
{
    struct command command = {.kind = DISCONNECT};
    ask(client, &command);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
}

/* Lends `count` pieces of `bytes` each of the memory, every second one from offset on. */
static void *lend(struct fake_owner *owner, struct command *command, uint64_t offset,
                  uint64_t bytes, uint32_t count)
{
    void *buffers[REGIONS], *handle = NULL;
    bmi_size_t sizes[REGIONS];
    for (uint32_t i = 0; i < count; i++) {
        buffers[i] = memory + offset + 2 * i * bytes;
        sizes[i] = (bmi_size_t)bytes;
    }
    struct bmi_segments segments = {.buffers = buffers,
                                    .sizes = sizes,
                                    .count = count,
                                    .left = (bmi_size_t)(bytes * count)};
    command->count = REGIONS;
    CU_ASSERT_EQUAL_FATAL(fake_method->expose(owner->link, &segments, command->regions,
                                              &command->count, &handle),
                          0);
    CU_ASSERT_EQUAL(command->count, count);
    command->kind = TRANSFER;
    command->bytes = bytes * count;
    command->segments = 1;
    return handle;
}

/* Whether the server's memory holds `fill` in the pieces that lend() lends, and 0 elsewhere. */
static bool memory_holds(uint64_t offset, uint64_t bytes, uint32_t count, uint8_t fill)
{
    for (uint64_t i = 0; i < SERVER_BYTES; i++) {
        uint64_t piece = i < offset ? REGIONS * 2 : (i - offset) / bytes;
        bool lent = piece % 2 == 0 && piece / 2 < count;
        if (memory[i] != (lent ? fill : 0)) {
            printf("byte %llu is %u ", (unsigned long long)i, memory[i]);
            return false;
        }
    }
    return true;
}

static void put_and_get(struct fake_owner *owner, uint64_t offset, uint64_t bytes, uint32_t count,
                        uint32_t segments)
{
    struct command command = {.fill = 0x5A};
    memset(memory, 0, SERVER_BYTES);
    void *handle = lend(owner, &command, offset, bytes, count);
    command.segments = segments;
    struct answer before = ask(0, &(struct command){.kind = COUNTERS});
    int marks = owner->frames;
    CU_ASSERT_EQUAL(ask(0, &command).status, 0);
    CU_ASSERT(FAKE_UNTIL(owner->frames == marks + 1));
    CU_ASSERT(memory_holds(offset, bytes, count, 0x5A));
    for (uint32_t i = 0; i < count; i++)
        memset(memory + offset + 2 * i * bytes, 0xA5, bytes);
    command.get = true;
    command.fill = 0xA5;
    struct answer answer = ask(0, &command);
    CU_ASSERT_EQUAL(answer.status, 0);
    CU_ASSERT_EQUAL(answer.puts - before.puts, 1);
    CU_ASSERT_EQUAL(answer.gets - before.gets, 1);
    CU_ASSERT_EQUAL(answer.put_bytes - before.put_bytes, (int64_t)(bytes * count));
    CU_ASSERT_EQUAL(answer.get_bytes - before.get_bytes, (int64_t)(bytes * count));
    fake_method->release(owner->link, handle, true);
}

static void test_puts_and_gets(void)
{
    struct fake_owner *owner = connected(0);
    put_and_get(owner, 0, 1, 1, 1);
    put_and_get(owner, PAGE - 1, 2 * PAGE + 3, 1, 1);
    put_and_get(owner, 100, 20000, 1, 7);
    put_and_get(owner, 77, 3333, 4, 1);
    put_and_get(owner, 1, 100001, 4, PLACES);
    put_and_get(owner, 5, (2 << 20) + 77, 1, 3); /* more than one piece */
    disconnected(0, owner);
}

/* Whether the descriptor is a connection of the provider's: the others are to the listener. */
static bool is_the_providers(int fd)
{
    struct sockaddr_storage peer, here;
    socklen_t size = sizeof(peer), here_size = sizeof(here);
    char port[NI_MAXSERV];
    if (getpeername(fd, (struct sockaddr *)&peer, &size) < 0 || peer.ss_family == AF_UNIX ||
        getsockname(fd, (struct sockaddr *)&here, &here_size) < 0 ||
        getnameinfo((struct sockaddr *)&here, here_size, NULL, 0, port, sizeof(port),
                    NI_NUMERICSERV) != 0)
        return false;
    return strcmp(strrchr(url, ':') + 1, port) != 0;
}

/* Reads all bytes of the provider's connections. Returns how many. */
static size_t connections_read(void)
{
    static char gone[65536];
    size_t bytes = 0;
    for (int fd = 0; fd < 256; fd++) {
        ssize_t got;
        while (is_the_providers(fd) && (got = recv(fd, gone, sizeof(gone), MSG_DONTWAIT)) > 0)
            bytes += (size_t)got;
    }
    return bytes;
}

static void connections_end(void)
{
    for (int fd = 0; fd < 256; fd++)
        if (is_the_providers(fd))
            shutdown(fd, SHUT_RDWR);
}

/* A connection breaks with a put that its sender has written to a socket and the receiver has not
 * read: the put fails, and a new link works. */
static void test_lost(void)
{
    enum { BYTES = 50000, WAIT_MS = 20000 };
    struct fake_owner *owner = connected(0);
    put_and_get(owner, 0, 1000, 1, 1);
    if (fake_method != &bmi__method_ofi_tcp) {
        printf("skipped: not of TCP, whose connections are sockets ");
        disconnected(0, owner);
        return;
    }
    struct command command = {.fill = 0x5A};
    int marks = owner->frames;
    size_t lost = 0;
    memset(memory, 0, SERVER_BYTES);
    struct bmi_link *link = owner->link;
    bmi_link_ref(link);
    void *handle = lend(owner, &command, 0, BYTES, 1);
    tell(0, &command);
    for (int64_t end = fake_now_ms() + WAIT_MS; lost < BYTES && fake_now_ms() < end;)
        lost += connections_read(); /* the server does not poll meanwhile */
    CU_ASSERT(lost >= BYTES);
    connections_end();
    CU_ASSERT(hear(0).status < 0);
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1));
    CU_ASSERT_EQUAL(owner->frames, marks);
    CU_ASSERT(fake_method->release(link, handle, true));
    bmi_link_unref(link);
    disconnected(0, owner);
    owner = connected(0);
    put_and_get(owner, 0, 1000, 1, 1);
    disconnected(0, owner);
}

/* How a client's command is made a bad one. */
struct offence {
    void (*commit)(struct command *command);
    bool released; /* the named memory is not lent any more */
};

static bool refused(const struct answer *answer)
{
    printf("%s ", answer->status ? strerror(-answer->status) : "not told");
    return answer->status < 0 && answer->status != -ETIMEDOUT && answer->status != -EBADMSG;
}

/* One client makes a forbidden transfer while the other makes a permitted one. The first is
 * refused, and may connect again; the other one is not affected, and no other byte is written. */
static void forbidden(const struct offence *offence)
{
    struct command good = {.fill = 0x11}, bad = {.fill = 0xEE};
    struct fake_owner *owners[CLIENTS];
    memset(memory, 0, SERVER_BYTES);
    for (int i = 0; i < CLIENTS; i++)
        owners[i] = connected(i);
    void *handle = lend(owners[1], &good, 2 << 20, 100000, 4);
    void *bad_handle = lend(owners[1], &bad, PAGE, PAGE, 1);
    if (offence->commit)
        offence->commit(&bad);
    if (offence->released)
        fake_method->release(owners[1]->link, bad_handle, true);
    for (int i = 0; i < 2; i++) {
        bad.get = i == 1;
        tell(1, &good);
        struct answer answer = ask(0, &bad);
        CU_ASSERT(refused(&answer));
        CU_ASSERT_EQUAL(owners[0]->frames, 0);
        CU_ASSERT_EQUAL(hear(1).status, 0);
        CU_ASSERT(FAKE_UNTIL(owners[1]->frames == i + 1));
        disconnected(0, owners[0]);
        owners[0] = connected(0);
    }
    CU_ASSERT(memory_holds(2 << 20, 100000, 4, 0x11));
    CU_ASSERT_EQUAL(owners[1]->downs, 0);
    CU_ASSERT_EQUAL(ask(0, &good).status, 0);
    fake_method->release(owners[1]->link, handle, true);
    if (!offence->released)
        fake_method->release(owners[1]->link, bad_handle, true);
    for (int i = 0; i < CLIENTS; i++)
        disconnected(i, owners[i]);
}

static void key_change(struct command *bad)
{
    bad->regions[0].key ^= 0x5555;
}

static void test_unknown_key(void)
{
    forbidden(&(struct offence){.commit = key_change});
}

/* A registration may be of whole pages: memory beyond these is not accessible. */
static void end_pass(struct command *bad)
{
    bad->regions[0].length = bad->bytes = 3 * PAGE;
}

static void test_beyond_the_end(void)
{
    forbidden(&(struct offence){.commit = end_pass});
}

static void start_pass(struct command *bad)
{
    bad->regions[0].address -= PAGE;
}

static void test_before_the_start(void)
{
    forbidden(&(struct offence){.commit = start_pass});
}

static void test_released(void)
{
    forbidden(&(struct offence){.released = true});
}

/* A peer may be writing to memory that is lent when a link ends: the provider's connection is cut,
 * and all links of those two processes end. That does not happen if no memory is lent, or the other
 * side has finished. */
static void test_cut_with_lent_memory(void)
{
    struct fake_owner *first = connected(0), *second;
    struct command lent = {.fill = 0};
    for (int released = 1; released >= 0; released--) {
        second = connected_by(0, CONNECT_AGAIN);
        struct bmi_link *link = second->link;
        void *handle = lend(second, &lent, 0, PAGE, 1);
        bmi_link_ref(link);
        if (released)
            CU_ASSERT(fake_method->release(link, handle, true));
        fake_method->close(link, false);
        CU_ASSERT(FAKE_UNTIL(second->downs == 1));
        if (released)
            put_and_get(first, 0, PAGE, 1, 1);
        else
            CU_ASSERT(FAKE_UNTIL(first->downs == 1));
        if (!released)
            CU_ASSERT(fake_method->release(link, handle, true));
        bmi_link_unref(link);
    }
    disconnected(0, first);
    first = connected(0);
    second = connected_by(0, CONNECT_AGAIN);
    struct bmi_link *link = second->link;
    void *handle = lend(second, &lent, 0, PAGE, 1);
    bmi_link_ref(link);
    CU_ASSERT_EQUAL(ask(0, &(struct command){.kind = DISCONNECT_AGAIN}).status, 0);
    CU_ASSERT(FAKE_UNTIL(second->downs == 1));
    CU_ASSERT_EQUAL(second->status, 0);
    put_and_get(first, 0, PAGE, 1, 1);
    CU_ASSERT(fake_method->release(link, handle, true));
    bmi_link_unref(link);
    disconnected(0, first);
}

/* A peer that does not report that it has finished with released memory loses its link. */
static void test_kept_for_too_long(void)
{
    struct fake_owner *owner = connected(0);
    struct bmi_link *link = owner->link;
    struct command lent = {.fill = 0};
    void *handle = lend(owner, &lent, 0, PAGE, 1);
    bmi_link_ref(link);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_FALSE(fake_method->release(link, handle, false));
    fake_drive(0);
    CU_ASSERT_EQUAL(owner->downs, 0);
    fake_peer_timeout_ms = 1;
    CU_ASSERT(FAKE_UNTIL(owner->downs == 1 || fake_method->release(link, handle, false)));
    fake_peer_timeout_ms = 30000;
    CU_ASSERT_EQUAL(owner->downs, 1);
    CU_ASSERT_EQUAL(owner->status, -ETIMEDOUT);
    CU_ASSERT(fake_method->release(link, handle, true));
    bmi_link_unref(link);
    disconnected(0, owner);
}

/* The provider's own connection, which libfabric does not show, gets the options. */
static void test_unpaced_within_the_host(void)
{
    if (fake_method != &bmi__method_ofi_tcp) {
        printf("skipped: not of TCP ");
        return;
    }
    int any = socket(AF_INET, SOCK_STREAM, 0);
    bool all_are = is_unpaced(any);
    close(any);
    if (all_are) {
        printf("skipped: reno is the system's own ");
        return;
    }
    struct fake_owner *owner = connected(0);
    put_and_get(owner, 0, 1000, 1, 1);
    CU_ASSERT_EQUAL(ask(0, &(struct command){.kind = COUNTERS}).unpaced, 1);
    disconnected(0, owner);
}

/* Both the exchange and the provider's own connection have the time-out. */
static void test_guarded(void)
{
    if (fake_method != &bmi__method_ofi_tcp) {
        printf("skipped: not of TCP ");
        return;
    }
    struct fake_owner *owner = connected(0);
    put_and_get(owner, 0, 1000, 1, 1);
    CU_ASSERT_EQUAL(ask(0, &(struct command){.kind = COUNTERS}).guarded, 2);
    disconnected(0, owner);
}

/* ---- the program ------------------------------------------------------------------------------
 */

static bool method_choose(void)
{
    const struct bmi_method *const methods[] = {&bmi__method_ofi_tcp, &bmi__method_ib,
                                                &bmi__method_ofi_verbs};
    const char *name = getenv("OFI_METHOD"), *host = getenv("OFI_HOST");
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (strcmp(methods[i]->name, name ? name : "bmi_ofi_tcp") == 0)
            fake_method = methods[i];
    fake_host = host ? host : "127.0.0.1";
    return !name || strcmp(fake_method->name, name) == 0;
}

/* Whether the method cannot start here, for lack of libfabric or of a device. TCP needs none. */
static bool nothing_to_test(int status)
{
    return status == -ENOSYS || (status == -ENODEV && fake_method != &bmi__method_ofi_tcp);
}

/* Starts the method in a process of its own, since an open device would be shared with the forked
 * ones. Returns 0; 77: there is nothing to test; or 1. */
static int method_starts(void)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        void *state;
        int error = fake_method->start(NULL, &state);
        if (error)
            fprintf(stderr, "%s does not start: %s\n", fake_method->name, strerror(-error));
        _exit(error == 0 ? 0 : nothing_to_test(error) ? 77 : 1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    if (!WIFEXITED(status))
        fprintf(stderr, "its start ended by signal %d\n", WTERMSIG(status));
    return !WIFEXITED(status) ? 1 : WEXITSTATUS(status) == 77 ? 77 : WEXITSTATUS(status) != 0;
}

static int clients_end(void)
{
    int failed = 0;
    for (int i = 0; i < CLIENTS; i++) {
        int status = 0;
        close(clients[i].wire);
        waitpid(clients[i].pid, &status, 0);
        failed += status != 0;
    }
    if (failed)
        printf("%d clients did not end well\n", failed);
    return failed;
}

int main(void)
{
    CU_TestInfo tests[] = {{"unpaced within the host", test_unpaced_within_the_host},
                           {"both connections are guarded", test_guarded},
                           {"puts and gets", test_puts_and_gets},
                           {"lost with its connection", test_lost},
                           {"an unknown key is refused", test_unknown_key},
                           {"beyond the end is refused", test_beyond_the_end},
                           {"before the start is refused", test_before_the_start},
                           {"released memory is out of reach", test_released},
                           {"cut with lent memory", test_cut_with_lent_memory},
                           {"kept for too long", test_kept_for_too_long},
                           CU_TEST_INFO_NULL};
    if (!method_choose()) {
        puts("no such method");
        return 1;
    }
    int starts = method_starts();
    if (starts == 77)
        puts("skipped: no libfabric, or no device for this method");
    if (starts != 0)
        return starts;
    memory = mmap(NULL, SERVER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    clients_fork();
    fake_start();
    fake_listen(url, sizeof(url));
    int status = unit_run(fake_method->name, tests);
    int failed = clients_end();
    failed += fake_stop();
    return status || failed ? 1 : 0;
}
