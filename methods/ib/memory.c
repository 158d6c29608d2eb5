/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - registering the program's memory, for the other side and for ourselves.
 *
 * Where a registration is bookkeeping of the provider's (tcp, shm) each one that peers may reach is
 * made anew, exactly as large as the message, with a random key, and closed when the core releases
 * it: then nobody can begin to write to the memory any more. Where it pins pages for a device
 * (verbs) it comes from the library's cache. Those are in whole pages, and one that somebody else
 * uses too, or that is memory of BMI_memalloc, stays in reach of a peer that kept its key.
 *
 * A provider with connections writes on what it has begun, whatever becomes of the registration. So
 * memory that the peer has not done with is given up only when the peer says that it has, or with
 * the connection, which is then cut before anybody is told.
 */
#include <openssl/rand.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ib.h"

enum { KEY_TRIES = 8 };

/* One registration that the core was given: of several segments. */
struct ib_enrolment {
    uint64_t since_ms; /* asked back for the first time, while the peer may be writing; 0: never */
    uint32_t count;
    struct {
        void *memory;
        size_t size;
        struct fid_mr *exact;                  /* of our own, or */
        struct bmi_registration *registration; /* the cache's */
    } segments[];
};

/* ---- registering ------------------------------------------------------------------------------
 */

static uint64_t access_all(void)
{
    return FI_REMOTE_WRITE | FI_REMOTE_READ | FI_WRITE | FI_READ;
}

/* Many keys are drawn at a time: a draw takes microseconds, whatever its size. fabric_lock. */
static int key_take(struct ib_fabric *fabric, uint64_t *key)
{
    if (fabric->key_count == 0) {
        if (RAND_bytes((uint8_t *)fabric->keys, sizeof(fabric->keys)) != 1)
            return -EIO;
        fabric->key_count = IB_KEYS;
    }
    *key = fabric->keys[--fabric->key_count];
    return 0;
}

int ib_region_register_locked(struct ib_fabric *fabric, const void *memory, size_t size,
                              uint64_t access, struct fid_mr **region)
{
    ssize_t status = -FI_ENOKEY;
    for (int i = 0; i < KEY_TRIES && status == -FI_ENOKEY; i++) {
        uint64_t key = 0;
        if (!fabric->provider_keys && key_take(fabric, &key) < 0)
            return -EIO;
        if (fabric->info->domain_attr->mr_key_size < sizeof(key))
            key &= (UINT64_C(1) << (8 * fabric->info->domain_attr->mr_key_size)) - 1;
        status = fi_mr_reg(fabric->domain, memory, size, access, 0, key, 0, region, NULL);
    }
    return status ? ib_error(status) : 0;
}

/* The cache's. It holds its own lock; the network's is taken within. */
static int cache_enter(void *owner, uintptr_t address, size_t length, void **handle)
{
    struct ib_state *state = owner;
    struct fid_mr *region = NULL;
    ib_lock(&state->fabric_lock);
    int status = ib_region_register_locked(state->fabric, (const void *)address, length,
                                           access_all(), &region);
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
    return bmi_method_cache_create(state->method, &registrar, state, &state->cache);
}

int ib_local_get(struct ib_state *state, void *memory, size_t size,
                 struct bmi_registration **registration)
{
    *registration = NULL;
    if (!state->fabric->local_memory)
        return 0;
    return bmi_method_cache_get(state->cache, memory, size, registration);
}

/* ---- for the other side ------------------------------------------------------------------------
 */

static int segment_enter(struct ib_state *state, struct ib_enrolment *enrolment, uint32_t index,
                         struct bmi_region *region)
{
    const struct ib_fabric *fabric = state->fabric;
    uint8_t *memory = enrolment->segments[index].memory;
    size_t size = enrolment->segments[index].size;
    struct fid_mr *handle = NULL;
    uintptr_t start = (uintptr_t)memory;
    int status;

    if (state->reads) {
        *region = (struct bmi_region){.address = start, .length = size};
        return 0;
    }
    if (fabric->real_registration) {
        struct bmi_registration *registration;
        status = bmi_method_cache_get(state->cache, memory, size, &registration);
        if (status)
            return status;
        enrolment->segments[index].registration = registration;
        handle = registration->handle;
        start = registration->address;
    } else {
        ib_lock(&state->fabric_lock);
        status = ib_region_register_locked(state->fabric, memory, size, access_all(), &handle);
        ib_unlock(&state->fabric_lock);
        if (status)
            return status;
        enrolment->segments[index].exact = handle;
        ib_count(state, BMI_COUNT_REGISTRATIONS, 1);
    }
    region->address = fabric->virtual_addresses ? (uintptr_t)memory : (uintptr_t)memory - start;
    region->length = size;
    region->key = fi_mr_key(handle);
    return 0;
}

static void enrolment_free(struct ib_state *state, struct ib_enrolment *enrolment)
{
    for (uint32_t i = 0; i < enrolment->count; i++) {
        struct fid_mr *exact = enrolment->segments[i].exact;
        if (exact) {
            ib_lock(&state->fabric_lock);
            fi_close(&exact->fid);
            ib_unlock(&state->fabric_lock);
        }
        if (enrolment->segments[i].registration)
            bmi_method_cache_put(state->cache, enrolment->segments[i].registration,
                                 enrolment->segments[i].memory, enrolment->segments[i].size);
    }
    free(enrolment);
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
    struct ib_enrolment *enrolment =
        calloc(1, sizeof(*enrolment) + segments * sizeof(enrolment->segments[0]));
    if (!enrolment)
        return -ENOMEM;
    int status = 0;
    for (size_t i = 0; i < segments && status == 0; i++) {
        enrolment->segments[i].memory = window[i].iov_base;
        enrolment->segments[i].size = window[i].iov_len;
        enrolment->count = (uint32_t)i + 1;
        status = segment_enter(state, enrolment, (uint32_t)i, &regions[i]);
    }
    if (status) {
        bmi_method_log(BMI_LOG_DEBUG, base, "%s: memory is not registered: %s; going by messages",
                       state->kind->scheme, strerror(-status));
        enrolment_free(state, enrolment);
        return status;
    }
    *count = (uint32_t)segments;
    *handle = enrolment;
    atomic_fetch_add(&ib_link_of(base)->exposed, 1);
    return 0;
}

/* The peer has not said yet that it is done: its link ends when that takes too long. */
static void peer_keeps(struct ib_link *link, struct ib_enrolment *enrolment)
{
    int64_t timeout_ms = bmi_method_setting("peer_timeout_ms");
    uint64_t now_ms = bmi_method_now_ns() / 1000000;
    if (enrolment->since_ms == 0)
        enrolment->since_ms = now_ms;
    if (timeout_ms > 0 && now_ms - enrolment->since_ms >= (uint64_t)timeout_ms)
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
    enrolment_free(state, handle);
    atomic_fetch_sub(&link->exposed, 1);
    return true;
}

/* ---- BMI_memalloc ------------------------------------------------------------------------------
 */

/* Memory that is registered from its allocation to its end, or that of the method. */
struct ib_allocation {
    struct ib_allocation *next;
    struct ib_state *state; /* NULL: the method has stopped since */
    void *buffer;
    size_t size;
    struct bmi_registration *registration;
};

static struct bmi_lock allocations_lock;
static struct ib_allocation *allocations; /* allocations_lock */

static size_t whole_pages(bmi_size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return ((size_t)size + page - 1) / page * page;
}

static int memory_allocate(struct ib_state *state, struct bmi_method_memory *memory)
{
    if (!state || !atomic_load(&state->registers) || memory->size <= 0)
        return -ENOTSUP;
    struct ib_allocation *one = calloc(1, sizeof(*one));
    if (!one)
        return -ENOMEM;
    one->state = state;
    one->size = whole_pages(memory->size);
    one->buffer = mmap(NULL, one->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = one->buffer == MAP_FAILED ? -ENOMEM : 0;
    if (status == 0) {
        status = bmi_method_cache_get(state->cache, one->buffer, one->size, &one->registration);
        if (status)
            munmap(one->buffer, one->size);
    }
    if (status) {
        free(one);
        return status;
    }
    ib_lock(&allocations_lock);
    one->next = allocations;
    allocations = one;
    ib_unlock(&allocations_lock);
    memory->buffer = one->buffer;
    return 0;
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
