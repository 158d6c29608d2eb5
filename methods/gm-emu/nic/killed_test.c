/* SPDX-License-Identifier: BSD-3-Clause
 *
 * killed_test.c - processes that are killed at any point: the peer learns, gets back what is
 * outstanding, and can go on; nothing is left behind, neither name, descriptor, nor memory.
 */
#include "harness.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>

#include "internal.h"

enum { AREA = 1 << 20 };
static struct host host;
static uint16_t number;
static char mortal[32]; /* the name of children that listen; another run has its own */

static unsigned descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

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

/* A child's life: talks to the parent with all it has, until it is killed. */
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
    nic_grant(own.port, own.peer, memory, AREA, &key);
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
    CU_ASSERT_EQUAL(nic_grant(host.port, host.peer, memory, AREA, &mine), 0);
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
    unsigned open = descriptors(), mapped = mappings();
    for (unsigned round = 0; round < ROUNDS; round++) {
        host.length = 0;
        number = ours;
        one_life(round, memory);
    }
    nic_receive(host.port); /* the last one is freed */
    CU_ASSERT_EQUAL(descriptors(), open);
    CU_ASSERT_EQUAL(mappings(), mapped);
    host_close(&host);
    CU_ASSERT_EQUAL(mappings(), 0);
}

/* A child of the killed process has inherited its socket, so that does not end. */
static void killed_with_a_heir(void)
{
    int heir[2], hold[2];
    pid_t grandchild = 0;
    host_open(&host, NULL);
    number = host_listen(&host, "parent");
    host_provide(&host, 4, 6, NIC_LOW_PRIORITY);
    CU_ASSERT_EQUAL_FATAL(pipe(heir), 0);
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
        if (write(heir[1], &grandchild, sizeof(grandchild)) != sizeof(grandchild))
            _exit(1);
        for (;;)
            pause();
    }
    CU_ASSERT(UNTIL(host.accepted == 1));
    CU_ASSERT_EQUAL(read(heir[0], &grandchild, sizeof(grandchild)), (ssize_t)sizeof(grandchild));
    child_kill(child);
    CU_ASSERT(UNTIL(host.downs == 1));
    CU_ASSERT_EQUAL(host.down_status, -ECONNRESET);
    CU_ASSERT_EQUAL(kill(grandchild, 0), 0); /* and it does live */
    close(hold[1]);
    close(hold[0]);
    close(heir[0]);
    close(heir[1]);
    host_close(&host);
}

/* The claim of a killed writer is nobody's. */
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
    CU_ASSERT_EQUAL(nic_grant(host.port, host.peer, memory, 4096, &key), 0);
    CU_ASSERT_EQUAL(host_send(&host, &key, sizeof(key), 6, NIC_LOW_PRIORITY, NIC_BUFFERED), 1);
    CU_ASSERT(UNTIL(host.received == 1));
    child_kill(child);
    CU_ASSERT_EQUAL(nic_revoke(host.port, key), 0); /* before the driver has seen the end */
    CU_ASSERT(UNTIL(host.downs == 1));
    nic_peer_release(host.refused);
    nic_receive(host.port);
    host_close(&host);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"killed at any point", killed_at_any_point},
        {"killed with an heir", killed_with_a_heir},
        {"a killed writer holds up no revocation", a_killed_writer_holds_up_no_revocation},
    };
    return CASES_RUN("killed", CASES);
}
