/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_handshakes_fault.c - connections that stay in their TLS handshake: their effect on others and on limits. The server is this process.
 *
 * usage: tls_handshakes_fault last
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { SLOW_MS = 1000 }; /* a handshake that waits for its peer so long gives way */

static char listening[BMI_MAX_ADDR_LEN];

static void setting(const char *text)
{
    must(BMI_set_info(0, BMI_SETTING, (void *)(uintptr_t)text), "BMI_set_info");
}

static void serve_for(unsigned ms)
{
    for (uint64_t until = now_ns() + ms * UINT64_C(1000000); now_ns() < until;)
        operations_step(10);
}

static void start(void)
{
    serve_here(0, listening);
    operations_open();
}

static int finish(void)
{
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}

/* ---- the last place -------------------------------------------------------------------------- */

/* Given two places for handshakes, of which a slow one has the first. When a connection takes the
 * second, then the slow one stays; when a third one comes, it gives way. */
static int last(void)
{
    start();
    setting("handshakes_max=2");
    int slow = raw_connect_plain(listening, 0);
    serve_for(SLOW_MS + 200);
    int second = raw_connect_plain(listening, 0);
    serve_for(200);
    CHECK(!raw_ended(slow, 0), "a handshake is ended for no newcomer");
    int third = raw_connect_plain(listening, 0);
    while (!raw_ended(slow, 0))
        operations_step(10);
    CHECK(!raw_ended(second, 0) && !raw_ended(third, 0), "a young handshake is ended");
    close(slow);
    close(second);
    close(third);
    return finish();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    test_begin("tls_handshakes_fault", 30);
    CHECK(strcmp(what, "last") == 0, "usage: tls_handshakes_fault last");
    return last();
}
