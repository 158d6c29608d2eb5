/* SPDX-License-Identifier: BSD-3-Clause
 *
 * buffers.c - keeps buffers of flows that have ended for later flows: a new one from the system
 * costs as much as a copy of it. It keeps at most KEPT_BYTES in all and frees the oldest first.
 * Buffers are memory of BMI_memalloc, and so belong to an address and a direction; or, if the
 * network treats all memory alike, other memory, and so serve the next client, too. Each serves
 * flows of one instance, and is freed with that one's last flow context. On a machine
 * with several NUMA nodes a buffer serves flows of one node only. Memory of BMI_memalloc lies where
 * its method puts it, mostly on the node of the thread that gets the buffer; it may be registered,
 * so it is never bound or moved.
 *
 * The lock is innermost; no thread holds it during a call of BMI.
 */
#include <pthread.h>
#include <stdlib.h>

#include "flow/internal.h"

enum { KEPT = 64, KEPT_BYTES = 16 * 1024 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct flow_buffer kept[KEPT]; /* lock; oldest first */
static int kept_count;                /* lock */
static bmi_size_t kept_bytes;         /* lock */

static struct flow_buffer take_locked(int index)
{
    struct flow_buffer one = kept[index];
    kept_count--;
    kept_bytes -= one.size;
    for (int i = index; i < kept_count; i++)
        kept[i] = kept[i + 1];
    return one;
}

static bool fits(const struct flow_buffer *one, const struct flow_buffer *wanted)
{
    return one->instance == wanted->instance && one->address == wanted->address &&
           one->size == wanted->size && one->use == wanted->use && one->node == wanted->node;
}

/* Where the system refuses to bind memory, the buffer lies where it is touched first. */
static void buffer_make(struct flow_buffer *buffer)
{
    size_t size = (size_t)buffer->size;
    buffer->memory = NULL;
    if (buffer->address != BUFFER_OF_NOBODY) {
        buffer->memory = BMI_memalloc(buffer->address, buffer->size, buffer->use);
        return;
    }
    buffer->is_mapped = buffer->node >= 0 &&
                        bmi_task_memory_allocate(NULL, size, buffer->node, &buffer->memory) == 0;
    if (!buffer->is_mapped && posix_memalign(&buffer->memory, 4096, size) != 0)
        buffer->memory = NULL;
}

static void buffer_drop(const struct flow_buffer *one)
{
    if (one->address != BUFFER_OF_NOBODY)
        BMI_memfree(one->address, one->memory, one->size, one->use);
    else if (one->is_mapped)
        bmi_task_memory_free(one->memory, (uint64_t)one->size);
    else
        free(one->memory);
}

void bmi__buffer_get(struct flow_buffer *buffer)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = kept_count - 1; i >= 0 && !found; i--) {
        found = fits(&kept[i], buffer);
        if (found)
            *buffer = take_locked(i);
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        buffer_make(buffer);
}

void bmi__buffer_put(const struct flow_buffer *buffer)
{
    struct flow_buffer dropped[KEPT];
    int count = 0;
    if (buffer->size > KEPT_BYTES) {
        buffer_drop(buffer);
        return;
    }
    pthread_mutex_lock(&lock);
    while (kept_count == KEPT || kept_bytes + buffer->size > KEPT_BYTES)
        dropped[count++] = take_locked(0);
    kept[kept_count++] = *buffer;
    kept_bytes += buffer->size;
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

void bmi__buffers_free(const struct bmi_instance *instance)
{
    struct flow_buffer dropped[KEPT];
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = kept_count - 1; i >= 0; i--)
        if (kept[i].instance == instance)
            dropped[count++] = take_locked(i);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        buffer_drop(&dropped[i]);
}
