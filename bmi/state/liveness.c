/* SPDX-License-Identifier: BSD-3-Clause
 *
 * liveness.c - see liveness.h. `attention` counts the peers that need the timer; of these
 * `connecting` counts those whose connection is not up. A tick for these alone is slow: no such
 * peer can fall silent.
 */
#include "bmi/state/liveness.h"

#include <errno.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/state/library.h"
#include "bmi/state/peer.h"

enum { TICK_LEAST_MS = 5 };

struct bmi__liveness {
    struct bmi_timer ticker; /* first */
    struct bmi_instance *instance;
    atomic_int attention, connecting;
    atomic_bool slow; /* the timer was set for peers that are being connected */
    atomic_bool armed;
    atomic_bool graces; /* cancelled receives wait: ticks are shorter */
};

static bool only_connecting(struct bmi__liveness *liveness)
{
    int connects = atomic_load(&liveness->connecting);
    return connects > 0 && connects >= atomic_load(&liveness->attention);
}

static uint64_t tick_ms(struct bmi_instance *instance, bool is_slow)
{
    struct bmi__liveness *liveness = instance->liveness;
    int64_t silent = is_slow ? 0 : bmi__setting(instance, SETTING_PEER_TIMEOUT) / BMI__TICKS_DEAD;
    int64_t connect = bmi__setting(instance, SETTING_CONNECT_TIMEOUT) / 4;
    int64_t ms = connect;
    if (silent > 0 && silent < ms)
        ms = silent;
    int64_t idle = bmi__setting(instance, SETTING_IDLE_REAP) * 1000 / 4;
    if (idle > 0 && idle < ms)
        ms = idle;
    int64_t grace = bmi__setting(instance, SETTING_CANCEL_GRACE) / 4;
    if (atomic_load(&liveness->graces) && grace < ms)
        ms = grace;
    return (uint64_t)(ms < TICK_LEAST_MS ? TICK_LEAST_MS : ms);
}

static void tick_set(struct bmi_instance *instance)
{
    struct bmi__liveness *liveness = instance->liveness;
    bool is_slow = only_connecting(liveness);
    atomic_store(&liveness->slow, is_slow);
    bmi_method_timer_set(instance, &liveness->ticker, tick_ms(instance, is_slow));
    if (is_slow && !only_connecting(liveness)) { /* meanwhile another thread needs it sooner */
        atomic_store(&liveness->slow, false);
        bmi_method_timer_set(instance, &liveness->ticker, tick_ms(instance, false));
    }
}

static void expired(struct bmi_timer *timer)
{
    struct bmi__liveness *liveness = (struct bmi__liveness *)timer;
    struct bmi_instance *instance = liveness->instance;
    atomic_store(&liveness->graces, false);
    if (instance->upcalls->liveness_expired(instance))
        atomic_store(&liveness->graces, true);
    atomic_store(&liveness->armed, false);
    if (atomic_load(&liveness->attention) > 0 || bmi__setting(instance, SETTING_IDLE_REAP) > 0)
        bmi__liveness_arm(instance);
}

void bmi__liveness_arm(struct bmi_instance *instance)
{
    struct bmi__liveness *liveness = instance->liveness;
    if (!atomic_exchange(&liveness->armed, true))
        tick_set(instance);
}

void bmi__liveness_stop(struct bmi_instance *instance)
{
    bmi_method_timer_clear(instance, &instance->liveness->ticker);
}

/* A reader that sees one of the two counts changed, not the other, takes the shorter tick. */
static void attention_count(struct bmi__liveness *liveness, uint32_t changed, uint32_t now)
{
    if (now & changed & PEER_ATTENTION)
        atomic_fetch_add(&liveness->attention, 1);
    if (changed & PEER_CONNECTING)
        atomic_fetch_add(&liveness->connecting, now & PEER_CONNECTING ? 1 : -1);
    if (changed & ~now & PEER_ATTENTION)
        atomic_fetch_sub(&liveness->attention, 1);
}

void bmi__attention_locked(struct peer *peer)
{
    struct bmi__liveness *liveness = peer->instance->liveness;
    bool closing = bmi__peer_closing(peer);
    bool connects = peer->state == PEER_DIALLING || peer->state == PEER_HANDSHAKE;
    uint32_t now = peer->op_count > 0 || connects || closing ? PEER_ATTENTION : 0;
    if (connects && !closing)
        now |= PEER_CONNECTING;
    uint32_t changed = (peer->flags ^ now) & (PEER_ATTENTION | PEER_CONNECTING);
    if (changed == 0)
        return;
    peer->flags ^= changed;
    attention_count(liveness, changed, now);
    if (now == 0) {
        peer->since_ns = 0;
        return;
    }
    bmi__liveness_arm(peer->instance);
    if (!(now & PEER_CONNECTING) && atomic_exchange(&liveness->slow, false))
        tick_set(peer->instance);
}

void bmi__grace_begins(struct bmi_instance *instance)
{
    struct bmi__liveness *liveness = instance->liveness;
    if (!atomic_exchange(&liveness->graces, true))
        tick_set(instance);
}

void bmi__peer_fail_locked(struct peer *peer, int error, const char *reason)
{
    if (peer->link == NULL || (peer->flags & PEER_CLOSING))
        return;
    if (reason != NULL)
        bmi__log(peer->instance, BMI_LOG_WARN, "%s: %s; ending the connection",
                 bmi__peer_name(peer), reason);
    peer->cause = (int16_t)error;
    peer->flags |= PEER_CLOSING;
    peer->link->method->close(peer->link, false);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__liveness_open(struct bmi_instance *instance)
{
    struct bmi__liveness *liveness = calloc(1, sizeof *liveness);
    if (liveness == NULL)
        return -ENOMEM;
    liveness->ticker.expired = expired;
    liveness->instance = instance;
    instance->liveness = liveness;
    return 0;
}

void bmi__liveness_close(struct bmi_instance *instance)
{
    free(instance->liveness);
    instance->liveness = NULL;
}
