/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ip.h - what methods over TCP/IP share: name look-up, dialling, listening, options of sockets.
 * address.h has the addresses. No function knows a link of a method's own; struct bmi_link serves
 * for log messages and for the core's services.
 *
 * Locks: resolve.c has one of its own. The rest has none: "poller" means that only the polling
 * thread calls the function, "any" that its arguments are all that it uses.
 */
#ifndef IP_H
#define IP_H

#include <errno.h>
#include <string.h>

#include "address.h"
#include "bmi/lock.h"
#include "bmi/method.h"
#include "hosts.h"

enum { IP_NAME_ADDRESSES = 16 }; /* of one name, tried in turn */

/* Settings that every method over TCP/IP reads: entries of its table. */
#define IP_SETTINGS                                                                           \
    {"tcp_keepalive_s",                                                                       \
     BMI_SETTING_NUMBER,                                                                      \
     60,                                                                                      \
     0,                                                                                       \
     32767,                                                                                   \
     "idle seconds before TCP probes a silent connection; 0: never"},                         \
        {"tcp_backlog", BMI_SETTING_NUMBER,                                                   \
         4096,          1,                                                                    \
         1 << 16,       "connections that may wait to be accepted"},                          \
    {                                                                                         \
        "tcp_local_reno", BMI_SETTING_SWITCH, 1, 0, 1,                                        \
            "connections within this host use the congestion control reno; off: the system's" \
    }

/* ---- resolve.c: name look-up ---------------------------------------------------------------- */

struct ip_resolve;
typedef void ip_resolved(void *argument, int status, const union ip_socket_address *addresses,
                         size_t count);
/* Looks a name up in a thread of its own. The poller calls `done`, unless the request is
 * cancelled before. Returns 0, -ENOMEM, or -EAGAIN: no thread can be started. */
int ip_resolve_start(struct bmi_instance *instance, const char *host, uint16_t port,
                     ip_resolved *done, void *argument, struct ip_resolve **out);
void ip_resolve_cancel(struct ip_resolve *resolve);
/* The same at once, blocking. Returns 0 and *count > 0, or an errno. */
int ip_resolve_now(const char *host, uint16_t port, union ip_socket_address *addresses,
                   size_t *count);

/* ---- dial.c: outgoing connections ----------------------------------------------------------- */

struct ip_names;

/* One connection: a host's addresses are tried one after the other, each for its share of the
 * setting connect_timeout_ms. Embedded in the method's own structure. Poller, except
 * ip_dial_init. */
struct ip_dial {
    const struct bmi_link *link; /* for the log */
    struct bmi_timer *timer;     /* the link's; its method calls ip_dial_again when it expires */
    /* Makes a socket, connects it to `to`, and watches it. Returns 0: the outcome comes later, as
     * ip_dial_again or a connected socket; or an errno: then no socket is left. */
    int (*attempt)(struct ip_dial *dial, const union ip_socket_address *to);
    /* There is no further address. The error is that of the last one. */
    void (*failed)(struct ip_dial *dial, int error);

    struct ip_resolve *resolve; /* while the name is being looked up */
    struct ip_address address;
    union ip_socket_address candidates[IP_NAME_ADDRESSES];
    size_t count, next;
    int error; /* of the last candidate */
};

/* Takes the canonical address. The caller has set `attempt` and `failed`, and sets `link` and
 * `timer` before ip_dial_start. Returns 0 or -EINVAL. Any thread. */
int ip_dial_init(struct ip_dial *dial, const char *canonical);
/* Begins. `names` are those that this process listens as. May call `failed` before it returns. */
void ip_dial_start(struct ip_dial *dial, const struct ip_names *names);
/* The present attempt has failed; its socket is closed. Tries the next address. */
void ip_dial_again(struct ip_dial *dial, int error);
/* Ends a look-up that is under way. */
void ip_dial_cancel(struct ip_dial *dial);
/* Whether the dialled socket is connected to another socket. Returns 0: yes, and the link's host
 * and ends are set; -ENOTCONN: not yet; another errno: the attempt has failed. */
int ip_dial_check(struct bmi_link *link, int fd);

/* ---- listen.c: listening sockets ------------------------------------------------------------ */

typedef void ip_prepare(struct bmi_instance *instance, int fd);
/* Opens a listening socket. `method` is for the log; `prepare` (may be NULL) sets options before
 * the socket listens. Returns the socket, or an errno; outputs the address for peers to dial, and
 * the port. Blocks for a name look-up if the name is to be bound to. */
int ip_listen_open(struct bmi_instance *instance, const struct bmi_method *method, const char *text,
                   int flags, ip_prepare *prepare, char *bound, size_t size, uint16_t *port);
/* Sets host and ends of an accepted link. Poller. */
void ip_accepted(struct bmi_link *link, int fd, const union ip_socket_address *from);

/* The host names that this process listens as, on all interfaces. They were not looked up, and
 * need not be known to any resolver. NULL is the empty list. Changed by listen and stop. */
int ip_names_add(struct ip_names **names, const struct ip_address *host, uint16_t port);
bool ip_names_have(const struct ip_names *names, const struct ip_address *host);
void ip_names_free(struct ip_names **names);

/* ---- socket.c: options ---------------------------------------------------------------------- */

/* Sets the options of every connection, except buffer sizes: no delay, and an end when the other
 * host has gone. Errors are logged, and not fatal; `method` and `link` (may be NULL) are for the
 * log. Any thread. */
void ip_socket_set_options(struct bmi_instance *instance, const struct bmi_method *method,
                           const struct bmi_link *link, int fd);
/* Of a connected socket: the connection ends when the other side does not confirm bytes for
 * peer_timeout_ms. Before that the option would also limit the connecting. Any thread. */
void ip_socket_set_timeout(struct bmi_instance *instance, const struct bmi_method *method,
                           const struct bmi_link *link, int fd);
/* Sets one. Any thread. */
void ip_socket_set_option(struct bmi_instance *instance, const struct bmi_method *method,
                          const struct bmi_link *link, int fd, int level, int option, int value,
                          const char *name);
/* Sets options of a connected socket. Within a host there is no path to congest: the timers with
 * which a system-wide bbr paces cost a fifth of the throughput there and some 0.1 us of a small
 * message. Any thread. */
void ip_socket_settle(struct bmi_instance *instance, int fd);

#endif
