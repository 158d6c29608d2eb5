/* SPDX-License-Identifier: BSD-3-Clause
 *
 * buffers.c - keeps buffers of flows that have ended for later flows: a new one from the system
 * costs as much as a copy of it. It keeps at most KEPT_BYTES in all and frees the oldest first.
 * Buffers are memory of BMI_memalloc, and so belong to an address and a direction; or, if the
 * network treats all memory alike, memory of malloc, and so serve the next client, too.
 *
 * The lock is innermost; no thread holds it during a call of BMI.
 */
#include <pthread.h>
#include <stdlib.h>

#include "flow/internal.h"

enum { KEPT = 64, KEPT_BYTES = 16 * 1024 * 1024 };

struct kept {
    BMI_addr_t address;
    enum bmi_op_type use;
    bmi_size_t size;
    void *buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept kept[KEPT]; /* lock; oldest first */
static int kept_count;         /* lock */
static bmi_size_t kept_bytes;  /* lock */

static struct kept take_locked(int index)
{
    struct kept one = kept[index];
    kept_count--;
    kept_bytes -= one.size;
    for (int i = index; i < kept_count; i++)
        kept[i] = kept[i + 1];
    return one;
}

static void *buffer_make(BMI_addr_t address, bmi_size_t size, enum bmi_op_type use)
{
    void *buffer;
    if (address != BUFFER_OF_NOBODY)
        return BMI_memalloc(address, size, use);
    return posix_memalign(&buffer, 4096, (size_t)size) == 0 ? buffer : NULL;
}

static void buffer_drop(const struct kept *one)
{
    if (one->address != BUFFER_OF_NOBODY)
        BMI_memfree(one->address, one->buffer, one->size, one->use);
    else
        free(one->buffer);
}

void *bmi__buffer_get(BMI_addr_t address, bmi_size_t size, enum bmi_op_type use)
{
    void *buffer = NULL;
    pthread_mutex_lock(&lock);
    for (int i = kept_count - 1; i >= 0 && buffer == NULL; i--)
        if (kept[i].address == address && kept[i].size == size && kept[i].use == use)
            buffer = take_locked(i).buffer;
    pthread_mutex_unlock(&lock);
    return buffer != NULL ? buffer : buffer_make(address, size, use);
}

void bmi__buffer_put(BMI_addr_t address, void *buffer, bmi_size_t size, enum bmi_op_type use)
{
    struct kept one = {.address = address, .use = use, .size = size, .buffer = buffer};
    struct kept dropped[KEPT];
    int count = 0;
    if (size > KEPT_BYTES) {
        buffer_drop(&one);
        return;
    }
    pthread_mutex_lock(&lock);
    while (kept_count == KEPT || kept_bytes + size > KEPT_BYTES)
        dropped[count++] = take_locked(0);
    kept[kept_count++] = one;
    kept_bytes += size;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        buffer_drop(&dropped[i]);
}

/* In a forked child: they may be registered with a network, for the parent. */
void bmi__buffers_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    kept_count = 0;
    kept_bytes = 0;
}

void bmi__buffers_free(void)
{
    struct kept dropped[KEPT];
    int count = 0;
    pthread_mutex_lock(&lock);
    while (kept_count > 0)
        dropped[count++] = take_locked(kept_count - 1);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        buffer_drop(&dropped[i]);
}
