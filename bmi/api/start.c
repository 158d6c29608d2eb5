/* SPDX-License-Identifier: BSD-3-Clause
 *
 * start.c - initialize and finalize, counted; starting methods and listening; look-ups.
 *
 * `start_lock` serialises all of these and is taken before any other lock. A thread that stops the
 * library, and with it background progress, waits for tasks while it holds the lock. A task that
 * then tries to take the lock gets EDEADLK (task/checked_lock.h).
 *
 * A child of fork(2) may take its parent's connections over when the parent has exited, as with
 * daemon(3). While the parent lives, they belong to the parent: the child's finalize releases
 * everything without sending anything, and the rest ends with the process.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/api/report.h"
#include "bmi/base/error.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/base/text.h"
#include "bmi/connection/address.h"
#include "bmi/connection/failure.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/matching.h"
#include "bmi/connection/peer_end.h"
#include "bmi/connection/tags.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/background.h"
#include "bmi/progress/methods.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/timers.h"
#include "bmi/protocol/credit.h"
#include "bmi/rpc/call.h"
#include "bmi/rpc/serve.h"
#include "bmi/rpc/services.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"
#include "bmi/task.h"
#include "task/checked_lock.h"

static struct bmi__checked_lock start_lock = BMI__CHECKED_LOCK;
static int users;               /* start_lock */
static bool background_by_flag; /* start_lock */
static pid_t owner;             /* start_lock: process that owns the connections */
static bool let_go;             /* start_lock: an ancestor owned and still owns them */
static const struct bmi__upcalls upcalls = {
    .liveness_expired = bmi__liveness_expired,
    .unexpected_stalled = bmi__unexpected_stalled,
    .exchange_start_locked = bmi__call_start_locked,
    .exchange_end_locked = bmi__exchange_end_locked,
    .request_arrived_locked = bmi__request_arrived_locked,
    .request_cancelled_locked = bmi__request_cancelled_locked,
    .reply_withdrawn_locked = bmi__reply_withdrawn_locked,
};
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* ---- fork ----------------------------------------------------------------------------------- */

/* Another thread of the parent may have held the lock. */
static void after_fork_child(void)
{
    bmi__checked_lock_init(&start_lock);
    bmi__progress_after_fork_child();
    if (bmi__running())
        bmi__reporter_follow(); /* if the child takes the connections over */
}

static void fork_watch(void)
{
    pthread_atfork(bmi__progress_before_fork, bmi__progress_after_fork_parent, after_fork_child);
}

/* Whether another process, which still lives, made our connections. */
static bool is_anothers(void)
{
    return owner != getpid() && (kill(owner, 0) == 0 || errno == EPERM);
}

/* ---- starting ------------------------------------------------------------------------------- */

static int methods_start(const char *list)
{
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *name;
    if (list == NULL)
        return 0;
    if (strlen(list) >= sizeof copy)
        return -ENAMETOOLONG;
    strcpy(copy, list);
    while ((name = strsep(&rest, ",")) != NULL) {
        name = bmi__trimmed(name);
        if (*name == '\0')
            continue;
        struct running_method *method = bmi__method_named(name, strlen(name));
        if (method == NULL) {
            bmi__log(BMI_LOG_ERROR, "no method \"%s\" in this library", name);
            return -ENOPROTOOPT;
        }
        int status = bmi__method_start(method);
        if (status < 0)
            return status;
    }
    return 0;
}

/* Listens on one "scheme://address". -ENOPROTOOPT: no method that runs has the scheme. */
static int listen_one(const char *text, int flags)
{
    char address[BMI_MAX_ADDR_LEN], bound[BMI_MAX_ADDR_LEN - 64];
    const char *separator = strstr(text, "://");
    if (separator == NULL) {
        bmi__log(BMI_LOG_ERROR, "listen address \"%s\": no scheme:// in it", text);
        return -EINVAL;
    }
    size_t scheme = (size_t)(separator - text);
    struct running_method *method = bmi__method_of_scheme(text, scheme);
    if (method == NULL || !atomic_load(&method->started)) {
        bmi__log(BMI_LOG_WARN, "listen address \"%s\": %s", text,
                 method == NULL ? "no method has that scheme"
                                : "its method is not in the list of methods");
        return -ENOPROTOOPT;
    }
    snprintf(address, sizeof address, "%s", separator + 3);
    int status = method->method->listen(method->state, address, flags, bound, sizeof bound);
    if (status < 0) {
        bmi__log(BMI_LOG_ERROR, "listen address \"%s\": %s", text,
                 bmi_status_string(bmi__error(status)));
        return status;
    }
    size_t used = strlen(method->listen);
    snprintf(method->listen + used, sizeof method->listen - used, "%s%.*s://%s",
             used > 0 ? "," : "", (int)scheme, text, bound);
    return 0;
}

/* A server's configuration may name more networks than this server uses. An address whose scheme no
 * running method has is left out, as long as another address remains. */
static int listen_all(const char *list, int flags)
{
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *part;
    int listening = 0;
    if (list == NULL)
        return 0;
    if (strlen(list) >= sizeof copy)
        return -ENAMETOOLONG;
    strcpy(copy, list);
    while ((part = strsep(&rest, ",")) != NULL) {
        int status = listen_one(bmi__trimmed(part), flags);
        if (status < 0 && status != -ENOPROTOOPT)
            return status;
        listening += status == 0;
    }
    if (listening == 0)
        bmi__log(BMI_LOG_ERROR, "no requested method can listen on \"%s\"", list);
    return listening > 0 ? 0 : -ENOPROTOOPT;
}

static void stop(void);

static int start(const char *method_list, const char *listen_addr, int flags)
{
    if (let_go) {
        bmi__log(BMI_LOG_ERROR, "BMI_initialize: this child of a fork has had its parent's; only a "
                                "new program (exec) can start");
        return -EBUSY;
    }
    pthread_once(&fork_once, fork_watch);
    owner = getpid();
    int status = bmi__handshake_start();
    if (status == 0)
        status = bmi__calls_start();
    if (status == 0)
        status = bmi__progress_start();
    if (status < 0)
        return status;
    bmi__upcalls = &upcalls;
    bmi__auto_references_set((flags & BMI_AUTO_REF_COUNT) != 0);
    status = methods_start(method_list);
    if (status == 0)
        status = listen_all(listen_addr, flags);
    background_by_flag = (flags & BMI_INIT_BACKGROUND) != 0;
    if (background_by_flag)
        bmi__setting_put(SETTING_PROGRESS, PROGRESS_BACKGROUND);
    bmi__checked_lock_waits(&start_lock);
    if (status == 0)
        status = bmi__background_follow();
    if (status < 0) {
        bmi__background_stop();
        stop();
    } else
        bmi__running_set(true);
    if (status == 0 && bmi__setting(SETTING_REPORT) != 0)
        bmi__reporter_follow();
    return status;
}

static int arguments_check(const char *method_list, const char *listen_addr, int flags)
{
    const int known =
        BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT | BMI_INIT_BACKGROUND;
    const bool server = (flags & BMI_INIT_SERVER) != 0;
    const char *wrong = NULL;
    int status = -EINVAL;
    if (flags & ~known)
        wrong = "an unknown flag";
    else if (server && listen_addr == NULL)
        wrong = "BMI_INIT_SERVER without a listen address";
    else if (!server && listen_addr != NULL)
        wrong = "a listen address without BMI_INIT_SERVER";
    else if (listen_addr != NULL && method_list == NULL)
        wrong = "a listen address without methods";
    else if (listen_addr != NULL && strlen(listen_addr) >= BMI_MAX_ADDR_LEN)
        wrong = "the listen address is too long", status = -ENAMETOOLONG;
    if (wrong == NULL)
        return 0;
    bmi__log(BMI_LOG_ERROR, "BMI_initialize: %s", wrong);
    return status;
}

/* The first call's options are settings. The environment's value of the same setting takes
 * precedence; the configuration file's does not. */
static int initialize(const char *method_list, const char *listen_addr, int flags,
                      const char *options)
{
    int status = bmi__checked_lock_take(&start_lock);
    if (status < 0)
        return bmi__error(status);
    if (users == 0) {
        if (options != NULL && *options != '\0')
            status = bmi__settings_lend(options);
        if (status == 0)
            status = bmi__settings_load();
        if (status == 0)
            status = bmi__settings_file();
        bmi_task_manager_set_policy(NULL,
                                    (enum bmi_task_policy)bmi__setting(SETTING_WORKER_POLICY));
        if (status == 0)
            status = arguments_check(method_list, listen_addr, flags);
        if (status == 0)
            status = start(method_list, listen_addr, flags);
        if (status < 0)
            bmi__settings_return();
    } else if (is_anothers()) {
        bmi__log(BMI_LOG_ERROR, "BMI_initialize: in a child of the fork, while its parent has what "
                                "it started");
        status = -EBUSY;
    }
    if (status == 0)
        users++;
    bmi__checked_lock_give(&start_lock);
    return bmi__error(status);
}

int BMI_initialize(const char *method_list, const char *listen_addr, int flags)
{
    return initialize(method_list, listen_addr, flags, NULL);
}

int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options);
int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options)
{
    return initialize(method_list, listen_addr, flags, options);
}

/* ---- stopping ------------------------------------------------------------------------------- */

static void close_one(struct peer *peer, void *linger)
{
    peer_lock(peer);
    struct bmi_link *links[2] = {peer->link, peer->self_link};
    for (int i = 0; i < 2; i++)
        if (links[i] != NULL)
            links[i]->method->close(links[i], *(bool *)linger);
    peer->flags |= PEER_CLOSING | PEER_DROPPED;
    peer_unlock(peer);
}

static void find_open(struct peer *peer, void *open)
{
    peer_lock(peer);
    if (peer->link != NULL || peer->self_link != NULL)
        *(bool *)open = true;
    peer_unlock(peer);
}

static bool links_open(void)
{
    bool open = false;
    bmi__peer_each(find_open, &open);
    return open;
}

static bool links_gone(struct waiter *waiter)
{
    (void)waiter;
    return !links_open();
}

/* Polls until the links are closed, at most `ms`. */
static void links_drain(int64_t ms)
{
    struct waiter waiter = {.ready = links_gone, .op = -1};
    if (links_open() && ms > 0)
        bmi__progress_wait(&waiter, (int)ms);
}

static void links_close(void)
{
    bool linger = true;
    bmi__peer_each(close_one, &linger);
    links_drain(bmi__setting(SETTING_LINGER));
    linger = false;
    bmi__peer_each(close_one, &linger);
    links_drain(1000);
}

static void abandon_one(struct peer *peer, void *argument)
{
    (void)argument;
    peer_lock(peer);
    atomic_store(&peer->state, PEER_GONE);
    bmi__peer_abandon_locked(peer, BMI__CANCELLED);
    bool give = peer->op_count == 0;
    peer_unlock(peer);
    if (give)
        bmi__peer_give(peer);
}

/* Without the background, or that it is begun. */
static void stop(void)
{
    if (background_by_flag)
        bmi__setting_put(SETTING_PROGRESS, PROGRESS_CALLER);
    background_by_flag = false;
    links_close();
    bmi__methods_stop();
    bmi__progress_chores();
    bmi__book_lock();
    bmi__peer_each(abandon_one, NULL);
    bmi__book_unlock();
    bmi__requests_wait();
    bmi__services_stop();
    bmi__failure_stop();
    bmi__timers_forget();
    bmi__background_end();
    bmi__reporter_stop();
    bmi__progress_stop();
    bmi__exchanges_free(); /* their timers and steps are forgotten */
    bmi__calls_stop();
    bmi__unexpected_stop();
    bmi__addresses_free();
    bmi__matching_stop();
    bmi__tags_stop();
    bmi__peers_free();
    bmi__credit_stop();
    bmi__contexts_free();
    bmi__op_table_free();
}

/* Returns 0, or -EDEADLK: nothing has changed. */
static int finalize_last(void)
{
    bmi__checked_lock_waits(&start_lock);
    if (is_anothers()) {
        let_go = true;
        bmi__running_set(false);
        return 0;
    }
    bmi__running_set(false); /* from now on no thread can start the background task */
    int status = bmi__background_stop();
    if (status < 0) {
        bmi__running_set(true);
        return status;
    }
    if (bmi__setting(SETTING_STATS) != 0)
        bmi__report_print();
    stop();
    bmi__settings_return();
    return 0;
}

int BMI_finalize(void)
{
    if (bmi__background_self() || bmi__checked_lock_take(&start_lock) != 0)
        return -BMI_EDEADLK;
    int status = users > 0 ? 0 : -EINVAL;
    if (status == 0 && users == 1)
        status = finalize_last();
    users -= status == 0;
    bmi__checked_lock_give(&start_lock);
    return bmi__error(status);
}

/* ---- contexts and look-ups ------------------------------------------------------------------ */

int BMI_open_context(bmi_context_id *context_id)
{
    if (context_id == NULL || !bmi__running())
        return -BMI_EINVAL;
    return bmi__error(bmi__context_open(context_id));
}

/* Counts the context's operations, including those on their way into it, and cancels those that
 * have not completed. */
struct sweep {
    struct context *context;
    unsigned left;
};

static void sweep_one(struct op *op, void *argument)
{
    struct sweep *sweep = argument;
    bmi_op_id_t id = bmi__op_id(op);
    if (atomic_load(&op->state) != OP_PENDING || op->context != sweep->context ||
        bmi__op_find(id) != op)
        return;
    sweep->left++;
    if (op->peer != NULL)
        BMI_cancel(id, sweep->context->id);
}

static unsigned drop_completions(struct context *context)
{
    struct op *ops[64];
    unsigned dropped = 0;
    int count;
    while ((count = bmi__context_take(context, ops, 64)) > 0)
        for (int i = 0; i < count; i++, dropped++)
            bmi__op_give(ops[i]);
    return dropped;
}

static bool has_completion(struct waiter *waiter)
{
    return bmi__context_has(waiter_context(waiter));
}

void BMI_close_context(bmi_context_id context_id)
{
    struct context *context = bmi__running() ? bmi__context_find(context_id) : NULL;
    if (context == NULL)
        return;
    struct sweep sweep = {.context = context};
    struct waiter waiter = {.ready = has_completion, .list = &context->waiters, .op = WAITER_SOME};
    do {
        sweep.left = 0;
        bmi__op_each(sweep_one, &sweep);
        unsigned dropped = drop_completions(context);
        if (sweep.left > dropped)
            bmi__progress_wait(&waiter, 10);
    } while (sweep.left > 0);
    bmi__context_release(context);
}

int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string)
{
    BMI_addr_t handle = 0;
    if (new_addr == NULL || id_string == NULL || !bmi__running())
        return -BMI_EINVAL;
    int status = bmi__address_lookup(id_string, &handle);
    if (status < 0)
        return bmi__error(status);
    status = bmi__checked_lock_take(&start_lock);
    if (status < 0)
        return bmi__error(status);
    status = bmi__address_methods_start(handle);
    bmi__checked_lock_give(&start_lock);
    if (status == 0)
        *new_addr = handle;
    return bmi__error(status);
}

int bmi_classic_addr_lookup(BMI_addr_t *new_addr, const char *id_string, const char *options);
int bmi_classic_addr_lookup(BMI_addr_t *new_addr, const char *id_string, const char *options)
{
    (void)options;
    if (new_addr != NULL)
        *new_addr = 0; /* as the classic library does when it fails */
    return BMI_addr_lookup(new_addr, id_string);
}
