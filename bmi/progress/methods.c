/* SPDX-License-Identifier: BSD-3-Clause
 *
 * methods.c - the methods built in (a table that the build generates), their state and counters.
 * `started` is set once a method runs and cleared when the library stops; the poller reads it.
 */
#include "bmi/progress/methods.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "bmi/base/log.h"
#include "bmi/lock.h"
#include "bmi/progress/wakeup.h"

extern const struct bmi_method *const bmi__methods[]; /* generated; ends with NULL */

enum { METHODS_MOST = 16 };
static struct running_method running[METHODS_MOST];

/* The running methods, in the order of their start. The poller calls them in this order on each
 * pass. */
static _Atomic(struct running_method *) started[METHODS_MOST];
static atomic_int started_count;

static void fill(void)
{
    for (int i = 0; i < METHODS_MOST && bmi__methods[i] != NULL; i++)
        running[i].method = bmi__methods[i];
}

struct running_method *bmi__method_at(int index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    if (index < 0 || index >= METHODS_MOST || running[index].method == NULL)
        return NULL;
    return &running[index];
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

struct running_method *bmi__method_of_scheme(const char *scheme, size_t length)
{
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(i)) != NULL; i++)
        if (list_has(method->method->schemes, scheme, length))
            return method;
    return NULL;
}

/* Programs build a method's name as "bmi_" and the scheme of their addresses. */
struct running_method *bmi__method_named(const char *name, size_t length)
{
    static const char prefix[] = "bmi_";
    const size_t skip = sizeof prefix - 1;
    struct running_method *method;
    if (length > skip && strncmp(name, prefix, skip) == 0) {
        name += skip;
        length -= skip;
    }
    for (int i = 0; (method = bmi__method_at(i)) != NULL; i++)
        if (is_word(name, length, method->method->name + skip))
            return method;
    return bmi__method_of_scheme(name, length);
}

struct running_method *bmi__method_of(const struct bmi_method *method)
{
    for (int i = 0; i < METHODS_MOST; i++)
        if (running[i].method == method)
            return &running[i];
    return NULL;
}

int bmi__method_start(struct running_method *method)
{
    if (atomic_load(&method->started))
        return 0;
    for (int i = 0; i < BMI_COUNTER_STRIPES * BMI_COUNTER_STRIDE; i++)
        atomic_store(&method->counters[i], 0);
    method->listen[0] = '\0';
    int status = method->method->start(&method->state);
    if (status < 0) {
        bmi__log(BMI_LOG_ERROR, "method %s does not start: %s", method->method->name,
                 strerror(-status));
        return status;
    }
    atomic_store(&method->started, true);
    int count = atomic_load(&started_count);
    atomic_store(&started[count], method);
    atomic_store(&started_count, count + 1);
    bmi__progress_kick(); /* a poller that blocks has not armed this method */
    return 0;
}

void bmi__methods_stop(void)
{
    atomic_store(&started_count, 0);
    for (int i = 0; i < METHODS_MOST; i++) {
        if (!atomic_exchange(&running[i].started, false))
            continue;
        running[i].method->stop(running[i].state);
    }
}

/* The i-th running method; NULL past the last. */
static struct running_method *started_at(int i)
{
    if (i >= atomic_load_explicit(&started_count, memory_order_acquire))
        return NULL;
    return atomic_load_explicit(&started[i], memory_order_relaxed);
}

int bmi__methods_progress(void)
{
    struct running_method *one;
    int events = 0;
    for (int i = 0; (one = started_at(i)) != NULL; i++)
        if (one->method->progress != NULL)
            events += one->method->progress(one->state);
    return events;
}

bool bmi__methods_polled(void)
{
    struct running_method *one;
    for (int i = 0; (one = started_at(i)) != NULL; i++)
        if (one->method->progress != NULL)
            return true;
    return false;
}

bool bmi__methods_arm(void)
{
    struct running_method *one;
    for (int i = 0; (one = started_at(i)) != NULL; i++)
        if (one->method->arm != NULL && !one->method->arm(one->state))
            return false;
    return true;
}

_Atomic int64_t *bmi_method_counters(const struct bmi_method *method)
{
    struct running_method *one = bmi__method_of(method);
    return one != NULL ? one->counters : NULL;
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
    int64_t sum = 0;
    for (int i = 0; i < BMI_COUNTER_STRIPES; i++)
        sum += atomic_load(&method->counters[i * BMI_COUNTER_STRIDE + (int)counter]);
    return sum;
}

void bmi_method_count(const struct bmi_method *method, enum bmi_method_counter counter,
                      int64_t amount)
{
    static _Atomic(struct running_method *) latest; /* spares the search: most programs use one */
    struct running_method *one = atomic_load_explicit(&latest, memory_order_relaxed);
    if (one == NULL || one->method != method) {
        one = bmi__method_of(method);
        if (one == NULL)
            return;
        atomic_store_explicit(&latest, one, memory_order_relaxed);
    }
    bmi_counter_add(one->counters, counter, amount);
}
