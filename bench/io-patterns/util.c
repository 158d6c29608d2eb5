/* SPDX-License-Identifier: BSD-3-Clause
 *
 * util.c - ends of the process, memory, clocks.
 */
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char process_name[64] = "bmi-bench";

/* Names this process in its messages. */
void name_set(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(process_name, sizeof process_name, format, arguments);
    va_end(arguments);
}

/* Prints the error and ends the process. */
static void say(const char *format, va_list arguments)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", process_name, text);
}

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    exit(1);
}

void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    exit(2);
}

/* Flushes the output; ends the process if it cannot be written. */
void output_flush(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        die("cannot write to standard output");
}

void *allocate(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory)
        die("no memory for %zu bytes", size);
    return memory;
}

void *allocate_pages(size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size ? size : 1) != 0)
        die("no memory for %zu bytes", size);
    memset(memory, 0, size);
    return memory;
}

/* As snprintf, but ends the process where the text does not fit. */
void format_text(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= size)
        die("text too long");
}

static void cpus_get(cpu_set_t *cpus)
{
    if (sched_getaffinity(0, sizeof *cpus, cpus) < 0)
        die("sched_getaffinity: %s", strerror(errno));
}

static void cpus_set(const cpu_set_t *cpus)
{
    if (sched_setaffinity(0, sizeof *cpus, cpus) < 0)
        die("sched_setaffinity: %s", strerror(errno));
}

void cpu_take(int turn)
{
    cpu_set_t own, one;
    cpus_get(&own);
    int cpu = 0;
    for (turn %= CPU_COUNT(&own); !CPU_ISSET((size_t)cpu, &own) || turn-- > 0;)
        cpu++;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    cpus_set(&one);
}

/* The process's CPUs, before its first thread took one. */
static cpu_set_t cpus_of_process;

void thread_cpu_take(int turn)
{
    if (CPU_COUNT(&cpus_of_process) == 0)
        cpus_get(&cpus_of_process);
    cpus_set(&cpus_of_process);
    cpu_take(turn);
}

void thread_cpus_release(void)
{
    if (CPU_COUNT(&cpus_of_process) > 0)
        cpus_set(&cpus_of_process);
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double seconds_since(uint64_t start_ns)
{
    return (double)(now_ns() - start_ns) * 1e-9;
}

static uint64_t own_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

void compute(uint64_t time_us)
{
    static volatile double result;
    uint64_t end = own_cpu_ns() + time_us * 1000;
    double sum = result;
    do {
        for (int i = 0; i < 200; i++)
            sum = sum * 0.999999 + 1;
    } while (own_cpu_ns() < end);
    result = sum;
}
