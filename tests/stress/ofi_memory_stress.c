/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_memory_stress.c - the cost of a large message over a method on libfabric, by the statistics.
 *
 *   moved: a message goes by puts or gets, from the sender's memory to the receiver's; the library
 *          copies no byte, for a receive posted before the sender's request and after it.
 *          registered: with memory of BMI_memalloc the first message registers, later ones from and
 *          to the same buffers find that (BMI_OFI_REGISTER_ALL=on makes ofi+tcp and ofi+shm
 *          register as an RDMA device would); plain memory is registered while it is used. A thread
 *          takes and frees such memory while the first connection makes what registers it.
 *
 * usage: ofi_memory_stress moved|registered      (BMI_TEST_METHOD: ofi+tcp, ofi+shm, ib)
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { SIZE = 1 << 20, PLACE = 64, ROUNDS = 6, OPEN_TAG = 1, DATA_TAG, TURN_TAG };

static bmi_context_id context;

static bmi_size_t op_wait(int result, bmi_size_t size, const char *what)
{
    struct completion completion = {.id = 0};
    must(result, what);
    if (result == 1)
        return size;
    while (!next_completion(context, 1000, &completion))
        ;
    CHECK(completion.status == 0, "%s: %s", what, status_name(completion.status));
    return completion.size;
}

/* Waits until the other side has reached this point, too. */
static void turn_give(BMI_addr_t peer)
{
    bmi_op_id_t id;
    op_wait(BMI_post_send(&id, peer, "", 0, BMI_EXT_ALLOC, TURN_TAG, NULL, context, NULL), 0,
            "turn");
}

static void turn_await(BMI_addr_t peer)
{
    char none;
    bmi_op_id_t id;
    bmi_size_t actual = 0;
    op_wait(BMI_post_recv(&id, peer, &none, 0, &actual, BMI_EXT_ALLOC, TURN_TAG, NULL, context,
                          NULL),
            0, "turn");
}

static void data_send(BMI_addr_t peer, const char *from, enum bmi_buffer_type type)
{
    bmi_op_id_t id;
    op_wait(BMI_post_send(&id, peer, from, SIZE, type, DATA_TAG, NULL, context, NULL), 0, "send");
}

/* Receives; `early`: before the sender knows that it may send. */
static void data_receive(BMI_addr_t peer, char *to, enum bmi_buffer_type type, bool early)
{
    bmi_op_id_t id;
    bmi_size_t actual = 0;
    if (!early)
        turn_give(peer);
    int result = BMI_post_recv(&id, peer, to, SIZE, &actual, type, DATA_TAG, NULL, context, NULL);
    must(result, "receive");
    if (early) { /* the answer's completion and the message's come in any order */
        bmi_op_id_t turn;
        int told = BMI_post_send(&turn, peer, "", 0, BMI_EXT_ALLOC, TURN_TAG, NULL, context, NULL);
        for (int left = (must(told, "turn") == 0) + (result == 0); left > 0; left--)
            op_wait(0, 0, "receive");
    } else {
        op_wait(result, actual, "receive");
    }
}

static struct bmi_method_statistics counted(void)
{
    return method_statistics(test_method());
}

/* Over shm the receiver reads, if the system allows it. */
static bool may_get(void)
{
    return strcmp(test_method(), "bmi_ofi_shm") == 0;
}

/* ---- moved ----------------------------------------------------------------------------------- */

static void moved_send(BMI_addr_t peer, char *buffer)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        pattern_fill(buffer, SIZE, pattern_key(1, i), 0);
        turn_await(peer);
        struct bmi_method_statistics before = counted();
        data_send(peer, buffer, BMI_EXT_ALLOC);
        struct bmi_method_statistics after = counted();
        uint64_t put = after.put_bytes - before.put_bytes;
        CHECK((put == SIZE && after.puts > before.puts) || (put == 0 && may_get()),
              "round %u: %llu of %d bytes went by puts", i, (unsigned long long)put, SIZE);
        CHECK(after.bytes_sent - before.bytes_sent < SIZE / 4, "round %u: the body went by frames",
              i);
    }
}

static void moved_receive(BMI_addr_t peer, char *buffer)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        memset(buffer, 0, SIZE);
        struct bmi_method_statistics before = counted();
        data_receive(peer, buffer, BMI_EXT_ALLOC, i % 2 == 0);
        struct bmi_method_statistics after = counted();
        CHECK(pattern_wrong(buffer, SIZE, pattern_key(1, i), 0) < 0, "round %u: wrong bytes", i);
        uint64_t got = after.get_bytes - before.get_bytes;
        CHECK(got == 0 || (got == SIZE && may_get()), "round %u: %llu of %d bytes went by gets", i,
              (unsigned long long)got, SIZE);
        CHECK(after.copied_bytes == before.copied_bytes, "round %u: %llu bytes were copied", i,
              (unsigned long long)(after.copied_bytes - before.copied_bytes));
    }
}

/* ---- registered ------------------------------------------------------------------------------ */

/* Of the messages with this memory the first may register, or none; the others must not. */
static void found_check(const struct bmi_method_statistics *before, unsigned i, const char *side)
{
    struct bmi_method_statistics after = counted();
    uint64_t more = after.registrations - before->registrations;
    CHECK(i == 0 || more == 0, "%s %u: %llu registrations", side, i, (unsigned long long)more);
    CHECK(i == 0 || after.registration_hits > before->registration_hits, "%s %u: none was found",
          side, i);
}

static void registered_send(BMI_addr_t peer, char *plain)
{
    char *buffer = BMI_memalloc(peer, SIZE, BMI_SEND);
    CHECK(buffer != NULL, "BMI_memalloc");
    for (unsigned i = 0; i < ROUNDS; i++) {
        pattern_fill(buffer, SIZE, pattern_key(2, i), 0);
        turn_await(peer);
        struct bmi_method_statistics before = counted();
        data_send(peer, buffer, BMI_PRE_ALLOC);
        found_check(&before, i, "send");
    }
    turn_await(peer);
    uint64_t before = counted().registrations;
    data_send(peer, plain, BMI_EXT_ALLOC);
    CHECK(counted().registrations > before, "plain memory was not registered");
    must(BMI_memfree(peer, buffer, SIZE, BMI_SEND), "BMI_memfree");
}

static void registered_receive(BMI_addr_t peer, char *plain)
{
    char *buffer = BMI_memalloc(peer, SIZE, BMI_RECV);
    CHECK(buffer != NULL, "BMI_memalloc");
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct bmi_method_statistics before = counted();
        data_receive(peer, buffer, BMI_PRE_ALLOC, i % 2 == 0);
        CHECK(pattern_wrong(buffer, SIZE, pattern_key(2, i), 0) < 0, "round %u: wrong bytes", i);
        found_check(&before, i, "receive");
    }
    data_receive(peer, plain, BMI_EXT_ALLOC, true);
    must(BMI_memfree(peer, buffer, SIZE, BMI_RECV), "BMI_memfree");
}

/* ---- the two sides --------------------------------------------------------------------------- */

static bool moved;

static struct {
    BMI_addr_t peer;
    atomic_uint blocks;
    atomic_bool enough;
} taking;

static void *memory_take_on(void *argument)
{
    (void)argument;
    while (!atomic_load(&taking.enough)) {
        char *block = BMI_memalloc(taking.peer, PLACE, BMI_SEND);
        CHECK(block != NULL, "BMI_memalloc while connecting");
        block[0] = block[PLACE - 1] = 1;
        must(BMI_memfree(taking.peer, block, PLACE, BMI_SEND), "BMI_memfree while connecting");
        atomic_fetch_add(&taking.blocks, 1);
    }
    return NULL;
}

/* The first message, which connects. */
static void open_send(BMI_addr_t peer)
{
    pthread_t thread;
    bmi_op_id_t id;
    taking.peer = peer;
    CHECK(pthread_create(&thread, NULL, memory_take_on, NULL) == 0, "no thread");
    while (atomic_load(&taking.blocks) == 0)
        sched_yield();
    op_wait(BMI_post_sendunexpected(&id, peer, "", 0, BMI_EXT_ALLOC, OPEN_TAG, NULL, context, NULL),
            0, "open");
    atomic_store(&taking.enough, true);
    pthread_join(thread, NULL);
}

static int sender(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN], *buffer = malloc(SIZE);
    BMI_addr_t peer;
    (void)argument;
    hear(channel, listening, sizeof listening);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&peer, listening), "BMI_addr_lookup");
    open_send(peer);
    if (moved)
        moved_send(peer, buffer);
    else
        registered_send(peer, buffer);
    turn_await(peer);
    free(buffer);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

int main(int argc, char **argv)
{
    char listening[BMI_MAX_ADDR_LEN], *buffer = malloc(SIZE);
    struct BMI_unexpected_info info;
    int count = 0;
    moved = argc > 1 && strcmp(argv[1], "moved") == 0;
    test_begin("ofi_memory_stress", 60);
    if (!moved)
        setenv("BMI_OFI_REGISTER_ALL", "on", 1);
    struct child child = child_start("sender", sender, NULL);
    serve_here(0, listening);
    must(BMI_open_context(&context), "BMI_open_context");
    tell(child.channel, listening, sizeof listening);
    while (count == 0)
        must(BMI_testunexpected(1, &count, &info, 1000), "BMI_testunexpected");
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
    if (moved)
        moved_receive(info.addr, buffer);
    else
        registered_receive(info.addr, buffer);
    turn_give(info.addr);
    child_end(&child);
    free(buffer);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
