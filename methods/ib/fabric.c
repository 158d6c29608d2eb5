/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fabric.c - the objects that a process has once for each scheme: device, address vector,
 * completion queue, slots for outgoing messages.
 *
 * The fabric is opened by listen, or at the first connection. endpoint.c makes its endpoints.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ib.h"

int ib_error(ssize_t status)
{
    if (status >= 0)
        return 0;
    if (status == -ENOTCONN || status == -ESHUTDOWN || status == -ECONNABORTED)
        return -ECONNRESET; /* posts fail so only after a connection was made */
    if (status > -FI_ERRNO_OFFSET)
        return (int)status; /* libfabric's first codes are errno's */
    switch (-status) {
    case FI_ETOOSMALL:
    case FI_ETRUNC:
        return -EMSGSIZE;
    case FI_EOPBADSTATE:
        return -ECONNRESET;
    case FI_ENOKEY:
        return -EACCES;
    case FI_ENOEQ:
    case FI_EDOMAIN:
    case FI_ENOCQ:
    case FI_ENOAV:
    case FI_EOVERRUN:
    case FI_ENORX:
        return -ENOBUFS;
    default:
        return -EIO;
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

bool ib_descriptors_lack(int most)
{
    int descriptors[IB_DESCRIPTORS], count = 0;
    assert(most <= IB_DESCRIPTORS);
    while (count < most && (descriptors[count] = eventfd(0, EFD_CLOEXEC)) >= 0)
        count++;
    bool lack = count < most && (errno == EMFILE || errno == ENFILE);
    while (count > 0)
        close(descriptors[--count]);
    return lack;
}

int ib_step_failed(const struct ib_state *state, const char *step, ssize_t status)
{
    if (status == -FI_EIO && ib_descriptors_lack(IB_DESCRIPTORS)) /* providers report that so */
        status = -FI_EMFILE;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    bmi_method_log(state->instance, BMI_LOG_ERROR, NULL, "%s: provider %s: cannot %s: %s",
                   state->kind->scheme, state->provider, step, ib_library.strerror((int)-status));
    if (status == -FI_ENOMEM && limit.rlim_cur != RLIM_INFINITY)
        bmi_method_log(state->instance, BMI_LOG_ERROR, NULL,
                       "%s: the locked-memory limit is %llu bytes: raise it (ulimit -l), or lower "
                       "FI_UNIVERSE_SIZE, by which providers size their queues",
                       state->kind->scheme, (unsigned long long)limit.rlim_cur);
    return status == -FI_EAGAIN ? -ENOMEM : ib_error(status); /* EAGAIN: no room for a thread */
}

int ib_queues_failed(const struct ib_state *state, const char *step, ssize_t status)
{
    int error = ib_step_failed(state, step, status);
    if (status != -FI_EINVAL)
        return error;
    bmi_method_log(state->instance, BMI_LOG_ERROR, NULL,
                   "%s: the device may be too small for the queues, which the provider sizes by "
                   "FI_UNIVERSE_SIZE (256): set that to about the number of peers",
                   state->kind->scheme);
    return -ENOBUFS;
}

static size_t iovecs_of(size_t limit)
{
    return limit == 0 ? 1 : limit < IB_IOVECS ? limit : IB_IOVECS;
}

static void info_apply(struct bmi_instance *instance, struct ib_fabric *fabric)
{
    const struct fi_info *info = fabric->info;
    int mode = info->domain_attr->mr_mode;
    fabric->local_memory = (mode & FI_MR_LOCAL) || bmi_method_setting(instance, "ofi_register_all");
    fabric->virtual_addresses = (mode & FI_MR_VIRT_ADDR) != 0;
    fabric->provider_keys = (mode & FI_MR_PROV_KEY) != 0;
    fabric->real_registration = fabric->local_memory || fabric->provider_keys;
    fabric->shared = info->addr_format == FI_ADDR_STR; /* shm */
    fabric->many = strncmp(info->fabric_attr->prov_name, "tcp", 3) == 0;
    /* A larger message waits until the other process copies it, and is never returned if that
     * process dies. */
    fabric->message_max = fabric->shared && info->tx_attr->inject_size < IB_MESSAGE_BYTES
                              ? info->tx_attr->inject_size
                              : IB_MESSAGE_BYTES;
    fabric->tells_source = ib_provider_tells_source(info->fabric_attr->prov_name);
    fabric->breaks = ib_provider_connects(info->fabric_attr->prov_name);
    fabric->inject_max = info->tx_attr->inject_size;
    fabric->iovecs = iovecs_of(info->tx_attr->iov_limit);
    fabric->remote_iovecs = iovecs_of(info->tx_attr->rma_iov_limit);
    fabric->piece_max =
        info->ep_attr->max_msg_size < IB_PIECE_BYTES ? info->ep_attr->max_msg_size : IB_PIECE_BYTES;
}

/* Opens the completion queue, with a descriptor to wait on if the provider has one. */
static int queue_open(struct ib_state *state, struct ib_fabric *fabric)
{
    struct fi_cq_attr attributes = {.size = fabric->shared ? IB_QUEUE_SHM : 4 * IB_SLOTS,
                                    .format = FI_CQ_FORMAT_DATA,
                                    .wait_obj = FI_WAIT_FD};
    int status = fi_cq_open(fabric->domain, &attributes, &fabric->queue, NULL);
    fabric->wait_fd = -1;
    if (status == 0) {
        status = fi_control(&fabric->queue->fid, FI_GETWAIT, &fabric->wait_fd);
        return status ? ib_step_failed(state, "tell what to wait for", status) : 0;
    }
    attributes.wait_obj = FI_WAIT_NONE;
    if (status == -FI_ENOSYS) /* shm */
        status = fi_cq_open(fabric->domain, &attributes, &fabric->queue, NULL);
    return status ? ib_queues_failed(state, "open a completion queue", status) : 0;
}

static int objects_open(struct ib_state *state, struct ib_fabric *fabric, const char *host)
{
    struct fi_av_attr table = {.type = FI_AV_TABLE};
    int status = ib_provider_info(state, host, &fabric->info);
    if (status)
        return ib_step_failed(state, "find a device", status);
    info_apply(state->instance, fabric);
    status = ib_library.fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
    if (status)
        return ib_step_failed(state, "open its fabric", status);
    status = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
    if (status)
        return ib_step_failed(state, "open its device", status);
    status = queue_open(state, fabric);
    if (status)
        return status;
    status = fi_av_open(fabric->domain, &table, &fabric->addresses, NULL);
    return status ? ib_step_failed(state, "open an address vector", status) : 0;
}

int ib_slots_make_locked(struct ib_fabric *fabric)
{
    struct ib_slots *more = calloc(1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    int status =
        ib_region_own_locked(fabric, more->memory, sizeof(more->memory), &more->registration);
    if (status) {
        free(more);
        return status;
    }
    for (int i = 0; i < IB_SLOTS_MADE; i++) {
        more->slots[i] =
            (struct ib_slot){.memory = more->memory[i],
                             .descriptor =
                                 more->registration ? fi_mr_desc(more->registration) : NULL,
                             .next = fabric->free_slots,
                             .operation.kind = IB_OPERATION_SEND};
        fabric->free_slots = &more->slots[i];
    }
    more->next = fabric->slots;
    fabric->slots = more;
    return 0;
}

void ib_id_close(struct fid *id)
{
    if (id)
        fi_close(id);
}

static void slots_free(struct ib_fabric *fabric)
{
    while (fabric->slots) {
        struct ib_slots *slots = fabric->slots;
        fabric->slots = slots->next;
        ib_id_close(slots->registration ? &slots->registration->fid : NULL);
        free(slots);
    }
}

/* Closes the endpoints first, so that no operation is under way when its memory is freed. */
static void fabric_free(struct ib_state *state, struct ib_fabric *fabric)
{
    ib_endpoints_close(fabric);
    if (state->fabric)
        ib_pieces_free(state);
    ib_memory_stop(state);
    state->fabric = NULL;
    slots_free(fabric);
    ib_endpoints_free(fabric);
    ib_id_close(fabric->addresses ? &fabric->addresses->fid : NULL);
    ib_id_close(fabric->queue ? &fabric->queue->fid : NULL);
    ib_id_close(fabric->domain ? &fabric->domain->fid : NULL);
    ib_id_close(fabric->fabric ? &fabric->fabric->fid : NULL);
    if (fabric->info)
        ib_library.freeinfo(fabric->info);
    free(fabric);
}

/* Before version 1.18, shm's senders take a spin lock in the receiver's memory. */
static void locks_warn(const struct ib_state *state)
{
    static atomic_bool warned;
    uint32_t version = ib_library.version();
    bool locks = FI_MAJOR(version) == 1 && FI_MINOR(version) < 18;
    if (locks && !atomic_exchange(&warned, true))
        bmi_method_log(
            state->instance, BMI_LOG_WARN, NULL,
            "%s: with libfabric %u.%u, a process that is killed while it sends can block "
            "its peers for ever. Within a host use gm://, or libfabric 1.18",
            state->kind->scheme, FI_MAJOR(version), FI_MINOR(version));
}

static void opened_log(const struct ib_state *state, const struct ib_fabric *fabric)
{
    bmi_method_log(
        state->instance, BMI_LOG_INFO, NULL,
        "%s: provider %s, device %s; local memory %s, regions by %s, keys of %s; waits for %s",
        state->kind->scheme, fabric->info->fabric_attr->prov_name, fabric->info->domain_attr->name,
        fabric->local_memory ? "registered" : "plain",
        fabric->virtual_addresses ? "address" : "offset",
        fabric->provider_keys ? "the provider" : "ours",
        fabric->wait_fd >= 0 ? "its descriptor" : "its wake-up flag");
    if (fabric->shared)
        locks_warn(state);
}

int ib_fabric_open(struct ib_state *state, const char *host)
{
    if (state->fabric)
        return 0;
    struct ib_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return -ENOMEM;
    struct sigaction signals[IB_SIGNALS];
    ib_signals_save(signals); /* the program keeps its own */
    int status = ib_memory_start(state);
    if (status == 0)
        status = objects_open(state, fabric, host);
    ib_signals_restore(signals);
    if (status)
        goto undo_fabric;
    state->wait_watch = (struct bmi_watch){.fd = fabric->wait_fd, .ready = ib_wait_ready};
    if (fabric->wait_fd >= 0)
        status = bmi_method_watch_add(state->instance, &state->wait_watch, EPOLLIN);
    else if (!state->doorbell)
        status = ib_doorbell_make(&state->doorbell);
    if (status)
        goto undo_fabric;
    opened_log(state, fabric);
    state->fabric = fabric;
    atomic_store(&state->registers, fabric->real_registration);
    return 0;

undo_fabric:
    fabric_free(state, fabric);
    return status;
}

void ib_fabric_close(struct ib_state *state)
{
    struct ib_fabric *fabric = state->fabric;
    if (!fabric)
        return;
    if (fabric->wait_fd >= 0)
        bmi_method_watch_remove(state->instance, &state->wait_watch);
    while (state->peers) {
        struct ib_peer *peer = state->peers;
        state->peers = peer->next;
        free(peer);
    }
    fabric_free(state, fabric);
}
