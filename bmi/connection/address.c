/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.c - the address book. See address.h.
 */
#include "bmi/connection/address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/base/text.h"
#include "bmi/connection/option.h"
#include "bmi/connection/peer_end.h"
#include "bmi/progress/methods.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

enum { CHUNK = 256, CHUNKS = 1 << 16, ALTERNATIVES_MOST = 64 };

static pthread_mutex_t book = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct address *) chunks[CHUNKS];
static atomic_uint chunk_count;
static struct address *free_list; /* book */
/* The first generation of each slot. It is past every generation used before the book was last
 * freed, so a handle of an earlier initialization never matches. */
static uint32_t first_generation;              /* book */
static struct address *dead_first, *dead_last; /* book: accepted, gone, unreferenced */
static uint32_t dead_count;                    /* book */
static struct address **table;                 /* book: looked up, by string */
static uint32_t table_size, table_used;        /* book */

void bmi__book_lock(void)
{
    pthread_mutex_lock(&book);
}

void bmi__book_unlock(void)
{
    pthread_mutex_unlock(&book);
}

/* ---- slots ---------------------------------------------------------------------------------- */

BMI_addr_t bmi__address_handle(const struct address *address)
{
    uint64_t generation = atomic_load_explicit(&address->generation, memory_order_relaxed);
    return (BMI_addr_t)((uint64_t)(address->slot + 1) << 32 | generation);
}

static uint32_t generation_of(const struct address *address)
{
    return atomic_load_explicit(&address->generation, memory_order_acquire);
}

static struct address *find(BMI_addr_t handle)
{
    uint32_t slot = (uint32_t)((uint64_t)handle >> 32) - 1;
    if (handle <= 0 || slot / CHUNK >= atomic_load_explicit(&chunk_count, memory_order_acquire))
        return NULL;
    struct address *chunk = atomic_load_explicit(&chunks[slot / CHUNK], memory_order_relaxed);
    struct address *address = &chunk[slot % CHUNK];
    return generation_of(address) == (uint32_t)handle ? address : NULL;
}

struct address *bmi__address_find_locked(BMI_addr_t handle)
{
    struct address *address = find(handle);
    return address != NULL && address->in_use ? address : NULL;
}

struct address *bmi__address_of_locked(BMI_addr_t handle)
{
    return find(handle);
}

static bool slots_grow_locked(void)
{
    unsigned count = atomic_load(&chunk_count);
    struct address *chunk = count < CHUNKS ? calloc(CHUNK, sizeof *chunk) : NULL;
    if (chunk == NULL)
        return false;
    for (uint32_t i = CHUNK; i-- > 0;) {
        chunk[i].slot = count * CHUNK + i;
        atomic_init(&chunk[i].generation, first_generation);
        chunk[i].hash_next = free_list;
        free_list = &chunk[i];
    }
    atomic_store(&chunks[count], chunk);
    atomic_store_explicit(&chunk_count, count + 1, memory_order_release);
    return true;
}

static struct address *slot_take_locked(void)
{
    if (free_list == NULL && !slots_grow_locked())
        return NULL;
    struct address *address = free_list;
    free_list = address->hash_next;
    address->hash_next = NULL;
    address->in_use = true;
    return address;
}

static void table_remove_locked(struct address *address);

static void hosts_free(struct address *address)
{
    for (struct host *host = address->host, *former; host != NULL; host = former) {
        former = host->former;
        free(host);
    }
    address->host = NULL;
}

/* If memory is short, the address keeps its present host. */
static void host_set(struct address *address, const char *numeric, uint8_t method)
{
    struct host **place = &address->host;
    while (*place != NULL && strcmp((*place)->numeric, numeric) != 0)
        place = &(*place)->former;
    struct host *host = *place;
    if (host != NULL) {
        *place = host->former;
    } else {
        size_t size = strlen(numeric) + 1;
        host = malloc(sizeof *host + size);
        if (host == NULL)
            return;
        memcpy(host->numeric, numeric, size);
    }
    host->former = address->host;
    address->host = host;
    address->host_method = method;
}

/* The address has no peer. Its handle is stale from now on. */
static void slot_give_locked(struct address *address)
{
    if (address->string != NULL)
        table_remove_locked(address);
    bmi__options_free(address);
    for (uint32_t i = 0; i < address->alternative_count; i++) {
        free(address->alternatives[i].canonical);
        free(address->alternatives[i].url);
    }
    free(address->alternatives);
    free(address->string);
    hosts_free(address);
    uint32_t slot = address->slot;
    atomic_fetch_add(&address->generation, 1);
    address->losses = 0;
    address->alternatives = NULL;
    address->alternative_count = 0;
    address->string = NULL;
    address->alias_next = NULL;
    address->references = 0;
    address->cause = 0;
    address->dead = address->in_use = address->dropped = false;
    address->slot = slot;
    address->hash_next = free_list;
    free_list = address;
}

/* ---- strings -------------------------------------------------------------------------------- */

static uint32_t hash(const char *string)
{
    uint32_t value = 2166136261u;
    for (; *string != '\0'; string++)
        value = (value ^ (uint8_t)*string) * 16777619u;
    return value;
}

static void table_grow_locked(void)
{
    uint32_t size = table_size == 0 ? 64 : table_size * 4;
    struct address **wider = calloc(size, sizeof(struct address *));
    if (wider == NULL)
        return;
    for (uint32_t i = 0; i < table_size; i++)
        for (struct address *a = table[i], *next; a != NULL; a = next) {
            uint32_t bucket = hash(a->string) & (size - 1);
            next = a->hash_next;
            a->hash_next = wider[bucket];
            wider[bucket] = a;
        }
    free(table);
    table = wider;
    table_size = size;
}

static void table_remove_locked(struct address *address)
{
    struct address **place = &table[hash(address->string) & (table_size - 1)];
    while (*place != NULL && *place != address)
        place = &(*place)->hash_next;
    if (*place == NULL)
        return;
    *place = address->hash_next;
    table_used--;
}

static int table_add_locked(struct address *address)
{
    if (table_used >= 2 * table_size)
        table_grow_locked();
    if (table_size == 0)
        return -ENOMEM;
    uint32_t bucket = hash(address->string) & (table_size - 1);
    address->hash_next = table[bucket];
    table[bucket] = address;
    table_used++;
    return 0;
}

static struct address *table_find_locked(const char *string)
{
    if (table_size == 0)
        return NULL;
    struct address *address = table[hash(string) & (table_size - 1)];
    while (address != NULL && strcmp(address->string, string) != 0)
        address = address->hash_next;
    return address;
}

/* Checks one "scheme://rest" and adds it. -ENOPROTOOPT: no such scheme here. */
static int alternative_parse(char *text, struct alternative *alternative)
{
    text = bmi__trimmed(text);
    char rest[BMI_MAX_ADDR_LEN], canonical[BMI_MAX_ADDR_LEN];
    const char *separator = strstr(text, "://"), *reason = "not understood";
    if (separator == NULL) {
        bmi__log(BMI_LOG_ERROR, "address \"%s\": no scheme:// in it", text);
        return -EINVAL;
    }
    struct running_method *method = bmi__method_of_scheme(text, (size_t)(separator - text));
    if (method == NULL)
        return -ENOPROTOOPT;
    snprintf(rest, sizeof rest, "%s", separator + 3);
    if (method->method->parse(rest, canonical, sizeof canonical, &reason) < 0) {
        bmi__log(BMI_LOG_ERROR, "address \"%s\": %s", text, reason);
        return -EINVAL;
    }
    size_t size = (size_t)(separator - text) + 3 + strlen(canonical) + 1;
    *alternative =
        (struct alternative){.method = method, .canonical = strdup(canonical), .url = malloc(size)};
    if (alternative->canonical == NULL || alternative->url == NULL)
        return -ENOMEM; /* freed with the address */
    snprintf(alternative->url, size, "%.*s://%s", (int)(separator - text), text, canonical);
    return 0;
}

static int alternatives_parse(struct address *address, const char *string)
{
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *part;
    int status = -EINVAL;
    strcpy(copy, string);
    address->alternatives = calloc(ALTERNATIVES_MOST, sizeof(struct alternative));
    if (address->alternatives == NULL)
        return -ENOMEM;
    while ((part = strsep(&rest, ",")) != NULL && address->alternative_count < ALTERNATIVES_MOST) {
        if (*part == '\0' && *string != '\0') {
            bmi__log(BMI_LOG_ERROR, "address \"%s\": an alternative is empty", string);
            return -EINVAL;
        }
        status = alternative_parse(part, &address->alternatives[address->alternative_count]);
        if (status == 0 || status == -ENOMEM)
            address->alternative_count++;
        if (status < 0 && status != -ENOPROTOOPT)
            return status;
    }
    if (address->alternative_count == 0) {
        bmi__log(BMI_LOG_ERROR, "address \"%s\": no method of this library has that scheme",
                 string);
        return -ENOPROTOOPT;
    }
    struct alternative *fitting =
        realloc(address->alternatives, address->alternative_count * sizeof(struct alternative));
    if (fitting != NULL)
        address->alternatives = fitting;
    return 0;
}

static int address_make_locked(const char *string, struct address **made)
{
    struct address *address = slot_take_locked();
    if (address == NULL)
        return -ENOMEM;
    int status = alternatives_parse(address, string);
    char *copy = status == 0 ? strdup(string) : NULL;
    if (status == 0 && copy == NULL)
        status = -ENOMEM;
    if (status == 0) {
        address->string = copy;
        status = table_add_locked(address);
        if (status < 0)
            address->string = NULL, free(copy);
    }
    if (status < 0) {
        slot_give_locked(address);
        return status;
    }
    *made = address;
    return 0;
}

/* Unexpected messages of its peer carry this looked-up address from now on. */
static void front_locked(struct address *address)
{
    struct peer *peer = atomic_load(&address->peer);
    if (peer == NULL)
        return;
    peer_lock(peer);
    struct address **place = &peer->address;
    while (*place != address)
        place = &(*place)->alias_next;
    *place = address->alias_next;
    address->alias_next = peer->address;
    peer->address = address;
    peer_unlock(peer);
}

int bmi__address_lookup(const char *string, BMI_addr_t *handle)
{
    if (strlen(string) >= BMI_MAX_ADDR_LEN)
        return -ENAMETOOLONG;
    bmi__book_lock();
    int status = 0;
    struct address *address = table_find_locked(string);
    if (address == NULL) {
        status = address_make_locked(string, &address);
    } else if (address->dropped) { /* see drop_locked: it has a new handle; or it was claimed */
        address->dropped = false;
        front_locked(address);
    }
    if (status == 0)
        *handle = bmi__address_handle(address);
    bmi__book_unlock();
    return status;
}

int bmi__address_methods_start(BMI_addr_t handle)
{
    int status = -EINVAL;
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    bool any = false;
    for (uint32_t i = 0; address != NULL && i < address->alternative_count; i++) {
        status = bmi__method_start(address->alternatives[i].method);
        any = any || status == 0;
    }
    bmi__book_unlock();
    return any ? 0 : status;
}

/* ---- peers ---------------------------------------------------------------------------------- */

static void attach_locked(struct address *address, struct peer *peer)
{
    address->alias_next = peer->address;
    peer->address = address;
    atomic_store(&address->peer, peer);
}

/* The handle has no peer: makes one for a looked-up address. */
static int peer_make(BMI_addr_t handle)
{
    int status = 0;
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    if (address == NULL)
        status = -EINVAL;
    else if (address->string == NULL && atomic_load(&address->peer) == NULL)
        status = address->cause != 0 ? address->cause : -ECONNRESET;
    else if (atomic_load(&address->peer) == NULL) {
        struct peer *peer = bmi__peer_take();
        if (peer != NULL)
            attach_locked(address, peer);
        else
            status = -ENOMEM;
    }
    bmi__book_unlock();
    return status;
}

int bmi__address_lock(BMI_addr_t handle, struct peer **peer)
{
    for (;;) {
        struct address *address = find(handle);
        if (address == NULL)
            return -EINVAL;
        struct peer *candidate = atomic_load_explicit(&address->peer, memory_order_acquire);
        if (candidate == NULL) {
            int status = peer_make(handle);
            if (status < 0)
                return status;
            continue;
        }
        peer_lock(candidate);
        if (atomic_load_explicit(&address->peer, memory_order_relaxed) == candidate &&
            generation_of(address) == (uint32_t)handle) {
            *peer = candidate;
            return 0;
        }
        peer_unlock(candidate);
    }
}

BMI_addr_t bmi__peer_handle_locked(const struct peer *peer)
{
    return peer->address != NULL ? bmi__address_handle(peer->address) : 0;
}

struct address *bmi__address_accept_locked(struct peer *peer)
{
    struct address *address = slot_take_locked();
    if (address == NULL)
        return NULL;
    attach_locked(address, peer);
    return address;
}

static void forget_locked(struct address *address)
{
    atomic_store(&address->peer, NULL);
    slot_give_locked(address);
}

/* Both locks held. The address comes first, and gets the present host and link of the peer. */
static void adopt_locked(struct address *address, struct peer *peer)
{
    if (peer->address != NULL && peer->address->host != NULL)
        host_set(address, peer->address->host->numeric, peer->address->host_method);
    attach_locked(address, peer);
    if (peer->link != NULL)
        bmi__options_give_locked(address, peer->link);
}

/* Looked-up addresses come before the accepted one: from now on, unexpected messages of this peer
 * carry a looked-up handle. */
void bmi__address_move_locked(struct peer *from, struct peer *to)
{
    while (from->address != NULL) {
        struct address *address = from->address;
        from->address = address->alias_next;
        if (address->dropped) {
            forget_locked(address);
            continue;
        }
        adopt_locked(address, to);
    }
}

/* If the program has not looked it up, it comes behind the first one, which unexpected messages
 * carry. */
void bmi__address_claim_locked(struct peer *peer, const char *claim)
{
    struct address *address = table_find_locked(claim);
    bool looked_up = address != NULL;
    if (looked_up ? atomic_load(&address->peer) != NULL : address_make_locked(claim, &address) < 0)
        return; /* of two links JOIN chooses one */
    peer_lock(peer);
    struct address *first = peer->address;
    adopt_locked(address, peer);
    address->dropped = !looked_up;
    if (!looked_up) {
        address->alias_next = first->alias_next;
        first->alias_next = address;
        peer->address = first;
    }
    peer_unlock(peer);
}

/* The index for bmi__method_at. It is past the last method if this one is not built in. */
static uint8_t method_number(const struct bmi_method *method)
{
    const struct running_method *one;
    uint8_t number = 0;
    while ((one = bmi__method_at(number)) != NULL && one->method != method)
        number++;
    return number;
}

void bmi__address_host_locked(struct peer *peer)
{
    struct bmi_link *link = peer->link;
    uint8_t method = method_number(link->method);
    for (struct address *address = peer->address; address != NULL; address = address->alias_next)
        host_set(address, link->host != NULL ? link->host : "", method);
    free(link->host);
    link->host = NULL;
}

/* Keeps the newest dead addresses, so that a post to one returns the cause. Frees older ones. */
static void dead_add_locked(struct address *address)
{
    address->dead = true;
    if (address->references > 0)
        return; /* until the program drops its references */
    if (bmi__auto_references()) {
        slot_give_locked(address);
        return;
    }
    address->hash_next = NULL;
    if (dead_last != NULL)
        dead_last->hash_next = address;
    else
        dead_first = address;
    dead_last = address;
    if ((int64_t)++dead_count <= bmi__setting(SETTING_DEAD_PEERS))
        return;
    struct address *oldest = dead_first;
    dead_first = oldest->hash_next;
    if (dead_first == NULL)
        dead_last = NULL;
    dead_count--;
    slot_give_locked(oldest);
}

void bmi__address_lost_locked(struct peer *peer, bool all)
{
    for (struct address **place = &peer->address, *address; (address = *place) != NULL;) {
        if (!all && address->string != NULL && !address->dropped) {
            place = &address->alias_next;
            continue;
        }
        *place = address->alias_next;
        address->alias_next = NULL;
        if (address->dropped) {
            forget_locked(address);
            continue;
        }
        atomic_store(&address->peer, NULL);
        if (address->string == NULL)
            dead_add_locked(address);
    }
}

bool bmi__address_forget_locked(struct peer *peer)
{
    for (struct address **place = &peer->address, *address; (address = *place) != NULL;) {
        if (!address->dropped) {
            place = &address->alias_next;
            continue;
        }
        *place = address->alias_next;
        forget_locked(address);
    }
    return peer->address == NULL && peer->op_count == 0;
}

void bmi__address_ended_locked(struct peer *peer, int cause)
{
    for (struct address *address = peer->address; address != NULL; address = address->alias_next) {
        address->cause = cause;
        address->losses++;
    }
}

/* A connection that is being closed counts as ended: a post from now on waits for the next one. */
uint32_t bmi__address_losses(BMI_addr_t handle, bmi_error_code_t *cause)
{
    struct peer *peer;
    *cause = bmi__error(bmi__address_lock(handle, &peer));
    if (*cause != 0)
        return UINT32_MAX;
    const struct address *address = bmi__address_of_locked(handle);
    bool closing =
        peer->link != NULL && (peer->flags & PEER_CLOSING) != 0 && peer->state != PEER_DIALLING;
    int status = closing ? peer->cause : address->cause;
    uint32_t losses = address->losses + closing;
    peer_unlock(peer);
    *cause = bmi__error(status != 0 ? status : -ECONNRESET);
    return losses;
}

/* ---- references ----------------------------------------------------------------------------- */

static void dead_remove_locked(struct address *address)
{
    struct address **place = &dead_first, *previous = NULL;
    while (*place != NULL && *place != address) {
        previous = *place;
        place = &previous->hash_next;
    }
    if (*place == NULL)
        return;
    *place = address->hash_next;
    if (dead_last == address)
        dead_last = previous;
    dead_count--;
}

/* Gives back the address's peer if the peer has no link, no operations, and no other address. */
static bool peer_free_if_idle_locked(struct address *address)
{
    struct peer *peer = atomic_load(&address->peer);
    if (peer == NULL)
        return true;
    peer_lock(peer);
    bool idle = peer->state == PEER_IDLE && peer->op_count == 0 && peer->address == address &&
                address->alias_next == NULL;
    if (idle) {
        peer->address = NULL;
        atomic_store(&address->peer, NULL);
    }
    peer_unlock(peer);
    if (idle)
        bmi__peer_give(peer);
    return idle;
}

/* Frees an address that is not wanted any more, if its peer is dead or idle. */
static void free_if_idle_locked(struct address *address)
{
    if (!peer_free_if_idle_locked(address))
        return;
    if (address->dead)
        dead_remove_locked(address);
    slot_give_locked(address);
}

/* The last reference is gone. A string that the program looked up stays valid until the program
 * drops the address. So the handle stays, and only the memory of an idle peer is given back. */
static void unreferenced_locked(struct address *address)
{
    if (address->string != NULL)
        peer_free_if_idle_locked(address);
    else
        free_if_idle_locked(address);
}

int bmi__address_reference(BMI_addr_t handle, int change)
{
    int status = 0;
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    if (address == NULL || address->references + change < 0) {
        status = -EINVAL;
    } else {
        address->references += change;
        if (address->dead && change > 0)
            dead_remove_locked(address); /* a referenced address stays */
        if (address->references == 0 && change < 0)
            unreferenced_locked(address);
    }
    bmi__book_unlock();
    return status;
}

void bmi__address_heard_locked(struct peer *peer)
{
    if (bmi__auto_references() && peer->address != NULL)
        atomic_fetch_add(&peer->address->references, 1);
}

int bmi__address_droppable(BMI_addr_t handle)
{
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    struct peer *peer = address != NULL ? atomic_load(&address->peer) : NULL;
    int result = address == NULL ? -EINVAL : 1;
    if (peer != NULL) {
        peer_lock(peer);
        result = peer->state == PEER_IDLE && peer->op_count == 0;
        peer_unlock(peer);
    }
    bmi__book_unlock();
    return result;
}

/* Removes the address from a peer that has other addresses, too. */
static void alias_drop_locked(struct address *address, struct peer *peer)
{
    struct address **place = &peer->address;
    while (*place != address)
        place = &(*place)->alias_next;
    *place = address->alias_next;
    forget_locked(address);
}

/* Whether the program knows the peer by another address, too. */
static bool has_other(const struct peer *peer, const struct address *address)
{
    const struct address *other = peer->address;
    while (other != NULL && (other == address || other->dropped))
        other = other->alias_next;
    return other != NULL;
}

/* Book's and peer's locks held. If the address has a connection to close, its string stays in the
 * book until the connection ends, so that no thread dials meanwhile. Its handle becomes stale at
 * once. */
static int drop_locked(struct address *address, struct peer *peer)
{
    if (peer->op_count > 0)
        return -EBUSY;
    if (has_other(peer, address) && peer->state != PEER_DIALLING && !(peer->flags & PEER_CLOSING)) {
        alias_drop_locked(address, peer);
    } else if (peer->link != NULL) {
        bmi__peer_fail_locked(peer, -ECONNRESET, NULL);
        atomic_fetch_add(&address->generation, 1);
        address->references = 0;
        address->dropped = true;
    }
    return 0;
}

int bmi__address_drop(BMI_addr_t handle)
{
    int status = 0;
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    struct peer *peer = address != NULL ? atomic_load(&address->peer) : NULL;
    if (address == NULL) {
        status = -EINVAL;
    } else if (peer != NULL) {
        peer_lock(peer);
        status = drop_locked(address, peer);
        peer_unlock(peer);
    }
    if (status == 0 && bmi__address_find_locked(handle) != NULL)
        free_if_idle_locked(address);
    bmi__book_unlock();
    return status;
}

/* ---- strings of a handle -------------------------------------------------------------------- */

const char *bmi__address_string(BMI_addr_t handle)
{
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    const char *string = address != NULL ? address->string : NULL;
    bmi__book_unlock();
    return string;
}

const char *bmi__address_host(BMI_addr_t handle)
{
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    const char *host = address != NULL && address->host != NULL ? address->host->numeric : NULL;
    bmi__book_unlock();
    return host;
}

int bmi__address_numeric(BMI_addr_t handle, char *host, size_t size,
                         const struct bmi_method **method)
{
    bmi__book_lock();
    struct address *address = bmi__address_find_locked(handle);
    if (address != NULL && address->host != NULL) {
        snprintf(host, size, "%s", address->host->numeric);
        const struct running_method *one = bmi__method_at(address->host_method);
        *method = one != NULL ? one->method : NULL;
    } else if (address != NULL && address->alternative_count > 0) {
        const struct alternative *first = &address->alternatives[0];
        *method = first->method->method;
        (*method)->hosts->of_address(first->canonical, host, size);
    }
    bmi__book_unlock();
    return address != NULL ? 0 : -EINVAL;
}

/* ---- the end -------------------------------------------------------------------------------- */

void bmi__addresses_free(void)
{
    bmi__book_lock();
    unsigned count = atomic_load(&chunk_count);
    uint32_t used = 0;
    for (unsigned c = 0; c < count; c++) {
        struct address *chunk = atomic_load(&chunks[c]);
        for (int i = 0; i < CHUNK; i++) {
            if (chunk[i].in_use)
                slot_give_locked(&chunk[i]);
            uint32_t here = generation_of(&chunk[i]) - first_generation;
            used = here > used ? here : used;
        }
    }
    first_generation += used;
    atomic_store(&chunk_count, 0);
    for (unsigned c = 0; c < count; c++)
        free(atomic_exchange(&chunks[c], NULL));
    free(table);
    table = NULL;
    table_size = table_used = dead_count = 0;
    free_list = dead_first = dead_last = NULL;
    bmi__book_unlock();
}
