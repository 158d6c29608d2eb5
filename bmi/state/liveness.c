/* SPDX-License-Identifier: BSD-3-Clause
 *
 * liveness.c - see liveness.h. `attention` counts the peers that need the timer; of these
 * `connecting` counts those whose connection is not up. A tick for these alone is slow: no such
 * peer can fall silent.
 */
#include "bmi/state/liveness.h"

#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/state/library.h"
#include "bmi/state/peer.h"

enum { TICK_LEAST_MS = 5 };

static atomic_int attention, connecting;
static atomic_bool slow; /* the timer was set for peers that are being connected */
static atomic_bool armed;
static atomic_bool graces; /* cancelled receives wait: ticks are shorter */

static void expired(struct bmi_timer *timer);
static struct bmi_timer ticker = {.expired = expired};

static bool only_connecting(void)
{
    int connects = atomic_load(&connecting);
    return connects > 0 && connects >= atomic_load(&attention);
}

static uint64_t tick_ms(bool is_slow)
{
    int64_t silent = is_slow ? 0 : bmi__setting(SETTING_PEER_TIMEOUT) / BMI__TICKS_DEAD;
    int64_t connect = bmi__setting(SETTING_CONNECT_TIMEOUT) / 4;
    int64_t ms = connect;
    if (silent > 0 && silent < ms)
        ms = silent;
    int64_t idle = bmi__setting(SETTING_IDLE_REAP) * 1000 / 4;
    if (idle > 0 && idle < ms)
        ms = idle;
    int64_t grace = bmi__setting(SETTING_CANCEL_GRACE) / 4;
    if (atomic_load(&graces) && grace < ms)
        ms = grace;
    return (uint64_t)(ms < TICK_LEAST_MS ? TICK_LEAST_MS : ms);
}

static void tick_set(void)
{
    bool is_slow = only_connecting();
    atomic_store(&slow, is_slow);
    bmi_method_timer_set(&ticker, tick_ms(is_slow));
    if (is_slow && !only_connecting()) { /* meanwhile another thread needs it sooner */
        atomic_store(&slow, false);
        bmi_method_timer_set(&ticker, tick_ms(false));
    }
}

static void expired(struct bmi_timer *timer)
{
    (void)timer;
    atomic_store(&graces, false);
    if (bmi__upcalls->liveness_expired())
        atomic_store(&graces, true);
    atomic_store(&armed, false);
    if (atomic_load(&attention) > 0 || bmi__setting(SETTING_IDLE_REAP) > 0)
        bmi__liveness_arm();
}

void bmi__liveness_arm(void)
{
    if (!atomic_exchange(&armed, true))
        tick_set();
}

void bmi__liveness_stop(void)
{
    bmi_method_timer_clear(&ticker);
    atomic_store(&attention, 0);
    atomic_store(&connecting, 0);
    atomic_store(&armed, false);
    atomic_store(&graces, false);
}

/* A reader that sees one of the two counts changed, not the other, takes the shorter tick. */
static void attention_count(uint32_t changed, uint32_t now)
{
    if (now & changed & PEER_ATTENTION)
        atomic_fetch_add(&attention, 1);
    if (changed & PEER_CONNECTING)
        atomic_fetch_add(&connecting, now & PEER_CONNECTING ? 1 : -1);
    if (changed & ~now & PEER_ATTENTION)
        atomic_fetch_sub(&attention, 1);
}

void bmi__attention_locked(struct peer *peer)
{
    bool closing = bmi__peer_closing(peer);
    bool connects = peer->state == PEER_DIALLING || peer->state == PEER_HANDSHAKE;
    uint32_t now = peer->op_count > 0 || connects || closing ? PEER_ATTENTION : 0;
    if (connects && !closing)
        now |= PEER_CONNECTING;
    uint32_t changed = (peer->flags ^ now) & (PEER_ATTENTION | PEER_CONNECTING);
    if (changed == 0)
        return;
    peer->flags ^= changed;
    attention_count(changed, now);
    if (now == 0) {
        peer->since_ns = 0;
        return;
    }
    bmi__liveness_arm();
    if (!(now & PEER_CONNECTING) && atomic_exchange(&slow, false))
        tick_set();
}

void bmi__grace_begins(void)
{
    if (!atomic_exchange(&graces, true))
        tick_set();
}

void bmi__peer_fail_locked(struct peer *peer, int error, const char *reason)
{
    if (peer->link == NULL || (peer->flags & PEER_CLOSING))
        return;
    if (reason != NULL)
        bmi__log(BMI_LOG_WARN, "%s: %s; ending the connection", bmi__peer_name(peer), reason);
    peer->cause = (int16_t)error;
    peer->flags |= PEER_CLOSING;
    peer->link->method->close(peer->link, false);
}
