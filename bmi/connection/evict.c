/* SPDX-License-Identifier: BSD-3-Clause
 *
 * evict.c - which connection gives its descriptor to a newcomer: an accepted one that is of no use
 * yet, of the host that holds most of the method's connections. So a host that opens many keeps
 * only itself out.
 *
 * First go those whose HELLO has not come within FIRST_NS, then those on which no message came or
 * went for as long since a shortage was noticed first, then those on which nothing arrived for
 * QUIET_NS since then; of each the oldest first. At a host's own limit a connection without a
 * message goes at once, since the newcomer cannot wait. A connection with an operation, or with a
 * message that the program still holds, stays. Poller.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/clock.h"
#include "bmi/base/log.h"
#include "bmi/connection/failure.h"
#include "bmi/state/address.h"
#include "bmi/state/peer.h"

enum { HOST_BYTES = 48 };
static const uint64_t FIRST_NS = 1000000000u; /* HELLO or first message may be on their way */
static const uint64_t QUIET_NS = 3000000000u; /* a server may compute an answer meanwhile */

/* What a connection was used for: the first ones go first. */
enum use { USE_NO_HELLO, USE_NO_MESSAGE, USE_QUIET, USE_BUSY };

struct candidate {
    const struct bmi_method *method; /* of all candidates */
    struct peer *peer;
    enum use use;
    uint64_t since_ns; /* accepted, or idle */
    char host[HOST_BYTES];
};

struct eviction {
    const struct bmi_method *method;
    const char *host; /* NULL: any */
    uint64_t now_ns;
    struct candidate *candidates;
    size_t count, room;
};

static enum use use_of_locked(struct peer *peer, const struct eviction *eviction)
{
    struct bmi_statistics s = {0};
    uint64_t bytes = atomic_load_explicit(&peer->link->bytes_in, memory_order_relaxed);
    uint64_t now_ns = eviction->now_ns, first_ns = eviction->host == NULL ? FIRST_NS : 0;
    if (peer->state == PEER_HANDSHAKE)
        return now_ns - peer->since_ns >= FIRST_NS ? USE_NO_HELLO : USE_BUSY;
    if (!bmi__reapable(peer))
        return USE_BUSY;
    bmi__peer_statistics(peer, &s);
    if (bytes != peer->bytes_in || peer->since_ns == 0) {
        peer->bytes_in = bytes;
        peer->since_ns = now_ns;
    }
    if (s.messages_sent + s.messages_received + s.unexpected_sent + s.unexpected_received == 0)
        return now_ns - peer->since_ns >= first_ns ? USE_NO_MESSAGE : USE_BUSY;
    return now_ns - peer->since_ns >= QUIET_NS ? USE_QUIET : USE_BUSY;
}

static bool same_host(const struct eviction *eviction, const char *one, const char *other)
{
    return eviction->method->hosts->compare(one, other) == 0;
}

/* NULL: it is not known. */
static const char *host_of_locked(const struct peer *peer)
{
    if (peer->state == PEER_HANDSHAKE)
        return peer->link->host;
    return peer->address != NULL && peer->address->host != NULL ? peer->address->host->numeric
                                                                : NULL;
}

static void candidate_add(struct peer *peer, void *argument)
{
    struct eviction *eviction = argument;
    peer_lock(peer);
    bool counts = peer->link != NULL && peer->link->method == eviction->method &&
                  (peer->flags & PEER_ACCEPTED) && !(peer->flags & PEER_CLOSING);
    const char *host = counts ? host_of_locked(peer) : NULL;
    if (host != NULL && (eviction->host == NULL || same_host(eviction, host, eviction->host)) &&
        eviction->count < eviction->room) {
        struct candidate *candidate = &eviction->candidates[eviction->count++];
        candidate->method = eviction->method;
        candidate->peer = peer;
        candidate->use = use_of_locked(peer, eviction);
        candidate->since_ns = peer->since_ns;
        strncpy(candidate->host, host, sizeof candidate->host - 1);
        candidate->host[sizeof candidate->host - 1] = '\0';
    }
    peer_unlock(peer);
}

/* By host, then in the order in which they go. */
static int compare(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    int hosts = a->method->hosts->compare(a->host, b->host);
    if (hosts != 0)
        return hosts;
    if (a->use != b->use)
        return a->use < b->use ? -1 : 1;
    return a->since_ns < b->since_ns ? -1 : a->since_ns > b->since_ns;
}

/* Of the sorted candidates. NULL: all are in use. */
static struct candidate *choose(const struct eviction *eviction)
{
    struct candidate *chosen = NULL;
    size_t most = 0, first = 0;
    while (first < eviction->count) {
        struct candidate *of_host = &eviction->candidates[first];
        size_t next = first;
        while (next < eviction->count &&
               same_host(eviction, eviction->candidates[next].host, of_host->host))
            next++;
        if (of_host->use != USE_BUSY && next - first > most) {
            most = next - first;
            chosen = of_host;
        }
        first = next;
    }
    return chosen;
}

static void count_one(struct peer *peer, void *argument)
{
    (void)peer;
    ++*(size_t *)argument;
}

bool bmi_method_idle_close(struct bmi_instance *instance, const struct bmi_method *method,
                           const char *host)
{
    struct eviction eviction = {.method = method,
                                .host = host,
                                .now_ns = bmi__instance_now_ns(instance)};
    bool closes = false;
    bmi__peer_each(instance, count_one, &eviction.room);
    eviction.candidates = malloc((eviction.room + 1) * sizeof *eviction.candidates);
    if (eviction.candidates == NULL)
        return false;
    bmi__peer_each(instance, candidate_add, &eviction);
    qsort(eviction.candidates, eviction.count, sizeof *eviction.candidates, compare);
    const struct candidate *chosen = choose(&eviction);
    if (chosen != NULL) {
        struct peer *peer = chosen->peer;
        peer_lock(peer);
        closes = peer->link != NULL && (peer->state == PEER_HANDSHAKE || bmi__reapable(peer));
        if (closes) {
            bmi__log(instance, BMI_LOG_INFO, "%s %s and gives its descriptor to a newcomer",
                     bmi__peer_name(peer),
                     chosen->use == USE_NO_HELLO ? "has sent no HELLO" : "is idle");
            bmi__peer_leave_locked(peer);
        }
        peer_unlock(peer);
    }
    free(eviction.candidates);
    return closes;
}
