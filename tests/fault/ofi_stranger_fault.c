/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_stranger_fault.c - dialling a server that is not one of ofi+tcp, or that is another user's of
 * ofi+shm.
 *
 * Given an HTTP server, a server of tcp, or one that closes without an answer, when ofi+tcp dials
 * it, then the operation ends within a second with EPROTO, and the log names the protocol that
 * answered. Given a server of another user, when ofi+shm dials it, then the operation ends with
 * EACCES, for root's client as for the other user's.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { NOBODY = 65534, SOON_MS = 1000 };

static const struct {
    const char *name, *answer;
    size_t size;
    const char *said; /* the text in the library's log */
} strangers[] = {
    {"an HTTP server", "HTTP/1.0 400 Bad Request\r\n\r\n", 28,
     "is an HTTP server, and speaks no BMI"},
    {"a server of tcp", "\x03\0\x1f\xb3", 4, "speaks no BMI of this scheme"},
    {"an SSH server", "SSH-2.0-x\r\n", 11, "is an SSH server, and speaks no BMI"},
    {"something that closes", "", 0, "closed the connection without an answer"},
};
enum { STRANGERS = sizeof strangers / sizeof strangers[0] };

static char said[1 << 14];

static void log_take(void *argument, enum bmi_log_level level, const char *text)
{
    size_t used = strlen(said);
    (void)argument, (void)level;
    snprintf(said + used, sizeof said - used, "%s\n", text);
}

static int strangers_run(void *argument, int channel)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    char request[4096];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    (void)argument;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 8) == 0 &&
              getsockname(listener, (struct sockaddr *)&address, &size) == 0,
          "no listener");
    tell_number(channel, ntohs(address.sin_port));
    for (unsigned i = 0; i < STRANGERS; i++) {
        int dialled = accept(listener, NULL, NULL);
        CHECK(recv(dialled, request, sizeof request, 0) > 0, "nothing came");
        raw_write(dialled, strangers[i].answer, strangers[i].size);
        shutdown(dialled, SHUT_WR);
        CHECK(raw_ended(dialled, TEST_BOUND_MS), "the library keeps a stranger");
        close(dialled);
    }
    return 0;
}

static void strangers_meet(void)
{
    struct child child = child_start("strangers", strangers_run, NULL);
    char address[64];
    BMI_addr_t peer;
    struct noted send;
    struct bmi_log_callback callback = {.write = log_take, .level = BMI_LOG_WARN};
    snprintf(address, sizeof address, "ofi+tcp://127.0.0.1:%u",
             (unsigned)hear_number(child.channel));
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    operations_open();
    must(BMI_addr_lookup(&peer, address), "BMI_addr_lookup");
    for (unsigned i = 0; i < STRANGERS; i++) {
        uint64_t start = now_ns();
        said[0] = '\0';
        note_sendunexpected(&send, peer, "", 0, 1);
        CHECK(noted_wait(&send, 1, TEST_BOUND_MS), "%s: the send does not end", strangers[i].name);
        unsigned long took_ms = (unsigned long)((now_ns() - start) / 1000000);
        printf("  %s: %s after %lu ms\n", strangers[i].name, status_name(send.status), took_ms);
        CHECK(send.status == -BMI_EPROTO, "%s: %s", strangers[i].name, status_name(send.status));
        CHECK(took_ms < SOON_MS * test_slowness(), "%s: after %lu ms", strangers[i].name, took_ms);
        CHECK(strstr(said, strangers[i].said) != NULL, "%s: the log says: %s", strangers[i].name,
              said);
    }
    child_end(&child);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
}

/* ---- another user's -------------------------------------------------------------------------- */

static void message_free(const struct BMI_unexpected_info *info)
{
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static int server_run(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    CHECK(setuid(*(const uid_t *)argument) == 0, "setuid");
    serve("ofi+shm://127.0.0.1:0", 0, listening);
    operations_open();
    test_unexpected = message_free;
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0))
        operations_step(5);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static int client_run(void *argument, int channel)
{
    struct noted send;
    CHECK(setuid(*(const uid_t *)argument) == 0, "setuid");
    BMI_addr_t server = client_open(channel);
    note_sendunexpected(&send, server, "", 0, 1);
    CHECK(noted_wait(&send, 1, TEST_BOUND_MS), "the send does not end");
    tell_number(channel, send.status);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void users_meet(uid_t servers, uid_t clients)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child client = child_start("client", client_run, &clients);
    struct child server = child_start("server", server_run, &servers);
    hear(server.channel, listening, sizeof listening);
    tell(client.channel, listening, sizeof listening);
    bmi_error_code_t status = (bmi_error_code_t)hear_number(client.channel);
    printf("  user %u's client, user %u's server: %s\n", clients, servers, status_name(status));
    CHECK(status == (servers == clients ? 0 : -BMI_EACCES), "%s", status_name(status));
    child_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
}

int main(int argc, char **argv)
{
    test_begin("ofi_stranger_fault", 60);
    if (argc < 2 || strcmp(argv[1], "users") != 0) {
        strangers_meet();
        return test_passed();
    }
    if (geteuid() != 0)
        test_skip("only root may become another user");
    users_meet(0, 0);
    users_meet(NOBODY, 0);
    users_meet(0, NOBODY);
    return test_passed();
}
