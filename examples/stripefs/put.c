/* SPDX-License-Identifier: BSD-3-Clause
 *
 * put.c - the verb put. It walks a tree level by level: several machines create the folders of a
 * level at once, and folders that could not be created are not entered. It collects files and
 * links, and transfer.c moves them at the end.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "local.h"

/* A folder to enter after its level was created. */
struct folder {
    char *local, *remote;
    bool failed;
    struct folder *next;
};

struct putting {
    struct client *client;
    struct transfers files, folders; /* files and links; folders of this level */
    struct folder *level, **end;
};

/* Extended attributes and access control lists are not kept; a warning names the first file with
 * some. SELinux labels do not count, since each file has one. */
static void attributes_check(struct client *client, const char *local)
{
    char names[4096];
    if (client->attributes_missed)
        return;
    ssize_t size = llistxattr(local, names, sizeof names);
    bool some = size < 0 && errno == ERANGE;
    for (const char *name = names; size > 0 && name < names + size; name += strlen(name) + 1)
        some = some || strcmp(name, "security.selinux") != 0;
    if (!some)
        return;
    client->attributes_missed = true;
    fprintf(stderr, "bmi-stripefs: ");
    sfs_name_print(stderr, local);
    fprintf(stderr, ": extended attributes and access control lists are not kept, of this file and"
                    " others\n");
}

/* ---- one file, link, or folder --------------------------------------------------------------- */

static struct file *put_make(struct client *client, const char *local, const char *remote,
                             const struct stat *stat)
{
    struct file *file = file_make(client, local, remote);
    if (file == NULL)
        return NULL;
    file->put = true;
    metadata_of(&file->meta, stat);
    return file;
}

static void put_file(struct putting *putting, const char *local, const char *remote,
                     const struct stat *stat)
{
    struct file *file = put_make(putting->client, local, remote, stat);
    if (file == NULL)
        return;
    file->meta.kind = SFS_FILE;
    file->meta.size = (uint64_t)stat->st_size;
    file->meta.stripe = putting->client->stripe;
    file->follow = !putting->client->recursive;
    transfers_add(&putting->files, file);
}

/* Puts a pipe, a device, or standard input. The metadata are those of a new file. */
static void put_stream(struct putting *putting, const char *local, const char *remote)
{
    struct stat stat = {.st_uid = geteuid(), .st_gid = getegid()};
    mode_t mask = umask(0);
    umask(mask);
    stat.st_mode = 0666 & ~mask;
    clock_gettime(CLOCK_REALTIME, &stat.st_mtim);
    struct file *file = put_make(putting->client, local, remote, &stat);
    if (file == NULL)
        return;
    file->meta.kind = SFS_FILE;
    file->meta.stripe = putting->client->stripe;
    file->follow = file->stream = true;
    transfers_add(&putting->files, file);
}

static int put_link(struct putting *putting, const char *local, const char *remote,
                    const struct stat *stat)
{
    char target[SFS_TARGET_MAX + 2];
    ssize_t size = readlink(local, target, sizeof target - 1);
    if (size <= 0 || size > SFS_TARGET_MAX)
        return size < 0 ? bmi_status_of(errno) : -BMI_ENAMETOOLONG;
    target[size] = '\0';
    struct file *file = put_make(putting->client, local, remote, stat);
    if (file == NULL)
        return 0;
    file->meta.kind = SFS_LINK;
    file->target = path_copy(putting->client, target);
    file->meta.target = file->target;
    file->meta.target_size = (uint16_t)size;
    if (file->target != NULL)
        transfers_add(&putting->files, file);
    else
        file_free(file);
    return 0;
}

static void put_folder(struct putting *putting, const char *local, const char *remote,
                       const struct stat *stat)
{
    struct folder *folder = calloc(1, sizeof *folder);
    struct file *file = put_make(putting->client, local, remote, stat);
    char *copies[] = {strdup(local), strdup(remote)};
    if (folder == NULL || file == NULL || copies[0] == NULL || copies[1] == NULL) {
        client_complain(putting->client, local, -BMI_ENOMEM);
        free(copies[0]);
        free(copies[1]);
        free(folder);
        file_free(file);
        return;
    }
    *folder = (struct folder){.local = copies[0], .remote = copies[1]};
    *putting->end = folder;
    putting->end = &folder->next;
    file->meta.kind = SFS_FOLDER;
    file->failed = &folder->failed;
    if (strcmp(remote, "/") != 0)
        transfers_add(&putting->folders, file);
    else
        file_free(file); /* the root always exists */
}

/* Without -r a link is followed and a pipe or device read, as cp does. */
static void put_path(struct putting *putting, const char *local, const char *remote)
{
    struct client *client = putting->client;
    bool recursive = client->recursive;
    struct stat status;
    int result = 0;
    if (!path_good(client, remote))
        return;
    if ((recursive ? lstat(local, &status) : stat(local, &status)) < 0) {
        client_complain(client, local, bmi_status_of(errno));
        return;
    }
    attributes_check(client, local);
    if (S_ISREG(status.st_mode))
        put_file(putting, local, remote, &status);
    else if (S_ISLNK(status.st_mode))
        result = put_link(putting, local, remote, &status);
    else if (S_ISDIR(status.st_mode) && recursive)
        put_folder(putting, local, remote, &status);
    else if (S_ISDIR(status.st_mode))
        result = -BMI_EISDIR;
    else if (!recursive && !S_ISSOCK(status.st_mode))
        put_stream(putting, local, remote);
    else
        result = -BMI_EOPNOTSUPP; /* a socket; with -r also a device or pipe */
    if (result < 0)
        client_complain(client, local, result);
}

/* ---- levels ---------------------------------------------------------------------------------- */

/* NULL: the end, or an error in errno. */
static struct dirent *entry_next(DIR *folder)
{
    errno = 0;
    return readdir(folder);
}

static void folder_enter(struct putting *putting, const struct folder *folder)
{
    struct client *client = putting->client;
    DIR *entries = opendir(folder->local);
    if (entries == NULL) {
        client_complain(client, folder->local, bmi_status_of(errno));
        return;
    }
    for (struct dirent *entry; (entry = entry_next(entries)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *below = path_join(client, folder->local, entry->d_name);
        char *path = path_join(client, folder->remote, entry->d_name);
        if (below != NULL && path != NULL)
            put_path(putting, below, path);
        free(below);
        free(path);
    }
    if (errno != 0)
        client_complain(client, folder->local, bmi_status_of(errno));
    closedir(entries);
}

static void level_put(struct putting *putting)
{
    struct folder *level = putting->level;
    putting->level = NULL;
    putting->end = &putting->level;
    if (putting->folders.count > 0)
        transfers_run(&putting->folders);
    while (level != NULL) {
        struct folder *folder = level;
        level = folder->next;
        if (!folder->failed)
            folder_enter(putting, folder);
        free(folder->local);
        free(folder->remote);
        free(folder);
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* The destination folder of the file must exist. */
static int parent_check(struct client *client, const char *remote)
{
    struct sfs_meta meta;
    size_t name = sfs_path_name(remote, strlen(remote));
    char parent[SFS_PATH_MAX + 1];
    snprintf(parent, sizeof parent, "%.*s", (int)(name > 1 ? name - 1 : 1), remote);
    int result = lookup_argument(client, parent, true, &meta);
    if (result < 0)
        client_complain(client, parent, result);
    return result;
}

/* Whether `local` can be put under a name with a trailing slash: a folder can. */
static bool is_folder(const struct client *client, const char *local)
{
    struct stat status;
    return client->recursive && stat(local, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Returns 0: the last argument is an existing folder; 1: it is the new name of the only other
 * argument; <0: an error, after the complaint. */
static int destination_check(struct client *client, int count, char **arguments)
{
    struct sfs_meta meta = {0};
    char *remote = arguments[count - 1];
    bool slash;
    if (!path_take(client, remote, &slash))
        return -BMI_EINVAL;
    int result = lookup_argument(client, remote, slash, &meta);
    if (result == 0 && meta.kind == SFS_FOLDER)
        return 0;
    bool absent = result == -BMI_ENOENT;
    if (absent) {
        client->failure[0] = '\0';
        result = slash && !is_folder(client, arguments[0]) ? -BMI_ENOTDIR : 0;
    }
    if (result == 0 && count > 2)
        result = -BMI_ENOTDIR;
    if (result < 0) {
        client_complain(client, remote, result);
        return result;
    }
    result = parent_check(client, remote);
    return result < 0 ? result : 1;
}

static void put_argument(struct putting *putting, const char *local, const char *remote,
                         bool folder)
{
    struct client *client = putting->client;
    size_t length;
    const char *base = base_find(local, &length);
    if (strcmp(local, "-") == 0 && folder) {
        snprintf(client->failure, sizeof client->failure,
                 "standard input needs a name, not a folder");
        client_complain(client, remote, -BMI_EISDIR);
        return;
    }
    bool contents = length == 1 && *base == '.'; /* the contents of a folder, without its name */
    char *path = folder && !contents ? base_join(client, remote, local) : path_copy(client, remote);
    if (path != NULL && strcmp(local, "-") == 0)
        put_stream(putting, local, path);
    else if (path != NULL)
        put_path(putting, local, path);
    free(path);
}

int verb_put(struct client *client, int count, char **arguments)
{
    struct putting putting = {.client = client,
                              .files = {.client = client},
                              .folders = {.client = client}};
    int destination = destination_check(client, count, arguments);
    putting.end = &putting.level;
    if (destination < 0 || !bases_differ(client, count - 1, arguments))
        return 1;
    for (int i = 0; i < count - 1; i++)
        put_argument(&putting, arguments[i], arguments[count - 1], destination == 0);
    while (putting.level != NULL)
        level_put(&putting);
    transfers_run(&putting.files);
    return client->failures > 0;
}
