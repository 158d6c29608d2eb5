/* SPDX-License-Identifier: BSD-3-Clause
 *
 * directed_test.c - directed sends by each of the three ways: where bytes go, keys and bounds,
 * revocation, cancelling, memory that is not mapped any more.
 *
 * Both ports are of this process, which the kernel treats as any other of the same user.
 */
#include "harness.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "internal.h"

enum way { WAY_MAPPED, WAY_VM, WAY_BOUNCED, WAYS };
static enum way way;
static struct host server, client;

enum { AREA = 3 << 20 };
static uint8_t *target, *source;

static bool vm_works(void)
{
    char from = 1, to = 0;
    struct iovec here = {&from, 1}, there = {&to, 1};
    return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1;
}

static void *area_make(void)
{
    void *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(area, MAP_FAILED);
    return area;
}

/* Whether the other's first arena of nic_dma_malloc has been announced, beside its messages. */
static bool arena_known(const struct host *host)
{
    return atomic_load(&host->peer->arenas[0]) != NULL;
}

static void setup_with(struct nic_options *options)
{
    options->refuse_vm_write = way != WAY_VM;
    options->refuse_mapping = way != WAY_MAPPED;
    hosts_pair(&server, &client, options);
    source = area_make();
    CU_ASSERT_EQUAL(nic_register_memory(client.port, source, AREA), 0);
    if (way == WAY_MAPPED) {
        target = nic_dma_malloc(server.port, AREA);
        memset(target, 0, AREA);
        host_send(&server, target, 32, 6, NIC_HIGH_PRIORITY, 0);
        host_provide(&client, 1, 6, NIC_HIGH_PRIORITY);
        CU_ASSERT_FATAL(
            UNTIL(client.received == 1 && server.callbacks == 1 && arena_known(&client)));
    } else {
        target = area_make();
        CU_ASSERT_EQUAL(nic_register_memory(server.port, target, AREA), 0);
    }
}

static void setup(void)
{
    struct nic_options options;
    nic_options_default(&options);
    setup_with(&options);
}

static void teardown(void)
{
    host_close(&client);
    host_close(&server);
    munmap(source, AREA);
    if (way != WAY_MAPPED)
        munmap(target, AREA);
}

static int put(const struct iovec *iov, size_t count, uint64_t key, uint64_t offset)
{
    return nic_directed_send_with_callback(client.peer, iov, count, key, offset, host_callback,
                                           &client);
}

static struct nic_statistics figures(struct host *host)
{
    struct nic_statistics now;
    nic_statistics(host->port, &now);
    return now;
}

static uint64_t way_count(void)
{
    struct nic_statistics now = figures(&client);
    return way == WAY_MAPPED ? now.mapped : way == WAY_VM ? now.vm_written : now.bounced;
}

static void bytes_go_where_they_belong(void)
{
    const size_t LENGTHS[] = {0, 1, 63, 4096, 100001, 262144, 262145, 2 << 20};
    uint64_t key;
    setup();
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, AREA, &key), 0);
    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(*LENGTHS); i++) {
        size_t length = LENGTHS[i], offset = 4097 * i;
        struct iovec iov = {source + i, length};
        pattern_fill(source + i, length, (unsigned)i);
        memset(target, 0xee, AREA);
        CU_ASSERT_EQUAL(put(&iov, 1, key, offset), 0);
        CU_ASSERT_FATAL(UNTIL(client.callbacks == i + 1));
        CU_ASSERT_EQUAL(client.last_status, 0);
        CU_ASSERT(pattern_is(target + offset, length, (unsigned)i));
        CU_ASSERT(offset == 0 || target[offset - 1] == 0xee);
        CU_ASSERT_EQUAL(target[offset + length], 0xee);
    }
    CU_ASSERT(way_count() > 10);
    CU_ASSERT_EQUAL(nic_revoke(server.port, key), 0);
    teardown();
}

static void lists_are_gathered(void)
{
    enum { COUNT = 3000 };
    static struct iovec iov[COUNT];
    uint64_t key;
    setup();
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, AREA, &key), 0);
    pattern_fill(source, AREA, 9);
    size_t place = 0;
    for (unsigned i = 0; i < COUNT; i++) { /* many empty and tiny, some large */
        size_t length = i % 5 == 0 ? 0 : i % 1000 == 1 ? 300000 : i % 97;
        iov[i] = (struct iovec){source + place, length};
        place += length;
    }
    CU_ASSERT_EQUAL(put(iov, COUNT, key, 11), 0);
    CU_ASSERT(UNTIL(client.callbacks == 1));
    CU_ASSERT_EQUAL(client.last_status, 0);
    CU_ASSERT(pattern_is(target + 11, place, 9));
    CU_ASSERT_EQUAL(target[11 + place], 0);
    teardown();
}

static void later_sends_arrive_later(void)
{
    uint64_t key;
    setup();
    host_provide(&server, 4, 6, NIC_HIGH_PRIORITY);
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, AREA, &key), 0);
    for (unsigned i = 1; i <= 200; i++) {
        struct iovec iov = {source, 5000};
        memset(source, (int)i, 5000);
        CU_ASSERT_EQUAL(put(&iov, 1, key, 0), 0);
        CU_ASSERT_FATAL(UNTIL(client.callbacks == 2 * i - 1));
        CU_ASSERT_EQUAL(host_send(&client, "done", 5, 6, NIC_HIGH_PRIORITY, 0), 0);
        CU_ASSERT_FATAL(UNTIL(server.received == i && client.callbacks == 2 * i));
        CU_ASSERT_EQUAL(target[0], (uint8_t)i);
        CU_ASSERT_EQUAL(target[4999], (uint8_t)i);
    }
    teardown();
}

static void expect_status(uint64_t key, uint64_t offset, size_t length, int status)
{
    struct iovec iov = {source, length};
    unsigned before = client.callbacks;
    CU_ASSERT_EQUAL(put(&iov, 1, key, offset), 0);
    CU_ASSERT_FATAL(UNTIL(client.callbacks == before + 1));
    CU_ASSERT_EQUAL(client.last_status, status);
}

static void keys_and_bounds_are_checked(void)
{
    uint64_t key, other;
    struct host stranger;
    setup();
    memset(source, 0xff, AREA);
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target + 100, 1000, &key), 0);
    expect_status(key, 0, 1000, 0);
    memset(target, 0, AREA);
    expect_status(key, 1, 1000, -EACCES);
    expect_status(key, 1001, 0, -EACCES);
    expect_status(key, UINT64_MAX - 10, 100, -EACCES);
    expect_status(key, 0, AREA, -EACCES);
    expect_status(key + 1, 0, 1, -EACCES);
    expect_status(key ^ 1ull << 40, 0, 1, -EACCES);
    expect_status(0, 0, 1, -EACCES);
    expect_status(UINT64_MAX, 0, 1, -EACCES);
    CU_ASSERT_EQUAL(nic_revoke(server.port, key), 0);
    CU_ASSERT_EQUAL(nic_revoke(server.port, key), -ENOENT);
    expect_status(key, 0, 1, -EACCES);
    expect_status(0, 0, 1, -EACCES); /* the status of the exposure at its place now */
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, 1000, &other), 0);
    CU_ASSERT_NOT_EQUAL(other, key); /* at the same place */
    expect_status(key, 0, 1, -EACCES);
    for (size_t i = 0; i < AREA; i++)
        if (target[i] != 0)
            CU_FAIL_FATAL("a refused byte was written");
    /* The exposure of one connection is not valid for another. */
    host_open(&stranger, NULL);
    uint16_t number = host_listen(&stranger, "stranger");
    struct nic_peer *first = server.peer;
    CU_ASSERT_EQUAL(nic_connect(server.port, "stranger", number, NULL, &server.peer), 0);
    CU_ASSERT_FATAL(UNTIL(server.ups == 1 && stranger.accepted == 1));
    CU_ASSERT_EQUAL(nic_revoke(server.port, other), 0);
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, 1000, &other), 0);
    expect_status(other, 0, 1, -EACCES);
    server.peer = first;
    host_close(&stranger);
    teardown();
}

static void both_sides_must_register(void)
{
    uint64_t key;
    static uint8_t plain[4096];
    struct iovec iov[2] = {{NULL, 100}, {plain, 100}};
    setup();
    iov[0].iov_base = source;
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, plain, 10, &key), -EFAULT);
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, 0, &key), -EINVAL);
    CU_ASSERT_EQUAL(put(iov, 2, 1, 0), -EFAULT);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 256);
    teardown();
}

static void one_that_waits_can_be_taken_back(void)
{
    uint64_t key;
    struct iovec iov = {NULL, 1 << 20};
    setup();
    iov.iov_base = source;
    memset(source, 1, AREA);
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, AREA, &key), 0);
    CU_ASSERT_EQUAL(put(&iov, 1, key, 0), 0);
    CU_ASSERT_EQUAL(nic_directed_send_with_callback(client.peer, &iov, 1, key, 2 << 20,
                                                    host_callback, &server),
                    0);
    CU_ASSERT(nic_cancel_send(client.peer, &server));
    CU_ASSERT(UNTIL(client.callbacks == 1));
    CU_ASSERT_EQUAL(target[(1 << 20) - 1], 1);
    CU_ASSERT_EQUAL(target[2 << 20], 0);
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 256);
    expect_status(key, 0, 1 << 20, 0); /* the next one has its own answer */
    teardown();
}

static void pushing_does_it_in_the_callers_thread(void)
{
    uint64_t key;
    struct iovec iov = {NULL, 1 << 20};
    setup();
    iov.iov_base = source;
    pattern_fill(source, AREA, 3);
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, AREA, &key), 0);
    CU_ASSERT_EQUAL(put(&iov, 1, key, 0), 0);
    bool left = nic_push(client.peer, 4 << 20);
    CU_ASSERT_EQUAL(left, way == WAY_BOUNCED);
    CU_ASSERT_EQUAL(client.callbacks, 0);
    if (way == WAY_MAPPED)
        CU_ASSERT(pattern_is(target, 1 << 20, 3));
    CU_ASSERT(UNTIL(client.callbacks == 1));
    CU_ASSERT(pattern_is(target, 1 << 20, 3));
    teardown();
}

/* A writer that never ends, against an owner that exposes, revokes, and looks. */
static atomic_bool writer_stop, writer_over;
static _Atomic uint64_t writer_key;

static void *write_on(void *unused)
{
    (void)unused;
    while (!atomic_load(&writer_stop)) {
        struct iovec iov = {source, 1 << 20};
        unsigned before = client.callbacks;
        if (put(&iov, 1, atomic_load(&writer_key), 0) == 0)
            while (client.callbacks == before) {
                nic_push(client.peer, 1 << 20);
                nic_unknown(client.port, nic_receive(client.port));
            }
    }
    atomic_store(&writer_over, true);
    return NULL;
}

static void nothing_is_written_after_a_revocation(void)
{
    pthread_t writer;
    uint64_t key;
    unsigned good = 0;
    if (way == WAY_BOUNCED) /* the owner's own poller writes */
        return;
    setup();
    memset(source, 0xff, AREA);
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, 1 << 20, &key), 0);
    atomic_store(&writer_key, key);
    atomic_store(&writer_stop, false);
    atomic_store(&writer_over, false);
    pthread_create(&writer, NULL, write_on, NULL);
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned k = 0; k < 20; k++)
            nic_unknown(server.port, nic_receive(server.port));
        int status = nic_revoke(server.port, key);
        CU_ASSERT_EQUAL(status, 0);
        if (status != 0)
            break;
        good += target[0] == 0xff;
        memset(target, 0, 1 << 20);
        for (unsigned k = 0; k < 20; k++)
            nic_unknown(server.port, nic_receive(server.port));
        for (size_t k = 0; k < 1 << 20; k += 61)
            if (target[k] != 0)
                CU_FAIL_FATAL("written after the revocation");
        CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, 1 << 20, &key), 0);
        atomic_store(&writer_key, key);
        while (i % 20 == 0 && *(volatile uint8_t *)target != 0xff)
            nic_unknown(server.port, nic_receive(server.port));
    }
    atomic_store(&writer_stop, true);
    while (!atomic_load(&writer_over)) /* the last one may wait for our answer */
        nic_unknown(server.port, nic_receive(server.port));
    pthread_join(writer, NULL);
    CU_ASSERT(good > 0);
    teardown();
}

static void memory_that_is_gone_is_an_error(void)
{
    uint64_t key;
    if (way != WAY_VM)
        return;
    setup();
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, AREA, &key), 0);
    CU_ASSERT_EQUAL(mprotect(target, AREA, PROT_NONE), 0);
    expect_status(key, 0, 5000, -EFAULT);
    CU_ASSERT_EQUAL(mprotect(target, AREA, PROT_READ | PROT_WRITE), 0);
    expect_status(key, 0, 5000, 0);
    CU_ASSERT_EQUAL(figures(&client).bounced, 0);
    teardown();
}

static void faults_and_timing_hold_for_them_too(void)
{
    uint64_t key;
    struct nic_options options;
    nic_options_default(&options);
    nic_options_preset(&options, "myrinet2000");
    options.resend_timeout_ms = 50;
    setup_with(&options);
    pattern_fill(source, AREA, 4);
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, AREA, &key), 0);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.drop_every = 1});
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    expect_status(key, 0, 1 << 20, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    CU_ASSERT(seconds >= (1 << 20) / 250e6);
    CU_ASSERT(pattern_is(target, 1 << 20, 4));
    CU_ASSERT_EQUAL(figures(&client).lost, 1);
    nic_set_faults(client.port, NULL, &(struct nic_faults){.dead_link = true});
    expect_status(key, 0, 100, -ETIMEDOUT);
    nic_set_faults(client.port, NULL, &(struct nic_faults){0});
    expect_status(key, 0, 100, 0);
    teardown();
}

int main(int argc, char **argv)
{
    static const struct test_case CASES[] = {
        {"bytes go where they belong", bytes_go_where_they_belong},
        {"lists are gathered", lists_are_gathered},
        {"later sends arrive later", later_sends_arrive_later},
        {"keys and bounds are checked", keys_and_bounds_are_checked},
        {"both sides must register", both_sides_must_register},
        {"one that waits can be taken back", one_that_waits_can_be_taken_back},
        {"pushing does it in the caller's thread", pushing_does_it_in_the_callers_thread},
        {"nothing is written after a revocation", nothing_is_written_after_a_revocation},
        {"memory that is gone is an error", memory_that_is_gone_is_an_error},
        {"faults and timing hold for them too", faults_and_timing_hold_for_them_too},
    };
    static const char *const NAMES[WAYS] = {"mapped", "vm", "bounced"};
    for (way = WAY_MAPPED; way < WAYS && argc == 2 && strcmp(argv[1], NAMES[way]) != 0; way++)
        ;
    if (argc != 2 || way == WAYS) {
        fprintf(stderr, "usage: %s mapped|vm|bounced\n", argv[0]);
        return 1;
    }
    if (way == WAY_VM && !vm_works()) {
        puts("skipped: the kernel refuses process_vm_writev here");
        return 77;
    }
    return CASES_RUN(NAMES[way], CASES);
}
