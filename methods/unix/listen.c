/* SPDX-License-Identifier: BSD-3-Clause
 *
 * listen.c - listening sockets and their files.
 *
 * The file of a server that was killed stays behind, and bind(2) fails with EADDRINUSE. If no
 * process listens there, the file is removed, else the error stands. Servers that start at the same
 * time take turns by a lock on the folder: from the check until the socket listens, no other server
 * can take it for a dead one's.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unix.h"

/* The file of one of our sockets. */
struct unix_file {
    struct unix_file *next;
    pid_t process; /* a forked child removes nothing of its parent's */
    dev_t device;
    ino_t inode;
    char path[];
};

/* Locks the folder of a path. Returns a descriptor whose close unlocks it, or -1. */
static int folder_lock(const char *path)
{
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

/* Whether the path is a socket at which no process listens. */
static bool is_stale(const struct unix_address *address)
{
    struct stat is;
    if (lstat(address->socket.sun_path, &is) < 0 || !S_ISSOCK(is.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool refused = fd >= 0 &&
                   connect(fd, (const struct sockaddr *)&address->socket, address->length) < 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

static int socket_bind(int fd, const struct unix_address *address)
{
    const struct sockaddr *to = (const struct sockaddr *)&address->socket;
    /* The mode of a socket that is not bound is that of its file later on. */
    fchmod(fd, bmi_method_setting("unix_other_users") ? 0666 : 0600);
    if (bind(fd, to, address->length) == 0)
        return 0;
    if (errno != EADDRINUSE || address->socket.sun_path[0] != '/')
        return -errno;
    if (!is_stale(address))
        return -EADDRINUSE;
    unlink(address->socket.sun_path);
    return bind(fd, to, address->length) < 0 ? -errno : 0;
}

/* Notes the file of a socket, to be removed at the end. */
static int file_add(struct unix_state *state, const char *path)
{
    size_t size = strlen(path) + 1;
    struct stat is = {0};
    struct unix_file *file = malloc(sizeof(*file) + size);
    if (!file)
        return -ENOMEM;
    lstat(path, &is);
    memcpy(file->path, path, size);
    file->process = getpid();
    file->device = is.st_dev;
    file->inode = is.st_ino;
    file->next = state->files;
    state->files = file;
    return 0;
}

void unix_files_remove(struct unix_state *state)
{
    while (state->files) {
        struct unix_file *file = state->files;
        struct stat is;
        int lock = folder_lock(file->path);
        if (file->process == getpid() && lstat(file->path, &is) == 0 && is.st_dev == file->device &&
            is.st_ino == file->inode)
            unlink(file->path);
        if (lock >= 0)
            close(lock);
        state->files = file->next;
        free(file);
    }
}

/* Binds and listens. Returns a socket or an errno. */
static int socket_open(struct unix_state *state, const struct unix_address *address)
{
    const char *path = address->socket.sun_path;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int lock = path[0] == '/' ? folder_lock(path) : -1;
    int error = socket_bind(fd, address);
    if (!error && path[0] == '/')
        error = file_add(state, path);
    if (!error && listen(fd, SOMAXCONN) < 0)
        error = -errno;
    if (lock >= 0)
        close(lock);
    if (error)
        close(fd);
    return error ? error : fd;
}

/* The name that the socket has, perhaps by the kernel's choice. */
static int bound_get(int fd, char *bound, size_t size)
{
    struct sockaddr_un is = {0};
    socklen_t length = sizeof(is);
    if (getsockname(fd, (struct sockaddr *)&is, &length) < 0)
        return -errno;
    int used = (int)(length - offsetof(struct sockaddr_un, sun_path));
    int written = is.sun_path[0] ? snprintf(bound, size, "%.*s", used, is.sun_path)
                                 : snprintf(bound, size, "@%.*s", used - 1, is.sun_path + 1);
    return written < 0 || (size_t)written >= size ? -ENAMETOOLONG : 0;
}

int unix_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct unix_state *state = argument;
    struct unix_address address;
    const char *reason = "";

    (void)flags;
    if (unix_address_parse(text, &address, &reason)) {
        bmi_method_log(BMI_LOG_ERROR, NULL, "unix: bad listen address '%s': %s", text, reason);
        return -EINVAL;
    }
    int fd = socket_open(state, &address);
    if (fd < 0) {
        bmi_method_log(BMI_LOG_ERROR, NULL, "unix: cannot listen on '%s': %s", text, strerror(-fd));
        return fd;
    }
    int error = bound_get(fd, bound, size);
    if (!error)
        error = stream_listen(&state->stream, fd);
    if (error)
        close(fd);
    return error;
}
