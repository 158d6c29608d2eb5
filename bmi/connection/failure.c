/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure.c - see failure.h. The poller runs the tick.
 */
#include "bmi/connection/failure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/join.h"
#include "bmi/connection/matching.h"
#include "bmi/connection/peer_end.h"
#include "bmi/connection/unexpected.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

enum { TICKS_PING = 3 }; /* a peer that is silent for so many is asked for a sign of life */

/* After BMI_REAP_IDLE. */
struct bmi__reaper {
    struct bmi_timer timer; /* first */
    struct bmi_instance *instance;
    _Atomic int64_t seconds;
};

void bmi__peer_leave_locked(struct peer *peer)
{
    peer->flags |= PEER_CLOSING;
    peer->since_ns = bmi__instance_now_ns(peer->instance) +
                     (uint64_t)bmi__setting(peer->instance, SETTING_LINGER) * 1000000u;
    peer->link->method->close(peer->link, true);
    bmi__attention_locked(peer);
}

/* ---- silence and time-outs ------------------------------------------------------------------ */

static void check_silence(struct peer *peer)
{
    uint64_t bytes = atomic_load_explicit(&peer->link->bytes_in, memory_order_relaxed);
    if (peer->self_link != NULL)
        bytes += atomic_load_explicit(&peer->self_link->bytes_in, memory_order_relaxed);
    if (bytes != peer->bytes_in || bmi__setting(peer->instance, SETTING_PEER_TIMEOUT) == 0) {
        peer->bytes_in = bytes;
        peer->silent_ticks = 0;
        peer->flags &= ~(uint32_t)PEER_PINGED;
        return;
    }
    /* A tick can be shorter than an eighth of the time-out, since it watches other times, too. The
     * rest of the time between two ticks counts towards the next eighth, but at most one eighth
     * counts: while there was no poller, no thread read the peer's frames. */
    uint64_t now = bmi__instance_now_ns(peer->instance);
    uint64_t eighth =
        (uint64_t)bmi__setting(peer->instance, SETTING_PEER_TIMEOUT) * 1000000u / BMI__TICKS_DEAD;
    if (peer->silent_ticks > 0 && now - peer->since_ns < eighth)
        return;
    uint64_t next = peer->silent_ticks > 0 ? peer->since_ns + eighth : now;
    peer->since_ns = next + eighth < now ? now - eighth : next;
    peer->silent_ticks++;
    if (peer->silent_ticks >= TICKS_PING && !(peer->flags & PEER_PINGED)) {
        peer->flags |= PEER_PINGED;
        bmi__control_send_locked(peer, (struct wire_header){.type = WIRE_PING}, NULL, 0);
    }
    if (peer->silent_ticks > BMI__TICKS_DEAD)
        bmi__peer_fail_locked(peer, -ETIMEDOUT, "silent for too long");
}

struct look {
    uint64_t now;
    bool graces; /* cancelled receives wait for their senders' answers */
};

static void look_at(struct peer *peer, void *argument)
{
    struct look *look = argument;
    uint64_t now = look->now;
    peer_lock(peer);
    bool late = peer->since_ns != 0 && now > peer->since_ns;
    enum peer_state state = atomic_load(&peer->state);
    if (bmi__peer_closing(peer)) { /* the other process may hang */
        if (late)
            peer->link->method->close(peer->link, false);
        state = PEER_GONE;
    }
    if (state == PEER_HANDSHAKE)
        late = now - peer->since_ns >
               (uint64_t)bmi__setting(peer->instance, SETTING_CONNECT_TIMEOUT) * 1000000u;
    switch (state) {
    case PEER_DIALLING:
    case PEER_HANDSHAKE:
        if (late)
            bmi__peer_fail_locked(peer, -ETIMEDOUT, "not connected in time");
        break;
    case PEER_UP:
        if (peer->op_count > 0) {
            if (bmi__cancel_graces_locked(peer, now))
                look->graces = true;
            check_silence(peer);
        }
        break;
    default:
        break;
    }
    bmi__attention_locked(peer);
    peer_unlock(peer);
}

/* ---- idle connections ----------------------------------------------------------------------- */

/* Whether the connection may be closed: no operations, no message of the peer that waits or that
 * the program still holds, no referenced address that would become stale. */
bool bmi__reapable(const struct peer *peer)
{
    if (peer->state != PEER_UP || peer->op_count > 0 ||
        (peer->flags & (PEER_SELF | PEER_CLOSING)) || peer->counters.unmatched_messages > 0 ||
        peer->counters.unexpected_waiting > 0)
        return false;
    for (struct address *a = peer->address; a != NULL; a = a->alias_next)
        if (a->string == NULL && atomic_load(&a->references) > 0)
            return false;
    return true;
}

struct reaping {
    uint64_t before; /* closes peers idle since then; UINT64_MAX: all that are idle now */
    bool again;      /* other peers may be idle long enough later */
};

static void reap(struct peer *peer, void *argument)
{
    struct reaping *reaping = argument;
    peer_lock(peer);
    if (bmi__reapable(peer)) {
        uint64_t bytes = atomic_load_explicit(&peer->link->bytes_in, memory_order_relaxed);
        bool known = bytes == peer->bytes_in && peer->since_ns != 0;
        if (!known) {
            peer->bytes_in = bytes;
            peer->since_ns = bmi__instance_now_ns(peer->instance);
        }
        if ((known && peer->since_ns <= reaping->before) || reaping->before == UINT64_MAX)
            bmi__peer_leave_locked(peer);
        else
            reaping->again = true;
    }
    peer_unlock(peer);
}

/* Returns whether some connections may have been idle for long enough later. */
static bool reap_all(struct bmi_instance *instance, int64_t seconds)
{
    uint64_t now = bmi__instance_now_ns(instance), ago = (uint64_t)seconds * 1000000000u;
    struct reaping reaping = {.before = ago == 0 ? UINT64_MAX : now > ago ? now - ago : 0};
    bmi__peer_each(instance, reap, &reaping);
    return reaping.again;
}

/* The idle time of a connection counts from the first look at it. */
void bmi__reap_idle(struct bmi_instance *instance, int64_t seconds)
{
    struct bmi__reaper *reaper = instance->reaper;
    if (!reap_all(instance, seconds))
        return;
    atomic_store(&reaper->seconds, seconds);
    bmi_method_timer_set(instance, &reaper->timer, (uint64_t)seconds * 1000 + 1);
}

static void reap_again(struct bmi_timer *timer)
{
    struct bmi__reaper *reaper = (struct bmi__reaper *)timer;
    reap_all(reaper->instance, atomic_load(&reaper->seconds));
}

/* ---- the tick ------------------------------------------------------------------------------- */

bool bmi__liveness_expired(struct bmi_instance *instance)
{
    struct look look = {.now = bmi__instance_now_ns(instance)};
    bmi__peer_each(instance, look_at, &look);
    int64_t idle = bmi__setting(instance, SETTING_IDLE_REAP);
    if (idle > 0)
        reap_all(instance, idle);
    return look.graces;
}

void bmi__reap_wanted(struct bmi_instance *instance)
{
    if (bmi__setting(instance, SETTING_IDLE_REAP) > 0)
        bmi__liveness_arm(instance);
}

void bmi__failure_stop(struct bmi_instance *instance)
{
    struct bmi__reaper *reaper = instance->reaper;
    bmi__liveness_stop(instance);
    bmi_method_timer_clear(instance, &reaper->timer);
}

/* ---- a link is down ------------------------------------------------------------------------- */

/* Releases the other end of a link to this process itself. */
static void self_link_forget(struct peer *peer)
{
    struct bmi_link *other = peer->self_link;
    peer->self_link = NULL;
    peer->flags &= ~(uint32_t)PEER_SELF;
    if (other == NULL)
        return;
    link_own(other, NULL);
    other->method->close(other, false);
    bmi_link_unref(other);
}

/* A dial failed: tries the next alternative, else all posted operations fail. Returns as peer_lost.
 */
static bool dial_failed(struct peer *peer, int status)
{
    int next = -ECONNREFUSED;
    bmi__credit_forget_locked(peer); /* opened with the HELLO */
    free(peer->question);
    peer->question = NULL;
    if (!(peer->flags & PEER_DROPPED) && peer->op_count > 0) {
        peer->alternative++;
        next = bmi__dial_locked(peer);
    }
    if (next == 0) {
        bmi__next_start_locked(peer, 0);
        return false;
    }
    peer->alternative = 0;
    bmi__matching_clear_locked(peer);
    atomic_store(&peer->state, PEER_IDLE);
    bmi__peer_abandon_locked(peer, status != 0 ? status : -ECONNREFUSED);
    bool over = bmi__address_forget_locked(peer);
    bmi__dial_next_locked(peer);
    return over;
}

/* Book's and peer's lock held. Returns whether the caller must give back the peer's memory. */
static bool peer_lost(struct peer *peer, int status)
{
    enum peer_state state = peer->state;
    int cause = peer->cause != 0 ? peer->cause : status;
    peer->flags &= ~(uint32_t)(PEER_CLOSING | PEER_PINGED);
    self_link_forget(peer);
    if (state == PEER_DIALLING)
        return dial_failed(peer, cause);
    bmi__matching_clear_locked(peer);
    if (cause == 0)
        cause = -ECONNRESET;
    bmi__address_ended_locked(peer, cause);
    if (peer->flags & PEER_ACCEPTED) {
        bool dials = bmi__next_waits_locked(peer) && !(peer->flags & PEER_DROPPED);
        bmi__address_lost_locked(peer, !dials);
        if (!dials) {
            atomic_store(&peer->state, PEER_GONE);
            bmi__peer_abandon_locked(peer, cause);
            return peer->op_count == 0;
        }
        peer->flags &= ~(uint32_t)PEER_ACCEPTED; /* posts to looked-up addresses wait */
    }
    atomic_store(&peer->state, PEER_IDLE);
    peer->alternative = 0;
    peer->counters.reconnects++; /* the next dial is one */
    bmi__peer_abandon_locked(peer, cause);
    bool over = bmi__address_forget_locked(peer);
    if (!(peer->flags & PEER_DROPPED))
        bmi__dial_next_locked(peer);
    return over;
}

/* The end of a connection is logged as information. It is a warning if an operation or a dial fails
 * by it. */
static void down_log_locked(struct peer *peer, int status)
{
    bool missed = peer->op_count > 0 || peer->state == PEER_DIALLING;
    bmi__log(peer->instance, status != 0 && missed ? BMI_LOG_WARN : BMI_LOG_INFO,
             "%s is down: %s%s", bmi__peer_name(peer),
             status != 0 ? bmi_status_string(bmi__error(status)) : "closed",
             status == -EMFILE ? " (see ulimit -n, and the setting idle_reap_s)" : "");
}

void bmi_method_link_down(struct bmi_link *link, int status)
{
    bool give = false, mine = false;
    if (status ==
        -EPIPE) /* the other end has gone: to those that wait to receive from it as well */
        status = -ECONNRESET;
    bmi__book_lock(link->instance);
    bmi__arriving_free(link);
    struct peer *peer = link_owner(link);
    if (peer != NULL) {
        peer_lock(peer);
        if (link == peer->self_link)
            bmi__peer_fail_locked(peer, -ECONNRESET, NULL);
        mine = link == peer->link;
        if (mine) {
            int cause = peer->cause != 0 ? peer->cause : status;
            BMI_PROBE(3, disconnect, peer, cause, peer->op_count);
            down_log_locked(peer, cause);
            bmi__memories_release_locked(peer);
            peer->link = NULL;
            link_own(link, NULL);
            give = peer_lost(peer, status);
            bmi__attention_locked(peer);
        }
        peer_unlock(peer);
    }
    free(link->host);
    link->host = NULL;
    if (give)
        bmi__peer_give(peer);
    bmi__book_unlock(link->instance);
    if (mine)
        bmi_link_unref(link);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__reaper_open(struct bmi_instance *instance)
{
    struct bmi__reaper *reaper = calloc(1, sizeof *reaper);
    if (reaper == NULL)
        return -ENOMEM;
    reaper->timer.expired = reap_again;
    reaper->instance = instance;
    instance->reaper = reaper;
    return 0;
}

void bmi__reaper_close(struct bmi_instance *instance)
{
    free(instance->reaper);
    instance->reaper = NULL;
}
