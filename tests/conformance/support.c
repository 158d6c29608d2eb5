/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.c - bytes that can be checked, scatter lists, time, sockets, and queries of BMI.
 */
#define HARNESS_INTERNAL
#include "harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- bytes --------------------------------------------------------------------------------- */

void *memory_take(struct rank *rank, bmi_size_t size)
{
    void *memory = calloc(1, size > 0 ? (size_t)size : 1);
    if (!memory)
        rank_fail_here(rank, true, "no memory for %lld bytes", (long long)size);
    return memory;
}

void memory_give_back(void *memory)
{
    free(memory);
}

uint64_t random_next(uint64_t *state)
{
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t state = seed * 0xD1342543DE82EF95u + index * 0x9E3779B97F4A7C15u;
    return random_next(&state);
}

/* Bytes [offset, offset + size) of the pattern, word by word: `each` gets the bytes of one word. */
static bool pattern_walk(uint64_t seed, bmi_size_t offset, bmi_size_t size, char *bytes, bool check)
{
    bmi_size_t done = 0;
    while (done < size) {
        uint64_t at = (uint64_t)(offset + done);
        uint64_t word = pattern_word(seed, at / 8);
        size_t skip = at % 8, length = 8 - skip;
        if ((bmi_size_t)length > size - done)
            length = (size_t)(size - done);
        if (!check)
            memcpy(bytes + done, (const char *)&word + skip, length);
        else if (memcmp(bytes + done, (const char *)&word + skip, length) != 0)
            return false;
        done += (bmi_size_t)length;
    }
    return true;
}

void pattern_fill_from(void *buffer, bmi_size_t size, uint64_t seed, bmi_size_t offset)
{
    pattern_walk(seed, offset, size, buffer, false);
}

void pattern_fill(void *buffer, bmi_size_t size, uint64_t seed)
{
    pattern_fill_from(buffer, size, seed, 0);
}

bool pattern_holds_from(const void *buffer, bmi_size_t size, uint64_t seed, bmi_size_t offset)
{
    return pattern_walk(seed, offset, size, (char *)(uintptr_t)buffer, true);
}

bool pattern_holds(const void *buffer, bmi_size_t size, uint64_t seed)
{
    return pattern_holds_from(buffer, size, seed, 0);
}

void random_shuffle(int *numbers, int count, uint64_t seed)
{
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(random_next(&seed) % (uint64_t)(i + 1));
        int swapped = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = swapped;
    }
}

/* ---- lists --------------------------------------------------------------------------------- */

static struct list list_arrays(struct rank *rank, int count)
{
    struct list list = {.count = count};
    list.buffers = memory_take(rank, (bmi_size_t)sizeof *list.buffers * count);
    list.sizes = memory_take(rank, (bmi_size_t)sizeof *list.sizes * count);
    return list;
}

/* Cuts total into count pieces: each takes a random share of up to twice the mean; the last takes
 * the rest. */
struct list list_make(struct rank *rank, int count, bmi_size_t total, uint64_t seed,
                      unsigned empty_every)
{
    struct list list = list_arrays(rank, count);
    list.memory = memory_take(rank, total);
    bmi_size_t done = 0;
    for (int i = 0; i < count; i++) {
        bmi_size_t left = total - done;
        uint64_t mean = (uint64_t)left / (uint64_t)(count - i);
        bmi_size_t size = i + 1 == count ? left : (bmi_size_t)(random_next(&seed) % (2 * mean + 1));
        if (empty_every && i + 1 < count && random_next(&seed) % empty_every == 0)
            size = 0;
        if (size > left)
            size = left;
        list.buffers[i] = (char *)list.memory + done;
        list.sizes[i] = size;
        done += size;
    }
    list.total = total;
    return list;
}

struct list list_repeat(struct rank *rank, void *buffer, bmi_size_t period, int count)
{
    struct list list = list_arrays(rank, count);
    for (int i = 0; i < count; i++) {
        list.buffers[i] = buffer;
        list.sizes[i] = period;
    }
    list.total = period * count;
    return list;
}

void list_fill(const struct list *list, uint64_t seed)
{
    bmi_size_t offset = 0;
    for (int i = 0; i < list->count; offset += list->sizes[i++])
        pattern_fill_from(list->buffers[i], list->sizes[i], seed, offset);
}

bool list_holds(const struct list *list, bmi_size_t size, uint64_t seed)
{
    bmi_size_t offset = 0;
    for (int i = 0; i < list->count && offset < size; offset += list->sizes[i++]) {
        bmi_size_t part = list->sizes[i] < size - offset ? list->sizes[i] : size - offset;
        if (!pattern_holds_from(list->buffers[i], part, seed, offset))
            return false;
    }
    return true;
}

void list_free(struct list *list)
{
    free(list->buffers);
    free(list->sizes);
    free(list->memory);
}

/* ---- time ---------------------------------------------------------------------------------- */

static int64_t clock_ms(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int64_t now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

int64_t thread_cpu_ms(void)
{
    return clock_ms(CLOCK_THREAD_CPUTIME_ID);
}

int64_t process_cpu_ms(void)
{
    return clock_ms(CLOCK_PROCESS_CPUTIME_ID);
}

/* Valgrind is recognized by its preloaded libraries. */
static bool under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload && strstr(preload, "vgpreload");
}

/* By qemu-user, for another processor. */
static bool emulated(void)
{
    return getenv("BMI_TEST_EMULATED") != NULL;
}

bool instrumented(void)
{
    return SANITIZED || under_valgrind() || emulated();
}

int patience(void)
{
    const char *text = getenv("CONFORMANCE_PATIENCE");
    int factor = text ? atoi(text) : 0;
    if (factor > 0)
        return factor;
    return under_valgrind() ? 20 : SANITIZED || emulated() ? 5 : 1;
}

void timers_quieten(struct rank *rank)
{
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "peer_timeout_ms=0,connect_timeout_ms=86400000"),
                0);
}

/* ---- sockets ------------------------------------------------------------------------------- */

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* A socket bound to a free port of 127.0.0.1; returns the port. */
static int plain_bind(struct rank *rank, int *descriptor)
{
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    *descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*descriptor < 0 || bind(*descriptor, (struct sockaddr *)&address, length) < 0 ||
        getsockname(*descriptor, (struct sockaddr *)&address, &length) < 0)
        rank_fail_here(rank, true, "no socket: %s", strerror(errno));
    return ntohs(address.sin_port);
}

int plain_listener(struct rank *rank, int *descriptor)
{
    int port = plain_bind(rank, descriptor);
    if (listen(*descriptor, 16) < 0)
        rank_fail_here(rank, true, "listen: %s", strerror(errno));
    return port;
}

int plain_connect(const char *host, int port)
{
    struct sockaddr_in address = loopback(port);
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1)
        return -EINVAL;
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) < 0) {
        int status = -errno;
        close(descriptor);
        return status;
    }
    return descriptor;
}

void refused_address(struct rank *rank, char *url, size_t size)
{
    int *holder = rank_keep_descriptor(rank);
    if (rank->method->features & CONFORMANCE_PORTS)
        snprintf(url, size, "%s://127.0.0.1:%d", rank->method->scheme, plain_bind(rank, holder));
    else
        snprintf(url, size, "%s", rank->method->refused);
}

void made_up_address(struct rank *rank, int number, char *url, size_t size)
{
    if (rank->method->features & CONFORMANCE_PORTS)
        snprintf(url, size, "%s://127.0.0.1:%d", rank->method->scheme, 1000 + number);
    else
        snprintf(url, size, "%s-%d", rank->method->refused, number);
}

int url_port(const char *url)
{
    const char *colon = strrchr(url, ':');
    return colon ? atoi(colon + 1) : 0;
}

/* ---- output --------------------------------------------------------------------------------- */

void capture_begin(struct rank *rank, struct capture *capture)
{
    fflush(NULL);
    capture->file = memfd_create("conformance-output", MFD_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        capture->saved[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, 3);
        if (capture->file < 0 || capture->saved[i] < 0 || dup2(capture->file, 1 + i) < 0)
            rank_fail_here(rank, true, "no capture of the output: %s", strerror(errno));
    }
}

size_t capture_end(struct rank *rank, struct capture *capture, char *text, size_t size)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        if (dup2(capture->saved[i], 1 + i) < 0)
            rank_fail_here(rank, true, "dup2: %s", strerror(errno));
        close(capture->saved[i]);
    }
    ssize_t length = pread(capture->file, text, size - 1, 0);
    close(capture->file);
    text[length > 0 ? length : 0] = '\0';
    return strlen(text);
}

/* ---- what BMI tells ------------------------------------------------------------------------ */

struct bmi_method_info method_info(struct rank *rank)
{
    struct bmi_method_info info;
    for (int i = 0; bmi_method_next(i, &info) == 0; i++) {
        if (strcmp(info.name, rank->method->name) == 0)
            return info;
    }
    rank_fail_here(rank, true, "bmi_method_next knows no %s", rank->method->name);
    return info;
}

struct bmi_statistics statistics_of(struct rank *rank, BMI_addr_t addr)
{
    struct bmi_statistics statistics = {0};
    int status = BMI_get_info(addr, BMI_GET_STATISTICS, &statistics);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_GET_STATISTICS: %s", bmi_status_string(status));
    return statistics;
}

struct bmi_method_statistics method_statistics(struct rank *rank)
{
    struct bmi_method_statistics statistics = {.name = rank->method->name};
    int status = BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &statistics);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_GET_METHOD_STATISTICS: %s", bmi_status_string(status));
    return statistics;
}

int unexpected_limit(struct rank *rank)
{
    return (int)method_info(rank).unexpected_max;
}
