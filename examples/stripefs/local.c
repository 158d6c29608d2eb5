/* SPDX-License-Identifier: BSD-3-Clause
 *
 * local.c - see local.h.
 */
#include "local.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096 };

/* ---- reading and writing --------------------------------------------------------------------- */

static int piece_read(int fd, uint8_t *buffer, bmi_size_t size, bmi_size_t offset)
{
    while (size > 0) {
        ssize_t got = pread(fd, buffer, (size_t)size, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? bmi_status_of(errno) : -BMI_ENODATA; /* it has become shorter */
        buffer += got;
        offset += got;
        size -= got;
    }
    return 0;
}

/* Waits until a stream has bytes, or a signal ends the program. */
static int stream_await(const struct file *file)
{
    struct pollfd fds[] = {{.fd = file->fd, .events = POLLIN},
                           {.fd = file->client->end_fd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR && errno != EAGAIN)
            return bmi_status_of(errno);
    return fds[1].revents != 0 ? -BMI_ECANCEL : 0;
}

static int stream_read(struct local *local)
{
    const struct file *file = local->file;
    local->got = 0;
    while (local->got < local->room) {
        int result = stream_await(file);
        if (result < 0)
            return result;
        ssize_t got =
            read(file->fd, local->buffer + local->got, (size_t)(local->room - local->got));
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return bmi_status_of(errno);
        if (got == 0)
            break;
        local->got += got > 0 ? got : 0;
    }
    return 0;
}

static int block_write(int fd, const uint8_t *buffer, bmi_size_t size, bmi_size_t offset)
{
    while (size > 0) {
        ssize_t put = pwrite(fd, buffer, (size_t)size, offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return bmi_status_of(errno);
        buffer += put;
        offset += put;
        size -= put;
    }
    return 0;
}

static bool zeros(const uint8_t *bytes, bmi_size_t size)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)size - 1) == 0;
}

/* Writes runs of blocks that are not all zeros. */
static int piece_write(int fd, const uint8_t *buffer, bmi_size_t size, bmi_size_t offset)
{
    bmi_size_t run = 0, at = 0;
    while (at < size) {
        bmi_size_t block = size - at < BLOCK ? size - at : BLOCK;
        if (zeros(buffer + at, block)) {
            int result = block_write(fd, buffer + run, at - run, offset + run);
            if (result < 0)
                return result;
            run = at + block;
        }
        at += block;
    }
    return block_write(fd, buffer + run, size - run, offset + run);
}

static int pieces_move(struct local *local)
{
    const struct file *file = local->file;
    uint8_t *at = local->buffer;
    int result = 0;
    if (local->stream)
        return stream_read(local);
    for (int i = 0; i < local->count && result == 0; i++) {
        const struct bmi_flow_extent *extent = &local->extents[i];
        result = file->put ? piece_read(file->fd, at, extent->size, extent->offset)
                           : piece_write(file->fd, at, extent->size, extent->offset);
        at += extent->size;
    }
    return result;
}

/* Takes a written piece out of its file's queue. Returns the next. */
static struct local *written(struct file *file)
{
    pthread_mutex_lock(&file->lock);
    file->writing = file->writing->next;
    struct local *next = file->writing;
    pthread_mutex_unlock(&file->lock);
    return next;
}

/* A write continues with the other queued writes of the file. After the end of one was reported,
 * this function does not access it: its worker may use it for the next, and after the last one free
 * the file.
 */
static enum bmi_task_status local_run(struct bmi_task *task, void *argument)
{
    (void)task;
    for (struct local *local = argument, *next; local != NULL; local = next) {
        struct bmi_job_context *jobs = local->file->client->jobs;
        bmi_job_id_t event = local->event;
        int result = pieces_move(local);
        next = local->file->put ? NULL : written(local->file);
        bmi_job_event_complete(jobs, event, result, 0);
    }
    return BMI_TASK_GONE;
}

/* Queues a write of its file. Returns whether it is the first: the system lets one thread at a time
 * write to a file, so others would only wait. */
static bool write_queue(struct local *local, struct file *file)
{
    local->next = NULL;
    pthread_mutex_lock(&file->lock);
    bool first = file->writing == NULL;
    *(first ? &file->writing : &file->last->next) = local;
    file->last = local;
    pthread_mutex_unlock(&file->lock);
    return first;
}

static int task_start(struct local *local, struct file *file, struct bmi_sm *machine,
                      uint8_t *buffer)
{
    struct bmi_task_attributes attributes = {.function = local_run,
                                             .argument = local,
                                             .options = BMI_TASK_MAY_BLOCK};
    struct bmi_job_options options = {.machine = machine};
    struct bmi_job_context *jobs = file->client->jobs;
    local->file = file;
    local->buffer = buffer;
    int result = bmi_task_prepare(&local->task, NULL, &attributes);
    if (result < 0)
        return bmi_status_of(-result);
    result = bmi_job_event(jobs, &options, &local->event, NULL);
    if (result < 0)
        return result;
    if (!file->put && !write_queue(local, file))
        return BMI_SM_DEFERRED;
    result = bmi_task_submit(&local->task);
    if (result < 0) {
        if (!file->put)
            written(file);
        bmi_job_event_complete(jobs, local->event, bmi_status_of(-result), 0);
    }
    return BMI_SM_DEFERRED;
}

int local_start(struct local *local, struct file *file, struct bmi_sm *machine, uint8_t *buffer)
{
    local->stream = false;
    return task_start(local, file, machine, buffer);
}

int stream_start(struct local *local, struct file *file, struct bmi_sm *machine, uint8_t *buffer,
                 bmi_size_t room)
{
    local->stream = true;
    local->room = room;
    return task_start(local, file, machine, buffer);
}

/* Finds the run of data at or after `at`. Returns 0, or an error; ENODATA: only holes. The last run
 * is kept: to find its end a file system may check each page of it. */
static int data_find(struct file *file, off_t at)
{
    if (at >= file->data && at < file->hole)
        return 0;
    off_t data = lseek(file->fd, at, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? -BMI_ENODATA : bmi_status_of(errno);
    off_t hole = lseek(file->fd, data, SEEK_HOLE);
    if (hole < 0)
        return bmi_status_of(errno);
    file->data = data;
    file->hole = hole;
    return 0;
}

int extents_find(struct file *file, uint64_t at, uint64_t size, struct bmi_flow_extent *extents,
                 int *count, bmi_size_t *bytes)
{
    off_t here = (off_t)at, end = (off_t)(at + size);
    *count = 0;
    *bytes = 0;
    while (here < end) {
        int result = data_find(file, here);
        if (result == -BMI_ENODATA)
            return 0;
        if (result < 0)
            return result;
        off_t data = file->data > here ? file->data : here, hole = file->hole;
        if (data >= end)
            return 0;
        if (hole > end || *count == SFS_EXTENTS_MAX - 1)
            hole = end;
        extents[(*count)++] =
            (struct bmi_flow_extent){.offset = data, .size = hole - data, .count = 1};
        *bytes += hole - data;
        here = hole;
    }
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

void metadata_of(struct sfs_meta *meta, const void *from)
{
    const struct stat *stat = from;
    meta->mode = stat->st_mode & 07777;
    meta->uid = stat->st_uid;
    meta->gid = stat->st_gid;
    meta->mtime_ns = (int64_t)stat->st_mtim.tv_sec * 1000000000 + stat->st_mtim.tv_nsec;
}

/* Temporary files without their final name: they are created, renamed, and removed under the lock,
 * so that at a signal all of them can be removed and no more be created. */
static pthread_mutex_t temporaries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *temporaries; /* temporaries_lock */

static void temporary_forget_locked(struct file *file)
{
    struct file **at = &temporaries;
    while (*at != NULL && *at != file)
        at = &(*at)->next_temporary;
    if (*at != NULL)
        *at = file->next_temporary;
    file->temporary[0] = '\0';
}

static int temporary_make(struct file *file)
{
    int result = 0;
    pthread_mutex_lock(&temporaries_lock);
    file->fd = mkostemp(file->temporary, O_CLOEXEC);
    if (file->fd < 0) {
        result = bmi_status_of(errno);
        file->temporary[0] = '\0';
    } else {
        file->next_temporary = temporaries;
        temporaries = file;
    }
    pthread_mutex_unlock(&temporaries_lock);
    return result;
}

void temporaries_remove(void)
{
    pthread_mutex_lock(&temporaries_lock); /* and never releases it */
    for (struct file *file = temporaries; file != NULL; file = file->next_temporary)
        unlink(file->temporary);
}

static int temporary_open(struct file *file)
{
    const char *slash = strrchr(file->local, '/');
    int folder = slash != NULL ? (int)(slash - file->local) + 1 : 0;
    int length = snprintf(file->temporary, sizeof file->temporary, "%.*s.%.200s.XXXXXX", folder,
                          file->local, file->local + folder);
    if (length < 0 || (size_t)length >= sizeof file->temporary) {
        file->temporary[0] = '\0';
        return -BMI_ENAMETOOLONG;
    }
    int result = temporary_make(file);
    if (result == 0 && ftruncate(file->fd, (off_t)file->meta.size) < 0)
        result = bmi_status_of(errno);
    return result;
}

int file_open(struct file *file)
{
    if (file->fd >= 0)
        return 0;
    if (!file->put)
        return temporary_open(file);
    if (file->stream && strcmp(file->local, "-") == 0)
        file->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    else
        file->fd = open(file->local, O_RDONLY | O_CLOEXEC | (file->follow ? 0 : O_NOFOLLOW));
    return file->fd < 0 ? bmi_status_of(errno) : 0;
}

int file_unchanged(const struct file *file)
{
    struct stat stat;
    struct sfs_meta now = {0};
    if (fstat(file->fd, &stat) < 0)
        return bmi_status_of(errno);
    metadata_of(&now, &stat);
    if ((uint64_t)stat.st_size != file->meta.size || now.mtime_ns != file->meta.mtime_ns)
        return -BMI_EAGAIN;
    char beyond;
    ssize_t more = stat.st_size == 0 ? pread(file->fd, &beyond, 1, 0) : 0;
    return more < 0 ? bmi_status_of(errno) : more > 0 ? -BMI_EOPNOTSUPP : 0;
}

/* As cp -p: if the owner may not be set, tries the group alone, and clears the special bits. */
static int owner_apply(const char *path, const struct sfs_meta *meta, mode_t *mode)
{
    if (fchownat(AT_FDCWD, path, meta->uid, meta->gid, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (errno != EPERM && errno != EINVAL)
        return bmi_status_of(errno);
    *mode &= 0777;
    if (fchownat(AT_FDCWD, path, (uid_t)-1, meta->gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != EPERM &&
        errno != EINVAL)
        return bmi_status_of(errno);
    return 0;
}

int metadata_apply(const char *path, int fd, const struct sfs_meta *meta)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = meta->mtime_ns / 1000000000,
                                 .tv_nsec = meta->mtime_ns % 1000000000}};
    if (times[1].tv_nsec < 0) { /* before 1970 */
        times[1].tv_nsec += 1000000000;
        times[1].tv_sec--;
    }
    mode_t mode = meta->mode;
    int result = owner_apply(path, meta, &mode);
    if (result < 0)
        return result;
    if (meta->kind != SFS_LINK && (fd >= 0 ? fchmod(fd, mode) : chmod(path, mode)) < 0)
        return bmi_status_of(errno);
    if (utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) < 0)
        return bmi_status_of(errno);
    return 0;
}

int file_finish(struct file *file)
{
    int result = metadata_apply(file->temporary, file->fd, &file->meta);
    if (result < 0)
        return result;
    int fd = file->fd;
    file->fd = -1;
    /* a network file system may report a failed write now */
    if (fd >= 0 && close(fd) < 0 && errno != EINTR)
        return bmi_status_of(errno);
    pthread_mutex_lock(&temporaries_lock);
    if (rename(file->temporary, file->local) < 0)
        result = bmi_status_of(errno);
    else
        temporary_forget_locked(file);
    pthread_mutex_unlock(&temporaries_lock);
    return result;
}

void file_undo(struct file *file)
{
    pthread_mutex_lock(&temporaries_lock);
    if (file->temporary[0] != '\0')
        unlink(file->temporary);
    temporary_forget_locked(file);
    pthread_mutex_unlock(&temporaries_lock);
}

void file_close(struct file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}
