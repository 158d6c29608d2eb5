/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_link.c - a link's life: connected or accepted, up, closed, taken down.
 *
 * Any thread may request the end: it closes the NIC's peer under send_lock. The poller takes the
 * link down once, on the NIC's NIC_PEER_DOWN_EVENT: by then the NIC has called all callbacks.
 */
#include <stdlib.h>

#include "gm.h"

static void link_destroy(struct bmi_link *base)
{
    free(gm_link_of(base));
}

static void link_deferred(struct bmi_deferred *deferred)
{
    struct gm_link *link = gm_container(deferred, struct gm_link, deferred);
    atomic_store(&link->kicked, false);
    gm_link_step(link);
    bmi_link_unref(&link->base);
}

void gm_link_kick(struct gm_link *link)
{
    if (atomic_exchange(&link->kicked, true))
        return;
    bmi_link_ref(&link->base);
    bmi_method_defer(link->base.instance, &link->deferred);
}

static struct gm_link *link_new(struct gm_state *state)
{
    struct gm_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return NULL;
    link->base.method = &bmi__method_gm;
    link->base.instance = state->instance;
    link->base.state = state;
    link->base.destroy = link_destroy;
    atomic_init(&link->base.references, 1);
    link->deferred.run = link_deferred;
    link->puts_tail = &link->puts;
    gm_lock(&state->lock);
    cds_hlist_add_head(&link->listed, &state->links);
    gm_unlock(&state->lock);
    return link;
}

/* Removes the link from the method's list, and drops the method's reference. */
static void link_remove(struct gm_link *link)
{
    struct gm_state *state = gm_state_of(link);
    gm_lock(&state->lock);
    cds_hlist_del(&link->listed);
    gm_unlock(&state->lock);
    bmi_link_unref(&link->base);
}

/* ---- coming --------------------------------------------------------------------------------- */

int gm_connect(void *argument, const char *canonical, void *owner, struct bmi_link **out)
{
    struct gm_state *state = argument;
    struct gm_address address;
    int status = gm_address_parse(canonical, &address, NULL);
    if (status != 0)
        return status;
    struct gm_link *link = link_new(state);
    if (link == NULL)
        return -ENOMEM;
    link->base.owner = owner;
    gm_lock(&link->send_lock); /* the poller may see the peer before link->peer is set */
    status = nic_connect(state->port, address.host, address.number, link, &link->peer);
    gm_unlock(&link->send_lock);
    if (status != 0) {
        link_remove(link);
        return status;
    }
    *out = &link->base;
    return 0;
}

static void link_open(struct gm_link *link, struct nic_peer *peer, bool dialled)
{
    int process;
    unsigned user;
    uint64_t most = nic_peer_max_length(peer, NIC_LOW_PRIORITY);
    gm_lock(&link->send_lock);
    link->peer = peer;
    link->message_max = most < 1u << GM_SIZE ? (uint32_t)most : 1u << GM_SIZE;
    link->phase = GM_UP;
    gm_unlock(&link->send_lock);
    gm_count(link, BMI_COUNT_LINKS, 1);
    nic_peer_process(peer, &process, &user);
    /* All ports of this NIC are on this host. */
    bmi_method_link_host(&link->base, "127.0.0.1", (uint32_t)process);
    bmi_method_link_user(&link->base, user, dialled);
}

void gm_link_up(struct gm_link *link, struct nic_peer *peer)
{
    link_open(link, peer, true);
    gm_count(link, BMI_COUNT_LINKS_OPENED, 1);
    bmi_method_link_up(&link->base);
    gm_link_step(link);
}

void gm_link_accepted(struct gm_state *state, struct nic_peer *peer)
{
    struct gm_link *link = link_new(state);
    if (link == NULL) {
        nic_peer_close(peer);
        return;
    }
    link_open(link, peer, false);
    nic_peer_set_context(peer, link);
    int status = bmi_method_link_accepted(&link->base);
    if (status == 0) {
        gm_count(link, BMI_COUNT_LINKS_ACCEPTED, 1);
        return;
    }
    nic_peer_set_context(peer, NULL);
    nic_peer_close(peer);
    gm_count(link, BMI_COUNT_LINKS, -1);
    gm_lock(&link->send_lock);
    link->phase = GM_DOWN;
    gm_unlock(&link->send_lock);
    link_remove(link);
}

/* ---- going ---------------------------------------------------------------------------------- */

static void close_locked(struct gm_link *link)
{
    gm_assert_locked(&link->send_lock);
    if (link->closed || link->phase == GM_DOWN)
        return;
    link->closed = true;
    atomic_store(&link->deaf, true);
    nic_peer_close(link->peer);
}

void gm_link_fail_locked(struct gm_link *link, int status)
{
    if (link->failure == 0)
        link->failure = status;
    close_locked(link);
}

void gm_link_fail(struct gm_link *link, int status)
{
    gm_lock(&link->send_lock);
    gm_link_fail_locked(link, status);
    gm_unlock(&link->send_lock);
}

void gm_close(struct bmi_link *base, bool linger)
{
    struct gm_link *link = gm_link_of(base);
    enum gm_closing wanted = linger ? GM_CLOSE_LINGERING : GM_CLOSE_NOW;
    gm_lock(&link->send_lock);
    bool news = link->phase != GM_DOWN && link->closing < wanted;
    if (news) {
        link->closing = wanted;
        atomic_store(&link->deaf, true);
    }
    if (news && !linger)
        close_locked(link);
    gm_unlock(&link->send_lock);
    if (news)
        gm_link_kick(link);
}

bool gm_link_idle_locked(const struct gm_link *link)
{
    return link->queue.first == NULL && !link->pending && !gm_puts_left_locked(link);
}

void gm_link_step(struct gm_link *link)
{
    gm_lock(&link->send_lock);
    bool down = link->phase == GM_DOWN;
    if (!down && link->closing == GM_CLOSE_LINGERING && gm_link_idle_locked(link))
        close_locked(link);
    bool work =
        !down && (link->queue.first != NULL || gm_puts_left_locked(link) || link->refused != NULL);
    gm_unlock(&link->send_lock);
    if (!work)
        return;
    gm_puts_refuse(link);
    gm_flush(&link->base);
}

/* Chooses the status of the link, and of its returned frames. */
static int end_status(struct gm_link *link, int status, int *returned)
{
    gm_lock(&link->send_lock);
    if (link->closing != GM_OPEN)
        status = link->closing == GM_CLOSE_LINGERING && link->failure != 0 ? link->failure : 0;
    else if (link->failure != 0)
        status = link->failure;
    *returned = link->closing == GM_CLOSE_NOW ? -ECANCELED : status != 0 ? status : -ECONNRESET;
    gm_unlock(&link->send_lock);
    return status;
}

static void give_back(struct gm_link *link, int status)
{
    gm_lock(&link->send_lock);
    struct bmi_frame *frames = bmi_frame_queue_take(&link->queue);
    link->pending = false;
    gm_unlock(&link->send_lock);
    for (struct bmi_frame *at = frames; at != NULL; at = at->next)
        at->status = status;
    if (frames != NULL)
        bmi_method_frames_sent(&link->base, frames);
    gm_puts_end(link, status);
}

static void end_begin(struct gm_link *link, int status)
{
    struct gm_state *state = gm_state_of(link);
    gm_lock(&link->send_lock);
    bool was_up = link->phase == GM_UP;
    link->phase = GM_DOWN;
    gm_unlock(&link->send_lock);
    link->ending = true;
    link->ending_status = status;
    link->ending_next = state->ending;
    state->ending = link;
    if (was_up)
        gm_count(link, BMI_COUNT_LINKS, -1);
    gm_receive_end(link);
}

/* No peer writes to our memory any more. */
static void end_finish(struct gm_link *link)
{
    struct gm_link **at = &gm_state_of(link)->ending;
    struct nic_peer *peer = link->ending_peer;
    int returned, status = end_status(link, link->ending_status, &returned);
    while (*at != link)
        at = &(*at)->ending_next;
    *at = link->ending_next;
    give_back(link, returned);
    if (status != 0)
        gm_count(link, BMI_COUNT_LINKS_FAILED, 1);
    bmi_method_link_down(&link->base, status);
    give_back(link, returned); /* frames of a thread that sent before the core could notify it of
                                * the end */
    link_remove(link);
    if (peer != NULL)
        nic_peer_release(peer);
}

void gm_link_end(struct gm_link *link, struct nic_peer *peer, int status, enum gm_patience patience)
{
    if (!link->ending)
        end_begin(link, status);
    if (peer != NULL)
        link->ending_peer = peer;
    if (gm_exposures_end(link, patience))
        end_finish(link);
    else
        bmi_method_timer_set(link->base.instance, &gm_state_of(link)->ending_timer, GM_ENDING_MS);
}

void gm_ending_retry(struct bmi_timer *timer)
{
    struct gm_state *state = gm_container(timer, struct gm_state, ending_timer);
    struct gm_link *next;
    for (struct gm_link *link = state->ending; link != NULL; link = next) {
        next = link->ending_next;
        bool enough = ++link->ending_tries >= GM_STOPPED_MS / GM_ENDING_MS;
        gm_link_end(link, NULL, 0, enough ? GM_GIVE_UP : GM_LATER);
    }
}

/* ---- starving ------------------------------------------------------------------------------- */

/* Only the wanted resource counts: a link that waits for a token is tried again even while
 * directed sends to stopped peers use up all directed sends, and vice versa. */
static bool resources_free(struct gm_state *state, enum gm_want want)
{
    return nic_num_send_tokens(state->port) > 0 &&
           (want != GM_WANT_PUT || atomic_load(&state->puts_out) < state->puts_most);
}

void gm_link_starve(struct gm_link *link, enum gm_want want)
{
    struct gm_state *state = gm_state_of(link);
    gm_lock(&state->lock);
    if (!link->starved[want]) {
        bmi_link_ref(&link->base);
        link->starved[want] = true;
        link->starved_next[want] = NULL;
        *state->starved_tail[want] = link;
        state->starved_tail[want] = &link->starved_next[want];
    }
    gm_unlock(&state->lock);
    atomic_store(&state->any_starved[want], true);
    if (resources_free(state, want)) /* some came back before the link was on the list */
        bmi_method_defer(link->base.instance, &state->retry);
}

static struct gm_link *starved_pop(struct gm_state *state, enum gm_want want)
{
    gm_lock(&state->lock);
    struct gm_link *link = state->starved[want];
    if (link != NULL) {
        state->starved[want] = link->starved_next[want];
        if (state->starved[want] == NULL)
            state->starved_tail[want] = &state->starved[want];
        link->starved[want] = false;
    }
    gm_unlock(&state->lock);
    return link;
}

/* Serves links in the order in which they starved; stops when one starves again for the same. */
static void starved_feed(struct gm_state *state, enum gm_want want)
{
    struct gm_link *link;
    atomic_store(&state->any_starved[want], false);
    while (!atomic_load(&state->any_starved[want]) && (link = starved_pop(state, want)) != NULL) {
        gm_flush(&link->base);
        bmi_link_unref(&link->base);
    }
}

void gm_starved_retry(struct bmi_deferred *deferred)
{
    struct gm_state *state = gm_container(deferred, struct gm_state, retry);
    for (int want = 0; want < GM_WANTS; want++)
        starved_feed(state, (enum gm_want)want);
}

void gm_starved_drop(struct gm_state *state)
{
    struct gm_link *link;
    for (int want = 0; want < GM_WANTS; want++)
        while ((link = starved_pop(state, (enum gm_want)want)) != NULL)
            bmi_link_unref(&link->base);
}
