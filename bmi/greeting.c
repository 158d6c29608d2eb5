/* SPDX-License-Identifier: BSD-3-Clause
 *
 * greeting.c - dialling, HELLO, and one link for a pair of processes. See greeting.h.
 */
#include "bmi/greeting.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bmi/address.h"
#include "bmi/credit.h"
#include "bmi/digest.h"
#include "bmi/failure.h"
#include "bmi/join.h"
#include "bmi/log.h"
#include "bmi/meeting.h"
#include "bmi/option.h"
#include "bmi/progress.h"
#include "bmi/settings.h"

static uint8_t incarnation[16];

int bmi__greeting_start(void)
{
    return getrandom(incarnation, sizeof incarnation, 0) == sizeof incarnation ? 0 : -EIO;
}

/* An accepted peer's: its host, and what tells it from others there. */
static const char *accepted_name(const char *host, const struct bmi_link *link)
{
    static _Thread_local char name[INET6_ADDRSTRLEN + 16];
    bool colons = strchr(host, ':') != NULL;
    if (link == NULL || link->host_number == 0)
        return host;
    snprintf(name, sizeof name, "%s%.*s%s:%u", colons ? "[" : "", INET6_ADDRSTRLEN, host,
             colons ? "]" : "", link->host_number);
    return name;
}

const char *bmi__peer_name(const struct peer *peer)
{
    for (struct address *a = peer->address; a != NULL; a = a->alias_next)
        if (a->string != NULL)
            return a->string;
    if (peer->address != NULL && peer->address->host != NULL)
        return accepted_name(peer->address->host->numeric, peer->link);
    return peer->link != NULL && peer->link->host != NULL
               ? accepted_name(peer->link->host, peer->link)
               : "an unknown host";
}

static uint32_t own_eager_max(const struct bmi_method *method)
{
    int64_t setting = bmi__setting(SETTING_EAGER_MAX);
    int64_t most = setting > 0 ? setting : method->limits.eager_max;
    return (uint32_t)(most < method->limits.frame_max ? most : method->limits.frame_max);
}

static void listen_addresses(char *text, size_t size)
{
    struct running_method *method;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; (method = bmi__method_at(i)) != NULL; i++) {
        size_t length = strlen(method->listen);
        if (!atomic_load(&method->started) || length == 0 || used + length + 2 > size)
            continue;
        if (used > 0)
            text[used++] = ',';
        memcpy(text + used, method->listen, length + 1);
        used += length;
    }
}

/* ---- sending -------------------------------------------------------------------------------- */

static void hello_send_locked(struct peer *peer, bool reply)
{
    struct wire_hello *hello = calloc(1, sizeof *hello);
    uint8_t *bytes = malloc(WIRE_HELLO_MAX);
    if (hello != NULL && bytes != NULL) {
        const struct bmi_method *method = peer->link->method;
        memcpy(hello->incarnation, incarnation, sizeof incarnation);
        memcpy(hello->nonce, peer->nonce, sizeof peer->nonce);
        hello->version = WIRE_VERSION;
        hello->eager_max = peer->eager_max = own_eager_max(method);
        hello->unexpected_max = (uint32_t)method->limits.unexpected_max;
        hello->eager_credit = peer->eager.granted;
        hello->unexpected_credit = peer->unexpected_window.granted;
        listen_addresses(hello->listen, sizeof hello->listen);
        struct wire_header header = {.type = WIRE_HELLO};
        if (reply)
            header.flags = WIRE_REPLY;
        else if (peer->flags & PEER_INSIST)
            header.flags = WIRE_INSIST;
        bmi__control_send_locked(peer, header, bytes, wire_hello_encode(bytes, hello));
    } else {
        bmi__peer_fail_locked(peer, -ENOMEM, "no memory to greet");
    }
    free(hello);
    free(bytes);
}

int bmi__dial_locked(struct peer *peer)
{
    struct address *address = peer->address;
    int status = -EADDRNOTAVAIL;
    while (address != NULL && address->string == NULL)
        address = address->alias_next;
    /* One nonce for all alternatives: others may be told of it before our link is up. Who was told
     * knows our link by it alone, and if that one is lost, waits for the next. */
    if (peer->state != PEER_DIALLING && !(peer->flags & PEER_NONCE_TOLD) &&
        getrandom(peer->nonce, sizeof peer->nonce, 0) != sizeof peer->nonce)
        return -EIO;
    for (; address != NULL && peer->alternative < address->alternative_count; peer->alternative++) {
        struct alternative *alternative = &address->alternatives[peer->alternative];
        struct running_method *method = alternative->method;
        status = atomic_load(&method->started) ? 0 : -ENODEV;
        if (status == 0)
            status =
                method->method->connect(method->state, alternative->canonical, peer, &peer->link);
        if (status < 0) {
            bmi__log(BMI_LOG_WARN, "%s: no connection can be begun: %s%s", alternative->url,
                     strerror(-status),
                     status == -EMFILE ? " (see ulimit -n, and the setting idle_reap_s)" : "");
            continue;
        }
        bmi_link_ref(peer->link);
        free(peer->known);
        peer->known = NULL;
        bmi__options_give_locked(address, peer->link);
        peer->since_ns =
            bmi__monotonic_ns() + (uint64_t)bmi__setting(SETTING_CONNECT_TIMEOUT) * 1000000u;
        peer->cause = 0;
        peer->flags &= ~(uint32_t)(PEER_CLOSING | PEER_PINGED);
        atomic_store(&peer->state, PEER_DIALLING);
        bmi__meeting_set_locked(peer, MEETING_URL, alternative->url, strlen(alternative->url));
        bmi__attention_locked(peer);
        return 0;
    }
    peer->alternative = 0;
    return status;
}

/* The time for the greeting begins here: until now a method may have been making what it connects
 * with, which takes long on a busy host. */
int bmi__greeting_up(struct bmi_link *link)
{
    int status = 0;
    bmi__book_lock();
    struct peer *peer = link_owner(link);
    if (peer != NULL) {
        peer_lock(peer);
        if (peer->link == link && peer->state == PEER_DIALLING) {
            bmi__credit_open_locked(peer, (uint32_t)link->method->limits.unexpected_max);
            peer->since_ns =
                bmi__monotonic_ns() + (uint64_t)bmi__setting(SETTING_CONNECT_TIMEOUT) * 1000000u;
            hello_send_locked(peer, false);
        }
        peer_unlock(peer);
    }
    bmi__book_unlock();
    return status;
}

/* ---- a peer is up --------------------------------------------------------------------------- */

static void up_locked(struct peer *peer, const struct wire_hello *hello)
{
    memcpy(peer->incarnation, hello->incarnation, sizeof peer->incarnation);
    if (hello->eager_max < peer->eager_max) /* what our HELLO told, whatever is set by now */
        peer->eager_max = hello->eager_max;
    peer->unexpected_max = hello->unexpected_max;
    peer->eager_credit = peer->eager_window = hello->eager_credit;
    peer->unexpected_credit = hello->unexpected_credit;
    peer->unexpected_wanted = 0;
    peer->flags &=
        ~(uint32_t)(PEER_INSIST | PEER_WANTS_EAGER | PEER_WANTS_UNEXPECTED | PEER_ANNOUNCE_ALL |
                    PEER_FORGOT | PEER_ASKED_SEEN | PEER_NONCE_TOLD | PEER_HUNGRY |
                    PEER_HUNGRY_UNEXPECTED | PEER_FULL | PEER_FULL_UNEXPECTED);
    peer->silent_ticks = 0;
    peer->since_ns = bmi__monotonic_ns();
    if (peer->flags & PEER_ACCEPTED)
        bmi__meeting_set_locked(peer, MEETING_DIGEST, peer->nonce, sizeof peer->nonce);
    else
        bmi__meeting_set_locked(peer, MEETING_INCARNATION, peer->incarnation,
                                sizeof peer->incarnation);
    bmi__address_host_locked(peer);
    atomic_store(&peer->state, PEER_UP);
    bmi__attention_locked(peer);
    bmi__log(BMI_LOG_INFO, "%s is up", bmi__peer_name(peer));
    bmi__announce_waiting_locked(peer);
    bmi__pending_pump_locked(peer);
    bmi__pings_send_locked(peer);
}

static int accept_locked(struct peer *peer, const struct wire_hello *hello)
{
    bmi__digest16(peer->nonce, hello->nonce);
    if (bmi__address_accept_locked(peer) == NULL)
        return -ENOMEM;
    peer->flags |= PEER_GREETED;
    free(peer->known);
    peer->known = hello->listen[0] != '\0' ? strdup(hello->listen) : NULL;
    bmi__credit_open_locked(peer, (uint32_t)peer->link->method->limits.unexpected_max);
    hello_send_locked(peer, true);
    up_locked(peer, hello);
    return 0;
}

/* ---- looking for the other side ------------------------------------------------------------- */

/* Until when one waits for what another's word has named. */
static uint64_t await_deadline(void)
{
    return bmi__monotonic_ns() + (uint64_t)bmi__setting(SETTING_CONNECT_TIMEOUT) * 500000u;
}

struct search {
    const void *bytes; /* nonce, a nonce's digest, incarnation, or address */
    size_t size;
    struct peer *found;
};

/* An accepted peer, by the digest of its nonce. */
static void match_digest(struct peer *peer, void *argument)
{
    struct search *search = argument;
    uint8_t held[16];
    peer_lock(peer);
    bool waits = peer->state == PEER_HELD && peer->hello != NULL; /* NULL: it was answered */
    if (waits)
        bmi__digest16(held, peer->hello->nonce);
    if ((peer->state == PEER_UP && (peer->flags & PEER_ACCEPTED) &&
         memcmp(peer->nonce, search->bytes, 16) == 0) ||
        (waits && memcmp(held, search->bytes, 16) == 0))
        search->found = peer;
    peer_unlock(peer);
}

static void match_awaiting(struct peer *peer, void *argument)
{
    struct search *search = argument;
    peer_lock(peer);
    if (peer->state == PEER_AWAITING && memcmp(peer->nonce, search->bytes, 16) == 0)
        search->found = peer;
    peer_unlock(peer);
}

static void match_own_dial(struct peer *peer, void *argument)
{
    struct search *search = argument;
    peer_lock(peer);
    if (peer->state == PEER_DIALLING && memcmp(peer->nonce, search->bytes, 16) == 0)
        search->found = peer;
    peer_unlock(peer);
}

static void match_dialled(struct peer *peer, void *argument)
{
    struct search *search = argument;
    peer_lock(peer);
    if (peer->state == PEER_UP && !(peer->flags & (PEER_ACCEPTED | PEER_SELF | PEER_CLOSING)) &&
        memcmp(peer->incarnation, search->bytes, 16) == 0)
        search->found = peer;
    peer_unlock(peer);
}

/* Whether that is what the peer is dialled at. */
static bool dials_locked(const struct peer *peer, const char *url, size_t size)
{
    for (struct address *a = peer->address; a != NULL; a = a->alias_next)
        if (peer->alternative < a->alternative_count &&
            strlen(a->alternatives[peer->alternative].url) == size &&
            memcmp(a->alternatives[peer->alternative].url, url, size) == 0)
            return true;
    return false;
}

/* A peer that we are dialling at an address that the other claims. */
static void match_url(struct peer *peer, void *argument)
{
    struct search *search = argument;
    peer_lock(peer);
    if (peer->state == PEER_DIALLING && dials_locked(peer, search->bytes, search->size))
        search->found = peer;
    peer_unlock(peer);
}

/* An accepted peer, by its incarnation. */
static void match_accepted(struct peer *peer, void *argument)
{
    struct search *search = argument;
    peer_lock(peer);
    if (peer->state == PEER_UP && (peer->flags & PEER_ACCEPTED) && !(peer->flags & PEER_CLOSING) &&
        memcmp(peer->incarnation, search->bytes, 16) == 0)
        search->found = peer;
    peer_unlock(peer);
}

static struct peer *search_among(void (*match)(struct peer *, void *), enum meeting kind,
                                 const void *bytes, size_t size)
{
    enum { CANDIDATES = 16 }; /* there are more than one only where hashes are alike */
    struct search search = {.bytes = bytes, .size = size};
    struct peer *candidates[CANDIDATES];
    unsigned count = bmi__meeting_find(kind, bytes, size, candidates, CANDIDATES);
    for (unsigned i = 0; i < count; i++)
        match(candidates[i], &search);
    return search.found;
}

/* `claims` is a list of addresses with commas between. */
static struct peer *search_claimed(const char *claims)
{
    struct peer *found = NULL;
    while (found == NULL && *claims != '\0') {
        size_t length = strcspn(claims, ",");
        found = search_among(match_url, MEETING_URL, claims, length);
        claims += length + (claims[length] == ',');
    }
    return found;
}

/* ---- one process, two connections -------------------------------------------------------------
 *
 * Whom we dial is known by what it answers, and it may answer in another's name: with an
 * incarnation, or a digest, that it has been told by that one. So what is posted for it goes over a
 * connection that was accepted only where that one's own words, or its host, say the same. Book.
 */

static const char *host_of(const struct peer *peer)
{
    if (peer->state == PEER_AWAITING)
        return peer->known != NULL ? peer->known : "";
    if (peer->link != NULL && peer->link->host != NULL)
        return peer->link->host; /* not greeted yet */
    return peer->address != NULL && peer->address->host != NULL ? peer->address->host->numeric : "";
}

static bool may_be_one(struct peer *dialled, struct peer *accepted)
{
    bool held = accepted->state == PEER_HELD && accepted->hello != NULL;
    const char *claims = held ? accepted->hello->listen : accepted->known;
    bool one = host_of(dialled)[0] != '\0' && strcmp(host_of(dialled), host_of(accepted)) == 0;
    peer_lock(dialled);
    while (!one && claims != NULL && *claims != '\0') {
        size_t length = strcspn(claims, ",");
        one = dials_locked(dialled, claims, length);
        claims += length + (claims[length] == ',');
    }
    peer_unlock(dialled);
    return one;
}

static bool we_listen(void)
{
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(i)) != NULL; i++)
        if (atomic_load(&method->started) && method->listen[0] != '\0')
            return true;
    return false;
}

/* The peer that dials ourselves with this nonce. Not found by a table, since that is rarely asked:
 * by who has our incarnation. */
static struct peer *search_own_dial(const uint8_t *nonce)
{
    struct search search = {.bytes = nonce};
    bmi__peer_each(match_own_dial, &search);
    return search.found;
}

/* ---- a HELLO on a link that was dialled to us ------------------------------------------------ */

/* Who is told may be somebody who claims to be another, and must not learn the nonce: with it the
 * link that the other one waits for could be forged. Its digest names it as well. */
static void redundant_tell(struct peer *peer, struct peer *dialled)
{
    uint8_t digest[16];
    peer_lock(dialled);
    bmi__digest16(digest, dialled->nonce);
    dialled->flags |= PEER_NONCE_TOLD;
    peer_unlock(dialled);
    peer_lock(peer);
    struct wire_header header = {.type = WIRE_REDUNDANT};
    bmi__control_send_locked(peer, header, digest, sizeof digest);
    peer_unlock(peer);
}

static int redundant_send(struct peer *peer, struct peer *dialled)
{
    redundant_tell(peer, dialled);
    peer_lock(peer);
    bmi__peer_leave_locked(peer);
    peer_unlock(peer);
    return 0;
}

/* The other end is this very process: its two ends become one peer. */
static int self_join(struct peer *accepted, struct peer *dialled)
{
    if (dialled->self_link != NULL)
        return -EPROTO; /* only who is not us connects twice */
    bmi__peers_lock(accepted, dialled);
    struct bmi_link *link = accepted->link;
    accepted->link = NULL;
    atomic_store(&accepted->state, PEER_GONE);
    link_own(link, dialled);
    dialled->self_link = link;
    dialled->flags |= PEER_SELF;
    peer_unlock(accepted);
    struct bmi_link *outgoing = dialled->link;
    dialled->link = link; /* the answer goes the other way */
    hello_send_locked(dialled, true);
    dialled->link = outgoing;
    peer_unlock(dialled);
    bmi__peer_give(accepted);
    return 0;
}

static bool any_held; /* book: some may be HELD */

static int hold(struct peer *peer, const struct wire_hello *hello)
{
    peer_lock(peer);
    if (peer->hello == NULL)
        peer->hello = malloc(sizeof *hello);
    int status = peer->hello != NULL ? 0 : -ENOMEM;
    if (status == 0) {
        uint8_t digest[16];
        memcpy(peer->hello, hello, sizeof *hello);
        bmi__digest16(digest, hello->nonce);
        bmi__meeting_set_locked(peer, MEETING_DIGEST, digest, sizeof digest);
        atomic_store(&peer->state, PEER_HELD);
        any_held = true;
    }
    peer_unlock(peer);
    return status;
}

/* Each string that the other was looked up by. */
static void awaiting_join(struct peer *peer, const uint8_t *digest)
{
    struct peer *awaiting;
    while ((awaiting = search_among(match_awaiting, MEETING_AWAITED, digest, 16)) != NULL) {
        if (may_be_one(awaiting, peer)) {
            bmi__join(awaiting, peer);
            continue;
        }
        peer_lock(awaiting);
        bmi__meeting_clear_locked(awaiting); /* waits, and then insists */
        peer_unlock(awaiting);
    }
}

static int accept_and_join(struct peer *peer, bool insist, const struct wire_hello *hello)
{
    uint8_t digest[16];
    bmi__digest16(digest, hello->nonce);
    peer_lock(peer);
    if (insist)
        peer->flags |= PEER_INSISTED;
    int status = accept_locked(peer, hello);
    peer_unlock(peer);
    if (status == 0)
        awaiting_join(peer, digest);
    return status;
}

static int accept_hello(struct peer *peer, bool insist, const struct wire_hello *hello)
{
    struct peer *other;
    if (memcmp(hello->incarnation, incarnation, 16) == 0 &&
        (other = search_own_dial(hello->nonce)) != NULL)
        return self_join(peer, other);
    if (!insist && (other = search_among(match_dialled, MEETING_INCARNATION, hello->incarnation,
                                         sizeof hello->incarnation)) != NULL)
        return redundant_send(peer, other);
    if (!insist && (other = search_claimed(hello->listen)) != NULL) {
        if (memcmp(incarnation, hello->incarnation, 16) < 0)
            return hold(peer, hello);
        return redundant_send(peer, other);
    }
    return accept_and_join(peer, insist, hello);
}

static void settle(struct peer *peer, void *argument)
{
    (void)argument;
    if (peer->state != PEER_HELD || peer->hello == NULL)
        return;
    struct wire_hello *hello = peer->hello;
    peer->hello = NULL;
    int status = accept_hello(peer, false, hello);
    if (status < 0) {
        peer_lock(peer);
        bmi__peer_fail_locked(peer, status, "cannot be greeted");
        peer_unlock(peer);
    }
    free(hello);
}

void bmi__greeting_settle_held(void)
{
    if (!any_held)
        return;
    any_held = false; /* who has to wait on says so again */
    bmi__peer_each(settle, NULL);
}

/* ---- answers on a link that we dialled ------------------------------------------------------- */

/* The connection that the process whose answer this is, by what it says, has dialled to us in the
 * same moment, each of us by a name that the other does not know itself by. NULL: there is none. */
static struct peer *twin_find(const struct wire_hello *hello)
{
    struct search search = {.bytes = hello->incarnation};
    if (we_listen())
        bmi__peer_each(match_accepted, &search);
    return search.found;
}

static bool twins_awaited; /* book: some dial may wait */

/* Of twins that of the greater incarnation stays: the lesser one waits for the other's word of it
 * before it uses its own. */
static bool twin_awaited(struct peer *peer, const struct wire_hello *hello)
{
    struct peer *twin = NULL;
    if (memcmp(incarnation, hello->incarnation, sizeof incarnation) < 0)
        twin = twin_find(hello);
    if (twin == NULL || !may_be_one(peer, twin))
        return false;
    peer_lock(peer);
    bool waits = !(peer->flags & (PEER_INSIST | PEER_NONCE_TOLD | PEER_CLOSING)) &&
                 (peer->hello = malloc(sizeof *hello)) != NULL;
    if (waits) {
        *peer->hello = *hello;
        peer->since_ns = await_deadline();
        twins_awaited = true;
    }
    peer_unlock(peer);
    return waits;
}

/* The other side does not use the connection that is given up, or does already: then it goes on. */
static void twin_tell(struct peer *peer, const struct wire_hello *hello)
{
    struct peer *twin = NULL;
    if (memcmp(incarnation, hello->incarnation, sizeof incarnation) > 0)
        twin = twin_find(hello);
    if (twin == NULL)
        return;
    peer_lock(twin);
    bool unused = twin->seen == 0 && twin->op_count == 0 && !(twin->flags & PEER_INSISTED);
    peer_unlock(twin);
    if (unused)
        redundant_tell(twin, peer);
}

static int reply_arrived(struct peer *peer, const struct bmi_link *link,
                         const struct wire_hello *hello)
{
    peer_lock(peer);
    bool fits = peer->state == PEER_DIALLING && link == peer->link && peer->hello == NULL;
    bool self = peer->self_link != NULL;
    peer_unlock(peer);
    if (!fits)
        return -EPROTO;
    if (!self && twin_awaited(peer, hello))
        return 0;
    peer_lock(peer);
    peer->counters.connects++;
    up_locked(peer, hello);
    peer_unlock(peer);
    if (!self)
        twin_tell(peer, hello);
    bmi__greeting_settle_held();
    return 0;
}

static void twin_settle(struct peer *peer, void *argument)
{
    (void)argument;
    if (peer->state != PEER_DIALLING || peer->hello == NULL)
        return;
    if (twin_find(peer->hello) != NULL) {
        twins_awaited = true;
        return;
    }
    peer_lock(peer);
    struct wire_hello *hello = peer->hello;
    peer->hello = NULL;
    peer->counters.connects++;
    up_locked(peer, hello);
    peer_unlock(peer);
    free(hello);
}

void bmi__greeting_settle_twins(void)
{
    if (!twins_awaited)
        return;
    twins_awaited = false; /* who has to wait on says so again */
    bmi__peer_each(twin_settle, NULL);
    bmi__greeting_settle_held();
}

static int hello_handle(struct bmi_link *link, bool reply, bool insist,
                        const struct wire_hello *hello)
{
    struct peer *peer = link_owner(link);
    if (peer == NULL)
        return -EPROTO;
    if (hello->version != WIRE_VERSION) {
        bmi__log(BMI_LOG_WARN, "%s speaks version %u of the protocol, we speak %u",
                 bmi__peer_name(peer), hello->version, WIRE_VERSION);
        peer_lock(peer);
        struct wire_header header = {.type = WIRE_REJECT, .target = EPROTO};
        bmi__control_send_locked(peer, header, NULL, 0);
        if (peer->cause == 0)
            peer->cause = -EPROTO;
        bmi__peer_leave_locked(peer);
        peer_unlock(peer);
        return 0;
    }
    if (reply)
        return reply_arrived(peer, link, hello);
    if (peer->state != PEER_GREETING || (peer->flags & PEER_CLOSING))
        return -EPROTO;
    return accept_hello(peer, insist, hello);
}

int bmi__hello_arrived(struct bmi_link *link, bool reply, bool insist, const uint8_t *bytes,
                       size_t size)
{
    struct wire_hello *hello = malloc(sizeof *hello);
    const char *reason = "";
    if (hello == NULL)
        return -ENOMEM;
    bmi__book_lock();
    int status = wire_hello_decode(bytes, size, hello, &reason);
    if (status < 0)
        bmi__log(BMI_LOG_WARN, "%s: %s", link->host != NULL ? link->host : "?", reason);
    else
        status = hello_handle(link, reply, insist, hello);
    bmi__book_unlock();
    free(hello);
    return status;
}

/* Our link is not wanted, since one of the other side's reaches us, or will: told over a link that
 * we dialled, so it is true. */
static void await_locked(struct peer *peer, const uint8_t *digest)
{
    free(peer->hello);
    peer->known = peer->link->host;
    peer->link->host = NULL;
    bmi__link_forget_locked(peer);
    bmi__credit_forget_locked(peer);
    memcpy(peer->nonce, digest, sizeof peer->nonce);
    peer->since_ns = await_deadline();
    bmi__meeting_set_locked(peer, MEETING_AWAITED, peer->nonce, sizeof peer->nonce);
    atomic_store(&peer->state, PEER_AWAITING);
    peer->flags &= ~(uint32_t)(PEER_CLOSING | PEER_NONCE_TOLD); /* of what is not ours any more */
    bmi__next_start_locked(peer, 0);
}

/* Threads that post change the flags meanwhile; what is asked for is the driver's to change. */
static bool may_be_redundant(struct peer *peer, const struct bmi_link *link)
{
    peer_lock(peer);
    bool may = peer->state == PEER_DIALLING && peer->link == link && peer->self_link == NULL &&
               !(peer->flags & PEER_INSIST);
    peer_unlock(peer);
    return may;
}

/* What we dialled is up: of two connections to one process, both are used. */
static bool is_in_use(struct peer *peer, const struct bmi_link *link)
{
    peer_lock(peer);
    bool used = peer->state == PEER_UP && peer->link == link && !(peer->flags & PEER_ACCEPTED);
    peer_unlock(peer);
    return used;
}

int bmi__redundant_arrived(struct bmi_link *link, const uint8_t *bytes, size_t size)
{
    if (size != 16)
        return -EBADMSG;
    bmi__book_lock();
    struct peer *peer = link_owner(link);
    bool fits = peer != NULL && may_be_redundant(peer, link);
    bool late = peer != NULL && is_in_use(peer, link);
    struct peer *accepted = fits ? search_among(match_digest, MEETING_DIGEST, bytes, 16) : NULL;
    if (accepted != NULL && !may_be_one(peer, accepted)) {
        bmi__log(BMI_LOG_WARN, "%s names a connection of another host's as its own",
                 bmi__peer_name(peer));
        accepted = NULL;
    }
    if (fits && accepted == NULL) {
        peer_lock(peer);
        await_locked(peer, bytes);
        peer_unlock(peer);
    }
    if (accepted != NULL && accepted->state == PEER_HELD) {
        struct wire_hello *hello = accepted->hello;
        accepted->hello = NULL;
        int status = accept_and_join(accepted, false, hello);
        free(hello);
        if (status < 0) { /* what is joined to it is dialled for once it has gone */
            peer_lock(accepted);
            bmi__peer_fail_locked(accepted, status, "cannot be greeted");
            peer_unlock(accepted);
        }
    }
    if (accepted != NULL)
        bmi__join(peer, accepted);
    bmi__greeting_settle_held();
    bmi__book_unlock();
    return fits || late ? 0 : -EPROTO;
}
