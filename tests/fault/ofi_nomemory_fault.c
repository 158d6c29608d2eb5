/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_nomemory_fault.c - no memory for a method on libfabric: at its start, at each allocation in
 * turn; for a peer's page or name; for the watch of a connection. And no descriptor for a peer's
 * page.
 *
 * The failures are those of the library's own allocations (the linker's --wrap): libfabric itself
 * does not survive its own.
 *
 * usage: ofi_nomemory_fault ofi+tcp|ofi+shm
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "methods/ib/ib.h"
#include "serve.h"

static atomic_int fail_at = -1; /* how many more succeed; below 0: all */
static atomic_int failed;
static atomic_bool socket_full; /* no record can be sent, and no socket can be watched then */

static bool fails(void)
{
    if (atomic_load(&fail_at) < 0 || atomic_fetch_sub(&fail_at, 1) > 0)
        return false;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return true;
}

#define WRAPPED(type, name, parameters, arguments)       \
    type __real_##name parameters;                       \
    type __wrap_##name parameters;                       \
    type __wrap_##name parameters                        \
    {                                                    \
        return fails() ? NULL : __real_##name arguments; \
    }

WRAPPED(void *, malloc, (size_t size), (size))
WRAPPED(void *, calloc, (size_t count, size_t size), (count, size))
WRAPPED(void *, realloc, (void *memory, size_t size), (memory, size))
WRAPPED(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
WRAPPED(char *, strdup, (const char *text), (text))
WRAPPED(DIR *, opendir, (const char *path), (path))
WRAPPED(void *, dlopen, (const char *path, int mode), (path, mode))

ssize_t __real_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags)
{
    if (!atomic_load(&socket_full))
        return __real_send(fd, bytes, size, flags);
    errno = EAGAIN;
    return -1;
}

int __real_epoll_ctl(int set, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int set, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    if (operation != EPOLL_CTL_ADD || !atomic_exchange(&socket_full, false))
        return __real_epoll_ctl(set, operation, fd, event);
    errno = ENOMEM;
    return -1;
}

/* ---- the start ------------------------------------------------------------------------------- */

static int start(void)
{
    char address[64];
    test_address(address, 0);
    return BMI_initialize(test_method(), address, BMI_INIT_SERVER);
}

/* Starts, each time one more allocation succeeds. `between`: and once more, with memory. */
static void starts(bool between)
{
    int status = -BMI_ENOMEM, count;
    unsigned descriptors = descriptors_open();
    for (count = 0; status != 0; count++) {
        atomic_store(&failed, 0);
        atomic_store(&fail_at, count);
        status = start();
        atomic_store(&fail_at, -1);
        CHECK(status == (atomic_load(&failed) > 0 ? -BMI_ENOMEM : 0),
              "no memory after %d allocations: %s", count, status_name(status));
        if (status != 0 && between) {
            CHECK(descriptors_open() == descriptors, "after %d allocations: %u descriptors, not %u",
                  count, descriptors_open(), descriptors);
            must(start(), "a start with memory");
            must(BMI_finalize(), "BMI_finalize");
        }
    }
    must(BMI_finalize(), "BMI_finalize");
    printf("  a start makes %d allocations\n", count - 1);
    CHECK(count > 4, "few are failed");
}

/* ---- a peer ---------------------------------------------------------------------------------- */

static void page_of_a_peer(void)
{
    struct ib_doorbell *ours, *theirs;
    uint8_t record[16];
    CHECK(ib_doorbell_make(&ours) == 0, "no page");
    ib_doorbell_record(ours, record);
    atomic_store(&fail_at, 0);
    int status = ib_doorbell_open(record, &theirs);
    atomic_store(&fail_at, -1);
    CHECK(status == -ENOMEM, "no memory for a peer's page: %s", strerror(-status));
    CHECK(ib_doorbell_open(record, &theirs) == 0, "no page with memory");
    ib_doorbell_free(theirs);
    ib_doorbell_free(ours);
}

static void name_of_a_peer(void)
{
    static struct ib_state state;
    struct ib_peer *peer;
    atomic_store(&fail_at, 0);
    int status = ib_peer_get(&state, (const uint8_t *)"name", 5, &peer);
    atomic_store(&fail_at, -1);
    CHECK(status == -ENOMEM, "no memory for a peer's name: %s", strerror(-status));
}

/* A link must send its end of stream, has to wait for room, and cannot: it ends. */
static void bye_unwatched(struct child *server)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t address;
    int none = 0;
    echo_server_address(server, listening);
    must(start(), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    echo_hello(address);
    echo_call(address, 1, 100);
    CHECK(method_statistics(test_method()).links == 1, "no connection");
    atomic_store(&socket_full, true);
    while (method_statistics(test_method()).links > 0) {
        must(BMI_set_info(0, BMI_REAP_IDLE, &none), "BMI_REAP_IDLE");
        operations_step(10);
    }
    CHECK(!atomic_load(&socket_full), "nobody waited for room");
    echo_hello(address);
    echo_call(address, 2, 100);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    tell_number(server->channel, 0);
    child_end(server);
}

/* The last descriptor is for its connection; its page, and the provider's, are
 * shared nevertheless. */
static void client_without_descriptor(struct child *client, struct echo_report *report)
{
    enum { MOST = 128 };
    int taken[MOST], count = 0;
    struct rlimit usual, few;
    serve_here(0, report->listening);
    operations_open();
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0, "getrlimit");
    few = usual;
    few.rlim_cur = MOST;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    while (count < MOST && (taken[count] = dup(STDIN_FILENO)) >= 0)
        count++;
    CHECK(count > 0, "no descriptor to give back");
    close(taken[--count]);
    tell_number(client->channel, 0);
    while (atomic_load(&report->exchanges) < 2)
        operations_step(10);
    while (count > 0)
        close(taken[--count]);
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0, "setrlimit");
    echo_client_end(report, client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
}

int main(int argc, char **argv)
{
    setenv("BMI_TEST_METHOD", argc > 1 ? argv[1] : "ofi+tcp", 1);
    test_begin("ofi_nomemory_fault", 30);
    bool shm = strcmp(test_scheme(), "ofi+shm") == 0; /* tcp's connections take descriptors, too */
    struct echo_report *report = shared_memory(sizeof *report);
    struct child server = echo_server_start(0), client = {0};
    if (shm)
        client = echo_client_start(report);
    starts(false); /* libfabric is not loaded yet */
    starts(true);
    page_of_a_peer();
    name_of_a_peer();
    bye_unwatched(&server);
    if (shm)
        client_without_descriptor(&client, report);
    return test_passed();
}
