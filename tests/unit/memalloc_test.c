/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memalloc_test.c - BMI_memalloc on a network without memory of its own: it asks for huge pages for
 * large pieces, and unused parts take none.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulation.h"
#include "unit.h"

enum { HUGE_PAGE = 2 << 20 };

static const char kernel_says[] = "/sys/kernel/mm/transparent_hugepage/enabled";
static BMI_addr_t own;
static bool huge_always; /* even without madvise */

/* Whether the kernel reports huge pages as enabled for the mapping of the byte. */
static bool wants_huge(const void *byte)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long long start, end, at = (uintptr_t)byte;
    char line[512];
    bool inside = false, wants = false;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
            inside = at >= start && at < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            wants = strstr(line, " hg") != NULL;
    }
    fclose(file);
    return wants;
}

/* Pages of a piece that take memory. */
static size_t resident_pages(void *memory, size_t size)
{
    enum { PAGE = 4096, PAGES_MOST = 4096 };
    unsigned char pages[PAGES_MOST];
    size_t count = size / PAGE, resident = 0;
    CU_ASSERT_FATAL(count <= PAGES_MOST);
    CU_ASSERT_EQUAL_FATAL(mincore(memory, size, pages), 0);
    for (size_t i = 0; i < count; i++)
        resident += pages[i] & 1;
    return resident;
}

static char *allocate(bmi_size_t size)
{
    char *memory = BMI_memalloc(own, size, BMI_RECV);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    return memory;
}

static void release(void *memory, bmi_size_t size)
{
    CU_ASSERT_EQUAL(BMI_memfree(own, memory, size, BMI_RECV), 0);
}

static void large_pieces_want_huge_pages(void)
{
    const bmi_size_t size = 8 * HUGE_PAGE + 5000;
    if (test_emulation_lacks("MADV_HUGEPAGE"))
        return;
    char *memory = allocate(size);
    CU_ASSERT_EQUAL((uintptr_t)memory % HUGE_PAGE, 0);
    CU_ASSERT_FALSE(wants_huge(memory));
    CU_ASSERT_TRUE(wants_huge(memory + HUGE_PAGE));
    CU_ASSERT_TRUE(wants_huge(memory + 8 * HUGE_PAGE - 1));
    CU_ASSERT_FALSE(wants_huge(memory + size - 1));
    memset(memory, 1, (size_t)size);
    release(memory, size);
}

static void small_ones_do_not(void)
{
    const bmi_size_t size = 2 * HUGE_PAGE - 1;
    char *memory = allocate(size);
    CU_ASSERT_EQUAL((uintptr_t)memory % 4096, 0);
    CU_ASSERT_FALSE(wants_huge(memory));
    CU_ASSERT_FALSE(wants_huge(memory + size - 1));
    release(memory, size);
}

static void the_unused_takes_nothing(void)
{
    const bmi_size_t size = 4 * HUGE_PAGE;
    char *memory = allocate(size);
    memory[0] = 1;
    memory[HUGE_PAGE - 1] = 1;
    CU_ASSERT_EQUAL(resident_pages(memory, (size_t)size), huge_always ? HUGE_PAGE / 4096 : 2);
    release(memory, size);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"the unused takes nothing", the_unused_takes_nothing}, /* before anything is used again */
        {"large pieces want huge pages", large_pieces_want_huge_pages},
        {"small ones do not", small_ones_do_not},
        CU_TEST_INFO_NULL,
    };
    char listens[BMI_MAX_ADDR_LEN];
    char setting[100] = "";
    FILE *file = fopen(kernel_says, "r");
    if (file == NULL || fgets(setting, sizeof setting, file) == NULL) {
        puts("skipped: this kernel has no transparent huge pages");
        return 77;
    }
    fclose(file);
    huge_always = strstr(setting, "[always]") != NULL;
    if (BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER) != 0 ||
        BMI_get_info(0, BMI_GET_LISTEN_ADDR, listens) != 0 || BMI_addr_lookup(&own, listens) != 0)
        return 1;
    int status = unit_run("memalloc", tests);
    return BMI_finalize() == 0 ? status : 1;
}
