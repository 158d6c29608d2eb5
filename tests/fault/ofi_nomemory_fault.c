/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_nomemory_fault.c - no memory for a method on libfabric: at its start, at each allocation in
 * turn; for a peer's page or name. And few descriptors for a connection.
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
#include <sys/resource.h>
#include <unistd.h>

#include "methods/ib/ib.h"
#include "serve.h"

static atomic_int fail_at = -1; /* how many more succeed; below 0: all */
static atomic_int failed;

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
    CHECK(ib_doorbell_make(&ours) == 0, "no page");
    struct ib_doorbell_record record = ib_doorbell_record(ours);
    atomic_store(&fail_at, 0);
    int status = ib_doorbell_open(&record, &theirs);
    atomic_store(&fail_at, -1);
    CHECK(status == -ENOMEM, "no memory for a peer's page: %s", strerror(-status));
    CHECK(ib_doorbell_open(&record, &theirs) == 0, "no page with memory");
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

/* The client's connection waits for the descriptors by which its page, and the provider's, are
 * shared: with them it takes one, and works. */
static void client_with_few_descriptors(struct child *client, struct echo_report *report)
{
    enum { MOST = 128, SPARE = 2 };
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
    CHECK(count > SPARE, "no descriptors to give back");
    for (int i = 0; i < 1 + SPARE; i++)
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
    struct child client = {0};
    if (shm)
        client = echo_client_start(report);
    starts(false); /* libfabric is not loaded yet */
    starts(true);
    page_of_a_peer();
    name_of_a_peer();
    if (shm)
        client_with_few_descriptors(&client, report);
    return test_passed();
}
