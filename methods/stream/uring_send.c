/* SPDX-License-Identifier: BSD-3-Clause
 *
 * uring_send.c - sends of the io_uring engine that share a system call. A busy server answers many
 * clients between two looks at the network; of all its work the calls that send cost most.
 *
 * The writer of a link copies the frames that it has gathered, if they are few bytes, into a slot.
 * From then on the frames are the core's again, as if the socket had them. The slot is the
 * kernel's from its submission to its completion, also when the link ends or the program does not
 * call the library: the end cancels the request, and the slot's reference keeps the link. A thread
 * that queued or submitted a send may exit: then the kernel cancels it, and the poller sends the
 * rest again.
 *
 * Order. link->sending is set before the request exists, by the writer, and until the poller has
 * taken the last completion no thread writes to that link. So a link has one request at most, and
 * no write overtakes it. A short send goes on with its rest.
 *
 * When. A look that brings bytes of several links is expected to lead to a send on each of them.
 * Until as many sends have come, they wait; they go with the last of these, with the
 * QUEUED_MOST-th, or when the poller next runs deferred calls: at the next test call at the latest.
 * All others go out at once, by a system call of their own. While the poller may block, or nobody
 * polls and the core's descriptor is watched, nothing waits (`armed`).
 *
 * Locks. The ring's lock guards slots and lists. It is innermost: the send lock may be held, though
 * the writer holds none. Only the poller clears link->sending, under the send lock.
 */
#if BMI_WITH_URING
#include "uring.h"

#include <stdlib.h>
#include <sys/socket.h>

enum { SLOTS = 128, SLOT_BYTES = 2048, QUEUED_MOST = 64 };

struct uring_slot {
    struct stream_link *link; /* a reference */
    struct uring_slot *next;
    int fd;
    uint16_t from, end; /* bytes to send */
    uint8_t bytes[SLOT_BYTES];
};

_Static_assert(SLOTS <= UINT8_MAX, "link->sending is a slot's number, from 1 on");

static struct uring_slot *slot_of(const struct stream_uring *uring, const struct stream_link *link)
{
    return &uring->sends.slots[atomic_load(&link->sending) - 1];
}

/* Links are aligned, so their addresses, by which receives are known, are even. */
static uint64_t request_of(const struct uring_slot *slot)
{
    return (uintptr_t)slot | 1;
}

bool stream_uring_is_send(uint64_t request)
{
    return request & 1;
}

/* ---- slots ---------------------------------------------------------------------------------- */

static struct uring_slot *slot_take_locked(struct uring_sends *sends)
{
    struct uring_slot *slot = sends->free;
    if (!slot)
        return NULL;
    sends->free = slot->next;
    sends->used++;
    return slot;
}

static void slot_free_locked(struct uring_sends *sends, struct uring_slot *slot)
{
    slot->next = sends->free;
    sends->free = slot;
    sends->used--;
}

static void slot_fill(struct uring_slot *slot, const struct iovec *iov, size_t count)
{
    slot->from = slot->end = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(slot->bytes + slot->end, iov[i].iov_base, iov[i].iov_len);
        slot->end = (uint16_t)(slot->end + iov[i].iov_len);
    }
}

static void slot_wait_locked(struct uring_sends *sends, struct uring_slot *slot)
{
    slot->next = NULL;
    *sends->waiting_last = slot;
    sends->waiting_last = &slot->next;
}

void stream_uring_sends_queue_locked(struct stream_uring *uring)
{
    struct uring_sends *sends = &uring->sends;
    struct uring_slot *slot;
    struct io_uring_sqe *entry;

    while ((slot = sends->waiting) && (entry = stream_uring_entry_locked(uring))) {
        io_uring_prep_send(entry, slot->fd, slot->bytes + slot->from,
                           (size_t)(slot->end - slot->from), MSG_NOSIGNAL);
        io_uring_sqe_set_data64(entry, request_of(slot));
        sends->waiting = slot->next;
    }
    if (!sends->waiting)
        sends->waiting_last = &sends->waiting;
    sends->unsubmitted = 0;
}

/* ---- when ----------------------------------------------------------------------------------- */

void stream_uring_pass_begin(struct stream_uring *uring)
{
    if (!uring->sends.armed)
        return;
    stream_lock(&uring->lock);
    uring->sends.armed = false;
    stream_unlock(&uring->lock);
}

void stream_uring_link_brought(struct stream_uring *uring, const struct stream_link *link)
{
    struct uring_sends *sends = &uring->sends;
    sends->brought_links += sends->brought != link;
    sends->brought = link;
}

void stream_uring_look_end(struct stream_uring *uring)
{
    struct uring_sends *sends = &uring->sends;
    atomic_store(&sends->expected, sends->brought_links > 1 ? sends->brought_links : 0);
    sends->brought_links = 0;
    sends->brought = NULL;
}

/* Returns how many sends are still expected after this one. */
static unsigned expected_count_locked(struct uring_sends *sends)
{
    unsigned expected = atomic_load(&sends->expected); /* the poller may write 0, or more */
    while (expected > 0 && !atomic_compare_exchange_weak(&sends->expected, &expected, expected - 1))
        continue;
    return expected > 0 ? expected - 1 : 0;
}

/* ---- sending -------------------------------------------------------------------------------- */

static bool slot_hand_over_locked(struct stream_uring *uring, struct stream_link *link,
                                  const struct iovec *iov, size_t count)
{
    struct uring_sends *sends = &uring->sends;
    stream_assert_locked(&uring->lock);
    struct uring_slot *slot = slot_take_locked(sends);
    if (!slot)
        return false;
    slot->link = link;
    slot->fd = link->watch.fd;
    slot_fill(slot, iov, count);
    bmi_link_ref(&link->base);
    atomic_store(&link->sending, (uint8_t)(slot - sends->slots + 1));
    slot_wait_locked(sends, slot);
    return true;
}

bool stream_uring_send(struct stream_link *link, const struct iovec *iov, size_t count,
                       size_t wanted)
{
    struct stream_uring *uring = stream_state_of(link)->uring;
    struct uring_sends *sends = &uring->sends;
    bool first = false;

    if (atomic_load(&sends->expected) == 0 || stream_uring_is_parents(uring))
        return false;
    stream_lock(&uring->lock);
    bool last = expected_count_locked(sends) == 0;
    bool taken =
        wanted <= SLOT_BYTES && !sends->armed && slot_hand_over_locked(uring, link, iov, count);
    sends->unsubmitted += taken;
    if (last || sends->unsubmitted >= QUEUED_MOST)
        stream_uring_submit_locked(uring);
    else
        first = taken && sends->unsubmitted == 1;
    stream_unlock(&uring->lock);
    if (first)
        bmi_method_defer(link->base.instance, &sends->submits);
    return taken;
}

static void submit_queued(struct bmi_deferred *deferred)
{
    struct stream_uring *uring = stream_container(deferred, struct stream_uring, sends.submits);
    if (uring->sends.stopped) {
        free(uring);
        return;
    }
    if (stream_uring_is_parents(uring))
        return;
    stream_lock(&uring->lock);
    stream_uring_submit_locked(uring);
    stream_unlock(&uring->lock);
}

/* ---- completions and ends ------------------------------------------------------------------- */

static void slot_done(struct stream_uring *uring, struct uring_slot *slot)
{
    struct stream_link *link = slot->link;
    stream_lock(&uring->lock);
    slot_free_locked(&uring->sends, slot);
    stream_unlock(&uring->lock);
    stream_flush(&link->base);
    bmi_link_unref(&link->base);
}

/* Accounts for the result. Returns whether the rest is to be sent. */
static bool slot_goes_on_locked(struct stream_link *link, struct uring_slot *slot, int result)
{
    stream_assert_locked(&link->send_lock);
    bool lives = link->phase == STREAM_UP && !link->ending && !link->failure &&
                 link->closing != STREAM_CLOSE_NOW;
    bool nothing = result >= 0 || stream_uring_says_nothing(result);
    if (result > 0)
        slot->from = (uint16_t)(slot->from + result);
    if (slot->from == slot->end || !lives)
        return false;
    if (!nothing)
        link->failure = result;
    return nothing;
}

void stream_uring_sent(struct stream_uring *uring, uint64_t request, int result)
{
    struct uring_slot *slot = (void *)(uintptr_t)(request - 1);
    struct stream_link *link = slot->link;

    stream_lock(&link->send_lock);
    bool goes_on = slot_goes_on_locked(link, slot, result);
    if (!goes_on)
        atomic_store(&link->sending, 0);
    bool kick = !goes_on && (link->failure || link->closing != STREAM_OPEN);
    stream_unlock(&link->send_lock);

    if (kick)
        stream_link_kick(link);
    if (!goes_on) {
        slot_done(uring, slot);
        return;
    }
    stream_lock(&uring->lock);
    slot_wait_locked(&uring->sends, slot); /* submitted when the completions have been taken */
    stream_unlock(&uring->lock);
}

/* Takes it off the list if the submission queue has no place for it. */
static bool slot_waits_no_more_locked(struct uring_sends *sends, const struct uring_slot *slot)
{
    for (struct uring_slot **at = &sends->waiting; *at; at = &(*at)->next) {
        if (*at != slot)
            continue;
        *at = slot->next;
        if (!slot->next)
            sends->waiting_last = at;
        return true;
    }
    return false;
}

void stream_uring_send_cancel(struct stream_link *link)
{
    struct stream_uring *uring = stream_state_of(link)->uring;
    if (!atomic_load(&link->sending))
        return;
    struct uring_slot *slot = slot_of(uring, link);
    stream_lock(&uring->lock);
    stream_uring_cancel_locked(uring, request_of(slot));
    stream_uring_forget_locked(uring, request_of(slot));
    bool never = slot_waits_no_more_locked(&uring->sends, slot);
    stream_unlock(&uring->lock);
    if (never)
        stream_uring_sent(uring, request_of(slot), -ECANCELED);
}

void stream_uring_send_forget(struct stream_link *link)
{
    if (atomic_exchange(&link->sending, 0))
        bmi_link_unref(&link->base);
}

/* ---- start and stop ------------------------------------------------------------------------- */

int stream_uring_sends_start(struct stream_uring *uring)
{
    struct uring_sends *sends = &uring->sends;
    sends->slots = calloc(SLOTS, sizeof(*sends->slots));
    if (!sends->slots)
        return -ENOMEM;
    sends->submits.run = submit_queued;
    sends->waiting_last = &sends->waiting;
    for (int i = 0; i < SLOTS; i++) {
        sends->slots[i].next = sends->free;
        sends->free = &sends->slots[i];
    }
    return 0;
}

void stream_uring_sends_stop(struct stream_uring *uring)
{
    free(uring->sends.slots);
    uring->sends.stopped = true;
    if (atomic_load(&uring->sends.submits.next) == NULL)
        free(uring);
}
#endif
