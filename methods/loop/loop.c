/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop.c - the loop method: networks inside one process, the reference for bmi/method.h.
 *
 * Three tables from one source: "loop" moves frames only, "loopput" also puts, "loopget" also gets.
 * They differ in data. Each is a network of its own; names of one are not visible in another. A
 * name is "name" or "name:number"; listening on number 0 takes a free one. Each instance has its
 * own network: both ends of a link belong to the same poller. The first networks are static, so
 * that tests can set hooks before the start. Those of further instances that run at the same time
 * are made when needed and kept for later ones, since a link may be freed after the stop.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"
#include "methods/ip/hosts.h"

enum { NUMBER_MAX = 65535 };

/* Checks the number behind the colon: its value, or -1. */
static long number_parse(const char *text)
{
    if (!isdigit((unsigned char)*text) || strlen(text) > 5)
        return -1;
    char *end;
    long number = strtol(text, &end, 10);
    return *end == '\0' && number <= NUMBER_MAX ? number : -1;
}

static int loop_parse(const char *whole, char *canonical, size_t size, const char **reason)
{
    char address[BMI_MAX_ADDR_LEN];
    bmi_address_copy(whole, address, sizeof address);
    size_t length = 0;
    while (isalnum((unsigned char)address[length]) ||
           (address[length] != '\0' && strchr("._-", address[length]) != NULL))
        length++;
    const char *why = NULL;
    long number = -1;
    if (length == 0)
        why = "the name is empty or starts with a character that names do not have";
    else if (address[length] != '\0' && address[length] != ':')
        why = "a name has letters, digits, '.', '_', and '-' only";
    else if (address[length] == ':' && (number = number_parse(address + length + 1)) < 0)
        why = "the number behind ':' is none from 0 to 65535";
    else if (length + sizeof ":65535" > LOOP_ADDRESS_MAX)
        why = "the name is too long";
    if (why != NULL) {
        if (reason != NULL)
            *reason = why;
        return -EINVAL;
    }
    int written = number < 0 ? snprintf(canonical, size, "%.*s", (int)length, address)
                             : snprintf(canonical, size, "%.*s:%ld", (int)length, address, number);
    return written >= 0 && (size_t)written < size ? 0 : -ENAMETOOLONG;
}

static struct loop_name *name_find_locked(struct loop_network *network, const char *address)
{
    struct loop_name *name = network->names;
    while (name != NULL && strcmp(name->address, address) != 0)
        name = name->next;
    return name;
}

bool loop_name_known(struct loop_network *network, const char *address)
{
    pthread_mutex_lock(&network->lock);
    bool known = name_find_locked(network, address) != NULL;
    pthread_mutex_unlock(&network->lock);
    return known;
}

/* Sets name->address; "name:0" becomes the first free number. */
static int name_choose_locked(struct loop_network *network, struct loop_name *name,
                              const char *canonical)
{
    const char *colon = strchr(canonical, ':');
    if (colon == NULL || strcmp(colon, ":0") != 0) {
        snprintf(name->address, sizeof name->address, "%s", canonical);
        return name_find_locked(network, name->address) == NULL ? 0 : -EADDRINUSE;
    }
    int stem = (int)(colon - canonical);
    for (int number = 1; number <= NUMBER_MAX; number++) {
        snprintf(name->address, sizeof name->address, "%.*s:%d", stem, canonical, number);
        if (name_find_locked(network, name->address) == NULL)
            return 0;
    }
    return -EADDRINUSE;
}

static int loop_listen(void *state, const char *address, int flags, char *bound, size_t size)
{
    (void)flags; /* there is no interface to bind to */
    struct loop_network *network = state;
    char canonical[LOOP_ADDRESS_MAX];
    const char *reason;
    int status = loop_parse(address, canonical, sizeof canonical, &reason);
    if (status != 0)
        return status;
    struct loop_name *name = calloc(1, sizeof *name);
    if (name == NULL)
        return -ENOMEM;

    pthread_mutex_lock(&network->lock);
    status = name_choose_locked(network, name, canonical);
    if (status == 0 && strlen(name->address) >= size)
        status = -ENAMETOOLONG;
    if (status == 0) {
        strcpy(bound, name->address);
        name->next = network->names;
        network->names = name;
    }
    pthread_mutex_unlock(&network->lock);
    if (status != 0) {
        bmi_method_log(network->instance, BMI_LOG_ERROR, NULL, "%s: cannot listen on %s: %s",
                       network->table->name, canonical, strerror(-status));
        free(name);
    }
    return status;
}

static void network_run(struct bmi_deferred *deferred);

static struct loop_network *network_make(const struct loop_network *like)
{
    struct loop_network *network = calloc(1, sizeof *network);
    if (network == NULL)
        return NULL;
    network->table = like->table;
    network->limits = like->limits;
    pthread_mutex_init(&network->lock, NULL);
    pthread_cond_init(&network->copied, NULL);
    pthread_mutex_init(&network->memory_lock, NULL);
    return network;
}

/* Locks the first one that no instance has. NULL: no memory for another one. */
static struct loop_network *network_lock_unused(struct loop_network *network)
{
    pthread_mutex_lock(&network->lock);
    while (network->work != NULL) {
        if (network->next == NULL)
            network->next = network_make(network);
        struct loop_network *next = network->next;
        pthread_mutex_unlock(&network->lock);
        if (next == NULL)
            return NULL;
        network = next;
        pthread_mutex_lock(&network->lock);
    }
    return network;
}

static int network_start(struct bmi_instance *instance, struct loop_network *first, void **state)
{
    struct loop_work *work = calloc(1, sizeof *work);
    struct loop_network *network = work != NULL ? network_lock_unused(first) : NULL;
    if (network == NULL) {
        free(work);
        return -ENOMEM;
    }
    work->deferred.run = network_run;
    work->network = network;
    network->instance = instance;
    network->running = true;
    network->work = work;
    network->ready = NULL;
    network->ready_tail = &network->ready;
    pthread_mutex_unlock(&network->lock);
    *state = network;
    return 0;
}

static struct loop_link *ready_pop_locked(struct loop_network *network)
{
    struct loop_link *link = network->ready;
    network->ready = link->ready_next;
    if (network->ready == NULL)
        network->ready_tail = &network->ready;
    link->is_ready = false;
    return link;
}

/* Every link that was ready when the round began has one turn; later ones wait for the next. */
static void network_run(struct bmi_deferred *deferred)
{
    struct loop_work *work = (struct loop_work *)deferred; /* its first member */
    struct loop_network *network = work->network;
    if (network == NULL) {
        free(work);
        return;
    }
    pthread_mutex_lock(&network->lock);
    struct loop_link **end = network->ready_tail;
    bool done = !network->running || network->ready == NULL;
    while (!done) {
        struct loop_link *link = ready_pop_locked(network);
        done = &link->ready_next == end;
        pthread_mutex_unlock(&network->lock);
        loop_link_pump(link);
        bmi_link_unref(&link->base);
        pthread_mutex_lock(&network->lock);
    }
    pthread_mutex_unlock(&network->lock);
}

static void loop_stop(void *state)
{
    struct loop_network *network = state;
    pthread_mutex_lock(&network->lock);
    network->running = false;
    for (struct loop_link *link = network->links; link != NULL; link = link->next)
        link->closing = true;
    while (network->links != NULL) {
        struct loop_link *link = network->links;
        pthread_mutex_unlock(&network->lock);
        loop_pair_end(link, 0, 0);
        pthread_mutex_lock(&network->lock);
    }
    while (network->ready != NULL) {
        struct loop_link *link = ready_pop_locked(network);
        pthread_mutex_unlock(&network->lock);
        bmi_link_unref(&link->base);
        pthread_mutex_lock(&network->lock);
    }
    while (network->names != NULL) {
        struct loop_name *name = network->names;
        network->names = name->next;
        free(name);
    }
    struct loop_work *work = network->work;
    work->network = NULL;
    bmi_method_defer(network->instance, &work->deferred); /* once more, to free it */
    network->work = NULL;
    pthread_mutex_unlock(&network->lock);
}

/* ---- the tables ----------------------------------------------------------------------------- */

static int start_loop(struct bmi_instance *instance, void **state)
{
    return network_start(instance, &loop_networks[0], state);
}

static int start_loopput(struct bmi_instance *instance, void **state)
{
    return network_start(instance, &loop_networks[1], state);
}

static int start_loopget(struct bmi_instance *instance, void **state)
{
    return network_start(instance, &loop_networks[2], state);
}

#define LOOP_LIMITS \
    .eager_max = 16384, .unexpected_max = 16384, .frame_max = 262144, .segments_max = LOOP_WINDOW

#define LOOP_OPERATIONS                                                                         \
    .stop = loop_stop, .listen = loop_listen, .parse = loop_parse, .connect = loop_connect,     \
    .send = loop_send, .flush = loop_flush, .withdraw = loop_withdraw, .retract = loop_retract, \
    .close = loop_close, .hosts = &ip_hosts

#define LOOP_MEMORY_OPERATIONS \
    .expose = loop_expose, .release = loop_release, .transfer = loop_transfer

#define LIMITS_LOOP \
    {               \
        LOOP_LIMITS \
    }
#define LIMITS_LOOPPUT                                            \
    {                                                             \
        LOOP_LIMITS, .regions_max = LOOP_REGIONS_MAX, .put = true \
    }
#define LIMITS_LOOPGET                                            \
    {                                                             \
        LOOP_LIMITS, .regions_max = LOOP_REGIONS_MAX, .get = true \
    }

/* Not constant, as other methods' are: tests change the limits before a start. The core sees them
 * through pointers to constants. */
struct bmi_method bmi__method_loop = {
    .name = "bmi_loop",
    .schemes = "loop",
    .description = "inside one process: frames",
    .limits = LIMITS_LOOP,
    .start = start_loop,
    LOOP_OPERATIONS,
};

struct bmi_method bmi__method_loopput = {
    .name = "bmi_loopput",
    .schemes = "loopput",
    .description = "inside one process: frames and remote writes",
    .limits = LIMITS_LOOPPUT,
    .start = start_loopput,
    LOOP_OPERATIONS,
    LOOP_MEMORY_OPERATIONS,
};

struct bmi_method bmi__method_loopget = {
    .name = "bmi_loopget",
    .schemes = "loopget",
    .description = "inside one process: frames and remote reads",
    .limits = LIMITS_LOOPGET,
    .start = start_loopget,
    LOOP_OPERATIONS,
    LOOP_MEMORY_OPERATIONS,
};

#define LOOP_NETWORK(a_table, a_limits)                                              \
    {                                                                                \
        .table = &(a_table), .limits = a_limits, .lock = PTHREAD_MUTEX_INITIALIZER,  \
        .copied = PTHREAD_COND_INITIALIZER, .memory_lock = PTHREAD_MUTEX_INITIALIZER \
    }

struct loop_network loop_networks[LOOP_NETWORKS] = {
    LOOP_NETWORK(bmi__method_loop, LIMITS_LOOP),
    LOOP_NETWORK(bmi__method_loopput, LIMITS_LOOPPUT),
    LOOP_NETWORK(bmi__method_loopget, LIMITS_LOOPGET),
};
