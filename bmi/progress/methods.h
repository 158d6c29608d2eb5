/* SPDX-License-Identifier: BSD-3-Clause
 * methods.h - the methods built in, and which of them are running. */
#ifndef BMI_METHODS_H
#define BMI_METHODS_H

#include <stdbool.h>

#include "bmi/method.h"

struct running_method {
    const struct bmi_method *method;
    void *state;
    atomic_bool started;
    char listen[BMI_MAX_ADDR_LEN]; /* "scheme://host:port"; empty: not listening */
    _Alignas(64) _Atomic int64_t counters[BMI_COUNTER_STRIPES * BMI_COUNTER_STRIDE];
};

/* By name ("bmi_tcp") or scheme ("tcp"), `length` characters of it; NULL: none such. */
struct running_method *bmi__method_named(const char *name, size_t length);
struct running_method *bmi__method_of_scheme(const char *scheme, size_t length);
struct running_method *bmi__method_of(const struct bmi_method *method);
/* The i-th built in; NULL past the last. */
struct running_method *bmi__method_at(int index);

/* Starts a method if it is not running. Call with the library's start lock held. */
int bmi__method_start(struct running_method *method);
void bmi__methods_stop(void);

/* The sum over all stripes. */
int64_t bmi__method_counter(const struct running_method *method, enum bmi_method_counter counter);

/* For the poller: calls all running methods. */
int bmi__methods_progress(void);
/* Whether any running method has descriptors or queues that are polled without the epoll set. */
bool bmi__methods_polled(void);
bool bmi__methods_arm(void);

#endif
