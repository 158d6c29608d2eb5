/* SPDX-License-Identifier: BSD-3-Clause
 *
 * endpoint.c - endpoints: made, their buffers posted, closed.
 *
 * Over tcp a process has one endpoint for each local address by which it reaches peers, or peers
 * reach it: the endpoint's name holds that address, and its connections go out from there. All of
 * them share one address vector and one completion queue. Other providers have a single endpoint.
 */
#include <stdio.h>
#include <unistd.h>

#include "ib.h"

int ib_buffer_post_locked(struct ib_buffer *buffer)
{
    struct ib_endpoint *endpoint = buffer->endpoint;
    void *descriptor = endpoint->registration ? fi_mr_desc(endpoint->registration) : NULL;
    struct iovec iov = {.iov_base = buffer->memory, .iov_len = IB_BUFFER_BYTES};
    struct fi_msg message = {.msg_iov = &iov,
                             .desc = &descriptor,
                             .iov_count = 1,
                             .addr = FI_ADDR_UNSPEC,
                             .context = &buffer->operation.context};
    return ib_error(fi_recvmsg(endpoint->id, &message, FI_MULTI_RECV));
}

int ib_reserve_post_locked(struct ib_endpoint *endpoint)
{
    endpoint->reserve.kind = IB_OPERATION_RESERVE;
    ssize_t status =
        fi_trecv(endpoint->id, NULL, 0, NULL, FI_ADDR_UNSPEC, 0, 0, &endpoint->reserve.context);
    endpoint->reserve_posted = status == 0;
    return ib_error(status);
}

static int buffers_post(struct ib_state *state, struct ib_endpoint *endpoint)
{
    struct ib_fabric *fabric = state->fabric;
    /* shm takes all messages of its queue in one pass. Those for which no buffer has room take
     * entries that posting a buffer needs as well; with all entries taken no buffer could be
     * posted any more. */
    endpoint->buffer_count = fabric->shared ? IB_BUFFERS_SHM : IB_BUFFERS;
    size_t size = (size_t)endpoint->buffer_count * IB_BUFFER_BYTES;
    endpoint->memory = aligned_alloc(IB_BUFFER_ALIGNMENT, size);
    if (!endpoint->memory)
        return -ENOMEM;
    int status = ib_region_own_locked(fabric, endpoint->memory, size, &endpoint->registration);
    if (status)
        return ib_step_failed(state, "register its message buffers", status);
    for (uint32_t i = 0; i < endpoint->buffer_count; i++) {
        endpoint->buffers[i] =
            (struct ib_buffer){.memory = endpoint->memory + (size_t)i * IB_BUFFER_BYTES,
                               .endpoint = endpoint,
                               .operation.kind = IB_OPERATION_RECEIVE};
        status = ib_buffer_post_locked(&endpoint->buffers[i]);
        if (status)
            return ib_step_failed(state, "take a buffer for messages", status);
    }
    status = fabric->shared ? ib_reserve_post_locked(endpoint) : 0;
    return status ? ib_step_failed(state, "take a reserve receive", status) : 0;
}

/* The option is set after enabling: shm keeps it in an object that enabling makes. */
static int enable(struct ib_state *state, struct ib_endpoint *endpoint)
{
    size_t least = IB_MESSAGE_BYTES;
    int status = fi_enable(endpoint->id);
    if (status)
        return ib_queues_failed(state, "enable the endpoint", status);
    status = fi_setopt(&endpoint->id->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least,
                       sizeof(least));
    if (status)
        return ib_step_failed(state, "take many messages in one buffer", status);
    endpoint->name_size = sizeof(endpoint->name);
    status = fi_getname(&endpoint->id->fid, endpoint->name, &endpoint->name_size);
    if (status)
        return ib_step_failed(state, "tell its name", status);
    if (state->fabric->shared)
        endpoint->name_hold = ib_provider_name_hold((const char *)endpoint->name);
    return 0;
}

static int endpoint_make(struct ib_state *state, struct ib_endpoint *endpoint, struct fi_info *info)
{
    const struct ib_fabric *fabric = state->fabric;
    int status = fi_endpoint(fabric->domain, info, &endpoint->id, NULL);
    if (status)
        return ib_step_failed(state, "make an endpoint", status);
    status = fi_ep_bind(endpoint->id, &fabric->queue->fid, FI_TRANSMIT | FI_RECV);
    if (status == 0)
        status = fi_ep_bind(endpoint->id, &fabric->addresses->fid, 0);
    if (status)
        return ib_step_failed(state, "bind the endpoint", status);
    status = enable(state, endpoint);
    return status ? status : buffers_post(state, endpoint);
}

static void endpoint_free(struct ib_endpoint *endpoint)
{
    ib_id_close(endpoint->id ? &endpoint->id->fid : NULL);
    ib_id_close(endpoint->registration ? &endpoint->registration->fid : NULL);
    free(endpoint->memory);
    if (endpoint->name_hold >= 0)
        close(endpoint->name_hold);
    free(endpoint);
}

void ib_endpoints_close(struct ib_fabric *fabric)
{
    for (struct ib_endpoint *at = fabric->endpoints; at; at = at->next) {
        ib_id_close(&at->id->fid);
        at->id = NULL;
    }
}

void ib_endpoints_free(struct ib_fabric *fabric)
{
    while (fabric->endpoints) {
        struct ib_endpoint *endpoint = fabric->endpoints;
        fabric->endpoints = endpoint->next;
        endpoint_free(endpoint);
    }
}

/* The endpoint of that local address; the first one if there can be no more endpoints. */
static struct ib_endpoint *endpoint_find(const struct ib_fabric *fabric, const char *host)
{
    uint32_t count = 0;
    for (struct ib_endpoint *at = fabric->endpoints; at; at = at->next, count++)
        if (!fabric->many || strcmp(at->host, host) == 0)
            return at;
    return count < IB_ENDPOINTS ? NULL : fabric->endpoints;
}

/* Allocates an endpoint and appends it to the list. Returns 0 or an errno. */
static int endpoint_add(struct ib_state *state, const char *host, struct ib_endpoint **out)
{
    struct ib_fabric *fabric = state->fabric;
    struct sigaction signals[IB_SIGNALS];
    struct fi_info *info = NULL;
    struct ib_endpoint *endpoint = calloc(1, sizeof(*endpoint)), **place = &fabric->endpoints;
    if (!endpoint)
        return -ENOMEM;
    endpoint->name_hold = -1;
    snprintf(endpoint->host, sizeof(endpoint->host), "%s", host);
    ib_signals_save(signals);
    int status = ib_provider_info(state, host[0] ? host : NULL, &info);
    if (status == 0)
        status = ib_provider_name_choose(info);
    if (status == 0 && info->addr_format != fabric->info->addr_format)
        status = -EAFNOSUPPORT;
    else if (status)
        ib_step_failed(state, "find a device", status);
    if (status == 0) {
        ib_lock(&state->fabric_lock);
        status = endpoint_make(state, endpoint, info);
        ib_unlock(&state->fabric_lock);
    }
    ib_signals_restore(signals);
    if (info)
        ib_library.freeinfo(info);
    if (status) {
        endpoint_free(endpoint);
        return status;
    }
    while (*place)
        place = &(*place)->next;
    *place = *out = endpoint;
    return 0;
}

int ib_endpoint_get(struct ib_state *state, const char *host, struct ib_endpoint **out)
{
    int status = ib_fabric_open(state, host);
    if (status)
        return status;
    if (!host)
        host = "";
    *out = endpoint_find(state->fabric, host);
    if (*out)
        return 0;
    status = endpoint_add(state, host, out);
    if (status != -EAFNOSUPPORT || !state->fabric->endpoints)
        return status;
    *out = state->fabric->endpoints; /* the peer finds that its family is another */
    return 0;
}
