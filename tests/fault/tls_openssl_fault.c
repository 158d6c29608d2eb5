/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_openssl_fault.c - OpenSSL's own programs as the other side: s_client and s_server shake hands
 * with ours; without a certificate, or with TLS 1.2, they are refused.
 *
 * usage: tls_openssl_fault BMI-KEYS
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tls_pair.h"

/* A running program of OpenSSL's. What it is given as input it sends, so the end of its input is
 * the end of the connection. */
static struct program {
    pid_t pid;
    int input, output;
} program;

/* Its words go to a shell in the folder of the keys. */
static void program_start(const char *words)
{
    char command[512];
    int input[2], output[2];
    CHECK(pipe(input) == 0 && pipe(output) == 0, "pipe");
    snprintf(command, sizeof command, "cd %s && exec openssl %s 2>&1", keys_folder, words);
    fflush(stdout);
    program.pid = fork();
    CHECK(program.pid >= 0, "fork");
    if (program.pid == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        for (int i = 0; i < 2; i++) {
            close(input[i]);
            close(output[i]);
        }
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(input[0]);
    close(output[1]);
    program.input = input[1];
    program.output = output[0];
}

/* Reads its output until that has the text, or ends. Returns whether it has. */
static bool program_says(const char *text, char *said, size_t size)
{
    size_t have = 0;
    said[0] = '\0';
    while (strstr(said, text) == NULL) {
        struct pollfd polled = {.fd = program.output, .events = POLLIN};
        CHECK(poll(&polled, 1, TEST_BOUND_MS) > 0, "openssl says nothing; it said: %s", said);
        ssize_t more = read(program.output, said + have, size - 1 - have);
        if (more <= 0)
            return false;
        for (ssize_t i = 0; i < more; i++) /* a message is bytes */
            if (said[have + (size_t)i] == '\0')
                said[have + (size_t)i] = '.';
        have += (size_t)more;
        said[have] = '\0';
    }
    return true;
}

/* Ends its input, reads the rest of its output, and returns its exit status. */
static int program_end(bool kills)
{
    static char rest[1 << 16];
    int status;
    if (kills)
        kill(program.pid, SIGTERM);
    close(program.input);
    while (read(program.output, rest, sizeof rest) > 0)
        continue;
    close(program.output);
    CHECK(waitpid(program.pid, &status, 0) == program.pid, "waitpid");
    return status;
}

static char said[1 << 16];

/* ---- s_client ------------------------------------------------------------------------------- */

static void s_client_start(const char *options)
{
    char words[256];
    snprintf(words, sizeof words,
             "s_client -connect 127.0.0.1:%u -CAfile a/authority.pem -verify_return_error %s",
             test_port(pair.url), options);
    program_start(words);
}

static void s_client_accepted(void)
{
    case_begin("s_client with a certificate");
    server_start("tls", "good", NULL);
    s_client_start("-cert a/client.pem -key a/client.key");
    until_logged(SERVER, " is client (TLSv1.3, ");
    CHECK(program_says("Verify return code: 0 (ok)", said, sizeof said), "it said: %s", said);
    CHECK(program_end(false) == 0, "s_client ended well");
    case_end();
}

static void s_client_refused(const char *name, const char *options, const char *log,
                             const char *answer)
{
    case_begin(name);
    server_start("tls", "good", NULL);
    s_client_start(options);
    until_logged(SERVER, log);
    CHECK(program_says(answer, said, sizeof said), "it said: %s", said);
    CHECK(program_end(false) != 0, "s_client failed");
    case_end();
    CHECK(pair.received == 0, "a message was received");
}

/* ---- s_server ------------------------------------------------------------------------------- */

/* Starts it at a free port, which it prints. Returns the URL. */
static const char *s_server_start(const char *options)
{
    static char url[64];
    char words[256];
    snprintf(words, sizeof words, "s_server -accept 127.0.0.1:0 %s", options);
    program_start(words);
    CHECK(program_says("ACCEPT 127.0.0.1:", said, sizeof said), "it said: %s", said);
    while (strchr(strstr(said, "ACCEPT "), '\n') == NULL) {
        size_t have = strlen(said);
        CHECK(program_says("\n", said + have, sizeof said - have), "it said: %s", said);
    }
    snprintf(url, sizeof url, "tls://127.0.0.1:%u",
             (unsigned)atoi(strchr(strstr(said, "ACCEPT "), ':') + 1));
    return url;
}

/* It answers no HELLO, so the message ends with it. */
static void s_server_accepted(void)
{
    case_begin("s_server that wants a certificate");
    client_start(s_server_start("-cert a/good.pem -key a/good.key -CAfile a/authority.pem "
                                "-Verify 1 -verify_return_error -state"),
                 "client", NULL, 1);
    until_logged(CLIENT, " is good (TLSv1.3, ");
    CHECK(program_says("SSLv3/TLS read finished", said, sizeof said), "it said: %s", said);
    program_end(true);
    client_end(1);
    CHECK(pair.status == -BMI_ECONNRESET, "%s", bmi_status_string(pair.status));
    case_end();
}

static void s_server_refused(const char *name, const char *options, int status, const char *log)
{
    case_begin(name);
    client_start(s_server_start(options), "client", NULL, 1);
    client_end(1);
    CHECK(pair.status == -status, "%s; its log: %s", bmi_status_string(pair.status),
          log_text(CLIENT));
    until_logged(CLIENT, log);
    program_end(true);
    case_end();
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: tls_openssl_fault BMI-KEYS");
    test_begin("tls_openssl_fault", 30);
    if (system("openssl version >/dev/null 2>&1") != 0)
        test_skip("there is no program openssl");
    keys_make(argv[1]);
    s_client_accepted();
    s_client_refused("s_client without a certificate", "", "it has no certificate",
                     "certificate required");
    s_client_refused("s_client with TLS 1.2", "-tls1_2 -cert a/client.pem -key a/client.key",
                     "no TLS 1.3: unsupported protocol", "protocol version");
    s_server_accepted();
    s_server_refused("s_server of an unknown authority", "-cert b/stranger.pem -key b/stranger.key",
                     BMI_EACCES, "unknown authority");
    s_server_refused("s_server that knows another authority",
                     "-cert a/good.pem -key a/good.key -CAfile b/authority.pem -Verify 1 "
                     "-verify_return_error",
                     BMI_EACCES, "it refuses us: ");
    s_server_refused("s_server with TLS 1.2", "-tls1_2 -cert a/good.pem -key a/good.key",
                     BMI_EPROTO, "it reports: protocol version");
    keys_remove();
    return test_passed();
}
