/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.h - declarations that the files of the tcp method share: the functions that methods/stream
 * calls. stream.h has the links and their locks. The method tls uses them as well: its state begins
 * with struct tcp_state, and its table has the same settings.
 */
#ifndef TCP_H
#define TCP_H

#include "methods/ip/ip.h"
#include "methods/stream/stream.h"

/* Settings of methods over TCP sockets: entries of their tables. */
#define TCP_SETTINGS                                                                               \
    {"tcp_sndbuf",                                                                                 \
     BMI_SETTING_BYTES,                                                                            \
     0,                                                                                            \
     0,                                                                                            \
     1 << 30,                                                                                      \
     "bytes of a socket's send buffer; 0: the kernel's own tuning"},                               \
        {"tcp_rcvbuf",                                                                             \
         BMI_SETTING_BYTES,                                                                        \
         0,                                                                                        \
         0,                                                                                        \
         1 << 30,                                                                                  \
         "bytes of a socket's receive buffer; 0: the kernel's own tuning"},                        \
        {"tcp_host_links",                                                                         \
         BMI_SETTING_NUMBER,                                                                       \
         16384,                                                                                    \
         0,                                                                                        \
         1 << 24,                                                                                  \
         "connections accepted from one host at most; one more takes the place of an idle one of " \
         "that host, or is closed; 0: no limit"},                                                  \
        IP_SETTINGS

enum tcp_buffer { TCP_SEND_BUFFER, TCP_RECEIVE_BUFFER };

struct tcp_state {
    struct stream_state stream;
    struct ip_names *names; /* listen and stop */
    atomic_int port;        /* the first one listened on, 0: none */
};

extern const struct bmi_method bmi__method_tcp;

static inline struct tcp_state *tcp_state_of(const struct stream_link *link)
{
    return link->base.state;
}

/* tcp.c */
extern const struct bmi_option_default tcp_defaults[];
bool tcp_delivered(int fd);
void tcp_stop(void *state);
/* BMI_METHOD_CHOICE: the engine, and why. */
int tcp_choice(struct bmi_instance *instance, struct bmi_method_choice *choice);

/* socket.c */
/* Sets the buffer sizes of a link's socket, or (link NULL) of one that listens. The link's
 * send_lock. */
void tcp_socket_set_buffers_locked(struct bmi_instance *instance, struct stream_link *link, int fd);
int tcp_option(struct bmi_instance *instance, void *state, struct bmi_link *base, int option,
               void *value, bool set);

/* dial.c: functions of struct stream_socket */
int tcp_connect(void *state, const char *canonical, void *owner, struct bmi_link **link);
void tcp_dial(struct stream_link *link);
void tcp_dial_ready(struct stream_link *link);
void tcp_dial_expired(struct stream_link *link);
void tcp_dial_free(void *dial);
/* The buffer sizes that were set for the sockets to come, by enum tcp_buffer; -1: none was. NULL:
 * the link does not dial. send_lock held. */
int *tcp_dial_buffers_locked(struct stream_link *link);
/* The address that a link dials. Poller, while link->dial is there. */
const struct ip_address *tcp_dial_address(const struct stream_link *link);

/* listen.c */
int tcp_listen(void *state, const char *address, int flags, char *bound, size_t size);
int tcp_accept(struct stream_link *link, const struct sockaddr_storage *from);

#endif
