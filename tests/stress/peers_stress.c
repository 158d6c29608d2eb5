/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peers_stress.c - ten thousand idle peers of one process, and their cost.
 *
 * A child speaks for all of them over sockets of its own: each says HELLO and sends one unexpected
 * message. Printed: memory per peer in the library (allocated), in the process (resident), and the
 * processor time of an idle second. Without enough descriptors it is skipped: BMI_TEST_SCALE
 * reduces the number of peers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../fault/raw_peer.h"

enum { PEERS = 10000, FEWEST = 100, SPARE = 100, PEER_TAG = 5, MEMORY_OF_A_PEER = 1024 };

static char listening[BMI_MAX_ADDR_LEN];
static unsigned peers;

/* ---- the peers ------------------------------------------------------------------------------- */

static int peers_live(void *argument, int channel)
{
    int *sockets = calloc(peers, sizeof *sockets);
    struct chance chance = {.state = test_seed()};
    (void)argument;
    CHECK(sockets != NULL, "no memory");
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < peers; i++) {
        struct raw_hello hello = raw_hello_make(&chance);
        sockets[i] = raw_connect(listening, 0);
        CHECK(raw_send_hello(sockets[i], &hello) && raw_send_unexpected(sockets[i], PEER_TAG, i),
              "peer %u: the connection is lost", i);
    }
    tell_number(channel, 0);
    hear_number(channel);
    for (unsigned i = 0; i < peers; i++) /* each has its HELLO, and none was refused */
        CHECK(!raw_ended(sockets[i], 0), "peer %u: the connection is lost", i);
    for (unsigned i = 0; i < peers; i++)
        close(sockets[i]);
    free(sockets);
    return 0;
}

/* ---- the process ----------------------------------------------------------------------------- */

static BMI_addr_t *addresses;
static unsigned arrived;

static void fetch(int wait_ms)
{
    struct BMI_unexpected_info infos[64];
    int count = 0;
    must(BMI_testunexpected(64, &count, infos, wait_ms), "BMI_testunexpected");
    for (int i = 0; i < count; i++) {
        uint64_t number;
        CHECK(infos[i].tag == PEER_TAG && infos[i].size == sizeof number,
              "a message with tag %d of %lld bytes", infos[i].tag, (long long)infos[i].size);
        memcpy(&number, infos[i].buffer, sizeof number);
        CHECK(number < peers && addresses[number] == 0, "peer %llu is heard twice",
              (unsigned long long)number);
        addresses[number] = infos[i].addr;
        must(BMI_unexpected_free(infos[i].addr, infos[i].buffer), "BMI_unexpected_free");
        arrived++;
    }
}

static int upper_compare(const void *left, const void *right)
{
    int64_t a = *(const BMI_addr_t *)left >> 32, b = *(const BMI_addr_t *)right >> 32;
    return (a > b) - (a < b);
}

/* Programs hash a handle by its upper half. */
static void handles_check(void)
{
    BMI_addr_t *sorted = malloc(peers * sizeof *sorted);
    CHECK(sorted != NULL, "no memory");
    memcpy(sorted, addresses, peers * sizeof *sorted);
    qsort(sorted, peers, sizeof *sorted, upper_compare);
    for (unsigned i = 1; i < peers; i++)
        CHECK(sorted[i] >> 32 != sorted[i - 1] >> 32, "two peers' handles share their upper half");
    free(sorted);
}

static double idle_share(void)
{
    uint64_t start = now_ns(), used = cpu_ns();
    while (now_ns() - start < UINT64_C(1000000000))
        fetch(1000);
    return (double)(cpu_ns() - used) / (double)(now_ns() - start);
}

static void memory_print(size_t allocated, size_t resident)
{
    printf("  %u idle peers: %zu bytes allocated, %zu bytes resident each\n", arrived,
           allocated / arrived, resident / arrived);
    CHECK(!test_memory_measurable() || allocated / arrived <= MEMORY_OF_A_PEER,
          "an idle peer takes %zu bytes, %d are allowed", allocated / arrived, MEMORY_OF_A_PEER);
}

static void peers_drop(void)
{
    while (method_statistics("bmi_tcp").links > 0)
        fetch(10);
    for (unsigned i = 0; i < peers; i++)
        must(BMI_set_info(addresses[i], BMI_DEC_ADDR_REF, NULL), "BMI_DEC_ADDR_REF");
}

int main(void)
{
    test_begin("peers_stress", 120);
    unsigned wanted = test_scaled(PEERS, FEWEST);
    unsigned limit = descriptors_allow(wanted + SPARE);
    if (limit < wanted + SPARE)
        test_skip("%u peers want %u descriptors, only %u may be open", wanted, wanted + SPARE,
                  limit);
    peers = wanted;
    struct child child = child_start("peers", peers_live, NULL);

    addresses = calloc(peers, sizeof *addresses);
    CHECK(addresses != NULL, "no memory");
    serve("tcp://127.0.0.1:0", BMI_AUTO_REF_COUNT, listening);
    size_t allocated = memory_in_use(), resident = memory_resident();
    uint64_t start = now_ns();
    tell(child.channel, listening, sizeof listening);
    while (arrived < peers) {
        fetch(1000);
        child_check(&child);
    }
    printf("  connected and heard in %.2f s\n", (double)(now_ns() - start) / 1e9);
    hear_number(child.channel);
    memory_print(memory_in_use() - allocated, memory_resident() - resident);
    handles_check();
    double share = idle_share();
    printf("  idle: %.3f %% of a processor\n", share * 100);
    CHECK(share < 0.01 * test_slowness(), "an idle process uses %.1f %% of a processor",
          share * 100);

    tell_number(child.channel, 0);
    peers_drop();
    child_end(&child);
    size_t left = memory_in_use() - allocated;
    printf("  after they have gone: %zd bytes each are still allocated\n",
           (ssize_t)left / (ssize_t)peers);
    /* The library keeps the memory of peers for later ones; all else is freed. */
    enum { KEPT = 640 };
    CHECK(!test_memory_measurable() || (ssize_t)left < (ssize_t)peers * KEPT + 65536,
          "%zu bytes of peers that are gone", left);
    must(BMI_finalize(), "BMI_finalize");
    free(addresses);
    return test_passed();
}
