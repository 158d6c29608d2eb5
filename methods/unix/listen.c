/* SPDX-License-Identifier: BSD-3-Clause
 *
 * listen.c - listening sockets and their files.
 *
 * The file of a server that was killed stays behind, and bind(2) fails with EADDRINUSE. If no
 * process listens there, the file is removed, else the error stands. Servers that start at the same
 * time take turns by a lock on the folder: from the check until the socket listens, no other server
 * can take it for a dead one's. A socket that listens keeps its file without the lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "unix.h"

enum { LOCK_TRIES = 100, LOCK_RETRY_MS = 10 }; /* other servers hold it for some system calls */

/* The file of one of our sockets. */
struct unix_file {
    struct unix_file *next;
    dev_t device;
    ino_t inode;
    char path[];
};

/* Locks the folder of a path. Returns a descriptor for folder_unlock, or an errno; -EBUSY: another
 * process keeps it locked. */
static int folder_lock(const char *path)
{
    const struct timespec pause = {.tv_nsec = LOCK_RETRY_MS * 1000000};
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (int tries = 1; flock(fd, LOCK_EX | LOCK_NB) < 0; tries++) {
        int error = errno;
        if ((error != EWOULDBLOCK && error != EINTR) || tries == LOCK_TRIES) {
            close(fd);
            return error == EWOULDBLOCK ? -EBUSY : -error;
        }
        nanosleep(&pause, NULL);
    }
    return fd;
}

static void folder_unlock(int lock)
{
    flock(lock, LOCK_UN); /* a forked child may have the descriptor, too */
    close(lock);
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

/* Binds a socket to a path, in place of a dead server's. The folder is locked. */
static int path_bind(int fd, const struct unix_address *address)
{
    const struct sockaddr *to = (const struct sockaddr *)&address->socket;
    fchmod(fd, 0600); /* the mode of a socket that is not bound is that of its file later on */
    if (bind(fd, to, address->length) == 0)
        return 0;
    if (errno != EADDRINUSE)
        return -errno;
    if (!is_stale(address))
        return -EADDRINUSE;
    unlink(address->socket.sun_path);
    return bind(fd, to, address->length) < 0 ? -errno : 0;
}

/* Sets the mode of a new file, and notes it. Not through a symbolic link: a process that may write
 * to the folder could have put one in its place. */
static int file_set(struct bmi_instance *instance, struct unix_file *file)
{
    struct stat is;
    if ((bmi_method_setting(instance, "unix_other_users") &&
         fchmodat(AT_FDCWD, file->path, 0666, AT_SYMLINK_NOFOLLOW) < 0) ||
        lstat(file->path, &is) < 0)
        return -errno;
    file->device = is.st_dev;
    file->inode = is.st_ino;
    return 0;
}

static int path_listen(struct bmi_instance *instance, struct unix_state *state, int fd,
                       const struct unix_address *address)
{
    const char *path = address->socket.sun_path;
    size_t size = strlen(path) + 1;
    struct unix_file *file = malloc(sizeof(*file) + size);
    if (!file)
        return -ENOMEM;
    memcpy(file->path, path, size);
    int lock = folder_lock(path), error = lock;
    if (lock < 0)
        goto undo_file;
    error = path_bind(fd, address);
    if (error)
        goto undo_lock;
    error = file_set(instance, file);
    if (!error)
        error = listen(fd, SOMAXCONN) < 0 ? -errno : stream_listen(&state->stream, fd);
    if (error)
        goto undo_bind;
    folder_unlock(lock);
    file->next = state->files;
    state->files = file;
    return 0;

undo_bind:
    unlink(path);
undo_lock:
    folder_unlock(lock);
undo_file:
    free(file);
    return error;
}

/* The sockets still listen, so no server replaces their files meanwhile: that needs no lock. */
void unix_files_remove(struct unix_state *state)
{
    while (state->files) {
        struct unix_file *file = state->files;
        struct stat is;
        if (lstat(file->path, &is) == 0 && is.st_dev == file->device && is.st_ino == file->inode)
            unlink(file->path);
        state->files = file->next;
        free(file);
    }
}

/* Outputs the name, which is perhaps of the kernel's choice. */
static int name_listen(struct unix_state *state, int fd, const struct unix_address *address,
                       char *bound, size_t size)
{
    struct sockaddr_un is = {0};
    socklen_t length = sizeof(is);
    if (bind(fd, (const struct sockaddr *)&address->socket, address->length) < 0 ||
        listen(fd, SOMAXCONN) < 0 || getsockname(fd, (struct sockaddr *)&is, &length) < 0)
        return -errno;
    int used = (int)(length - offsetof(struct sockaddr_un, sun_path)) - 1;
    snprintf(bound, size, "@%.*s", used, is.sun_path + 1);
    return stream_listen(&state->stream, fd);
}

int unix_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct unix_state *state = argument;
    struct unix_address address;
    const char *reason = "";
    (void)flags;
    if (unix_address_parse(text, &address, &reason)) {
        bmi_method_log(state->stream.instance, BMI_LOG_ERROR, NULL,
                       "unix: bad listen address '%s': %s", text, reason);
        return -EINVAL;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? -errno : 0;
    if (!error && address.socket.sun_path[0] == '/') {
        snprintf(bound, size, "%s", address.socket.sun_path);
        error = path_listen(state->stream.instance, state, fd, &address);
    } else if (!error) {
        error = name_listen(state, fd, &address, bound, size);
    }
    if (!error)
        return 0;
    reason = error == -EBUSY ? "another process keeps its folder locked" : strerror(-error);
    bmi_method_log(state->stream.instance, BMI_LOG_ERROR, NULL, "unix: cannot listen on '%s': %s",
                   text, reason);
    if (fd >= 0)
        close(fd);
    return error;
}
