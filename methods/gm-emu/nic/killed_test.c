/* SPDX-License-Identifier: BSD-3-Clause
 *
 * killed_test.c - processes that are killed at any point: the peer is notified, gets back its
 * outstanding sends, and can go on; nothing is left behind, neither name, descriptor, nor memory.
 */
#include "harness.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "internal.h"

enum { AREA = 1 << 20 };
static struct host host;
static uint16_t number;
static char mortal[32]; /* the name of children that listen; another run has its own */

static unsigned mappings(void)
{
    unsigned count = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, "bmi-gm-nic") != NULL;
    fclose(file);
    return count;
}

static bool name_is_left(const char *node)
{
    char line[512];
    bool left = false;
    FILE *file = fopen("/proc/net/unix", "r");
    while (fgets(line, sizeof(line), file) != NULL)
        left |= strstr(line, node) != NULL;
    fclose(file);
    return left;
}

/* A child's life: uses every operation with the parent, until it is killed. */
static void child_live(bool listens, int tell)
{
    struct host own;
    uint64_t key;
    host_forget();
    host_open(&own, NULL);
    if (listens) {
        number = host_listen(&own, mortal);
        if (write(tell, &number, sizeof(number)) != sizeof(number))
            _exit(1);
    } else if (nic_connect(own.port, "parent", number, &own, &own.peer) != 0) {
        _exit(1);
    }
    host_provide(&own, 4, 6, NIC_LOW_PRIORITY);
    host_provide(&own, 4, 12, NIC_LOW_PRIORITY);
    while (own.ups + own.accepted == 0)
        hosts_drive();
    uint8_t *memory = nic_dma_malloc(own.port, AREA);
    nic_expose(own.port, own.peer, memory, AREA, &key);
    host_send(&own, &key, sizeof(key), 6, NIC_LOW_PRIORITY, NIC_BUFFERED);
    uint64_t theirs = 0;
    struct iovec iov = {memory, AREA};
    unsigned callbacks = 0;
    for (;;) {
        host_send(&own, memory, 2000, 12, NIC_LOW_PRIORITY, 0);
        if (own.received > 0 && own.length == sizeof(theirs))
            memcpy(&theirs, own.message, sizeof(theirs));
        if (theirs != 0)
            nic_directed_send_with_callback(own.peer, &iov, 1, theirs, 0, host_callback, &own);
        for (int i = 0; i < 20 && own.callbacks == callbacks; i++)
            hosts_drive_once();
        callbacks = own.callbacks;
    }
}

static pid_t child_start(bool listens)
{
    int tell[2];
    CU_ASSERT_EQUAL_FATAL(pipe(tell), 0);
    pid_t child = fork();
    if (child == 0) {
        child_live(listens, tell[1]);
        _exit(1);
    }
    if (listens)
        CU_ASSERT_EQUAL(read(tell[0], &number, sizeof(number)), (ssize_t)sizeof(number));
    close(tell[0]);
    close(tell[1]);
    return child;
}

static void child_kill(pid_t child)
{
    int status;
    CU_ASSERT_EQUAL(kill(child, SIGKILL), 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFSIGNALED(status));
}

/* One child: up, some traffic both ways, killed somewhere in it. */
static void one_life(unsigned round, void *memory)
{
    bool listens = round % 2 == 1;
    uint64_t mine, theirs = 0;
    unsigned downs = host.downs, met = host.ups + host.accepted, wanted = host.received + round * 3;
    struct iovec iov = {memory, AREA};
    pid_t child = child_start(listens);
    if (listens)
        CU_ASSERT_EQUAL(nic_connect(host.port, mortal, number, &host, &host.peer), 0);
    CU_ASSERT_FATAL(UNTIL(host.ups + host.accepted == met + 1));
    CU_ASSERT_EQUAL(nic_expose(host.port, host.peer, memory, AREA, &mine), 0);
    CU_ASSERT(host_send(&host, &mine, sizeof(mine), 6, NIC_LOW_PRIORITY, NIC_BUFFERED) >= 0);
    while (host.received < wanted && host.downs == downs) {
        CU_ASSERT_FATAL(hosts_drive());
        if (host.length == sizeof(theirs))
            memcpy(&theirs, host.message, sizeof(theirs));
        host_send(&host, memory, 3000, 12, NIC_LOW_PRIORITY, 0);
        if (theirs != 0)
            nic_directed_send_with_callback(host.peer, &iov, 1, theirs, 0, host_callback, &host);
    }
    child_kill(child);
    CU_ASSERT_FATAL(UNTIL(host.downs == downs + 1));
    CU_ASSERT_EQUAL(host.down_status, -ECONNRESET);
    CU_ASSERT_EQUAL(nic_num_send_tokens(host.port), 256);
    CU_ASSERT_EQUAL(nic_revoke(host.port, mine), 0);
    CU_ASSERT(!name_is_left(mortal));
    nic_peer_release(host.refused);
}

static void killed_at_any_point(void)
{
    enum { ROUNDS = 24 };
    snprintf(mortal, sizeof(mortal), "mortal-%d", (int)getpid());
    host_open(&host, NULL);
    number = host_listen(&host, "parent");
    uint16_t ours = number;
    host_provide(&host, 8, 6, NIC_LOW_PRIORITY);
    host_provide(&host, 8, 12, NIC_LOW_PRIORITY);
    void *memory = nic_dma_malloc(host.port, AREA);
    unsigned open = descriptors_open(), mapped = mappings();
    for (unsigned round = 0; round < ROUNDS; round++) {
        host.length = 0;
        number = ours;
        one_life(round, memory);
    }
    nic_receive(host.port); /* the last one is freed */
    CU_ASSERT_EQUAL(descriptors_open(), open);
    CU_ASSERT_EQUAL(mappings(), mapped);
    host_close(&host);
    CU_ASSERT_EQUAL(mappings(), 0);
}

/* A child of the killed process has inherited its socket, so the socket does not end. */
static void killed_while_a_forked_child_lives(void)
{
    int forked[2], hold[2];
    pid_t grandchild = 0;
    host_open(&host, NULL);
    number = host_listen(&host, "parent");
    host_provide(&host, 4, 6, NIC_LOW_PRIORITY);
    CU_ASSERT_EQUAL_FATAL(pipe(forked), 0);
    CU_ASSERT_EQUAL_FATAL(pipe(hold), 0);
    pid_t child = fork();
    if (child == 0) {
        struct host own;
        char byte;
        host_forget();
        close(hold[1]);
        host_open(&own, NULL);
        if (nic_connect(own.port, "parent", number, &own, &own.peer) != 0)
            _exit(1);
        while (own.ups == 0)
            hosts_drive();
        grandchild = fork();
        if (grandchild == 0) /* lives until the test ends */
            _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
        if (write(forked[1], &grandchild, sizeof(grandchild)) != sizeof(grandchild))
            _exit(1);
        for (;;)
            pause();
    }
    CU_ASSERT(UNTIL(host.accepted == 1));
    CU_ASSERT_EQUAL(read(forked[0], &grandchild, sizeof(grandchild)), (ssize_t)sizeof(grandchild));
    child_kill(child);
    CU_ASSERT(UNTIL(host.downs == 1));
    CU_ASSERT_EQUAL(host.down_status, -ECONNRESET);
    CU_ASSERT_EQUAL(kill(grandchild, 0), 0); /* and it does live */
    close(hold[1]);
    close(hold[0]);
    close(forked[0]);
    close(forked[1]);
    host_close(&host);
}

/* The claim of a killed writer does not count. */
static void a_killed_writer_holds_up_no_revocation(void)
{
    uint64_t key;
    host_open(&host, NULL);
    number = host_listen(&host, "parent");
    host_provide(&host, 4, 6, NIC_LOW_PRIORITY);
    void *memory = nic_dma_malloc(host.port, 4096);
    pid_t child = fork();
    if (child == 0) {
        struct host own;
        host_forget();
        host_open(&own, NULL);
        host_provide(&own, 1, 6, NIC_LOW_PRIORITY);
        if (nic_connect(own.port, "parent", number, &own, &own.peer) != 0)
            _exit(1);
        while (own.received == 0)
            hosts_drive();
        memcpy(&key, own.message, sizeof(key));
        atomic_store(&own.peer->mine->claim, key);
        host_send(&own, "claimed", 8, 6, NIC_LOW_PRIORITY, NIC_BUFFERED);
        for (;;)
            pause();
    }
    CU_ASSERT(UNTIL(host.accepted == 1));
    CU_ASSERT_EQUAL(nic_expose(host.port, host.peer, memory, 4096, &key), 0);
    CU_ASSERT_EQUAL(host_send(&host, &key, sizeof(key), 6, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
    CU_ASSERT(UNTIL(host.received == 1));
    child_kill(child);
    CU_ASSERT_EQUAL(nic_revoke(host.port, key), 0); /* before the poller has seen the end */
    CU_ASSERT(UNTIL(host.downs == 1));
    nic_peer_release(host.refused);
    nic_receive(host.port);
    host_close(&host);
}

/* The process of a writer. If `watched` is false its nonce is not that of its HELLO, so that the
 * host cannot watch the process. If `late`, it claims after the host has ended the connection. */
static void writer_live(int ready, int go, bool watched, bool late)
{
    struct host own;
    char byte;
    host_forget();
    host_open(&own, NULL);
    if (nic_connect(own.port, "parent", number, &own, &own.peer) != 0)
        _exit(1);
    nic_receive(own.port); /* sends HELLO */
    own.port->nonce[0] ^= !watched;
    if (write(ready, "", 1) != 1)
        _exit(1);
    while (own.ups == 0)
        hosts_drive();
    if (!late)
        atomic_store(&own.peer->mine->claim, UINT64_C(1) << 40);
    if (write(ready, "", 1) != 1 || read(go, &byte, 1) != 1)
        _exit(1);
    atomic_store(&own.peer->mine->claim, UINT64_C(1) << 40);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* As under a seccomp filter: only the end of its socket shows that it was killed. */
static void an_unwatched_writer_leaves_nothing(void)
{
    int ready[2], go[2];
    char byte = 0;
    host_open(&host, NULL);
    number = host_listen(&host, "parent");
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    CU_ASSERT_EQUAL_FATAL(pipe(go), 0);
    unsigned open = descriptors_open(), mapped = mappings();
    for (unsigned late = 0; late < 2; late++) {
        pid_t child = fork();
        if (child == 0)
            writer_live(ready[1], go[0], false, late != 0);
        CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
        CU_ASSERT_FATAL(UNTIL(host.accepted == late + 1));
        CU_ASSERT_EQUAL(host.peer->process.fd, -1);
        CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
        nic_peer_close(host.peer);
        CU_ASSERT_FATAL(UNTIL(host.downs == late + 1));
        CU_ASSERT_EQUAL(write(go[1], &byte, 1), 1);
        CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
        nic_peer_release(host.refused);
        nic_receive(host.port);
        CU_ASSERT(mappings() > mapped); /* it is waited for */
        child_kill(child);
        CU_ASSERT_FATAL(UNTIL(mappings() == mapped));
        CU_ASSERT_EQUAL(descriptors_open(), open);
    }
    for (int i = 0; i < 2; i++)
        close(ready[i]), close(go[i]);
    host_close(&host);
}

/* A peer that claims for ever is given up after a while, though it lives. One descriptor is kept
 * so long. */
static void a_writer_without_end_leaves_nothing(void)
{
    int ready[2], go[2];
    char byte = 0;
    struct nic_options options;
    nic_options_default(&options);
    options.revoke_timeout_ms = 200;
    host_open(&host, &options);
    number = host_listen(&host, "parent");
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    CU_ASSERT_EQUAL_FATAL(pipe(go), 0);
    unsigned open = descriptors_open(), mapped = mappings();
    for (unsigned watched = 0; watched < 2; watched++) {
        pid_t child = fork();
        if (child == 0)
            writer_live(ready[1], go[0], watched != 0, false);
        for (int i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
            CU_ASSERT_FATAL(UNTIL(host.accepted == watched + 1));
        }
        nic_peer_close(host.peer);
        CU_ASSERT_FATAL(UNTIL(host.downs == watched + 1));
        nic_peer_release(host.refused);
        nic_receive(host.port);
        CU_ASSERT_EQUAL(descriptors_open(), open + 1);
        CU_ASSERT(mappings() > mapped);
        CU_ASSERT_FATAL(UNTIL(mappings() == mapped));
        CU_ASSERT_EQUAL(descriptors_open(), open);
        CU_ASSERT_EQUAL(kill(child, 0), 0);
        child_kill(child);
    }
    for (int i = 0; i < 2; i++)
        close(ready[i]), close(go[i]);
    host_close(&host);
}

/* Sends descriptors until the kernel takes no more of this user. */
static bool crowd(int pair[2])
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS,
                            .cmsg_len = CMSG_LEN(8 * sizeof(int))}};
    struct iovec iov = {.iov_base = (char[]){0}, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(8 * sizeof(int))};
    struct rlimit limit = {60, 60}; /* no multiple of 8: reading one HELLO makes no room */
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    for (int i = 0; i < 8; i++)
        memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof(int), &pair[0], sizeof(int));
    for (int i = 0; i < 100; i++)
        if (sendmsg(pair[0], &message, MSG_DONTWAIT) < 0)
            return errno == ETOOMANYREFS;
    return false;
}

/* Waits until the server has received HELLO, or the client was refused. */
static void hello_await(const struct host *server, const struct host *own)
{
    const struct nic_peer *const *peer = (const struct nic_peer *const *)&server->port->peers;
    while (own->downs == 0 && (*peer == NULL || (*peer)->their_port == NULL))
        hosts_drive_once();
}

/* A host that waits for its WELCOME sends HELLO once more. The kernel may still count the closed
 * descriptors. */
static bool hello_again(const struct host *own)
{
    const int FDS[] = {own->port->shared_fd, own->port->doorbell.fd};
    struct nic_handshake hello;
    int status;
    nic__hello_fill(own->port, &hello, NIC_HELLO);
    do
        status = nic__handshake_send(own->peer->socket.fd, &hello, FDS, 2);
    while (status == -ETOOMANYREFS);
    return status == 0;
}

/* Runs as a user without privileges. Returns an exit status: 0 passed, 1 failed, 77 this kernel
 * does not bound the descriptors in transit. */
static int crowded_child(bool welcome, bool twice)
{
    const uint64_t LIMIT_NS = 5000000000u; /* half of the time limit of a connection attempt */
    int pair[2];
    struct host server, own;
    host_forget();
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 77;
    host_open(&server, NULL);
    host_open(&own, NULL);
    uint16_t at = host_listen(&server, "crowded");
    if (!welcome && !crowd(pair))
        return 77;
    if (nic_connect(own.port, "crowded", at, &own, &own.peer) != 0)
        return 1;
    if (welcome) {
        nic_receive(own.port); /* sends HELLO */
        if (!crowd(pair))
            return 77;
        hello_await(&server, &own);
    }
    for (int i = 0; i < 100; i++)
        hosts_drive_once();
    if (own.downs != 0 || own.ups != 0)
        return 1;
    close(pair[0]);
    close(pair[1]);
    uint64_t begin = nic__now();
    if (twice && !hello_again(&own))
        return 1;
    if (!UNTIL(own.downs == 1 || (own.ups == 1 && !twice)))
        return 1;
    return (own.downs == 1) == twice && nic__now() - begin < LIMIT_NS ? 0 : 1;
}

/* HELLO cannot be sent, or not be answered: later it can. Two of them are invalid. */
static void handshakes_are_repeated_when_too_many_descriptors_are_in_transit(void)
{
    for (int way = 0; way < 3; way++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(crowded_child(way > 0, way > 1));
        CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            printf("(no such bound here) ");
        else
            CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    }
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"killed at any point", killed_at_any_point},
        {"killed while a forked child lives", killed_while_a_forked_child_lives},
        {"a killed writer holds up no revocation", a_killed_writer_holds_up_no_revocation},
        {"an unwatched writer leaves nothing", an_unwatched_writer_leaves_nothing},
        {"a writer without end leaves nothing", a_writer_without_end_leaves_nothing},
        {"handshakes are repeated when too many descriptors are in transit",
         handshakes_are_repeated_when_too_many_descriptors_are_in_transit},
    };
    return CASES_RUN("killed", CASES);
}
