/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.c - dialling, the handshake, and one link for a pair of processes. See handshake.h.
 */
#include "bmi/connection/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/clock.h"
#include "bmi/base/crypto.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/failure.h"
#include "bmi/connection/join.h"
#include "bmi/connection/matching.h"
#include "bmi/connection/option.h"
#include "bmi/connection/peer_end.h"
#include "bmi/progress/methods.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/ping.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

int bmi__handshake_start(struct bmi_instance *instance)
{
    int status = bmi__crypto_start();
    return status < 0 ? status
                      : bmi__random(instance, instance->incarnation, sizeof instance->incarnation);
}

static uint32_t own_eager_max(struct bmi_instance *instance, const struct bmi_method *method)
{
    int64_t setting = bmi__setting(instance, SETTING_EAGER_MAX);
    int64_t most = setting > 0 ? setting : method->limits.eager_max;
    return (uint32_t)(most < method->limits.frame_max ? most : method->limits.frame_max);
}

static void listen_addresses(struct bmi_instance *instance, char *text, size_t size)
{
    struct running_method *method;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++) {
        size_t length = atomic_load(&method->started) ? strlen(method->listen) : 0;
        if (length == 0 || used + length + 2 > size)
            continue;
        if (used > 0)
            text[used++] = ',';
        memcpy(text + used, method->listen, length + 1);
        used += length;
    }
}

/* ---- sending -------------------------------------------------------------------------------- */

/* `nonce`: NULL in a REPLY. Returns false without memory. */
static bool hello_send_locked(struct peer *peer, const uint8_t *nonce)
{
    bool sent = false;
    struct wire_hello *hello = calloc(1, sizeof *hello);
    uint8_t *bytes = malloc(WIRE_HELLO_MAX);
    if (hello != NULL && bytes != NULL) {
        const struct bmi_method *method = peer->link->method;
        memcpy(hello->incarnation, peer->instance->incarnation, sizeof peer->instance->incarnation);
        if (nonce != NULL)
            memcpy(hello->nonce, nonce, sizeof hello->nonce);
        hello->version = WIRE_VERSION;
        hello->eager_max = peer->eager_max = own_eager_max(peer->instance, method);
        hello->unexpected_max = (uint32_t)method->limits.unexpected_max;
        hello->eager_credit = peer->eager.granted;
        hello->unexpected_credit = peer->unexpected_window.granted;
        /* without it the peer uses it for no address that it looked up */
        if (bmi__setting(peer->instance, SETTING_JOIN))
            listen_addresses(peer->instance, hello->listen, sizeof hello->listen);
        struct wire_header header = {.type = WIRE_HELLO, .flags = nonce == NULL ? WIRE_REPLY : 0};
        sent = bmi__control_send_locked(peer, header, bytes, wire_hello_encode(bytes, hello));
    }
    free(hello);
    free(bytes);
    return sent;
}

/* Ends a link that is not up, and notifies the other side of the reason. */
static void refuse_locked(struct peer *peer, int error)
{
    struct wire_header header = {.type = WIRE_REJECT, .target = (uint64_t)error};
    bmi__control_send_locked(peer, header, NULL, 0);
    if (peer->cause == 0)
        peer->cause = (int16_t)-error;
    bmi__peer_leave_locked(peer);
}

int bmi__dial_locked(struct peer *peer)
{
    struct address *address = peer->address;
    int status = -EADDRNOTAVAIL;
    while (address != NULL && address->string == NULL)
        address = address->alias_next;
    for (; address != NULL && peer->alternative < address->alternative_count; peer->alternative++) {
        struct alternative *alternative = &address->alternatives[peer->alternative];
        struct running_method *method = alternative->method;
        status = atomic_load(&method->started) ? 0 : -ENODEV;
        if (status == 0)
            status =
                method->method->connect(method->state, alternative->canonical, peer, &peer->link);
        if (status < 0) {
            bmi__log(peer->instance, BMI_LOG_WARN, "%s: no connection can be begun: %s%s",
                     alternative->url, strerror(-status),
                     status == -EMFILE ? " (see ulimit -n, and the setting idle_reap_s)" : "");
            continue;
        }
        BMI_PROBE(2, connect, peer, alternative->url);
        bmi_link_ref(peer->link);
        bmi__options_give_locked(address, peer->link);
        peer->since_ns = bmi__instance_now_ns(peer->instance) +
                         (uint64_t)bmi__setting(peer->instance, SETTING_CONNECT_TIMEOUT) * 1000000u;
        peer->cause = 0;
        peer->flags &= ~(uint32_t)(PEER_CLOSING | PEER_PINGED | PEER_ASKED | PEER_KEPT);
        atomic_store(&peer->state, PEER_DIALLING);
        bmi__matching_clear_locked(peer);
        bmi__attention_locked(peer);
        return 0;
    }
    peer->alternative = 0;
    return status;
}

/* ---- names and proofs of links ----------------------------------------------------------------
 *
 * A link's secret is made of its dialler's nonce and of both ends of the connection as either side
 * sees them: both sides compute the same one only if no process is between them.
 */

enum proof_label { PROOF_NAME = 1, PROOF_QUESTION, PROOF_ANSWER };

static void link_secret(uint8_t secret[16], const uint8_t nonce[16], const struct bmi_link *link)
{
    uint8_t bytes[16 + BMI_LINK_ENDS];
    memcpy(bytes, nonce, 16);
    memcpy(bytes + 16, link->ends, sizeof link->ends);
    bmi__digest16(secret, bytes, sizeof bytes);
}

/* The name that both processes use for a link. It does not reveal the secret. */
static void link_name(uint8_t name[16], const uint8_t secret[16])
{
    uint8_t bytes[17] = {PROOF_NAME};
    memcpy(bytes + 1, secret, 16);
    bmi__digest16(name, bytes, sizeof bytes);
}

/* A proof that is sent over the link `over`: its sender knows the secret of `of`, too. */
static void proof_make(uint8_t proof[WIRE_PROOF], enum proof_label label, const uint8_t of[16],
                       const uint8_t over[16])
{
    uint8_t bytes[33] = {(uint8_t)label};
    memcpy(bytes + 1, of, 16);
    memcpy(bytes + 17, over, 16);
    bmi__digest16(proof, bytes, sizeof bytes);
}

static bool proof_holds(const uint8_t *proof, enum proof_label label, const uint8_t of[16],
                        const uint8_t over[16])
{
    uint8_t expected[WIRE_PROOF];
    proof_make(expected, label, of, over);
    return memcmp(proof, expected, WIRE_PROOF) == 0;
}

/* The time for the handshake begins here. Before, a method may have been creating its connection
 * resources, which takes long on a busy host. */
int bmi__handshake_up(struct bmi_link *link)
{
    uint8_t nonce[16], name[16];
    int status = bmi__random(link->instance, nonce, sizeof nonce);
    if (status < 0)
        return status;
    bmi__book_lock(link->instance);
    struct peer *peer = link_owner(link);
    if (peer != NULL) {
        peer_lock(peer);
        BMI_PROBE(2, link_up, peer, link->host);
        if (peer->link == link && peer->state == PEER_DIALLING) {
            link_secret(peer->secret, nonce, link);
            link_name(name, peer->secret);
            bmi__matching_set_locked(peer, MATCHING_NAME, name, sizeof name);
            bmi__credit_open_locked(peer, (uint32_t)link->method->limits.unexpected_max);
            peer->since_ns =
                bmi__instance_now_ns(peer->instance) +
                (uint64_t)bmi__setting(link->instance, SETTING_CONNECT_TIMEOUT) * 1000000u;
            if (!hello_send_locked(peer, nonce))
                bmi__peer_fail_locked(peer, -ENOMEM, "no memory for a handshake");
        }
        peer_unlock(peer);
    }
    bmi__book_unlock(link->instance);
    return status;
}

/* ---- a peer is up --------------------------------------------------------------------------- */

static void up_locked(struct peer *peer, const struct wire_hello *hello)
{
    memcpy(peer->incarnation, hello->incarnation, sizeof peer->incarnation);
    if (hello->eager_max < peer->eager_max) /* the value in our HELLO, whatever is set now */
        peer->eager_max = hello->eager_max;
    peer->unexpected_max = hello->unexpected_max;
    peer->eager_credit = peer->eager_window = hello->eager_credit;
    peer->unexpected_credit = hello->unexpected_credit;
    peer->unexpected_wanted = 0;
    peer->flags &= ~(uint32_t)(PEER_KEPT | PEER_WANTS_EAGER | PEER_WANTS_UNEXPECTED |
                               PEER_ANNOUNCE_ALL | PEER_FORGOT | PEER_ASKED_SEEN | PEER_HUNGRY |
                               PEER_HUNGRY_UNEXPECTED | PEER_FULL | PEER_FULL_UNEXPECTED);
    peer->silent_ticks = 0;
    peer->since_ns = bmi__instance_now_ns(peer->instance);
    if (peer->flags & PEER_ACCEPTED)
        bmi__matching_set_locked(peer, MATCHING_INCARNATION, peer->incarnation,
                                 sizeof peer->incarnation);
    bmi__address_host_locked(peer);
    atomic_store(&peer->state, PEER_UP);
    bmi__attention_locked(peer);
    BMI_PROBE(2, handshake, peer, peer->link->host);
    bmi__log(peer->instance, BMI_LOG_INFO, "%s is up", bmi__peer_name(peer));
    bmi__announce_waiting_locked(peer);
    bmi__pending_pump_locked(peer);
    bmi__pings_send_locked(peer);
}

/* ---- finding the other link of a pair -------------------------------------------------------- */

/* Whether a peer's link may take the place of one of that method. Operations for an address of a
 * secure method never go over another method's link, whose peer and bytes nobody has checked. */
static bool stands_in_for(const struct peer *peer, const struct bmi_method *method)
{
    const struct bmi_method *own = peer->link != NULL ? peer->link->method : NULL;
    return own == method || (own != NULL && !own->secure && !method->secure);
}

static bool dialled_as(struct peer *peer, const uint8_t name[16], const struct bmi_method *method)
{
    uint8_t own[16];
    peer_lock(peer);
    link_name(own, peer->secret);
    bool fits = stands_in_for(peer, method) && !(peer->flags & (PEER_ACCEPTED | PEER_CLOSING)) &&
                (peer->state == PEER_DIALLING || peer->state == PEER_UP) &&
                memcmp(own, name, sizeof own) == 0;
    peer_unlock(peer);
    return fits;
}

/* Finds the peer whose link we dialled, by the link's name, which a link of this method brought.
 * NULL: none has that name. */
static struct peer *dialled_find(struct bmi_instance *instance, const uint8_t name[16],
                                 const struct bmi_method *method)
{
    enum {
        CANDIDATES = 16
    }; /* most peers looked at; there is more than one only if hashes collide */
    struct peer *candidates[CANDIDATES];
    unsigned count = bmi__matching_find(instance, MATCHING_NAME, name, 16, candidates, CANDIDATES);
    for (unsigned i = 0; i < count; i++)
        if (dialled_as(candidates[i], name, method))
            return candidates[i];
    return NULL;
}

/* Whether it is an accepted link of a process that claims this incarnation. */
static bool accepted_from(struct peer *peer, const uint8_t *incarnation_said,
                          const struct bmi_method *method)
{
    peer_lock(peer);
    bool fits = peer->state == PEER_UP && stands_in_for(peer, method) &&
                (peer->flags & PEER_ACCEPTED) && !(peer->flags & PEER_CLOSING) &&
                memcmp(peer->incarnation, incarnation_said, sizeof peer->incarnation) == 0;
    peer_unlock(peer);
    return fits;
}

/* Finds the accepted links whose other sides claim this incarnation, the newest first, as many as
 * one question has room for, that may stand in for a link of the method. Returns their number. */
static unsigned accepted_find(struct bmi_instance *instance, const uint8_t *incarnation_said,
                              const struct bmi_method *method, struct peer **found)
{
    unsigned kept = 0, count = bmi__matching_find(instance, MATCHING_INCARNATION, incarnation_said,
                                                  16, found, WIRE_JOIN_ITEMS);
    for (unsigned i = 0; i < count; i++)
        if (accepted_from(found[i], incarnation_said, method))
            found[kept++] = found[i];
    return kept;
}

/* ---- a HELLO on an accepted link ------------------------------------------------------------- */

/* The other end is this process itself: joins the two ends into one peer. */
static int self_join(struct peer *accepted, struct peer *dialled)
{
    if (dialled->self_link != NULL)
        return -EPROTO; /* a HELLO of ours goes over one link only */
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
    bool answered = hello_send_locked(dialled, NULL);
    dialled->link = outgoing;
    if (!answered)
        bmi__peer_fail_locked(dialled, -ENOMEM, "no memory for a handshake");
    peer_unlock(dialled);
    bmi__peer_give(accepted);
    return 0;
}

static int accept_locked(struct peer *peer, const struct wire_hello *hello)
{
    if (bmi__address_accept_locked(peer) == NULL)
        return -ENOMEM;
    link_secret(peer->secret, hello->nonce, peer->link);
    bmi__credit_open_locked(peer, (uint32_t)peer->link->method->limits.unexpected_max);
    if (!hello_send_locked(peer, NULL))
        return -ENOMEM;
    peer->flags |= PEER_HELLO_DONE;
    up_locked(peer, hello);
    return 0;
}

/* Whether the peer of the link has proved that it may use the address that it claims. The text is
 * the peer's, so that nothing is logged of it. */
static bool is_proved(struct bmi_link *link, const char *claim)
{
    char canonical[BMI_MAX_ADDR_LEN];
    const char *separator = strstr(claim, "://"), *reason;
    struct running_method *method =
        separator != NULL
            ? bmi__method_of_scheme(link->instance, claim, (size_t)(separator - claim))
            : NULL;
    return method != NULL && method->method == link->method && link->method->secure &&
           link->method->parse(separator + 3, canonical, sizeof canonical, &reason) == 0 &&
           link->method->option(link->instance, link->state, link, BMI_METHOD_PROVED_ADDRESS,
                                canonical, false) == 0;
}

/* It says where its process listens. */
static void claims_take(struct peer *peer, const char *claims)
{
    enum { CLAIMS_MOST = 4 }; /* that are looked at: a process listens at few addresses */
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *claim;
    snprintf(copy, sizeof copy, "%s", claims);
    for (int i = 0; i < CLAIMS_MOST && (claim = strsep(&rest, ",")) != NULL; i++)
        if (is_proved(peer->link, claim))
            bmi__address_claim_locked(peer, claim);
}

static int accept_hello(struct peer *peer, const struct wire_hello *hello)
{
    if (memcmp(hello->incarnation, peer->instance->incarnation,
               sizeof peer->instance->incarnation) == 0) {
        uint8_t secret[16], name[16];
        link_secret(secret, hello->nonce, peer->link);
        link_name(name, secret);
        struct peer *own = dialled_find(peer->instance, name, peer->link->method);
        if (own != NULL)
            return own->state == PEER_DIALLING ? self_join(peer, own) : -EPROTO;
    }
    peer_lock(peer);
    int status = accept_locked(peer, hello);
    peer_unlock(peer);
    if (status == 0 && peer->link != NULL && peer->link->method->secure &&
        bmi__setting(peer->instance, SETTING_JOIN))
        claims_take(peer, hello->listen);
    return status;
}

/* ---- a REPLY on a link that we dialled ------------------------------------------------------- */

/* Starts to use the link that we dialled. */
static void dialled_up_locked(struct peer *peer, const struct wire_hello *hello)
{
    peer->counters.connects++;
    up_locked(peer, hello);
}

/* The content of our JOIN, sent over a link whose HELLO was answered. */
struct question {
    struct wire_hello hello; /* the answer */
    unsigned count;
    uint8_t items[][WIRE_JOIN_ITEM]; /* a link's name, and our proof that we know it */
};

/* The link that we dialled is used after all. */
static void question_over_locked(struct peer *peer)
{
    struct question *question = peer->question;
    peer->question = NULL;
    dialled_up_locked(peer, &question->hello);
    free(question);
}

static bool question_names(const struct question *question, const struct peer *accepted)
{
    uint8_t name[16];
    link_name(name, accepted->secret);
    for (unsigned i = 0; i < question->count; i++)
        if (memcmp(question->items[i], name, sizeof name) == 0)
            return true;
    return false;
}

static struct question *question_make(const struct peer *peer, const struct bmi_link *link,
                                      const struct wire_hello *hello)
{
    struct peer *accepted[WIRE_JOIN_ITEMS];
    unsigned count = accepted_find(peer->instance, hello->incarnation, link->method, accepted);
    if (count == 0)
        return NULL;
    struct question *question = malloc(sizeof *question + (size_t)count * WIRE_JOIN_ITEM);
    if (question == NULL)
        return NULL; /* two processes may have two links then */
    question->hello = *hello;
    question->count = count;
    for (unsigned i = 0; i < count; i++) {
        link_name(question->items[i], accepted[i]->secret);
        proof_make(question->items[i] + 16, PROOF_QUESTION, accepted[i]->secret, peer->secret);
    }
    return question;
}

/* Asks the other side, over the link that we dialled, whether one of the links that we accepted
 * from its incarnation is its own. Returns whether the question was sent; if not, our link is used.
 */
static bool question_send(struct peer *peer, const struct bmi_link *link,
                          const struct wire_hello *hello)
{
    struct question *question = question_make(peer, link, hello);
    if (question == NULL)
        return false;
    peer_lock(peer);
    bool asks = !(peer->flags & PEER_KEPT);
    if (asks) {
        struct wire_header header = {.type = WIRE_JOIN};
        peer->question = question;
        peer->flags |= PEER_ASKED;
        bmi__control_send_locked(peer, header, question->items,
                                 (size_t)question->count * WIRE_JOIN_ITEM);
    }
    peer_unlock(peer);
    if (!asks)
        free(question);
    return asks;
}

static int reply_arrived(struct peer *peer, const struct bmi_link *link,
                         const struct wire_hello *hello)
{
    peer_lock(peer);
    bool fits = peer->state == PEER_DIALLING && link == peer->link && peer->question == NULL;
    bool self = peer->self_link != NULL;
    peer_unlock(peer);
    if (!fits)
        return -EPROTO;
    if (!self && bmi__setting(peer->instance, SETTING_JOIN) && question_send(peer, link, hello))
        return 0;
    peer_lock(peer);
    dialled_up_locked(peer, hello);
    peer_unlock(peer);
    return 0;
}

/* ---- JOIN ------------------------------------------------------------------------------------ */

/* Whether the link that we dialled stays, although the other side asks to use another one. If both
 * handshakes are under way, the link of the greater incarnation stays, provided that we have asked,
 * too: the other side's link may have been accepted after our question. */
static bool keeps(struct peer *dialled, const struct peer *asker)
{
    peer_lock(dialled);
    bool up = dialled->state == PEER_UP;
    bool stays = up ||
                 memcmp(dialled->instance->incarnation, asker->incarnation,
                        sizeof dialled->instance->incarnation) > 0 ||
                 (dialled->question != NULL && !question_names(dialled->question, asker));
    if (stays && !up && dialled->question != NULL)
        question_over_locked(dialled);
    else if (stays && !up)
        dialled->flags |= PEER_KEPT;
    peer_unlock(dialled);
    return stays;
}

/* The other side dialled this link, and asks about links that it has accepted. */
static int question_arrived(struct peer *peer, const struct bmi_link *link, const uint8_t *bytes,
                            size_t size)
{
    uint8_t proof[WIRE_PROOF] = {0};
    bool found = false;
    if (size == 0 || size % WIRE_JOIN_ITEM != 0)
        return -EBADMSG;
    for (size_t i = 0; bmi__setting(peer->instance, SETTING_JOIN) && !found && i < size;
         i += WIRE_JOIN_ITEM) {
        struct peer *dialled = dialled_find(peer->instance, bytes + i, link->method);
        found = dialled != NULL &&
                proof_holds(bytes + i + 16, PROOF_QUESTION, dialled->secret, peer->secret);
        if (found && keeps(dialled, peer))
            proof_make(proof, PROOF_ANSWER, dialled->secret, peer->secret);
    }
    peer_lock(peer);
    peer->flags |= PEER_ASKED;
    struct wire_header header = {.type = WIRE_JOIN, .flags = WIRE_REPLY};
    bmi__control_send_locked(peer, header, proof, sizeof proof);
    peer_unlock(peer);
    return 0;
}

/* The other side has answered, over the link that we dialled. */
static int answer_arrived(struct peer *peer, const struct bmi_link *link, const uint8_t *bytes,
                          size_t size)
{
    struct peer *accepted[WIRE_JOIN_ITEMS], *same = NULL;
    if (size != WIRE_PROOF)
        return -EBADMSG;
    peer_lock(peer);
    peer->flags &= ~(uint32_t)PEER_ASKED;
    bool waits = peer->state == PEER_DIALLING && peer->question != NULL;
    peer_unlock(peer);
    if (!waits) /* it asked as well, and was answered that our link stays */
        return 0;
    unsigned count =
        accepted_find(peer->instance, peer->question->hello.incarnation, link->method, accepted);
    for (unsigned i = 0; i < count && same == NULL; i++)
        if (question_names(peer->question, accepted[i]) &&
            proof_holds(bytes, PROOF_ANSWER, accepted[i]->secret, peer->secret))
            same = accepted[i];
    if (same != NULL) {
        bmi__join(peer, same);
        return 0;
    }
    peer_lock(peer);
    question_over_locked(peer);
    peer_unlock(peer);
    return 0;
}

int bmi__join_arrived(struct bmi_link *link, bool reply, const uint8_t *bytes, size_t size)
{
    int status = -EPROTO;
    bmi__book_lock(link->instance);
    struct peer *peer = link_owner(link);
    if (peer != NULL) {
        peer_lock(peer);
        bool dialled = !(peer->flags & PEER_ACCEPTED), asked = (peer->flags & PEER_ASKED) != 0;
        bool up = peer->state == PEER_UP && peer->link == link && peer->self_link == NULL;
        peer_unlock(peer);
        if (reply && dialled && asked)
            status = answer_arrived(peer, link, bytes, size);
        else if (!reply && !dialled && !asked && up)
            status = question_arrived(peer, link, bytes, size);
    }
    bmi__book_unlock(link->instance);
    return status;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static int hello_handle(struct bmi_link *link, bool reply, const struct wire_hello *hello)
{
    struct peer *peer = link_owner(link);
    if (peer == NULL)
        return -EPROTO;
    if (hello->version != WIRE_VERSION) {
        bmi__log(link->instance, BMI_LOG_WARN, "%s speaks version %u of the protocol, we speak %u",
                 bmi__peer_name(peer), hello->version, WIRE_VERSION);
        peer_lock(peer);
        refuse_locked(peer, EPROTO);
        peer_unlock(peer);
        return 0;
    }
    if (reply)
        return reply_arrived(peer, link, hello);
    if (peer->state != PEER_HANDSHAKE || (peer->flags & PEER_CLOSING))
        return -EPROTO;
    return accept_hello(peer, hello);
}

/* There is no memory to answer a HELLO. */
static int hello_refuse(struct bmi_link *link)
{
    struct peer *peer = link_owner(link);
    if (peer == NULL)
        return -ENOMEM;
    peer_lock(peer);
    bmi__log(link->instance, BMI_LOG_WARN, "%s: no memory for a handshake", bmi__peer_name(peer));
    refuse_locked(peer, ENOMEM);
    peer_unlock(peer);
    return 0;
}

int bmi__hello_arrived(struct bmi_link *link, bool reply, const uint8_t *bytes, size_t size)
{
    struct wire_hello *hello = malloc(sizeof *hello);
    const char *reason = "";
    bmi__book_lock(link->instance);
    int status = hello != NULL ? wire_hello_decode(bytes, size, hello, &reason) : -ENOMEM;
    if (status < 0 && hello != NULL)
        bmi__log(link->instance, BMI_LOG_WARN, "%s: %s", link->host != NULL ? link->host : "?",
                 reason);
    else if (status == 0)
        status = hello_handle(link, reply, hello);
    if (status == -ENOMEM && !reply)
        status = hello_refuse(link);
    bmi__book_unlock(link->instance);
    free(hello);
    return status;
}
