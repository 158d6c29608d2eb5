/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.h - "host:port" strings: check, normalise, turn into socket addresses. No I/O, no locks,
 * no state: any thread at any time.
 */
#ifndef TCP_ADDRESS_H
#define TCP_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { TCP_DEFAULT_PORT = 3334, TCP_HOST_SIZE = 256 };

enum tcp_host_kind {
    TCP_HOST_EMPTY, /* ":port": every interface; good for listening only */
    TCP_HOST_NAME,  /* to be looked up */
    TCP_HOST_IPV4,
    TCP_HOST_IPV6
};

struct tcp_address {
    enum tcp_host_kind kind;
    bool port_given;
    uint16_t port;            /* 0 if not given */
    uint8_t numeric[16];      /* network order; 4 bytes of it for IPv4 */
    char scope[16];           /* IPv6: interface name behind '%', or "" */
    char host[TCP_HOST_SIZE]; /* canonical, without brackets and scope */
};

union tcp_socket_address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* Takes a string apart. Returns 0, or -EINVAL with the bad part named in *reason (a constant). */
int tcp_address_parse(const char *text, struct tcp_address *address, const char **reason);

/* Writes "host:port" with the address's host and this port. Returns 0 or -ENAMETOOLONG. */
int tcp_address_format(const struct tcp_address *address, unsigned port, char *out, size_t size);

/* The operation `parse` of the method. */
int tcp_parse(const char *text, char *canonical, size_t size, const char **reason);

/* Makes a socket address of a numeric host; the scope is left to the caller. */
void tcp_address_to_socket(const struct tcp_address *address, union tcp_socket_address *to);
void tcp_socket_address_loopback(union tcp_socket_address *to, uint16_t port);

socklen_t tcp_socket_address_length(const union tcp_socket_address *address);
uint16_t tcp_socket_address_port(const union tcp_socket_address *address);
void tcp_socket_address_set_port(union tcp_socket_address *address, uint16_t port);

/* Host and port in one form: an IPv4 host as the IPv6 address that it is mapped to. */
enum { TCP_ADDRESS_BYTES = 18 };
void tcp_socket_address_bytes(const union tcp_socket_address *address,
                              uint8_t bytes[TCP_ADDRESS_BYTES]);

/* Writes the bare numeric host; an IPv4 host on a dual-stack socket reads as IPv4. */
void tcp_socket_address_host(const union tcp_socket_address *address, char *out, size_t size);

#endif
