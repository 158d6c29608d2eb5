/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer.c - puts and gets: a transfer is moved in pieces, each one operation of the network.
 *
 * A piece has as many remote regions and local segments as the provider takes. Pieces are posted in
 * the order of the transfers. A transfer is over when the network has returned all pieces, with the
 * status of the first that failed; then the poller reports it to the core.
 *
 * A put requests FI_DELIVERY_COMPLETE: later messages may overtake it, and tcp would complete it
 * when it was written into a socket, whose connection may then break unnoticed.
 *
 * If the network does not return the pieces of a dead link, no transfer waits for them after a
 * while. Their memory is freed when the network returns them, or with the fabric.
 *
 * Over shm there are no puts. The receiver reads the sender's memory itself (process_vm_readv).
 */
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ib.h"

/* A position in a transfer's remote regions. */
struct place {
    uint32_t region;
    uint64_t offset;
};

/* How far a transfer is: kept in its method_private. Its `local` is the memory that is not posted
 * yet. send_lock. */
struct advance {
    uint32_t pieces; /* with the network */
    int status;      /* of the first piece that failed */
    struct place remote;
};

_Static_assert(sizeof(struct advance) <= sizeof(((struct bmi_transfer *)0)->method_private),
               "no further memory is needed");

struct ib_piece {
    struct ib_operation operation;
    struct cds_hlist_node listed;  /* fabric_lock: in fabric->pieces */
    struct bmi_transfer *transfer; /* of the link, which may have gone */
    uint32_t count, remote_count;
    struct fi_rma_iov remote[IB_IOVECS];
    struct iovec iov[IB_IOVECS];
    struct bmi_registration *registrations[IB_IOVECS];
};

static struct advance *advance_of(struct bmi_transfer *transfer)
{
    return (void *)transfer->method_private;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void piece_free(struct ib_state *state, struct ib_piece *piece)
{
    for (uint32_t i = 0; i < piece->count; i++)
        if (piece->registrations[i])
            bmi_method_cache_put(state->cache, piece->registrations[i], piece->iov[i].iov_base,
                                 piece->iov[i].iov_len);
    free(piece);
}

void ib_pieces_free(struct ib_state *state)
{
    struct ib_piece *piece, *next;
    cds_hlist_for_each_entry_safe_2(piece, next, &state->fabric->pieces, listed)
        piece_free(state, piece);
}

/* Outputs the next remote regions, at most `max` of them and `limit` bytes, and advances `place`.
 * Returns their number. */
static size_t remote_take(const struct bmi_transfer *transfer, struct place *place, size_t limit,
                          struct fi_rma_iov *remote, size_t max, size_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    while (place->region < transfer->remote_count && *bytes < limit) {
        const struct bmi_region *region = &transfer->remote[place->region];
        uint64_t room = region->length - place->offset;
        size_t length = room < limit - *bytes ? (size_t)room : limit - *bytes;
        if (length > 0 && count == max)
            break;
        if (length > 0)
            remote[count++] = (struct fi_rma_iov){.addr = region->address + place->offset,
                                                  .len = length,
                                                  .key = region->key};
        *bytes += length;
        place->offset += length;
        if (place->offset == region->length)
            *place = (struct place){.region = place->region + 1};
    }
    return count;
}

/* Takes the transfer's next bytes. Returns the new piece, or NULL with an errno. */
static struct ib_piece *piece_make(struct ib_link *link, struct bmi_transfer *transfer, int *status)
{
    struct ib_state *state = ib_state_of(link);
    const struct ib_fabric *fabric = state->fabric;
    struct place *remote = &advance_of(transfer)->remote, ahead = *remote;
    size_t bytes = 0;
    struct ib_piece *piece = malloc(sizeof(*piece));
    if (!piece) {
        *status = -ENOMEM;
        return NULL;
    }
    *piece = (struct ib_piece){.operation = {.kind = IB_OPERATION_PIECE, .token = link->token},
                               .transfer = transfer};
    size_t most = remote_take(transfer, &ahead, fabric->piece_max, piece->remote,
                              fabric->remote_iovecs, &bytes);
    size_t count = bmi_segments_window(&transfer->local, piece->iov, fabric->iovecs, bytes, &bytes);
    *status = most == 0 ? -EMSGSIZE : 0;
    for (; piece->count < count && fabric->local_memory && *status == 0; piece->count++)
        *status = bmi_method_cache_get(state->cache, piece->iov[piece->count].iov_base,
                                       piece->iov[piece->count].iov_len,
                                       &piece->registrations[piece->count]);
    piece->count = (uint32_t)count;
    piece->remote_count = (uint32_t)remote_take(transfer, remote, bytes, piece->remote,
                                                fabric->remote_iovecs, &bytes);
    bmi_segments_advance(&transfer->local, bytes);
    return piece;
}

/* Posts it. Returns 0 or an errno. */
static int piece_issue(struct ib_link *link, struct ib_piece *piece)
{
    struct ib_state *state = ib_state_of(link);
    void *descriptors[IB_IOVECS];
    for (uint32_t i = 0; i < piece->count; i++)
        descriptors[i] =
            piece->registrations[i] ? fi_mr_desc(piece->registrations[i]->handle) : NULL;
    struct fi_msg_rma message = {.msg_iov = piece->iov,
                                 .desc = descriptors,
                                 .iov_count = piece->count,
                                 .addr = link->peer->address,
                                 .rma_iov = piece->remote,
                                 .rma_iov_count = piece->remote_count,
                                 .context = &piece->operation.context};
    ib_lock(&state->fabric_lock);
    ssize_t status = piece->transfer->get ? fi_readmsg(link->endpoint->id, &message, FI_COMPLETION)
                                          : fi_writemsg(link->endpoint->id, &message,
                                                        FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (status == 0)
        cds_hlist_add_head(&piece->listed, &state->fabric->pieces);
    else
        link->peer->doubtful = link->endpoint;
    ib_unlock(&state->fabric_lock);
    return ib_error(status);
}

/* Posts the transfer's next piece. Returns 0, -EAGAIN, or the errno that it fails with. */
static int piece_post_locked(struct ib_link *link, struct bmi_transfer *transfer)
{
    struct advance *advance = advance_of(transfer);
    struct bmi_segments local = transfer->local;
    struct place remote = advance->remote;
    int status;
    struct ib_piece *piece = piece_make(link, transfer, &status);
    if (status == 0)
        status = piece_issue(link, piece);
    if (status == 0) {
        advance->pieces++;
        link->pieces++;
        atomic_fetch_add(&ib_state_of(link)->fabric->piece_count, 1);
        return 0;
    }
    if (piece)
        piece_free(ib_state_of(link), piece);
    transfer->local = local;
    advance->remote = remote;
    return status;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static bool is_over_locked(struct bmi_transfer *transfer)
{
    const struct advance *advance = advance_of(transfer);
    return advance->pieces == 0 && (transfer->local.left == 0 || advance->status);
}

/* Whether the link may post one more piece. It may always have one, however many others have: the
 * network bounds the operations of all links. */
static bool piece_allowed_locked(const struct ib_link *link)
{
    const struct ib_fabric *fabric = ib_state_of(link)->fabric;
    return link->pieces == 0 ||
           (link->pieces < IB_PIECES && atomic_load(&fabric->piece_count) < IB_PIECES_ALL);
}

/* Posts as much of a transfer as may be under way. Returns false if it has to wait, for room in the
 * network or for pieces of the link's to come back. */
static bool transfer_post_locked(struct ib_link *link, struct bmi_transfer *transfer)
{
    struct advance *advance = advance_of(transfer);
    while (transfer->local.left > 0 && advance->status == 0) {
        int status = piece_allowed_locked(link) ? piece_post_locked(link, transfer) : -EBUSY;
        if (status == -EAGAIN)
            ib_link_block_locked(link);
        if (status == -EAGAIN || status == -EBUSY)
            return false;
        advance->status = status;
    }
    if (is_over_locked(transfer))
        ib_link_kick(link);
    return true;
}

void ib_transfers_post_locked(struct ib_link *link)
{
    struct bmi_transfer *at = link->transfers;
    ib_assert_locked(&link->send_lock);
    if (!at || !ib_may_send_locked(link))
        return;
    if (ib_state_of(link)->reads)
        ib_link_kick(link);
    else
        while (at && transfer_post_locked(link, at))
            at = at->next;
}

void ib_transfer(struct bmi_link *base, struct bmi_transfer *transfer)
{
    struct ib_link *link = ib_link_of(base);
    *advance_of(transfer) = (struct advance){0};
    transfer->next = NULL;
    ib_lock(&link->send_lock);
    *link->transfers_end = transfer;
    link->transfers_end = &transfer->next;
    ib_transfers_post_locked(link);
    ib_unlock(&link->send_lock);
}

/* Ends a piece of a link. Returns whether its transfer is over. */
static bool piece_end(struct ib_link *link, struct ib_piece *piece, int status)
{
    struct advance *advance = advance_of(piece->transfer);
    ib_lock(&link->send_lock);
    if (status == 0)
        for (uint32_t i = 0; i < piece->count; i++)
            ib_count(ib_state_of(link),
                     piece->transfer->get ? BMI_COUNT_GET_BYTES : BMI_COUNT_PUT_BYTES,
                     (int64_t)piece->iov[i].iov_len);
    else if (advance->status == 0)
        advance->status = status;
    advance->pieces--;
    link->pieces--;
    atomic_fetch_sub(&ib_state_of(link)->fabric->piece_count, 1);
    bool over = is_over_locked(piece->transfer);
    ib_transfers_post_locked(link);
    ib_unlock(&link->send_lock);
    return over;
}

void ib_piece_done(struct ib_state *state, struct ib_link *link, struct ib_operation *operation,
                   int status)
{
    struct ib_piece *piece = ib_container(operation, struct ib_piece, operation);
    ib_lock(&state->fabric_lock);
    cds_hlist_del(&piece->listed);
    ib_unlock(&state->fabric_lock);
    bool over = link && piece_end(link, piece, status);
    piece_free(state, piece);
    if (!over)
        return;
    bmi_link_ref(&link->base);
    ib_link_step(link);
    bmi_link_unref(&link->base);
}

/* ---- gets of ours ---------------------------------------------------------------------------- */

/* Reads the next part of a get, one copy by this processor. Returns 0 or an errno. */
static int part_read(const struct ib_link *link, struct bmi_transfer *transfer)
{
    struct fi_rma_iov regions[IB_IOVECS];
    struct iovec local[IB_REGIONS], remote[IB_IOVECS];
    struct place *place = &advance_of(transfer)->remote, ahead = *place;
    size_t bytes = 0;
    size_t remotes = remote_take(transfer, &ahead, IB_PIECE_BYTES, regions, IB_IOVECS, &bytes);
    for (size_t i = 0; i < remotes; i++)
        remote[i] = (struct iovec){.iov_base = (void *)(uintptr_t)regions[i].addr,
                                   .iov_len = regions[i].len};
    if (remotes == 0)
        return -EMSGSIZE;
    size_t locals = bmi_segments_window(&transfer->local, local, IB_REGIONS, bytes, NULL);
    ssize_t got =
        process_vm_readv(ib_doorbell_process(link->doorbell), local, locals, remote, remotes, 0);
    if (got <= 0)
        return got < 0 ? -errno : -EFAULT;
    bmi_segments_advance(&transfer->local, (size_t)got);
    remote_take(transfer, place, (size_t)got, regions, IB_IOVECS, &bytes);
    ib_count(ib_state_of(link), BMI_COUNT_GET_BYTES, got);
    return 0;
}

/* The sender lends its memory as long as it keeps the exchange open. If that is open after the last
 * byte was read, all bytes were those of the message. */
void ib_transfers_read(struct ib_link *link)
{
    if (!ib_state_of(link)->reads)
        return;
    ib_lock(&link->send_lock);
    struct bmi_transfer *transfer = link->phase == IB_UP ? link->transfers : NULL;
    ib_unlock(&link->send_lock);
    if (!transfer)
        return;
    int status = part_read(link, transfer);
    if (status == 0 && transfer->local.left == 0 && ib_link_hung_up(link))
        status = -ECONNRESET;
    ib_lock(&link->send_lock);
    advance_of(transfer)->status = status;
    if (!is_over_locked(transfer) || transfer->next)
        ib_link_kick(link); /* others have their turn between two parts */
    ib_unlock(&link->send_lock);
}

bool ib_reads_allowed(struct bmi_instance *instance)
{
    static const char scope_file[] = "/proc/sys/kernel/yama/ptrace_scope";
    char scope = '0', probe = 0;
    struct iovec from = {.iov_base = &scope, .iov_len = 1}, to = {.iov_base = &probe, .iov_len = 1};
    int fd = open(scope_file, O_RDONLY | O_CLOEXEC);
    bool known = fd < 0 ? errno == ENOENT : read(fd, &scope, 1) == 1;
    if (fd >= 0)
        close(fd);
    return known && scope == '0' && !bmi_method_setting(instance, "ofi_register_all") &&
           process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Removes a transfer that is over from the link's list. Behind the first one that waits to be
 * posted none is. */
static struct bmi_transfer *over_take(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    struct bmi_transfer **place = &link->transfers;
    while (*place && advance_of(*place)->pieces > 0)
        place = &(*place)->next;
    struct bmi_transfer *over = *place && is_over_locked(*place) ? *place : NULL;
    if (over) {
        *place = over->next;
        if (!over->next)
            link->transfers_end = place;
    }
    ib_unlock(&link->send_lock);
    return over;
}

void ib_transfers_tell(struct ib_link *link)
{
    struct bmi_transfer *over;
    while ((over = over_take(link)) != NULL) {
        int status = advance_of(over)->status;
        if (status == 0)
            ib_count(ib_state_of(link), over->get ? BMI_COUNT_GETS : BMI_COUNT_PUTS, 1);
        bmi_method_transfer_done(&link->base, over, status);
    }
}

void ib_transfers_fail(struct ib_link *link, int status, bool all)
{
    ib_lock(&link->send_lock);
    for (struct bmi_transfer *at = link->transfers; at; at = at->next) {
        struct advance *advance = advance_of(at);
        if (advance->status == 0)
            advance->status = status;
        if (all)
            advance->pieces = 0;
    }
    if (all && link->pieces > 0) {
        atomic_fetch_sub(&ib_state_of(link)->fabric->piece_count, link->pieces);
        link->pieces = 0;
    }
    ib_unlock(&link->send_lock);
    ib_transfers_tell(link);
}
