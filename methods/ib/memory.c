/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - registers the program's memory, for access by peers and for our own transfers.
 *
 * If a registration is only an entry in the provider (tcp, shm), each one that is exposed to a peer
 * is made for one message, exactly as large, with a random key, and closed when the core releases
 * it: after that no peer can begin to write to the memory. If a registration pins pages for a
 * device (verbs), it comes from the library's cache. Such registrations are of whole pages, and one
 * that has other users, or that is memory of BMI_memalloc, stays accessible to a peer that kept its
 * key.
 *
 * A provider with connections completes the writes that it has begun, even after the registration
 * has ended. So memory that a peer may be writing to is released only when the peer reports that it
 * has finished, or with the connection, which is cut before link_down is reported.
 */
#include <openssl/rand.h>
#include <sys/mman.h>

#include "ib.h"

enum { KEY_TRIES = 8 };

/* The registered segments of one operation: the handle that the core has. */
struct ib_exposed {
    uint64_t since_ms; /* time of the first release while the peer may be writing; 0: none */
    uint32_t count;
    struct segment {
        struct iovec memory;
        void *exact;                           /* a registration of our own, or */
        struct bmi_registration *registration; /* the cache's */
    } segments[];
};

/* ---- registering ----------------------------------------------------------------------------- */

int ib_region_register_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                              uint64_t access, struct fid_mr **region)
{
    ssize_t status = -FI_ENOKEY;
    for (int i = 0; i < KEY_TRIES && status == -FI_ENOKEY; i++) {
        uint64_t key = 0;
        if (!fabric->provider_keys && RAND_bytes((uint8_t *)&key, sizeof(key)) != 1)
            return -EIO;
        if (fabric->info->domain_attr->mr_key_size < sizeof(key))
            key &= (UINT64_C(1) << (8 * fabric->info->domain_attr->mr_key_size)) - 1;
        status = fi_mr_reg(fabric->domain, memory, size, access, 0, key, 0, region, NULL);
    }
    return status ? ib_error(status) : 0;
}

int ib_region_own_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                         struct fid_mr **region)
{
    return fabric->local_memory
               ? ib_region_register_locked(fabric, memory, size, FI_SEND | FI_RECV, region)
               : 0;
}

/* Registers the program's memory. The cache calls it with its own lock held. */
static int cache_enter(void *owner, uintptr_t address, size_t length, void **handle)
{
    struct ib_state *state = owner;
    struct fid_mr *region = NULL;
    ib_lock(&state->fabric_lock);
    int status =
        ib_region_register_locked(state->fabric, (const void *)address, length,
                                  FI_REMOTE_WRITE | FI_REMOTE_READ | FI_WRITE | FI_READ, &region);
    ib_unlock(&state->fabric_lock);
    *handle = region;
    return status;
}

static void cache_leave(void *owner, uintptr_t address, size_t length, void *handle)
{
    struct ib_state *state = owner;
    struct fid_mr *region = handle;
    (void)address;
    (void)length;
    ib_lock(&state->fabric_lock);
    fi_close(&region->fid);
    ib_unlock(&state->fabric_lock);
}

int ib_memory_start(struct ib_state *state)
{
    static const struct bmi_registrar registrar = {.enter = cache_enter, .leave = cache_leave};
    return bmi_method_cache_create(state->instance, state->method, &registrar, state,
                                   &state->cache);
}

/* ---- for the other side ---------------------------------------------------------------------- */

static int segment_enter(struct ib_state *state, struct segment *segment, struct bmi_region *region)
{
    const struct ib_fabric *fabric = state->fabric;
    uintptr_t address = (uintptr_t)segment->memory.iov_base, start = address;
    size_t size = segment->memory.iov_len;
    *region = (struct bmi_region){.address = address, .length = size};
    if (state->reads)
        return 0;
    int status = fabric->real_registration
                     ? bmi_method_cache_get(state->cache, segment->memory.iov_base, size,
                                            &segment->registration)
                     : cache_enter(state, address, size, &segment->exact);
    if (status)
        return status;
    if (fabric->real_registration)
        start = segment->registration->address;
    else
        ib_count(state, BMI_COUNT_REGISTRATIONS, 1);
    if (!fabric->virtual_addresses)
        region->address -= start;
    region->key = fi_mr_key(segment->exact ? segment->exact : segment->registration->handle);
    return 0;
}

static void exposed_free(struct ib_state *state, struct ib_exposed *exposed)
{
    for (uint32_t i = 0; i < exposed->count; i++) {
        const struct segment *at = &exposed->segments[i];
        if (at->exact)
            cache_leave(state, 0, 0, at->exact);
        if (at->registration)
            bmi_method_cache_put(state->cache, at->registration, at->memory.iov_base,
                                 at->memory.iov_len);
    }
    free(exposed);
}

int ib_expose(struct bmi_link *base, const struct bmi_segments *memory, struct bmi_region *regions,
              uint32_t *count, void **handle)
{
    struct ib_state *state = base->state;
    struct iovec window[IB_REGIONS];
    size_t covered = 0;
    size_t most = *count < IB_REGIONS ? *count : IB_REGIONS;
    size_t segments = bmi_segments_window(memory, window, most, SIZE_MAX, &covered);
    if (covered < (size_t)memory->left)
        return -EMSGSIZE;
    struct ib_exposed *exposed =
        calloc(1, sizeof(*exposed) + segments * sizeof(exposed->segments[0]));
    if (!exposed)
        return -ENOMEM;
    int status = 0;
    for (size_t i = 0; i < segments && status == 0; i++) {
        exposed->segments[exposed->count++].memory = window[i];
        status = segment_enter(state, &exposed->segments[i], &regions[i]);
    }
    if (status) {
        bmi_method_log(base->instance, BMI_LOG_DEBUG, base,
                       "memory is not registered: %s; going by messages", strerror(-status));
        exposed_free(state, exposed);
        return status;
    }
    *count = (uint32_t)segments;
    *handle = exposed;
    atomic_fetch_add(&ib_link_of(base)->exposed, 1);
    return 0;
}

/* The peer has not yet reported that it has finished: its link ends if that takes too long. */
static void peer_keeps(struct ib_link *link, struct ib_exposed *exposed)
{
    int64_t timeout_ms = bmi_method_setting(link->base.instance, "peer_timeout_ms");
    uint64_t now_ms = bmi_method_now_ns(link->base.instance) / 1000000;
    if (exposed->since_ms == 0)
        exposed->since_ms = now_ms;
    if (timeout_ms > 0 && now_ms - exposed->since_ms >= (uint64_t)timeout_ms)
        ib_link_fail(link, -ETIMEDOUT);
}

bool ib_release(struct bmi_link *base, void *handle, bool wait)
{
    struct ib_state *state = base->state;
    struct ib_link *link = ib_link_of(base);
    if (!wait && state->fabric->breaks) {
        peer_keeps(link, handle);
        return false;
    }
    exposed_free(state, handle);
    atomic_fetch_sub(&link->exposed, 1);
    return true;
}

/* ---- BMI_memalloc ---------------------------------------------------------------------------- */

/* Memory of BMI_memalloc: registered until it is freed or the method stops. */
struct ib_allocation {
    struct ib_allocation *next;
    struct ib_state *state; /* NULL: the method has stopped since */
    void *buffer;
    size_t size;
    struct bmi_registration *registration;
};

static struct bmi_lock allocations_lock;
static struct ib_allocation *allocations; /* allocations_lock */

static int memory_allocate(struct ib_state *state, struct bmi_method_memory *memory)
{
    if (!state || !atomic_load(&state->registers) || memory->size <= 0)
        return -ENOTSUP;
    struct ib_allocation *one = calloc(1, sizeof(*one));
    if (!one)
        return -ENOMEM;
    one->state = state;
    one->size = (size_t)memory->size;
    one->buffer = mmap(NULL, one->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = -ENOMEM;
    if (one->buffer == MAP_FAILED)
        goto undo_one;
    status = bmi_method_cache_get(state->cache, one->buffer, one->size, &one->registration);
    if (status)
        goto undo_buffer;
    ib_lock(&allocations_lock);
    one->next = allocations;
    allocations = one;
    ib_unlock(&allocations_lock);
    memory->buffer = one->buffer;
    return 0;

undo_buffer:
    munmap(one->buffer, one->size);
undo_one:
    free(one);
    return status;
}

static int memory_free(const struct bmi_method_memory *memory)
{
    ib_lock(&allocations_lock);
    struct ib_allocation **at = &allocations, *one;
    while ((one = *at) != NULL && one->buffer != memory->buffer)
        at = &one->next;
    if (one)
        *at = one->next;
    ib_unlock(&allocations_lock);
    if (!one)
        return -ENOENT;
    if (one->state) {
        bmi_method_cache_put(one->state->cache, one->registration, one->buffer, one->size);
        bmi_method_cache_forget(one->state->cache, one->buffer, one->size);
    }
    munmap(one->buffer, one->size);
    free(one);
    return 0;
}

void ib_memory_stop(struct ib_state *state)
{
    atomic_store(&state->registers, false);
    ib_lock(&allocations_lock);
    for (struct ib_allocation *one = allocations; one; one = one->next)
        if (one->state == state) {
            bmi_method_cache_put(state->cache, one->registration, one->buffer, one->size);
            one->state = NULL;
        }
    ib_unlock(&allocations_lock);
    bmi_method_cache_destroy(state->cache);
    state->cache = NULL;
}

int ib_memory_option(struct ib_state *state, struct bmi_method_memory *memory, bool set)
{
    return set ? memory_free(memory) : memory_allocate(state, memory);
}
