/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_memory_test.c - memory exposed to a peer that claims to write there for ever. Links stand on
 * ports of the NIC; the core knows nothing of them.
 */
#include "nic/harness.h"

#include "gm.h"
#include "nic/internal.h"

enum { EXPOSURES = 4, LENGTH = 1000, ROUNDS = EXPOSURES + 1 };

static_assert(sizeof(struct gm_link) + sizeof(struct nic_peer) <= 2368,
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
    state.port = server.port;
    CU_ASSERT_EQUAL_FATAL(gm_memory_option(&state, &memory, false), 0);
}

static void client_connect(uint16_t number)
{
    unsigned accepted = server.accepted;
    host_open(&client, NULL);
    CU_ASSERT_EQUAL_FATAL(nic_connect(client.port, "node", number, NULL, &client.peer), 0);
    CU_ASSERT_FATAL(UNTIL(client.ups == 1 && server.accepted == accepted + 1));
    receiver = (struct gm_link){.peer = server.peer, .phase = GM_UP, .base = {.state = &state}};
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
    gm_memory_stop();
    host_close(&client);
    host_close(&server);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"a peer that claims for ever uses up no exposures",
         a_peer_that_claims_for_ever_uses_up_no_exposures},
    };
    return CASES_RUN("memory", CASES);
}
