/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fabric.c - the endpoint of a process: opened, its buffers posted, its peers' names, closed.
 *
 * It is opened when its address is known: by listen, or at the first connection, on the network by
 * which the rendezvous goes there. One allocation holds all buffers and slots, registered as a
 * whole where the provider wants local memory registered.
 */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ib.h"

int ib_error(ssize_t status)
{
    if (status >= 0)
        return 0;
    if (status == -ENOTCONN || status == -ESHUTDOWN || status == -ECONNABORTED)
        return -ECONNRESET; /* there was a connection, or nobody would have sent */
    if (status > -FI_ERRNO_OFFSET)
        return (int)status; /* libfabric's first ones are errno's */
    switch (-status) {
    case FI_ETOOSMALL:
    case FI_ETRUNC:
        return -EMSGSIZE;
    case FI_EOPBADSTATE:
        return -ECONNRESET;
    case FI_ENOEQ:
    case FI_EDOMAIN:
    case FI_ENOCQ:
    case FI_ENOAV:
        return -ENOBUFS;
    case FI_ENOKEY:
        return -EACCES;
    case FI_EOVERRUN:
    case FI_ENORX:
        return -ENOBUFS;
    default:
        return -EIO;
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Logs a failed step, with what can be done. Returns the errno. */
static int step_failed(const struct ib_state *state, const char *step, ssize_t status)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    bmi_method_log(BMI_LOG_ERROR, NULL, "%s: provider %s: cannot %s: %s", state->kind->scheme,
                   state->provider, step, ib_library.strerror((int)-status));
    if (status == -FI_ENOMEM && limit.rlim_cur != RLIM_INFINITY)
        bmi_method_log(BMI_LOG_ERROR, NULL,
                       "%s: the locked-memory limit is %llu bytes: raise it (ulimit -l), or lower "
                       "FI_UNIVERSE_SIZE, by which providers size their queues",
                       state->kind->scheme, (unsigned long long)limit.rlim_cur);
    return ib_error(status);
}

/* Likewise, where queues are made: too large ones are refused as a wrong argument. */
static int queues_failed(const struct ib_state *state, const char *step, ssize_t status)
{
    int error = step_failed(state, step, status);
    if (status != -FI_EINVAL)
        return error;
    bmi_method_log(BMI_LOG_ERROR, NULL,
                   "%s: the device may be too small for the queues, which the provider sizes by "
                   "FI_UNIVERSE_SIZE (256): set that to about the number of peers",
                   state->kind->scheme);
    return -ENOBUFS;
}

static void info_apply(struct ib_fabric *fabric)
{
    const struct fi_info *info = fabric->info;
    int mode = info->domain_attr->mr_mode;
    fabric->local_memory = (mode & FI_MR_LOCAL) != 0;
    fabric->virtual_addresses = (mode & FI_MR_VIRT_ADDR) != 0;
    fabric->provider_keys = (mode & FI_MR_PROV_KEY) != 0;
    if (bmi_method_setting("ofi_register_all"))
        fabric->local_memory = true;
    fabric->real_registration = fabric->local_memory || fabric->provider_keys;
    fabric->peer_copies = info->addr_format == FI_ADDR_STR; /* shm */
    /* shm takes all that is in its queue at one look, what no buffer has room for into entries that
     * posting a buffer needs as well: then none could be posted any more. */
    fabric->buffer_count = fabric->peer_copies ? IB_BUFFERS_SHM : IB_BUFFERS;
    /* What waits for the other process to copy it out is never given back where that dies. */
    fabric->message_max = fabric->peer_copies && info->tx_attr->inject_size < IB_MESSAGE_BYTES
                              ? info->tx_attr->inject_size
                              : IB_MESSAGE_BYTES;
    bool tcp = strncmp(info->fabric_attr->prov_name, "tcp", 3) == 0;
    fabric->tells_source = ib_provider_tells_source(info->fabric_attr->prov_name);
    fabric->breaks = ib_provider_connects(info->fabric_attr->prov_name);
    bool ordered = (info->tx_attr->msg_order & FI_ORDER_SAW) != 0;
    /* tcp's own completion is a write into a socket, whose connection may break, and be made again
     * before the next message. */
    fabric->put_delivers = tcp || !ordered;
    fabric->inject_max = info->tx_attr->inject_size;
    fabric->iovecs = info->tx_attr->iov_limit < IB_IOVECS ? info->tx_attr->iov_limit : IB_IOVECS;
    if (fabric->iovecs == 0)
        fabric->iovecs = 1;
    fabric->remote_iovecs =
        info->tx_attr->rma_iov_limit < IB_IOVECS ? info->tx_attr->rma_iov_limit : IB_IOVECS;
    if (fabric->remote_iovecs == 0)
        fabric->remote_iovecs = 1;
    fabric->piece_max =
        info->ep_attr->max_msg_size < IB_PIECE_BYTES ? info->ep_attr->max_msg_size : IB_PIECE_BYTES;
    fabric->pieces_most = IB_PIECES;
    if (fabric->peer_copies) { /* what the provider copies at once: see message_max */
        fabric->piece_max = fabric->message_max;
        fabric->pieces_most = IB_PIECES_SHM;
    }
}

/* The completion queue, with a descriptor to wait for where the provider can. */
static int queue_open(struct ib_state *state, struct ib_fabric *fabric)
{
    struct fi_cq_attr attributes = {.size = fabric->peer_copies ? IB_QUEUE_SHM : 4 * IB_SLOTS,
                                    .format = FI_CQ_FORMAT_DATA,
                                    .wait_obj = FI_WAIT_FD};
    int status = fi_cq_open(fabric->domain, &attributes, &fabric->queue, NULL);
    if (status == 0) {
        status = fi_control(&fabric->queue->fid, FI_GETWAIT, &fabric->wait_fd);
        return status ? step_failed(state, "tell what to wait for", status) : 0;
    }
    if (status != -FI_ENOSYS)
        return queues_failed(state, "open a completion queue", status);
    fabric->wait_fd = -1; /* the provider has none: shm */
    attributes.wait_obj = FI_WAIT_NONE;
    status = fi_cq_open(fabric->domain, &attributes, &fabric->queue, NULL);
    return status ? queues_failed(state, "open a completion queue", status) : 0;
}

static int objects_open(struct ib_state *state, struct ib_fabric *fabric)
{
    struct fi_av_attr table = {.type = FI_AV_TABLE};
    int status = ib_library.fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
    if (status)
        return step_failed(state, "open its fabric", status);
    status = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
    if (status)
        return step_failed(state, "open its device", status);
    status = queue_open(state, fabric);
    if (status)
        return status;
    status = fi_av_open(fabric->domain, &table, &fabric->addresses, NULL);
    if (status)
        return step_failed(state, "open an address vector", status);
    status = fi_endpoint(fabric->domain, fabric->info, &fabric->endpoint, NULL);
    if (status)
        return step_failed(state, "make an endpoint", status);
    status = fi_ep_bind(fabric->endpoint, &fabric->queue->fid, FI_TRANSMIT | FI_RECV);
    if (status == 0)
        status = fi_ep_bind(fabric->endpoint, &fabric->addresses->fid, 0);
    return status ? step_failed(state, "bind the endpoint", status) : 0;
}

/* The option comes after enabling: shm keeps it in what it makes then. */
static int endpoint_enable(struct ib_state *state, struct ib_fabric *fabric)
{
    size_t least = IB_MESSAGE_BYTES;
    int status = fi_enable(fabric->endpoint);
    if (status)
        return queues_failed(state, "enable the endpoint", status);
    status = fi_setopt(&fabric->endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least,
                       sizeof(least));
    if (status)
        return step_failed(state, "take many messages in one buffer", status);
    fabric->name_size = sizeof(fabric->name);
    status = fi_getname(&fabric->endpoint->fid, fabric->name, &fabric->name_size);
    if (status)
        return step_failed(state, "tell its name", status);
    if (fabric->peer_copies)
        fabric->name_hold = ib_provider_name_hold((const char *)fabric->name);
    return 0;
}

void ib_slots_add_locked(struct ib_fabric *fabric, struct ib_slot *slots, int count,
                         uint8_t *memory, struct fid_mr *registration)
{
    void *descriptor = registration ? fi_mr_desc(registration) : NULL;
    for (int i = 0; i < count; i++, memory += IB_MESSAGE_BYTES) {
        slots[i] = (struct ib_slot){.memory = memory,
                                    .descriptor = descriptor,
                                    .next = fabric->free_slots,
                                    .operation.kind = IB_OPERATION_SEND};
        fabric->free_slots = &slots[i];
    }
}

int ib_slots_make_locked(struct ib_fabric *fabric)
{
    struct ib_slots *more = calloc(1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    int status = fabric->local_memory
                     ? fi_mr_reg(fabric->domain, more->memory, sizeof(more->memory), FI_SEND, 0, 0,
                                 0, &more->registration, NULL)
                     : 0;
    if (status) {
        free(more);
        return ib_error(status);
    }
    ib_slots_add_locked(fabric, more->slots, IB_SLOTS_MORE, more->memory[0], more->registration);
    more->next = fabric->more_slots;
    fabric->more_slots = more;
    return 0;
}

static int memory_make(struct ib_state *state, struct ib_fabric *fabric)
{
    fabric->memory_size =
        (size_t)fabric->buffer_count * IB_BUFFER_BYTES + (size_t)IB_SLOTS * IB_MESSAGE_BYTES;
    fabric->memory =
        mmap(NULL, fabric->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fabric->memory == MAP_FAILED) {
        fabric->memory = NULL;
        return -ENOMEM;
    }
    uint8_t *at = fabric->memory;
    for (uint32_t i = 0; i < fabric->buffer_count; i++, at += IB_BUFFER_BYTES)
        fabric->buffers[i] =
            (struct ib_buffer){.memory = at, .operation.kind = IB_OPERATION_RECEIVE};
    int status = fabric->local_memory
                     ? fi_mr_reg(fabric->domain, fabric->memory, fabric->memory_size,
                                 FI_SEND | FI_RECV, 0, 0, 0, &fabric->memory_registration, NULL)
                     : 0;
    if (status)
        return step_failed(state, "register its message buffers", status);
    ib_slots_add_locked(fabric, fabric->slots, IB_SLOTS, at, fabric->memory_registration);
    return 0;
}

int ib_buffer_post_locked(struct ib_fabric *fabric, struct ib_buffer *buffer)
{
    void *descriptor = fabric->memory_registration ? fi_mr_desc(fabric->memory_registration) : NULL;
    struct iovec iov = {.iov_base = buffer->memory, .iov_len = IB_BUFFER_BYTES};
    struct fi_msg message = {.msg_iov = &iov,
                             .desc = &descriptor,
                             .iov_count = 1,
                             .addr = FI_ADDR_UNSPEC,
                             .context = &buffer->operation.context};
    return ib_error(fi_recvmsg(fabric->endpoint, &message, FI_MULTI_RECV));
}

int ib_spare_post_locked(struct ib_fabric *fabric)
{
    fabric->spare.kind = IB_OPERATION_SPARE;
    ssize_t status =
        fi_trecv(fabric->endpoint, NULL, 0, NULL, FI_ADDR_UNSPEC, 0, 0, &fabric->spare.context);
    fabric->spare_posted = status == 0;
    return ib_error(status);
}

static int buffers_post(struct ib_state *state, struct ib_fabric *fabric)
{
    for (uint32_t i = 0; i < fabric->buffer_count; i++) {
        int status = ib_buffer_post_locked(fabric, &fabric->buffers[i]);
        if (status)
            return step_failed(state, "take a buffer for messages", status);
    }
    int status = fabric->peer_copies ? ib_spare_post_locked(fabric) : 0;
    return status ? step_failed(state, "take a spare receive", status) : 0;
}

static void id_close(struct fid *id)
{
    if (id)
        fi_close(id);
}

static void more_slots_free(struct ib_fabric *fabric)
{
    while (fabric->more_slots) {
        struct ib_slots *more = fabric->more_slots;
        fabric->more_slots = more->next;
        id_close(more->registration ? &more->registration->fid : NULL);
        free(more);
    }
}

/* The endpoint first, so that nothing is under way when its memory goes. */
static void fabric_free(struct ib_state *state, struct ib_fabric *fabric)
{
    id_close(fabric->endpoint ? &fabric->endpoint->fid : NULL);
    if (state->fabric)
        ib_pieces_free(state);
    ib_memory_stop(state);
    state->fabric = NULL;
    id_close(fabric->memory_registration ? &fabric->memory_registration->fid : NULL);
    more_slots_free(fabric);
    id_close(fabric->addresses ? &fabric->addresses->fid : NULL);
    id_close(fabric->queue ? &fabric->queue->fid : NULL);
    id_close(fabric->domain ? &fabric->domain->fid : NULL);
    id_close(fabric->fabric ? &fabric->fabric->fid : NULL);
    if (fabric->name_hold >= 0)
        close(fabric->name_hold);
    if (fabric->memory)
        munmap(fabric->memory, fabric->memory_size);
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
            BMI_LOG_WARN, NULL,
            "%s: with libfabric %u.%u, a process that is killed while it sends can block "
            "its peers for ever. Within a host use gm://, or libfabric 1.18",
            state->kind->scheme, FI_MAJOR(version), FI_MINOR(version));
}

static void opened_log(const struct ib_state *state, const struct ib_fabric *fabric)
{
    bmi_method_log(
        BMI_LOG_INFO, NULL,
        "%s: provider %s, device %s; local memory %s, regions by %s, keys of %s; waits for %s",
        state->kind->scheme, fabric->info->fabric_attr->prov_name, fabric->info->domain_attr->name,
        fabric->local_memory ? "registered" : "plain",
        fabric->virtual_addresses ? "address" : "offset",
        fabric->provider_keys ? "the provider" : "ours",
        fabric->wait_fd >= 0 ? "its descriptor" : "its wake-up flag");
    if (fabric->peer_copies)
        locks_warn(state);
}

/* Makes all that is libfabric's. The program keeps its signals. */
static int fabric_make(struct ib_state *state, struct ib_fabric *fabric, const char *host)
{
    struct ib_signals signals;
    ib_signals_save(&signals);
    int status = ib_provider_info(state, host, &fabric->info);
    if (status) {
        step_failed(state, "find a device", status);
    } else {
        info_apply(fabric);
        status = objects_open(state, fabric);
    }
    if (status == 0)
        status = endpoint_enable(state, fabric);
    if (status == 0)
        status = memory_make(state, fabric);
    if (status == 0)
        status = buffers_post(state, fabric);
    ib_signals_restore(&signals);
    return status;
}

int ib_fabric_open(struct ib_state *state, const char *host)
{
    if (state->fabric)
        return 0;
    struct ib_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return -ENOMEM;
    fabric->name_hold = -1;
    int status = ib_memory_start(state);
    if (status == 0)
        status = fabric_make(state, fabric, host);
    if (status)
        goto undo_fabric;
    state->wait_watch = (struct bmi_watch){.fd = fabric->wait_fd, .ready = ib_wait_ready};
    if (fabric->wait_fd >= 0)
        status = bmi_method_watch_add(&state->wait_watch, EPOLLIN);
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
        bmi_method_watch_remove(&state->wait_watch);
    while (state->peers) {
        struct ib_peer *peer = state->peers;
        state->peers = peer->next;
        free(peer);
    }
    while (state->idle_peers) {
        struct ib_peer *peer = state->idle_peers;
        state->idle_peers = peer->next;
        free(peer);
    }
    fabric_free(state, fabric);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static struct ib_peer **peer_find(struct ib_peer **list, const uint8_t *name, uint32_t size)
{
    while (*list && ((*list)->size != size || memcmp((*list)->name, name, size) != 0))
        list = &(*list)->next;
    return list;
}

/* Whether the name can be taken out of the vector, and a connection with it. libfabric 1.17's rxm
 * crashes where it is to cut a connection that failed before it came under way. Where a post has
 * failed one more tells: it has the connection tried again, or says that there can be none. It is
 * of a message with nobody's token. fabric_lock. */
static bool peer_removable_locked(struct ib_fabric *fabric, const struct ib_peer *peer)
{
    enum { LOOKS = 2 }; /* the first may be what finds that the last try was turned down */
    static const uint8_t nobodys[IB_PREFIX];
    size_t size = sizeof(nobodys) < fabric->inject_max ? sizeof(nobodys) : fabric->inject_max;
    ssize_t status = -FI_EAGAIN;
    if (!fabric->breaks || !peer->doubtful)
        return true;
    for (int i = 0; i < LOOKS && status == -FI_EAGAIN; i++)
        status = fi_inject(fabric->endpoint, nobodys, size, peer->address);
    return status == 0 || status == -FI_EAGAIN;
}

/* Takes the name out of the vector. Returns false if it stays: then there is no connection. */
static bool peer_remove(struct ib_state *state, struct ib_peer *peer)
{
    struct ib_fabric *fabric = state->fabric;
    ib_lock(&state->fabric_lock);
    bool removable = peer_removable_locked(fabric, peer);
    if (removable)
        fi_av_remove(fabric->addresses, &peer->address, 1, 0);
    ib_unlock(&state->fabric_lock);
    return removable;
}

static void idle_insert(struct ib_state *state, struct ib_peer *peer)
{
    peer->next = state->idle_peers;
    state->idle_peers = peer;
    state->idle_count++;
}

/* Forgets the name that was not used for the longest time. One that has to stay in the vector is
 * kept as if it had been used: inserted once more it would be counted there, and never removed. */
static void oldest_forget(struct ib_state *state)
{
    struct ib_peer **last = &state->idle_peers;
    while ((*last)->next)
        last = &(*last)->next;
    struct ib_peer *peer = *last;
    *last = NULL;
    state->idle_count--;
    if (peer_remove(state, peer))
        free(peer);
    else
        idle_insert(state, peer);
}

static int name_insert(struct ib_state *state, struct ib_peer *peer)
{
    ib_lock(&state->fabric_lock);
    int inserted = fi_av_insert(state->fabric->addresses, peer->name, 1, &peer->address, 0, NULL);
    ib_unlock(&state->fabric_lock);
    return inserted == 1 ? 0 : inserted == -FI_ENOMEM ? -ENOMEM : -EADDRNOTAVAIL;
}

/* One that is not known yet. shm has room for so many, a name that is kept among them. */
static int peer_new(struct ib_state *state, const uint8_t *name, uint32_t size,
                    struct ib_peer **out)
{
    struct ib_peer *peer = malloc(sizeof(*peer) + size);
    if (!peer)
        return -ENOMEM;
    peer->size = size;
    peer->doubtful = false;
    atomic_init(&peer->settled, false);
    memcpy(peer->name, name, size);
    int status = name_insert(state, peer);
    if (status && state->idle_peers && state->fabric->peer_copies) {
        oldest_forget(state);
        status = name_insert(state, peer);
    }
    if (status)
        free(peer);
    else
        *out = peer;
    return status;
}

int ib_peer_get(struct ib_state *state, const uint8_t *name, uint32_t size, struct ib_peer **out)
{
    struct ib_peer *peer = *peer_find(&state->peers, name, size);
    if (peer) {
        peer->users++;
        *out = peer;
        return 0;
    }
    struct ib_peer **idle = peer_find(&state->idle_peers, name, size);
    int status = 0;
    if (*idle) {
        peer = *idle;
        *idle = peer->next;
        state->idle_count--;
    } else {
        status = peer_new(state, name, size, &peer);
    }
    if (status)
        return status;
    peer->users = 1;
    peer->broken = false;
    peer->next = state->peers;
    state->peers = peer;
    *out = peer;
    return 0;
}

static bool is_open(const struct ib_link *link)
{
    return link->phase < IB_ENDING;
}

static bool is_shut_down(const struct ib_link *link)
{
    return link->phase == IB_ENDING && !link->taken_down;
}

/* A link that uses the peer and is as asked for; NULL: none. */
static struct ib_link *peer_link(struct ib_state *state, const struct ib_peer *peer,
                                 bool (*is)(const struct ib_link *))
{
    ib_lock(&state->list_lock);
    struct ib_link *link = state->links;
    while (link && (link->peer != peer || !is(link)))
        link = link->list_next;
    ib_unlock(&state->list_lock);
    return link;
}

void ib_peer_break(struct ib_state *state, struct ib_peer *peer, int status)
{
    struct ib_link *link;
    if (peer->broken || peer->users == 0)
        return;
    peer->broken = true;
    peer->users++;
    while ((link = peer_link(state, peer, is_open)) != NULL)
        ib_link_shut_down(link, status); /* nobody posts any more */
    bool removed = peer_remove(state, peer);
    if (removed)
        *peer_find(&state->peers, peer->name, peer->size) = peer->next;
    while ((link = peer_link(state, peer, is_shut_down)) != NULL)
        ib_link_take_down(link);
    peer->broken = removed;
    ib_peer_put(state, peer);
}

/* A provider's connection may carry a new link's messages by now, which removing its name would
 * cut. A name of shm has none, and takes one of few places, and a dead process's memory stays
 * mapped: it goes at once, unless what was let go of may come back, whose end is told there. */
static bool stays(struct ib_state *state)
{
    ib_lock(&state->fabric_lock);
    bool any = !state->fabric->peer_copies || state->fabric->lost;
    ib_unlock(&state->fabric_lock);
    return any;
}

/* The last link to a process has gone; the process may come again. */
void ib_peer_put(struct ib_state *state, struct ib_peer *peer)
{
    enum { FORGOTTEN = 2 }; /* for each that comes, so that those that had to stay go, too */
    if (--peer->users > 0)
        return;
    if (peer->broken) {
        free(peer);
        return;
    }
    *peer_find(&state->peers, peer->name, peer->size) = peer->next;
    if (!stays(state) && peer_remove(state, peer)) {
        free(peer);
        return;
    }
    idle_insert(state, peer);
    for (int i = 0; i < FORGOTTEN && state->idle_count > IB_IDLE_PEERS; i++)
        oldest_forget(state);
}
