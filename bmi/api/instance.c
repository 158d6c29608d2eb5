/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance.c - opens and closes instances beside the default one. See bmi/instance.h.
 */
#include "bmi/instance.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/api/api.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/connection/book.h"
#include "bmi/progress/methods.h"

static atomic_uint opened; /* instances ever, for their names */

/* Letters, digits, '.', '_', '-': a name is part of lines of the log, and of a socket's name. */
static bool name_valid(const char *name)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length < BMI_INSTANCE_NAME_MAX && strspn(name, letters) == length;
}

/* Memory for its settings, log, and methods: these are needed before the instance starts. */
static int begin(struct bmi_instance *instance, const struct bmi_instance_options *options)
{
    unsigned number = 1 + atomic_fetch_add(&opened, 1);
    if (options->name == NULL)
        snprintf(instance->name, sizeof instance->name, "instance%u", number);
    else if (name_valid(options->name))
        strcpy(instance->name, options->name);
    else {
        bmi__log(
            &bmi__default, BMI_LOG_ERROR,
            "bmi_instance_open: the name \"%.64s\" is not 1 to %d letters, digits, '.', '_', '-'",
            options->name, BMI_INSTANCE_NAME_MAX - 1);
        return -EINVAL;
    }
    if ((options->now_ns == NULL) != (options->wait == NULL)) {
        bmi__log(&bmi__default, BMI_LOG_ERROR,
                 "bmi_instance_open: now_ns without wait, or wait without now_ns");
        return -EINVAL;
    }
    instance->now_ns = options->now_ns;
    instance->wait = options->wait;
    instance->random = options->random;
    instance->argument = options->argument;
    bmi__checked_lock_init(&instance->starting);
    int status = bmi__settings_open(instance);
    if (status == 0)
        status = bmi__logging_open(instance);
    return status == 0 ? bmi__methods_open(instance) : status;
}

static void end(struct bmi_instance *instance)
{
    bmi__methods_close(instance);
    bmi__logging_close(instance);
    bmi__settings_close(instance);
    free(instance);
}

int bmi_instance_open(struct bmi_instance **out, const struct bmi_instance_options *options)
{
    static const struct bmi_instance_options none;
    if (out == NULL)
        return -BMI_EINVAL;
    *out = NULL;
    if (options == NULL)
        options = &none;
    struct bmi_instance *instance = aligned_alloc(_Alignof(struct bmi_instance), sizeof *instance);
    if (instance == NULL)
        return -BMI_ENOMEM;
    memset(instance, 0, sizeof *instance);
    int status = bmi__error(begin(instance, options));
    if (status == 0)
        status = bmi__instance_start(instance, options->methods, options->listen, options->flags,
                                     options->settings, true);
    if (status == 0)
        *out = instance;
    else
        end(instance);
    return status;
}

int bmi_instance_close(struct bmi_instance *instance)
{
    if (instance == NULL)
        return 0;
    if (instance == &bmi__default)
        return -BMI_EINVAL;
    int status = bmi__instance_end(instance);
    if (status == 0 && !instance->let_go) /* a child that lets it go still has its contexts */
        end(instance);
    return status;
}

struct bmi_instance *bmi_instance_of_context(bmi_context_id context_id)
{
    const struct context *context = bmi__context_find(context_id);
    return context != NULL ? context->instance : NULL;
}

struct bmi_instance *bmi_instance_of_addr(BMI_addr_t addr)
{
    struct address *address = bmi__book_find(addr);
    return address != NULL ? atomic_load(&address->instance) : NULL;
}
