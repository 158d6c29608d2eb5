/* SPDX-License-Identifier: BSD-3-Clause
 *
 * option.c - options that methods answer: of the method as a whole, of a link, and of the links
 * that an address will have.
 *
 * An option of an address that is not connected must not affect others. So the address keeps it,
 * and passes it to each link that it dials before the link connects. The options are kept with the
 * first of the address's alternatives, which an accepted address lacks. The peer's lock guards
 * them.
 */
#include "bmi/connection/option.h"

#include <errno.h>
#include <stdlib.h>

#include "bmi/base/settings.h"
#include "bmi/connection/address.h"
#include "bmi/progress/methods.h"

struct kept_option {
    struct kept_option *next;
    int option, value;
};

/* The setting that is the default of an option; -1: no method declares one. */
static int default_setting(struct bmi_instance *instance, int option)
{
    struct running_method *method;
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++) {
        const struct bmi_option_default *at = method->method->defaults;
        for (; at != NULL && at->setting != NULL; at++)
            if (at->option == option)
                return bmi__setting_find(at->setting);
    }
    return -1;
}

/* Options that have a default make sense before there is a connection. All are ints. */
static bool is_kept(struct bmi_instance *instance, int option)
{
    return default_setting(instance, option) >= 0;
}

static struct kept_option *kept_find_locked(const struct address *address, int option)
{
    struct kept_option *kept = address->alternatives->options;
    while (kept != NULL && kept->option != option)
        kept = kept->next;
    return kept;
}

static int keep_locked(struct address *address, int option, int value)
{
    struct kept_option *kept = kept_find_locked(address, option);
    if (kept == NULL) {
        kept = malloc(sizeof *kept);
        if (kept == NULL)
            return -ENOMEM;
        *kept = (struct kept_option){.next = address->alternatives->options, .option = option};
        address->alternatives->options = kept;
    }
    kept->value = value;
    return 0;
}

void bmi__options_free(struct address *address)
{
    while (address->alternative_count > 0 && address->alternatives->options != NULL) {
        struct kept_option *kept = address->alternatives->options;
        address->alternatives->options = kept->next;
        free(kept);
    }
}

void bmi__options_give_locked(const struct address *address, struct bmi_link *link)
{
    const struct bmi_method *method = link->method;
    for (struct kept_option *kept = address->alternatives->options; kept != NULL; kept = kept->next)
        if (method->option != NULL)
            method->option(link->instance, link->state, link, kept->option, &kept->value, true);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* The first running method that knows the option answers; if `address` is not NULL, the first of
 * its methods. */
static int ask_methods(struct bmi_instance *instance, const struct address *address, int option,
                       void *value, bool set)
{
    struct running_method *method;
    int status = -ENOSYS;
    for (int i = 0; status == -ENOSYS && (method = bmi__method_at(instance, i)) != NULL; i++) {
        bool asked = address == NULL;
        for (uint32_t k = 0; address != NULL && k < address->alternative_count; k++)
            asked |= address->alternatives[k].method == method;
        if (asked && atomic_load(&method->started) && method->method->option != NULL)
            status =
                method->method->option(method->instance, method->state, NULL, option, value, set);
    }
    return status;
}

static int ask_link(struct bmi_link *link, int option, void *value, bool set)
{
    return link->method->option != NULL
               ? link->method->option(link->instance, link->state, link, option, value, set)
               : -ENOSYS;
}

/* An option that a looked-up address keeps, connected or not. */
static int kept_option_locked(struct peer *peer, struct address *address, int option, int *value,
                              bool set)
{
    struct kept_option *kept = kept_find_locked(address, option);
    int present, status;
    if (value == NULL || (set && *value < 0))
        return -EINVAL;
    if (peer->link != NULL && (status = ask_link(peer->link, option, value, set)) != -ENOTCONN) {
        if (status < 0 || !set)
            return status;
    } else if (!set && kept != NULL) {
        *value = kept->value;
        return 0;
    } else {
        status = ask_methods(peer->instance, address, option, set ? &present : value, false);
        if (status < 0 || !set)
            return status;
    }
    return keep_locked(address, option, *value);
}

static int address_option(struct bmi_instance *instance, BMI_addr_t addr, int option, void *value,
                          bool set)
{
    struct peer *peer;
    int status = bmi__address_lock(instance, addr, &peer);
    if (status < 0)
        return status;
    struct address *address = bmi__address_of_locked(addr);
    if (is_kept(instance, option) && address->string != NULL) {
        status = kept_option_locked(peer, address, option, value, set);
        peer_unlock(peer);
        return status;
    }
    struct bmi_link *link = peer->link;
    if (link != NULL)
        bmi_link_ref(link);
    peer_unlock(peer);
    if (link == NULL)
        return ask_methods(instance, NULL, option, value, set);
    status = ask_link(link, option, value, set);
    bmi_link_unref(link);
    return status;
}

int bmi__link_identity(struct bmi_link *link, struct bmi_peer_identity *identity)
{
    int status =
        link->method->secure ? ask_link(link, BMI_PEER_IDENTITY, identity, false) : -ENOSYS;
    return status == -ENOSYS ? -EOPNOTSUPP : status;
}

int bmi__identity_get(struct bmi_instance *instance, BMI_addr_t addr,
                      struct bmi_peer_identity *identity)
{
    struct peer *peer;
    int status = bmi__address_lock(instance, addr, &peer);
    if (status < 0)
        return status;
    status = peer->link != NULL ? bmi__link_identity(peer->link, identity) : -ENXIO;
    peer_unlock(peer);
    return status;
}

/* ---- of the library ------------------------------------------------------------------------- */

/* The port of the first method that listens at one; one that returns 0 is preferred. 0: none
 * does. */
static int port_get(struct bmi_instance *instance, int *port)
{
    struct running_method *method;
    int one, best = 0;
    for (int i = 0; (method = bmi__method_at(instance, i)) != NULL; i++) {
        if (!atomic_load(&method->started) || method->method->option == NULL)
            continue;
        int status = method->method->option(method->instance, method->state, NULL, BMI_TCP_GET_PORT,
                                            &one, false);
        if (status >= 0 && (best == 0 || (status == 0 && one != 0)))
            best = one;
    }
    *port = best;
    return 0;
}

/* The default for future connections is a setting, which the method reads whenever it starts. */
static int default_option(struct bmi_instance *instance, int option, int *value, bool set)
{
    enum setting setting = (enum setting)default_setting(instance, option);
    if (value == NULL || (set && *value < 0))
        return -EINVAL;
    if (set)
        bmi__setting_put_by_call(instance, setting, *value);
    else
        *value = (int)bmi__setting(instance, setting);
    return 0;
}

static int library_option(struct bmi_instance *instance, int option, void *value, bool set)
{
    if (option == BMI_TCP_GET_PORT && !set)
        return port_get(instance, value);
    return is_kept(instance, option) ? default_option(instance, option, value, set)
                                     : ask_methods(instance, NULL, option, value, set);
}

int bmi__option(struct bmi_instance *instance, BMI_addr_t addr, int option, void *value, bool set)
{
    if (option >= BMI_METHOD_MEMORY) /* the core's own */
        return -ENOSYS;
    int status = addr != 0 ? address_option(instance, addr, option, value, set)
                           : library_option(instance, option, value, set);
    return status > 0 ? 0 : status;
}
