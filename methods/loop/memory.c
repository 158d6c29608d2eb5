/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - registrations, puts, and gets of the loop method.
 *
 * A region is an address, a length, and a key that only the two ends of one link know. All three
 * are checked at each step of each transfer, under memory_lock: nothing outside a registration of
 * the link's own peer is touched, and nothing after its release has returned. Keys are never
 * reused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

/* How far a transfer is: kept in its method_private. */
enum { PRIVATE_DOOM, PRIVATE_REGION, PRIVATE_OFFSET };

static uintptr_t private_get(const struct bmi_transfer *transfer, unsigned which)
{
    return (uintptr_t)transfer->method_private[which];
}

static void private_set(struct bmi_transfer *transfer, unsigned which, uintptr_t value)
{
    transfer->method_private[which] = (void *)value;
}

/* ---- registrations -------------------------------------------------------------------------- */

static int expose_refused(struct loop_network *network)
{
    pthread_mutex_lock(&network->lock);
    int status = loop_failure_strike_locked(network, BMI__LOOP_EXPOSE);
    if (status == 0 && network->hooks.refuse_memory)
        status = -ENOMEM;
    pthread_mutex_unlock(&network->lock);
    return status;
}

int loop_expose(struct bmi_link *base, const struct bmi_segments *memory,
                struct bmi_region *regions, uint32_t *count, void **handle)
{
    struct loop_link *link = loop_link_of(base);
    struct loop_network *network = link->network;
    int status = expose_refused(network);
    if (status != 0)
        return status;
    struct iovec window[LOOP_REGIONS_MAX];
    size_t covered;
    size_t segments = bmi_segments_window(memory, window, LOOP_REGIONS_MAX, SIZE_MAX, &covered);
    if (covered < (size_t)memory->left)
        return -EMSGSIZE;
    struct loop_registration *registration = calloc(1, sizeof *registration);
    if (registration == NULL)
        return -ENOMEM;
    registration->count = (uint32_t)segments;

    pthread_mutex_lock(&network->memory_lock);
    for (size_t i = 0; i < segments; i++)
        registration->regions[i] = (struct bmi_region){
            .address = (uintptr_t)window[i].iov_base,
            .length = window[i].iov_len,
            /* an odd factor: all differ, and one bit wrong is none of them */
            .key = ++network->keys * UINT64_C(0x9e3779b97f4a7c15),
        };
    registration->next = link->registrations;
    registration->link_to_me = &link->registrations;
    if (registration->next != NULL)
        registration->next->link_to_me = &registration->next;
    link->registrations = registration;
    pthread_mutex_unlock(&network->memory_lock);

    memcpy(regions, registration->regions, segments * sizeof *regions);
    *count = registration->count;
    *handle = registration;
    return 0;
}

bool loop_release(struct bmi_link *base, void *handle, bool wait)
{
    (void)wait;
    struct loop_network *network = loop_link_of(base)->network;
    struct loop_registration *registration = handle;
    pthread_mutex_lock(&network->memory_lock);
    *registration->link_to_me = registration->next;
    if (registration->next != NULL)
        registration->next->link_to_me = registration->link_to_me;
    pthread_mutex_unlock(&network->memory_lock);
    free(registration);
    return true;
}

/* Frees the registrations that were never released, with the link. */
void loop_registrations_free(struct loop_link *link)
{
    while (link->registrations != NULL) {
        struct loop_registration *registration = link->registrations;
        link->registrations = registration->next;
        free(registration);
    }
}

/* The memory behind a claimed region of this link, or NULL. memory_lock held. */
static uint8_t *region_resolve_locked(const struct loop_link *link,
                                      const struct bmi_region *claimed)
{
    const struct loop_registration *registration = link->registrations;
    for (; registration != NULL; registration = registration->next)
        for (uint32_t i = 0; i < registration->count; i++) {
            const struct bmi_region *region = &registration->regions[i];
            if (region->key != claimed->key || claimed->address < region->address)
                continue;
            uint64_t offset = claimed->address - region->address;
            if (offset <= region->length && claimed->length <= region->length - offset)
                return (uint8_t *)(uintptr_t)claimed->address;
        }
    return NULL;
}

/* ---- transfers ------------------------------------------------------------------------------ */

void loop_transfer(struct bmi_link *base, struct bmi_transfer *transfer)
{
    struct loop_link *link = loop_link_of(base);
    struct loop_network *network = link->network;
    const struct bmi_method_limits *limits = &network->table->limits;
    transfer->next = NULL;
    private_set(transfer, PRIVATE_REGION, 0);
    private_set(transfer, PRIVATE_OFFSET, 0);

    pthread_mutex_lock(&network->lock);
    int doom = loop_failure_strike_locked(network, BMI__LOOP_TRANSFER);
    if (doom == 0 && !(transfer->get ? limits->get : limits->put))
        doom = -EOPNOTSUPP;
    private_set(transfer, PRIVATE_DOOM, (uintptr_t)-doom);
    *link->transfers_tail = transfer;
    link->transfers_tail = &transfer->next;
    loop_link_ready_locked(link);
    pthread_mutex_unlock(&network->lock);
}

int loop_transfer_doom(const struct bmi_transfer *transfer)
{
    return -(int)private_get(transfer, PRIVATE_DOOM);
}

/* Passes by remote regions that are used up. Returns the present one; NULL: there is no more. */
static const struct bmi_region *region_present(struct bmi_transfer *transfer)
{
    uintptr_t index = private_get(transfer, PRIVATE_REGION);
    while (index < transfer->remote_count &&
           private_get(transfer, PRIVATE_OFFSET) >= transfer->remote[index].length) {
        private_set(transfer, PRIVATE_REGION, ++index);
        private_set(transfer, PRIVATE_OFFSET, 0);
    }
    return index < transfer->remote_count ? &transfer->remote[index] : NULL;
}

bmi_size_t loop_transfer_move(struct loop_link *link, size_t most)
{
    struct loop_network *network = link->network;
    struct bmi_transfer *transfer = link->moving;
    bmi_size_t moved = 0;
    pthread_mutex_lock(&network->memory_lock);
    while (most > 0 && transfer->local.left > 0) {
        const struct bmi_region *region = region_present(transfer);
        uint8_t *memory = region != NULL ? region_resolve_locked(link->peer, region) : NULL;
        if (memory == NULL) {
            moved = -EACCES;
            break;
        }
        size_t offset = private_get(transfer, PRIVATE_OFFSET);
        size_t bytes = (size_t)region->length - offset;
        bytes = transfer->get ? bmi_segments_scatter(&transfer->local, memory + offset,
                                                     bytes < most ? bytes : most)
                              : bmi_segments_gather(&transfer->local, memory + offset,
                                                    bytes < most ? bytes : most);
        private_set(transfer, PRIVATE_OFFSET, offset + bytes);
        moved += (bmi_size_t)bytes;
        most -= bytes;
    }
    pthread_mutex_unlock(&network->memory_lock);
    return moved;
}
