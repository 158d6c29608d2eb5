/* SPDX-License-Identifier: BSD-3-Clause
 *
 * data.c - a server's requests for the bytes of files: WRITE, READ, KEEP, DROP, OBJECTS.
 *
 * An object that a client writes belongs to its session (session.c) until the client has
 * disconnected. Then it is removed, unless the client has asked to keep it: the client does so
 * before it gives the object a name, so that no name ever lacks its bytes.
 */
#include "server.h"

/* ---- WRITE, READ ----------------------------------------------------------------------------- */

/* Choices: 0: flow; 1: flow, without creating the object: a removed object must not appear again
 * without its earlier bytes. */
int data_create(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    slot->object = slot->request.object;
    int result = session_enter(slot);
    if (result == 0 && (slot->request.flags & SFS_MORE) != 0)
        return 1;
    if (result == 0)
        result = object_track(slot, slot->object);
    if (result < 0)
        return result;
    return bmi_sm_posted(bmi_job_trove_create(slot->server->jobs, &slot->place, &slot->object, 0,
                                              &options, NULL, &slot->status));
}

int data_flow(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct sfs_request *request = &slot->request;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK};
    struct bmi_flow_endpoint storage = {.kind = BMI_FLOW_STORAGE};
    bool write = request->op == SFS_WRITE;
    network.u.network.address = slot->info.addr;
    network.u.network.tag = (bmi_msg_tag_t)(request->tag + 1);
    storage.u.storage.place = slot->place;
    slot->stripe.stripe_size = request->stripe;
    for (int i = 0; i < request->extent_count; i++)
        slot->extents[i] =
            (struct bmi_flow_extent){.offset = (bmi_size_t)request->extents[i].offset,
                                     .size = (bmi_size_t)request->extents[i].size,
                                     .count = 1};
    struct bmi_flow_description description = {
        .source = write ? network : storage,
        .destination = write ? storage : network,
        .extents = slot->extents,
        .extent_count = request->extent_count,
        .distribution = &bmi_flow_simple_stripe,
        .distribution_parameters = &slot->stripe,
        .server = request->part,
        .servers = request->servers,
        .flags = write ? BMI_FLOW_DRAIN : BMI_FLOW_ZEROS,
        .buffer_count = 4,
    };
    int posted =
        bmi_job_flow(slot->server->jobs, &description, &options, &slot->flow, &slot->status);
    if (posted == 0)
        watch_flow(slot);
    else
        slot->flow = 0;
    return bmi_sm_posted(posted);
}

int data_moved(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    int result = bmi_sm_last(machine);
    slot->flow = 0;
    if (result < 0 || slot->request.op != SFS_WRITE)
        return result;
    int tracked = object_track(slot, slot->object);
    if (tracked == 0 && (slot->request.flags & SFS_LAST) != 0)
        object_keep(slot, slot->object);
    return tracked;
}

/* ---- KEEP ------------------------------------------------------------------------------------ */

int data_keep(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    int result = session_enter(slot);
    if (result < 0)
        return result;
    if (slot->request.flags & SFS_SYNCED)
        return bmi_sm_posted(
            bmi_job_trove_flush(slot->server->jobs, &slot->place, &options, NULL, &slot->status));
    return bmi_sm_posted(bmi_job_trove_size(slot->server->jobs, &slot->place, &slot->size, &options,
                                            NULL, &slot->status));
}

int data_kept(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    int result = object_track(slot, slot->request.object);
    if (result == 0)
        object_keep(slot, slot->request.object);
    return result;
}

/* ---- DROP ------------------------------------------------------------------------------------ */

int data_drop(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    for (int i = 0; i < slot->request.object_count; i++) {
        struct bmi_trove_place place = slot->place;
        place.object = slot->request.objects[i];
        object_forget(slot->server, place.object);
        int posted =
            bmi_job_trove_remove(slot->server->jobs, &place, 0, &options, NULL, &slot->statuses[i]);
        if (posted < 0)
            slot->statuses[i].error = posted;
    }
    return BMI_SM_DEFERRED;
}

/* An absent object counts as removed. */
int data_dropped(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    int result = bmi_sm_cancelled(machine) ? -BMI_ECANCEL : 0;
    for (int i = 0; i < slot->request.object_count; i++)
        if (slot->statuses[i].error < 0 && slot->statuses[i].error != -BMI_ENOENT)
            result = slot->statuses[i].error;
    return result;
}

/* ---- OBJECTS --------------------------------------------------------------------------------- */

int data_objects(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    slot->object = slot->request.object;
    return bmi_sm_posted(bmi_job_trove_objects(slot->server->jobs, &slot->place, &slot->object,
                                               slot->u.objects, OBJECTS_LISTED, &options, NULL,
                                               &slot->status));
}

int data_listed(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    slot->reply.entries = slot->entries;
    for (int i = 0; i < (int)slot->status.actual; i++) {
        struct sfs_object object = {.object = slot->u.objects[i]};
        object.used = object_used(slot->server, object.object);
        int64_t size = sfs_object_encode(&object, slot->entries + slot->reply.entries_size,
                                         SFS_REPLY_MAX - REPLY_RESERVE - slot->reply.entries_size);
        if (size < 0)
            return (int)size;
        slot->reply.entries_size += (size_t)size;
        slot->reply.entry_count++;
    }
    slot->reply.more = slot->status.actual == OBJECTS_LISTED;
    return BMI_SM_DONE;
}
