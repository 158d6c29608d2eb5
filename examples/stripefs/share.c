/* SPDX-License-Identifier: BSD-3-Clause
 *
 * share.c - whose request is served next. No client has more than a quarter of what is served at a
 * time, so that one whose requests stand still holds up itself only; and where all is in use, the
 * client that has least of it comes next, in turn. Requests that wait are kept in BMI's memory,
 * which it bounds for each client.
 */
#include <stdlib.h>

#include "server.h"

struct waiting {
    struct waiting *next;
    struct BMI_unexpected_info request;
};

/* One that has a request which is served, or waits. */
struct share {
    struct share *next;
    BMI_addr_t client;
    int served;
    struct waiting *first, **end; /* the oldest first */
};

void shares_open(struct shares *shares, int requests)
{
    *shares = (struct shares){.most = requests, .most_each = requests > 4 ? requests / 4 : 1};
    pthread_mutex_init(&shares->lock, NULL);
}

/* Where a client's share is linked, or would be. */
static struct share **share_find_locked(struct shares *shares, BMI_addr_t client)
{
    struct share **at = &shares->first;
    while (*at != NULL && (*at)->client != client)
        at = &(*at)->next;
    return at;
}

static struct share *share_get_locked(struct shares *shares, BMI_addr_t client)
{
    struct share **at = share_find_locked(shares, client);
    if (*at == NULL) {
        *at = calloc(1, sizeof **at);
        if (*at != NULL) {
            (*at)->client = client;
            (*at)->end = &(*at)->first;
        }
    }
    return *at;
}

/* Forgets a client that has nothing here. */
static void share_tidy_locked(struct shares *shares, BMI_addr_t client)
{
    struct share **at = share_find_locked(shares, client), *share = *at;
    if (share->served > 0 || share->first != NULL)
        return;
    *at = share->next;
    free(share);
}

static void served_add_locked(struct shares *shares, struct share *share, int more)
{
    shares->served += more;
    share->served += more;
}

static int admit_locked(struct shares *shares, const struct BMI_unexpected_info *request)
{
    struct share *share = share_get_locked(shares, request->addr);
    if (share == NULL)
        return -BMI_ENOMEM;
    if (shares->served < shares->most && share->served < shares->most_each) {
        served_add_locked(shares, share, 1);
        return 1;
    }
    struct waiting *waiting = malloc(sizeof *waiting);
    if (waiting == NULL) {
        share_tidy_locked(shares, request->addr);
        return -BMI_ENOMEM;
    }
    *waiting = (struct waiting){.request = *request};
    *share->end = waiting;
    share->end = &waiting->next;
    return 0;
}

int shares_admit(struct shares *shares, const struct BMI_unexpected_info *request)
{
    pthread_mutex_lock(&shares->lock);
    int result = admit_locked(shares, request);
    pthread_mutex_unlock(&shares->lock);
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

/* The share that may have one more, and has least; NULL if nobody waits who may. It goes to the
 * end of the list: of those that have as little, all others come before it next time, also where
 * it always has something waiting. */
static struct share *share_choose_locked(struct shares *shares)
{
    struct share *least = NULL;
    for (struct share *at = shares->first; at != NULL; at = at->next)
        if (at->first != NULL && at->served < shares->most_each &&
            (least == NULL || at->served < least->served))
            least = at;
    if (least != NULL)
        share_move_last_locked(shares, least);
    return least;
}

static struct waiting *waiting_take(struct share *share)
{
    struct waiting *waiting = share->first;
    share->first = waiting->next;
    if (share->first == NULL)
        share->end = &share->first;
    return waiting;
}

bool shares_next(struct shares *shares, BMI_addr_t client, struct BMI_unexpected_info *next)
{
    struct waiting *waiting = NULL;
    pthread_mutex_lock(&shares->lock);
    served_add_locked(shares, *share_find_locked(shares, client), -1);
    share_tidy_locked(shares, client);
    struct share *share = share_choose_locked(shares);
    if (share != NULL) {
        waiting = waiting_take(share);
        *next = waiting->request;
        served_add_locked(shares, share, 1);
    }
    pthread_mutex_unlock(&shares->lock);
    free(waiting);
    return share != NULL;
}

void shares_close(struct shares *shares)
{
    while (shares->first != NULL) {
        struct share *share = shares->first;
        while (share->first != NULL) {
            struct waiting *waiting = waiting_take(share);
            BMI_unexpected_free(waiting->request.addr, waiting->request.buffer);
            free(waiting);
        }
        shares->first = share->next;
        free(share);
    }
    pthread_mutex_destroy(&shares->lock);
}
