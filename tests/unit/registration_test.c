/* SPDX-License-Identifier: BSD-3-Clause
 *
 * registration_test.c - the cache of registrations. The registrar here behaves like a NIC that
 * holds pages: it makes a second mapping of the memory's file when it registers. So a later mapping
 * at the same address is different memory, and a stale registration is detected.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/method.h"
#include "unit.h"

enum { PAGE = 4096, PAGES = 64, LOG = 256 };

/* The program's memory: a window onto a file, of which any page can be mapped anywhere. */
static uint8_t *window;
static int file;

/* One registration, in the NIC's view. */
struct pinned {
    uint8_t *view;
    size_t length;
};

static struct nic {
    unsigned entered, left;
    size_t bytes;
    size_t most;       /* bytes that it accepts; 0: any */
    uintptr_t address; /* of the last call of enter */
    size_t length;
    off_t at; /* the window's present place in the file */
} nic;

static int nic_enter(void *owner, uintptr_t address, size_t length, void **handle)
{
    struct nic *self = owner;
    if (self->most > 0 && self->bytes + length > self->most)
        return -ENOMEM;
    struct pinned *pinned = malloc(sizeof *pinned);
    *pinned = (struct pinned){.length = length};
    off_t offset = self->at + (off_t)(address - (uintptr_t)window);
    pinned->view = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    self->entered++;
    self->bytes += length;
    self->address = address;
    self->length = length;
    *handle = pinned;
    return pinned->view != MAP_FAILED ? 0 : -EFAULT;
}

static void nic_leave(void *owner, uintptr_t address, size_t length, void *handle)
{
    struct nic *self = owner;
    struct pinned *pinned = handle;
    CU_ASSERT_EQUAL(address % PAGE, 0);
    CU_ASSERT_EQUAL(length, pinned->length);
    munmap(pinned->view, pinned->length);
    free(pinned);
    self->left++;
    self->bytes -= length;
}

static struct bmi_registration_cache *cache;

/* Maps the window onto the pages of the file from `page` on, over the earlier mapping. */
static void window_map(unsigned page)
{
    nic.at = (off_t)page * PAGE;
    void *mapped = mmap(window, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE,
                        MAP_SHARED | (window != NULL ? MAP_FIXED : 0), file, nic.at);
    CU_ASSERT_FATAL(mapped != MAP_FAILED);
    window = mapped;
}

static void begin(bool follows_mapping)
{
    nic = (struct nic){.entered = 0};
    window = NULL;
    file = memfd_create("registration_test", MFD_CLOEXEC);
    CU_ASSERT_FATAL(file >= 0 && ftruncate(file, 2 * PAGES * PAGE) == 0);
    window_map(0);
    const struct bmi_registrar registrar = {.enter = nic_enter,
                                            .leave = nic_leave,
                                            .follows_mapping = follows_mapping};
    CU_ASSERT_EQUAL_FATAL(bmi_method_cache_create(&bmi__default, NULL, &registrar, &nic, &cache),
                          0);
}

static void finish(void)
{
    bmi_method_cache_destroy(cache);
    CU_ASSERT_EQUAL(nic.entered, nic.left);
    CU_ASSERT_EQUAL(nic.bytes, 0);
    munmap(window, (size_t)PAGES * PAGE);
    close(file);
}

static struct bmi_registration *get(size_t offset, size_t length)
{
    struct bmi_registration *entry = NULL;
    CU_ASSERT_EQUAL_FATAL(bmi_method_cache_get(cache, window + offset, length, &entry), 0);
    uintptr_t start = (uintptr_t)window + offset;
    CU_ASSERT_TRUE(entry->address <= start && start + length <= entry->address + entry->length);
    return entry;
}

static void put(struct bmi_registration *entry, size_t offset, size_t length)
{
    bmi_method_cache_put(cache, entry, window + offset, length);
}

static void use(size_t offset, size_t length)
{
    put(get(offset, length), offset, length);
}

/* The byte that the NIC moves for an offset of the window, through a registration. */
static uint8_t nic_reads(const struct bmi_registration *entry, size_t offset)
{
    const struct pinned *pinned = entry->handle;
    return pinned->view[(uintptr_t)window + offset - entry->address];
}

static void plain_memory_is_registered_while_used(void)
{
    begin(false);
    struct bmi_registration *one = get(100, 5000), *same = get(200, 5000), *within = get(300, 10);
    CU_ASSERT_PTR_EQUAL(one, same);
    CU_ASSERT_PTR_EQUAL(one, within);
    CU_ASSERT_EQUAL(nic.entered, 1);
    CU_ASSERT_EQUAL(nic.length, 2 * PAGE);
    put(one, 100, 5000);
    put(within, 300, 10);
    CU_ASSERT_EQUAL(nic.left, 0);
    put(same, 200, 5000);
    CU_ASSERT_EQUAL(nic.left, 1);
    use(100, 5000);
    CU_ASSERT_EQUAL(nic.entered, 2);
    finish();
}

/* The main case: freed, mapped again at the same address, used again. */
static void remapped_memory_is_registered_anew(void)
{
    begin(false);
    window[0] = 1;
    struct bmi_registration *entry = get(0, 4 * PAGE);
    CU_ASSERT_EQUAL(nic_reads(entry, 0), 1);
    put(entry, 0, 4 * PAGE);
    munmap(window, (size_t)PAGES * PAGE);
    window_map(PAGES);
    window[0] = 2;
    entry = get(0, 4 * PAGE);
    CU_ASSERT_EQUAL(nic_reads(entry, 0), 2);
    put(entry, 0, 4 * PAGE);
    finish();
}

/* A small user keeps a large registration alive after the large user's end: the rest of it may be
 * mapped anew by then, and must not be found. */
static void unused_memory_is_not_found(void)
{
    begin(false);
    struct bmi_registration *large = get(0, 8 * PAGE), *small = get(PAGE, 10);
    CU_ASSERT_PTR_EQUAL(large, small);
    put(large, 0, 8 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 0);
    /* pages 4 to 7 become others; page 1, which is lent, stays */
    CU_ASSERT_FATAL(mmap(window + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED, file, (PAGES + 4) * PAGE) != MAP_FAILED);
    window[4 * PAGE] = 77;
    nic.at = (off_t)PAGES * PAGE;
    struct bmi_registration *later = get(4 * PAGE, 2 * PAGE);
    CU_ASSERT_PTR_NOT_EQUAL(later, large);
    CU_ASSERT_EQUAL(nic_reads(later, 4 * PAGE), 77);
    put(later, 4 * PAGE, 2 * PAGE);
    put(small, PAGE, 10);
    CU_ASSERT_EQUAL(nic.left, 2);
    finish();
}

static void held_memory_is_registered_once(void)
{
    begin(false);
    struct bmi_registration *held = get(PAGE, 16 * PAGE); /* as BMI_memalloc does */
    for (unsigned i = 0; i < 100; i++)
        use(PAGE + i * 100, 3 * PAGE);
    use(PAGE, 16 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 1);
    CU_ASSERT_EQUAL(nic.left, 0);
    put(held, PAGE, 16 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 1);
    finish();
}

static void overlapping_plain_buffers(void)
{
    begin(false);
    struct bmi_registration *one = get(0, PAGE + 10), *two = get(PAGE + 10, PAGE);
    CU_ASSERT_PTR_NOT_EQUAL(one, two);
    struct bmi_registration *in_one = get(PAGE, 10);
    CU_ASSERT_PTR_EQUAL(in_one, one);
    put(one, 0, PAGE + 10);
    struct bmi_registration *all = get(0, 4 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 3);
    put(all, 0, 4 * PAGE);
    put(in_one, PAGE, 10);
    put(two, PAGE + 10, PAGE);
    CU_ASSERT_EQUAL(nic.left, 3);
    finish();
}

static void kept_where_addresses_count(void)
{
    begin(true);
    use(0, 4 * PAGE);
    use(0, 4 * PAGE);
    use(PAGE, 10);
    CU_ASSERT_EQUAL(nic.entered, 1);
    CU_ASSERT_EQUAL(nic.left, 0);
    bmi_method_cache_forget(cache, window + 3 * PAGE, 1);
    CU_ASSERT_EQUAL(nic.left, 1);
    struct bmi_registration *entry = get(0, PAGE);
    bmi_method_cache_forget(cache, window, PAGE);
    CU_ASSERT_EQUAL(nic.left, 1); /* in use */
    use(0, PAGE);
    CU_ASSERT_EQUAL(nic.entered, 3);
    put(entry, 0, PAGE);
    CU_ASSERT_EQUAL(nic.left, 2);
    finish();
}

static void overlapping_ones_are_merged(void)
{
    begin(true);
    use(0, 2 * PAGE);
    struct bmi_registration *busy = get(3 * PAGE, 2 * PAGE);
    use(PAGE, 3 * PAGE); /* touches both */
    CU_ASSERT_EQUAL(nic.entered, 3);
    CU_ASSERT_EQUAL(nic.address, (uintptr_t)window);
    CU_ASSERT_EQUAL(nic.length, 5 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 1);
    put(busy, 3 * PAGE, 2 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 2);
    use(0, 5 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 3);
    use(4 * PAGE + 5, PAGE); /* 6 pages for 2 are not too many */
    CU_ASSERT_EQUAL(nic.length, 6 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 3);
    use(6 * PAGE - 5, 10); /* 7 for 2 still; then 8 */
    use(7 * PAGE - 5, 10);
    CU_ASSERT_EQUAL(nic.length, 8 * PAGE);
    use(8 * PAGE - 5, 10); /* 9 are: it stays separate, and is not kept */
    CU_ASSERT_EQUAL(nic.length, 2 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 6);
    use(0, 8 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 7);
    finish();
}

static void least_recently_used_go_first(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "registration_bytes=65536"),
                          0); /* 16 pages */
    begin(true);
    for (unsigned i = 0; i < 4; i++)
        use(i * 8 * PAGE, 4 * PAGE);
    use(0, 4 * PAGE); /* the oldest becomes the newest */
    use(32 * PAGE, 4 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 1);
    use(0, 4 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 5);
    use(8 * PAGE, 4 * PAGE);
    CU_ASSERT_EQUAL(nic.entered, 6);
    struct bmi_cache_statistics statistics;
    bmi_method_cache_statistics(cache, &statistics);
    CU_ASSERT_EQUAL(statistics.bytes, 16 * PAGE);
    CU_ASSERT_EQUAL(statistics.count, 4);
    CU_ASSERT_EQUAL(statistics.evictions, 2);
    CU_ASSERT_EQUAL(statistics.uses - statistics.registrations, 2);
    finish();
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "registration_bytes=4G"), 0);
}

static void over_the_bounds(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default,
                                            "registration_bytes=65536,registration_count=16"),
                          0);
    begin(false);
    struct bmi_registration *none, *entries[16];
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, window, 17 * PAGE, &none), -ENOBUFS);
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, window, 0, &none), -EINVAL);
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, NULL, 10, &none), -EINVAL);
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, window, SIZE_MAX, &none), -EINVAL);
    for (unsigned i = 0; i < 16; i++)
        entries[i] = get(2 * i * PAGE, 10);
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, window + 50 * PAGE, 10, &none), -ENOBUFS);
    CU_ASSERT_EQUAL(nic.entered, 16);
    for (unsigned i = 0; i < 16; i++)
        put(entries[i], 2 * i * PAGE, 10);
    use(50 * PAGE, 10);
    finish();
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default,
                                      "registration_bytes=4G,registration_count=4096"),
                    0);
}

/* The network's own limit: unused ones are ended for it, then the caller gets the error. */
static void the_network_is_full(void)
{
    begin(true);
    nic.most = 8 * PAGE;
    use(0, 4 * PAGE);
    struct bmi_registration *busy = get(8 * PAGE, 4 * PAGE), *none;
    use(16 * PAGE, 3 * PAGE);
    CU_ASSERT_EQUAL(nic.left, 1);
    CU_ASSERT_EQUAL(bmi_method_cache_get(cache, window + 24 * PAGE, 5 * PAGE, &none), -ENOMEM);
    put(busy, 8 * PAGE, 4 * PAGE);
    finish();
}

/* ---- many threads --------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 3000 };

static void *user_run(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    for (unsigned i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245u + 12345u;
        size_t offset = (seed >> 8) % ((PAGES - 8) * PAGE), length = 1 + (seed >> 4) % (7 * PAGE);
        struct bmi_registration *entry;
        if (bmi_method_cache_get(cache, window + offset, length, &entry) != 0)
            return argument;
        uint8_t seen = nic_reads(entry, offset);
        if (seen != (uint8_t)((offset / PAGE) * 3 + 1))
            return argument;
        bmi_method_cache_put(cache, entry, window + offset, length);
    }
    return NULL;
}

static void many_users(void)
{
    for (int follows = 0; follows < 2; follows++) {
        begin(follows == 1);
        for (unsigned i = 0; i < PAGES; i++)
            memset(window + i * PAGE, (int)(i * 3 + 1), PAGE);
        pthread_t threads[THREADS];
        unsigned seeds[THREADS];
        for (unsigned i = 0; i < THREADS; i++) {
            seeds[i] = i + 1;
            CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, user_run, &seeds[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            void *failed;
            pthread_join(threads[i], &failed);
            CU_ASSERT_PTR_NULL(failed);
        }
        finish();
    }
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"plain memory is registered while used", plain_memory_is_registered_while_used},
        {"remapped memory is registered anew", remapped_memory_is_registered_anew},
        {"unused memory is not found", unused_memory_is_not_found},
        {"held memory is registered once", held_memory_is_registered_once},
        {"overlapping plain buffers", overlapping_plain_buffers},
        {"kept where addresses count", kept_where_addresses_count},
        {"overlapping ones are merged", overlapping_ones_are_merged},
        {"least recently used go first", least_recently_used_go_first},
        {"over the bounds", over_the_bounds},
        {"the network is full", the_network_is_full},
        {"many users", many_users},
        CU_TEST_INFO_NULL,
    };
    return unit_run("registration", tests);
}
