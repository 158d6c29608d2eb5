/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accept.h - the accept loop: listening sockets, and the connections that come in. It knows nothing
 * of links, and serves methods that have links of their own, too.
 *
 * The poller accepts connections in bounded batches, so that many of them at once do not delay the
 * links. When descriptors (or memory for sockets) run out, it stops watching the listening sockets
 * until stream_acceptor_resume is called or a timer expires: the kernel queues new connections
 * meanwhile, and existing links go on.
 */
#ifndef STREAM_ACCEPT_H
#define STREAM_ACCEPT_H

#include <sys/socket.h>

#include "bmi/method.h"

struct stream_listener;

/* Embedded in its owner, and zeroed but for the first members. Poller. */
struct stream_acceptor {
    struct bmi_instance *instance;
    const struct bmi_method *method;
    /* Takes a connection. Returns its descriptor, or an errno. NULL: as accept4(2). */
    int (*take)(struct stream_acceptor *acceptor, int listener, struct sockaddr_storage *from);
    /* Whether one more may be taken now. NULL: always. */
    bool (*may)(struct stream_acceptor *acceptor);
    /* A connection waits and may not be taken, or there is no descriptor for it. Ends one that the
     * core does not know yet, if that has been of no use for long. Returns whether there was any
     * such: if it did not end, stream_acceptor_resume is called when it does. NULL: there is none.
     */
    bool (*give_way)(struct stream_acceptor *acceptor);
    /* A connection came in; the descriptor is the owner's. */
    void (*accepted)(struct stream_acceptor *acceptor, int fd, const struct sockaddr_storage *from);
    bool evicts; /* when descriptors run out, an idle connection is closed */

    struct stream_listener *listeners;
    struct bmi_timer timer;
    bool paused, logged;
};

/* Listens. Returns 0 or an errno: then the descriptor is still the caller's. Any thread before the
 * method runs, or the poller. */
int stream_acceptor_add(struct stream_acceptor *acceptor, int fd);
/* A descriptor is free again. */
void stream_acceptor_resume(struct stream_acceptor *acceptor);
/* Closes the listening sockets. */
void stream_acceptor_stop(struct stream_acceptor *acceptor);

#endif
