/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.c - looking addresses up by string, and what the program may ask of a handle. See
 * address.h.
 */
#include "bmi/connection/address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/log.h"
#include "bmi/base/text.h"
#include "bmi/connection/book.h"
#include "bmi/progress/methods.h"

enum { ALTERNATIVES_MOST = 64 };

/* ---- look-up --------------------------------------------------------------------------------- */

/* Checks one "scheme://rest" and adds it. -ENOPROTOOPT: no such scheme here. */
static int alternative_parse(struct bmi_instance *instance, char *text,
                             struct alternative *alternative)
{
    text = bmi__trimmed(text);
    char rest[BMI_MAX_ADDR_LEN], canonical[BMI_MAX_ADDR_LEN];
    const char *separator = strstr(text, "://"), *reason = "not understood";
    if (separator == NULL) {
        bmi__log(instance, BMI_LOG_ERROR, "address \"%s\": no scheme:// in it", text);
        return -EINVAL;
    }
    struct running_method *method =
        bmi__method_of_scheme(instance, text, (size_t)(separator - text));
    if (method == NULL)
        return -ENOPROTOOPT;
    snprintf(rest, sizeof rest, "%s", separator + 3);
    if (method->method->parse(rest, canonical, sizeof canonical, &reason) < 0) {
        bmi__log(instance, BMI_LOG_ERROR, "address \"%s\": %s", text, reason);
        return -EINVAL;
    }
    size_t size = (size_t)(separator - text) + 3 + strlen(canonical) + 1;
    *alternative =
        (struct alternative){.method = method, .canonical = strdup(canonical), .url = malloc(size)};
    if (alternative->canonical == NULL || alternative->url == NULL)
        return -ENOMEM; /* freed with the address */
    snprintf(alternative->url, size, "%.*s://%s", (int)(separator - text), text, canonical);
    return 0;
}

static int alternatives_parse(struct address *address, const char *string)
{
    char copy[BMI_MAX_ADDR_LEN], *rest = copy, *part;
    int status = -EINVAL;
    strcpy(copy, string);
    address->alternatives = calloc(ALTERNATIVES_MOST, sizeof(struct alternative));
    if (address->alternatives == NULL)
        return -ENOMEM;
    while ((part = strsep(&rest, ",")) != NULL && address->alternative_count < ALTERNATIVES_MOST) {
        if (*part == '\0' && *string != '\0') {
            bmi__log(address->instance, BMI_LOG_ERROR, "address \"%s\": an alternative is empty",
                     string);
            return -EINVAL;
        }
        status = alternative_parse(address->instance, part,
                                   &address->alternatives[address->alternative_count]);
        if (status == 0 || status == -ENOMEM)
            address->alternative_count++;
        if (status < 0 && status != -ENOPROTOOPT)
            return status;
    }
    if (address->alternative_count == 0) {
        bmi__log(address->instance, BMI_LOG_ERROR,
                 "address \"%s\": no method of this library has that scheme", string);
        return -ENOPROTOOPT;
    }
    struct alternative *fitting =
        realloc(address->alternatives, address->alternative_count * sizeof(struct alternative));
    if (fitting != NULL)
        address->alternatives = fitting;
    return 0;
}

int bmi__address_make_locked(struct bmi_instance *instance, const char *string,
                             struct address **made)
{
    struct address *address = bmi__book_take_locked(instance);
    if (address == NULL)
        return -ENOMEM;
    int status = alternatives_parse(address, string);
    char *copy = status == 0 ? strdup(string) : NULL;
    if (status == 0 && copy == NULL)
        status = -ENOMEM;
    if (status == 0) {
        address->string = copy;
        status = bmi__book_string_add_locked(address);
        if (status < 0)
            address->string = NULL, free(copy);
    }
    if (status < 0) {
        bmi__book_give_locked(address);
        return status;
    }
    *made = address;
    return 0;
}

/* Unexpected messages of its peer carry this looked-up address from now on. */
static void front_locked(struct address *address)
{
    struct peer *peer = atomic_load(&address->peer);
    if (peer == NULL)
        return;
    peer_lock(peer);
    struct address **place = &peer->address;
    while (*place != address)
        place = &(*place)->alias_next;
    *place = address->alias_next;
    address->alias_next = peer->address;
    peer->address = address;
    peer_unlock(peer);
}

int bmi__address_lookup(struct bmi_instance *instance, const char *string, BMI_addr_t *handle)
{
    if (strlen(string) >= BMI_MAX_ADDR_LEN)
        return -ENAMETOOLONG;
    bmi__book_lock(instance);
    int status = 0;
    struct address *address = bmi__book_string_find_locked(instance, string);
    if (address == NULL) {
        status = bmi__address_make_locked(instance, string, &address);
    } else if (address->dropped) { /* see drop_locked: it has a new handle; or it was claimed */
        address->dropped = false;
        front_locked(address);
    }
    if (status == 0)
        *handle = bmi__address_handle(address);
    bmi__book_unlock(instance);
    return status;
}

int bmi__address_methods_start(struct bmi_instance *instance, BMI_addr_t handle)
{
    int status = -EINVAL;
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    bool any = false;
    for (uint32_t i = 0; address != NULL && i < address->alternative_count; i++) {
        status = bmi__method_start(address->alternatives[i].method);
        any = any || status == 0;
    }
    bmi__book_unlock(instance);
    return any ? 0 : status;
}

/* ---- strings of a handle -------------------------------------------------------------------- */

const char *bmi__address_string(struct bmi_instance *instance, BMI_addr_t handle)
{
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    const char *string = address != NULL ? address->string : NULL;
    bmi__book_unlock(instance);
    return string;
}

const char *bmi__address_host(struct bmi_instance *instance, BMI_addr_t handle)
{
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    const char *host = address != NULL && address->host != NULL ? address->host->numeric : NULL;
    bmi__book_unlock(instance);
    return host;
}

int bmi__address_numeric(struct bmi_instance *instance, BMI_addr_t handle, char *host, size_t size,
                         const struct bmi_method **method)
{
    bmi__book_lock(instance);
    struct address *address = bmi__address_find_locked(handle);
    if (address != NULL && address->host != NULL) {
        snprintf(host, size, "%s", address->host->numeric);
        const struct running_method *one = bmi__method_at(instance, address->host_method);
        *method = one != NULL ? one->method : NULL;
    } else if (address != NULL && address->alternative_count > 0) {
        const struct alternative *first = &address->alternatives[0];
        *method = first->method->method;
        (*method)->hosts->of_address(first->canonical, host, size);
    }
    bmi__book_unlock(instance);
    return address != NULL ? 0 : -EINVAL;
}
