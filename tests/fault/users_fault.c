/* SPDX-License-Identifier: BSD-3-Clause
 *
 * users_fault.c - two processes that dial each other within a host, over a method that knows the
 * users of its peers.
 *
 * Given a first process that has dialled a second one, when the second sends to the first's
 * address, then the proof joins the connections, and one is left. If they are of two users, both
 * take the same users for the ends of that connection; if of one, it has no ends.
 *
 * usage: users_fault unix|gm
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/base/crypto.h"
#include "bmi/base/instance.h"
#include "bmi/state/peer.h"
#include "serve.h"

enum { NOBODY = 65534, HELLO_TAG = 3 };

struct side {
    uid_t user;
    bool dials_first;
};

/* Of one side's connection. */
struct known {
    unsigned links;
    uint8_t ends[BMI_LINK_ENDS];
};

static unsigned arrived;

static void hello_arrived(const struct BMI_unexpected_info *info)
{
    arrived++;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void link_look(struct peer *peer, void *argument)
{
    struct known *known = argument;
    peer_lock(peer);
    if (peer->link != NULL) {
        known->links++;
        memcpy(known->ends, peer->link->ends, sizeof known->ends);
    }
    peer_unlock(peer);
}

static void hello_send(const char *url)
{
    struct noted hello;
    BMI_addr_t address;
    must(BMI_addr_lookup(&address, url), "BMI_addr_lookup");
    note_sendunexpected(&hello, address, "", 0, HELLO_TAG);
    noted_good(&hello, "a hello");
}

static void hello_await(void)
{
    while (arrived == 0)
        operations_step(5);
}

static int side_run(void *argument, int channel)
{
    const struct side *side = argument;
    char listening[BMI_MAX_ADDR_LEN], other[BMI_MAX_ADDR_LEN];
    struct known known = {0};
    CHECK(setuid(side->user) == 0, "setuid");
    test_unexpected = hello_arrived;
    serve_here(0, listening);
    operations_open();
    tell(channel, listening, sizeof listening);
    hear(channel, other, sizeof other);
    if (side->dials_first)
        hello_send(other);
    hello_await();
    if (!side->dials_first)
        hello_send(other);
    for (;;) { /* the second's own connection closes soon */
        known.links = 0;
        bmi__peer_each(&bmi__default, link_look, &known);
        if (known.links == 1 && method_statistics(test_method()).links == 1)
            break;
        operations_step(5);
    }
    tell(channel, &known, sizeof known);
    while (!heard(channel, 0))
        operations_step(5);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void users_meet(uid_t first, uid_t second)
{
    struct side sides[2] = {{first, true}, {second, false}};
    char urls[2][BMI_MAX_ADDR_LEN];
    struct child children[2];
    struct known known[2];
    uint8_t expected[BMI_LINK_ENDS] = {0};
    uint32_t users[2] = {first, second};
    for (int i = 0; i < 2; i++)
        children[i] = child_start(i == 0 ? "first" : "second", side_run, &sides[i]);
    for (int i = 0; i < 2; i++)
        hear(children[i].channel, urls[i], sizeof urls[i]);
    for (int i = 0; i < 2; i++)
        tell(children[i].channel, urls[!i], sizeof urls[i]);
    if (first != second) {
        must(bmi__crypto_start(), "bmi__crypto_start");
        bmi__digest16(expected, users, sizeof users);
    }
    for (int i = 0; i < 2; i++) {
        hear(children[i].channel, &known[i], sizeof known[i]);
        CHECK(memcmp(known[i].ends, expected, sizeof expected) == 0,
              "users %u and %u: wrong ends, as %s sees them", first, second, children[i].name);
    }
    for (int i = 0; i < 2; i++) {
        tell_number(children[i].channel, 0);
        child_end(&children[i]);
    }
    printf("  users %u and %u: one connection\n", first, second);
}

int main(int argc, char **argv)
{
    setenv("BMI_TEST_METHOD", argc > 1 ? argv[1] : "unix", 1);
    setenv("BMI_UNIX_OTHER_USERS", "on", 1);
    setenv("BMI_GM_OTHER_USERS", "on", 1);
    test_begin("users_fault", 60);
    if (geteuid() != 0)
        test_skip("needs root, to start processes of other users");
    users_meet(NOBODY, NOBODY - 1);
    users_meet(NOBODY - 1, NOBODY);
    users_meet(NOBODY, NOBODY);
    return test_passed();
}
