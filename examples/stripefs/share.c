/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share.c - decides which request is served next. No client (connection) has more than a quarter of
 * the requests served at a time, and no host more than half, so that others are served while theirs
 * stall. After a request of a client was ended for that, the client has one request at a time until
 * one of them succeeds. When all places are in use, the client with the fewest comes next, in turn.
 * A client has a bounded number of waiting requests; more are refused. A request keeps its place
 * until its reply was sent, so that the replies of a client that takes none are bounded, too.
 *
 * Locks. The lock is taken by machines, and by the poller when a request has ended. It is held
 * while `come` is called.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A host of such clients. */
struct host {
    struct host *next;
    int clients, served;
    char name[];
};

/* A client with a request that is served, or waits. */
struct share {
    struct share *next;
    struct host *host;
    BMI_addr_t client;
    int served, most, waiting;
    struct turn *first, **end; /* that wait, the oldest first */
};

void shares_open(struct shares *shares, int requests, void (*come)(struct turn *turn))
{
    *shares = (struct shares){.come = come,
                              .most = requests,
                              .most_client = requests > 4 ? requests / 4 : 1,
                              .most_host = requests > 2 ? requests / 2 : 1};
}

/* The link to a client's share, or the place for it. */
static struct share **share_find_locked(struct shares *shares, BMI_addr_t client)
{
    struct share **at = &shares->first;
    while (*at != NULL && (*at)->client != client)
        at = &(*at)->next;
    return at;
}

static struct host *host_get_locked(struct shares *shares, const char *name)
{
    struct host *host = shares->hosts;
    while (host != NULL && strcmp(host->name, name) != 0)
        host = host->next;
    if (host != NULL)
        return host;
    host = calloc(1, sizeof *host + strlen(name) + 1);
    if (host == NULL)
        return NULL;
    strcpy(host->name, name);
    host->next = shares->hosts;
    shares->hosts = host;
    return host;
}

static void host_tidy_locked(struct shares *shares, struct host *host)
{
    struct host **at = &shares->hosts;
    if (host->clients > 0)
        return;
    while (*at != host)
        at = &(*at)->next;
    *at = host->next;
    free(host);
}

static struct share *share_get_locked(struct shares *shares, BMI_addr_t client, const char *name)
{
    struct share **at = share_find_locked(shares, client), *share = *at;
    if (share != NULL)
        return share;
    struct host *host = host_get_locked(shares, name);
    if (host == NULL)
        return NULL;
    share = calloc(1, sizeof *share);
    if (share != NULL) {
        *share = (struct share){.host = host, .client = client, .most = shares->most_client};
        share->end = &share->first;
        host->clients++;
        *at = share;
    }
    host_tidy_locked(shares, host);
    return share;
}

/* Frees the share of a client without requests. */
static void share_tidy_locked(struct shares *shares, BMI_addr_t client)
{
    struct share **at = share_find_locked(shares, client), *share = *at;
    if (share->served > 0 || share->first != NULL)
        return;
    *at = share->next;
    share->host->clients--;
    host_tidy_locked(shares, share->host);
    free(share);
}

static void served_add_locked(struct shares *shares, struct share *share, int more)
{
    shares->served += more;
    share->host->served += more;
    share->served += more;
}

static bool share_may_locked(const struct shares *shares, const struct share *share)
{
    return shares->served < shares->most && share->served < share->most &&
           share->host->served < shares->most_host;
}

static int admit_locked(struct shares *shares, struct turn *turn, const char *host)
{
    struct share *share = share_get_locked(shares, turn->client, host != NULL ? host : "");
    if (share == NULL)
        return -BMI_ENOMEM;
    if (share_may_locked(shares, share)) {
        served_add_locked(shares, share, 1);
        turn->came = true;
        shares->come(turn);
        return 0;
    }
    if (share->waiting == WAITING_MOST)
        return -BMI_EAGAIN;
    turn->waits = true;
    turn->next = NULL;
    *share->end = turn;
    share->end = &turn->next;
    share->waiting++;
    shares->waiting++;
    return 0;
}

int shares_admit(struct shares *shares, struct turn *turn, const char *host)
{
    pthread_mutex_lock(&lock);
    int result = shares->come != NULL ? admit_locked(shares, turn, host) : -BMI_ECANCEL;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Puts a share behind all others. */
static void share_move_last_locked(struct shares *shares, struct share *share)
{
    struct share **at = share_find_locked(shares, share->client);
    *at = share->next;
    share->next = NULL;
    while (*at != NULL)
        at = &(*at)->next;
    *at = share;
}

/* The share with the fewest served requests among those that have a waiting one and may have one
 * more; NULL if there is none. It goes to the end of the list: of those that have as few, all
 * others come before it next time, even if it always has a request waiting. */
static struct share *share_choose_locked(struct shares *shares)
{
    struct share *least = NULL;
    for (struct share *at = shares->first; at != NULL; at = at->next)
        if (at->first != NULL && share_may_locked(shares, at) &&
            (least == NULL || at->served < least->served))
            least = at;
    if (least != NULL)
        share_move_last_locked(shares, least);
    return least;
}

/* Takes a turn out of its share's queue. */
static void turn_take_locked(struct shares *shares, struct share *share, struct turn *turn)
{
    struct turn **at = &share->first;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    if (*at == NULL)
        share->end = at;
    turn->waits = false;
    share->waiting--;
    shares->waiting--;
}

static void leave_locked(struct shares *shares, struct turn *turn, bool stalled)
{
    struct share *share = *share_find_locked(shares, turn->client);
    if (turn->waits) {
        turn_take_locked(shares, share, turn);
    } else {
        share->most = stalled ? 1 : shares->most_client;
        served_add_locked(shares, share, -1);
        turn->came = false;
    }
    share_tidy_locked(shares, turn->client);
    share = share_choose_locked(shares);
    if (share == NULL)
        return;
    struct turn *next = share->first;
    turn_take_locked(shares, share, next);
    served_add_locked(shares, share, 1);
    next->came = true;
    shares->come(next);
}

void shares_leave(struct shares *shares, struct turn *turn, bool stalled)
{
    pthread_mutex_lock(&lock);
    if ((turn->waits || turn->came) && shares->come != NULL)
        leave_locked(shares, turn, stalled);
    pthread_mutex_unlock(&lock);
}

bool shares_waiting(struct shares *shares)
{
    pthread_mutex_lock(&lock);
    bool waiting = shares->waiting > 0;
    pthread_mutex_unlock(&lock);
    return waiting;
}

void shares_close(struct shares *shares)
{
    pthread_mutex_lock(&lock);
    shares->come = NULL;
    while (shares->first != NULL) {
        struct share *share = shares->first;
        shares->first = share->next;
        free(share);
    }
    while (shares->hosts != NULL) {
        struct host *host = shares->hosts;
        shares->hosts = host->next;
        free(host);
    }
    pthread_mutex_unlock(&lock);
}
