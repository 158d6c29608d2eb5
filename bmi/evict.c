/* SPDX-License-Identifier: BSD-3-Clause
 *
 * evict.c - which connection gives its descriptor to a newcomer: an idle accepted one, of the host
 * that holds most of the method's connections. A host that opens many keeps only itself out.
 *
 * Idle means: nothing is outstanding, nothing is held for the program, and either no message ever
 * came or went, or nothing arrived for QUIET_NS since a shortage was noticed first. Driver.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/address.h"
#include "bmi/failure.h"
#include "bmi/greeting.h"
#include "bmi/log.h"
#include "bmi/progress.h"

enum { HOST_BYTES = 48 };
static const uint64_t QUIET_NS = 3000000000u; /* a server may compute an answer meanwhile */

struct candidate {
    struct peer *peer;
    uint64_t idle_ns; /* since when; UINT64_MAX: it is not idle */
    char host[HOST_BYTES];
};

struct eviction {
    const struct bmi_method *method;
    const char *host; /* NULL: any */
    uint64_t now_ns;
    struct candidate *candidates;
    size_t count, room;
};

/* Since when nothing has come, as far as it was looked at; 0: no message ever came or went. */
static uint64_t idle_since_locked(struct peer *peer, uint64_t now_ns)
{
    struct bmi_statistics s = {0};
    uint64_t bytes = atomic_load_explicit(&peer->link->bytes_in, memory_order_relaxed);
    if (!bmi__reapable(peer))
        return UINT64_MAX;
    bmi__peer_statistics(peer, &s);
    if (s.messages_sent + s.messages_received + s.unexpected_sent + s.unexpected_received == 0)
        return 0;
    if (bytes != peer->bytes_in || peer->since_ns == 0) {
        peer->bytes_in = bytes;
        peer->since_ns = now_ns;
    }
    return now_ns - peer->since_ns >= QUIET_NS ? peer->since_ns : UINT64_MAX;
}

static void candidate_add(struct peer *peer, void *argument)
{
    struct eviction *eviction = argument;
    peer_lock(peer);
    const struct address *address = peer->address;
    bool counts = peer->link != NULL && peer->link->method == eviction->method &&
                  (peer->flags & PEER_ACCEPTED) && !(peer->flags & PEER_CLOSING) &&
                  address != NULL && address->host != NULL;
    if (counts && eviction->host != NULL)
        counts = strcmp(address->host->numeric, eviction->host) == 0;
    if (counts && eviction->count < eviction->room) {
        struct candidate *candidate = &eviction->candidates[eviction->count++];
        candidate->peer = peer;
        candidate->idle_ns = idle_since_locked(peer, eviction->now_ns);
        strncpy(candidate->host, address->host->numeric, sizeof candidate->host - 1);
        candidate->host[sizeof candidate->host - 1] = '\0';
    }
    peer_unlock(peer);
}

/* By host, then those that are idle longest first. */
static int compare(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    int hosts = strcmp(a->host, b->host);
    if (hosts != 0)
        return hosts;
    return a->idle_ns < b->idle_ns ? -1 : a->idle_ns > b->idle_ns;
}

/* Of the sorted candidates. NULL: none is idle. */
static struct candidate *choose(const struct eviction *eviction)
{
    struct candidate *chosen = NULL;
    size_t most = 0, first = 0;
    while (first < eviction->count) {
        struct candidate *of_host = &eviction->candidates[first];
        size_t next = first;
        while (next < eviction->count &&
               strcmp(eviction->candidates[next].host, of_host->host) == 0)
            next++;
        if (of_host->idle_ns != UINT64_MAX && next - first > most) {
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

bool bmi_method_idle_close(const struct bmi_method *method, const char *host)
{
    struct eviction eviction = {.method = method, .host = host, .now_ns = bmi__monotonic_ns()};
    bool closes = false;
    bmi__peer_each(count_one, &eviction.room);
    eviction.candidates = malloc((eviction.room + 1) * sizeof *eviction.candidates);
    if (eviction.candidates == NULL)
        return false;
    bmi__peer_each(candidate_add, &eviction);
    qsort(eviction.candidates, eviction.count, sizeof *eviction.candidates, compare);
    const struct candidate *chosen = choose(&eviction);
    if (chosen != NULL) {
        struct peer *peer = chosen->peer;
        peer_lock(peer);
        closes = peer->link != NULL && bmi__reapable(peer);
        if (closes) {
            bmi__log(BMI_LOG_INFO, "%s is idle and gives its descriptor to a newcomer",
                     bmi__peer_name(peer));
            bmi__peer_leave_locked(peer);
        }
        peer_unlock(peer);
    }
    free(eviction.candidates);
    return closes;
}
