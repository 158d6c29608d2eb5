/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - options of TCP sockets that do not depend on the method.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ip.h"

enum { KEEPALIVE_PROBES = 3 };

void ip_socket_set_option(struct bmi_instance *instance, const struct bmi_method *method,
                          const struct bmi_link *link, int fd, int level, int option, int value,
                          const char *name)
{
    if (setsockopt(fd, level, option, &value, sizeof(value)) < 0)
        bmi_method_log(instance, BMI_LOG_WARN, link, "%s: cannot set %s to %d: %s", method->schemes,
                       name, value, strerror(errno));
}

static int clamp(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

void ip_socket_set_options(struct bmi_instance *instance, const struct bmi_method *method,
                           const struct bmi_link *link, int fd)
{
    int idle_s = clamp(bmi_method_setting(instance, "tcp_keepalive_s"));

    ip_socket_set_option(instance, method, link, fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    if (idle_s > 0) {
        int interval_s = idle_s / KEEPALIVE_PROBES > 0 ? idle_s / KEEPALIVE_PROBES : 1;
        ip_socket_set_option(instance, method, link, fd, SOL_SOCKET, SO_KEEPALIVE, 1,
                             "SO_KEEPALIVE");
        ip_socket_set_option(instance, method, link, fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s,
                             "TCP_KEEPIDLE");
        ip_socket_set_option(instance, method, link, fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s,
                             "TCP_KEEPINTVL");
        ip_socket_set_option(instance, method, link, fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES,
                             "TCP_KEEPCNT");
    }
}

void ip_socket_set_timeout(struct bmi_instance *instance, const struct bmi_method *method,
                           const struct bmi_link *link, int fd)
{
    int timeout_ms = clamp(bmi_method_setting(instance, "peer_timeout_ms"));
    if (timeout_ms > 0)
        ip_socket_set_option(instance, method, link, fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms,
                             "TCP_USER_TIMEOUT");
}

static bool same_host(int fd)
{
    union ip_socket_address here = {0}, there = {0};
    socklen_t here_length = sizeof(here), there_length = sizeof(there);
    char here_text[INET6_ADDRSTRLEN], there_text[INET6_ADDRSTRLEN];

    if (getsockname(fd, &here.any, &here_length) < 0 ||
        getpeername(fd, &there.any, &there_length) < 0)
        return false;
    ip_socket_address_host(&here, here_text, sizeof(here_text));
    ip_socket_address_host(&there, there_text, sizeof(there_text));
    return strcmp(here_text, there_text) == 0;
}

void ip_socket_settle(struct bmi_instance *instance, int fd)
{
    static const char reno[] = "reno";
    if (bmi_method_setting(instance, "tcp_local_reno") && same_host(fd))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1); /* or as it was */
}
