/* SPDX-License-Identifier: BSD-3-Clause
 *
 * liveness.c - see liveness.h. `attention` counts the peers that need the timer.
 */
#include "bmi/state/liveness.h"

#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/state/library.h"
#include "bmi/state/peer.h"

enum { TICK_LEAST_MS = 5 };

static atomic_int attention;
static atomic_bool armed;
static atomic_bool graces; /* cancelled receives wait: ticks are shorter */

static void expired(struct bmi_timer *timer);
static struct bmi_timer ticker = {.expired = expired};

static uint64_t tick_ms(void)
{
    int64_t silent = bmi__setting(SETTING_PEER_TIMEOUT) / BMI__TICKS_DEAD;
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
        bmi_method_timer_set(&ticker, tick_ms());
}

void bmi__liveness_stop(void)
{
    bmi_method_timer_clear(&ticker);
    atomic_store(&attention, 0);
    atomic_store(&armed, false);
    atomic_store(&graces, false);
}

void bmi__attention_locked(struct peer *peer)
{
    bool has = (peer->flags & PEER_ATTENTION) != 0;
    bool needs = peer->op_count > 0 || peer->state == PEER_DIALLING ||
                 peer->state == PEER_HANDSHAKE || bmi__peer_closing(peer);
    if (has == needs)
        return;
    peer->flags ^= PEER_ATTENTION;
    if (!needs) {
        peer->since_ns = 0;
        atomic_fetch_sub(&attention, 1);
        return;
    }
    atomic_fetch_add(&attention, 1);
    bmi__liveness_arm();
}

void bmi__grace_begins(void)
{
    if (!atomic_exchange(&graces, true))
        bmi_method_timer_set(&ticker, tick_ms());
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
