/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unix.h - declarations that the files of the unix method share.
 */
#ifndef UNIX_H
#define UNIX_H

#include <sys/un.h>

#include "methods/stream/stream.h"

struct unix_address {
    struct sockaddr_un socket;
    socklen_t length;
};

struct unix_file;

struct unix_state {
    struct stream_state stream;
    struct unix_file *files; /* listen and stop */
};

extern const struct bmi_method bmi__method_unix;

/* address.c: "/path" or "@name". No state, any thread. */
/* Takes a string apart; "@" alone leaves the choice of a name to the kernel. Returns 0, or -EINVAL
 * with the reason in words. */
int unix_address_parse(const char *text, struct unix_address *address, const char **reason);
/* The operation `parse` of the method. */
int unix_parse(const char *text, char *canonical, size_t size, const char **reason);

/* listen.c */
int unix_listen(void *state, const char *text, int flags, char *bound, size_t size);
/* Removes the files of the sockets, which still listen. */
void unix_files_remove(struct unix_state *state);

#endif
