/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_memory_test.c - memory exposed to a peer that claims to write there for ever. Links stand on
 * ports of the NIC; the core knows nothing of them.
 */
#include "nic/harness.h"

#include "bmi/instance.h"
#include "gm.h"
#include "nic/internal.h"

enum { EXPOSURES = 4, LENGTH = 1000, ROUNDS = EXPOSURES + 1 };

static_assert(sizeof(struct gm_link) + sizeof(struct nic_peer) <= 2376,
              "what docs/methods/gm.md says that a connection takes");

static struct host server, client;
static struct gm_link receiver;
static struct gm_state state;
static struct bmi_method_memory memory = {.size = LENGTH};

static void server_open(void)
{
    struct nic_options options;
    nic_options_default(&options);
    options.exposures_max = EXPOSURES;
    options.revoke_timeout_ms = 20;
    host_open(&server, &options);
    state.instance = bmi_instance_default();
    state.port = server.port;
    CU_ASSERT_EQUAL_FATAL(gm_memory_option(&state, &memory, false), 0);
}

static void client_connect(uint16_t number)
{
    unsigned accepted = server.accepted;
    host_open(&client, NULL);
    CU_ASSERT_EQUAL_FATAL(nic_connect(client.port, "node", number, NULL, &client.peer), 0);
    CU_ASSERT_FATAL(UNTIL(client.ups == 1 && server.accepted == accepted + 1));
    receiver = (struct gm_link){.peer = server.peer,
                                .phase = GM_UP,
                                .base = {.state = &state, .instance = state.instance}};
}

/* Registers the memory for the client; the handle goes to *handle. */
static int expose(struct bmi_region *region, void **handle)
{
    bmi_size_t size = LENGTH;
    uint32_t count = 1;
    struct bmi_segments segments = {.buffers = &memory.buffer,
                                    .sizes = &size,
                                    .count = 1,
                                    .left = LENGTH};
    return gm_expose(&receiver.base, &segments, region, &count, handle);
}

/* The peer reconnects again and again. If its claims used up all exposures, the receives of all
 * peers would get frames instead of puts. */
static void a_peer_that_claims_for_ever_uses_up_no_exposures(void)
{
    struct bmi_region region;
    void *handle;
    server_open();
    uint16_t number = host_listen(&server, "node");
    for (unsigned round = 1; round <= ROUNDS; round++) {
        client_connect(number);
        CU_ASSERT_EQUAL_FATAL(expose(&region, &handle), 0);
        atomic_store(&client.peer->mine->claim, region.key);
        CU_ASSERT(gm_release(&receiver.base, handle, true));
        CU_ASSERT_EQUAL(receiver.failure, -EPROTO);
        CU_ASSERT_FATAL(UNTIL(server.downs == round && client.downs == 1));
        nic_peer_release(server.refused);
        CU_ASSERT_FATAL(UNTIL(server.port->peers == NULL));
        host_close(&client);
    }
    client_connect(number);
    CU_ASSERT_EQUAL(expose(&region, &handle), 0);
    CU_ASSERT(gm_release(&receiver.base, handle, true));
    CU_ASSERT_EQUAL(gm_memory_option(&state, &memory, true), 0);
    gm_memory_stop(&state);
    host_close(&client);
    host_close(&server);
}

/* A block of a closed port is freed while another port has blocks. */
static void a_late_free_leaves_the_blocks_of_others(void)
{
    struct bmi_method_memory third = {.size = LENGTH};
    server_open();
    memset(memory.buffer, 1, LENGTH);
    gm_memory_stop(&state);
    host_close(&server);
    struct bmi_method_memory late = memory;
    server_open();
    struct bmi_method_memory other = memory;
    memset(other.buffer, 2, LENGTH);
    CU_ASSERT_PTR_NOT_EQUAL(other.buffer, late.buffer);
    CU_ASSERT_EQUAL(((uint8_t *)late.buffer)[LENGTH - 1], 1);
    CU_ASSERT_EQUAL(gm_memory_option(&state, &late, true), 0);
    CU_ASSERT_EQUAL(gm_memory_option(&state, &late, true), -ENOENT);
    CU_ASSERT_EQUAL(gm_memory_option(&state, &third, false), 0);
    CU_ASSERT_PTR_NOT_EQUAL(third.buffer, other.buffer);
    CU_ASSERT(gm_memory_is_ours(&state, other.buffer, LENGTH));
    CU_ASSERT_EQUAL(((uint8_t *)other.buffer)[LENGTH - 1], 2);
    CU_ASSERT_EQUAL(gm_memory_option(&state, &third, true), 0);
    CU_ASSERT_EQUAL(gm_memory_option(&state, &other, true), 0);
    gm_memory_stop(&state);
    host_close(&server);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"a peer that claims for ever uses up no exposures",
         a_peer_that_claims_for_ever_uses_up_no_exposures},
        {"a late free leaves the blocks of others", a_late_free_leaves_the_blocks_of_others},
    };
    return CASES_RUN("memory", CASES);
}
