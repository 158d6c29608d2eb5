/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine_fault.c - tcp's engine on io_uring: where a filter of system calls forbids it, epoll is
 * used and the log says why; the end of a thread that has polled harms no connection; large bodies
 * are not copied, whatever comes between them.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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
    serve("tcp://127.0.0.1:0", 0, listening);
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

/* Without io_uring. */
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

static void large_bodies_are_not_copied(BMI_addr_t self)
{
    char in[SMALL], out[SMALL] = "small";
    struct bmi_method_statistics before = method_statistics("bmi_tcp");
    for (int i = 0; i < ROUNDS; i++) {
        memset(large_out, i, sizeof large_out);
        exchange(self, large_in, large_out, LARGE);
        for (int small = 0; small < i; small++) /* in the end the link is back at small ones */
            exchange(self, in, out, SMALL);
    }
    struct bmi_method_statistics after = method_statistics("bmi_tcp");
    uint64_t copied = after.copied_bytes - before.copied_bytes;
    printf("  %d bodies of 1 MiB, %llu bytes copied\n", ROUNDS, (unsigned long long)copied);
    CHECK(copied <= (uint64_t)ROUNDS * ROUNDS * SMALL, "large bodies are copied");
}

int main(void)
{
    static int errors[] = {ENOSYS, EPERM};
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t self;
    test_begin("engine_fault", 60);
    for (int i = 0; i < 2; i++) {
        struct child child = child_start("forbidden", forbidden, &errors[i]);
        int status = child_wait(&child);
        CHECK(status == 0 || status == TEST_SKIP << 8, "the child ended with %#x",
              (unsigned)status);
    }
    start(listening);
    if (strstr(said, "engine io_uring") == NULL)
        test_skip("%s", said);
    must(BMI_addr_lookup(&self, listening), "BMI_addr_lookup");
    threads_end(self);
    large_bodies_are_not_copied(self);
    stop();
    return test_passed();
}
