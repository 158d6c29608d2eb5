/* SPDX-License-Identifier: BSD-3-Clause
 *
 * port_test.c - how ports are named, found, refused, and closed.
 */
#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "internal.h"
#include "tests/unit/emulation.h"

static struct host server, client;

static int dial(const char *node, uint16_t number)
{
    return nic_connect(client.port, node, number, &client, &client.peer);
}

/* Dials. Returns 0 when the connection is up, else the error. */
static int dial_outcome(const char *node, uint16_t number)
{
    unsigned ups = client.ups, downs = client.downs;
    int status = dial(node, number);
    if (status != 0)
        return status;
    CU_ASSERT(UNTIL(client.ups > ups || client.downs > downs));
    if (client.downs > downs)
        nic_peer_release(client.refused);
    return client.downs > downs ? client.down_status : 0;
}

static void a_name_is_found_and_used_once(void)
{
    char many[NIC_NODE_MAX + 1] = "";
    uint16_t number = 0, same, zero = 0;
    host_open(&server, NULL);
    host_open(&client, NULL);
    CU_ASSERT_EQUAL(nic_listen(server.port, "a", &number), 0);
    CU_ASSERT_NOT_EQUAL(number, 0);
    same = number;
    CU_ASSERT_EQUAL(nic_listen(client.port, "a", &same), -EADDRINUSE);
    CU_ASSERT_EQUAL(nic_listen(client.port, "b", &same), 0); /* another node */
    CU_ASSERT_EQUAL(nic_listen(server.port, "a/b", &zero), -EINVAL);
    memset(many, 'x', NIC_NODE_MAX);
    CU_ASSERT_EQUAL(nic_listen(server.port, many, &number), -ENAMETOOLONG);
    CU_ASSERT_EQUAL(dial(many, 1), -ENAMETOOLONG);
    CU_ASSERT_EQUAL(dial("a", 0), -EINVAL);
    many[NIC_NODE_MAX - 1] = '\0';
    CU_ASSERT_EQUAL(nic_listen(server.port, many, &number), 0);
    CU_ASSERT_EQUAL(dial_outcome(many, number), 0);
    many[100] = 'y'; /* beyond what an address holds */
    CU_ASSERT_EQUAL(dial_outcome(many, number), -ECONNREFUSED);
    CU_ASSERT_EQUAL(dial_outcome("a", number), 0);
    CU_ASSERT(UNTIL(server.accepted == 2));
    CU_ASSERT_EQUAL(dial_outcome("a b", number), -EINVAL);
    host_close(&client);
    host_close(&server);
}

static void a_port_without_a_host_has_all_names(void)
{
    struct host exact;
    host_open(&server, NULL);
    host_open(&client, NULL);
    host_open(&exact, NULL);
    uint16_t number = host_listen(&server, "");
    CU_ASSERT_EQUAL(dial_outcome("one", number), 0);
    CU_ASSERT_EQUAL(dial_outcome("[::1]", number), 0);
    CU_ASSERT(UNTIL(server.accepted == 2));
    CU_ASSERT_EQUAL(nic_listen(exact.port, "one", &number), 0);
    CU_ASSERT_EQUAL(dial_outcome("one", number), 0);
    CU_ASSERT(UNTIL(exact.accepted == 1));
    CU_ASSERT_EQUAL(server.accepted, 2);
    host_close(&exact);
    host_close(&client);
    host_close(&server);
}

/* Names of another machine are not this one's, even if a port of this host has the same number. */
static void a_port_of_this_host_has_its_names(void)
{
    struct host exact;
    char name[NIC_NODE_MAX] = "";
    host_open(&server, NULL);
    host_open(&client, NULL);
    host_open(&exact, NULL);
    uint16_t number = host_listen(&server, NIC_THIS_HOST);
    CU_ASSERT_EQUAL(gethostname(name, sizeof(name) - 1), 0);
    const char *const names[] = {NIC_THIS_HOST, "127.0.0.1", "127.1.2.3", name};
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        CU_ASSERT_EQUAL(dial_outcome(names[i], number), 0);
    CU_ASSERT(UNTIL(server.accepted == sizeof(names) / sizeof(*names)));
    CU_ASSERT_EQUAL(dial_outcome("elsewhere", number), -ECONNREFUSED);
    CU_ASSERT_EQUAL(dial_outcome("192.0.2.1", number), -ECONNREFUSED);
    CU_ASSERT_EQUAL(nic_listen(exact.port, "127.1.2.3", &number), 0);
    CU_ASSERT_EQUAL(dial_outcome("127.1.2.3", number), 0);
    CU_ASSERT(UNTIL(exact.accepted == 1));
    host_close(&exact);
    host_close(&client);
    host_close(&server);
}

static void a_closed_port_leaves_its_name_free(void)
{
    host_open(&server, NULL);
    host_open(&client, NULL);
    uint16_t number = host_listen(&server, "free");
    CU_ASSERT_EQUAL(dial_outcome("free", number), 0);
    host_close(&server);
    CU_ASSERT(UNTIL(client.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, 0);
    CU_ASSERT_EQUAL(dial_outcome("free", number), -ECONNREFUSED);
    host_open(&server, NULL);
    CU_ASSERT_EQUAL(nic_listen(server.port, "free", &number), 0);
    CU_ASSERT_EQUAL(dial_outcome("free", number), 0);
    host_close(&client);
    host_close(&server);
}

static void options_have_ranges(void)
{
    struct nic_options options;
    struct nic_port *port;
    for (int i = 0; i < 8; i++) {
        nic_options_default(&options);
        uint32_t *fields[] = {&options.send_tokens,   &options.receive_tokens,
                              &options.max_size[0],   &options.max_size[1],
                              &options.exposures_max, &options.resend_timeout_ms,
                              &options.resend_ms,     &options.connect_timeout_ms};
        *fields[i] = 0;
        CU_ASSERT_EQUAL(nic_open(&options, &port), -EINVAL);
    }
    CU_ASSERT_EQUAL(nic_min_size_for_length(0), NIC_MIN_SIZE);
    CU_ASSERT_EQUAL(nic_min_size_for_length(64), 6);
    CU_ASSERT_EQUAL(nic_min_size_for_length(65), 7);
    CU_ASSERT_EQUAL(nic_max_length_for_size(12), 4096);
}

static void the_smaller_of_two_classes_counts(void)
{
    struct nic_options options;
    nic_options_default(&options);
    options.max_size[NIC_LOW_PRIORITY] = 6;
    options.max_size[NIC_HIGH_PRIORITY] = 20;
    host_open(&server, &options);
    host_open(&client, NULL);
    CU_ASSERT_EQUAL(dial_outcome("small", host_listen(&server, "small")), 0);
    CU_ASSERT_EQUAL(nic_peer_max_length(client.peer, NIC_LOW_PRIORITY), 64);
    CU_ASSERT_EQUAL(nic_peer_max_length(client.peer, NIC_HIGH_PRIORITY), 4096);
    host_provide(&server, 2, 6, NIC_LOW_PRIORITY);
    for (unsigned i = 1; i <= 100; i++) { /* rings of 256 bytes */
        CU_ASSERT(host_send(&client, "tiny", 5, 6, NIC_LOW_PRIORITY, NIC_BUFFERED) >= 0);
        CU_ASSERT_FATAL(UNTIL(server.received == i));
    }
    int pid;
    unsigned uid;
    nic_peer_process(client.peer, &pid, &uid);
    CU_ASSERT_EQUAL(pid, getpid());
    CU_ASSERT_EQUAL(uid, geteuid());
    host_close(&client);
    host_close(&server);
}

static void sends_before_a_close_arrive(void)
{
    hosts_pair(&server, &client, NULL);
    for (int i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(host_send(&client, "last words", 11, 6, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
    server.stopped = true;
    nic_peer_close(client.peer);
    CU_ASSERT(UNTIL(client.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, 0);
    CU_ASSERT_EQUAL(host_send(&client, "more", 5, 6, NIC_LOW_PRIORITY, 0), -ENOTCONN);
    server.stopped = false;
    host_provide(&server, 5, 6, NIC_LOW_PRIORITY);
    CU_ASSERT(UNTIL(server.downs == 1));
    CU_ASSERT_EQUAL(server.received, 10);
    CU_ASSERT_EQUAL(server.down_status, 0);
    nic_peer_release(client.refused);
    nic_peer_release(server.refused);
    host_close(&client);
    host_close(&server);
}

/* However many messages come before it, a program that has taken the last one sees the end before
 * it sleeps. */
static void the_end_follows_the_last_message(void)
{
    enum { MOST = 40 };
    host_open(&server, NULL);
    host_provide(&server, MOST, 6, NIC_LOW_PRIORITY);
    uint16_t number = host_listen(&server, "end");
    struct pollfd wait = {.fd = nic_descriptor(server.port), .events = POLLIN};
    for (unsigned count = 1; count <= MOST; count++) {
        host_open(&client, NULL);
        CU_ASSERT_EQUAL_FATAL(dial_outcome("end", number), 0);
        CU_ASSERT_FATAL(UNTIL(server.accepted == count));
        do
            while (hosts_drive_once())
                ;
        while (!nic_arm(server.port)); /* from now on it looks at descriptors first */
        for (unsigned i = 0; i < count; i++)
            CU_ASSERT_EQUAL(host_send(&client, "word", 4, 6, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
        host_close(&client);
        while (server.downs < count) {
            while (hosts_drive_once())
                ;
            if (server.downs < count && nic_arm(server.port))
                CU_ASSERT_EQUAL_FATAL(poll(&wait, 1, 1000), 1);
        }
        CU_ASSERT_EQUAL(server.received, count * (count + 1) / 2);
        nic_peer_release(server.refused);
    }
    host_close(&server);
}

static void a_close_returns_outstanding_sends(void)
{
    hosts_pair(&server, &client, NULL);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.dead_link = true});
    for (int i = 0; i < 5; i++)
        CU_ASSERT_EQUAL(host_send(&client, "never", 6, 6, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&server, "no buffer", 10, 6, NIC_LOW_PRIORITY, 0), 0);
    nic_peer_close(client.peer);
    nic_peer_close(client.peer); /* twice is once */
    CU_ASSERT(UNTIL(client.downs == 1 && server.downs == 1));
    CU_ASSERT_EQUAL(client.callbacks, 5);
    CU_ASSERT_EQUAL(client.failures, 5);
    CU_ASSERT_EQUAL(client.last_status, -ECANCELED);
    CU_ASSERT_EQUAL(server.callbacks, 1);
    CU_ASSERT_EQUAL(server.last_status, -ECONNRESET);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 256);
    host_close(&client);
    host_close(&server);
}

static void closed_before_it_was_dialled(void)
{
    struct nic_statistics figures;
    host_open(&server, NULL);
    host_open(&client, NULL);
    uint16_t number = host_listen(&server, "early");
    CU_ASSERT_EQUAL(dial("early", number), 0);
    nic_peer_close(client.peer);
    CU_ASSERT_FATAL(UNTIL(client.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, 0);
    nic_peer_release(client.refused);
    CU_ASSERT_EQUAL(dial_outcome("early", number), 0);
    CU_ASSERT_FATAL(UNTIL(server.accepted > 0 && !hosts_drive_once()));
    CU_ASSERT_EQUAL(server.accepted, 1);
    CU_ASSERT_EQUAL(server.downs, 0);
    CU_ASSERT_EQUAL(client.ups, 1);
    nic_statistics(server.port, &figures);
    CU_ASSERT_EQUAL(figures.refused, 0);
    host_close(&client);
    host_close(&server);
}

static void a_port_may_connect_to_itself(void)
{
    host_open(&client, NULL);
    uint16_t number = host_listen(&client, "self");
    CU_ASSERT_EQUAL(dial("self", number), 0);
    struct nic_peer *outward = client.peer;
    CU_ASSERT(UNTIL(client.ups == 1 && client.accepted == 1));
    CU_ASSERT_PTR_NOT_EQUAL(client.peer, outward);
    host_provide(&client, 1, 6, NIC_HIGH_PRIORITY);
    CU_ASSERT_EQUAL(host_send(&client, "to myself", 10, 6, NIC_HIGH_PRIORITY, 0), 0);
    CU_ASSERT(UNTIL(client.received == 1 && client.callbacks == 1));
    host_close(&client);
}

/* ---- strangers ----------------------------------------------------------------------------------
 */

static int raw_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

static int raw_listen(const char *node, uint16_t number)
{
    struct sockaddr_un address;
    uint32_t length;
    int fd = raw_socket();
    CU_ASSERT_EQUAL(nic__address(node, number, &address, &length), 0);
    CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)&address, length), 0);
    CU_ASSERT_EQUAL(listen(fd, 10), 0);
    return fd;
}

static int raw_connect(const char *node, uint16_t number)
{
    struct sockaddr_un address;
    uint32_t length;
    int fd = raw_socket();
    CU_ASSERT_EQUAL(nic__address(node, number, &address, &length), 0);
    CU_ASSERT_EQUAL_FATAL(connect(fd, (struct sockaddr *)&address, length), 0);
    return fd;
}

static uint16_t unused_number(const char *node)
{
    struct nic_port *port;
    struct nic_options options;
    uint16_t number = 0;
    nic_options_default(&options);
    CU_ASSERT_EQUAL_FATAL(nic_open(&options, &port), 0);
    CU_ASSERT_EQUAL_FATAL(nic_listen(port, node, &number), 0);
    nic_close(port);
    return number;
}

/* The server always has completed sends to report, and alternates between these and messages. */
static void a_peer_is_reported_before_its_messages(void)
{
    struct host newcomer;
    bool told = false, sent = false, arrived = false;
    hosts_pair(&server, &client, NULL);
    struct nic_peer *old = server.peer;
    host_open(&newcomer, NULL);
    host_provide(&server, 2, 6, NIC_LOW_PRIORITY);
    uint16_t number = host_listen(&server, "busy");
    CU_ASSERT_EQUAL(nic_connect(newcomer.port, "busy", number, NULL, &newcomer.peer), 0);
    const time_t limit = time(NULL) + HOST_LIMIT_S;
    while (!arrived && time(NULL) < limit) {
        CU_ASSERT_EQUAL_FATAL(nic_directed_send_with_callback(old, NULL, 0, 1, 0, host_callback,
                                                              &server),
                              0);
        nic_push(old, 1);
        struct nic_event *event = nic_receive(newcomer.port);
        if (event->type == NIC_PEER_UP_EVENT) {
            CU_ASSERT(host_send(&newcomer, "first", 5, 6, NIC_LOW_PRIORITY, NIC_BUFFERED) >= 0);
            sent = true;
        }
        event = nic_receive(server.port);
        arrived = event->type == NIC_RECV_EVENT;
        told |= event->type == NIC_PEER_ACCEPTED_EVENT;
        CU_ASSERT(!arrived || told);
        nic_unknown(server.port, event);
    }
    CU_ASSERT(sent);
    CU_ASSERT(arrived);
    host_close(&newcomer);
    host_close(&client);
    host_close(&server);
}

static void another_version_is_refused(void)
{
    struct nic_handshake handshake = {.magic = NIC_MAGIC,
                                      .version = NIC_VERSION + 1,
                                      .kind = NIC_HELLO};
    host_open(&server, NULL);
    host_open(&client, NULL);
    int fd = raw_connect("v", host_listen(&server, "v"));
    CU_ASSERT_EQUAL(nic__handshake_send(fd, &handshake, NULL, 0), 0);
    struct nic_statistics figures;
    CU_ASSERT(UNTIL((nic_statistics(server.port, &figures), figures.refused == 1)));
    CU_ASSERT_EQUAL(recv(fd, &handshake, sizeof(handshake), 0), (ssize_t)sizeof(handshake));
    CU_ASSERT_EQUAL(handshake.kind, NIC_REFUSE);
    CU_ASSERT_EQUAL(handshake.error, EPROTONOSUPPORT);
    CU_ASSERT_EQUAL(handshake.version, NIC_VERSION);
    close(fd);

    uint16_t number = unused_number("newer");
    int listener = raw_listen("newer", number);
    CU_ASSERT_EQUAL(dial("newer", number), 0);
    client.stopped = false;
    struct nic_event *event = nic_receive(client.port); /* dials */
    CU_ASSERT_EQUAL(event->type, NIC_NO_RECV_EVENT);
    fd = accept(listener, NULL, NULL);
    handshake.version = NIC_VERSION + 1;
    handshake.kind = NIC_WELCOME;
    CU_ASSERT_EQUAL(nic__handshake_send(fd, &handshake, NULL, 0), 0);
    CU_ASSERT(UNTIL(client.downs == 1));
    CU_ASSERT_EQUAL(client.down_status, -EPROTONOSUPPORT);
    close(fd);
    close(listener);
    CU_ASSERT_EQUAL(server.accepted, 0);
    CU_ASSERT_EQUAL(server.errors + client.errors, 0); /* a fault of the peer is no error here */
    host_close(&client);
    host_close(&server);
}

static void a_silent_server_is_given_up(void)
{
    struct nic_options options;
    nic_options_default(&options);
    options.connect_timeout_ms = 30;
    host_open(&client, &options);
    host_open(&server, &options);
    uint16_t number = unused_number("mute");
    int listener = raw_listen("mute", number);
    CU_ASSERT_EQUAL(dial_outcome("mute", number), -ETIMEDOUT);
    close(listener);
    /* The reverse: a client connects and sends nothing. */
    int fd = raw_connect("s", host_listen(&server, "s"));
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
        CU_ASSERT_FATAL(hosts_drive());
    CU_ASSERT_EQUAL(server.accepted + server.downs, 0);
    close(fd);
    host_close(&client);
    host_close(&server);
}

/* Valgrind keeps the limit by itself: it lets the kernel accept a connection, and then closes
 * it. */
static bool limit_is_the_kernels(void)
{
    const char *preload = getenv("LD_PRELOAD");
    if (preload == NULL || strstr(preload, "vgpreload") == NULL)
        return true;
    printf("(not under valgrind, whose limit of descriptors is its own) ");
    return false;
}

/* Leaves this process room for so many more descriptors. */
static struct rlimit descriptors_limit(unsigned more)
{
    struct rlimit before, now;
    int fds[8], lowest = dup(0);
    CU_ASSERT_FATAL(lowest >= 0 && more < 8);
    close(lowest);
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (unsigned i = 0; i <= more; i++)
        fds[i] = dup(0);
    now = before;
    now.rlim_cur = (rlim_t)fds[more];
    for (unsigned i = 0; i <= more; i++)
        close(fds[i]);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    return before;
}

static void without_descriptors_connections_are_refused(void)
{
    enum { WAITING = 5 };
    int fds[WAITING];
    if (!limit_is_the_kernels())
        return;
    host_open(&server, NULL);
    host_open(&client, NULL);
    uint16_t number = host_listen(&server, "full");
    for (int i = 0; i < WAITING; i++)
        fds[i] = raw_connect("full", number);
    struct rlimit before = descriptors_limit(0);
    for (int i = 0; i < WAITING; i++) {
        struct nic_handshake handshake;
        ssize_t length;
        while ((length = recv(fds[i], &handshake, sizeof(handshake), MSG_DONTWAIT)) < 0 &&
               errno == EAGAIN)
            CU_ASSERT_FATAL(hosts_drive());
        CU_ASSERT_EQUAL(length, (ssize_t)sizeof(handshake));
        CU_ASSERT_EQUAL(handshake.kind, NIC_REFUSE);
        CU_ASSERT_EQUAL(handshake.error, EMFILE);
        CU_ASSERT_EQUAL(recv(fds[i], &handshake, sizeof(handshake), MSG_DONTWAIT), 0);
    }
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < WAITING; i++)
        close(fds[i]);
    CU_ASSERT_EQUAL(dial_outcome("full", number), 0);
    host_close(&client);
    host_close(&server);
}

/* In a child: dials once for each order, and ends with the first outcome that was not 0. */
static void dial_on_orders(uint16_t number, int orders)
{
    char order;
    int status = 0;
    host_forget();
    host_open(&client, NULL);
    while (status == 0 && read(orders, &order, 1) == 1)
        status = dial_outcome("none", number);
    _exit(-status);
}

/* Given a server that lacks a descriptor for the connection itself, one of the two that come with
 * it, its process, or the link's memory; when a client dials, then it is refused again and again,
 * and accepted once there are descriptors. */
static void without_descriptors_the_dialler_waits(void)
{
    enum { LACKING = 5, REFUSALS = 3 };
    struct nic_statistics figures;
    int orders[2], status;
    if (!limit_is_the_kernels() ||
        test_emulation_lacks("process_vm_readv, for which a connection keeps a descriptor"))
        return;
    host_open(&server, NULL);
    uint16_t number = host_listen(&server, "none");
    CU_ASSERT_EQUAL(pipe2(orders, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        close(orders[1]);
        dial_on_orders(number, orders[0]);
    }
    close(orders[0]);
    for (unsigned more = 0; more < LACKING; more++) {
        nic_statistics(server.port, &figures);
        uint64_t before = figures.refused;
        unsigned crowded = server.crowded;
        struct rlimit limit = descriptors_limit(more);
        CU_ASSERT_EQUAL(write(orders[1], "", 1), 1);
        CU_ASSERT(
            UNTIL((nic_statistics(server.port, &figures), figures.refused >= before + REFUSALS)));
        CU_ASSERT(UNTIL(server.crowded > crowded));
        CU_ASSERT_EQUAL(server.accepted, more);
        CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
        CU_ASSERT(UNTIL(server.accepted == more + 1));
    }
    CU_ASSERT_EQUAL(server.warnings, LACKING); /* one a shortage */
    close(orders[1]);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    host_close(&server);
}

/* Accepts a connection if one waits, reads its HELLO, and refuses it for lack of descriptors. The
 * client may have given up since. Returns whether there was one. */
static bool refuse_one(int listener)
{
    struct nic_handshake refusal;
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    if (poll(&wait, 1, 0) == 0)
        return false;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CU_ASSERT_EQUAL(recv(fd, &refusal, sizeof(refusal), 0), (ssize_t)sizeof(refusal));
    nic__hello_fill(client.port, &refusal, NIC_REFUSE);
    refusal.error = EMFILE;
    int status = nic__handshake_send(fd, &refusal, NULL, 0);
    CU_ASSERT(status == 0 || status == -EPIPE);
    close(fd);
    return true;
}

/* Given a peer that refuses each time for lack of descriptors, when the time for connecting has
 * passed, then a client gives up. Meanwhile it has dialled after twice the time each, up to 100 ms;
 * a slow machine dials less often. */
static void without_descriptors_the_dialler_gives_up(void)
{
    enum { TIMEOUT_MS = 300, DOUBLED = 7, MOST_MS = 100 };
    struct nic_options options;
    nic_options_default(&options);
    options.connect_timeout_ms = TIMEOUT_MS;
    host_open(&client, &options);
    uint16_t number = unused_number("short");
    int listener = raw_listen("short", number);
    unsigned downs = client.downs;
    uint64_t refusals = 0, start = nic__now();
    CU_ASSERT_EQUAL(dial("short", number), 0);
    while (client.downs == downs && hosts_drive())
        refusals += refuse_one(listener);
    uint64_t passed_ms = (nic__now() - start) / 1000000;
    CU_ASSERT_EQUAL(client.down_status, -ETIMEDOUT);
    CU_ASSERT(passed_ms >= TIMEOUT_MS);
    CU_ASSERT(refusals >= 1 && refusals <= DOUBLED + passed_ms / MOST_MS);
    nic_peer_release(client.refused);
    close(listener);
    host_close(&client);
}

/* Another thread took the last descriptor: the waiting connection is accepted later, and does not
 * keep the poller awake until then. */
static void without_a_reserved_descriptor_they_wait(void)
{
    if (!limit_is_the_kernels())
        return;
    host_open(&server, NULL);
    uint16_t number = host_listen(&server, "later");
    int waiting = raw_connect("later", number), taken = server.port->reserve_fd;
    server.port->reserve_fd = -1;
    struct rlimit before = descriptors_limit(0);
    struct pollfd wait = {.fd = nic_descriptor(server.port), .events = POLLIN};
    for (int looks = 0; looks < 2; looks++) { /* after nic_arm a pass looks at all descriptors */
        hosts_drive_once();
        while (!nic_arm(server.port))
            hosts_drive_once();
    }
    bool asleep = poll(&wait, 1, 0) == 0;
    CU_ASSERT_NOT_EQUAL(server.port->accept_ns, 0);
    CU_ASSERT(asleep || nic__now() >= server.port->accept_ns);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    close(taken);
    struct nic_handshake handshake = {.magic = NIC_MAGIC, .version = NIC_VERSION + 1};
    CU_ASSERT_EQUAL(nic__handshake_send(waiting, &handshake, NULL, 0), 0);
    struct nic_statistics figures;
    CU_ASSERT(UNTIL((nic_statistics(server.port, &figures), figures.refused == 1)));
    CU_ASSERT_EQUAL(recv(waiting, &handshake, sizeof(handshake), 0), (ssize_t)sizeof(handshake));
    CU_ASSERT_EQUAL(handshake.error, EPROTONOSUPPORT); /* it was accepted, and read */
    CU_ASSERT(server.port->reserve_fd >= 0);
    close(waiting);
    host_close(&server);
}

/* ---- another user, another root: started as "port_test user", needs root
 * -------------------------------------
 */

static uint16_t user_number;
static bool user_allowed;

/* Runs as the user nobody: connects, and exits with the errno of the outcome. */
static void stranger_run(void)
{
    struct nic_options options;
    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(200);
    nic_options_default(&options);
    options.allow_other_users = true; /* it has nothing against us */
    host_open(&client, &options);
    int status = dial_outcome("user", user_number);
    _exit(-status);
}

static int stranger_outcome(void)
{
    struct nic_options options;
    struct nic_statistics figures;
    int status = 0;
    nic_options_default(&options);
    options.allow_other_users = user_allowed;
    host_open(&server, &options);
    user_number = host_listen(&server, "user");
    pid_t child = fork();
    if (child == 0) {
        host_forget();
        stranger_run();
    }
    CU_ASSERT(UNTIL(
        (nic_statistics(server.port, &figures), figures.refused == 1 || server.accepted == 1)));
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status));
    host_close(&server);
    return WEXITSTATUS(status);
}

static void another_user_is_refused_unless_allowed(void)
{
    user_allowed = false;
    CU_ASSERT_EQUAL(stranger_outcome(), EACCES);
    user_allowed = true;
    CU_ASSERT_EQUAL(stranger_outcome(), 0);
}

/* Runs as the user nobody: connects, sends nothing, and waits for the refusal. */
static void silent_stranger_run(uint16_t number, unsigned count)
{
    struct nic_handshake handshake;
    host_forget();
    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(200);
    for (unsigned i = 0; i < count; i++) {
        int fd = raw_connect("quiet", number);
        if (recv(fd, &handshake, sizeof(handshake), 0) != (ssize_t)sizeof(handshake) ||
            handshake.kind != NIC_REFUSE || handshake.error != EACCES ||
            recv(fd, &handshake, sizeof(handshake), 0) != 0)
            _exit(1);
    } /* its ends stay open */
    _exit(0);
}

/* Nor until it has said HELLO, which it need not do: it could take all descriptors. */
static void of_another_user_nothing_is_kept(void)
{
    enum { COUNT = 20 };
    struct nic_statistics figures;
    int status;
    host_open(&server, NULL);
    uint16_t number = host_listen(&server, "quiet");
    unsigned before = descriptors_open();
    pid_t child = fork();
    if (child == 0)
        silent_stranger_run(number, COUNT);
    CU_ASSERT(UNTIL((nic_statistics(server.port, &figures), figures.refused == COUNT)));
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(descriptors_open(), before);
    CU_ASSERT_PTR_NULL(server.port->peers);
    CU_ASSERT_EQUAL(server.warnings, COUNT);
    host_close(&server);
}

static void the_port_of_another_user_is_refused(void)
{
    int ready[2], status;
    char byte = 0;
    host_open(&client, NULL);
    uint16_t number = unused_number("trap");
    CU_ASSERT_EQUAL(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        host_forget();
        if (setuid(65534) != 0)
            _exit(200);
        int fd = raw_listen("trap", number);
        if (write(ready[1], &byte, 1) != 1 || accept(fd, NULL, NULL) < 0)
            _exit(1);
        _exit(0);
    }
    CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
    CU_ASSERT_EQUAL(dial_outcome("trap", number), -EACCES);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    host_close(&client);
}

/* As a server in a folder of its own, without /dev and /proc. */
static void a_port_needs_no_file(void)
{
    char folder[] = "/tmp/bmi-gm-XXXXXX";
    int status;
    CU_ASSERT_PTR_NOT_NULL(mkdtemp(folder));
    pid_t child = fork();
    if (child == 0) {
        struct nic_options options;
        struct nic_port *port;
        nic_options_default(&options);
        _exit(chroot(folder) != 0 ? 200 : -nic_open(&options, &port));
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    static const struct test_case USERS[] = {
        {"another user is refused unless allowed", another_user_is_refused_unless_allowed},
        {"of another user nothing is kept", of_another_user_nothing_is_kept},
        {"the port of another user is refused", the_port_of_another_user_is_refused},
        {"a port needs no file", a_port_needs_no_file},
    };
    static const struct test_case CASES[] = {
        {"a name is found, and used once", a_name_is_found_and_used_once},
        {"a port without a host has all names", a_port_without_a_host_has_all_names},
        {"a port of this host has its names", a_port_of_this_host_has_its_names},
        {"a closed port leaves its name free", a_closed_port_leaves_its_name_free},
        {"options have ranges", options_have_ranges},
        {"the smaller of two classes counts", the_smaller_of_two_classes_counts},
        {"sends before a close arrive", sends_before_a_close_arrive},
        {"the end follows the last message", the_end_follows_the_last_message},
        {"a close returns outstanding sends", a_close_returns_outstanding_sends},
        {"closed before it was dialled", closed_before_it_was_dialled},
        {"a port may connect to itself", a_port_may_connect_to_itself},
        {"a peer is reported before its messages", a_peer_is_reported_before_its_messages},
        {"another version is refused", another_version_is_refused},
        {"a silent server is given up", a_silent_server_is_given_up},
        {"without descriptors: refused", without_descriptors_connections_are_refused},
        {"without descriptors: waits", without_descriptors_the_dialler_waits},
        {"without descriptors: ends in time", without_descriptors_the_dialler_gives_up},
        {"without a reserved descriptor: later", without_a_reserved_descriptor_they_wait},
    };
    if (argc == 1)
        return CASES_RUN("ports", CASES);
    if (strcmp(argv[1], "user") != 0)
        return 1;
    if (geteuid() != 0) {
        puts("skipped: to become another user, or to take another root, takes root");
        return 77;
    }
    return CASES_RUN("other users", USERS);
}
