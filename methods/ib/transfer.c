/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer.c - puts and gets: a transfer is moved in pieces, each one operation of the network.
 *
 * A piece has as many remote regions and local segments as the provider takes. A transfer ends when
 * the network has returned all pieces, with the status of the first that failed; then the poller
 * reports it to the core.
 *
 * A put requests FI_DELIVERY_COMPLETE if its completion would only mean that it was written to a
 * socket (tcp), or if later messages may overtake it.
 *
 * If the network does not return the pieces of a dead link, they are detached after a while, and
 * belong to the fabric until it closes.
 *
 * Over shm there are no puts. The receiver reads the sender's memory itself (process_vm_readv).
 */
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ib.h"

/* A position in a transfer's remote regions. */
struct ib_place {
    uint32_t region;
    uint64_t offset;
};

struct ib_move {
    struct ib_move *next, **link_to_me; /* send_lock: of link->moves, or link->done */
    struct ib_piece *pieces;            /* send_lock: with the network */
    struct ib_link *link;               /* referenced */
    struct bmi_transfer *transfer;
    struct bmi_segments local; /* the memory that is not posted yet */
    struct ib_place remote;    /* where that goes, or comes from */
    int status;                /* send_lock */
};

struct ib_piece {
    struct ib_operation operation;
    struct ib_piece *next, **link_to_me; /* send_lock: of its move; fabric_lock: free, or lost */
    struct ib_move *move;                /* poller, once posted; NULL: no transfer waits for it */
    uint32_t count, remote_count;
    struct fi_rma_iov remote[IB_IOVECS];
    struct iovec iov[IB_IOVECS];
    struct bmi_registration *registrations[IB_IOVECS];
};

/* ---- pieces -----------------------------------------------------------------------------------
 */

static struct ib_piece *piece_take(struct ib_state *state)
{
    ib_lock(&state->fabric_lock);
    struct ib_piece *piece = state->fabric->free_pieces;
    if (piece) {
        state->fabric->free_pieces = piece->next;
        state->fabric->free_piece_count--;
    }
    ib_unlock(&state->fabric_lock);
    if (!piece)
        piece = malloc(sizeof(*piece));
    if (piece) {
        piece->operation.kind = IB_OPERATION_PIECE;
        piece->count = 0;
        piece->move = NULL;
    }
    return piece;
}

static void piece_give(struct ib_state *state, struct ib_piece *piece)
{
    for (uint32_t i = 0; i < piece->count; i++)
        if (piece->registrations[i])
            bmi_method_cache_put(state->cache, piece->registrations[i], piece->iov[i].iov_base,
                                 piece->iov[i].iov_len);
    ib_lock(&state->fabric_lock);
    bool kept = state->fabric->free_piece_count < IB_PIECES_KEPT;
    if (kept) {
        piece->next = state->fabric->free_pieces;
        state->fabric->free_pieces = piece;
        state->fabric->free_piece_count++;
    }
    ib_unlock(&state->fabric_lock);
    if (!kept)
        free(piece);
}

void ib_pieces_free(struct ib_state *state)
{
    struct ib_fabric *fabric = state->fabric;
    while (fabric->lost) {
        struct ib_piece *piece = fabric->lost;
        fabric->lost = piece->next;
        piece_give(state, piece);
    }
    while (fabric->free_pieces) {
        struct ib_piece *piece = fabric->free_pieces;
        fabric->free_pieces = piece->next;
        free(piece);
    }
}

/* Registers the piece's local memory if the provider needs that. */
static int piece_register(struct ib_state *state, struct ib_piece *piece, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int status = ib_local_get(state, piece->iov[i].iov_base, piece->iov[i].iov_len,
                                  &piece->registrations[i]);
        if (status)
            return status;
        piece->count = (uint32_t)i + 1;
    }
    return 0;
}

/* Outputs the next remote regions, at most `max` of them and `limit` bytes, and advances `place`.
 * Returns their number. */
static size_t remote_take(const struct bmi_transfer *transfer, struct ib_place *place, size_t limit,
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
            *place = (struct ib_place){.region = place->region + 1};
    }
    return count;
}

/* Posts it. fabric_lock. */
static ssize_t piece_issue_locked(struct ib_link *link, struct ib_piece *piece)
{
    struct ib_fabric *fabric = ib_state_of(link)->fabric;
    bool put = !piece->move->transfer->get;
    void *descriptors[IB_IOVECS];
    for (uint32_t i = 0; i < piece->count; i++)
        descriptors[i] = ib_local_descriptor(piece->registrations[i]);
    struct fi_msg_rma message = {.msg_iov = piece->iov,
                                 .desc = descriptors,
                                 .iov_count = piece->count,
                                 .addr = link->peer->address,
                                 .rma_iov = piece->remote,
                                 .rma_iov_count = piece->remote_count,
                                 .context = &piece->operation.context};
    bool deliver = put && fabric->put_delivers;
    uint64_t flags = FI_COMPLETION | (deliver ? FI_DELIVERY_COMPLETE : 0);
    ssize_t status = put ? fi_writemsg(link->endpoint->id, &message, flags)
                         : fi_readmsg(link->endpoint->id, &message, flags);
    if (status == 0)
        atomic_fetch_add(&fabric->pieces, 1);
    else
        link->peer->doubtful = link->endpoint;
    return status;
}

static void piece_insert_locked(struct ib_move *move, struct ib_piece *piece)
{
    piece->next = move->pieces;
    piece->link_to_me = &move->pieces;
    if (piece->next)
        piece->next->link_to_me = &piece->next;
    move->pieces = piece;
    move->link->pieces++;
}

static void piece_remove_locked(struct ib_piece *piece)
{
    *piece->link_to_me = piece->next;
    if (piece->next)
        piece->next->link_to_me = piece->link_to_me;
}

static void piece_unmake(struct ib_state *state, struct ib_piece *piece)
{
    piece->move = NULL;
    piece_give(state, piece);
}

/* Makes the transfer's next piece, and advances the transfer behind it. Returns 0 or an errno. */
static int piece_make(struct ib_link *link, struct ib_move *move, struct ib_piece **out)
{
    struct ib_state *state = ib_state_of(link);
    const struct ib_fabric *fabric = state->fabric;
    struct ib_place place = move->remote;
    size_t bytes = 0;
    struct ib_piece *piece = piece_take(state);
    if (!piece)
        return -ENOMEM;
    piece->move = move;
    size_t most = remote_take(move->transfer, &place, fabric->piece_max, piece->remote,
                              fabric->remote_iovecs, &bytes);
    size_t count = bmi_segments_window(&move->local, piece->iov, fabric->iovecs, bytes, &bytes);
    int status = most == 0 ? -EMSGSIZE : piece_register(state, piece, count);
    if (status) {
        piece_unmake(state, piece);
        return status;
    }
    piece->remote_count = (uint32_t)remote_take(move->transfer, &move->remote, bytes, piece->remote,
                                                fabric->remote_iovecs, &bytes);
    bmi_segments_advance(&move->local, bytes);
    *out = piece;
    return 0;
}

/* Posts the transfer's next piece. Returns 0, -EAGAIN, or the errno that it fails with. */
static int piece_post_locked(struct ib_link *link, struct ib_move *move)
{
    struct ib_state *state = ib_state_of(link);
    struct bmi_segments local = move->local;
    struct ib_place remote = move->remote;
    struct ib_piece *piece = NULL;
    int status = piece_make(link, move, &piece);
    if (status)
        return status;
    ib_lock(&state->fabric_lock);
    ssize_t answer = piece_issue_locked(link, piece);
    ib_unlock(&state->fabric_lock);
    if (answer) {
        move->local = local;
        move->remote = remote;
        piece_unmake(state, piece);
        return answer == -FI_EAGAIN ? -EAGAIN : ib_error(answer);
    }
    piece_insert_locked(move, piece);
    return 0;
}

/* ---- transfers --------------------------------------------------------------------------------
 */

static void move_append_locked(struct ib_link *link, struct ib_move *move)
{
    ib_assert_locked(&link->send_lock);
    move->next = NULL;
    move->link_to_me = link->moves ? link->moves_end : &link->moves;
    *move->link_to_me = move;
    link->moves_end = &move->next;
    if (!link->posting)
        link->posting = move;
}

/* Moves a finished transfer to the list of those that the poller will report to the core. */
static void move_done_locked(struct ib_link *link, struct ib_move *move)
{
    ib_assert_locked(&link->send_lock);
    if (link->posting == move)
        link->posting = move->next;
    *move->link_to_me = move->next;
    if (move->next)
        move->next->link_to_me = move->link_to_me;
    else
        link->moves_end = move->link_to_me;
    move->next = link->done;
    link->done = move;
}

static bool move_over_locked(const struct ib_move *move)
{
    return !move->pieces && (move->local.left == 0 || move->status);
}

/* Whether the link may post one more piece. It may always have one, however many others have: the
 * network bounds the operations of all links. */
static bool piece_allowed_locked(const struct ib_link *link)
{
    const struct ib_fabric *fabric = ib_state_of(link)->fabric;
    return link->pieces == 0 ||
           (link->pieces < IB_PIECES && atomic_load(&fabric->pieces) < IB_PIECES_ALL);
}

/* Posts as much of a transfer as may be under way. Returns false if it has to wait, for room in the
 * network or for pieces of the link's to come back. */
static bool move_post_locked(struct ib_link *link, struct ib_move *move)
{
    int status = 0;
    while (status == 0 && move->local.left > 0 && move->status == 0) {
        if (!piece_allowed_locked(link))
            return false;
        status = piece_post_locked(link, move);
    }
    if (status == -EAGAIN) {
        ib_link_block_locked(link);
        return false;
    }
    if (status && move->status == 0)
        move->status = status;
    return true;
}

void ib_moves_post_locked(struct ib_link *link)
{
    ib_assert_locked(&link->send_lock);
    if (ib_state_of(link)->reads) {
        if (link->posting)
            ib_link_kick(link);
        return;
    }
    while (link->posting) {
        struct ib_move *move = link->posting;
        if (!move_post_locked(link, move))
            break;
        link->posting = move->next;
        if (move_over_locked(move)) {
            move_done_locked(link, move);
            ib_link_kick(link);
        }
    }
}

/* ---- gets of ours -------------------------------------------------------------------------------
 */

static size_t remote_window(const struct bmi_transfer *transfer, struct ib_place *place,
                            size_t limit, struct iovec *iov, size_t *bytes)
{
    struct fi_rma_iov regions[IB_IOVECS];
    size_t count = remote_take(transfer, place, limit, regions, IB_IOVECS, bytes);
    for (size_t i = 0; i < count; i++)
        iov[i] = (struct iovec){.iov_base = (void *)(uintptr_t)regions[i].addr,
                                .iov_len = regions[i].len};
    return count;
}

/* Reads the next part of a get, one copy by this processor. Returns 0 or an errno. */
static int part_read(const struct ib_link *link, struct ib_move *move)
{
    enum { PART_BYTES = 1 << 20 };
    struct iovec local[IB_REGIONS], remote[IB_IOVECS];
    struct ib_place place = move->remote;
    size_t bytes = 0;
    if (remote_window(move->transfer, &place, PART_BYTES, remote, &bytes) == 0)
        return -EMSGSIZE;
    size_t locals = bmi_segments_window(&move->local, local, IB_REGIONS, bytes, &bytes);
    place = move->remote;
    size_t remotes = remote_window(move->transfer, &place, bytes, remote, &bytes);
    ssize_t got =
        process_vm_readv(ib_doorbell_process(link->doorbell), local, locals, remote, remotes, 0);
    if (got <= 0)
        return got < 0 ? -errno : -EFAULT;
    bmi_segments_advance(&move->local, (size_t)got);
    remote_window(move->transfer, &move->remote, (size_t)got, remote, &bytes);
    ib_count(ib_state_of(link), BMI_COUNT_GET_BYTES, got);
    return 0;
}

/* The sender lends its memory as long as it keeps the exchange open. If that is open after the last
 * byte was read, all bytes were those of the message. */
static int move_read(const struct ib_link *link, struct ib_move *move)
{
    int status = part_read(link, move);
    if (status == 0 && move->local.left == 0 && ib_link_hung_up(link))
        status = -ECONNRESET;
    return status;
}

void ib_moves_read(struct ib_link *link)
{
    if (!ib_state_of(link)->reads)
        return;
    ib_lock(&link->send_lock);
    struct ib_move *move = link->phase == IB_UP ? link->posting : NULL;
    ib_unlock(&link->send_lock);
    if (!move)
        return;
    int status = move_read(link, move);
    ib_lock(&link->send_lock);
    move->status = status;
    if (move_over_locked(move))
        move_done_locked(link, move);
    if (link->posting)
        ib_link_kick(link); /* others have their turn between two parts */
    ib_unlock(&link->send_lock);
}

bool ib_reads_allowed(void)
{
    static const char scope_file[] = "/proc/sys/kernel/yama/ptrace_scope";
    char scope = '0', probe = 0;
    struct iovec from = {.iov_base = &scope, .iov_len = 1}, to = {.iov_base = &probe, .iov_len = 1};
    int fd = open(scope_file, O_RDONLY | O_CLOEXEC);
    bool known = fd < 0 ? errno == ENOENT : read(fd, &scope, 1) == 1;
    if (fd >= 0)
        close(fd);
    return known && scope == '0' && !bmi_method_setting("ofi_register_all") &&
           process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

void ib_transfer(struct bmi_link *base, struct bmi_transfer *transfer)
{
    struct ib_link *link = ib_link_of(base);
    struct ib_move *move = calloc(1, sizeof(*move));
    ib_lock(&link->send_lock);
    if (move) {
        bmi_link_ref(base);
        move->link = link;
        move->transfer = transfer;
        move->local = transfer->local;
        move_append_locked(link, move);
        if (link->phase == IB_UP)
            ib_moves_post_locked(link);
    } else { /* the poller reports these, too */
        transfer->next = link->failed;
        link->failed = transfer;
        ib_link_kick(link);
    }
    ib_unlock(&link->send_lock);
}

/* Handles a returned piece of a link that has gone. */
static void lost_done(struct ib_state *state, struct ib_piece *piece)
{
    ib_lock(&state->fabric_lock);
    piece_remove_locked(piece);
    ib_unlock(&state->fabric_lock);
    piece_give(state, piece);
}

static size_t piece_bytes(const struct ib_piece *piece)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < piece->count; i++)
        bytes += piece->iov[i].iov_len;
    return bytes;
}

struct ib_link *ib_piece_link(struct ib_operation *operation)
{
    struct ib_piece *piece = ib_container(operation, struct ib_piece, operation);
    return piece->move ? piece->move->link : NULL;
}

void ib_piece_done(struct ib_state *state, struct ib_operation *operation, int status)
{
    struct ib_piece *piece = ib_container(operation, struct ib_piece, operation);
    struct ib_move *move = piece->move;
    if (!move) {
        lost_done(state, piece);
        return;
    }
    struct ib_link *link = move->link;
    if (status == 0)
        ib_count(state, move->transfer->get ? BMI_COUNT_GET_BYTES : BMI_COUNT_PUT_BYTES,
                 (int64_t)piece_bytes(piece));
    ib_lock(&link->send_lock);
    piece_remove_locked(piece);
    link->pieces--;
    atomic_fetch_sub(&state->fabric->pieces, 1);
    if (status && move->status == 0)
        move->status = status;
    bool over = move_over_locked(move);
    if (over)
        move_done_locked(link, move);
    if (link->phase == IB_UP)
        ib_moves_post_locked(link);
    ib_unlock(&link->send_lock);
    piece_give(state, piece);
    if (!over)
        return;
    bmi_link_ref(&link->base);
    ib_link_step(link);
    bmi_link_unref(&link->base);
}

/* ---- telling the core -------------------------------------------------------------------------
 */

static struct ib_move *moves_reverse(struct ib_move *list)
{
    struct ib_move *reversed = NULL;
    while (list) {
        struct ib_move *next = list->next;
        list->next = reversed;
        reversed = list;
        list = next;
    }
    return reversed;
}

static void move_tell(struct ib_move *move)
{
    struct ib_link *link = move->link;
    int status = move->status;
    if (status == 0)
        ib_count(ib_state_of(link), move->transfer->get ? BMI_COUNT_GETS : BMI_COUNT_PUTS, 1);
    bmi_method_transfer_done(&link->base, move->transfer, status);
    free(move);
    bmi_link_unref(&link->base);
}

void ib_moves_tell(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    struct ib_move *list = moves_reverse(link->done);
    struct bmi_transfer *failed = link->failed;
    link->done = NULL;
    link->failed = NULL;
    ib_unlock(&link->send_lock);
    while (failed) {
        struct bmi_transfer *next = failed->next;
        bmi_method_transfer_done(&link->base, failed, -ENOMEM);
        failed = next;
    }
    while (list) {
        struct ib_move *next = list->next;
        move_tell(list);
        list = next;
    }
}

/* Detaches pieces that no transfer waits for; they are freed when the network returns them, or with
 * the endpoint. */
static void pieces_lose_locked(struct ib_move *move)
{
    struct ib_fabric *fabric = ib_state_of(move->link)->fabric;
    ib_lock(&ib_state_of(move->link)->fabric_lock);
    while (move->pieces) {
        struct ib_piece *piece = move->pieces;
        piece_remove_locked(piece);
        move->link->pieces--;
        atomic_fetch_sub(&fabric->pieces, 1);
        piece->move = NULL;
        piece->next = fabric->lost;
        piece->link_to_me = &fabric->lost;
        if (piece->next)
            piece->next->link_to_me = &piece->next;
        fabric->lost = piece;
    }
    ib_unlock(&ib_state_of(move->link)->fabric_lock);
}

void ib_moves_fail(struct ib_link *link, int status, bool all)
{
    ib_lock(&link->send_lock);
    for (struct ib_move *move = link->moves, *next; move; move = next) {
        next = move->next;
        if (move->status == 0)
            move->status = status;
        if (all)
            pieces_lose_locked(move);
        if (move_over_locked(move))
            move_done_locked(link, move);
    }
    link->posting = NULL;
    ib_unlock(&link->send_lock);
    ib_moves_tell(link);
}
