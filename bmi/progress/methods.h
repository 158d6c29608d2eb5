/* SPDX-License-Identifier: BSD-3-Clause
 * methods.h - the methods built in, and which of them are running. */
#ifndef BMI_METHODS_H
#define BMI_METHODS_H

#include <stdbool.h>

#include "bmi/method.h"

struct running_method {
    const struct bmi_method *method;
    struct bmi_instance *instance;
    void *state;
    atomic_bool started;
    /* NULL until a start is first tried; they stay until bmi__methods_forget */
    char *listen; /* "scheme://host:port", of BMI_MAX_ADDR_LEN; empty: not listening; see started */
    _Atomic(_Atomic int64_t *) counters; /* BMI_COUNTER_STRIPES * BMI_COUNTER_STRIDE of them */
};

/* By name ("bmi_tcp") or scheme ("tcp"), `length` characters of it; NULL: none such. */
struct running_method *bmi__method_named(struct bmi_instance *instance, const char *name,
                                         size_t length);
struct running_method *bmi__method_of_scheme(struct bmi_instance *instance, const char *scheme,
                                             size_t length);
struct running_method *bmi__method_of(struct bmi_instance *instance,
                                      const struct bmi_method *method);
/* Fills the default instance's table, unless that was done. */
void bmi__methods_fill(void);
/* The i-th built in; NULL past the last. */
struct running_method *bmi__method_at(struct bmi_instance *instance, int index);

/* Starts a method if it is not running. Call with the instance's `starting` held. */
int bmi__method_start(struct running_method *method);
void bmi__methods_stop(struct bmi_instance *instance);
/* Frees counters and listen addresses of methods that have stopped. */
void bmi__methods_forget(struct bmi_instance *instance);
/* In the child of a fork: no method has started. What they had made stays in memory. */
void bmi__methods_lost(struct bmi_instance *instance);

/* The sum over all stripes. */
int64_t bmi__method_counter(const struct running_method *method, enum bmi_method_counter counter);

/* For the poller: calls all running methods. */
int bmi__methods_progress(struct bmi_instance *instance);
/* Whether any running method has descriptors or queues that are polled without the epoll set. */
bool bmi__methods_polled(struct bmi_instance *instance);
bool bmi__methods_arm(struct bmi_instance *instance);

/* Called before an instance starts and after it has ended; never for the default one.
 * Returns 0 or -ENOMEM. */
int bmi__methods_open(struct bmi_instance *instance);
void bmi__methods_close(struct bmi_instance *instance);

#endif
