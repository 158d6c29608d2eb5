/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rubbish_test.c - a peer that writes invalid data into shared memory harms only itself: words of
 * the rings and of the connection, messages and descriptors on the socket, claims that never end. A
 * well-behaved bystander, connected to the same port, must not be affected.
 */
#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "internal.h"

enum { EXPOSURES = 16 }; /* at once, to the server's memory */

static struct host server, client, honest;
static struct nic_peer *bad; /* the client, as the server sees it */
static uint16_t number;
static uint8_t *target;

static void server_open(void)
{
    struct nic_options options;
    nic_options_default(&options);
    options.exposures_max = EXPOSURES;
    options.resend_timeout_ms = 20;
    options.revoke_timeout_ms = 100;
    host_open(&server, &options);
    number = host_listen(&server, "victim");
    host_provide(&server, 8, 6, NIC_LOW_PRIORITY);
    host_provide(&server, 8, 12, NIC_LOW_PRIORITY);
    host_provide(&server, 8, 6, NIC_HIGH_PRIORITY);
    target = nic_dma_malloc(server.port, 65536);
}

static void connect_one(struct host *host)
{
    unsigned accepted = server.accepted;
    struct nic_options options;
    nic_options_default(&options);
    options.revoke_timeout_ms = 100; /* the client may take the invalid data for claims */
    host_open(host, &options);
    CU_ASSERT_EQUAL_FATAL(nic_connect(host->port, "victim", number, host, &host->peer), 0);
    CU_ASSERT_FATAL(UNTIL(host->ups == 1 && server.accepted == accepted + 1));
}

static void setup(void)
{
    server_open();
    connect_one(&honest);
    connect_one(&client);
    bad = server.peer;
}

static void honest_is_served(void)
{
    unsigned before = server.received, callbacks = honest.callbacks;
    CU_ASSERT_EQUAL(host_send(&honest, "I am well", 10, 6, NIC_LOW_PRIORITY, 0), 0);
    CU_ASSERT_EQUAL(host_send(&honest, "very well", 10, 6, NIC_HIGH_PRIORITY, 0), 0);
    CU_ASSERT_FATAL(UNTIL(server.received >= before + 2 && honest.callbacks == callbacks + 2));
    CU_ASSERT_EQUAL(honest.failures, 0);
    CU_ASSERT_EQUAL(honest.downs, 0);
}

static void teardown(void)
{
    host_close(&client);
    host_close(&honest);
    host_close(&server);
    CU_ASSERT_EQUAL(server.errors, 0);
}

/* A record as the client would write it, with anything in it. */
static void record_put(struct nic_ring *ring, uint32_t length, uint8_t kind, uint8_t size)
{
    struct nic_record *record =
        (struct nic_record *)(void *)(ring->base + (ring->position & (ring->size - 1)));
    record->what = nic__record_what(length, kind, size);
    record->due_ns = 0;
    atomic_store(&record->stamp, nic__stamp(ring->position));
    nic__doorbell(client.peer);
}

static void bad_records_end_the_connection(void)
{
    enum { LENGTH_MAX = (1 << NIC_RECORD_LENGTH) - 1 };
    const struct {
        uint32_t length;
        uint8_t kind, size;
    } RECORDS[] = {
        {LENGTH_MAX, NIC_RECORD_MESSAGE, 15},
        {32769, NIC_RECORD_MESSAGE, 16},
        {100, NIC_RECORD_MESSAGE, 6},
        {10, NIC_RECORD_MESSAGE, 0},
        {10, NIC_RECORD_MESSAGE, 31},
        {10, 7, 6},
        {10, 0, 6},
        {0, NIC_RECORD_PAD, 0},
        {10, NIC_RECORD_BOUNCE, 0},
        {LENGTH_MAX - 7, NIC_RECORD_BOUNCE, 0},
        {10, NIC_RECORD_BOUNCE + 1, 0},
    };
    for (size_t i = 0; i < sizeof(RECORDS) / sizeof(*RECORDS); i++) {
        setup();
        record_put(&client.peer->out[NIC_LOW_PRIORITY], RECORDS[i].length, RECORDS[i].kind,
                   RECORDS[i].size);
        CU_ASSERT(UNTIL(server.downs == 1 && client.downs == 1));
        CU_ASSERT_EQUAL(server.down_status, -EPROTO);
        CU_ASSERT_PTR_EQUAL(server.refused, bad);
        CU_ASSERT_EQUAL(server.received, 0);
        honest_is_served();
        teardown();
    }
}

/* The end of its socket is seen first, then its data: that is a normal end, without messages. */
static void rubbish_left_by_one_that_has_gone(void)
{
    setup();
    while (!nic_arm(server.port)) /* later input is handled in one pass, descriptors first */
        hosts_drive_once();
    record_put(&client.peer->out[NIC_LOW_PRIORITY], 10, NIC_RECORD_MESSAGE, 0);
    host_close(&client);
    uint64_t until = nic__now() + HOST_LIMIT_S * 1000000000ull;
    while (server.downs == 0 && nic__now() < until)
        hosts_drive_once();
    CU_ASSERT_EQUAL_FATAL(server.downs, 1);
    CU_ASSERT_EQUAL(server.down_status, -EPROTO);
    CU_ASSERT_EQUAL(server.received, 0);
    nic_peer_release(server.refused);
    honest_is_served();
    CU_ASSERT(nic_arm(server.port)); /* and it sleeps */
    host_close(&honest);
    host_close(&server);
}

static void bad_positions_end_the_connection(void)
{
    const uint64_t POSITIONS[] = {1, 1 << 20, UINT64_MAX, 63, 1ull << 63};
    for (size_t i = 0; i < sizeof(POSITIONS) / sizeof(*POSITIONS); i++) {
        setup();
        host_provide(&client, 1, 6, NIC_LOW_PRIORITY);
        atomic_store(&client.peer->mine->consumed[NIC_LOW_PRIORITY], POSITIONS[i]);
        server.peer = bad;
        CU_ASSERT_EQUAL(host_send(&server, "to the bad one", 15, 6, NIC_LOW_PRIORITY, 0), 0);
        CU_ASSERT(UNTIL(server.downs == 1 && server.callbacks == 1));
        CU_ASSERT_EQUAL(server.down_status, -EPROTO);
        CU_ASSERT_EQUAL(server.last_status, -EPROTO);
        honest_is_served();
        teardown();
    }
}

/* Directed sends by way of the ring, with invalid header fields. */
static void bad_bounces_write_nothing(void)
{
    uint64_t key, other, theirs;
    setup();
    memset(target, 0, 65536);
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target + 100, 100, &key), 0);
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target + 300, 100, &other), 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(bad->next, NULL); /* the bystander, as the server sees it */
    CU_ASSERT_EQUAL(nic_expose(server.port, bad->next, target + 500, 100, &theirs), 0);
    const struct nic_bounce BOUNCES[] = {
        {key, 101, 1, 1, {0}},  {key, UINT64_MAX, 2, 1, {0}},     {key, 60, 3, 1, {0}},
        {0, 0, 4, 1, {0}},      {key ^ 1ull << 50, 0, 5, 1, {0}}, {UINT64_MAX, 0, 6, 1, {0}},
        {theirs, 0, 7, 1, {0}},
    };
    for (size_t i = 0; i < sizeof(BOUNCES) / sizeof(*BOUNCES); i++) {
        struct nic_ring *ring = &client.peer->out[NIC_LOW_PRIORITY];
        uint8_t *place = nic__ring_reserve(ring, sizeof(BOUNCES[i]) + 50);
        memcpy(place, &BOUNCES[i], sizeof(BOUNCES[i]));
        memset(place + sizeof(BOUNCES[i]), 0xff, 50);
        nic__ring_publish(ring, sizeof(BOUNCES[i]) + 50, NIC_RECORD_BOUNCE, 0, 0);
        atomic_store(&client.peer->mine->wants, 1);
        nic__doorbell(client.peer);
        _Atomic uint64_t *answer = &client.peer->theirs->bounced[(i + 1) % NIC_ANSWERS];
        CU_ASSERT_FATAL(UNTIL(atomic_load(answer) >> 32 == i + 1));
        CU_ASSERT_EQUAL((uint32_t)atomic_load(answer), EACCES);
    }
    for (size_t i = 0; i < 65536; i++)
        if (target[i] != 0)
            CU_FAIL_FATAL("rubbish was written");
    honest_is_served();
    teardown();
}

static void put_to_the_bad(const void *from, size_t length, uint64_t key, uint64_t offset)
{
    static struct iovec iov;
    iov = (struct iovec){(void *)(uintptr_t)from, length};
    CU_ASSERT_EQUAL(nic_directed_send_with_callback(bad, &iov, 1, key, offset, host_callback,
                                                    &server),
                    0);
}

/* An exposure that names a place which no arena has is not followed into our mappings. */
static void bad_exposures_lead_nowhere(void)
{
    const struct {
        uint64_t offset;
        uint32_t arena;
    } PLACES[] = {{1ull << 40, 0},
                  {UINT64_MAX, 0},
                  {UINT64_MAX - 9, 0},
                  {(4 << 20) - 9, 0},
                  {0, NIC_ARENAS_MAX},
                  {0, UINT32_MAX - 1},
                  {0, 7}};
    for (size_t i = 0; i < sizeof(PLACES) / sizeof(*PLACES); i++) {
        uint64_t key;
        struct nic_statistics figures;
        setup();
        uint8_t *to = nic_dma_malloc(client.port, 65536);
        CU_ASSERT_EQUAL(nic_expose(client.port, client.peer, to, 65536, &key), 0);
        CU_ASSERT_FATAL(UNTIL(atomic_load(&bad->arenas[0]) != NULL));
        struct nic_shared_exposure *exposure =
            &client.port->shared->exposure[key & ((1u << NIC_EXPOSURE_BITS) - 1)];
        exposure->arena_offset = PLACES[i].offset;
        exposure->arena = PLACES[i].arena;
        put_to_the_bad(target, 1000, key, 10);
        CU_ASSERT(UNTIL(server.callbacks == 1));
        nic_statistics(server.port, &figures);
        CU_ASSERT_EQUAL(figures.mapped, 0);
        honest_is_served();
        teardown();
    }
}

/* A process that is not the one of the handshake is not written to: its data goes by the ring,
 * which it would have to read. */
static void a_process_that_is_another_is_not_written_to(void)
{
    uint64_t key;
    struct nic_statistics figures;
    setup();
    uint8_t *to = calloc(1, 65536);
    CU_ASSERT_EQUAL(nic_register_memory(client.port, to, 65536), 0);
    CU_ASSERT_EQUAL(nic_expose(client.port, client.peer, to, 65536, &key), 0);
    client.port->nonce[1] ^= 1;
    memset(target, 0x77, 1000);
    put_to_the_bad(target, 1000, key, 0);
    CU_ASSERT(UNTIL(server.callbacks == 1));
    CU_ASSERT_EQUAL(server.last_status, 0);
    CU_ASSERT_EQUAL(memcmp(to, target, 1000), 0);
    nic_statistics(server.port, &figures);
    CU_ASSERT_EQUAL(figures.vm_written, 0);
    CU_ASSERT_EQUAL(figures.bounced, 1);
    honest_is_served();
    teardown();
    free(to);
}

/* A position that cannot be, while nothing but a directed send is in the ring. */
static void a_bad_position_behind_a_directed_send(void)
{
    enum { LONG = 1 << 20 };
    uint64_t key;
    setup();
    uint8_t *from = calloc(1, LONG), *to = calloc(1, LONG);
    CU_ASSERT_EQUAL(nic_register_memory(server.port, from, LONG), 0);
    CU_ASSERT_EQUAL(nic_register_memory(client.port, to, LONG), 0);
    CU_ASSERT_EQUAL(nic_expose(client.port, client.peer, to, LONG, &key), 0);
    nic_receive(client.port); /* is awake */
    client.stopped = true;
    put_to_the_bad(from, LONG, key, 0);
    nic_push(bad, LONG);
    atomic_store(&client.peer->mine->consumed[NIC_LOW_PRIORITY], 63);
    CU_ASSERT(UNTIL(server.downs == 1 && server.callbacks == 1));
    CU_ASSERT_EQUAL(server.down_status, -EPROTO);
    CU_ASSERT_EQUAL(server.last_status, -EPROTO);
    honest_is_served();
    teardown();
    free(from), free(to);
}

/* An invalid errno, in answer to a directed send through the ring. */
static void bad_answers_are_errors(void)
{
    enum { LONG = 128 << 10 };
    uint64_t key;
    setup();
    uint8_t *from = malloc(LONG), *to = malloc(LONG);
    memset(from, 1, LONG);
    CU_ASSERT_EQUAL(nic_register_memory(server.port, from, LONG), 0);
    CU_ASSERT_EQUAL(nic_register_memory(client.port, to, LONG), 0);
    CU_ASSERT_EQUAL(nic_expose(client.port, client.peer, to, LONG, &key), 0);
    nic_receive(client.port); /* is awake */
    put_to_the_bad(from, LONG, key, 0);
    nic_push(bad, LONG);
    atomic_store(&client.peer->mine->bounced[1], UINT64_C(1) << 32 | 0x80000000);
    while (server.callbacks == 0)
        nic_unknown(server.port, nic_receive(server.port));
    CU_ASSERT_EQUAL(server.last_status, -EPROTO);
    CU_ASSERT_EQUAL(nic_revoke(client.port, key), 0);
    honest_is_served();
    teardown();
    free(from), free(to);
}

/* One doorbell rings for all peers of a port, and each of them holds its descriptor: a full
 * counter, which nothing can be added to, must not prevent a wake-up. */
static void a_full_doorbell_still_rings(void)
{
    const uint64_t FULL = UINT64_MAX - 1;
    uint64_t count;
    setup();
    for (int own = 0; own < 2; own++) {
        (void)!read(client.peer->doorbell, &count, sizeof(count));
        CU_ASSERT_EQUAL(write(client.peer->doorbell, &FULL, sizeof(FULL)), (ssize_t)sizeof(FULL));
        do
            while (hosts_drive_once())
                ;
        while (!nic_arm(server.port));
        struct pollfd wait = {.fd = nic_descriptor(server.port), .events = POLLIN};
        if (poll(&wait, 1, 0) == 1) { /* the counter is to be filled up */
            nic_receive(server.port);
            CU_ASSERT_FATAL(nic_arm(server.port));
        }
        CU_ASSERT_EQUAL(poll(&wait, 1, 0), 0);
        if (own != 0)
            nic_peer_close(bad); /* as another thread would */
        else if (host_send(&honest, "I ring", 6, 6, NIC_LOW_PRIORITY, NIC_BUFFERED) != 1)
            CU_FAIL("a message was refused");
        CU_ASSERT_EQUAL(poll(&wait, 1, 1000), 1);
        honest_is_served();
    }
    teardown();
}

/* It may be no doorbell: without /proc there is no way to check. */
static void a_doorbell_that_cannot_be_rung_is_no_error(void)
{
    setup();
    int doorbell = bad->doorbell;
    atomic_store(&client.port->shared->asleep, 1);
    bad->doorbell = -1;
    nic__doorbell(bad);
    bad->doorbell = doorbell;
    honest_is_served();
    teardown();
}

static void a_claim_that_never_ends_is_given_up(void)
{
    uint64_t key, second;
    setup();
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target, 100, &key), 0);
    CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, 100, &second), 0);
    atomic_store(&client.peer->mine->claim, key);
    CU_ASSERT_EQUAL(nic_revoke(server.port, second), 0); /* another key: no waiting */
    CU_ASSERT_EQUAL(nic_revoke(server.port, key), -EBUSY);
    CU_ASSERT(UNTIL(server.downs == 1 && client.downs == 1));
    atomic_store(&client.peer->mine->claim, 0);
    nic_peer_release(server.refused);
    honest_is_served();
    teardown();
}

/* A peer that goes on claiming keeps its place only until its connection has ended, however often
 * peers do so. */
static void places_of_claims_that_never_end_come_back(void)
{
    uint64_t key, keys[EXPOSURES];
    server_open();
    connect_one(&honest);
    for (unsigned round = 1; round <= EXPOSURES + 1; round++) {
        connect_one(&client);
        bad = server.peer;
        struct nic_peer *to = round % 2 == 0 ? NULL : bad;
        CU_ASSERT_EQUAL_FATAL(nic_expose(server.port, to, target, 100, &key), 0);
        atomic_store(&client.peer->mine->claim, key);
        CU_ASSERT_EQUAL(nic_revoke_begin(server.port, key), 0);
        CU_ASSERT_EQUAL(nic_revoke_end(server.port, key, 1), -EBUSY);
        nic_revoke_leave(server.port, key);
        for (unsigned i = 0; i < EXPOSURES - 1; i++)
            CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, 100, &keys[i]), 0);
        CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, 100, &key), -ENOSPC);
        for (unsigned i = 0; i < EXPOSURES - 1; i++)
            CU_ASSERT_EQUAL(nic_revoke(server.port, keys[i]), 0);
        nic_peer_close(bad);
        CU_ASSERT_FATAL(UNTIL(server.downs == round && client.downs == 1));
        nic_peer_release(server.refused);
        CU_ASSERT(UNTIL(server.port->peers->next == NULL)); /* the bystander alone */
        host_close(&client);
    }
    for (unsigned i = 0; i < EXPOSURES; i++)
        CU_ASSERT_EQUAL(nic_expose(server.port, NULL, target, 100, &keys[i]), 0);
    honest_is_served();
    host_close(&honest);
    host_close(&server);
}

/* The closing port waits a bounded time for the claim. */
static void a_claim_on_a_port_that_closes_is_no_error(void)
{
    uint64_t key;
    setup();
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target, 100, &key), 0);
    atomic_store(&client.peer->mine->claim, key);
    host_close(&server);
    CU_ASSERT_EQUAL(server.errors, 0);
    host_close(&client);
    host_close(&honest);
}

/* A claim with the key of another peer's exposure has no effect: all peers can read all keys. */
static void a_claim_on_anothers_exposure_is_none(void)
{
    uint64_t key;
    setup();
    struct nic_peer *good = bad->next; /* the bystander came before */
    CU_ASSERT_EQUAL(nic_expose(server.port, good, target, 100, &key), 0);
    atomic_store(&client.peer->mine->claim, key);
    CU_ASSERT_EQUAL(nic_revoke(server.port, key), 0);
    CU_ASSERT_EQUAL(nic_expose(server.port, good, target, 100, &key), 0);
    atomic_store(&client.peer->mine->claim, key);
    CU_ASSERT_EQUAL(nic_revoke_begin(server.port, key), 0);
    CU_ASSERT_EQUAL(nic_revoke_end(server.port, key, 0), 0);
    atomic_store(&client.peer->mine->claim, 0);
    honest_is_served();
    CU_ASSERT_EQUAL(server.downs, 0);
    teardown();
}

/* With many peers, a revocation must not look at each of them for each region of each receive. */
static void the_end_of_an_exposure_looks_at_its_peer_alone(void)
{
    uint64_t key;
    setup();
    struct nic_peer *good = bad->next; /* the bystander came before */
    struct nic_shared_end *theirs = good->theirs;
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target, 100, &key), 0);
    good->theirs = (struct nic_shared_end *)sizeof(*theirs); /* a read there would crash the test */
    CU_ASSERT_EQUAL(nic_revoke_begin(server.port, key), 0);
    CU_ASSERT_EQUAL(nic_revoke_end(server.port, key, 0), 0);
    CU_ASSERT_EQUAL(nic_expose(server.port, bad, target, 100, &key), 0);
    atomic_store(&client.peer->mine->claim, key);
    CU_ASSERT_EQUAL(nic_revoke_begin(server.port, key), 0);
    CU_ASSERT_EQUAL(nic_revoke_end(server.port, key, 20), -EBUSY);
    atomic_store(&client.peer->mine->claim, 0);
    CU_ASSERT_EQUAL(nic_revoke_end(server.port, key, 20), 0);
    good->theirs = theirs;
    honest_is_served();
    teardown();
}

/* Anything, anywhere, at any time. Allowed outcomes: messages, an end; no crash, no other harm. */
static void invalid_data_anywhere_harms_no_other_peer(void)
{
    enum { ROUNDS = 60, WRITES = 40 };
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)getpid() << 8;
    const char *given = getenv("BMI_TEST_SEED");
    if (given != NULL)
        seed = (unsigned)strtoul(given, NULL, 0);
    printf("(BMI_TEST_SEED=%u) ", seed);
    server_open();
    connect_one(&honest);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t key;
        connect_one(&client);
        bad = server.peer;
        CU_ASSERT_EQUAL(nic_expose(server.port, bad, target, 65536, &key), 0);
        for (unsigned i = 0; i < WRITES; i++) {
            uint64_t words = client.peer->link_size / 8;
            uint64_t near = 2 * sizeof(struct nic_shared_end) / 8 + 64;
            uint64_t place = (uint64_t)rand_r(&seed) % (i % 2 == 0 ? near : words);
            uint64_t value = (uint64_t)rand_r(&seed) >> rand_r(&seed) % 31;
            ((volatile uint64_t *)client.peer->link_memory)[place] =
                i % 3 == 0 ? value << 32 | value : value;
            if (i % 4 == 0)
                host_send(&client, "sense", 6, 6, i % 8 == 0, NIC_BUFFERED);
            server.peer = bad;
            if (i % 5 == 0)
                host_send(&server, "sense", 6, 6, NIC_LOW_PRIORITY, 0);
            for (int k = 0; k < 3; k++)
                hosts_drive_once();
        }
        host_close(&client);
        CU_ASSERT_FATAL(UNTIL(server.downs == round + 1));
        int status = nic_revoke(server.port, key);
        CU_ASSERT(status == 0);
        nic_peer_release(server.refused);
        honest_is_served();
    }
    host_close(&honest);
    host_close(&server);
}

/* ---- the socket ---------------------------------------------------------------------------------
 */

static int raw_connect(void)
{
    struct sockaddr_un address;
    uint32_t length;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CU_ASSERT_EQUAL(nic__address("victim", number, &address, &length), 0);
    CU_ASSERT_EQUAL_FATAL(connect(fd, (struct sockaddr *)&address, length), 0);
    return fd;
}

/* Polls until the server has closed the socket; reads the messages before that. */
static void await_end(int fd)
{
    char text[256];
    ssize_t length;
    while ((length = recv(fd, text, sizeof(text), MSG_DONTWAIT)) != 0) {
        if (length < 0 && errno != EAGAIN)
            break;
        if (length < 0)
            CU_ASSERT_FATAL(hosts_drive());
    }
    close(fd);
}

static int memory_of(uint64_t length, int seals)
{
    int fd = memfd_create("rubbish", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_EQUAL(ftruncate(fd, (off_t)length), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void bad_handshakes_are_refused(void)
{
    struct nic_handshake hello;
    setup();
    nic__hello_fill(client.port, &hello, NIC_HELLO);
    int door = client.port->doorbell.fd, unsealed = memory_of(hello.length, 0),
        small = memory_of(64, F_SEAL_SHRINK), file = open("/dev/zero", O_RDWR | O_CLOEXEC);
    int blocking = eventfd(0, EFD_CLOEXEC), plain[2];
    CU_ASSERT_EQUAL(pipe2(plain, O_CLOEXEC | O_NONBLOCK), 0);
    const int GOOD = client.port->shared_fd;
    const struct {
        uint16_t kind;
        uint64_t length;
        uint32_t size;
        int fds[3];
        size_t count;
    } HELLOS[] = {
        {NIC_HELLO, hello.length, 15, {0}, 0},
        {NIC_HELLO, hello.length, 15, {GOOD}, 1},
        {NIC_HELLO, hello.length, 15, {GOOD, door, door}, 3},
        {NIC_HELLO, hello.length, 15, {unsealed, door}, 2},
        {NIC_HELLO, hello.length, 15, {small, door}, 2},
        {NIC_HELLO, hello.length, 15, {file, door}, 2},
        {NIC_HELLO, hello.length, 15, {plain[0], door}, 2},
        {NIC_HELLO, hello.length, 15, {GOOD, plain[1]}, 2},
        {NIC_HELLO, hello.length, 15, {GOOD, blocking}, 2},
        {NIC_HELLO, hello.length, 15, {GOOD, GOOD}, 2},
        {NIC_HELLO, hello.length * 2, 15, {GOOD, door}, 2},
        {NIC_HELLO, 0, 15, {GOOD, door}, 2},
        {NIC_HELLO, UINT64_MAX, 15, {GOOD, door}, 2},
        {NIC_HELLO, hello.length, 5, {GOOD, door}, 2},
        {NIC_HELLO, hello.length, 200, {GOOD, door}, 2},
        {NIC_WELCOME, hello.length, 15, {GOOD, GOOD, door}, 3},
        {NIC_ARENA, hello.length, 15, {GOOD}, 1},
        {NIC_BYE, hello.length, 15, {0}, 0},
        {99, hello.length, 15, {0}, 0},
    };
    for (size_t i = 0; i < sizeof(HELLOS) / sizeof(*HELLOS); i++) {
        struct nic_handshake bad_hello = hello;
        bad_hello.kind = HELLOS[i].kind;
        bad_hello.length = HELLOS[i].length;
        bad_hello.max_size[0] = HELLOS[i].size;
        int fd = raw_connect();
        CU_ASSERT_EQUAL(nic__handshake_send(fd, &bad_hello, HELLOS[i].fds, HELLOS[i].count), 0);
        await_end(fd);
    }
    for (size_t length = 0; length < sizeof(hello); length += 7) { /* cut off, and text */
        int fd = raw_connect();
        CU_ASSERT_EQUAL(send(fd, &hello, length == 0 ? 1 : length, 0),
                        (ssize_t)(length == 0 ? 1 : length));
        await_end(fd);
    }
    CU_ASSERT_EQUAL(server.accepted, 2);
    honest_is_served();
    close(unsealed);
    close(small);
    close(file);
    close(blocking);
    close(plain[0]);
    close(plain[1]);
    teardown();
}

/* In a child: listens, and welcomes a peer to a connection of that name. */
static void welcome_as(uint64_t name, const char *node, int tell)
{
    struct sockaddr_un address;
    uint32_t length;
    struct nic_handshake welcome;
    void *memory;
    int link, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    host_forget();
    if (nic__address(node, 1, &address, &length) != 0 ||
        bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 1) != 0 ||
        write(tell, "", 1) != 1 || nic__memory_make(bad->link_size, false, &link, &memory) != 0)
        _exit(1);
    nic__hello_fill(client.port, &welcome, NIC_WELCOME);
    welcome.link = name;
    const int FDS[] = {link, client.port->shared_fd, client.port->doorbell.fd};
    nic__handshake_send(accept(fd, NULL, NULL), &welcome, FDS, 3);
    for (;;)
        pause();
}

/* Exposures belong to a connection's name, which the accepting side chooses. A peer that took the
 * name of another connection could write to the memory exposed there. */
static void the_name_of_another_connection_is_refused(void)
{
    char node[32], byte;
    int told[2];
    setup();
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(bad->next, NULL); /* the bystander, as the server sees it */
    const uint64_t NAMES[] = {bad->next->link_name, bad->next->link_name + 2};
    snprintf(node, sizeof(node), "impostor-%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        struct nic_peer *dialled;
        CU_ASSERT_EQUAL_FATAL(pipe(told), 0);
        pid_t child = fork();
        if (child == 0)
            welcome_as(NAMES[i], node, told[1]);
        CU_ASSERT_EQUAL_FATAL(read(told[0], &byte, 1), 1);
        CU_ASSERT_EQUAL(nic_connect(server.port, node, 1, &server, &dialled), 0);
        CU_ASSERT_FATAL(UNTIL(server.downs + server.ups == 1u + (unsigned)i));
        CU_ASSERT_EQUAL(server.downs, 1);
        CU_ASSERT_EQUAL(server.down_status, -EPROTO);
        CU_ASSERT_EQUAL(kill(child, SIGKILL), 0);
        CU_ASSERT_EQUAL(waitpid(child, NULL, 0), child);
        close(told[0]);
        close(told[1]);
        honest_is_served();
    }
    teardown();
}

/* After the handshake: invalid arenas. */
static void bad_arenas_end_the_connection(void)
{
    const struct {
        uint32_t index;
        uint64_t length;
        bool sealed;
    } ARENAS[] = {{NIC_ARENAS_MAX, 4096, true},
                  {UINT32_MAX, 4096, true},
                  {0, 4096, false},
                  {0, 8192, true},
                  {0, 0, true},
                  {0, UINT64_MAX, true}};
    for (size_t i = 0; i < sizeof(ARENAS) / sizeof(*ARENAS); i++) {
        struct nic_handshake message;
        setup();
        nic__hello_fill(client.port, &message, NIC_ARENA);
        message.index = ARENAS[i].index;
        message.length = ARENAS[i].length;
        int fd = memory_of(4096, ARENAS[i].sealed ? F_SEAL_SHRINK : 0);
        CU_ASSERT_EQUAL(nic__handshake_send(client.peer->socket.fd, &message, &fd, 1), 0);
        CU_ASSERT(UNTIL(server.downs == 1));
        CU_ASSERT_EQUAL(server.down_status, -EPROTO);
        close(fd);
        honest_is_served();
        teardown();
    }
}

static void arena_tell(uint32_t index, uint64_t length)
{
    struct nic_handshake message;
    nic__hello_fill(client.port, &message, NIC_ARENA);
    message.index = index;
    message.length = length;
    int fd = memory_of(length, F_SEAL_SHRINK);
    CU_ASSERT_EQUAL(nic__handshake_send(client.peer->socket.fd, &message, &fd, 1), 0);
    close(fd);
}

/* They cost their sender nothing. They must not use up the address space of a process: an arena
 * beyond the limit, of one peer or of all, is not mapped; a small one behind it is. */
static void vast_arenas_are_not_mapped(void)
{
    const uint64_t PAGE = 4096, OF_ONE = UINT64_C(1) << 42, OF_ALL = UINT64_C(1) << 45;
    enum { VAST = 3, SMALL, OVER_OF_ONE, LAST_OF_ONE, OVER_OF_ALL, LAST_OF_ALL };
    setup();
    for (uint32_t i = 0; i <= VAST; i++)
        arena_tell(i, UINT64_C(1) << 43);
    arena_tell(SMALL, PAGE);
    CU_ASSERT_FATAL(UNTIL(atomic_load(&bad->arenas[SMALL]) != NULL));
    for (uint32_t i = 0; i <= VAST; i++)
        CU_ASSERT_PTR_NULL(atomic_load(&bad->arenas[i]));
    CU_ASSERT_EQUAL(bad->arena_bytes, PAGE);
    bad->arena_bytes = OF_ONE - PAGE; /* as if it had so much */
    arena_tell(OVER_OF_ONE, 2 * PAGE);
    arena_tell(LAST_OF_ONE, PAGE);
    CU_ASSERT_FATAL(UNTIL(atomic_load(&bad->arenas[LAST_OF_ONE]) != NULL));
    bad->arena_bytes = 2 * PAGE;
    uint64_t others = server.port->arena_bytes - bad->arena_bytes;
    server.port->arena_bytes = OF_ALL - PAGE; /* as if all had */
    arena_tell(OVER_OF_ALL, 2 * PAGE);
    arena_tell(LAST_OF_ALL, PAGE);
    CU_ASSERT_FATAL(UNTIL(atomic_load(&bad->arenas[LAST_OF_ALL]) != NULL));
    CU_ASSERT_PTR_NULL(atomic_load(&bad->arenas[OVER_OF_ONE]));
    CU_ASSERT_PTR_NULL(atomic_load(&bad->arenas[OVER_OF_ALL]));
    server.port->arena_bytes = others + 3 * PAGE;
    CU_ASSERT_EQUAL(server.downs, 0);
    nic_peer_close(bad);
    CU_ASSERT_FATAL(UNTIL(server.downs == 1));
    nic_peer_release(server.refused);
    honest_is_served();
    CU_ASSERT_EQUAL(server.port->arena_bytes, others);
    teardown();
}

/* Its socket is still watched, for its end; its messages are not read. */
static void records_after_the_end_are_ignored(void)
{
    setup();
    client.stopped = true; /* it ignores the end */
    nic_peer_close(bad);
    CU_ASSERT_FATAL(UNTIL(server.downs == 1));
    arena_tell(0, 4096);
    while (!nic_arm(server.port))
        hosts_drive_once();
    nic_receive(server.port); /* looks at descriptors */
    CU_ASSERT_PTR_NULL(atomic_load(&bad->arenas[0]));
    client.stopped = false;
    honest_is_served();
    teardown();
}

static void empty_message_send(int fd, const int *fds, size_t count)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS,
                            .cmsg_len = CMSG_LEN(count * sizeof(int))}};
    struct msghdr message = {.msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    CU_ASSERT_EQUAL_FATAL(sendmsg(fd, &message, MSG_NOSIGNAL), 0);
}

/* In place of a handshake, and after it: the connection ends, and they are closed. */
static void descriptors_of_an_empty_message_are_closed(void)
{
    unsigned before = descriptors_open();
    setup();
    const int FDS[] = {client.port->shared_fd, client.port->doorbell.fd, client.port->shared_fd,
                       client.port->doorbell.fd};
    for (size_t count = 1; count <= 4; count++) {
        int fd = raw_connect();
        empty_message_send(fd, FDS, count);
        await_end(fd);
    }
    empty_message_send(client.peer->socket.fd, FDS, 4);
    CU_ASSERT(UNTIL(server.downs == 1));
    nic_peer_release(server.refused);
    honest_is_served();
    teardown();
    CU_ASSERT_EQUAL(descriptors_open(), before);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"bad records end the connection", bad_records_end_the_connection},
        {"rubbish left by one that has gone", rubbish_left_by_one_that_has_gone},
        {"bad positions end the connection", bad_positions_end_the_connection},
        {"bad bounces write nothing", bad_bounces_write_nothing},
        {"bad exposures lead nowhere", bad_exposures_lead_nowhere},
        {"a process that is another is not written to",
         a_process_that_is_another_is_not_written_to},
        {"a bad position behind a directed send", a_bad_position_behind_a_directed_send},
        {"bad answers are errors", bad_answers_are_errors},
        {"a full doorbell still rings", a_full_doorbell_still_rings},
        {"a doorbell that cannot be rung is no error", a_doorbell_that_cannot_be_rung_is_no_error},
        {"a claim that never ends is given up", a_claim_that_never_ends_is_given_up},
        {"places of claims that never end come back", places_of_claims_that_never_end_come_back},
        {"a claim on a port that closes is no error", a_claim_on_a_port_that_closes_is_no_error},
        {"a claim on another's exposure is none", a_claim_on_anothers_exposure_is_none},
        {"the end of an exposure looks at its peer",
         the_end_of_an_exposure_looks_at_its_peer_alone},
        {"invalid data anywhere harms no other peer", invalid_data_anywhere_harms_no_other_peer},
        {"bad handshakes are refused", bad_handshakes_are_refused},
        {"the name of another connection is refused", the_name_of_another_connection_is_refused},
        {"bad arenas end the connection", bad_arenas_end_the_connection},
        {"vast arenas are not mapped", vast_arenas_are_not_mapped},
        {"records after the end are ignored", records_after_the_end_are_ignored},
        {"descriptors of an empty message are closed", descriptors_of_an_empty_message_are_closed},
    };
    return CASES_RUN("rubbish", CASES);
}
