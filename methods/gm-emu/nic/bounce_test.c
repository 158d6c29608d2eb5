/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bounce_test.c - directed sends that go through the ring: when they do though they could be
 * written, and answers to several of them.
 *
 * vm: from plain memory to plain memory, where the kernel would let us write; bounced: it would
 * not. Both ports are of this process.
 */
#include "harness.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include "internal.h"

enum { AREA = 4 << 20, LONG = 2 << 20, RING = 512 << 10, PIECE = NIC_BOUNCE_PIECE, SHORT = 5000 };

static bool bounced; /* the way that is tested */
static struct host server, client;
static uint8_t *target, *source;

/* A send and its callback's status. */
struct sent {
    unsigned callbacks;
    int status;
};

static void sent_callback(struct nic_port *port, void *context, int status)
{
    struct sent *sent = context;
    (void)port;
    sent->callbacks++;
    sent->status = status;
}

static uint8_t *area_make(struct host *host)
{
    void *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(area, MAP_FAILED);
    CU_ASSERT_EQUAL(nic_register_memory(host->port, area, AREA), 0);
    return area;
}

static void setup(void)
{
    struct nic_options options;
    nic_options_default(&options);
    options.refuse_vm_write = bounced;
    hosts_pair(&server, &client, &options);
    source = area_make(&client);
    target = area_make(&server);
    pattern_fill(source, AREA, 7);
}

static void teardown(void)
{
    CU_ASSERT_EQUAL(nic_num_send_tokens(client.port), 256);
    host_close(&client);
    host_close(&server);
    munmap(source, AREA);
    munmap(target, AREA);
}

static uint64_t exposure(void)
{
    uint64_t key = 0;
    CU_ASSERT_EQUAL(nic_expose(server.port, server.peer, target, AREA, &key), 0);
    return key;
}

static void put(struct sent *sent, size_t length, uint64_t key, uint64_t offset)
{
    static struct iovec iov[64];
    static unsigned next;
    struct iovec *one = &iov[next++ % 64]; /* lent until the callback */
    *one = (struct iovec){source, length};
    *sent = (struct sent){0};
    CU_ASSERT_EQUAL(nic_directed_send_with_callback(client.peer, one, 1, key, offset, sent_callback,
                                                    sent),
                    0);
}

static bool all_over(const struct sent *sent, unsigned count)
{
    unsigned over = 0;
    for (unsigned i = 0; i < count; i++)
        over += sent[i].callbacks != 0;
    return over == count;
}

static void server_looks(unsigned times)
{
    while (times-- > 0)
        nic_unknown(server.port, nic_receive(server.port));
}

static struct nic_statistics figures(void)
{
    struct nic_statistics now;
    nic_statistics(client.port, &now);
    return now;
}

/* A receiver that looks copies data from the ring at once. */
static void through_the_ring_while_the_receiver_looks(void)
{
    struct sent sent;
    setup();
    uint64_t key = exposure();
    put(&sent, LONG, key, 5);
    for (int i = 0; i < 1000 && nic_push(client.peer, SHORT); i++)
        server_looks(1);
    CU_ASSERT(UNTIL(sent.callbacks == 1));
    CU_ASSERT_EQUAL(sent.status, 0);
    CU_ASSERT(pattern_is(target + 5, LONG, 7));
    CU_ASSERT_EQUAL(target[5 + LONG], 0);
    CU_ASSERT_EQUAL(figures().bounced_bytes, LONG);
    CU_ASSERT_EQUAL(figures().bounced, (LONG + PIECE - 1) / PIECE);
    CU_ASSERT_EQUAL(figures().vm_written_bytes, 0);
    teardown();
}

/* Where the memory is mapped, messages are lost, or the timing model is on, no data that can be
 * written directly goes through the ring. */
static void direct_writes_although_the_receiver_looks(void)
{
    for (unsigned way = 0; way < 3 && !bounced; way++) {
        struct sent sent;
        struct nic_options options;
        nic_options_default(&options);
        options.timing.latency_ns = way == 2;
        hosts_pair(&server, &client, &options);
        source = area_make(&client);
        target = way == 0 ? nic_dma_malloc(server.port, AREA) : area_make(&server);
        pattern_fill(source, AREA, 7);
        nic_set_faults(client.port, client.peer,
                       &(struct nic_faults){.drop_every = way == 1 ? 1000 : 0});
        CU_ASSERT(UNTIL(way != 0 || atomic_load(&client.peer->arenas[0]) != NULL));
        put(&sent, LONG, exposure(), 0);
        CU_ASSERT(UNTIL(sent.callbacks == 1));
        CU_ASSERT_EQUAL(sent.status, 0);
        CU_ASSERT_EQUAL(figures().bounced_bytes, 0);
        CU_ASSERT(pattern_is(target, LONG, 7));
        host_close(&client);
        host_close(&server);
        munmap(source, AREA);
        if (way != 0)
            munmap(target, AREA);
    }
}

/* A receiver that is awake but busy elsewhere: after a few pieces the rest is written to its
 * memory, if that is permitted, and it only has to confirm. */
static void direct_writes_past_a_busy_receiver(void)
{
    struct sent sent;
    setup();
    uint64_t key = exposure();
    server_looks(1);
    put(&sent, LONG, key, 0);
    for (int i = 0; i < 100; i++)
        nic_push(client.peer, LONG);
    CU_ASSERT_EQUAL(sent.callbacks, 0);
    if (bounced) {
        CU_ASSERT(figures().bounced_bytes <= RING);
    } else {
        CU_ASSERT(figures().bounced_bytes < RING / 2);
        CU_ASSERT_EQUAL(figures().bounced_bytes + figures().vm_written_bytes, LONG);
        CU_ASSERT_EQUAL(memcmp(target + RING, source + RING, LONG - RING), 0);
    }
    CU_ASSERT(UNTIL(sent.callbacks == 1));
    CU_ASSERT_EQUAL(sent.status, 0);
    CU_ASSERT(pattern_is(target, LONG, 7));
    teardown();
}

/* A sleeping receiver is woken when half of the ring is full, not for each piece. */
static void through_the_ring_to_a_sleeping_receiver(void)
{
    struct sent sent;
    setup();
    uint64_t key = exposure(), rung;
    while (!nic_arm(server.port))
        server_looks(1);
    rung = figures().doorbells;
    put(&sent, RING / 4, key, 0);
    nic_push(client.peer, LONG);
    CU_ASSERT_EQUAL(figures().bounced_bytes, RING / 4);
    CU_ASSERT_EQUAL(figures().doorbells, rung + 1); /* with the last piece */
    CU_ASSERT(UNTIL(sent.callbacks == 1));
    CU_ASSERT_EQUAL(sent.status, 0);
    CU_ASSERT(pattern_is(target, RING / 4, 7));
    while (!nic_arm(server.port))
        server_looks(1);
    rung = figures().doorbells;
    put(&sent, LONG, key, 0);
    nic_push(client.peer, RING / 4);
    CU_ASSERT_EQUAL(figures().doorbells, rung);
    nic_push(client.peer, RING / 4);
    CU_ASSERT_EQUAL(figures().doorbells, rung + 1); /* half of it is full */
    nic_push(client.peer, PIECE);
    CU_ASSERT_EQUAL(figures().bounced_bytes > 3 * RING / 4, true);
    CU_ASSERT_EQUAL(figures().doorbells, rung + 1);
    CU_ASSERT(UNTIL(sent.callbacks == 1));
    CU_ASSERT_EQUAL(sent.status, 0);
    CU_ASSERT(pattern_is(target, LONG, 7));
    teardown();
}

/* Each send under way ends by itself, also with more sends than the peer has places for answers,
 * and where all answers are given before one is taken. */
static void answers_after(uint32_t bounces)
{
    enum { COUNT = 20, BAD = 0 };
    struct sent sent[COUNT];
    size_t length = bounced ? SHORT : 64 << 10;
    setup();
    client.peer->bounces = bounces;
    uint64_t key = exposure(), bad = exposure();
    for (unsigned i = 0; i < COUNT; i++)
        put(&sent[i], length, i == BAD ? bad : key, i * length);
    nic_push(client.peer, AREA);
    for (unsigned i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL(sent[i].callbacks, 0);
    CU_ASSERT(!bounced || bounces != 0 || figures().bounced_bytes == NIC_ANSWERS * length);
    CU_ASSERT_EQUAL(nic_revoke(server.port, bad), 0); /* it is in the ring */
    server_looks(COUNT);
    CU_ASSERT(UNTIL(all_over(sent, COUNT)));
    for (unsigned i = 0; i < COUNT; i++) {
        CU_ASSERT_EQUAL(sent[i].callbacks, 1);
        CU_ASSERT_EQUAL(sent[i].status, i == BAD ? -EACCES : 0);
        if (i != BAD)
            CU_ASSERT(pattern_is(target + i * length, length, 7));
    }
    CU_ASSERT_EQUAL(target[BAD * length], 0);
    teardown();
}

static void each_has_its_own_answer(void)
{
    answers_after(0);
}

/* After all 32 bits of the numbers are used up. */
static void their_numbers_begin_again(void)
{
    for (uint32_t before = 0; before < NIC_ANSWERS; before++)
        answers_after(UINT32_MAX - before);
}

/* An answer that came after the sender had looked, and before it slept. */
static void an_answer_just_before_the_receiver_sleeps(void)
{
    struct sent sent;
    setup();
    uint64_t key = exposure();
    put(&sent, bounced ? SHORT : 64 << 10, key, 0);
    nic_push(client.peer, AREA);
    while (!nic_arm(client.port))
        nic_unknown(client.port, nic_receive(client.port));
    CU_ASSERT_EQUAL(nic_receive(client.port)->type, NIC_NO_RECV_EVENT); /* it is awake */
    server_looks(4);
    CU_ASSERT_FALSE(nic_arm(client.port));
    CU_ASSERT(UNTIL(sent.callbacks == 1));
    teardown();
}

/* A send that waits for its answer can be taken back; the answer is ignored then. */
static void taken_back_before_its_answer(void)
{
    struct sent sent[3];
    size_t length = bounced ? SHORT : 64 << 10;
    setup();
    uint64_t key = exposure();
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 3; i++)
            put(&sent[i], length, key, 0);
        nic_push(client.peer, AREA);
        CU_ASSERT(nic_cancel_send(client.peer, &sent[0]));
        CU_ASSERT(UNTIL(all_over(sent + 1, 2)));
        CU_ASSERT_EQUAL(sent[0].callbacks, 0);
        CU_ASSERT_EQUAL(sent[1].status, 0);
        CU_ASSERT_EQUAL(sent[2].status, 0);
        server_looks(4);
    }
    teardown();
}

/* Sends that wait for an answer end with the connection. */
static void they_end_with_the_connection(void)
{
    struct sent sent[3];
    size_t length = bounced ? SHORT : 64 << 10;
    setup();
    uint64_t key = exposure();
    for (unsigned i = 0; i < 3; i++)
        put(&sent[i], length, key, 0);
    nic_push(client.peer, AREA);
    nic_peer_close(client.peer);
    CU_ASSERT(UNTIL(all_over(sent, 3)));
    CU_ASSERT(sent[0].status < 0); /* others may have been written */
    CU_ASSERT(UNTIL(server.downs == 1 && client.downs == 1));
    teardown();
}

int main(int argc, char **argv)
{
    static const struct test_case CASES[] = {
        {"through the ring while the receiver looks", through_the_ring_while_the_receiver_looks},
        {"direct writes although the receiver looks", direct_writes_although_the_receiver_looks},
        {"direct writes past a busy receiver", direct_writes_past_a_busy_receiver},
        {"through the ring to a sleeping receiver", through_the_ring_to_a_sleeping_receiver},
        {"each has its own answer", each_has_its_own_answer},
        {"their numbers begin again", their_numbers_begin_again},
        {"an answer just before the receiver sleeps", an_answer_just_before_the_receiver_sleeps},
        {"taken back before its answer", taken_back_before_its_answer},
        {"they end with the connection", they_end_with_the_connection},
    };
    char from = 1, to = 0;
    struct iovec here = {&from, 1}, there = {&to, 1};
    bounced = argc == 2 && strcmp(argv[1], "bounced") == 0;
    if (argc != 2 || (!bounced && strcmp(argv[1], "vm") != 0)) {
        fprintf(stderr, "usage: %s vm|bounced\n", argv[0]);
        return 1;
    }
    if (!bounced && process_vm_writev(getpid(), &here, 1, &there, 1, 0) != 1) {
        puts("skipped: the kernel refuses process_vm_writev here");
        return 77;
    }
    return CASES_RUN(bounced ? "bounced" : "vm", CASES);
}
