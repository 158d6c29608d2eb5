/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_memory.c - for a test: of the allocations that the program itself makes, the one
 * whose number is in STRIPEFS_FAILS fails.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);

/* In one thread: tasks do not allocate. */
static bool fails(void)
{
    static long count;
    const char *number = getenv("STRIPEFS_FAILS");
    if (number == NULL || ++count != atol(number))
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = __wrap_malloc(size);
    return copy != NULL ? memcpy(copy, text, size) : NULL;
}
