/* SPDX-License-Identifier: BSD-3-Clause
 *
 * link.c - a link's life: made, opened, closed, taken down, freed.
 *
 * Any thread may request a step (close, or the end after a failed post): it records the request
 * under send_lock and kicks. The poller then runs ib_link_step, which alone decides the next step.
 * The poller ends a link once: it cuts the provider's connection if bytes may be on their way to
 * the program's memory, closes the exchange, and returns frames and transfers that were not posted.
 * When the network has returned the pieces of transfers, or after IB_TRANSFER_WAIT_MS, it reports
 * link_down and drops the method's reference. A pending kick holds a reference of its own.
 *
 * A link ends in order when both sides have sent their end of stream, a message without frames, and
 * both have confirmed the other's over the exchange. The side that is asked to close sends its own
 * first; the other one answers. After that no message is on its way: libfabric 1.17's rxm crashes
 * if one arrives over verbs while its connection is being closed.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include "ib.h"

static void link_destroy(struct bmi_link *base)
{
    bmi_method_link_host(base, NULL, 0); /* a link whose handshake failed still has a host */
    free(ib_link_of(base));
}

static void link_deferred(struct bmi_deferred *deferred)
{
    struct ib_link *link = ib_container(deferred, struct ib_link, deferred);
    atomic_store(&link->kicked, false);
    ib_link_step(link);
    bmi_link_unref(&link->base);
}

static void link_finish(struct ib_link *link);

static void link_expired(struct bmi_timer *timer)
{
    struct ib_link *link = ib_container(timer, struct ib_link, timer);
    if (link->phase == IB_DIALLING)
        ib_dial_again(link, -ETIMEDOUT);
    else if (link->phase == IB_HANDSHAKE)
        ib_handshake_expired(link);
    else if (link->phase == IB_ENDING)
        link_finish(link);
}

struct ib_link *ib_link_new(struct ib_state *state, int fd, bool dialled)
{
    struct ib_link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->base.method = state->method;
    link->base.instance = state->instance;
    link->base.state = state;
    link->base.destroy = link_destroy;
    atomic_init(&link->base.references, 1);
    link->watch.fd = fd;
    link->dialled = dialled;
    link->transfers_end = &link->transfers;
    link->deferred.run = link_deferred;
    link->timer.expired = link_expired;
    ib_lock(&state->list_lock);
    cds_hlist_add_head(&link->listed, &state->links);
    ib_unlock(&state->list_lock);
    return link;
}

void ib_phase_set(struct ib_link *link, enum ib_phase phase)
{
    ib_lock(&link->send_lock);
    link->phase = phase;
    ib_unlock(&link->send_lock);
}

/* Releases the objects that a link shares with others. */
static void link_release(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    bmi_method_timer_clear(link->base.instance, &link->timer);
    ib_token_drop(link);
    ib_lock(&link->send_lock);
    struct ib_peer *peer = link->peer;
    struct ib_doorbell *doorbell = link->doorbell;
    link->peer = NULL;
    link->doorbell = NULL;
    ib_unlock(&link->send_lock);
    if (peer)
        ib_peer_put(state, peer);
    ib_doorbell_free(doorbell);
    ib_lock(&state->list_lock);
    cds_hlist_del(&link->listed);
    ib_unlock(&state->list_lock);
    bmi_link_unref(&link->base);
}

/* Makes the close visible to the other side before the program has its lent memory back: a process
 * that reads the memory (part_read) checks for the close afterwards. Within a host that takes a
 * moment. If the socket is full, the end would wait behind its bytes: then the close sends a reset.
 */
static void exchange_shut(const struct ib_link *link)
{
    enum { LIMIT_NS = 5000000 };
    static const struct linger reset = {.l_onoff = 1};
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    if (link->watch.fd < 0 || !ib_state_of(link)->reads || shutdown(link->watch.fd, SHUT_WR) < 0)
        return;
    for (uint64_t end = bmi_method_now_ns(link->base.instance) + LIMIT_NS;
         bmi_method_now_ns(link->base.instance) < end; sched_yield())
        if (getsockopt(link->watch.fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 ||
            info.tcpi_state != TCP_FIN_WAIT1)
            return;
    setsockopt(link->watch.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

static void exchange_end(struct ib_link *link)
{
    exchange_shut(link);
    ib_dial_free(link);
    ib_handshake_free(link);
    ib_exchange_close(link);
}

void ib_link_forget(struct ib_link *link)
{
    ib_phase_set(link, IB_DOWN);
    exchange_end(link);
    link_release(link);
}

void ib_link_kick(struct ib_link *link)
{
    if (atomic_exchange(&link->kicked, true))
        return;
    bmi_link_ref(&link->base);
    bmi_method_defer(link->base.instance, &link->deferred);
}

void ib_link_open(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    link->phase = IB_UP;
    link->ready = link->dialled;
    ib_unlock(&link->send_lock);
    bmi_method_timer_clear(link->base.instance, &link->timer);
    ib_count(ib_state_of(link), BMI_COUNT_LINKS, 1);
    ib_flush(&link->base);
    ib_link_step(link);
}

void ib_close(struct bmi_link *base, bool linger)
{
    struct ib_link *link = ib_link_of(base);
    enum ib_closing wanted = linger ? IB_CLOSE_LINGERING : IB_CLOSE_NOW;

    ib_lock(&link->send_lock);
    bool news = link->phase < IB_ENDING && link->closing < wanted;
    if (news)
        link->closing = wanted;
    ib_unlock(&link->send_lock);
    if (news)
        ib_link_kick(link);
}

void ib_link_step(struct ib_link *link)
{
    if (link->phase == IB_DOWN)
        return; /* its state may have been freed */
    ib_transfers_read(link);
    ib_transfers_tell(link);
    ib_lock(&link->send_lock);
    enum ib_phase phase = link->phase;
    enum ib_closing closing = link->closing;
    int failure = link->failure;
    bool moved = !link->transfers; /* all */
    bool idle = !link->queue.first && moved;
    ib_unlock(&link->send_lock);

    if (phase == IB_ENDING) {
        if (moved) /* returns frames that the core has queued since */
            link_finish(link);
    } else if (closing == IB_CLOSE_NOW) {
        ib_link_end(link, 0);
    } else if (failure) {
        ib_link_end(link, failure);
    } else if (closing == IB_CLOSE_LINGERING && idle && phase != IB_UP) {
        ib_link_end(link, 0);
    } else if (closing == IB_CLOSE_LINGERING && idle) {
        ib_flush(&link->base); /* sends the end of stream */
    } else if (phase == IB_NEW) {
        ib_dial_start(link);
    }
}

void ib_link_fail(struct ib_link *link, int status)
{
    ib_lock(&link->send_lock);
    bool news = link->phase < IB_ENDING && !link->failure;
    if (news)
        link->failure = status;
    ib_unlock(&link->send_lock);
    if (news)
        ib_link_kick(link);
}

bool ib_link_shut_down(struct ib_link *link, int status)
{
    ib_lock(&link->send_lock);
    bool now = link->phase < IB_ENDING;
    if (now) {
        if (link->phase == IB_UP)
            ib_count(ib_state_of(link), BMI_COUNT_LINKS, -1);
        link->phase = IB_ENDING;
        link->end_status = link->closing != IB_OPEN ? 0 : status;
    }
    ib_unlock(&link->send_lock);
    return now;
}

static void give_back_frames(struct ib_link *link)
{
    int status = link->end_status;
    ib_lock(&link->send_lock);
    struct bmi_frame *frames = bmi_frame_queue_take(&link->queue);
    if (link->closing == IB_CLOSE_NOW)
        status = -ECANCELED;
    else if (status == 0)
        status = -ECONNRESET; /* the peer closed in order, but these did not reach it */
    ib_unlock(&link->send_lock);

    for (struct bmi_frame *at = frames; at; at = at->next)
        at->status = status;
    if (frames)
        bmi_method_frames_sent(&link->base, frames);
}

/* The network has returned everything, or the wait for it has timed out. */
static void link_finish(struct ib_link *link)
{
    int status = link->end_status;
    ib_token_drop(link); /* what the network returns from now on is no link's */
    ib_transfers_fail(link, status ? status : -ECONNRESET, true);
    give_back_frames(link);
    if (status)
        ib_count(ib_state_of(link), BMI_COUNT_LINKS_FAILED, 1);
    ib_phase_set(link, IB_DOWN);
    bmi_method_link_down(&link->base, status);
    ib_transfers_fail(link, status ? status : -ECONNRESET, true);
    give_back_frames(link); /* frames of a thread that sent before it could know of the end */
    link_release(link);
}

void ib_link_take_down(struct ib_link *link)
{
    link->taken_down = true;
    exchange_end(link);
    ib_lock(&link->receive_lock);
    link->body_left = 0;
    link->sink.owner = NULL;
    link->sink.body.left = 0;
    ib_unlock(&link->receive_lock);
    give_back_frames(link);
    ib_transfers_fail(link, link->end_status ? link->end_status : -ECONNRESET, false);

    ib_lock(&link->send_lock);
    bool wait = link->transfers != NULL;
    ib_unlock(&link->send_lock);
    if (wait)
        bmi_method_timer_set(link->base.instance, &link->timer, IB_TRANSFER_WAIT_MS);
    else
        link_finish(link);
}

/* Whether bytes may be on their way to memory that the program has back after link_down. A peer
 * that has sent its end of stream has finished all its transfers. */
static bool has_to_be_cut(struct ib_link *link)
{
    if (!link->peer || link->peer->broken || !ib_state_of(link)->fabric->breaks)
        return false;
    ib_lock(&link->send_lock);
    bool any = link->pieces > 0 || (atomic_load(&link->exposed) > 0 && !link->bye_seen);
    ib_unlock(&link->send_lock);
    return any;
}

void ib_link_end(struct ib_link *link, int status)
{
    if (!ib_link_shut_down(link, status))
        return;
    if (has_to_be_cut(link))
        ib_peer_break(ib_state_of(link), link->peer,
                      link->end_status ? link->end_status : -ECONNRESET);
    else
        ib_link_take_down(link);
}

void ib_bye_check(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    bool sent = link->bye_sent;
    ib_unlock(&link->send_lock);
    if (link->bye_confirmed && !sent)
        ib_link_end(link, -EPROTO);
    else if (link->bye_confirmed && link->bye_seen)
        ib_link_end(link, 0);
}

void ib_bye_take(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    if (link->closing == IB_OPEN)
        link->closing = IB_CLOSE_LINGERING;
    ib_unlock(&link->send_lock);
    ib_byte_send(link, IB_BYTE_CONFIRMED);
    ib_flush(&link->base); /* sends our own, perhaps after other frames */
    ib_bye_check(link);
}

void ib_link_cut(struct ib_link *link)
{
    bool known = link->dialled || link->phase >= IB_UP;
    if (!known) {
        ib_handshake_refuse(link, -ECONNREFUSED);
        ib_link_forget(link);
        return;
    }
    ib_lock(&link->send_lock);
    link->closing = IB_CLOSE_NOW;
    ib_unlock(&link->send_lock);
    bmi_link_ref(&link->base);
    ib_link_end(link, 0);
    if (link->phase == IB_ENDING)
        link_finish(link);
    bmi_link_unref(&link->base);
}
