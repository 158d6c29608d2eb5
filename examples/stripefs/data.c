/* SPDX-License-Identifier: BSD-3-Clause
 *
 * data.c - a server's requests for the bytes of files: WRITE, READ, KEEP, DROP, OBJECTS.
 *
 * An object that a client writes belongs to its session (session.c) until the client has
 * disconnected. Then it is removed, unless the client has asked to keep it: the client does so
 * before it gives the object a name, so that no name ever lacks its bytes.
 */
#include <stdlib.h>

#include "server.h"

/* ---- WRITE, READ ----------------------------------------------------------------------------- */

/* Choices: 0: flow; 1: flow, without creating the object: a removed object must not appear again
 * without its earlier bytes. */
int data_create(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    served->object = served->request.object;
    int result = session_enter(served);
    if (result == 0 && (served->request.flags & SFS_MORE) != 0)
        return 1;
    if (result == 0)
        result = object_track(served, served->object);
    if (result < 0)
        return result;
    return bmi_sm_posted(bmi_job_trove_create(served->server->jobs, &served->place, &served->object,
                                              0, BMI_SM_MINE(machine), NULL, &served->status));
}

int data_flow(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct sfs_request *request = &served->request;
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK};
    struct bmi_flow_endpoint storage = {.kind = BMI_FLOW_STORAGE};
    bool write = request->op == SFS_WRITE;
    network.u.network.address = served->client;
    network.u.network.tag = (bmi_msg_tag_t)request->tag;
    storage.u.storage.place = served->place;
    served->stripe.stripe_size = request->stripe;
    for (uint32_t i = 0; i < request->count; i++)
        served->extents[i] =
            (struct bmi_flow_extent){.offset = (bmi_size_t)request->u.extents[i].offset,
                                     .size = (bmi_size_t)request->u.extents[i].size,
                                     .count = 1};
    struct bmi_flow_description description = {
        .source = write ? network : storage,
        .destination = write ? storage : network,
        .extents = served->extents,
        .extent_count = (int)request->count,
        .distribution = &bmi_flow_simple_stripe,
        .distribution_parameters = &served->stripe,
        .server = request->part,
        .servers = request->servers,
        .flags = write ? BMI_FLOW_DRAIN : BMI_FLOW_ZEROS,
        .buffer_count = 4,
    };
    int posted = bmi_job_flow(served->server->jobs, &description, BMI_SM_MINE(machine),
                              &served->flow, &served->status);
    if (posted == 0)
        watch_flow(served);
    return bmi_sm_posted(posted);
}

int data_moved(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    int result = bmi_sm_last(machine);
    unwatch_flow(served);
    if (result < 0 || served->request.op != SFS_WRITE)
        return result;
    bmi_pack_u64(served->answer, served->server->start);
    int tracked = object_track(served, served->object);
    if (tracked == 0 && (served->request.flags & SFS_LAST) != 0)
        object_keep(served, served->object);
    return tracked;
}

/* ---- KEEP ------------------------------------------------------------------------------------ */

int data_keep(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    int result = session_enter(served);
    if (result < 0)
        return result;
    if (served->request.flags & SFS_SYNCED)
        return bmi_sm_posted(bmi_job_trove_flush(served->server->jobs, &served->place,
                                                 BMI_SM_MINE(machine), NULL, &served->status));
    return bmi_sm_posted(bmi_job_trove_size(served->server->jobs, &served->place, &served->size,
                                            BMI_SM_MINE(machine), NULL, &served->status));
}

int data_kept(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    (void)machine;
    int result = object_track(served, served->request.object);
    bmi_pack_u64(served->answer, served->server->start);
    if (result == 0)
        object_keep(served, served->request.object);
    return result;
}

/* ---- DROP ------------------------------------------------------------------------------------ */

int data_drop(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    struct bmi_job_status *statuses = served->room;
    if (statuses == NULL)
        statuses = served->room = calloc(served->request.count, sizeof *statuses);
    if (statuses == NULL)
        return -BMI_ENOMEM;
    for (uint32_t i = 0; i < served->request.count; i++) {
        struct bmi_trove_place place = served->place;
        place.object = served->request.u.objects[i];
        object_forget(served->server, place.object);
        int posted = bmi_job_trove_remove(served->server->jobs, &place, 0, BMI_SM_MINE(machine),
                                          NULL, &statuses[i]);
        if (posted < 0)
            statuses[i].error = posted;
    }
    return BMI_SM_DEFERRED;
}

/* An absent object counts as removed. Choices: 0: reply; 1: again: the client has gone, and would
 * leave objects that nobody knows. */
int data_dropped(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct bmi_job_status *statuses = served->room;
    int result = 0;
    if (statuses == NULL)
        return bmi_sm_last(machine);
    for (uint32_t i = 0; i < served->request.count; i++)
        if (statuses[i].error < 0 && statuses[i].error != -BMI_ENOENT)
            result = statuses[i].error;
    if (result != -BMI_ECANCEL || served->again)
        return result;
    served->again = true;
    return 1;
}

/* ---- OBJECTS --------------------------------------------------------------------------------- */

int data_objects(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    served->room = malloc(OBJECTS_LISTED * sizeof(bmi_trove_object_id_t));
    served->object = served->request.object;
    if (served->room == NULL)
        return -BMI_ENOMEM;
    return bmi_sm_posted(bmi_job_trove_objects(served->server->jobs, &served->place,
                                               &served->object, served->room, OBJECTS_LISTED,
                                               BMI_SM_MINE(machine), NULL, &served->status));
}

int data_listed(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const bmi_trove_object_id_t *objects = served->room;
    size_t count = (size_t)served->status.actual;
    uint8_t used[OBJECTS_LISTED];
    (void)machine;
    for (size_t i = 0; i < count; i++)
        used[i] = object_used(served->server, objects[i]);
    sfs_objects_pack(served->answer, objects, used, count, count == OBJECTS_LISTED);
    return BMI_SM_DONE;
}
