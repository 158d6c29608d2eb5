/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory_test.c - registration, its limit and its cost; nic_dma_malloc; exposures.
 */
#include "harness.h"
#include "tests/unit/emulation.h"

static struct host host;
static uint8_t area[1 << 20] __attribute__((aligned(4096)));

static void setup(uint64_t pages_max, uint32_t exposures_max)
{
    struct nic_options options;
    nic_options_default(&options);
    options.registered_pages_max = pages_max;
    options.exposures_max = exposures_max;
    host_open(&host, &options);
}

static int provide(void *memory, unsigned size)
{
    return nic_provide_receive_buffer(host.port, memory, size, NIC_LOW_PRIORITY);
}

static void pages_are_counted(void)
{
    setup(100, 10);
    struct nic_port *port = host.port;
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 1), 0);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 1);
    CU_ASSERT_EQUAL(nic_register_memory(port, area + 4095, 2), 0);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 3);
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 97 * 4096), 0);
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 1), -ENOSPC);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 100);
    errno = 0;
    CU_ASSERT_PTR_NULL(nic_dma_malloc(port, 64));
    CU_ASSERT_EQUAL(errno, ENOSPC);
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 0), -EINVAL);
    CU_ASSERT_EQUAL(nic_register_memory(port, area, UINT64_MAX), -EINVAL);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area, 2), -ENOENT);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area + 1, 1), -ENOENT);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area, 97 * 4096), 0);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area, 97 * 4096), -ENOENT);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 3);
    void *memory = nic_dma_malloc(port, 8192);
    CU_ASSERT_PTR_NOT_NULL(memory);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 5);
    nic_dma_free(port, memory);
    CU_ASSERT_EQUAL(nic_registered_pages(port), 3);
    host_close(&host);
}

static void overlapping_ranges_are_found(void)
{
    setup(10000, 10);
    struct nic_port *port = host.port;
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 64), 0);
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 100000), 0);
    CU_ASSERT_EQUAL(nic_register_memory(port, area + 64, 64), 0);
    CU_ASSERT_EQUAL(nic_register_memory(port, area + 50000, 64), 0);
    CU_ASSERT_EQUAL(nic_register_memory(port, area + 50000, 64), 0);
    CU_ASSERT_EQUAL(provide(area + 99936, 6), 0);
    CU_ASSERT_EQUAL(provide(area + 99937, 6), -EFAULT);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area, 100000), 0);
    CU_ASSERT_EQUAL(provide(area + 99936, 6), -EFAULT);
    CU_ASSERT_EQUAL(provide(area, 6), 0);
    CU_ASSERT_EQUAL(provide(area + 64, 6), 0);
    CU_ASSERT_EQUAL(provide(area + 32, 6), -EFAULT); /* two ranges, side by side, are two */
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area + 50000, 64), 0);
    CU_ASSERT_EQUAL(provide(area + 50000, 6), 0);
    CU_ASSERT_EQUAL(nic_deregister_memory(port, area + 50000, 64), 0);
    CU_ASSERT_EQUAL(provide(area + 50000, 6), -EFAULT);
    host_close(&host);
}

/* Compares with a plain list: every answer is the same. */
static void registrations_agree_with_a_list(void)
{
    enum { RANGES = 200, STEPS = 4000 };
    struct {
        size_t begin, length;
        bool there;
    } list[RANGES] = {0};
    unsigned random = 12345;
    setup(1 << 20, 10);
    for (unsigned step = 0; step < STEPS; step++) {
        random = random * 1103515245u + 12345u;
        unsigned i = random >> 8 & 0xff;
        if (i < RANGES && list[i].there) {
            CU_ASSERT_EQUAL(nic_deregister_memory(host.port, area + list[i].begin, list[i].length),
                            0);
            list[i].there = false;
        } else if (i < RANGES) {
            list[i].begin = (random >> 12) % 8192 * 64;
            list[i].length = 1 + (random >> 5) % (1u << (random >> 4 & 15));
            list[i].there = true;
            CU_ASSERT_EQUAL(nic_register_memory(host.port, area + list[i].begin, list[i].length),
                            0);
        }
        size_t begin = (random >> 10) % 8192 * 64;
        bool expected = false;
        for (unsigned k = 0; k < RANGES; k++)
            expected |= list[k].there && list[k].begin <= begin &&
                        list[k].begin + list[k].length >= begin + 64;
        uint64_t key;
        int status = nic_expose(host.port, NULL, area + begin, 64, &key);
        CU_ASSERT_EQUAL(status, expected ? 0 : -EFAULT);
        if (status == 0)
            CU_ASSERT_EQUAL(nic_revoke(host.port, key), 0);
    }
    host_close(&host);
}

static void dma_memory_is_cut_and_joined(void)
{
    enum { COUNT = 300 };
    uint8_t *blocks[COUNT];
    size_t lengths[COUNT];
    setup(1 << 20, 10);
    struct nic_port *port = host.port;
    errno = 0;
    CU_ASSERT_PTR_NULL(nic_dma_malloc(port, 0));
    CU_ASSERT_EQUAL(errno, EINVAL);
    CU_ASSERT_PTR_NULL(nic_dma_malloc(port, UINT64_MAX));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            lengths[i] = 1 + (i * 2654435761u >> 12) % (i % 10 == 0 ? 200000 : 3000);
            blocks[i] = nic_dma_malloc(port, lengths[i]);
            CU_ASSERT_PTR_NOT_NULL_FATAL(blocks[i]);
            CU_ASSERT_EQUAL((uintptr_t)blocks[i] % (lengths[i] >= 4096 ? 4096 : 64), 0);
            pattern_fill(blocks[i], lengths[i], i);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            unsigned k = i * 7 % COUNT;
            CU_ASSERT(pattern_is(blocks[k], lengths[k], k));
            nic_dma_free(port, blocks[k]);
        }
        CU_ASSERT_EQUAL(nic_registered_pages(port), 0);
    }
    uint8_t *large = nic_dma_malloc(port, 100 << 20); /* an arena of its own */
    CU_ASSERT_PTR_NOT_NULL_FATAL(large);
    large[(100 << 20) - 1] = 1;
    nic_dma_free(port, large);
    uint8_t *again = nic_dma_malloc(port, 100 << 20);
    CU_ASSERT_PTR_EQUAL(again, large);
    if (!test_emulation_lacks("MADV_REMOVE"))
        CU_ASSERT_EQUAL(again[(100 << 20) - 1], 0); /* its pages went back */
    /* this is logged, and has no other effect */
    nic_dma_free(port, area);
    nic_dma_free(port, again + 4096);
    nic_dma_free(port, NULL);
    CU_ASSERT_EQUAL(nic_registered_pages(port), (100 << 20) / 4096);
    host_close(&host);
}

static void exposures_have_a_limit_and_new_keys(void)
{
    uint64_t keys[3], extra;
    setup(1000, 3);
    struct nic_port *port = host.port;
    CU_ASSERT_EQUAL(nic_register_memory(port, area, 4096), 0);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(nic_expose(port, NULL, area, 4096, &keys[i]), 0);
    CU_ASSERT(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != 0);
    CU_ASSERT_EQUAL(nic_expose(port, NULL, area, 4096, &extra), -ENOSPC);
    CU_ASSERT_EQUAL(nic_expose(port, NULL, area, 4097, &extra), -EFAULT);
    CU_ASSERT_EQUAL(nic_revoke(port, keys[1]), 0);
    CU_ASSERT_EQUAL(nic_revoke(port, keys[1]), -ENOENT);
    CU_ASSERT_EQUAL(nic_revoke(port, 0), -ENOENT);
    CU_ASSERT_EQUAL(nic_revoke(port, UINT64_MAX), -ENOENT);
    CU_ASSERT_EQUAL(nic_expose(port, NULL, area, 4096, &extra), 0);
    CU_ASSERT_NOT_EQUAL(extra, keys[1]);
    host_close(&host);
}

static double seconds_since(const struct timespec *begin)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin->tv_sec) + 1e-9 * (double)(end.tv_nsec - begin->tv_nsec);
}

static void the_model_makes_registering_dear(void)
{
    struct nic_options options;
    struct timespec begin;
    nic_options_default(&options);
    options.timing.register_page_ns = 20000;
    options.timing.deregister_ns = 3000000;
    host_open(&host, &options);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CU_ASSERT_EQUAL(nic_register_memory(host.port, area, sizeof(area)), 0);
    CU_ASSERT(seconds_since(&begin) >= 256 * 20e-6);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CU_ASSERT_EQUAL(nic_deregister_memory(host.port, area, sizeof(area)), 0);
    CU_ASSERT(seconds_since(&begin) >= 3e-3);
    host_close(&host);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"pages are counted", pages_are_counted},
        {"overlapping ranges are found", overlapping_ranges_are_found},
        {"registrations agree with a list", registrations_agree_with_a_list},
        {"dma memory is cut and joined", dma_memory_is_cut_and_joined},
        {"exposures have a limit and new keys", exposures_have_a_limit_and_new_keys},
        {"the model makes registering dear", the_model_makes_registering_dear},
    };
    return CASES_RUN("memory", CASES);
}
