/* SPDX-License-Identifier: BSD-3-Clause
 *
 * get.c - the verb get. This file creates folders and links, and collects files, which transfer.c
 * moves.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"
#include "local.h"

/* Folders get their mode and time after all their contents; inner ones before outer ones, whose
 * mode may forbid to enter them. */
struct made {
    char *local;
    struct sfs_meta meta;
    struct made *next;
};

struct getting {
    struct transfers transfers;
    struct made *made, **end;
};

static void get_path(struct getting *getting, const char *remote, const char *local,
                     const struct sfs_meta *meta);

/* A file or link may be replaced; a folder, device, pipe, or link to one of these two may not. */
static int place_check(const char *local)
{
    struct stat stat_local;
    if (lstat(local, &stat_local) < 0)
        return errno == ENOENT ? 0 : bmi_status_of(errno);
    if (S_ISDIR(stat_local.st_mode))
        return -BMI_EISDIR;
    if (S_ISLNK(stat_local.st_mode) && stat(local, &stat_local) < 0)
        return 0; /* a dangling link */
    return S_ISREG(stat_local.st_mode) || S_ISDIR(stat_local.st_mode) ? 0 : -BMI_EEXIST;
}

static int get_file(struct getting *getting, const char *remote, const char *local,
                    const struct sfs_meta *meta)
{
    int result = place_check(local);
    if (result < 0)
        return result;
    struct file *file = file_make(getting->transfers.client, local, remote);
    if (file == NULL)
        return 0;
    file->meta = *meta;
    transfers_add(&getting->transfers, file);
    return 0;
}

static int get_link(const char *local, const struct sfs_meta *meta)
{
    int result = place_check(local);
    if (result < 0)
        return result;
    if (symlink(meta->target, local) < 0 &&
        (errno != EEXIST || unlink(local) < 0 || symlink(meta->target, local) < 0))
        return bmi_status_of(errno);
    return metadata_apply(local, -1, meta);
}

/* A folder may exist already; a link to one or another kind of file is an error. */
static int folder_make(const char *local)
{
    struct stat stat;
    if (mkdir(local, 0700) == 0)
        return 0;
    if (errno != EEXIST || lstat(local, &stat) < 0)
        return bmi_status_of(errno);
    return S_ISDIR(stat.st_mode) ? 0 : -BMI_ENOTDIR;
}

static int get_folder(struct getting *getting, const char *remote, const char *local,
                      const struct sfs_meta *meta)
{
    struct client *client = getting->transfers.client;
    struct listing listing;
    struct made *made = calloc(1, sizeof *made);
    char *copy = strdup(local);
    int result = list_read(client, &listing, remote);
    if (result == 0 && (made == NULL || copy == NULL))
        result = -BMI_ENOMEM;
    if (result == 0)
        result = folder_make(local);
    for (size_t i = 0; i < listing.count && result == 0; i++) {
        char *below = path_join(client, local, listing.entries[i].name);
        char *path = path_join(client, remote, listing.entries[i].name);
        if (below != NULL && path != NULL)
            get_path(getting, path, below, &listing.entries[i].meta);
        free(below);
        free(path);
    }
    list_free(&listing);
    if (result < 0) {
        free(made);
        free(copy);
        return result;
    }
    *made = (struct made){copy, *meta, NULL};
    *getting->end = made;
    getting->end = &made->next;
    return 0;
}

static void get_path(struct getting *getting, const char *remote, const char *local,
                     const struct sfs_meta *meta)
{
    struct client *client = getting->transfers.client;
    int result;
    if (meta->kind == SFS_FOLDER && !client->recursive) {
        client_complain(client, remote, -BMI_EISDIR);
        return;
    }
    if (meta->kind == SFS_FILE)
        result = get_file(getting, remote, local, meta);
    else if (meta->kind == SFS_LINK)
        result = get_link(local, meta);
    else
        result = get_folder(getting, remote, local, meta);
    if (result < 0) /* an error of a server, or of this host */
        client_complain(client, client->failure[0] != '\0' ? remote : local, result);
}

/* One argument; `folder`: what `local` is. */
static void get_argument(struct getting *getting, char *remote, const char *local, bool folder)
{
    struct client *client = getting->transfers.client;
    struct sfs_meta meta;
    bool slash;
    if (!path_take(client, remote, &slash))
        return;
    int result = lookup_argument(client, remote, slash, &meta);
    size_t end = strlen(local);
    if (result == 0 && meta.kind != SFS_FOLDER && !folder && end > 0 && local[end - 1] == '/') {
        client_complain(client, local, -BMI_ENOTDIR);
        return;
    }
    char *to = !folder                    ? path_copy(client, local)
               : strcmp(remote, "/") == 0 ? path_join(client, local, ".")
                                          : base_join(client, local, remote);
    if (result < 0)
        client_complain(client, remote, result);
    else if (to != NULL)
        get_path(getting, remote, to, &meta);
    free(to);
}

int verb_get(struct client *client, int count, char **arguments)
{
    struct getting getting = {.transfers = {.client = client}};
    struct stat stat_local;
    char *local = arguments[count - 1];
    getting.end = &getting.made;
    bool folder = stat(local, &stat_local) == 0 && S_ISDIR(stat_local.st_mode);
    if (count > 2 && !folder) {
        client_complain(client, local, -BMI_ENOTDIR);
        return 1;
    }
    if (!bases_differ(client, count - 1, arguments))
        return 1;
    for (int i = 0; i < count - 1; i++)
        get_argument(&getting, arguments[i], local, folder);
    transfers_run(&getting.transfers);
    for (struct made *made = getting.made, *next; made != NULL; made = next) {
        int result = metadata_apply(made->local, -1, &made->meta);
        if (result < 0)
            client_complain(client, made->local, result);
        next = made->next;
        free(made->local);
        free(made);
    }
    return client->failures > 0;
}
