/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unanswered_test.c - a client in a loop of its own, whose connection does not come up: it sleeps,
 * and the time limit of peers that have fallen silent does not apply.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/job_case.h"

enum { FILLERS = 3, WATCHED_MS = 1000, LONGER_MS = 3000, PAUSE_US = 20000, WAKES = 5 };

static int listener, fillers[FILLERS];
static char address[64];

/* A socket that listens; its queue is full, so the kernel drops further attempts to connect. */
static void listener_open(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CU_ASSERT_FATAL(listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0);
    CU_ASSERT_FATAL(listen(listener, 0) == 0);
    CU_ASSERT_FATAL(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    for (int i = 0; i < FILLERS; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(fillers[i], (struct sockaddr *)&at, sizeof at);
    }
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
}

static void listener_close(void)
{
    for (int i = 0; i < FILLERS; i++)
        close(fillers[i]);
    close(listener);
}

static void set(const char *setting)
{
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, (void *)setting), 0);
}

/* How often the context's descriptor wakes a loop that calls the test function each time. The loop
 * pauses after that: while the background's thread waits for a CPU the descriptor stays readable,
 * which counts once. */
static int wakes_in(int duration_ms)
{
    struct pollfd polled = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    uint64_t now = bmi_job_deadline(0), end = now + (uint64_t)duration_ms * 1000000;
    int wakes = 0;
    for (; now < end; now = bmi_job_deadline(0)) {
        bool woken = poll(&polled, 1, (int)((end - now + 999999) / 1000000)) > 0;
        job_case_none();
        if (!woken)
            continue;
        wakes++;
        usleep(PAUSE_US);
    }
    return wakes;
}

/* Given a server that does not answer, when a client waits for the connection, its loop sleeps, and
 * connect_timeout_ms alone limits the wait. */
static void test_waits_quietly(void)
{
    BMI_addr_t server;
    bmi_job_id_t id;
    struct bmi_job_status status;
    char buffer[8];
    int count = 0;
    listener_open();
    set("peer_timeout_ms=400,connect_timeout_ms=600000");
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&server, address), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_recv(job_case.context, server, buffer, sizeof buffer,
                                       BMI_EXT_ALLOC, 1, NULL, &id, NULL),
                          0);
    int wakes = wakes_in(WATCHED_MS);
    printf("%d wake-ups in %d ms ", wakes, WATCHED_MS);
    CU_ASSERT_TRUE(wakes <= WAKES);
    CU_ASSERT_EQUAL(bmi_job_test(job_case.context, id, &count, &status, LONGER_MS), 0);
    if (count == 0)
        CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, 0, 0), -BMI_ETIMEDOUT);
    set("peer_timeout_ms=30000,connect_timeout_ms=10000");
    listener_close();
}

int main(void)
{
    static CU_TestInfo cases[] = {
        {"an unanswered client waits quietly", test_waits_quietly},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("unanswered, in the foreground", "unanswered, in the background", cases);
}
