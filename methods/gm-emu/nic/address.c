/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address.c - from "host:number" to an abstract Unix-socket address, and listening there.
 *
 * An abstract address is a name in the network namespace: no file, gone with its socket. It has no
 * owner either, so both sides check each other's credentials (handshake.c). A host is a mere name:
 * a port that listens without one is found under all of them, as "*". A port that listens as
 * NIC_THIS_HOST is found under each name of this machine that no other port listens as.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

static bool host_valid(const char *host)
{
    for (; *host != '\0'; host++)
        if (!isalnum((unsigned char)*host) && strchr(".-_:[]%", *host) == NULL)
            return false;
    return true;
}

/* FNV-1a, for names that do not fit into an address. */
static uint64_t name_hash(const char *name, uint64_t hash)
{
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* Whether a socket can be bound to the numeric address: it is one of this machine's. */
static bool numeric_is_here(const char *host)
{
    union {
        struct sockaddr any;
        struct sockaddr_in ipv4;
        struct sockaddr_in6 ipv6;
    } address = {.any.sa_family = AF_UNSPEC};
    char text[INET6_ADDRSTRLEN];
    bool bracket = *host == '[';
    int length =
        snprintf(text, sizeof(text), "%.*s", (int)strcspn(host + bracket, "]"), host + bracket);
    if (length >= (int)sizeof(text))
        return false;
    if (inet_pton(AF_INET, text, &address.ipv4.sin_addr) == 1)
        address.any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &address.ipv6.sin6_addr) == 1)
        address.any.sa_family = AF_INET6;
    else
        return false;
    int fd = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool here = fd >= 0 && bind(fd, &address.any, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return here;
}

bool nic__host_is_here(const char *host)
{
    char name[NIC_NODE_MAX] = "";
    if (strcasecmp(host, NIC_THIS_HOST) == 0)
        return true;
    if (gethostname(name, sizeof(name) - 1) == 0 && *name != '\0') {
        size_t label = strcspn(name, "."); /* the short name, where the system knows the long one */
        if (strcasecmp(host, name) == 0 ||
            (strlen(host) == label && strncasecmp(host, name, label) == 0))
            return true;
    }
    return numeric_is_here(host);
}

int nic__address(const char *host, uint16_t number, struct sockaddr_un *address, uint32_t *length)
{
    enum { HOST_MAX = 80 };
    if (strlen(host) >= NIC_NODE_MAX)
        return -ENAMETOOLONG;
    if (!host_valid(host))
        return -EINVAL;
    char name[HOST_MAX + 1];
    if (*host == '\0')
        strcpy(name, "*");
    else if (strlen(host) <= HOST_MAX)
        strcpy(name, host);
    else
        snprintf(name, sizeof(name), "%.40s~%016llx%016llx", host,
                 (unsigned long long)name_hash(host, 0xcbf29ce484222325u),
                 (unsigned long long)name_hash(host, 0x9e3779b97f4a7c15u));
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    int written = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "bmi-gm/%s:%u",
                           name, number);
    *length = (uint32_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)written);
    return 0;
}

/* Binds to host:*number, or to a free one. */
static int bind_to(int fd, const char *host, uint16_t *number)
{
    enum { FIRST = 32768, COUNT = 28000 };
    uint32_t start = 0;
    if (*number == 0 && RAND_bytes((uint8_t *)&start, sizeof(start)) != 1)
        return -EIO;
    for (uint32_t i = 0; i < COUNT; i++) {
        struct sockaddr_un address;
        uint32_t length;
        uint16_t tried = *number != 0 ? *number : (uint16_t)(FIRST + (start + i) % COUNT);
        int status = nic__address(host, tried, &address, &length);
        if (status != 0)
            return status;
        if (bind(fd, (struct sockaddr *)&address, length) == 0) {
            *number = tried;
            return 0;
        }
        if (errno != EADDRINUSE || *number != 0)
            return -errno;
    }
    return -EADDRINUSE;
}

int nic_listen(struct nic_port *port, const char *host, uint16_t *number)
{
    struct nic_listener *listener = calloc(1, sizeof(*listener));
    if (listener == NULL)
        return -ENOMEM;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int status = fd < 0 ? -errno : 0;
    if (status == 0)
        status = bind_to(fd, host, number);
    if (status == 0 && listen(fd, SOMAXCONN) != 0)
        status = -errno;
    listener->source =
        (struct nic_source){.kind = NIC_SOURCE_LISTENER, .fd = fd, .owner = listener};
    if (status == 0) {
        bmi_lock_take(&port->lock);
        listener->next = port->listeners;
        port->listeners = listener;
        status = nic__source_add(port, &listener->source, EPOLLIN);
        if (status != 0)
            port->listeners = listener->next;
        bmi_lock_give(&port->lock);
    }
    if (status == 0)
        return 0;
    nic__log(port, status == -EADDRINUSE ? NIC_LOG_INFO : NIC_LOG_ERROR,
             "cannot listen on gm port %.200s:%u: %s", host, *number, strerror(-status));
    if (fd >= 0)
        close(fd);
    free(listener);
    return status;
}
