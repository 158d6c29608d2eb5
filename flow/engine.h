/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.h - an engine: the flows of one instance share it. engine.c, deadlines.c, and descriptor.c
 * use it, each its own part; flow.c and chunk.c read `instance` only.
 *
 * An engine lives as long as the process, since its task may still be submitted when the last flow
 * context has been closed. Later another instance can use it.
 */
#ifndef FLOW_ENGINE_H
#define FLOW_ENGINE_H

#include "bmi/method.h"
#include "flow/internal.h"

struct flow_deadlines {
    pthread_mutex_t lock;
    struct flow *first;                      /* lock */
    _Atomic uint64_t next_ns;                /* the earliest; UINT64_MAX: none; lock to write */
    struct bmi_timer timer;                  /* set to next_ns, as the descriptor's */
    void (*due)(struct flow_engine *engine); /* the timer's function; constant */
};

struct flow_descriptor {
    pthread_mutex_t lock;
    int epoll_fd, timer_fd, event_fd; /* lock until created, then constant */
    bool network_open;                /* lock */
    atomic_bool used;                 /* a program polls a context's descriptor */
    pthread_mutex_t event_lock;
    atomic_bool signalled; /* event_fd is readable; event_lock to write */
};

/* `life` is the lock of engine.c for all engines. */
struct flow_engine {
    struct flow_engine *next;       /* engine.c's list; constant */
    struct bmi_instance *instance;  /* life; constant until its last close has ended; NULL: none */
    unsigned users;                 /* life: open flow contexts */
    unsigned ending;                /* life: last closes that still end their resources */
    pthread_mutex_t in_use;         /* held by the poll task */
    bool open;                      /* life and in_use to write: the poll task may use contexts */
    bmi_trove_context_id_t storage; /* life to write */
    _Atomic bmi_context_id network; /* life to write; 0: not open */
    atomic_uint wanted;             /* 1 until the task is prepared */
    atomic_uint events, waiting;    /* events: count of wake-ups; waiting: number of threads in
                                     BMI's wait, which poll after it */
    struct bmi_task task;
    bool prepared;                     /* life */
    _Atomic(struct context *) context; /* life to write: the network's, while it is open */
    struct storage_watch *watch;       /* life: the same */
    struct flow_deadlines deadlines;
    struct flow_descriptor descriptor;
};

#endif
