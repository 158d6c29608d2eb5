/* SPDX-License-Identifier: BSD-3-Clause
 *
 * calibrate.c - measures what memory costs between the nodes of this machine; see costs.h for its
 * threads. One thread binds itself to the CPUs of one node after the other. It times reads of
 * memory on every node, moves of pages between two nodes, and the first use of cached data after a
 * change of node. Of each sample it keeps the least of several rounds, since another process can
 * only make a sample longer; the samples of a single round are not used.
 *
 * mbind is called directly: hwloc would first read the topology again (memory_hwloc.c), which may
 * take longer than all of the rest. The policy "preferred" cannot run a full node out of memory; a
 * second call with STRICT finds out whether the pages are where they should be. With MOVE each call
 * waits for all CPUs of the machine (the kernel's lru_cache_disable), which is most of the price of
 * a small move.
 */
#include "task/costs.h"
#include "task/internal.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <math.h> /* INFINITY only: libbmi is not linked with libm */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

enum {
    ROUNDS = 5,
    ROUNDS_LEAST = 2,
    LINE = 64,
    BYTES = BMI__CALIBRATE_KIB * 1024,
    HOT = 32 * 1024
};

/* The thread's, see costs.h. */
static struct {
    struct bmi__event ended;
    struct bmi__samples samples;
    int budget_ms;
    uint64_t deadline_ns;
    size_t page;
    struct bmi_cpuset cpus[BMI__CALIBRATE_NODES];
    unsigned char *memory[BMI__CALIBRATE_NODES]; /* on each node; NULL: there is none */
    unsigned char hot[HOT];
} run;

static void failed(const char *what, uint32_t node, int error)
{
    struct bmi__samples *samples = &run.samples;
    if (samples->cause[0] == '\0')
        snprintf(samples->cause, sizeof(samples->cause), "%s node %d: %s", what,
                 samples->numa[node], strerror(error));
}

static void samples_clear(struct bmi__samples *samples)
{
    samples->move_page_ns = samples->move_pages_ns = INFINITY;
    samples->cold_ns = samples->warm_ns = INFINITY;
    for (uint32_t i = 0; i < BMI__CALIBRATE_NODES; i++) {
        for (uint32_t j = 0; j < BMI__CALIBRATE_NODES; j++)
            samples->read_ns_per_kib[i][j] = INFINITY;
    }
}

static bool in_time(void)
{
    return bmi__now_ns() < run.deadline_ns;
}

static void keep_least(double *sample, double value)
{
    *sample = value < *sample ? value : *sample;
}

static bool run_on(uint32_t node)
{
    int error = bmi__thread_bind(&run.cpus[node]);
    if (error != 0)
        failed("no thread can be bound to", node, error);
    return error == 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool memory_place(void *memory, size_t bytes, uint32_t node, unsigned long flags)
{
    enum { WORD = 8 * sizeof(unsigned long), NUMBERS = 1024 };
    unsigned long mask[NUMBERS / WORD] = {0};
    unsigned numa = (unsigned)run.samples.numa[node] % NUMBERS; /* Linux has no more nodes */
    mask[numa / WORD] = 1ul << numa % WORD;
    if (syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, NUMBERS + 1ul, flags) == 0)
        return true;
    failed("memory cannot be put on", node, errno);
    return false;
}

static bool memory_touch(unsigned char *memory, uint32_t node)
{
    if (!memory_place(memory, BYTES, node, 0))
        return false;
    memset(memory, 1, BYTES);
    return memory_place(memory, BYTES, node, MPOL_MF_STRICT);
}

/* Returns false if it is not known how this kind of processor does that. */
static bool cache_flush(const unsigned char *memory)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < BYTES; i += LINE)
        _mm_clflush(memory + i);
    _mm_mfence();
    return true;
#elif defined(__aarch64__)
    for (size_t i = 0; i < BYTES; i += LINE)
        __asm__ volatile("dc civac, %0" : : "r"(memory + i) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
    return true;
#else
    (void)memory;
    failed("caches cannot be flushed, as on", 0, ENOSYS);
    return false;
#endif
}

/* One byte of each line, so that memory is the limit, not the instructions. */
static double read_ns(const volatile unsigned char *memory, size_t bytes)
{
    uint64_t start = bmi__now_ns();
    for (size_t i = 0; i < bytes; i += LINE)
        (void)memory[i];
    return (double)(bmi__now_ns() - start);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void sample_reads(uint32_t at)
{
    for (uint32_t i = 0; i < run.samples.count && in_time(); i++) {
        if (run.memory[i] != NULL && cache_flush(run.memory[i]))
            keep_least(&run.samples.read_ns_per_kib[at][i],
                       read_ns(run.memory[i], BYTES) / BMI__CALIBRATE_KIB);
    }
}

static void sample_task(void)
{
    if (!in_time() || !run_on(0))
        return;
    memset(run.hot, 1, HOT);
    if (!run_on(1))
        return;
    keep_least(&run.samples.cold_ns, read_ns(run.hot, HOT));
    keep_least(&run.samples.warm_ns, read_ns(run.hot, HOT));
}

/* From the first node to the second, and back. */
static void sample_move(size_t bytes, double *sample)
{
    for (uint32_t left = 2; run.memory[0] != NULL && left-- > 0 && in_time();) {
        uint64_t start = bmi__now_ns();
        if (!memory_place(run.memory[0], bytes, left, MPOL_MF_MOVE | MPOL_MF_STRICT))
            return;
        keep_least(sample, (double)(bmi__now_ns() - start));
    }
}

static void sample_all(unsigned char *memory)
{
    struct bmi__samples *samples = &run.samples;
    int rounds = 0;
    for (uint32_t i = 0; i < samples->count && in_time(); i++)
        run.memory[i] = memory_touch(memory + i * BYTES, i) ? memory + i * BYTES : NULL;
    for (; rounds < ROUNDS && in_time(); rounds++) {
        for (uint32_t at = 0; at < samples->count && in_time(); at++) {
            if (run_on(at))
                sample_reads(at);
        }
        sample_task();
        sample_move(run.page, &samples->move_page_ns);
        sample_move(BYTES, &samples->move_pages_ns);
    }
    if (!in_time() && --rounds < ROUNDS_LEAST) { /* the last one is not whole */
        samples_clear(samples);
        snprintf(samples->cause, sizeof(samples->cause), "there was no time for %d rounds in %d ms",
                 ROUNDS_LEAST, run.budget_ms);
    }
}

static void *measure(void *unused)
{
    const size_t bytes = run.samples.count * (size_t)BYTES;
    uint64_t start = bmi__now_ns();
    pthread_detach(pthread_self());
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        sample_all(memory);
        munmap(memory, bytes);
    } else {
        failed("out of memory for", 0, errno);
    }
    run.samples.took_ns = bmi__now_ns() - start;
    bmi__event_post(&run.ended);
    return unused;
}

/* ---- the caller ------------------------------------------------------------------------------ */

static void samples_prepare(const struct bmi__place_machine *machine, struct bmi__samples *samples)
{
    uint32_t nodes = machine->node_count, all[BMI__CALIBRATE_NODES];
    memset(samples, 0, sizeof(*samples));
    samples->count = nodes < BMI__CALIBRATE_NODES ? nodes : BMI__CALIBRATE_NODES;
    for (uint32_t i = 0; i < samples->count; i++) {
        all[i] = machine->vertices[i * nodes / samples->count];
        samples->numa[i] = machine->topology->nodes[all[i]].numa;
        bmi__topology_cpus(machine->topology, all[i], &run.cpus[i]);
    }
    for (uint32_t i = 0; i < samples->count; i++) {
        for (uint32_t j = 0; j < samples->count; j++)
            samples->distance[i][j] = bmi__place_distance(machine->topology, all[i], all[j]);
    }
    samples_clear(samples);
}

void bmi__calibrate(const struct bmi__place_machine *machine, int budget_ms, int limit_ms,
                    struct bmi__samples *samples)
{
    pthread_t thread;
    run.page = (size_t)sysconf(_SC_PAGESIZE);
    samples_prepare(machine, samples);
    samples->page_kib = (double)run.page / 1024;
    run.samples = *samples;
    run.budget_ms = budget_ms;
    atomic_store(&run.ended.posted, 0); /* of a parent's run, in a forked child */
    uint64_t now = bmi__now_ns();
    run.deadline_ns = now + (uint64_t)budget_ms * 1000000;
    if (bmi__thread_start(&thread, measure, NULL, -1, "bmi-costs", 0) != 0)
        snprintf(samples->cause, sizeof(samples->cause), "no thread can be started");
    else if (bmi__event_wait(&run.ended, now + (uint64_t)limit_ms * 1000000))
        *samples = run.samples;
    else
        snprintf(samples->cause, sizeof(samples->cause),
                 "the machine is busy: measuring did not end within %d ms", limit_ms);
}

static struct bmi__samples kept;
static _Atomic(const struct bmi__place_machine *) source; /* of a thread that is in the call */

static void calibrate_kept(void)
{
    bmi__calibrate(atomic_load(&source), BMI__CALIBRATE_BUDGET_MS, BMI__CALIBRATE_LIMIT_MS, &kept);
}

const struct bmi__samples *bmi__calibrate_once(const struct bmi__place_machine *machine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    atomic_store(&source, machine);
    pthread_once(&once, calibrate_kept);
    return &kept;
}
