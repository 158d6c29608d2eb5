/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.h - "host:port" strings: check, normalise, turn into socket addresses. No I/O, no locks,
 * no state: any thread at any time.
 */
#ifndef IP_ADDRESS_H
#define IP_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { IP_DEFAULT_PORT = 3334, IP_HOST_SIZE = 256 };

enum ip_host_kind {
    IP_HOST_EMPTY, /* ":port": every interface; good for listening only */
    IP_HOST_NAME,  /* to be looked up */
    IP_HOST_IPV4,
    IP_HOST_IPV6
};

struct ip_address {
    enum ip_host_kind kind;
    bool port_given;
    uint16_t port;           /* 0 if not given */
    uint8_t numeric[16];     /* network order; 4 bytes of it for IPv4 */
    char scope[16];          /* IPv6: interface name behind '%', or "" */
    char host[IP_HOST_SIZE]; /* canonical, without brackets and scope */
};

union ip_socket_address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* Takes a string apart; a "/path" behind it is ignored. Returns 0, or -EINVAL with the bad part
 * named in *reason (a constant). */
int ip_address_parse(const char *text, struct ip_address *address, const char **reason);

/* Writes "host:port" with the address's host and this port. Returns 0 or -ENAMETOOLONG. */
int ip_address_format(const struct ip_address *address, unsigned port, char *out, size_t size);

/* The operation `parse` of methods whose addresses these are. */
int ip_parse(const char *text, char *canonical, size_t size, const char **reason);

/* Makes a socket address of a numeric host; the scope is left to the caller. */
void ip_address_to_socket(const struct ip_address *address, union ip_socket_address *to);
void ip_socket_address_loopback(union ip_socket_address *to, uint16_t port);

socklen_t ip_socket_address_length(const union ip_socket_address *address);
uint16_t ip_socket_address_port(const union ip_socket_address *address);
void ip_socket_address_set_port(union ip_socket_address *address, uint16_t port);

/* Host and port in one form: an IPv4 host as the IPv6 address that it is mapped to. */
enum { IP_ADDRESS_BYTES = 18 };
void ip_socket_address_bytes(const union ip_socket_address *address,
                             uint8_t bytes[IP_ADDRESS_BYTES]);

/* Writes the bare numeric host; an IPv4 host on a dual-stack socket reads as IPv4. */
void ip_socket_address_host(const union ip_socket_address *address, char *out, size_t size);

#endif
