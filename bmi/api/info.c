/* SPDX-License-Identifier: BSD-3-Clause
 *
 * info.c - options, and properties of addresses and methods.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bmi/api/api.h"
#include "bmi/api/report.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/connection/failure.h"
#include "bmi/connection/option.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/background.h"
#include "bmi/progress/methods.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"
#include "bmi/task.h"

/* ---- methods -------------------------------------------------------------------------------- */

int bmi_method_next(int index, struct bmi_method_info *info)
{
    struct running_method *running = bmi__method_at(&bmi__default, index);
    if (running == NULL || info == NULL)
        return -BMI_ENOENT;
    const struct bmi_method *method = running->method;
    *info = (struct bmi_method_info){
        .name = method->name,
        .schemes = method->schemes,
        .description = method->description,
        .eager_max = method->limits.eager_max,
        .unexpected_max = method->limits.unexpected_max,
        .segments_max = (int)method->limits.segments_max,
        .can_put = method->limits.put,
        .can_get = method->limits.get,
        .needs_registration = method->limits.registration,
        .proves_identity = method->secure,
    };
    return 0;
}

int bmi_method_choose(int index, struct bmi_method_choice *choice)
{
    struct running_method *running = bmi__method_at(&bmi__default, index);
    if (running == NULL || choice == NULL)
        return -BMI_ENOENT;
    memset(choice, 0, sizeof(*choice));
    const struct bmi_method *method = running->method;
    int status = method->option == NULL ? 0
                                        : method->option(running->instance, NULL, NULL,
                                                         BMI_METHOD_CHOICE, choice, false);
    return status == -ENOSYS ? 0 : bmi__error(status);
}

const char *bmi_version(void)
{
#define TEXT(x) #x
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)
    return VERSION(BMI_VERSION_MAJOR, BMI_VERSION_MINOR, BMI_VERSION_PATCH);
}

/* Joins where each running method listens, separated by commas. */
static void listen_addresses(struct bmi_instance *instance, char *text, size_t size)
{
    struct running_method *method;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++) {
        if (!atomic_load(&method->started) || *method->listen == '\0')
            continue;
        int length =
            snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", method->listen);
        if (length > 0 && (size_t)length < size - used)
            used += (size_t)length;
    }
}

/* 0: any. */
static int handle_check(struct bmi_instance *instance, BMI_addr_t addr)
{
    bmi__book_lock(instance);
    bool known = addr == 0 || bmi__address_find_locked(addr) != NULL;
    bmi__book_unlock(instance);
    return known ? 0 : -EINVAL;
}

/* The largest unexpected message that programs may rely on: the setting, unless the address's
 * method and peer, or any running method, accept less. */
static bmi_size_t unexpected_max(struct bmi_instance *instance, BMI_addr_t addr)
{
    bmi_size_t most = bmi__setting(instance, SETTING_UNEXPECTED_SIZE);
    struct running_method *method;
    struct peer *peer = NULL;
    bool bound = false;
    if (addr != 0 && bmi__address_lock(instance, addr, &peer) == 0) {
        bound = peer->link != NULL;
        if (bound && peer->link->method->limits.unexpected_max < most)
            most = peer->link->method->limits.unexpected_max;
        if (peer->state == PEER_UP && (bmi_size_t)peer->unexpected_max < most)
            most = (bmi_size_t)peer->unexpected_max;
        peer_unlock(peer);
    }
    for (int i = 0; !bound && (method = bmi__method_at(instance, i)) != NULL; i++)
        if (atomic_load(&method->started) && method->method->limits.unexpected_max < most)
            most = method->method->limits.unexpected_max;
    return most;
}

/* ---- statistics ----------------------------------------------------------------------------- */

static int statistics_get(struct bmi_instance *instance, BMI_addr_t addr,
                          struct bmi_statistics *statistics)
{
    struct peer *peer;
    if (addr == 0) {
        bmi__peers_statistics(instance, statistics);
        return 0;
    }
    int status = bmi__address_lock(instance, addr, &peer);
    if (status < 0)
        return status;
    memset(statistics, 0, sizeof *statistics);
    bmi__peer_statistics(peer, statistics);
    peer_unlock(peer);
    return 0;
}

/* ---- set ------------------------------------------------------------------------------------ */

static int socket_close(struct bmi_instance *instance, BMI_addr_t addr)
{
    struct peer *peer;
    int status = bmi__address_lock(instance, addr, &peer);
    if (status < 0)
        return status;
    bmi__peer_fail_locked(peer, -ECONNRESET, NULL);
    peer_unlock(peer);
    return 0;
}

/* After settings have changed, background progress starts or stops accordingly. */
static int background_follow(struct bmi_instance *instance, int64_t before)
{
    int status = bmi__running(instance) ? bmi__background_follow(instance) : 0;
    if (status < 0)
        bmi__setting_put(instance, SETTING_PROGRESS, before);
    return status;
}

static int setting_set(struct bmi_instance *instance, const char *text)
{
    int64_t before = bmi__setting(instance, SETTING_PROGRESS);
    int status = bmi__settings_set(instance, text);
    bmi__worker_policy_follow(instance);
    if (status == 0 && bmi__running(instance)) {
        bmi__reap_wanted(instance);
        bmi__reporter_follow(instance);
    }
    return status < 0 ? status : background_follow(instance, before);
}

static int background_set(struct bmi_instance *instance, int value)
{
    int64_t before = bmi__setting(instance, SETTING_PROGRESS);
    if (value != 0 && value != 1)
        return -EINVAL;
    bmi__setting_put_by_call(instance, SETTING_PROGRESS,
                             value != 0 ? PROGRESS_BACKGROUND : PROGRESS_CALLER);
    return background_follow(instance, before);
}

/* The limit of the whole library, for any address. Programs get no more than the peer's limit. */
static int unexpected_size_set(struct bmi_instance *instance, BMI_addr_t addr, int bytes)
{
    if (bytes < 1)
        return -EINVAL;
    int status = handle_check(instance, addr);
    if (status == 0)
        bmi__setting_put_by_call(instance, SETTING_UNEXPECTED_SIZE, bytes);
    return status;
}

static int option_set(struct bmi_instance *instance, BMI_addr_t addr, int option, void *value)
{
    bool needs_value = option == BMI_SETTING || option == BMI_LOG_CALLBACK ||
                       option == BMI_BACKGROUND || option == BMI_REAP_IDLE ||
                       option == BMI_TCP_BUFFER_SEND_SIZE ||
                       option == BMI_TCP_BUFFER_RECEIVE_SIZE || option == BMI_GET_UNEXP_SIZE;
    if (needs_value && value == NULL)
        return -EINVAL;
    switch (option) {
    case BMI_DROP_ADDR:
        return bmi__address_drop(instance, addr);
    case BMI_INC_ADDR_REF:
        return bmi__address_reference(instance, addr, 1);
    case BMI_DEC_ADDR_REF:
        return bmi__address_reference(instance, addr, -1);
    case BMI_TCP_CLOSE_SOCKET:
        return socket_close(instance, addr);
    case BMI_FORCEFUL_CANCEL_MODE:
    case BMI_TRUSTED_CONNECTION:
    case BMI_OPTIMISTIC_BUFFER_REG:
        return 0;
    case BMI_GET_UNEXP_SIZE:
        return unexpected_size_set(instance, addr, *(const int *)value);
    case BMI_SETTING:
        return setting_set(instance, value);
    case BMI_BACKGROUND:
        return background_set(instance, *(const int *)value);
    case BMI_LOG_CALLBACK:
        bmi__log_callback(instance, value);
        return 0;
    case BMI_REAP_IDLE:
        if (*(const int *)value < 0)
            return -EINVAL;
        bmi__reap_idle(instance, *(const int *)value);
        return 0;
    default:
        return bmi__option(instance, addr, option, value, true);
    }
}

int BMI_set_info(BMI_addr_t addr, int option, void *inout_parameter)
{
    bool always = option == BMI_SETTING || option == BMI_LOG_CALLBACK;
    struct bmi_instance *instance = bmi__address_instance(addr);
    if (!bmi__running(instance) && !always)
        return -BMI_EINVAL;
    return bmi__error(option_set(instance, addr, option, inout_parameter));
}

int bmi_instance_set_info(struct bmi_instance *instance, int option, void *inout_parameter)
{
    if (instance == &bmi__default)
        return BMI_set_info(0, option, inout_parameter);
    if (instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    return bmi__error(option_set(instance, 0, option, inout_parameter));
}

/* ---- get ------------------------------------------------------------------------------------ */

static int setting_get(struct bmi_instance *instance, struct bmi_setting *setting)
{
    if (setting->name == NULL)
        return -EINVAL;
    int status = bmi__settings_get(instance, setting->name, setting->value, sizeof setting->value);
    if (status < 0)
        bmi__log(instance, BMI_LOG_ERROR, "no setting \"%s\"; bmi-info lists them", setting->name);
    return status < 0 ? -EINVAL : 0;
}

static int context_fd_get(struct bmi_instance *instance, struct bmi_context_fd *out)
{
    struct context *context = bmi__context_find(out->context);
    bool known = context != NULL && context->instance == instance;
    int fd = known ? bmi__context_fd(context) : -EINVAL;
    out->fd = fd;
    return fd < 0 ? fd : 0;
}

static int context_statistics_get(struct bmi_instance *instance, struct bmi_context_statistics *out)
{
    bool known = bmi_instance_of_context(out->context) == instance;
    return known ? bmi__context_statistics(out) : -EINVAL;
}

static int link_get(struct bmi_instance *instance, BMI_addr_t addr, void **link)
{
    struct peer *peer;
    int status = bmi__address_lock(instance, addr, &peer);
    if (status < 0)
        return status;
    *link = peer->link;
    peer_unlock(peer);
    return 0;
}

/* The names of all methods, without their "bmi_", in memory that the caller frees. Returns their
 * number, as the classic library does. */
static int method_names(struct bmi_instance *instance, char **names)
{
    struct running_method *method;
    size_t size = 1;
    int count = 0;
    for (; (method = bmi__method_at(instance, count)) != NULL; count++)
        size += strlen(method->method->name);
    char *end = *names = calloc(1, size);
    if (*names == NULL)
        return -ENOMEM;
    for (int i = 0; i < count; i++)
        end += sprintf(end, "%s%s", i > 0 ? "," : "",
                       bmi__method_at(instance, i)->method->name + strlen("bmi_"));
    return count;
}

static int option_get_number(struct bmi_instance *instance, BMI_addr_t addr, int option, int *value)
{
    int status;
    switch (option) {
    case BMI_CHECK_INIT:
        *value = bmi__running(instance);
        return 0;
    case BMI_BACKGROUND:
        *value = bmi__background_on(instance);
        return 0;
    case BMI_CHECK_MAXSIZE:
        *value = INT_MAX;
        return 0;
    case BMI_GET_UNEXP_SIZE:
        *value = (int)unexpected_max(instance, addr);
        return handle_check(instance, addr);
    case BMI_DROP_ADDR_QUERY:
        status = bmi__address_droppable(instance, addr);
        *value = status > 0;
        return status < 0 ? status : 0;
    case BMI_TCP_CHECK_UNEXPECTED:
        *value = bmi__unexpected_count(instance, addr);
        return handle_check(instance, addr);
    default:
        return bmi__option(instance, addr, option, value, false);
    }
}

static int option_get(struct bmi_instance *instance, BMI_addr_t addr, int option, void *value)
{
    if (option == BMI_CHECK_INIT && value == NULL) /* classic programs look at the returned value */
        return bmi__running(instance) ? 0 : -ENETDOWN;
    if (value == NULL)
        return -EINVAL;
    switch (option) {
    case BMI_GET_METH_ADDR:
        return link_get(instance, addr, value);
    case BMI_TRANSPORT_METHODS_STRING:
        return method_names(instance, value);
    case BMI_GET_LISTEN_ADDR:
        listen_addresses(instance, value, BMI_MAX_ADDR_LEN);
        return 0;
    case BMI_GET_CONTEXT_FD:
        return context_fd_get(instance, value);
    case BMI_GET_STATISTICS:
        return statistics_get(instance, addr, value);
    case BMI_GET_METHOD_STATISTICS:
        return bmi__method_statistics(instance, value);
    case BMI_GET_CONTEXT_STATISTICS:
        return context_statistics_get(instance, value);
    case BMI_SETTING:
        return setting_get(instance, value);
    case BMI_PEER_IDENTITY:
        return bmi__identity_get(instance, addr, value);
    default:
        return option_get_number(instance, addr, option, value);
    }
}

/* The instance that a question is for: that of the address, or of the context that the parameter
 * names. */
static struct bmi_instance *instance_asked(BMI_addr_t addr, int option, const void *parameter)
{
    struct bmi_instance *of_context = NULL;
    if (option == BMI_GET_CONTEXT_FD && parameter != NULL)
        of_context = bmi_instance_of_context(((const struct bmi_context_fd *)parameter)->context);
    if (option == BMI_GET_CONTEXT_STATISTICS && parameter != NULL)
        of_context =
            bmi_instance_of_context(((const struct bmi_context_statistics *)parameter)->context);
    return of_context != NULL ? of_context : bmi__address_instance(addr);
}

static int get_info(struct bmi_instance *instance, BMI_addr_t addr, int option,
                    void *inout_parameter)
{
    bool always =
        option == BMI_CHECK_INIT || option == BMI_SETTING || option == BMI_TRANSPORT_METHODS_STRING;
    if (!bmi__running(instance) && !always)
        return -BMI_EINVAL;
    int status = option_get(instance, addr, option, inout_parameter);
    return status < 0 ? bmi__error(status) : status;
}

int BMI_get_info(BMI_addr_t addr, int option, void *inout_parameter)
{
    return get_info(instance_asked(addr, option, inout_parameter), addr, option, inout_parameter);
}

int bmi_instance_get_info(struct bmi_instance *instance, int option, void *inout_parameter)
{
    return instance != NULL ? get_info(instance, 0, option, inout_parameter) : -BMI_EINVAL;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The method by which an address is reached, if that is known. */
static struct running_method *method_of_locked(struct address *address)
{
    if (address->alternative_count > 0)
        return address->alternatives[0].method;
    struct peer *peer = atomic_load(&address->peer);
    if (peer == NULL)
        return NULL;
    peer_lock(peer);
    struct running_method *method =
        peer->link != NULL ? bmi__method_of(address->instance, peer->link->method) : NULL;
    peer_unlock(peer);
    return method;
}

bool bmi__address_any_memory(struct bmi_instance *instance, BMI_addr_t handle)
{
    if (bmi__address_instance(handle) != instance)
        return false;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    struct running_method *method = address != NULL ? method_of_locked(address) : NULL;
    bmi__book_unlock(instance);
    return method != NULL && !method->method->limits.put && !method->method->limits.get;
}

/* Zeroed memory that the method offers for its transfers, or NULL. */
static void *method_memory(const struct running_method *method, bmi_size_t size)
{
    struct bmi_method_memory memory = {.size = size};
    if (method == NULL || !atomic_load(&method->started) || method->method->option == NULL ||
        method->method->option(method->instance, method->state, NULL, BMI_METHOD_MEMORY, &memory,
                               false) != 0)
        return NULL;
    return memory.buffer;
}

/* Zeroes a large piece that is aligned to pages without touching it: the system provides new zeroed
 * pages. If the memory is locked or shared, or registered with a network for good, its pages stay
 * and are written. */
static void zero_large(struct bmi_instance *instance, char *memory, size_t size)
{
    volatile char *probe = memory;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = size / page * page;
    *probe = 1;
    if (bmi__setting(instance, SETTING_REGISTRATION_KEEP) != 0 ||
        madvise(memory, whole, MADV_DONTNEED) != 0 || *probe != 0)
        whole = 0;
    memset(memory + whole, 0, size - whole);
}

/* Zeroed memory of the process's own, which free(3) may free. Its pages begin where the kernel's
 * do. For a large piece huge pages are asked for, since the kernel pins it page by page when
 * another process copies it (process_vm_readv). The first huge page is left out, so that a piece
 * that is hardly used stays small, and so is the end behind the last whole one. */
static void *plain_memory(struct bmi_instance *instance, size_t size)
{
    enum { PAGE = 4096, HUGE_PAGE = 2 << 20, LARGE = 2 * HUGE_PAGE };
    void *memory;
    size_t alignment = size >= LARGE ? HUGE_PAGE : size >= PAGE ? PAGE : 64;
    if (posix_memalign(&memory, alignment, size) != 0)
        return NULL;
    if (size >= LARGE) {
        zero_large(instance, memory, size);
        /* may fail: small pages will do */
        madvise((char *)memory + HUGE_PAGE, (size / HUGE_PAGE - 1) * HUGE_PAGE, MADV_HUGEPAGE);
    } else {
        memset(memory, 0, size);
    }
    return memory;
}

void *bmi_instance_memalloc(struct bmi_instance *instance, bmi_size_t size)
{
    if (instance == NULL || !bmi__running(instance) || size < 0 || size > INT64_MAX / 2)
        return NULL;
    return plain_memory(instance, size == 0 ? 1 : (size_t)size);
}

void *BMI_memalloc(BMI_addr_t addr, bmi_size_t size, enum bmi_op_type send_recv)
{
    struct bmi_instance *instance = bmi__address_instance(addr);
    (void)send_recv; /* memory serves both ways */
    if (!bmi__running(instance) || size < 0 || size > INT64_MAX / 2)
        return NULL;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(addr);
    struct running_method *method = address != NULL ? method_of_locked(address) : NULL;
    bmi__book_unlock(instance);
    if (address == NULL)
        return NULL;
    if (size == 0)
        size = 1; /* classic programs read NULL as out of memory */
    void *memory = method_memory(method, size);
    return memory != NULL ? memory : plain_memory(instance, (size_t)size);
}

int BMI_memfree(BMI_addr_t addr, void *buffer, bmi_size_t size, enum bmi_op_type send_recv)
{
    /* The address may have gone: each method knows its own memory, of any instance. */
    (void)addr, (void)send_recv;
    if (buffer == NULL)
        return -BMI_EINVAL;
    struct bmi_method_memory memory = {.buffer = buffer, .size = size};
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(&bmi__default, i)) != NULL; i++) {
        void *state = atomic_load(&method->started) ? method->state : NULL;
        if (method->method->option != NULL &&
            method->method->option(method->instance, state, NULL, BMI_METHOD_MEMORY, &memory,
                                   true) == 0)
            return 0;
    }
    free(buffer);
    return 0;
}

int BMI_unexpected_free(BMI_addr_t addr, void *buffer)
{
    (void)addr; /* it may have gone */
    return buffer != NULL ? bmi__error(bmi__unexpected_release(buffer)) : -BMI_EINVAL;
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* Under BMI_CLASSIC_API: classic programs print and compare the host without a check for NULL. */
const char *bmi_classic_addr_rev_lookup_unexpected(BMI_addr_t addr);
const char *bmi_classic_addr_rev_lookup_unexpected(BMI_addr_t addr)
{
    const char *host = BMI_addr_rev_lookup_unexpected(addr);
    return host != NULL ? host : "UNKNOWN";
}

const char *BMI_addr_rev_lookup(BMI_addr_t addr)
{
    struct bmi_instance *instance = bmi__address_instance(addr);
    return bmi__running(instance) ? bmi__address_string(instance, addr) : NULL;
}

const char *BMI_addr_rev_lookup_unexpected(BMI_addr_t addr)
{
    struct bmi_instance *instance = bmi__address_instance(addr);
    return bmi__running(instance) ? bmi__address_host(instance, addr) : NULL;
}

/* Whether addresses of `method` are written with the scheme that the range begins with. */
static bool range_scheme(struct bmi_instance *instance, const char *range,
                         const struct bmi_method *method)
{
    struct running_method *named = bmi__method_of_scheme(instance, range, strcspn(range, ":"));
    return named != NULL && named->method == method;
}

static int query_addr_range(struct bmi_instance *instance, BMI_addr_t addr, const char *id_string,
                            int netmask)
{
    const char *separator = id_string != NULL ? strstr(id_string, "://") : NULL;
    char host[BMI_MAX_ADDR_LEN] = "";
    const struct bmi_method *method = NULL;
    if (!bmi__running(instance) || separator == NULL)
        return -BMI_EINVAL;
    int status = bmi__address_numeric(instance, addr, host, sizeof host, &method);
    if (status == 0)
        status = method->hosts->in_range(host, separator + 3, netmask);
    return status < 0 ? bmi__error(status) : status && range_scheme(instance, id_string, method);
}

int BMI_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask)
{
    return query_addr_range(bmi__address_instance(addr), addr, id_string,
                            netmask < 0 ? -1 : netmask);
}

/* Under BMI_CLASSIC_API: -1 is the netmask of every entry that a classic configuration names
 * without one, a single host as well as a wildcard. */
int bmi_classic_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask);
int bmi_classic_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask)
{
    return query_addr_range(bmi__address_instance(addr), addr, id_string,
                            netmask == -1 ? BMI_HOST_WHOLE : netmask);
}
