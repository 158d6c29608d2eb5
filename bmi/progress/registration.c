/* SPDX-License-Identifier: BSD-3-Clause
 *
 * registration.c - the cache of registrations, common to methods. See bmi/method.h.
 *
 * The danger in such a cache is a program that unmaps memory and maps something else at the same
 * address: a NIC that holds pages would go on moving bytes to and from the old ones. userfaultfd
 * does not help: the thread that unmaps sleeps in the kernel until a reader has taken the event, so
 * a reader must always run, and this library has no threads of its own. Besides, the descriptor is
 * often refused to plain users, and takes over the page faults of the watched range. Replacements
 * of munmap do not help either: they miss calls, and conflict with libraries that do the same. So
 * there is a rule that needs no notice of an unmap:
 *
 *   an entry is found only while some user holds all of its pages.
 *
 * Memory that is lent to BMI stays mapped as it is. So while the holder of a whole entry holds it,
 * every range within it is the same memory, and may share it. When the last holder leaves, the
 * entry is retired: it is no longer found, and is deregistered with its last user. Memory of
 * BMI_memalloc has
 * a holder from its allocation to BMI_memfree, so it is registered once. Plain memory is registered
 * for the time of its operations. Entries are kept beyond that, to be found again, and merged, only
 * where that is harmless: where the network follows addresses, not pages (`follows_mapping`), or
 * where the user has promised not to give memory back (setting registration_keep).
 *
 * Entries that can be found are disjoint, in an array ordered by address; unused ones among them
 * also stand in a list, least recently used first. All under the cache's lock, which is held while
 * the registrar is called: a leaf lock, the registrar must not call the core.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/method.h"

struct bmi_registration_cache {
    struct bmi_instance *instance;
    const struct bmi_method *method;
    struct bmi_registrar registrar;
    void *owner;
    bool keep;
    size_t page;
    pthread_mutex_t lock;
    struct bmi_registration **found; /* by address; disjoint */
    size_t found_count, found_room;
    struct bmi_registration *oldest, *newest; /* of the unused entries */
    struct bmi_cache_statistics statistics;
};

/* ---- the list of unused ones ---------------------------------------------------------------- */

static void unused_add(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    entry->older = cache->newest;
    entry->newer = NULL;
    *(cache->newest != NULL ? &cache->newest->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

static void unused_remove(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    *(entry->older != NULL ? &entry->older->newer : &cache->oldest) = entry->newer;
    *(entry->newer != NULL ? &entry->newer->older : &cache->newest) = entry->older;
}

/* ---- the array of those that are found ------------------------------------------------------ */

static uintptr_t end_of(const struct bmi_registration *entry)
{
    return entry->address + entry->length;
}

/* Index of the first entry that ends behind `address`. */
static size_t first_behind(const struct bmi_registration_cache *cache, uintptr_t address)
{
    size_t low = 0, high = cache->found_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (end_of(cache->found[middle]) > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool found_reserve(struct bmi_registration_cache *cache)
{
    if (cache->found_count < cache->found_room)
        return true;
    size_t room = cache->found_room > 0 ? cache->found_room * 2 : 16;
    struct bmi_registration **more = realloc(cache->found, room * sizeof *more);
    if (more == NULL)
        return false;
    cache->found = more;
    cache->found_room = room;
    return true;
}

static void found_insert(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    size_t at = first_behind(cache, entry->address);
    memmove(&cache->found[at + 1], &cache->found[at],
            (cache->found_count - at) * sizeof *cache->found);
    cache->found[at] = entry;
    cache->found_count++;
    entry->is_found = true;
}

static void found_remove(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    size_t at = first_behind(cache, entry->address);
    cache->found_count--;
    memmove(&cache->found[at], &cache->found[at + 1],
            (cache->found_count - at) * sizeof *cache->found);
    entry->is_found = false;
}

/* ---- entries -------------------------------------------------------------------------------- */

static void entry_end(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    cache->registrar.leave(cache->owner, entry->address, entry->length, entry->handle);
    cache->statistics.bytes -= entry->length;
    cache->statistics.count--;
    free(entry);
}

/* Removes the entry from the search. It ends now or with its last user. */
static void entry_retire(struct bmi_registration_cache *cache, struct bmi_registration *entry)
{
    if (entry->is_found)
        found_remove(cache, entry);
    if (entry->users > 0)
        return;
    unused_remove(cache, entry);
    entry_end(cache, entry);
}

static bool evict_oldest(struct bmi_registration_cache *cache)
{
    if (cache->oldest == NULL)
        return false;
    cache->statistics.evictions++;
    entry_retire(cache, cache->oldest);
    return true;
}

/* Whether an entry of `length` more bytes may be made. Frees unused entries for it. */
static bool room_make(struct bmi_registration_cache *cache, size_t length)
{
    uint64_t bytes = (uint64_t)bmi_method_setting(cache->instance, "registration_bytes");
    uint64_t count = (uint64_t)bmi_method_setting(cache->instance, "registration_count");
    if (length > bytes)
        return false;
    while (cache->statistics.bytes > bytes - length || cache->statistics.count >= count)
        if (!evict_oldest(cache))
            return false;
    return true;
}

/* Registers a range. If the network has no more room, frees unused entries. */
static int entry_make(struct bmi_registration_cache *cache, uintptr_t address, size_t length,
                      struct bmi_registration **out)
{
    if (!room_make(cache, length))
        return -ENOBUFS;
    struct bmi_registration *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return -ENOMEM;
    *entry = (struct bmi_registration){.address = address, .length = length};
    int status;
    do
        status = cache->registrar.enter(cache->owner, address, length, &entry->handle);
    while ((status == -ENOMEM || status == -ENOBUFS) && evict_oldest(cache));
    if (status != 0) {
        free(entry);
        return status;
    }
    cache->statistics.registrations++;
    cache->statistics.bytes += length;
    cache->statistics.count++;
    *out = entry;
    return 0;
}

/* ---- find or make --------------------------------------------------------------------------- */

static struct bmi_registration *find(const struct bmi_registration_cache *cache, uintptr_t address,
                                     uintptr_t end)
{
    size_t at = first_behind(cache, address);
    struct bmi_registration *entry = at < cache->found_count ? cache->found[at] : NULL;
    return entry != NULL && entry->address <= address && end <= end_of(entry) ? entry : NULL;
}

static bool overlaps(const struct bmi_registration_cache *cache, uintptr_t address, uintptr_t end)
{
    size_t at = first_behind(cache, address);
    return at < cache->found_count && cache->found[at]->address < end;
}

/* Retires each entry that touches the range. */
static void clear(struct bmi_registration_cache *cache, uintptr_t address, uintptr_t end)
{
    size_t at;
    while ((at = first_behind(cache, address)) < cache->found_count &&
           cache->found[at]->address < end)
        entry_retire(cache, cache->found[at]);
}

enum { WIDEN_MOST = 4 }; /* times the request: a long row stays several entries */

/* The range together with the entries that overlap it, unless that is too much. */
static bool widen(const struct bmi_registration_cache *cache, uintptr_t *address, uintptr_t *end)
{
    uintptr_t low = *address, high = *end;
    size_t at = first_behind(cache, low);
    for (; at < cache->found_count && cache->found[at]->address < high; at++) {
        if (cache->found[at]->address < low)
            low = cache->found[at]->address;
        if (end_of(cache->found[at]) > high)
            high = end_of(cache->found[at]);
    }
    if ((high - low) > WIDEN_MOST * (*end - *address))
        return false;
    *address = low;
    *end = high;
    return true;
}

/* Merges the range with the entries that it overlaps. Some of their memory may not be mapped any
 * more; then registers the range alone. */
static int make_merged(struct bmi_registration_cache *cache, uintptr_t address, uintptr_t end,
                       struct bmi_registration **out)
{
    uintptr_t low = address, high = end;
    if (!widen(cache, &low, &high))
        return entry_make(cache, address, end - address, out);
    clear(cache, low, high);
    int status = entry_make(cache, low, high - low, out);
    if (status != 0 && high - low > end - address)
        status = entry_make(cache, address, end - address, out);
    return status;
}

/* An entry that overlaps another one is not added to the table: look-ups do not find it, and only
 * its first user uses it. */
static int make(struct bmi_registration_cache *cache, uintptr_t address, uintptr_t end,
                struct bmi_registration **out)
{
    if (!found_reserve(cache))
        return -ENOMEM;
    int status = cache->keep ? make_merged(cache, address, end, out)
                             : entry_make(cache, address, end - address, out);
    if (status == 0 && !overlaps(cache, (*out)->address, end_of(*out)))
        found_insert(cache, *out);
    return status;
}

static bool is_whole(const struct bmi_registration_cache *cache,
                     const struct bmi_registration *entry, const void *memory, size_t length)
{
    uintptr_t first = (uintptr_t)memory, last = first + length - 1;
    return first / cache->page == entry->address / cache->page &&
           last / cache->page == (end_of(entry) - 1) / cache->page;
}

int bmi_method_cache_get(struct bmi_registration_cache *cache, const void *memory, size_t length,
                         struct bmi_registration **out)
{
    uintptr_t start = (uintptr_t)memory;
    uintptr_t most = UINTPTR_MAX - 2 * cache->page; /* so that rounding cannot wrap */
    if (length == 0 || start < cache->page || start > most || length > most - start)
        return -EINVAL;
    uintptr_t address = start / cache->page * cache->page;
    uintptr_t end = (start + length + cache->page - 1) / cache->page * cache->page;
    int status = 0;
    pthread_mutex_lock(&cache->lock);
    struct bmi_registration *entry = find(cache, address, end);
    bool hit = entry != NULL;
    if (!hit)
        status = make(cache, address, end, &entry);
    else if (entry->users == 0)
        unused_remove(cache, entry);
    if (status == 0) {
        cache->statistics.uses++;
        entry->users++;
        entry->holders += is_whole(cache, entry, memory, length);
        *out = entry;
    }
    pthread_mutex_unlock(&cache->lock);
    if (status == 0)
        bmi_method_count(cache->instance, cache->method,
                         hit ? BMI_COUNT_REGISTRATION_HITS : BMI_COUNT_REGISTRATIONS, 1);
    return status;
}

void bmi_method_cache_put(struct bmi_registration_cache *cache, struct bmi_registration *entry,
                          const void *memory, size_t length)
{
    pthread_mutex_lock(&cache->lock);
    entry->holders -= is_whole(cache, entry, memory, length);
    if (--entry->users == 0 && entry->is_found && cache->keep)
        unused_add(cache, entry);
    else if (entry->is_found && !cache->keep && entry->holders == 0)
        found_remove(cache, entry);
    if (entry->users == 0 && !entry->is_found)
        entry_end(cache, entry);
    pthread_mutex_unlock(&cache->lock);
}

void bmi_method_cache_forget(struct bmi_registration_cache *cache, const void *memory,
                             size_t length)
{
    uintptr_t start = (uintptr_t)memory;
    pthread_mutex_lock(&cache->lock);
    if (length > 0 && start <= UINTPTR_MAX - length)
        clear(cache, start, start + length);
    pthread_mutex_unlock(&cache->lock);
}

/* ---- life ----------------------------------------------------------------------------------- */

int bmi_method_cache_create(struct bmi_instance *instance, const struct bmi_method *method,
                            const struct bmi_registrar *registrar, void *owner,
                            struct bmi_registration_cache **out)
{
    struct bmi_registration_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return -ENOMEM;
    cache->instance = instance;
    cache->method = method;
    cache->registrar = *registrar;
    cache->owner = owner;
    cache->keep =
        registrar->follows_mapping || bmi_method_setting(instance, "registration_keep") != 0;
    cache->page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return 0;
}

void bmi_method_cache_destroy(struct bmi_registration_cache *cache)
{
    if (cache == NULL)
        return;
    while (cache->oldest != NULL)
        entry_retire(cache, cache->oldest);
    pthread_mutex_destroy(&cache->lock);
    free(cache->found);
    free(cache);
}

void bmi_method_cache_statistics(struct bmi_registration_cache *cache,
                                 struct bmi_cache_statistics *out)
{
    pthread_mutex_lock(&cache->lock);
    *out = cache->statistics;
    pthread_mutex_unlock(&cache->lock);
}
