/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sizes_test.c - the memory of one operation and of one idle peer. A structure that grows beyond
 * its bound fails to compile; raise a bound only with the sum in mind: 1 KiB for an idle peer.
 */
#include "bmi/connection/address.h"
#include "bmi/state/context.h"
#include "methods/tcp/tcp.h"
#include "unit.h"

enum { IDLE_PEER_MOST = 1024, OP_MOST = 320 };
enum { PEER_MOST = 496, ADDRESS_MOST = 80, TAG_QUEUE_MOST = 144, CONTEXT_MOST = 176 };

_Static_assert(sizeof(struct op) <= OP_MOST, "struct op has grown");
_Static_assert(sizeof(struct peer) <= PEER_MOST, "struct peer has grown");
_Static_assert(sizeof(struct address) <= ADDRESS_MOST, "struct address has grown");
_Static_assert(sizeof(struct tag_queue) <= TAG_QUEUE_MOST, "struct tag_queue has grown");
_Static_assert(sizeof(struct context) <= CONTEXT_MOST, "struct context has grown");

static void an_idle_peer_of_tcp(void)
{
    size_t peer = sizeof(struct peer), link = sizeof(struct stream_link);
    size_t address = sizeof(struct address), host = sizeof "255.255.255.255";
    printf("\n    operation %zu, queue %zu, context %zu bytes\n    idle accepted peer: peer %zu + "
           "address %zu + link %zu + host %zu = %zu bytes\n",
           sizeof(struct op), sizeof(struct tag_queue), sizeof(struct context), peer, address, link,
           host, peer + address + link + host);
    CU_ASSERT_TRUE(peer + address + link + host <= IDLE_PEER_MOST);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"an idle peer of tcp", an_idle_peer_of_tcp},
        CU_TEST_INFO_NULL,
    };
    return unit_run("sizes", tests);
}
