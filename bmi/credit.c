/* SPDX-License-Identifier: BSD-3-Clause
 *
 * credit.c - see credit.h.
 *
 * The budget: `used` is the sum over peers of granted + held + unreported, and of the
 * announcements. Full windows are given until a quarter of the total is used, least ones until five
 * eighths are, and an eighth is the most that announcements take: so a quarter is left at least to
 * be lent on demand to peers in `wants`, first come first served, and every peer gets on however
 * many there are.
 */
#include "bmi/credit.h"

#include <errno.h>

#include "bmi/progress.h"
#include "bmi/settings.h"

static _Atomic int64_t used;
static _Atomic int64_t announced; /* of it, what announcements take */
static pthread_mutex_t wants_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *wants_first, **wants_end = &wants_first; /* wants_lock */

static void serve(struct bmi_deferred *deferred);
static struct bmi_deferred server = {.run = serve};

int64_t bmi__credit_used(void)
{
    return atomic_load(&used);
}

/* Takes bytes of the budget unless that would pass `limit`. */
static bool take(_Atomic int64_t *sum, int64_t bytes, int64_t limit)
{
    int64_t now = atomic_load(sum);
    do
        if (now + bytes > limit)
            return false;
    while (!atomic_compare_exchange_weak(sum, &now, now + bytes));
    return true;
}

static bool budget_take(int64_t bytes, int64_t limit)
{
    return take(&used, bytes, limit);
}

static void budget_return(int64_t bytes)
{
    atomic_fetch_sub(&used, bytes);
    pthread_mutex_lock(&wants_lock);
    bool wanted = wants_first != NULL;
    pthread_mutex_unlock(&wants_lock);
    if (wanted)
        bmi_method_defer(&server);
}

static void window_open(struct window *window, uint32_t full, uint32_t least)
{
    int64_t total = bmi__setting(SETTING_TOTAL_MEMORY);
    uint32_t size = 0;
    if (budget_take(full, total / 4))
        size = full;
    else if (budget_take(least, total / 8 * 5))
        size = least;
    window->standing = window->granted = size;
    window->unreported = 0;
}

/* The most that a window is ever: half of what a peer may have. A program may keep several
 * unexpected messages for long, so their window is no smaller than the other. */
static uint32_t window_most(bool unexpected, uint32_t unexpected_max)
{
    uint32_t half = (uint32_t)(bmi__setting(SETTING_PEER_MEMORY) / 2);
    uint32_t least = unexpected_max + WIRE_MESSAGE_CHARGE;
    return unexpected && half < least ? least : half;
}

/* What a peer that lacks credit needs to get on: as much as it said, at most room for one message
 * of the largest size. What it would not use at once is another's. */
static uint32_t window_least(const struct peer *peer, bool unexpected)
{
    if (peer->link == NULL)
        return 0;
    return unexpected ? peer->unexpected_wanted : 2 * WIRE_MESSAGE_CHARGE;
}

void bmi__credit_open_locked(struct peer *peer, uint32_t unexpected_max)
{
    /* Where the budget is short, room for small messages; for a large one the peer asks (WANT). */
    enum { LEAST = 4096 };
    window_open(&peer->eager, window_most(false, unexpected_max), LEAST);
    window_open(&peer->unexpected_window, window_most(true, unexpected_max), LEAST);
}

static int64_t window_sum(const struct window *window)
{
    return (int64_t)window->granted + window->held + window->unreported;
}

static void wants_remove(struct peer *peer)
{
    pthread_mutex_lock(&wants_lock);
    struct peer **place = &wants_first;
    while (*place != NULL && *place != peer)
        place = &(*place)->wants_next;
    if (*place == peer) {
        *place = peer->wants_next;
        if (wants_end == &peer->wants_next)
            wants_end = place;
    }
    pthread_mutex_unlock(&wants_lock);
}

void bmi__credit_forget_locked(struct peer *peer)
{
    int64_t sum = window_sum(&peer->eager) + window_sum(&peer->unexpected_window);
    uint32_t held = peer->unexpected_window.held; /* the program still has these messages */
    if (peer->flags & PEER_IN_WANTS)
        wants_remove(peer);
    peer->flags &= ~(uint32_t)PEER_IN_WANTS;
    peer->eager = peer->unexpected_window = (struct window){0};
    peer->unexpected_window.held = held;
    if (sum > held)
        budget_return(sum - held);
}

void bmi__credit_orphan_return(uint64_t bytes)
{
    budget_return((int64_t)bytes + WIRE_MESSAGE_CHARGE);
}

int bmi__credit_charge_locked(struct peer *peer, bool unexpected, uint64_t bytes)
{
    struct window *window = unexpected ? &peer->unexpected_window : &peer->eager;
    uint64_t charge = bytes + WIRE_MESSAGE_CHARGE;
    if (charge > window->granted)
        return -EPROTO;
    window->granted -= (uint32_t)charge;
    window->held += (uint32_t)charge;
    return 0;
}

void bmi__credit_return_locked(struct peer *peer, bool unexpected, uint64_t bytes)
{
    struct window *window = unexpected ? &peer->unexpected_window : &peer->eager;
    uint32_t charge = (uint32_t)(bytes + WIRE_MESSAGE_CHARGE);
    window->held -= charge;
    if (!unexpected && window->held < window->standing / 4)
        peer->flags &= ~(uint32_t)PEER_ANNOUNCE_ALL;
    int64_t over = window_sum(window) + charge - window->standing; /* lent beyond the window */
    int64_t most = charge;
    if (over <= 0) { /* as nearly always */
        window->unreported += charge;
        return;
    }
    if (peer->flags & PEER_FULL) { /* it keeps what it needs to get on */
        int64_t lacks =
            (int64_t)window_least(peer, unexpected) - window->granted - window->unreported;
        most -= lacks < 0 ? 0 : lacks < most ? lacks : most;
    }
    if (over > most)
        over = most;
    window->unreported += charge - (uint32_t)over;
    if (over > 0)
        budget_return(over);
}

uint32_t bmi__credit_report_locked(struct peer *peer)
{
    uint32_t credit = peer->eager.unreported;
    peer->eager.unreported = 0;
    peer->eager.granted += credit;
    return credit;
}

/* A peer that has asked (HUNGRY) may lack the last few bytes for its next message. */
static bool worth_telling(const struct peer *peer, const struct window *window)
{
    return window->unreported > 0 && (window->unreported >= window->standing / 4 ||
                                      window->granted == 0 || (peer->flags & PEER_HUNGRY));
}

void bmi__credit_tell_locked(struct peer *peer)
{
    enum { SEEN_MOST = 1024 };
    bool seen = peer->seen - peer->seen_reported >= SEEN_MOST;
    if (!seen && !worth_telling(peer, &peer->eager) &&
        !worth_telling(peer, &peer->unexpected_window))
        return;
    if (peer->unexpected_window.unreported > 0 && !(peer->flags & PEER_IN_WANTS))
        peer->unexpected_wanted = 0;
    peer->flags &= ~(uint32_t)(PEER_HUNGRY | PEER_FULL);
    struct window *window = &peer->unexpected_window;
    struct wire_header header = {.type = WIRE_CREDIT, .source = window->unreported};
    window->granted += window->unreported;
    window->unreported = 0;
    bmi__control_send_locked(peer, header, NULL, 0);
}

/* ---- announcements -------------------------------------------------------------------------- */

bool bmi__announcement_charge_locked(struct peer *peer, uint32_t bytes)
{
    int64_t total = bmi__setting(SETTING_TOTAL_MEMORY);
    if (peer->announcement_bytes + (int64_t)bytes > bmi__setting(SETTING_PEER_MEMORY) / 4 ||
        !take(&announced, bytes, total / 8))
        return false;
    if (!budget_take(bytes, total)) {
        atomic_fetch_sub(&announced, bytes);
        return false;
    }
    peer->announcement_bytes += bytes;
    return true;
}

void bmi__announcement_return_locked(struct peer *peer, uint32_t bytes)
{
    if (bytes == 0)
        return;
    peer->announcement_bytes -= bytes;
    atomic_fetch_sub(&announced, bytes);
    budget_return(bytes);
}

/* ---- credit on demand ----------------------------------------------------------------------- */

/* Gives a peer that lacks credit what it needs to get on. Returns false if the budget has none. */
static bool window_lend(struct peer *peer, bool unexpected)
{
    struct window *window = unexpected ? &peer->unexpected_window : &peer->eager;
    uint32_t least = window_least(peer, unexpected);
    if (window->granted + window->unreported >= least)
        return true; /* it will see */
    uint32_t missing = least - window->granted - window->unreported;
    uint32_t most = window_most(unexpected, (uint32_t)peer->link->method->limits.unexpected_max);
    if (window->held > 0 && window_sum(window) + missing > (int64_t)most + least) {
        peer->flags |= PEER_FULL; /* it gets on as the program takes its messages */
        return true;
    }
    if (!budget_take(missing, bmi__setting(SETTING_TOTAL_MEMORY)))
        return false;
    window->unreported += missing;
    return true;
}

static bool lend(struct peer *peer, uint8_t which)
{
    bool eager = true, unexpected = true;
    if (which & WIRE_EAGER_CREDIT)
        eager = window_lend(peer, false);
    if (which & WIRE_UNEXPECTED_CREDIT)
        unexpected = window_lend(peer, true);
    if (peer->eager.unreported > 0 || peer->unexpected_window.unreported > 0) {
        struct wire_header header = {.type = WIRE_CREDIT,
                                     .source = peer->unexpected_window.unreported};
        peer->unexpected_window.granted += peer->unexpected_window.unreported;
        peer->unexpected_window.unreported = 0;
        bmi__control_send_locked(peer, header, NULL, 0);
    }
    if ((which & WIRE_UNEXPECTED_CREDIT) && unexpected && !(peer->flags & PEER_FULL))
        peer->unexpected_wanted = 0;
    return eager && unexpected;
}

static void wants_add(struct peer *peer)
{
    if (peer->flags & PEER_IN_WANTS)
        return;
    peer->flags |= PEER_IN_WANTS;
    pthread_mutex_lock(&wants_lock);
    peer->wants_next = NULL;
    *wants_end = peer;
    wants_end = &peer->wants_next;
    pthread_mutex_unlock(&wants_lock);
}

/* The peer has no use for some of what it was lent: what its window does not stand at is the
 * budget's again, the rest is the peer's as before. */
static int unused(struct peer *peer, uint64_t bytes)
{
    struct window *window = &peer->unexpected_window;
    if (bytes > window->granted)
        return -EPROTO;
    int64_t over = window_sum(window) - window->standing;
    if (over > (int64_t)bytes)
        over = (int64_t)bytes;
    if (over < 0)
        over = 0;
    window->granted -= (uint32_t)bytes;
    window->unreported += (uint32_t)(bytes - (uint64_t)over);
    if (over > 0)
        budget_return(over);
    bmi__credit_tell_locked(peer);
    return 0;
}

static void unexpected_wanted(struct peer *peer, uint64_t bytes)
{
    uint64_t most = (uint64_t)peer->link->method->limits.unexpected_max + WIRE_MESSAGE_CHARGE;
    peer->unexpected_wanted = (uint32_t)(bytes > 0 && bytes < most ? bytes : most);
}

/* All that the peer sent before has come, so what it was granted is what it has, or will have when
 * it has read what it was told. Who sends a stream of messages asks again and again for that. */
static bool is_on_its_way(const struct window *eager, const struct wire_header *want)
{
    return !(want->flags & WIRE_UNEXPECTED_CREDIT) && want->source > 0 &&
           want->source <= eager->granted;
}

int bmi__credit_wanted_locked(struct peer *peer, const struct wire_header *want)
{
    const struct window *eager = &peer->eager;
    if (want->flags == WIRE_UNUSED)
        return unused(peer, want->source);
    if (want->flags & WIRE_UNEXPECTED_CREDIT)
        unexpected_wanted(peer, want->source);
    bool crowded = eager->unreported == 0 &&
                   (eager->held >= eager->standing / 2 || eager->granted < want->source);
    if ((want->flags & WIRE_EAGER_CREDIT) && crowded && !(peer->flags & PEER_ANNOUNCE_ALL)) {
        peer->flags |= PEER_ANNOUNCE_ALL; /* from now on each receive is, as it is posted */
        bmi__announce_waiting_locked(peer);
    }
    if (want->flags & WIRE_ANNOUNCE)
        bmi__announce_again_locked(peer, want->tag);
    if (is_on_its_way(eager, want))
        return 0;
    peer->flags |= PEER_HUNGRY;
    if (!lend(peer, want->flags))
        wants_add(peer);
    return 0;
}

static struct peer *wants_take(void)
{
    pthread_mutex_lock(&wants_lock);
    struct peer *peer = wants_first;
    if (peer != NULL) {
        wants_first = peer->wants_next;
        if (wants_first == NULL)
            wants_end = &wants_first;
    }
    pthread_mutex_unlock(&wants_lock);
    return peer;
}

/* The driver's: memory came back; those that wait get theirs in turn. */
static void serve(struct bmi_deferred *deferred)
{
    struct peer *peer;
    (void)deferred;
    while ((peer = wants_take()) != NULL) {
        bool served = true;
        peer_lock(peer);
        bool current = (peer->flags & PEER_IN_WANTS) != 0;
        peer->flags &= ~(uint32_t)PEER_IN_WANTS;
        if (current && peer->state == PEER_UP)
            served = lend(peer, WIRE_EAGER_CREDIT | WIRE_UNEXPECTED_CREDIT);
        if (!served)
            wants_add(peer);
        peer_unlock(peer);
        if (!served)
            return;
    }
}

void bmi__credit_want_locked(struct peer *peer, uint8_t which, uint64_t bytes, struct key *key)
{
    uint32_t flag = which == WIRE_EAGER_CREDIT ? PEER_WANTS_EAGER : PEER_WANTS_UNEXPECTED;
    struct wire_header header = {.type = WIRE_WANT, .flags = which, .source = bytes};
    peer->counters.credit_waits++;
    if (key != NULL && !key->asked) {
        key->asked = true;
        header.tag = key->tag;
        header.flags |= WIRE_ANNOUNCE;
    } else if (peer->flags & flag) {
        return;
    }
    peer->flags |= flag;
    bmi__control_send_locked(peer, header, NULL, 0);
}

void bmi__credit_unused_locked(struct peer *peer, uint32_t bytes)
{
    struct wire_header header = {.type = WIRE_WANT, .flags = WIRE_UNUSED, .source = bytes};
    if ((int64_t)bytes > peer->unexpected_credit)
        return;
    peer->unexpected_credit -= bytes;
    bmi__control_send_locked(peer, header, NULL, 0);
}

void bmi__credit_stop(void)
{
    wants_first = NULL;
    wants_end = &wants_first;
    atomic_store(&used, 0);
    atomic_store(&announced, 0);
    atomic_store(&server.pending, false);
}
