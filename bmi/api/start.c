/* SPDX-License-Identifier: BSD-3-Clause
 *
 * start.c - initialize and finalize, counted; starting methods and listening; look-ups.
 *
 * An instance's lock `starting` serialises all of these and is taken before any other lock. A
 * thread that stops the instance, and with it background progress, waits for tasks while it holds
 * the lock. A task that then tries to take the lock gets EDEADLK (task/checked_lock.h).
 *
 * A child of fork(2) may take its parent's connections over when the parent has exited, as with
 * daemon(3). While the parent lives, they belong to the parent: the child's finalize releases
 * everything without sending anything, and the rest ends with the process. An instance that another
 * thread of the parent was starting or ending does not exist in the child.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/api/api.h"
#include "bmi/api/report.h"
#include "bmi/base/crypto.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/base/text.h"
#include "bmi/connection/address.h"
#include "bmi/connection/book.h"
#include "bmi/connection/failure.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/matching.h"
#include "bmi/connection/peer_end.h"
#include "bmi/connection/tags.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/background.h"
#include "bmi/progress/methods.h"
#include "bmi/progress/offload.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/spin.h"
#include "bmi/progress/timers.h"
#include "bmi/progress/waiters.h"
#include "bmi/progress/wakeup.h"
#include "bmi/progress/work.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/rpc/call.h"
#include "bmi/rpc/serve.h"
#include "bmi/rpc/services.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"
#include "bmi/task.h"
#include "task/checked_lock.h"

/* The instances all of whose parts are open, for forks: `list_lock` is held over a fork, too. It is
 * taken before all locks below `starting`. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi_instance *instances; /* list_lock; by `next` */
static unsigned closing; /* list_lock; instances that have left it and still use the tables */
static _Thread_local struct bmi_instance *changing; /* what this thread starts or ends */

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

/* What each file keeps for an instance: opened in this order, closed in the reverse one. */
static const struct {
    int (*open)(struct bmi_instance *instance); /* returns 0 or an errno */
    void (*close)(struct bmi_instance *instance);
} parts[] = {
    {bmi__waiters_open, bmi__waiters_close},
    {bmi__work_open, bmi__work_close},
    {bmi__timers_open, bmi__timers_close},
    {bmi__spin_open, bmi__spin_close},
    {bmi__wakeup_open, bmi__wakeup_close},
    {bmi__progress_open, bmi__progress_close},
    {bmi__background_open, bmi__background_close},
    {bmi__offload_open, bmi__offload_close},
    {bmi__contexts_open, bmi__contexts_close},
    {bmi__peers_open, bmi__peers_close},
    {bmi__liveness_open, bmi__liveness_close},
    {bmi__frames_open, bmi__frames_close},
    {bmi__credit_open, bmi__credit_close},
    {bmi__book_open, bmi__book_close},
    {bmi__dead_addresses_open, bmi__dead_addresses_close},
    {bmi__matching_open, bmi__matching_close},
    {bmi__reaper_open, bmi__reaper_close},
    {bmi__unexpected_open, bmi__unexpected_close},
    {bmi__exchanges_open, bmi__exchanges_close},
    {bmi__calls_open, bmi__calls_close},
    {bmi__requests_open, bmi__requests_close},
    {bmi__services_open, bmi__services_close},
    {bmi__forwards_open, bmi__forwards_close},
    {bmi__reporter_open, bmi__reporter_close},
};
enum { PARTS_COUNT = sizeof parts / sizeof *parts };

static void parts_close(struct bmi_instance *instance, int count)
{
    while (count-- > 0)
        parts[count].close(instance);
}

int bmi__parts_open(struct bmi_instance *instance)
{
    bmi__settings_fill();
    bmi__methods_fill();
    for (int i = 0; i < PARTS_COUNT; i++) {
        int status = parts[i].open(instance);
        if (status < 0) {
            parts_close(instance, i + 1);
            return status;
        }
    }
    return 0;
}

void bmi__parts_close(struct bmi_instance *instance)
{
    parts_close(instance, PARTS_COUNT);
    bmi__methods_forget(instance);
}

/* ---- the list of instances ------------------------------------------------------------------- */

static void list_add(struct bmi_instance *instance)
{
    pthread_mutex_lock(&list_lock);
    instance->next = instances;
    instances = instance;
    pthread_mutex_unlock(&list_lock);
}

/* Before its parts are closed. */
static void list_leave(struct bmi_instance *instance)
{
    pthread_mutex_lock(&list_lock);
    struct bmi_instance **place = &instances;
    while (*place != instance)
        place = &(*place)->next;
    *place = instance->next;
    closing++;
    pthread_mutex_unlock(&list_lock);
}

/* By an instance that has left the list. After the last one, frees the tables of the process. */
static void tables_leave(void)
{
    pthread_mutex_lock(&list_lock);
    closing--;
    if (instances == NULL && closing == 0) {
        bmi__address_slots_free();
        bmi__context_table_free();
        bmi__op_table_free();
    }
    pthread_mutex_unlock(&list_lock);
}

/* ---- fork ----------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
    for (struct bmi_instance *one = instances; one != NULL; one = one->next) {
        bmi__background_before_fork(one);
        bmi__progress_before_fork(one); /* may wait for its poller */
    }
    for (struct bmi_instance *one = instances; one != NULL; one = one->next)
        bmi__waiters_before_fork(one);
    bmi__crypto_before_fork();
}

static void after_fork_parent(void)
{
    bmi__crypto_after_fork();
    for (struct bmi_instance *one = instances; one != NULL; one = one->next) {
        bmi__waiters_after_fork_parent(one);
        bmi__progress_after_fork_parent(one);
        bmi__background_after_fork_parent(one);
    }
    pthread_mutex_unlock(&list_lock);
}

/* Whether another thread of the parent was starting or ending it. */
static bool is_half_open(struct bmi_instance *instance)
{
    return (!bmi__running(instance) || instance->users == 0) && !instance->let_go &&
           changing != instance;
}

/* What the other thread had made stays in memory. */
static void half_open_forget(void)
{
    struct bmi_instance **place = &instances;
    while (*place != NULL) {
        if (is_half_open(*place))
            *place = (*place)->next;
        else
            place = &(*place)->next;
    }
    closing = 0;
    if (!is_half_open(&bmi__default))
        return;
    bmi__running_set(&bmi__default, false);
    bmi__methods_lost(&bmi__default);
    atomic_store(&bmi__default.background_on, false);
    atomic_store(&bmi__default.offload_on, false);
    atomic_store(&bmi__default.unexpected_waiting, 0);
    bmi__default.background_by_flag = false;
    bmi__default.users = 0;
}

static void after_fork_child(void)
{
    bmi__crypto_after_fork();
    for (struct bmi_instance *one = instances; one != NULL; one = one->next)
        bmi__waiters_after_fork_child(one);
    half_open_forget();
    bmi__checked_lock_init(&bmi__default.starting);
    for (struct bmi_instance *one = instances; one != NULL; one = one->next) {
        bmi__checked_lock_init(&one->starting);
        bmi__progress_after_fork_child(one);
        bmi__background_after_fork_child(one);
        if (bmi__running(one))
            bmi__reporter_follow(one); /* if the child takes the connections over */
    }
    pthread_mutex_unlock(&list_lock);
}

static void fork_watch(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Whether another process, which still lives, made our connections. */
static bool is_anothers(struct bmi_instance *instance)
{
    return instance->owner != getpid() && (kill(instance->owner, 0) == 0 || errno == EPERM);
}

/* ---- starting ------------------------------------------------------------------------------- */

static int methods_start(struct bmi_instance *instance, const char *list)
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
        struct running_method *method = bmi__method_named(instance, name, strlen(name));
        if (method == NULL) {
            bmi__log(instance, BMI_LOG_ERROR, "no method \"%s\" in this library", name);
            return -ENOPROTOOPT;
        }
        int status = bmi__method_start(method);
        if (status < 0)
            return status;
    }
    return 0;
}

/* Listens on one "scheme://address". -ENOPROTOOPT: no method that runs has the scheme. */
static int listen_one(struct bmi_instance *instance, const char *text, int flags)
{
    char address[BMI_MAX_ADDR_LEN], bound[BMI_MAX_ADDR_LEN - 64];
    const char *separator = strstr(text, "://");
    if (separator == NULL) {
        bmi__log(instance, BMI_LOG_ERROR, "listen address \"%s\": no scheme:// in it", text);
        return -EINVAL;
    }
    size_t scheme = (size_t)(separator - text);
    struct running_method *method = bmi__method_of_scheme(instance, text, scheme);
    if (method == NULL || !atomic_load(&method->started)) {
        bmi__log(instance, BMI_LOG_WARN, "listen address \"%s\": %s", text,
                 method == NULL ? "no method has that scheme"
                                : "its method is not in the list of methods");
        return -ENOPROTOOPT;
    }
    snprintf(address, sizeof address, "%s", separator + 3);
    int status = method->method->listen(method->state, address, flags, bound, sizeof bound);
    if (status < 0) {
        bmi__log(instance, BMI_LOG_ERROR, "listen address \"%s\": %s", text,
                 bmi_status_string(bmi__error(status)));
        return status;
    }
    size_t used = strlen(method->listen);
    snprintf(method->listen + used, BMI_MAX_ADDR_LEN - used, "%s%.*s://%s", used > 0 ? "," : "",
             (int)scheme, text, bound);
    return 0;
}

/* A server's configuration may name more networks than this server uses. An address whose scheme no
 * running method has is left out, as long as another address remains. */
static int listen_all(struct bmi_instance *instance, const char *list, int flags)
{
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *part;
    int listening = 0;
    if (list == NULL)
        return 0;
    if (strlen(list) >= sizeof copy)
        return -ENAMETOOLONG;
    strcpy(copy, list);
    while ((part = strsep(&rest, ",")) != NULL) {
        int status = listen_one(instance, bmi__trimmed(part), flags);
        if (status < 0 && status != -ENOPROTOOPT)
            return status;
        listening += status == 0;
    }
    if (listening == 0)
        bmi__log(instance, BMI_LOG_ERROR, "no requested method can listen on \"%s\"", list);
    return listening > 0 ? 0 : -ENOPROTOOPT;
}

static void stop(struct bmi_instance *instance);

static int start(struct bmi_instance *instance, const char *method_list, const char *listen_addr,
                 int flags)
{
    if (instance->let_go) {
        bmi__log(instance, BMI_LOG_ERROR,
                 "BMI_initialize: this child of a fork has had its parent's; only a new program "
                 "(exec) can start");
        return -EBUSY;
    }
    pthread_once(&fork_once, fork_watch);
    instance->owner = getpid();
    int status = bmi__handshake_start(instance);
    if (status == 0)
        status = bmi__parts_open(instance);
    if (status < 0)
        return status;
    list_add(instance);
    instance->upcalls = &upcalls;
    bmi__auto_references_set(instance, (flags & BMI_AUTO_REF_COUNT) != 0);
    status = methods_start(instance, method_list);
    if (status == 0)
        status = listen_all(instance, listen_addr, flags);
    instance->background_by_flag = (flags & BMI_INIT_BACKGROUND) != 0;
    if (instance->background_by_flag)
        bmi__setting_put(instance, SETTING_PROGRESS, PROGRESS_BACKGROUND);
    bmi__checked_lock_waits(&instance->starting);
    if (status == 0)
        status = bmi__background_follow(instance);
    if (status < 0) {
        bmi__background_stop(instance);
        stop(instance);
    } else
        bmi__running_set(instance, true);
    if (status == 0 && bmi__setting(instance, SETTING_REPORT) != 0)
        bmi__reporter_follow(instance);
    return status;
}

static int arguments_check(struct bmi_instance *instance, const char *method_list,
                           const char *listen_addr, int flags)
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
    bmi__log(instance, BMI_LOG_ERROR, "%s: %s",
             instance == &bmi__default ? "BMI_initialize" : "bmi_instance_open", wrong);
    return status;
}

/* Options of BMI_initialize are settings, of which the environment's values take precedence. An
 * instance's own settings have precedence over the environment. The configuration file's values
 * are the last. */
static int settings_take(struct bmi_instance *instance, const char *settings, bool own)
{
    bool any = settings != NULL && *settings != '\0';
    int status = any && !own ? bmi__settings_lend(instance, settings) : 0;
    if (status == 0)
        status = bmi__settings_load(instance);
    if (status == 0 && any && own)
        status = bmi__settings_set(instance, settings);
    if (status == 0)
        status = bmi__settings_file(instance);
    return status;
}

/* The process has one task manager: the default instance's setting counts. */
void bmi__worker_policy_follow(struct bmi_instance *instance)
{
    if (instance == &bmi__default)
        bmi_task_manager_set_policy(NULL,
                                    (enum bmi_task_policy)bmi__setting(instance,
                                                                       SETTING_WORKER_POLICY));
}

int bmi__instance_start(struct bmi_instance *instance, const char *method_list,
                        const char *listen_addr, int flags, const char *settings, bool own)
{
    int status = bmi__checked_lock_take(&instance->starting);
    if (status < 0)
        return bmi__error(status);
    if (instance->users == 0) {
        struct bmi_instance *outer = changing;
        changing = instance;
        status = settings_take(instance, settings, own);
        bmi__worker_policy_follow(instance);
        if (status == 0)
            status = arguments_check(instance, method_list, listen_addr, flags);
        if (status == 0)
            status = start(instance, method_list, listen_addr, flags);
        if (status < 0)
            bmi__settings_return(instance);
        changing = outer;
    } else if (is_anothers(instance)) {
        bmi__log(instance, BMI_LOG_ERROR,
                 "BMI_initialize: in a child of the fork, while its parent has what it started");
        status = -EBUSY;
    }
    if (status == 0)
        instance->users++;
    bmi__checked_lock_give(&instance->starting);
    return bmi__error(status);
}

int BMI_initialize(const char *method_list, const char *listen_addr, int flags)
{
    return bmi__instance_start(&bmi__default, method_list, listen_addr, flags, NULL, false);
}

int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options);
int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options)
{
    return bmi__instance_start(&bmi__default, method_list, listen_addr, flags, options, false);
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

static bool links_open(struct bmi_instance *instance)
{
    bool open = false;
    bmi__peer_each(instance, find_open, &open);
    return open;
}

static bool links_gone(struct waiter *waiter)
{
    (void)waiter;
    return !links_open(waiter->instance);
}

/* Polls until the links are closed, at most `ms`. */
static void links_drain(struct bmi_instance *instance, int64_t ms)
{
    struct waiter waiter = {.instance = instance, .ready = links_gone, .op = -1};
    if (links_open(instance) && ms > 0)
        bmi__progress_wait(&waiter, (int)ms);
}

static void links_close(struct bmi_instance *instance)
{
    bool linger = true;
    bmi__peer_each(instance, close_one, &linger);
    links_drain(instance, bmi__setting(instance, SETTING_LINGER));
    linger = false;
    bmi__peer_each(instance, close_one, &linger);
    links_drain(instance, 1000);
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
static void stop(struct bmi_instance *instance)
{
    if (instance->background_by_flag)
        bmi__setting_put(instance, SETTING_PROGRESS, PROGRESS_CALLER);
    instance->background_by_flag = false;
    bmi__offload_drain(instance);
    links_close(instance);
    bmi__methods_stop(instance);
    bmi__progress_chores(instance);
    bmi__book_lock(instance);
    bmi__peer_each(instance, abandon_one, NULL);
    bmi__book_unlock(instance);
    bmi__requests_wait(instance);
    bmi__services_stop(instance);
    bmi__failure_stop(instance);
    bmi__timers_forget(instance);
    bmi__work_drop(instance);
    bmi__tags_stop(instance);
    bmi__exchanges_free(instance); /* their timers and steps are forgotten */
    list_leave(instance);
    bmi__parts_close(instance);
    bmi__ops_give(instance);
    tables_leave();
}

/* Returns 0, or -EDEADLK: nothing has changed. */
static int finalize_last(struct bmi_instance *instance)
{
    bmi__checked_lock_waits(&instance->starting);
    if (is_anothers(instance)) {
        instance->let_go = true;
        bmi__running_set(instance, false);
        return 0;
    }
    bmi__running_set(instance, false); /* from now on no thread can start the background task */
    int status = bmi__background_stop(instance);
    if (status < 0) {
        bmi__running_set(instance, true);
        return status;
    }
    if (bmi__setting(instance, SETTING_STATS) != 0)
        bmi__report_print(instance);
    stop(instance);
    bmi__settings_return(instance);
    return 0;
}

int bmi__instance_end(struct bmi_instance *instance)
{
    if (bmi__background_self(instance) || bmi__checked_lock_take(&instance->starting) != 0)
        return -BMI_EDEADLK;
    int status = instance->users > 0 ? 0 : -EINVAL;
    if (status == 0 && instance->users == 1) {
        struct bmi_instance *outer = changing;
        changing = instance;
        status = finalize_last(instance);
        changing = outer;
    }
    instance->users -= status == 0;
    bmi__checked_lock_give(&instance->starting);
    return bmi__error(status);
}

int BMI_finalize(void)
{
    return bmi__instance_end(&bmi__default);
}

/* ---- contexts and look-ups ------------------------------------------------------------------ */

int bmi_instance_open_context(struct bmi_instance *instance, bmi_context_id *context_id)
{
    if (context_id == NULL || instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    return bmi__error(bmi__context_open(instance, context_id));
}

int BMI_open_context(bmi_context_id *context_id)
{
    return bmi_instance_open_context(&bmi__default, context_id);
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
        BMI_cancel(id, atomic_load(&sweep->context->id));
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
    struct context *context = running_context(context_id);
    if (context == NULL)
        return;
    struct sweep sweep = {.context = context};
    struct waiter waiter = {.instance = context->instance,
                            .ready = has_completion,
                            .list = &context->waiters,
                            .op = WAITER_SOME};
    do {
        sweep.left = 0;
        bmi__op_each(context->instance, sweep_one, &sweep);
        unsigned dropped = drop_completions(context);
        if (sweep.left > dropped)
            bmi__progress_wait(&waiter, 10);
    } while (sweep.left > 0);
    bmi__context_release(context);
}

int bmi_instance_addr_lookup(struct bmi_instance *instance, BMI_addr_t *new_addr,
                             const char *id_string)
{
    BMI_addr_t handle = 0;
    if (new_addr == NULL || id_string == NULL || instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    int status = bmi__address_lookup(instance, id_string, &handle);
    if (status < 0)
        return bmi__error(status);
    status = bmi__checked_lock_take(&instance->starting);
    if (status < 0)
        return bmi__error(status);
    status = bmi__address_methods_start(instance, handle);
    bmi__checked_lock_give(&instance->starting);
    if (status == 0)
        *new_addr = handle;
    return bmi__error(status);
}

int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string)
{
    return bmi_instance_addr_lookup(&bmi__default, new_addr, id_string);
}

int bmi_classic_addr_lookup(BMI_addr_t *new_addr, const char *id_string, const char *options);
int bmi_classic_addr_lookup(BMI_addr_t *new_addr, const char *id_string, const char *options)
{
    (void)options;
    if (new_addr != NULL)
        *new_addr = 0; /* as the classic library does when it fails */
    return BMI_addr_lookup(new_addr, id_string);
}
