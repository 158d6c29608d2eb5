/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_test.c - the report of a process: for its own program, and for a client that requests it.
 */
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bmi.h"
#include "unit.h"

enum { TAG = 7, BYTES = 100 };

static bmi_context_id context;
static BMI_addr_t self;

static void start(void)
{
    char address[BMI_MAX_ADDR_LEN];
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self, address), 0);
}

static void end(void)
{
    BMI_close_context(context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static void drive(int ms)
{
    bmi_op_id_t op;
    bmi_error_code_t error;
    bmi_size_t actual;
    void *user;
    int count;
    BMI_testcontext(1, &op, &count, &error, &actual, &user, ms, context);
}

static bool says(const char *text, const char *what)
{
    if (strstr(text, what) != NULL)
        return true;
    fprintf(stderr, "no \"%s\" in\n%s", what, text);
    return false;
}

/* A program may look up a string that a peer sent. */
static void names_are_escaped(void)
{
    char text[16384], url[BMI_MAX_ADDR_LEN + 32], address[BMI_MAX_ADDR_LEN];
    BMI_addr_t strange;
    bmi_op_id_t op;
    bmi_size_t actual;
    static char in[BYTES];
    start();
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address), 0);
    snprintf(url, sizeof url, "%s/\x1b[2J\n  forged", address);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&strange, url), 0);
    CU_ASSERT_EQUAL(BMI_post_recv(&op, strange, in, BYTES, &actual, BMI_EXT_ALLOC, TAG, NULL,
                                  context, NULL),
                    0);
    bmi_report(text, sizeof text);
    CU_ASSERT_TRUE(says(text, "/\\x1b[2J\\x0a\\x20\\x20forged "));
    CU_ASSERT_PTR_NULL(strchr(text, '\x1b'));
    end();
}

static void the_program_itself(void)
{
    char text[16384], some[20];
    CU_ASSERT_EQUAL(bmi_report(text, sizeof text), 0);
    CU_ASSERT_STRING_EQUAL(text, "");
    start();
    static char in[BYTES];
    bmi_op_id_t op;
    bmi_size_t actual;
    CU_ASSERT_EQUAL(BMI_post_recv(&op, self, in, BYTES, &actual, BMI_EXT_ALLOC, TAG, NULL, context,
                                  NULL),
                    0);
    drive(50);
    size_t length = bmi_report(text, sizeof text);
    CU_ASSERT_EQUAL(length, strlen(text));
    CU_ASSERT_TRUE(says(text, bmi_version()));
    CU_ASSERT_TRUE(says(text, "listens at tcp://127.0.0.1:"));
    CU_ASSERT_TRUE(says(text, "outstanding_receives   1\n"));
    CU_ASSERT_TRUE(says(text, "tcp://127.0.0.1:"));
    CU_ASSERT_TRUE(says(text, "outstanding 0 sends 1 receives"));
    CU_ASSERT_TRUE(length > 5 && strcmp(text + length - 5, "\nend\n") == 0);
    CU_ASSERT_EQUAL(bmi_report(some, sizeof some), length);
    CU_ASSERT_EQUAL(strlen(some), sizeof some - 1);
    CU_ASSERT_TRUE(strncmp(text, some, sizeof some - 1) == 0);
    CU_ASSERT_EQUAL(bmi_report(NULL, 0), length);
    end();
}

/* A connection to the thread that answers for this process, or -1. */
static int ask(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, BMI_REPORT_NAME, (long)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, size) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Makes progress until the whole answer has arrived. */
static void answer_read(int fd, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < 200; i++) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        drive(20);
        if (poll(&polled, 1, 0) == 0)
            continue;
        ssize_t got = read(fd, text + used, size - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    text[used] = '\0';
}

static void report_to_a_client(void)
{
    char text[16384];
    start();
    drive(0);
    CU_ASSERT_EQUAL(ask(), -1);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=on"), 0);
    drive(0);
    int fd = ask();
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    answer_read(fd, text, sizeof text);
    CU_ASSERT_TRUE(says(text, "libbmi "));
    CU_ASSERT_TRUE(says(text, "peers\n"));
    close(fd);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=off"), 0);
    drive(0);
    CU_ASSERT_EQUAL(ask(), -1);
    end();
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool under_memcheck(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload") != NULL;
}

/* A client asks while no descriptor is left for the answer: this costs no CPU time, and the client
 * gets its answer when there is one. */
static void report_to_a_client_without_descriptors(void)
{
    char text[16384];
    struct rlimit limit, none;
    start();
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=on"), 0);
    drive(0);
    int fd = ask();
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = (rlim_t)fd; /* the next one would be the asker's own again */
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    double before = cpu_seconds();
    for (int i = 0; i < 5; i++)
        drive(100);
    CU_ASSERT_TRUE(cpu_seconds() - before < 0.25); /* half a second has passed */
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    answer_read(fd, text, sizeof text);
    close(fd);
    if (text[0] == '\0' && under_memcheck()) { /* which has accepted the connection, and
                                                  closed it */
        fd = ask();
        answer_read(fd, text, sizeof text);
        close(fd);
    }
    CU_ASSERT_TRUE(says(text, "peers\n"));
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=off"), 0);
    end();
}

/* Receives from many peers with long names, so that no socket takes the report at once. They are
 * looked up at a port without a BMI server. */
static void peers_make(unsigned port)
{
    enum { PEERS = 300, NAME = 1900 };
    static char in[PEERS];
    char name[NAME + 100];
    bmi_op_id_t op;
    bmi_size_t actual;
    for (int i = 0; i < PEERS; i++) {
        BMI_addr_t peer;
        int used = snprintf(name, sizeof name, "tcp://127.0.0.1:%u/%d", port, i);
        memset(name + used, 'x', NAME);
        name[used + NAME] = '\0';
        CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&peer, name), 0);
        CU_ASSERT_EQUAL(BMI_post_recv(&op, peer, &in[i], 1, &actual, BMI_EXT_ALLOC, TAG, NULL,
                                      context, NULL),
                        0);
    }
}

/* A socket that listens, and never accepts. */
static int mute(unsigned *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *)&at, size) == 0);
    CU_ASSERT_FATAL(listen(fd, 1000) == 0 && getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* A client that asks and does not read is dropped, and the next one gets the whole report. */
static void one_does_not_read(void)
{
    static char text[1 << 20];
    unsigned port;
    int listener = mute(&port);
    start();
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=on"), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), 0);
    peers_make(port);
    drive(0);
    int silent = ask();
    CU_ASSERT_TRUE_FATAL(silent >= 0);
    drive(20); /* its answer is under way */
    int fd = ask();
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    for (int i = 0; i < 3000 && poll(&polled, 1, 0) == 0; i++)
        drive(20);
    answer_read(fd, text, sizeof text);
    CU_ASSERT_TRUE(strlen(text) > 500000);
    CU_ASSERT_TRUE(says(text, "libbmi "));
    CU_ASSERT_EQUAL(text[strlen(text) - 1], '\n');
    ssize_t got, unread = 0; /* a part was sent, and not all */
    while ((got = read(silent, text, sizeof text)) > 0)
        unread += got;
    CU_ASSERT_TRUE(unread > 0 && unread < 500000);
    close(fd);
    close(silent);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "report=off"), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=10000"), 0);
    end();
    close(listener);
}

/* On from the start; ends with the library. */
static void by_the_environment(void)
{
    setenv("BMI_REPORT", "on", 1);
    for (int round = 0; round < 2; round++) {
        start();
        drive(0);
        int fd = ask();
        CU_ASSERT_TRUE(fd >= 0);
        drive(20); /* its answer is under way */
        end();
        close(fd);
        CU_ASSERT_EQUAL(ask(), -1);
    }
    unsetenv("BMI_REPORT");
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"to the program itself", the_program_itself},
        {"names are escaped", names_are_escaped},
        {"to a client", report_to_a_client},
        {"to a client, without descriptors", report_to_a_client_without_descriptors},
        {"one does not read", one_does_not_read},
        {"on by the environment", by_the_environment},
        CU_TEST_INFO_NULL,
    };
    return unit_run("report", tests);
}
