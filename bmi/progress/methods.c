/* SPDX-License-Identifier: BSD-3-Clause
 *
 * methods.c - the methods built in (a table that the build generates), their state and counters.
 * `started` is set once a method runs and cleared when its instance stops; the poller reads it.
 */
#include "bmi/progress/methods.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/lock.h"
#include "bmi/progress/wakeup.h"

extern const struct bmi_method *const bmi__methods[]; /* generated; ends with NULL */

enum { METHODS_MOST = 16 };

struct bmi__methods {
    struct running_method running[METHODS_MOST];
    /* Those that run, in the order of their start. The poller calls them in this order on each
     * pass. */
    _Atomic(struct running_method *) started[METHODS_MOST];
    atomic_int started_count;
};

/* What a method that runs, or has run, needs. */
struct method_memory {
    _Alignas(64) _Atomic int64_t counters[BMI_COUNTER_STRIPES * BMI_COUNTER_STRIDE];
    char listen[BMI_MAX_ADDR_LEN];
};

static struct bmi__methods default_methods;

static void fill(struct bmi_instance *instance)
{
    struct running_method *running = instance->methods->running;
    for (int i = 0; i < METHODS_MOST && bmi__methods[i] != NULL; i++) {
        running[i].method = bmi__methods[i];
        running[i].instance = instance;
    }
}

static void fill_default(void)
{
    bmi__default.methods = &default_methods;
    fill(&bmi__default);
}

void bmi__methods_fill(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_default);
}

struct running_method *bmi__method_at(struct bmi_instance *instance, int index)
{
    bmi__methods_fill();
    struct bmi__methods *methods = instance->methods;
    if (index < 0 || index >= METHODS_MOST || methods->running[index].method == NULL)
        return NULL;
    return &methods->running[index];
}

static bool is_word(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && strncmp(text, word, length) == 0;
}

/* Whether a comma-separated list contains the word. */
static bool list_has(const char *list, const char *word, size_t length)
{
    while (*list != '\0') {
        size_t next = strcspn(list, ",");
        if (next == length && strncmp(list, word, length) == 0)
            return true;
        list += next + (list[next] == ',');
    }
    return false;
}

struct running_method *bmi__method_of_scheme(struct bmi_instance *instance, const char *scheme,
                                             size_t length)
{
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++)
        if (list_has(method->method->schemes, scheme, length))
            return method;
    return NULL;
}

/* Programs build a method's name as "bmi_" and the scheme of their addresses. */
struct running_method *bmi__method_named(struct bmi_instance *instance, const char *name,
                                         size_t length)
{
    static const char prefix[] = "bmi_";
    const size_t skip = sizeof prefix - 1;
    struct running_method *method;
    if (length > skip && strncmp(name, prefix, skip) == 0) {
        name += skip;
        length -= skip;
    }
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++)
        if (is_word(name, length, method->method->name + skip))
            return method;
    return bmi__method_of_scheme(instance, name, length);
}

struct running_method *bmi__method_of(struct bmi_instance *instance,
                                      const struct bmi_method *method)
{
    struct running_method *one;
    for (int i = 0; (one = bmi__method_at(instance, i)) != NULL; i++)
        if (one->method == method)
            return one;
    return NULL;
}

/* Its counters, all 0. Another thread may read them, and may have read those of a failed start. */
static int counters_make(struct running_method *method)
{
    _Atomic int64_t *counters = atomic_load(&method->counters);
    for (int i = 0; counters != NULL && i < BMI_COUNTER_STRIPES * BMI_COUNTER_STRIDE; i++)
        atomic_store(&counters[i], 0);
    if (counters != NULL)
        return 0;
    struct method_memory *memory = aligned_alloc(_Alignof(struct method_memory), sizeof *memory);
    if (memory == NULL)
        return -ENOMEM;
    memset(memory, 0, sizeof *memory);
    method->listen = memory->listen;
    atomic_store(&method->counters, memory->counters);
    return 0;
}

int bmi__method_start(struct running_method *method)
{
    struct bmi__methods *methods = method->instance->methods;
    if (atomic_load(&method->started))
        return 0;
    int status = counters_make(method);
    if (status < 0)
        return status;
    status = method->method->start(method->instance, &method->state);
    if (status < 0) {
        bmi__log(method->instance, BMI_LOG_ERROR, "method %s does not start: %s",
                 method->method->name, strerror(-status));
        return status;
    }
    atomic_store(&method->started, true);
    int count = atomic_load(&methods->started_count);
    atomic_store(&methods->started[count], method);
    atomic_store(&methods->started_count, count + 1);
    bmi__progress_kick(method->instance); /* a poller that blocks has not armed this method */
    return 0;
}

void bmi__methods_stop(struct bmi_instance *instance)
{
    struct bmi__methods *methods = instance->methods;
    atomic_store(&methods->started_count, 0);
    for (int i = 0; i < METHODS_MOST; i++) {
        if (!atomic_exchange(&methods->running[i].started, false))
            continue;
        methods->running[i].method->stop(methods->running[i].state);
    }
}

void bmi__methods_lost(struct bmi_instance *instance)
{
    struct bmi__methods *methods = instance->methods;
    if (methods == NULL)
        return;
    atomic_store(&methods->started_count, 0);
    for (int i = 0; i < METHODS_MOST; i++) {
        atomic_store(&methods->running[i].started, false);
        methods->running[i].counters = NULL;
        methods->running[i].listen = NULL;
    }
}

/* The i-th running method; NULL past the last. */
static struct running_method *started_at(struct bmi__methods *methods, int i)
{
    if (i >= atomic_load_explicit(&methods->started_count, memory_order_acquire))
        return NULL;
    return atomic_load_explicit(&methods->started[i], memory_order_relaxed);
}

int bmi__methods_progress(struct bmi_instance *instance)
{
    struct bmi__methods *methods = instance->methods;
    struct running_method *one;
    int events = 0;
    for (int i = 0; (one = started_at(methods, i)) != NULL; i++)
        if (one->method->progress != NULL)
            events += one->method->progress(one->state);
    return events;
}

bool bmi__methods_polled(struct bmi_instance *instance)
{
    struct bmi__methods *methods = instance->methods;
    struct running_method *one;
    for (int i = 0; (one = started_at(methods, i)) != NULL; i++)
        if (one->method->progress != NULL)
            return true;
    return false;
}

bool bmi__methods_arm(struct bmi_instance *instance)
{
    struct bmi__methods *methods = instance->methods;
    struct running_method *one;
    for (int i = 0; (one = started_at(methods, i)) != NULL; i++)
        if (one->method->arm != NULL && !one->method->arm(one->state))
            return false;
    return true;
}

_Atomic int64_t *bmi_method_counters(struct bmi_instance *instance, const struct bmi_method *method)
{
    struct running_method *one = bmi__method_of(instance, method);
    return one != NULL ? atomic_load_explicit(&one->counters, memory_order_acquire) : NULL;
}

unsigned bmi_method_counter_stripe(void)
{
    static atomic_uint threads;
    static _Thread_local unsigned number; /* 0: none yet */
    if (number == 0)
        number = 1 + atomic_fetch_add(&threads, 1) % (BMI_COUNTER_STRIPES - 1);
    return number;
}

int64_t bmi__method_counter(const struct running_method *method, enum bmi_method_counter counter)
{
    _Atomic int64_t *counters = atomic_load(&method->counters);
    int64_t sum = 0;
    for (int i = 0; counters != NULL && i < BMI_COUNTER_STRIPES; i++)
        sum += atomic_load(&counters[i * BMI_COUNTER_STRIDE + (int)counter]);
    return sum;
}

void bmi_method_count(struct bmi_instance *instance, const struct bmi_method *method,
                      enum bmi_method_counter counter, int64_t amount)
{
    _Atomic int64_t *counters = bmi_method_counters(instance, method);
    if (counters != NULL)
        bmi_counter_add(counters, counter, amount);
}

/* ---- open and close ------------------------------------------------------------------------- */

int bmi__methods_open(struct bmi_instance *instance)
{
    instance->methods = calloc(1, sizeof *instance->methods);
    if (instance->methods == NULL)
        return -ENOMEM;
    fill(instance);
    return 0;
}

void bmi__methods_forget(struct bmi_instance *instance)
{
    struct running_method *one;
    for (int i = 0; (one = bmi__method_at(instance, i)) != NULL; i++) {
        /* the begin of its struct method_memory */
        free(atomic_exchange(&one->counters, NULL));
        one->listen = NULL;
    }
}

void bmi__methods_close(struct bmi_instance *instance)
{
    free(instance->methods);
    instance->methods = NULL;
}
