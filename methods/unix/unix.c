/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unix.c - the unix method: frames over Unix sockets, within a host. methods/stream has the links;
 * here is how one is connected, and whose process may have the other end.
 */
#include <stdlib.h>
#include <unistd.h>

#include "methods/ip/hosts.h"
#include "unix.h"

enum { RETRY_LEAST_MS = 1, RETRY_MOST_MS = 64 }; /* while the server's backlog is full */

static const struct bmi_setting_spec settings[] = {{"unix_other_users", BMI_SETTING_SWITCH, 0, 0, 1,
                                                    "talk to processes of other users"},
                                                   {0}};

/* ---- the peer ------------------------------------------------------------------------------- */

/* Checks the user of the other end's process, which the kernel knows, and sets the link's host and
 * ends. Returns 0 or an errno. */
static int peer_check(struct stream_link *link)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (getsockopt(link->watch.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return -errno;
    if (peer.uid != geteuid() && !bmi_method_setting(link->base.instance, "unix_other_users")) {
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "process %d belongs to user %u, ours to user %u (see "
                       "unix_other_users)",
                       (int)peer.pid, (unsigned)peer.uid, (unsigned)geteuid());
        return -EACCES;
    }
    bmi_method_link_host(&link->base, "127.0.0.1", (uint32_t)peer.pid);
    bmi_method_link_user(&link->base, peer.uid, link->dial != NULL);
    return 0;
}

static int unix_accept(struct stream_link *link, const struct sockaddr_storage *from)
{
    (void)from; /* a client has no name */
    return peer_check(link);
}

/* ---- dialling ------------------------------------------------------------------------------- */

struct unix_dial {
    struct unix_address to;
    uint64_t end_ns; /* 0: not begun */
    uint64_t wait_ms;
};

static int unix_connect(void *argument, const char *canonical, void *owner, struct bmi_link **out)
{
    struct unix_state *state = argument;
    struct unix_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    int error = unix_address_parse(canonical, &dial->to, NULL);
    if (!error)
        error = stream_connect(&state->stream, dial, owner, out);
    if (error)
        free(dial);
    return error;
}

/* Returns 0, -EAGAIN: the server's backlog is full, or another errno. */
static int attempt(struct stream_link *link)
{
    const struct unix_dial *dial = link->dial;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&dial->to.socket, dial->to.length) < 0) {
        int error = errno == ENOENT ? -ECONNREFUSED : -errno;
        close(fd);
        return error;
    }
    stream_lock(&link->send_lock);
    stream_dial_socket_locked(link, fd);
    stream_unlock(&link->send_lock);
    return stream_dial_watch(link);
}

static void unix_dial(struct stream_link *link)
{
    struct unix_dial *dial = link->dial;
    uint64_t now_ns = bmi_method_now_ns(link->base.instance);
    if (dial->end_ns == 0) {
        dial->end_ns =
            now_ns +
            (uint64_t)bmi_method_setting(link->base.instance, "connect_timeout_ms") * 1000000;
        dial->wait_ms = RETRY_LEAST_MS;
    }
    int error = attempt(link);
    if (error == 0)
        return;
    if (error != -EAGAIN || now_ns >= dial->end_ns) {
        stream_link_end(link, error == -EAGAIN ? -ETIMEDOUT : error);
        return;
    }
    bmi_method_timer_set(link->base.instance, &link->timer, dial->wait_ms);
    if (dial->wait_ms < RETRY_MOST_MS)
        dial->wait_ms *= 2;
}

static void unix_dial_ready(struct stream_link *link)
{
    int error = peer_check(link);
    if (error)
        stream_link_end(link, error);
    else
        stream_dial_done(link);
}

/* ---- the method ----------------------------------------------------------------------------- */

static const struct stream_socket unix_socket = {
    .method = &bmi__method_unix,
    .bytes = &stream_plain,
    .dial = unix_dial,
    .dial_ready = unix_dial_ready,
    .dial_expired = unix_dial,
    .dial_free = free,
    .accept = unix_accept,
};

static int unix_start(struct bmi_instance *instance, void **out)
{
    return stream_method_start(instance, sizeof(struct unix_state), &unix_socket,
                               &stream_engine_epoll, out);
}

static void unix_stop(void *state)
{
    unix_files_remove(state);
    stream_method_stop(state);
}

const struct bmi_method bmi__method_unix = {
    .name = "bmi_unix",
    .schemes = "unix",
    .description = "Unix sockets, within a host",
    .settings = settings,
    .hosts = &ip_hosts,
    .start = unix_start,
    .stop = unix_stop,
    .listen = unix_listen,
    .parse = unix_parse,
    .connect = unix_connect,
    .option = stream_option,
    STREAM_METHOD,
};
