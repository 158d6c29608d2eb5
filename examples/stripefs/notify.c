/* SPDX-License-Identifier: BSD-3-Clause
 *
 * notify.c - notifies a service manager when the server is ready and when it stops, by the protocol
 * of sd_notify(3): a datagram to the Unix socket that $NOTIFY_SOCKET names, by a path, or after '@'
 * in the abstract name space.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server.h"

/* Returns 0 or an errno. */
static int datagram_send(const char *name, const char *text)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || length >= sizeof address.sun_path)
        return EINVAL;
    memcpy(address.sun_path, name, length);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    ssize_t sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    int error = sent < 0 ? errno : 0;
    close(fd);
    return error;
}

void manager_notify(const char *state)
{
    const char *name = getenv("NOTIFY_SOCKET");
    int error = name != NULL && *name != '\0' ? datagram_send(name, state) : 0;
    if (error != 0)
        fprintf(stderr, "bmi-stripefsd: cannot notify the service manager at %s: %s\n", name,
                strerror(error));
}
