/* SPDX-License-Identifier: BSD-3-Clause
 *
 * resolve.c - looks names up without blocking the poller.
 *
 * getaddrinfo blocks, so it runs in short-lived threads: up to THREADS at a time. Each takes
 * requests until none waits, and then ends. Where those hang for a second while requests wait (a
 * name server does not answer), a standby thread takes the next request and starts more threads, up
 * to THREADS_MOST: names that a local file resolves must not wait for the server.
 *
 * The threads belong to no method instance. A cancelled request, even after the whole library has
 * stopped, is freed by its holder: by cancel while it is queued, by the thread after
 * its look-up, or by the poller when the result comes. There is one lock. It is innermost, except
 * that bmi_method_defer is called under it, so that nothing is delivered after cancel has returned.
 */
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "ip.h"

enum { THREADS = 8, THREADS_MOST = 64, PATIENCE_S = 1, STACK_LEAST = 256 << 10 };

struct ip_resolve {
    struct ip_resolve *next; /* in the queue */
    struct bmi_instance *instance;
    ip_resolved *done;
    void *argument;
    struct bmi_deferred deferred;
    bool queued, cancelled; /* lock */
    int status;
    uint16_t port;
    size_t count;
    union ip_socket_address addresses[IP_NAME_ADDRESSES];
    char host[IP_HOST_SIZE];
};

static struct bmi_lock lock;
static struct ip_resolve *queue; /* lock */
static unsigned threads;         /* lock */
static bool standing_by;         /* lock: one of the threads stands by */

static int error_of(int code)
{
    switch (code) {
    case EAI_MEMORY:
        return -ENOMEM;
    case EAI_SYSTEM:
        return errno ? -errno : -EIO;
    case EAI_AGAIN:
        return -BMI_ETRYAGAIN;
    default:
        return -BMI_EHOSTNTFD;
    }
}

int ip_resolve_now(const char *host, uint16_t port, union ip_socket_address *addresses,
                   size_t *count)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;

    int code = getaddrinfo(host, NULL, &hints, &list);
    if (code)
        return error_of(code);
    size_t found = 0;
    for (struct addrinfo *at = list; at && found < IP_NAME_ADDRESSES; at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6)
            continue;
        memset(&addresses[found], 0, sizeof(addresses[found]));
        memcpy(&addresses[found], at->ai_addr, at->ai_addrlen);
        ip_socket_address_set_port(&addresses[found], port);
        found++;
    }
    freeaddrinfo(list);
    *count = found;
    return found > 0 ? 0 : -BMI_EADDRNTFD;
}

static struct ip_resolve *queue_pop_locked(void)
{
    struct ip_resolve *resolve = queue;
    if (resolve) {
        queue = resolve->next;
        resolve->queued = false;
    }
    return resolve;
}

static void *resolve_thread(void *argument);

/* Starts one more thread, which takes no signals of the program's. Its stack is as large as that of
 * the program's own: the C library puts all thread-local variables on it, and they may be large. */
static int thread_start(void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    size_t usual = 0;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_attr_getstacksize(&attributes, &usual) == 0 && usual < STACK_LEAST)
        pthread_attr_setstacksize(&attributes, STACK_LEAST);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, resolve_thread, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* Starts a thread for a request that waits; where the limit of threads is busy, a standby
 * thread. */
static void thread_add_locked(bool they_hang)
{
    bool by = threads >= THREADS && !they_hang;
    if (threads >= THREADS_MOST || (by && standing_by) ||
        thread_start(by ? &standing_by : NULL) != 0)
        return;
    threads++;
    standing_by |= by;
}

/* Waits to see whether the running look-ups hang. Returns whether this thread is needed. */
static bool stand_by_locked(void)
{
    const struct timespec patience = {.tv_sec = PATIENCE_S};
    bmi_lock_give(&lock);
    nanosleep(&patience, NULL);
    bmi_lock_take(&lock);
    standing_by = false;
    return queue != NULL;
}

static void *resolve_thread(void *argument)
{
    struct ip_resolve *resolve;

    bmi_lock_take(&lock);
    bool they_hang = argument != NULL && stand_by_locked();
    while ((resolve = queue_pop_locked()) != NULL) {
        for (const struct ip_resolve *left = queue; they_hang && left; left = left->next)
            thread_add_locked(true);
        they_hang = false;
        bmi_lock_give(&lock);
        resolve->status =
            ip_resolve_now(resolve->host, resolve->port, resolve->addresses, &resolve->count);
        bmi_lock_take(&lock);
        if (resolve->cancelled)
            free(resolve);
        else
            bmi_method_defer(resolve->instance, &resolve->deferred);
    }
    threads--;
    bmi_lock_give(&lock);
    return NULL;
}

static void resolve_deferred(struct bmi_deferred *deferred)
{
    struct ip_resolve *resolve = (void *)((char *)deferred - offsetof(struct ip_resolve, deferred));
    bmi_lock_take(&lock);
    bool cancelled = resolve->cancelled;
    bmi_lock_give(&lock);
    if (!cancelled)
        resolve->done(resolve->argument, resolve->status, resolve->addresses, resolve->count);
    free(resolve);
}

static void queue_append_locked(struct ip_resolve *resolve)
{
    struct ip_resolve **at = &queue;
    while (*at)
        at = &(*at)->next;
    *at = resolve;
    resolve->queued = true;
}

static void queue_remove_locked(struct ip_resolve *resolve)
{
    struct ip_resolve **at = &queue;
    while (*at != resolve)
        at = &(*at)->next;
    *at = resolve->next;
    resolve->queued = false;
}

int ip_resolve_start(struct bmi_instance *instance, const char *host, uint16_t port,
                     ip_resolved *done, void *argument, struct ip_resolve **out)
{
    struct ip_resolve *resolve = calloc(1, sizeof(*resolve));
    if (!resolve)
        return -ENOMEM;
    strncpy(resolve->host, host, sizeof(resolve->host) - 1);
    resolve->instance = instance;
    resolve->port = port;
    resolve->done = done;
    resolve->argument = argument;
    resolve->deferred.run = resolve_deferred;

    bmi_lock_take(&lock);
    queue_append_locked(resolve);
    thread_add_locked(false);
    if (threads == 0) {
        queue_remove_locked(resolve);
        free(resolve);
        resolve = NULL;
    }
    bmi_lock_give(&lock);
    *out = resolve;
    return resolve ? 0 : -EAGAIN;
}

void ip_resolve_cancel(struct ip_resolve *resolve)
{
    bmi_lock_take(&lock);
    if (resolve->queued) {
        queue_remove_locked(resolve);
        free(resolve);
    } else {
        resolve->cancelled = true;
    }
    bmi_lock_give(&lock);
}
