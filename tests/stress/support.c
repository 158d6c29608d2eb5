/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.c - deadline, seed, patterns, measures: see support.h.
 */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_THREAD_SANITIZER 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ADDRESS_SANITIZER 1
#endif

static const char *program = "test";
static unsigned deadline_seconds;
static uint64_t seed;

void (*test_dump)(void);

/* ---- begin, check, end ----------------------------------------------------------------------- */

static void deadline_passed(int signal_number)
{
    (void)signal_number;
    static const char text[] = ": failed: out of time\n";
    ssize_t ignored = write(STDERR_FILENO, program, strlen(program));
    ignored += write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    alarm(5); /* should the dump hang as well */
    signal(SIGALRM, SIG_DFL);
    if (test_dump)
        test_dump();
    children_kill();
    _exit(1);
}

void test_deadline(void)
{
    struct sigaction action = {.sa_handler = deadline_passed};
    sigaction(SIGALRM, &action, NULL);
    alarm(deadline_seconds);
}

static uint64_t seed_from_environment(void)
{
    const char *text = getenv("BMI_TEST_SEED");
    uint64_t value = 0;
    if (text && *text)
        return strtoull(text, NULL, 0);
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
        value = now_ns();
    return value;
}

/* Earlier than ctest would end the test without a message. */
static unsigned deadline_of(unsigned seconds)
{
    const char *text = getenv("BMI_TEST_DEADLINE");
    unsigned deadline = 4 * seconds * test_slowness(); /* for loaded machines */
    if (test_scale() > 1)
        deadline = (unsigned)(deadline * test_scale());
    if (text && atoi(text) > 0 && (unsigned)atoi(text) < deadline)
        deadline = (unsigned)atoi(text);
    return deadline;
}

void test_begin(const char *name, unsigned seconds)
{
    program = name;
    seed = seed_from_environment();
    deadline_seconds = deadline_of(seconds);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_DFL); /* the library must not need it ignored */
    printf("%s: BMI_TEST_SEED=%llu BMI_TEST_SCALE=%g\n", name, (unsigned long long)seed,
           test_scale());
    test_deadline();
}

uint64_t test_seed(void)
{
    return seed;
}

unsigned test_slowness(void)
{
    const char *text = getenv("BMI_TEST_SLOWNESS");
    if (text && atoi(text) > 0)
        return (unsigned)atoi(text);
#if defined(UNDER_THREAD_SANITIZER)
    return 6;
#elif defined(UNDER_ADDRESS_SANITIZER)
    return 3;
#else
    return 1;
#endif
}

double test_scale(void)
{
    const char *text = getenv("BMI_TEST_SCALE");
    if (text && atof(text) > 0)
        return atof(text);
    return test_slowness() > 3 ? 0.25 : 1.0;
}

unsigned test_scaled(unsigned count, unsigned least)
{
    unsigned scaled = (unsigned)(count * test_scale());
    return scaled < least ? least : scaled;
}

bool test_memory_measurable(void)
{
#if defined(UNDER_THREAD_SANITIZER) || defined(UNDER_ADDRESS_SANITIZER)
    return false;
#else
    return getenv("BMI_TEST_SLOWNESS") == NULL;
#endif
}

void test_check(bool good, const char *file, int line, const char *format, ...)
{
    if (good)
        return;
    const char *base = strrchr(file, '/');
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "%s: failed (pid %d, seed %llu): %s:%d: %s\n", program, (int)getpid(),
            (unsigned long long)seed, base ? base + 1 : file, line, text);
    children_kill();
    _exit(1);
}

void test_skip(const char *format, ...)
{
    va_list arguments;
    printf("%s: skipped: ", program);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    children_kill();
    _exit(TEST_SKIP);
}

int test_passed(void)
{
    CHECK(children_left() == 0, "child %d is left", (int)children_left());
    printf("%s: passed\n", program);
    fflush(stdout);
    return 0;
}

/* ---- time and chance ------------------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

uint64_t chance_next(struct chance *chance)
{
    chance->state += 0x9e3779b97f4a7c15u;
    return mix(chance->state);
}

uint64_t chance_below(struct chance *chance, uint64_t bound)
{
    return chance_next(chance) % bound;
}

/* ---- patterns -------------------------------------------------------------------------------- */

uint64_t pattern_key(uint64_t stream, uint64_t sequence)
{
    return mix(mix(seed + stream * 0x9e3779b97f4a7c15u) + sequence);
}

static inline uint64_t pattern_word(uint64_t key, uint64_t index)
{
    uint64_t word = (key + index) * 0x9e3779b97f4a7c15u;
    return word ^ (word >> 29);
}

static inline uint8_t pattern_byte(uint64_t key, uint64_t position)
{
    return (uint8_t)(pattern_word(key, position / 8) >> (8 * (position % 8)));
}

void pattern_fill(void *buffer, size_t size, uint64_t key, uint64_t offset)
{
    uint8_t *at = buffer;
    for (; size > 0 && offset % 8 != 0; size--)
        *at++ = pattern_byte(key, offset++);
    for (; size >= 8; size -= 8, at += 8, offset += 8) {
        uint64_t word = pattern_word(key, offset / 8);
        memcpy(at, &word, 8);
    }
    for (; size > 0; size--)
        *at++ = pattern_byte(key, offset++);
}

int64_t pattern_wrong(const void *buffer, size_t size, uint64_t key, uint64_t offset)
{
    const uint8_t *at = buffer;
    while (size > 0) {
        uint64_t word = pattern_word(key, offset / 8);
        if (offset % 8 == 0 && size >= 8 && memcmp(at, &word, 8) == 0) {
            at += 8;
            offset += 8;
            size -= 8;
            continue;
        }
        if (*at != pattern_byte(key, offset))
            return (int64_t)offset;
        at++;
        offset++;
        size--;
    }
    return -1;
}

/* ---- the library ----------------------------------------------------------------------------- */

int must(int result, const char *what)
{
    CHECK(result >= 0, "%s: %s", what, bmi_status_string(result));
    return result;
}

const char *status_name(int status)
{
    return bmi_status_string(status);
}

static const char *method_of_scheme(const char *address)
{
    struct bmi_method_info info;
    size_t length = strcspn(address, ":");
    for (int i = 0; bmi_method_next(i, &info) == 0; i++) {
        const char *scheme = info.schemes;
        while (*scheme) {
            size_t span = strcspn(scheme, ",");
            if (span == length && memcmp(scheme, address, length) == 0)
                return info.name;
            scheme += span + (scheme[span] == ',');
        }
    }
    test_skip("no method for %s in this build", address);
}

void serve(const char *address, int flags, char listening[BMI_MAX_ADDR_LEN])
{
    must(BMI_initialize(method_of_scheme(address), address, BMI_INIT_SERVER | flags),
         "BMI_initialize");
    if (listening)
        must(BMI_get_info(0, BMI_GET_LISTEN_ADDR, listening), "BMI_GET_LISTEN_ADDR");
}

const char *test_scheme(void)
{
    const char *scheme = getenv("BMI_TEST_METHOD");
    return scheme != NULL && *scheme != '\0' ? scheme : "tcp";
}

const char *test_method(void)
{
    return method_of_scheme(test_scheme());
}

void test_address(char address[64], unsigned port)
{
    const char *host = getenv("BMI_TEST_HOST");
    if (strcmp(test_scheme(), "unix") == 0 && port == 0)
        snprintf(address, 64, "unix://@");
    else if (strcmp(test_scheme(), "unix") == 0)
        snprintf(address, 64, "unix:///tmp/bmi-test-%u", port);
    else
        snprintf(address, 64, "%s://%s:%u", test_scheme(), host ? host : "127.0.0.1", port);
}

void serve_here(int flags, char listening[BMI_MAX_ADDR_LEN])
{
    char address[64];
    test_address(address, 0);
    serve(address, flags, listening);
}

unsigned test_port(const char *listening)
{
    const char *colon = strrchr(listening, ':');
    CHECK(colon != NULL, "%s has no port", listening);
    return (unsigned)strtoul(colon + 1, NULL, 10);
}

struct bmi_statistics statistics_of(BMI_addr_t address)
{
    struct bmi_statistics statistics = {0};
    must(BMI_get_info(address, BMI_GET_STATISTICS, &statistics), "BMI_GET_STATISTICS");
    return statistics;
}

struct bmi_method_statistics method_statistics(const char *method)
{
    struct bmi_method_statistics statistics = {.name = method};
    must(BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &statistics), "BMI_GET_METHOD_STATISTICS");
    return statistics;
}

bool next_completion(bmi_context_id context, int wait_ms, struct completion *completion)
{
    int count = 0;
    must(BMI_testcontext(1, &completion->id, &count, &completion->status, &completion->size,
                         &completion->user, wait_ms, context),
         "BMI_testcontext");
    return count == 1;
}

/* ---- measures of this process ---------------------------------------------------------------- */

size_t memory_in_use(void)
{
#ifdef __GLIBC__
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else /* no counter of allocations there */
    return memory_resident();
#endif
}

size_t memory_resident(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%lu %lu", &total, &resident) != 2)
            resident = 0;
        fclose(file);
    }
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

unsigned descriptors_open(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL, "/proc/self/fd: %s", strerror(errno));
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* the folder's own */
}

unsigned descriptors_allow(unsigned wanted)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < wanted) {
        struct rlimit higher = {.rlim_cur = wanted, .rlim_max = wanted};
        if (setrlimit(RLIMIT_NOFILE, &higher) == 0)
            return wanted;
    }
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return (unsigned)limit.rlim_cur;
}

void descriptors_limit(unsigned limit)
{
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    now.rlim_cur = limit;
    CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0, "setrlimit");
}
