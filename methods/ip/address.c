/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.c - parses "host:port" and writes its one canonical form.
 *
 * Hosts are IPv4 (four decimal numbers), [IPv6] in brackets with an optional %interface, or names.
 * Canonical: names in lower case, IPv6 as RFC 5952 writes it, an IPv4-mapped IPv6 address as IPv4,
 * ports without leading zeros. A host that looks like a number but is no IPv4 address ("1.2.3",
 * "0x7f.1") is refused, because resolvers would guess its meaning. The functions use their
 * arguments only.
 */
#include "address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bmi/method.h"

enum { NAME_MAX_LENGTH = 253, LABEL_MAX_LENGTH = 63 };

static int refuse(const char **reason, const char *why)
{
    if (reason)
        *reason = why;
    return -EINVAL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int port_parse(const char *text, struct ip_address *address, const char **reason)
{
    size_t length = strlen(text);
    if (length == 0)
        return refuse(reason, "port is empty");
    if (length > 5)
        return refuse(reason, "port is too long");

    unsigned long port = 0;
    for (size_t i = 0; i < length; i++) {
        if (!is_digit(text[i]))
            return refuse(reason, "port is not a decimal number");
        port = port * 10 + (unsigned long)(text[i] - '0');
    }
    if (port > 65535)
        return refuse(reason, "port is above 65535");
    address->port = (uint16_t)port;
    address->port_given = true;
    return 0;
}

static int scope_parse(const char *text, size_t length, struct ip_address *address,
                       const char **reason)
{
    if (length == 0 || length >= sizeof(address->scope))
        return refuse(reason, "interface name behind '%' is empty or too long");
    for (size_t i = 0; i < length; i++)
        if (!is_word(text[i]) && text[i] != '.')
            return refuse(reason, "interface name behind '%' has a bad character");
    memcpy(address->scope, text, length);
    return 0;
}

/* An IPv4-mapped address is the IPv4 host: both spellings must give one peer. */
static bool mapped_to_ipv4(struct ip_address *address)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    if (memcmp(address->numeric, prefix, sizeof(prefix)) != 0)
        return false;
    memmove(address->numeric, address->numeric + 12, 4);
    memset(address->numeric + 4, 0, 12);
    address->kind = IP_HOST_IPV4;
    return true;
}

static int ipv6_parse(const char *text, size_t length, struct ip_address *address,
                      const char **reason)
{
    char host[INET6_ADDRSTRLEN];
    const char *percent = memchr(text, '%', length);
    size_t host_length = percent ? (size_t)(percent - text) : length;

    if (percent) {
        int error = scope_parse(percent + 1, length - host_length - 1, address, reason);
        if (error)
            return error;
    }
    if (host_length >= sizeof(host))
        return refuse(reason, "IPv6 address is too long");
    memcpy(host, text, host_length);
    host[host_length] = '\0';
    if (inet_pton(AF_INET6, host, address->numeric) != 1)
        return refuse(reason, "bad IPv6 address in brackets");

    address->kind = IP_HOST_IPV6;
    if (!percent)
        mapped_to_ipv4(address);
    inet_ntop(address->kind == IP_HOST_IPV4 ? AF_INET : AF_INET6, address->numeric, address->host,
              sizeof(address->host));
    return 0;
}

/* Whether a label would be read as a number by a resolver: all digits, or 0x and hex digits. */
static bool label_is_number(const char *label, size_t length)
{
    if (length >= 2 && label[0] == '0' && lower(label[1]) == 'x') {
        for (size_t i = 2; i < length; i++)
            if (!isxdigit((unsigned char)label[i]))
                return false;
        return true;
    }
    for (size_t i = 0; i < length; i++)
        if (!is_digit(label[i]))
            return false;
    return length > 0;
}

static int label_check(const char *label, size_t length, const char **reason)
{
    if (length == 0)
        return refuse(reason, "host name has an empty label");
    if (length > LABEL_MAX_LENGTH)
        return refuse(reason, "host name has a label above 63 characters");
    if (label[0] == '-' || label[length - 1] == '-')
        return refuse(reason, "label of the host name begins or ends with '-'");
    for (size_t i = 0; i < length; i++)
        if (!is_word(label[i]))
            return refuse(reason, "host has a bad character");
    return 0;
}

static int name_parse(const char *text, size_t length, struct ip_address *address,
                      const char **reason)
{
    size_t end = text[length - 1] == '.' ? length - 1 : length; /* a final dot: fully qualified */
    size_t start = 0, last = 0;

    if (end > NAME_MAX_LENGTH)
        return refuse(reason, "host name is above 253 characters");
    for (size_t i = 0; i <= end; i++) {
        if (i < end && text[i] != '.')
            continue;
        int error = label_check(text + start, i - start, reason);
        if (error)
            return error;
        last = start;
        start = i + 1;
    }
    if (label_is_number(text + last, end - last))
        return refuse(reason, "bad IPv4 address");

    for (size_t i = 0; i < length; i++)
        address->host[i] = lower(text[i]);
    address->host[length] = '\0';
    address->kind = IP_HOST_NAME;
    return 0;
}

static int host_parse(const char *text, size_t length, struct ip_address *address,
                      const char **reason)
{
    if (length == 0) {
        address->kind = IP_HOST_EMPTY;
        return 0;
    }
    if (length >= sizeof(address->host))
        return refuse(reason, "host is too long");

    memcpy(address->host, text, length);
    address->host[length] = '\0';
    if (inet_pton(AF_INET, address->host, address->numeric) == 1) {
        address->kind = IP_HOST_IPV4;
        return 0;
    }
    return name_parse(text, length, address, reason);
}

static int bracket_parse(const char *text, struct ip_address *address, const char **reason)
{
    const char *close = strchr(text, ']');
    if (!close)
        return refuse(reason, "']' is missing");
    int error = ipv6_parse(text + 1, (size_t)(close - text - 1), address, reason);
    if (error)
        return error;
    if (close[1] == '\0')
        return 0;
    if (close[1] != ':')
        return refuse(reason, "text between ']' and the port");
    return port_parse(close + 2, address, reason);
}

int ip_address_parse(const char *whole, struct ip_address *address, const char **reason)
{
    char text[BMI_MAX_ADDR_LEN];
    bmi_address_copy(whole, text, sizeof(text));
    memset(address, 0, sizeof(*address));
    if (text[0] == '[')
        return bracket_parse(text, address, reason);

    const char *colon = strchr(text, ':');
    if (colon && strchr(colon + 1, ':'))
        return refuse(reason, "more than one ':' (an IPv6 address stands in brackets)");
    int error = host_parse(text, colon ? (size_t)(colon - text) : strlen(text), address, reason);
    if (error || !colon)
        return error;
    return port_parse(colon + 1, address, reason);
}

int ip_address_format(const struct ip_address *address, unsigned port, char *out, size_t size)
{
    bool ipv6 = address->kind == IP_HOST_IPV6;
    int length = snprintf(out, size, "%s%s%s%s%s:%u", ipv6 ? "[" : "", address->host,
                          address->scope[0] ? "%" : "", address->scope, ipv6 ? "]" : "", port);
    return length < 0 || (size_t)length >= size ? -ENAMETOOLONG : 0;
}

int ip_parse(const char *text, char *canonical, size_t size, const char **reason)
{
    struct ip_address address;
    int error = ip_address_parse(text, &address, reason);
    if (error)
        return error;
    if (address.kind == IP_HOST_EMPTY)
        return refuse(reason, "host is empty");
    if (address.port_given && address.port == 0)
        return refuse(reason, "port 0 can only be listened at");
    return ip_address_format(&address, address.port_given ? address.port : IP_DEFAULT_PORT,
                             canonical, size);
}

void ip_address_to_socket(const struct ip_address *address, union ip_socket_address *to)
{
    memset(to, 0, sizeof(*to));
    if (address->kind == IP_HOST_IPV4) {
        to->ipv4.sin_family = AF_INET;
        memcpy(&to->ipv4.sin_addr, address->numeric, 4);
    } else {
        to->ipv6.sin6_family = AF_INET6;
        memcpy(&to->ipv6.sin6_addr, address->numeric, 16);
    }
    ip_socket_address_set_port(to, address->port);
}

void ip_socket_address_loopback(union ip_socket_address *to, uint16_t port)
{
    memset(to, 0, sizeof(*to));
    to->ipv4.sin_family = AF_INET;
    to->ipv4.sin_port = htons(port);
    to->ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

socklen_t ip_socket_address_length(const union ip_socket_address *address)
{
    return address->any.sa_family == AF_INET ? sizeof(address->ipv4) : sizeof(address->ipv6);
}

uint16_t ip_socket_address_port(const union ip_socket_address *address)
{
    return ntohs(address->any.sa_family == AF_INET ? address->ipv4.sin_port
                                                   : address->ipv6.sin6_port);
}

void ip_socket_address_set_port(union ip_socket_address *address, uint16_t port)
{
    if (address->any.sa_family == AF_INET)
        address->ipv4.sin_port = htons(port);
    else
        address->ipv6.sin6_port = htons(port);
}

void ip_socket_address_host(const union ip_socket_address *address, char *out, size_t size)
{
    const char *text = NULL;
    if (address->any.sa_family == AF_INET)
        text = inet_ntop(AF_INET, &address->ipv4.sin_addr, out, (socklen_t)size);
    else if (IN6_IS_ADDR_V4MAPPED(&address->ipv6.sin6_addr))
        text = inet_ntop(AF_INET, &address->ipv6.sin6_addr.s6_addr[12], out, (socklen_t)size);
    else
        text = inet_ntop(AF_INET6, &address->ipv6.sin6_addr, out, (socklen_t)size);
    if (!text && size > 0)
        out[0] = '\0';
}

void ip_socket_address_bytes(const union ip_socket_address *address,
                             uint8_t bytes[IP_ADDRESS_BYTES])
{
    uint16_t port = htons(ip_socket_address_port(address));
    memset(bytes, 0, 16);
    if (address->any.sa_family == AF_INET) {
        memset(bytes + 10, 0xff, 2);
        memcpy(bytes + 12, &address->ipv4.sin_addr, 4);
    } else {
        memcpy(bytes, &address->ipv6.sin6_addr, 16);
    }
    memcpy(bytes + 16, &port, sizeof(port));
}
