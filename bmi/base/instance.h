/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance.h - one instance of the library: all state but what a process has once.
 *
 * Each file keeps its state in a structure of its own, which it alone defines, opens, and closes.
 * An instance is the table of these, so a file sees nothing of another one's state. Contexts,
 * operations, peers, addresses, and links name their instance; a function that has none of them
 * takes the instance as its first argument.
 *
 * The classic functions of bmi.h without such an argument act on the default instance. It exists
 * from the start of the process, but before BMI_initialize and after the last BMI_finalize only its
 * settings, log, and table of methods do.
 *
 * A process has once: the tables by which operations, contexts, and addresses are found, since
 * their ids are unique in it (op.c, context.c, book.c); taken tags (tags.c); the list of instances
 * and the lock under which they start and end (start.c); texts of settings; the digest's memory
 * (crypto.c); and what a thread is doing (thread-local variables). tests/unit/state_test.py names
 * each of them.
 */
#ifndef BMI_INSTANCE_H
#define BMI_INSTANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bmi/instance.h"
#include "task/checked_lock.h"

struct bmi_instance {
    /* library.c */
    atomic_bool running; /* as bmi__running says */
    atomic_bool auto_references;
    /* written by background.c and offload.c, read by each post and test */
    atomic_bool background_on, offload_on;
    uint8_t incarnation[16]; /* handshake.c */
    const struct bmi__upcalls *upcalls;

    struct bmi__settings *settings;
    struct bmi__logging *logging;
    struct bmi__wakeup *wakeup;
    struct bmi__waiters *waiters;
    struct bmi__spin *spin;
    struct bmi__work *work;
    struct bmi__timers *timers;
    struct bmi__progress *progress;
    struct bmi__methods *methods;
    struct bmi__background *background;
    struct bmi__offload *offload;
    struct bmi__contexts *contexts;
    struct bmi__peers *peers;
    struct bmi__liveness *liveness;
    struct bmi__frames *frames;
    struct bmi__credit *credit;
    struct bmi__book *book;
    struct bmi__dead_addresses *dead_addresses;
    struct bmi__matching *matching;
    struct bmi__unexpected *unexpected;
    struct bmi__reaper *reaper;
    struct bmi__exchanges *exchanges;
    struct bmi__calls *calls;
    struct bmi__requests *requests;
    struct bmi__services *services;
    struct bmi__forwards *forwards;
    struct bmi__reporter *reporter;

    /* as given to bmi_instance_open, see there; NULL: the system's */
    uint64_t (*now_ns)(void *argument);
    void (*wait)(void *argument, uint64_t until_ns);
    int (*random)(void *argument, void *bytes, size_t size);
    void *argument;

    char name[BMI_INSTANCE_NAME_MAX]; /* "": the default one */
    struct bmi_instance *next;        /* start.c's list */

    /* start.c: held while the instance or a method starts or ends; guards the next members */
    struct bmi__checked_lock starting;
    int users;
    bool background_by_flag;
    bool let_go; /* an ancestor owned and still owns the connections */
    pid_t owner; /* the process that owns them */

    /* written while messages move, so not beside what each call reads */
    _Alignas(64) atomic_int unexpected_waiting; /* library.c */
    _Atomic uint32_t posted_ms;                 /* api.c: written once a millisecond */
};

extern struct bmi_instance bmi__default;

#endif
