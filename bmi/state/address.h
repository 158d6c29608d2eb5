/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.h - what an address of the book holds. connection/address.h states the rules.
 */
#ifndef BMI_STATE_ADDRESS_H
#define BMI_STATE_ADDRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bmi_instance;
struct kept_option;
struct peer;
struct running_method;

struct alternative {
    struct running_method *method;
    char *canonical;             /* what the method dials */
    char *url;                   /* scheme://canonical, for the log */
    struct kept_option *options; /* of the address, with its first: option.c; its peer's lock */
};

/* A numeric host. Programs receive a pointer to the string, so it lives as long as its address. */
struct host {
    struct host *former; /* that of an earlier connection of the same address */
    char numeric[];
};

struct address {
    _Atomic(struct bmi_instance *) instance; /* NULL: free */
    atomic_uint generation;
    uint32_t losses; /* number of connections that ended; its peer's lock */
    _Atomic(struct peer *) peer;
    struct address *alias_next; /* the next address of the same peer */
    struct address *hash_next;  /* list of the string's hash, of free addresses, or of dead ones */
    char *string;               /* the string looked up; NULL: accepted */
    struct host *host;          /* of the last connection; NULL: none yet */
    struct alternative *alternatives;
    uint32_t slot;
    atomic_int references;
    int16_t cause; /* why the last connection ended */
    uint8_t alternative_count;
    bool dead, in_use;
    bool dropped;        /* freed when its connection ends; found by its string until then */
    uint8_t host_method; /* the method of `host`: an index for bmi__method_at */
};

#endif
