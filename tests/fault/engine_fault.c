/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine_fault.c - tcp's engine on io_uring: where a filter of system calls forbids it, epoll is
 * used and the log says why; the end of a thread that has polled harms no connection, nor does one
 * that polled and computes now; large bodies are not copied, whatever comes between them; messages
 * of more links than there are buffers, and room for completions, all arrive; a child that takes
 * its parent's connections over ends those, and serves new ones.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "serve.h"

enum { ROUNDS = 100, LARGE = 1 << 20, SMALL = 500, TAG = 7 };

static char said[256]; /* what the library logged of the engine */
static char large_out[LARGE], large_in[LARGE];

static void note(void *argument, enum bmi_log_level level, const char *text)
{
    (void)argument, (void)level;
    if (strstr(text, "engine ") != NULL)
        snprintf(said, sizeof said, "%s", text);
}

/* Forbids io_uring_setup to this process from now on. */
static void forbid(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        test_skip("no filter of system calls can be set: %s", strerror(errno));
}

static void start(char listening[BMI_MAX_ADDR_LEN])
{
    static const struct bmi_log_callback callback = {.write = note, .level = BMI_LOG_INFO};
    must(BMI_set_info(0, BMI_LOG_CALLBACK, (void *)&callback), "BMI_LOG_CALLBACK");
    setenv("BMI_TCP_ENGINE", "io_uring", 1);
    serve("tcp://0.0.0.0:0", 0, listening);
    operations_open();
    printf("  %s\n", said);
}

static void stop(void)
{
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
}

static void exchange(BMI_addr_t self, char *in, const char *out, bmi_size_t size)
{
    struct noted send, receive;
    note_receive(&receive, self, in, size, TAG);
    note_send(&send, self, out, size, TAG);
    noted_good(&send, "send");
    noted_good(&receive, "receive");
    CHECK(memcmp(in, out, (size_t)size) == 0, "other bytes came");
}

/* ---- without io_uring ------------------------------------------------------------------------ */

static int forbidden(void *argument, int channel)
{
    const int *error = argument;
    char listening[BMI_MAX_ADDR_LEN], in[SMALL], out[SMALL] = "text";
    BMI_addr_t self;
    (void)channel;
    forbid(*error);
    start(listening);
    const char *why = strstr(said, "without liburing") != NULL ? "without liburing"
                      : *error == ENOSYS                       ? "ENOSYS"
                                                               : "EPERM";
    CHECK(strstr(said, "engine epoll, though") != NULL && strstr(said, why) != NULL,
          "the log does not say that epoll is used, and why: \"%s\"", said);
    must(BMI_addr_lookup(&self, listening), "BMI_addr_lookup");
    exchange(self, in, out, SMALL);
    stop();
    return 0;
}

/* Whether the engine can be used here. */
static int usable(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    (void)argument, (void)channel;
    start(listening);
    stop();
    return strstr(said, "engine io_uring") != NULL ? 0 : TEST_SKIP;
}

/* ---- threads that end ------------------------------------------------------------------------ */

/* Connects, and so makes the requests. */
static void *poll_and_end(void *argument)
{
    static char in[SMALL], out[SMALL] = "first";
    exchange(*(BMI_addr_t *)argument, in, out, SMALL);
    return NULL;
}

static void threads_end(BMI_addr_t self)
{
    char in[SMALL], out[SMALL] = "next";
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, poll_and_end, &self) == 0, "no thread");
        pthread_join(thread, NULL);
        exchange(self, in, out, SMALL);
    }
}

/* ---- a thread that computes ------------------------------------------------------------------ */

enum { COMPUTES_MS = 500 };

static atomic_bool computes;

/* Connects anew, which makes the requests, then makes no system call. */
static void *poll_and_compute(void *argument)
{
    must(BMI_set_info(*(BMI_addr_t *)argument, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
    poll_and_end(argument);
    atomic_store(&computes, true);
    for (uint64_t end_ns = now_ns() + COMPUTES_MS * 1000000ull; now_ns() < end_ns;)
        continue; /* the clock is read without one */
    return NULL;
}

/* The kernel leaves the requests' work to that thread, until its CPU's next tick. */
static void thread_computes(BMI_addr_t self)
{
    static char in[SMALL], out[SMALL] = "next";
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, poll_and_compute, &self) == 0, "no thread");
    while (!atomic_load(&computes))
        sched_yield();
    uint64_t start_ns = now_ns();
    exchange(self, in, out, SMALL);
    uint64_t took_ms = (now_ns() - start_ns) / 1000000;
    printf("  a message beside the thread that computes: %llu ms\n", (unsigned long long)took_ms);
    CHECK(took_ms < COMPUTES_MS / 2, "a message waited for a thread that computes: %llu ms",
          (unsigned long long)took_ms);
    pthread_join(thread, NULL);
}

/* ---- large bodies ---------------------------------------------------------------------------- */

static BMI_addr_t sender; /* 0: it has not connected yet */

static void connected(const struct BMI_unexpected_info *info)
{
    sender = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Sends a large message, and in round i then i small ones, each time when it is asked. */
static int sender_main(void *argument, int channel)
{
    static char out[SMALL];
    struct noted hello, asked, send;
    char go;
    (void)argument;
    BMI_addr_t server = client_open(channel);
    note_sendunexpected(&hello, server, out, 1, TAG);
    noted_good(&hello, "hello");
    for (int i = 0; i < ROUNDS; i++) {
        note_receive(&asked, server, &go, 1, TAG);
        noted_good(&asked, "the request for a large message");
        note_send(&send, server, large_out, LARGE, TAG);
        noted_good(&send, "send");
        for (int small = 0; small < i; small++) {
            note_send(&send, server, out, SMALL, TAG);
            noted_good(&send, "send");
        }
    }
    return (int)hear_number(channel);
}

/* The request goes behind the announcement of the receive. So the sender knows of it, and the body
 * is the next thing that comes. Before the last rounds the link is back at small messages. */
static void large_bodies_are_not_copied(const struct child *child, const char *listening)
{
    static char in[SMALL], go;
    struct bmi_method_statistics before = method_statistics("bmi_tcp");
    test_unexpected = connected;
    tell(child->channel, listening, BMI_MAX_ADDR_LEN);
    while (sender == 0)
        operations_step(10);
    for (int i = 0; i < ROUNDS; i++) {
        struct noted receive, request;
        note_receive(&receive, sender, large_in, LARGE, TAG);
        note_send(&request, sender, &go, 1, TAG);
        noted_good(&receive, "receive");
        for (int small = 0; small < i; small++) {
            note_receive(&receive, sender, in, SMALL, TAG);
            noted_good(&receive, "receive");
        }
        noted_good(&request, "request");
    }
    struct bmi_method_statistics after = method_statistics("bmi_tcp");
    uint64_t copied = after.copied_bytes - before.copied_bytes;
    printf("  %d bodies of 1 MiB, %llu bytes copied\n", ROUNDS, (unsigned long long)copied);
    /* the small messages, the hello, and the beginning of one body */
    CHECK(copied <= (uint64_t)ROUNDS * (ROUNDS - 1) / 2 * SMALL + 8192, "large bodies are copied");
}

/* ---- a crowd --------------------------------------------------------------------------------- */

/* More than the ring's completions; an address of 127.0.0.0/8 for each makes links of one process
 * of them. */
enum { CROWD = 2500, CROWD_LEAST = 300, DESCRIPTORS_BESIDE = 100, CROWD_ROUNDS = 3 };

static unsigned crowd; /* as many as descriptors allow */
static unsigned crowd_heard;
static bool crowd_seen[CROWD];

static void crowd_message(const struct BMI_unexpected_info *info)
{
    uint32_t number = CROWD;
    CHECK(info->error_code == 0 && info->size == SMALL, "an unexpected message of %lld bytes: %d",
          (long long)info->size, info->error_code);
    memcpy(&number, info->buffer, sizeof number);
    CHECK(number < crowd && !crowd_seen[number], "message %u came twice", number);
    crowd_seen[number] = true;
    crowd_heard++;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static int crowd_main(void *argument, int channel)
{
    static struct noted sends[CROWD];
    static char out[CROWD][SMALL];
    static BMI_addr_t server[CROWD];
    (void)argument;
    client_open(channel);
    unsigned port = (unsigned)hear_number(channel);
    for (uint32_t i = 0; i < crowd; i++) {
        char url[64];
        snprintf(url, sizeof url, "tcp://127.1.%u.%u:%u", i >> 8, i & 255, port);
        must(BMI_addr_lookup(&server[i], url), url);
        memcpy(out[i], &i, sizeof i);
    }
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        hear_number(channel);
        for (uint32_t i = 0; i < crowd; i++)
            note_sendunexpected(&sends[i], server[i], out[i], SMALL, TAG);
        CHECK(noted_wait(sends, crowd, 30000), "sends do not end");
        for (uint32_t i = 0; i < crowd; i++)
            noted_good(&sends[i], "send");
        tell_number(channel, 0);
    }
    hear_number(channel);
    stop();
    return 0;
}

/* In the first round the links connect. In the others the server comes back to the library when
 * all messages are there. */
static void crowd_is_heard(struct child *child, const char *listening)
{
    test_unexpected = crowd_message;
    tell(child->channel, listening, BMI_MAX_ADDR_LEN);
    tell_number(child->channel, test_port(listening));
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        crowd_heard = 0;
        memset(crowd_seen, 0, sizeof crowd_seen);
        tell_number(child->channel, round);
        if (round > 0)
            hear_number(child->channel);
        while (crowd_heard < crowd || (round == 0 && !heard(child->channel, 0)))
            operations_step(10);
        if (round == 0)
            hear_number(child->channel);
    }
    printf("  %u links, a message each\n", crowd);
    tell_number(child->channel, 0);
    child_end(child);
}

/* With CROWD_LEAST links the buffers run out, with CROWD the completions, too. */
static void crowd_size(void)
{
    unsigned allowed = descriptors_allow(CROWD + DESCRIPTORS_BESIDE);
    CHECK(allowed >= CROWD_LEAST + DESCRIPTORS_BESIDE, "%u descriptors are too few", allowed);
    crowd = allowed < CROWD + DESCRIPTORS_BESIDE ? allowed - DESCRIPTORS_BESIDE : CROWD;
}

/* ---- a child that takes over ----------------------------------------------------------------- */

/* A client that is connected at the fork. */
static int visitor(void *argument, int channel)
{
    struct noted hello, receive;
    char in[SMALL];
    (void)argument;
    BMI_addr_t server = client_open(channel);
    note_sendunexpected(&hello, server, large_out, 1, TAG);
    noted_good(&hello, "hello");
    note_receive(&receive, server, in, SMALL, TAG);
    CHECK(noted_wait(&receive, 1, 20000) && receive.status == -BMI_ECONNRESET,
          "the parent's connection: ended %d, status %d", receive.ended, receive.status);
    note_receive(&receive, server, in, SMALL, TAG);
    note_sendunexpected(&hello, server, large_out, 1, TAG);
    noted_good(&hello, "hello to the child");
    noted_good(&receive, "receive from the child");
    stop();
    return 0;
}

static int forking_server(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct noted answer;
    (void)argument;
    start(listening);
    tell(channel, listening, sizeof listening);
    test_unexpected = connected;
    while (sender == 0)
        operations_step(10);
    if (leave_to_child())
        return 0;
    for (sender = 0; sender == 0;)
        operations_step(10);
    note_send(&answer, sender, large_out, SMALL, TAG);
    noted_good(&answer, "answer");
    stop();
    tell_number(channel, 0);
    _exit(0);
}

static void child_takes_over(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child client = child_start("a visitor", visitor, NULL);
    struct child parent = child_start("a server that forks", forking_server, NULL);
    int channel = dup(parent.channel);
    hear(channel, listening, sizeof listening);
    tell(client.channel, listening, sizeof listening);
    child_end(&parent);
    child_end(&client);
    hear_number(channel);
    close(channel);
}

int main(void)
{
    static int errors[] = {ENOSYS, EPERM};
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t self;
    bool filtered = true;
    test_begin("engine_fault", 120);
    for (int i = 0; i < 2; i++) {
        struct child child = child_start("forbidden", forbidden, &errors[i]);
        int status = child_wait(&child);
        CHECK(status == 0 || status == TEST_SKIP << 8, "the child ended with %#x",
              (unsigned)status);
        filtered = filtered && status == 0;
    }
    struct child asks = child_start("usable", usable, NULL);
    if (child_wait(&asks) != 0)
        test_skip("io_uring cannot be used here, as the log says above");
    child_takes_over();
    crowd_size();
    struct child sends = child_start("sender", sender_main, NULL);
    struct child many = child_start("a crowd", crowd_main, NULL);
    start(listening);
    must(BMI_addr_lookup(&self, listening), "BMI_addr_lookup");
    threads_end(self);
    thread_computes(self);
    large_bodies_are_not_copied(&sends, listening);
    tell_number(sends.channel, 0);
    child_end(&sends);
    crowd_is_heard(&many, listening);
    stop();
    if (!filtered)
        test_skip("all but the filters of system calls, of which none can be set here, passed");
    return test_passed();
}
