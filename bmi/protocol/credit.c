/* SPDX-License-Identifier: BSD-3-Clause
 *
 * credit.c - see credit.h.
 *
 * The budget: `used` is the sum over peers of granted + held + unreported, plus the announcements.
 * New peers get full windows until a quarter of the total is used, and minimum windows until five
 * eighths are used. Announcements take at most an eighth. So at least a quarter stays free to be
 * lent on demand to peers in `wants`, and at least room for one message of the largest size.
 *
 * A peer that wants little is served even if another peer waits for more than is free. That may
 * happen OVERTAKEN_MOST times; then all returned credit is kept for the first peer. So every peer
 * makes progress, nearly first come, first served.
 */
#include "bmi/protocol/credit.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/state/library.h"

struct bmi__credit {
    _Atomic int64_t used;
    _Atomic int64_t announced; /* the part of `used` for announcements */
    pthread_mutex_t wants_lock;
    struct peer *wants_first, **wants_end; /* wants_lock */
    unsigned overtaken;   /* wants_lock: how often others got credit while the first waits */
    atomic_uint returned; /* how often credit came back to the budget */
    struct bmi_deferred server;
};

int64_t bmi__credit_used(struct bmi_instance *instance)
{
    struct bmi__credit *budget = instance->credit;
    return atomic_load(&budget->used);
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

static bool budget_take(struct bmi__credit *budget, int64_t bytes, int64_t limit)
{
    return take(&budget->used, bytes, limit);
}

static void budget_return(struct bmi_instance *instance, int64_t bytes)
{
    struct bmi__credit *budget = instance->credit;
    atomic_fetch_sub(&budget->used, bytes);
    atomic_fetch_add(&budget->returned, 1);
    pthread_mutex_lock(&budget->wants_lock);
    bool wanted = budget->wants_first != NULL;
    pthread_mutex_unlock(&budget->wants_lock);
    if (wanted)
        bmi_method_defer(instance, &budget->server);
}

/* `largest`: the credit that must stay free for lending, beside the announcements' part. */
static void window_open(struct bmi_instance *instance, struct window *window, uint32_t full,
                        uint32_t least, uint32_t largest)
{
    struct bmi__credit *budget = instance->credit;
    int64_t total = bmi__setting(instance, SETTING_TOTAL_MEMORY);
    int64_t most = total / 8 * 5, room = total - total / 8 - largest;
    uint32_t size = 0;
    if (budget_take(budget, full, total / 4))
        size = full;
    else if (budget_take(budget, least, room < most ? room : most))
        size = least;
    window->standing = window->granted = size;
    window->unreported = 0;
}

/* The upper bound of a window: half of a peer's share. The eager window has room for the charges of
 * CHARGED messages more, at the other's expense, so that messages whose sizes make up the half fit.
 * The window for unexpected messages has room for one of the largest size. */
static uint32_t window_most(struct bmi_instance *instance, bool unexpected, uint32_t unexpected_max)
{
    enum { CHARGED = 16, PART = 8 };
    uint32_t half = (uint32_t)(bmi__setting(instance, SETTING_PEER_MEMORY) / 2);
    uint32_t least = unexpected_max + WIRE_MESSAGE_CHARGE;
    uint32_t charges = CHARGED * WIRE_MESSAGE_CHARGE;
    if (charges > half / PART)
        charges = half / PART;
    if (!unexpected)
        return half + charges;
    return half - charges < least ? least : half - charges;
}

/* The credit that a blocked peer needs to continue: the amount that it asked for, at most room for
 * one message of the largest size. More would be unused, and other peers could need it. */
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
    uint32_t largest = unexpected_max + WIRE_MESSAGE_CHARGE;
    window_open(peer->instance, &peer->eager, window_most(peer->instance, false, unexpected_max),
                LEAST, largest);
    window_open(peer->instance, &peer->unexpected_window,
                window_most(peer->instance, true, unexpected_max), LEAST, largest);
}

static int64_t window_sum(const struct window *window)
{
    return (int64_t)window->granted + window->held + window->unreported;
}

static void wants_remove(struct peer *peer)
{
    struct bmi__credit *budget = peer->instance->credit;
    pthread_mutex_lock(&budget->wants_lock);
    struct peer **place = &budget->wants_first;
    while (*place != NULL && *place != peer)
        place = &(*place)->wants_next;
    if (*place == peer) {
        if (place == &budget->wants_first)
            budget->overtaken = 0;
        *place = peer->wants_next;
        if (budget->wants_end == &peer->wants_next)
            budget->wants_end = place;
    }
    pthread_mutex_unlock(&budget->wants_lock);
}

/* The flag of the window, since the flags of the two windows change separately. */
static uint32_t hungry_of(bool unexpected)
{
    return unexpected ? PEER_HUNGRY_UNEXPECTED : PEER_HUNGRY;
}

static uint32_t full_of(bool unexpected)
{
    return unexpected ? PEER_FULL_UNEXPECTED : PEER_FULL;
}

/* The peer is being informed of credit for the window. It asks again if that is not enough. */
static void told(struct peer *peer, bool unexpected)
{
    peer->flags &= ~(hungry_of(unexpected) | full_of(unexpected));
}

void bmi__credit_forget_locked(struct peer *peer)
{
    int64_t sum = window_sum(&peer->eager) + window_sum(&peer->unexpected_window);
    uint32_t held = peer->unexpected_window.held; /* the program still has these messages */
    if (peer->flags & PEER_IN_WANTS)
        wants_remove(peer);
    peer->flags &= ~(uint32_t)(PEER_IN_WANTS | PEER_TAKES_LARGE);
    peer->in_time = peer->too_late = 0;
    peer->eager = peer->unexpected_window = (struct window){0};
    peer->unexpected_window.held = held;
    if (sum > held)
        budget_return(peer->instance, sum - held);
}

void bmi__credit_orphan_return(struct bmi_instance *instance, uint64_t bytes)
{
    budget_return(instance, (int64_t)bytes + WIRE_MESSAGE_CHARGE);
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
    if (peer->flags & full_of(unexpected)) { /* it keeps the credit that it needs to continue */
        int64_t lacks =
            (int64_t)window_least(peer, unexpected) - window->granted - window->unreported;
        most -= lacks < 0 ? 0 : lacks < most ? lacks : most;
    }
    if (over > most)
        over = most;
    window->unreported += charge - (uint32_t)over;
    if (over > 0)
        budget_return(peer->instance, over);
}

uint32_t bmi__credit_report_locked(struct peer *peer)
{
    uint32_t credit = peer->eager.unreported;
    if (credit > 0)
        told(peer, false);
    peer->eager.unreported = 0;
    peer->eager.granted += credit;
    return credit;
}

/* A peer that has asked (HUNGRY) may lack only a few bytes for its next message. */
static bool worth_telling(const struct peer *peer, bool unexpected)
{
    const struct window *window = unexpected ? &peer->unexpected_window : &peer->eager;
    return window->unreported > 0 &&
           (window->unreported >= window->standing / 4 || window->granted == 0 ||
            (peer->flags & hungry_of(unexpected)));
}

static void credit_send_locked(struct peer *peer)
{
    struct window *window = &peer->unexpected_window;
    struct wire_header header = {.type = WIRE_CREDIT, .source = window->unreported};
    window->granted += window->unreported;
    window->unreported = 0;
    bmi__control_send_locked(peer, header, NULL, 0);
}

void bmi__credit_tell_locked(struct peer *peer)
{
    enum { SEEN_MOST = 1024 };
    bool seen = peer->seen - peer->seen_reported >= SEEN_MOST;
    if (!seen && !worth_telling(peer, false) && !worth_telling(peer, true))
        return;
    if (peer->unexpected_window.unreported > 0 && !(peer->flags & PEER_IN_WANTS))
        peer->unexpected_wanted = 0;
    if (peer->unexpected_window.unreported > 0)
        told(peer, true);
    credit_send_locked(peer);
}

/* ---- announcements -------------------------------------------------------------------------- */

bool bmi__announcement_charge_locked(struct peer *peer, uint32_t bytes)
{
    struct bmi__credit *budget = peer->instance->credit;
    int64_t total = bmi__setting(peer->instance, SETTING_TOTAL_MEMORY);
    if (peer->announcement_bytes + (int64_t)bytes >
            bmi__setting(peer->instance, SETTING_PEER_MEMORY) / 4 ||
        !take(&budget->announced, bytes, total / 8))
        return false;
    if (!budget_take(budget, bytes, total)) {
        atomic_fetch_sub(&budget->announced, bytes);
        return false;
    }
    peer->announcement_bytes += bytes;
    return true;
}

void bmi__announcement_return_locked(struct peer *peer, uint32_t bytes)
{
    struct bmi__credit *budget = peer->instance->credit;
    if (bytes == 0)
        return;
    peer->announcement_bytes -= bytes;
    atomic_fetch_sub(&budget->announced, bytes);
    budget_return(peer->instance, bytes);
}

/* ---- credit on demand ----------------------------------------------------------------------- */

/* How often other peers may be served before the first waiting one. */
enum { OVERTAKEN_MOST = 256 };

/* Whether returned credit is kept for the first waiting peer. */
static bool kept_for_first(struct bmi__credit *budget)
{
    pthread_mutex_lock(&budget->wants_lock);
    bool kept = budget->wants_first != NULL && budget->overtaken >= OVERTAKEN_MOST;
    pthread_mutex_unlock(&budget->wants_lock);
    return kept;
}

static void overtake(struct bmi__credit *budget)
{
    pthread_mutex_lock(&budget->wants_lock);
    budget->overtaken += budget->wants_first != NULL;
    pthread_mutex_unlock(&budget->wants_lock);
}

/* The first peer is served; another one is first now. */
static void overtake_none(struct bmi__credit *budget)
{
    pthread_mutex_lock(&budget->wants_lock);
    budget->overtaken = 0;
    pthread_mutex_unlock(&budget->wants_lock);
}

/* Lends a blocked peer the credit that it needs to continue. `first`: even if others wait. Returns
 * false if the budget has too little. */
static bool window_lend(struct peer *peer, bool unexpected, bool first)
{
    struct bmi__credit *budget = peer->instance->credit;
    struct window *window = unexpected ? &peer->unexpected_window : &peer->eager;
    uint32_t least = window_least(peer, unexpected);
    if (window->granted + window->unreported >= least)
        return true; /* it will see */
    uint32_t missing = least - window->granted - window->unreported;
    uint32_t most = window_most(peer->instance, unexpected,
                                (uint32_t)peer->link->method->limits.unexpected_max);
    if (window->held > 0 && window_sum(window) + missing > (int64_t)most + least) {
        peer->flags |= full_of(unexpected); /* it gets on as the program takes its messages */
        if (unexpected)
            peer->instance->upcalls->unexpected_stalled(peer->instance);
        return true;
    }
    if ((!first && kept_for_first(budget)) ||
        !budget_take(budget, missing, bmi__setting(peer->instance, SETTING_TOTAL_MEMORY)))
        return false;
    if (!first)
        overtake(budget);
    window->unreported += missing;
    return true;
}

static bool lend(struct peer *peer, uint8_t which, bool first)
{
    bool eager = true, unexpected = true;
    if (which & WIRE_EAGER_CREDIT)
        eager = window_lend(peer, false, first);
    if (which & WIRE_UNEXPECTED_CREDIT)
        unexpected = window_lend(peer, true, first);
    if (peer->eager.unreported > 0 || peer->unexpected_window.unreported > 0)
        credit_send_locked(peer);
    if ((which & WIRE_UNEXPECTED_CREDIT) && unexpected && !(peer->flags & PEER_FULL_UNEXPECTED))
        peer->unexpected_wanted = 0;
    return eager && unexpected;
}

enum { AS_LAST = -1 };

/* Inserts the peer behind `behind` waiting peers, or at the end. `before` is the value of
 * `returned` when the budget had too little: credit that came back since then may have found no
 * peer waiting. */
static void wants_add(struct peer *peer, int behind, unsigned before)
{
    struct bmi__credit *budget = peer->instance->credit;
    if (peer->flags & PEER_IN_WANTS)
        return;
    peer->flags |= PEER_IN_WANTS;
    pthread_mutex_lock(&budget->wants_lock);
    struct peer **place = behind == AS_LAST ? budget->wants_end : &budget->wants_first;
    for (int i = 0; *place != NULL && i < behind; i++)
        place = &(*place)->wants_next;
    peer->wants_next = *place;
    *place = peer;
    if (peer->wants_next == NULL)
        budget->wants_end = &peer->wants_next;
    pthread_mutex_unlock(&budget->wants_lock);
    if (atomic_load(&budget->returned) != before)
        bmi_method_defer(peer->instance, &budget->server);
}

/* The peer cannot use some of the credit that it was lent. Credit above the window's standing size
 * returns to the budget; the rest stays with the peer. */
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
        budget_return(peer->instance, over);
    bmi__credit_tell_locked(peer);
    return 0;
}

static void unexpected_wanted(struct peer *peer, uint64_t bytes)
{
    uint64_t most = (uint64_t)peer->link->method->limits.unexpected_max + WIRE_MESSAGE_CHARGE;
    peer->unexpected_wanted = (uint32_t)(bytes > 0 && bytes < most ? bytes : most);
}

/* All earlier frames of the peer have arrived. So the granted credit is the credit that the peer
 * has, or will have when it has read our frames. A peer that sends a stream of messages repeats its
 * request for that credit. */
static bool is_on_its_way(const struct window *eager, const struct wire_header *want)
{
    return !(want->flags & WIRE_UNEXPECTED_CREDIT) && want->source > 0 &&
           want->source <= eager->granted;
}

int bmi__credit_wanted_locked(struct peer *peer, const struct wire_header *want)
{
    struct bmi__credit *budget = peer->instance->credit;
    const struct window *eager = &peer->eager;
    if (want->flags == WIRE_UNUSED)
        return unused(peer, want->source);
    if (want->flags & WIRE_UNEXPECTED_CREDIT)
        unexpected_wanted(peer, want->source);
    bool crowded = eager->unreported == 0 &&
                   (eager->held >= eager->standing / 2 || eager->granted < want->source);
    if ((want->flags & WIRE_EAGER_CREDIT) && crowded && !(peer->flags & PEER_ANNOUNCE_ALL)) {
        peer->flags |= PEER_ANNOUNCE_ALL; /* from now on, each receive is announced at its post */
        bmi__announce_waiting_locked(peer);
    }
    if (want->flags & WIRE_ANNOUNCE)
        bmi__announce_again_locked(peer, want->tag);
    if (is_on_its_way(eager, want))
        return 0;
    if (want->flags & WIRE_UNEXPECTED_CREDIT)
        peer->flags |= PEER_HUNGRY_UNEXPECTED;
    else
        peer->flags |= PEER_HUNGRY;
    unsigned before = atomic_load(&budget->returned);
    if (!lend(peer, want->flags, false))
        wants_add(peer, AS_LAST, before);
    return 0;
}

/* Removes the peer that has `behind` peers before it. NULL: there is none. */
static struct peer *wants_take(struct bmi__credit *budget, int behind)
{
    pthread_mutex_lock(&budget->wants_lock);
    struct peer **place = &budget->wants_first;
    for (int i = 0; *place != NULL && i < behind; i++)
        place = &(*place)->wants_next;
    struct peer *peer = *place;
    if (peer != NULL) {
        *place = peer->wants_next;
        if (peer->wants_next == NULL)
            budget->wants_end = place;
    }
    pthread_mutex_unlock(&budget->wants_lock);
    return peer;
}

/* Serves the waiting peer that has `behind` peers before it. Returns whether it got its credit. */
static bool serve_one(struct peer *peer, int behind)
{
    struct bmi__credit *budget = peer->instance->credit;
    bool served = true;
    peer_lock(peer);
    unsigned before = atomic_load(&budget->returned);
    bool current = (peer->flags & PEER_IN_WANTS) != 0;
    peer->flags &= ~(uint32_t)PEER_IN_WANTS;
    if (current && peer->state == PEER_UP)
        served = lend(peer, WIRE_EAGER_CREDIT | WIRE_UNEXPECTED_CREDIT, behind == 0);
    if (!served)
        wants_add(peer, behind, before);
    peer_unlock(peer);
    return served;
}

/* Run by the poller: memory came back, so waiting peers are served in turn. Credit that is too
 * little for the first may suffice for one of the next few. */
static void serve(struct bmi_deferred *deferred)
{
    struct bmi__credit *budget =
        (struct bmi__credit *)((char *)deferred - offsetof(struct bmi__credit, server));
    enum { LOOKED_AT_MOST = 16 };
    struct peer *peer;
    int behind = 0;
    while (behind < LOOKED_AT_MOST && (peer = wants_take(budget, behind)) != NULL) {
        if (!serve_one(peer, behind))
            behind++;
        else if (behind == 0)
            overtake_none(budget);
    }
}

void bmi__credit_want_locked(struct peer *peer, uint8_t which, uint64_t bytes,
                             struct tag_queue *queue)
{
    uint32_t flag = which == WIRE_EAGER_CREDIT ? PEER_WANTS_EAGER : PEER_WANTS_UNEXPECTED;
    struct wire_header header = {.type = WIRE_WANT, .flags = which, .source = bytes};
    peer->counters.credit_waits++;
    BMI_PROBE(3, credit_wait, peer, which, bytes);
    if (queue != NULL && !queue->asked) {
        queue->asked = true;
        header.tag = queue->tag;
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

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__credit_open(struct bmi_instance *instance)
{
    struct bmi__credit *budget = calloc(1, sizeof *budget);
    if (budget == NULL)
        return -ENOMEM;
    pthread_mutex_init(&budget->wants_lock, NULL);
    budget->wants_end = &budget->wants_first;
    budget->server.run = serve;
    instance->credit = budget;
    return 0;
}

void bmi__credit_close(struct bmi_instance *instance)
{
    free(instance->credit);
    instance->credit = NULL;
}
