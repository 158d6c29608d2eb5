/* SPDX-License-Identifier: BSD-3-Clause
 *
 * harness.c - see harness.h.
 */
#include "harness.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

enum { HOSTS_MAX = 16 };
static struct host *hosts[HOSTS_MAX];
static unsigned host_count;

static void print_log(void *context, enum nic_log_level level, const char *text)
{
    struct host *host = context;
    host->errors += level == NIC_LOG_ERROR;
    host->warnings += level == NIC_LOG_WARN;
    if (getenv("NIC_TEST_LOG") != NULL)
        fprintf(stderr, "[%d] %d: %s\n", (int)getpid(), (int)level, text);
}

void host_open(struct host *host, const struct nic_options *options)
{
    struct nic_options own;
    memset(host, 0, sizeof(*host));
    nic_options_default(&own);
    if (options != NULL)
        own = *options;
    own.log = print_log;
    own.log_context = host;
    int status = nic_open(&own, &host->port);
    CU_ASSERT_EQUAL_FATAL(status, 0);
    CU_ASSERT_FATAL(host_count < HOSTS_MAX);
    hosts[host_count++] = host;
}

void host_close(struct host *host)
{
    for (unsigned i = 0; i < host_count; i++)
        if (hosts[i] == host)
            hosts[i] = hosts[--host_count];
    nic_close(host->port);
}

void host_forget(void)
{
    host_count = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no child outlives a test that fails */
}

void host_provide(struct host *host, unsigned count, unsigned size, enum nic_priority priority)
{
    for (unsigned i = 0; i < count; i++) {
        void *buffer = nic_dma_malloc(host->port, 1u << size);
        CU_ASSERT_PTR_NOT_NULL_FATAL(buffer);
        CU_ASSERT_EQUAL(nic_provide_receive_buffer(host->port, buffer, size, priority), 0);
    }
}

uint16_t host_listen(struct host *host, const char *node)
{
    uint16_t number = 0;
    CU_ASSERT_EQUAL_FATAL(nic_listen(host->port, node, &number), 0);
    return number;
}

void hosts_pair(struct host *server, struct host *client, const struct nic_options *options)
{
    host_open(server, options);
    host_open(client, options);
    uint16_t number = host_listen(server, "node");
    CU_ASSERT_EQUAL_FATAL(nic_connect(client->port, "node", number, client, &client->peer), 0);
    CU_ASSERT_FATAL(UNTIL(client->ups == 1 && server->accepted == 1));
}

void host_callback(struct nic_port *port, void *context, int status)
{
    struct host *host = context;
    CU_ASSERT_PTR_EQUAL(port, host->port);
    host->callbacks++;
    host->last_status = status;
    if (status < 0)
        host->failures++;
}

/* NULL-terminated pool of segments that live as long as a send may. */
static struct iovec segments[4096];
static unsigned segment_next;

int host_send(struct host *host, const void *data, size_t length, unsigned size,
              enum nic_priority priority, unsigned flags)
{
    struct iovec *iov = &segments[segment_next++ % 4096];
    *iov = (struct iovec){(void *)(uintptr_t)data, length};
    return nic_send_with_callback(host->peer, iov, 1, size, priority, flags, host_callback, host);
}

static void message_note(struct host *host, struct nic_event *event)
{
    host->received++;
    host->priority = event->priority;
    host->size = event->size;
    host->length = event->length;
    host->fast += event->type == NIC_FAST_RECV_EVENT;
    if (host->on_message != NULL)
        host->on_message(host, event);
    else
        memcpy(host->message, nic_memorize_message(event), event->length);
    if (!host->keep_buffers)
        nic_unknown(host->port, event);
}

static bool host_poll(struct host *host)
{
    struct nic_event *event = nic_receive(host->port);
    switch (event->type) {
    case NIC_NO_RECV_EVENT:
        return false;
    case NIC_RECV_EVENT:
    case NIC_FAST_RECV_EVENT:
        message_note(host, event);
        break;
    case NIC_PEER_ACCEPTED_EVENT:
        host->accepted++;
        host->peer = event->peer;
        break;
    case NIC_PEER_UP_EVENT:
        host->ups++;
        break;
    case NIC_PEER_DOWN_EVENT:
        host->downs++;
        host->down_status = event->status;
        host->refused = event->peer;
        break;
    case NIC_CROWDED_EVENT:
        host->crowded++;
        break;
    case NIC_SENT_EVENT:
        nic_unknown(host->port, event);
        break;
    }
    return true;
}

static bool sleep_all(void)
{
    struct pollfd wait[HOSTS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < host_count; i++) {
        if (hosts[i]->stopped)
            continue;
        if (!nic_arm(hosts[i]->port))
            return true;
        wait[count++] = (struct pollfd){.fd = nic_descriptor(hosts[i]->port), .events = POLLIN};
    }
    int ready = poll(wait, count, HOST_LIMIT_S * 1000);
    if (ready == 0)
        fprintf(stderr, "nothing happened for %d s\n", HOST_LIMIT_S);
    return ready != 0;
}

bool hosts_drive_once(void)
{
    bool any = false;
    for (unsigned i = 0; i < host_count; i++)
        if (!hosts[i]->stopped)
            any |= host_poll(hosts[i]);
    return any;
}

/* Polls all hosts. Sleeps only if the pass before also found nothing: the caller has checked its
 * condition in between. */
bool hosts_drive(void)
{
    static bool quiet;
    if (quiet && !sleep_all())
        return false;
    quiet = !hosts_drive_once();
    return true;
}

unsigned descriptors_open(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

void pattern_fill(void *memory, size_t length, unsigned seed)
{
    uint8_t *byte = memory;
    for (size_t i = 0; i < length; i++)
        byte[i] = (uint8_t)((i * 7 + i / 251 + seed * 31) & 0xff);
}

bool pattern_is(const void *memory, size_t length, unsigned seed)
{
    const uint8_t *byte = memory;
    for (size_t i = 0; i < length; i++)
        if (byte[i] != (uint8_t)((i * 7 + i / 251 + seed * 31) & 0xff))
            return false;
    return true;
}

int cases_run(const char *suite, const struct test_case *cases, size_t count)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite added = CU_add_suite(suite, NULL, NULL);
    for (size_t i = 0; i < count; i++)
        CU_add_test(added, cases[i].name, cases[i].run);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed != 0;
}
