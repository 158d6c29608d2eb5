/* SPDX-License-Identifier: BSD-3-Clause
 *
 * verbs.c - what bmi-stripefs is asked to do. Folders, links, and the names of files are dealt with
 * here, one request after another; the files themselves are collected, and moved by transfer.c.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "local.h"

/* ---- paths ----------------------------------------------------------------------------------- */

bool path_good(struct client *client, const char *path)
{
    int result = sfs_path_check(path, strlen(path));
    if (result < 0) {
        snprintf(client->failure, sizeof client->failure, "%s",
                 result == -BMI_ENAMETOOLONG
                     ? "the path is too long"
                     : "no path: it begins with / and has no empty names, \".\", or \"..\"");
        client_complain(client, path, result);
    }
    return result == 0;
}

char *path_join(struct client *client, const char *folder, const char *name)
{
    char *path = NULL;
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    if (asprintf(&path, "%s%s%s", folder, slash, name) < 0)
        client_complain(client, name, -BMI_ENOMEM);
    return path;
}

static char *path_copy(struct client *client, const char *path)
{
    char *copy = strdup(path);
    if (copy == NULL)
        client_complain(client, path, -BMI_ENOMEM);
    return copy;
}

/* The last name of a path, and how long it is without slashes after it. */
static const char *base_find(const char *path, size_t *length)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--)
        ;
    if (begin == end) /* "/" */
        begin = 0;
    *length = end - begin;
    return path + begin;
}

static const char *base_name(char *path)
{
    size_t length;
    size_t begin = (size_t)(base_find(path, &length) - path);
    path[begin + length] = '\0';
    return path + begin;
}

static int base_order(const void *one, const void *other)
{
    size_t lengths[2];
    const char *a = base_find(*(char *const *)one, &lengths[0]);
    const char *b = base_find(*(char *const *)other, &lengths[1]);
    int order = memcmp(a, b, lengths[0] < lengths[1] ? lengths[0] : lengths[1]);
    return order != 0 ? order : (lengths[0] > lengths[1]) - (lengths[0] < lengths[1]);
}

/* Whether each path has another last name, since all go to one folder. Complains if not. */
static bool bases_differ(struct client *client, int count, char **paths)
{
    char **sorted = calloc((size_t)count, sizeof *sorted);
    bool differ = true;
    if (sorted == NULL) {
        client_complain(client, paths[0], -BMI_ENOMEM);
        return false;
    }
    memcpy(sorted, paths, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, base_order);
    for (int i = 1; i < count && differ; i++)
        if (base_order(&sorted[i - 1], &sorted[i]) == 0) {
            snprintf(client->failure, sizeof client->failure, "%.200s has the same last name",
                     sorted[i - 1]);
            client_complain(client, sorted[i], -BMI_EEXIST);
            differ = false;
        }
    free(sorted);
    return differ;
}

/* ---- requests of names ----------------------------------------------------------------------- */

int lookup(struct client *client, const char *path, struct sfs_meta *meta)
{
    struct rpc rpc;
    rpc_make(&rpc, client, path_server(client, path), SFS_LOOKUP, path);
    int result = rpc_call(&rpc);
    if (result == 0 && !rpc.reply.has_meta)
        result = -BMI_EPROTO;
    if (result == 0)
        *meta = rpc.reply.meta;
    else if (result == -BMI_ENOENT)
        snprintf(client->failure, sizeof client->failure, "there is no such file or folder");
    return result;
}

static int commit(struct client *client, const char *path, const struct sfs_meta *meta)
{
    struct rpc rpc;
    rpc_make(&rpc, client, path_server(client, path), SFS_COMMIT, path);
    rpc.request.meta = *meta;
    int result = rpc_call(&rpc);
    if (result == 0 && rpc.reply.has_meta && rpc.reply.meta.kind == SFS_FILE)
        file_drop(client, &rpc.reply.meta);
    return result;
}

static int listing_add(struct listing *listing, const struct sfs_reply *reply)
{
    const uint8_t *at = reply->entries, *end = at + reply->entries_size;
    for (uint32_t i = 0; i < reply->entry_count; i++) {
        if (listing->count == listing->room) {
            size_t room = listing->room != 0 ? listing->room * 2 : 64;
            struct sfs_entry *grown = realloc(listing->entries, room * sizeof *grown);
            if (grown == NULL)
                return -BMI_ENOMEM;
            listing->entries = grown;
            listing->room = room;
        }
        sfs_entry_take(&listing->entries[listing->count++], &at, end);
    }
    return 0;
}

static int entry_order(const void *one, const void *other)
{
    const struct sfs_entry *a = one, *b = other;
    return strcmp(a->name, b->name);
}

/* One server's entries of a folder, page by page. */
static int list_server(struct client *client, int server, const char *path, struct listing *listing,
                       uint8_t *room)
{
    struct rpc rpc;
    char after[SFS_NAME_MAX + 1] = "";
    do {
        rpc_make(&rpc, client, server, SFS_LIST, path);
        rpc.room = room;
        rpc.room_size = SFS_REPLY_MAX;
        rpc.request.after_size = (uint16_t)strlen(after);
        strcpy(rpc.request.after, after);
        int result = rpc_call(&rpc);
        if (result == 0)
            result = listing_add(listing, &rpc.reply);
        if (result < 0)
            return result;
        if (rpc.reply.entry_count > 0)
            strcpy(after, listing->entries[listing->count - 1].name);
    } while (rpc.reply.more && rpc.reply.entry_count > 0);
    return 0;
}

int list(struct client *client, const char *path, struct listing *listing)
{
    uint8_t *room = malloc(SFS_REPLY_MAX);
    int result = room == NULL ? -BMI_ENOMEM : 0;
    *listing = (struct listing){0};
    for (int server = 0; server < client->count && result == 0; server++)
        result = list_server(client, server, path, listing, room);
    free(room);
    if (listing->count > 0)
        qsort(listing->entries, listing->count, sizeof *listing->entries, entry_order);
    return result;
}

/* ---- put ------------------------------------------------------------------------------------- */

static void put_path(struct transfers *transfers, const char *local, const char *remote);

static void put_file(struct transfers *transfers, const char *local, const char *remote,
                     const struct stat *stat)
{
    struct file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        client_complain(transfers->client, local, -BMI_ENOMEM);
        return;
    }
    *file = (struct file){.client = transfers->client,
                          .remote = strdup(remote),
                          .local = strdup(local),
                          .put = true,
                          .fd = -1};
    file->meta.kind = SFS_FILE;
    file->meta.size = (uint64_t)stat->st_size;
    file->meta.stripe = transfers->client->stripe;
    metadata_of(&file->meta, stat);
    int result =
        file->remote != NULL && file->local != NULL ? transfers_add(transfers, file) : -BMI_ENOMEM;
    if (result < 0)
        client_complain(transfers->client, local, result);
}

static int put_link(struct client *client, const char *local, const char *remote,
                    const struct stat *stat)
{
    struct sfs_meta meta = {.kind = SFS_LINK};
    metadata_of(&meta, stat);
    ssize_t size = readlink(local, meta.target, SFS_TARGET_MAX);
    if (size <= 0 || size == SFS_TARGET_MAX)
        return size < 0 ? bmi_status_of(errno) : -BMI_ENAMETOOLONG;
    meta.target_size = (uint16_t)size;
    return commit(client, remote, &meta);
}

/* NULL: there are no more, or errno says why they are not known. */
static struct dirent *entry_next(DIR *folder)
{
    errno = 0;
    return readdir(folder);
}

static void put_folder(struct transfers *transfers, const char *local, const char *remote,
                       const struct stat *stat)
{
    struct client *client = transfers->client;
    struct sfs_meta meta = {.kind = SFS_FOLDER};
    metadata_of(&meta, stat);
    int result = commit(client, remote, &meta);
    DIR *folder = result == 0 ? opendir(local) : NULL;
    if (folder == NULL) {
        client_complain(client, local, result < 0 ? result : bmi_status_of(errno));
        return;
    }
    for (struct dirent *entry; (entry = entry_next(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *below = path_join(client, local, entry->d_name);
        char *path = path_join(client, remote, entry->d_name);
        if (below != NULL && path != NULL)
            put_path(transfers, below, path);
        free(below);
        free(path);
    }
    if (errno != 0)
        client_complain(client, local, bmi_status_of(errno));
    closedir(folder);
}

static void put_path(struct transfers *transfers, const char *local, const char *remote)
{
    struct client *client = transfers->client;
    struct stat stat;
    int result = 0;
    if (!path_good(client, remote))
        return;
    if (lstat(local, &stat) < 0)
        result = bmi_status_of(errno);
    else if (S_ISREG(stat.st_mode))
        put_file(transfers, local, remote, &stat);
    else if (S_ISLNK(stat.st_mode))
        result = put_link(client, local, remote, &stat);
    else if (S_ISDIR(stat.st_mode) && client->recursive)
        put_folder(transfers, local, remote, &stat);
    else if (S_ISDIR(stat.st_mode))
        result = -BMI_EISDIR;
    else
        result = -BMI_EOPNOTSUPP; /* a device, a socket, a pipe */
    if (result < 0)
        client_complain(client, local, result);
}

int verb_put(struct client *client, int count, char **arguments)
{
    struct transfers transfers = {.client = client};
    struct sfs_meta meta = {0};
    char *remote = arguments[count - 1];
    if (!path_good(client, remote))
        return 1;
    int result = lookup(client, remote, &meta);
    bool folder = result == 0 && meta.kind == SFS_FOLDER;
    if (result < 0 && result != -BMI_ENOENT) {
        client_complain(client, remote, result);
        return 1;
    }
    client->failure[0] = '\0';
    if (count > 2 && !folder) {
        client_complain(client, remote, -BMI_ENOTDIR);
        return 1;
    }
    if (!folder) { /* what it is to be in must be there */
        size_t name = sfs_path_name(remote, strlen(remote));
        char parent[SFS_PATH_MAX + 1];
        snprintf(parent, sizeof parent, "%.*s", (int)(name > 1 ? name - 1 : 1), remote);
        result = lookup(client, parent, &meta);
        if (result == 0 && meta.kind != SFS_FOLDER)
            result = -BMI_ENOTDIR;
        if (result < 0) {
            client_complain(client, parent, result);
            return 1;
        }
    }
    if (!bases_differ(client, count - 1, arguments))
        return 1;
    for (int i = 0; i < count - 1; i++) {
        char *path =
            folder ? path_join(client, remote, base_name(arguments[i])) : path_copy(client, remote);
        if (path != NULL)
            put_path(&transfers, arguments[i], path);
        free(path);
    }
    transfers_run(&transfers);
    return client->failures > 0;
}

/* ---- get ------------------------------------------------------------------------------------- */

/* Folders that were made get their mode and time when all that is in them is there; those that are
 * in others before these, whose mode may not let anybody in. */
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

/* Files and links give way to what is got; not folders, nor devices, pipes, and links to them. */
static int place_check(const char *local)
{
    struct stat stat_local;
    if (lstat(local, &stat_local) < 0)
        return errno == ENOENT ? 0 : bmi_status_of(errno);
    if (S_ISDIR(stat_local.st_mode))
        return -BMI_EISDIR;
    if (S_ISLNK(stat_local.st_mode) && stat(local, &stat_local) < 0)
        return 0; /* it leads nowhere */
    return S_ISREG(stat_local.st_mode) || S_ISDIR(stat_local.st_mode) ? 0 : -BMI_EEXIST;
}

static int get_file(struct getting *getting, const char *remote, const char *local,
                    const struct sfs_meta *meta)
{
    int result = place_check(local);
    if (result < 0)
        return result;
    struct file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return -BMI_ENOMEM;
    *file = (struct file){.client = getting->transfers.client,
                          .remote = strdup(remote),
                          .local = strdup(local),
                          .meta = *meta,
                          .fd = -1};
    return file->remote != NULL && file->local != NULL ? transfers_add(&getting->transfers, file)
                                                       : -BMI_ENOMEM;
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

/* A folder that is there will do; a link to one, or anything else, is not what was asked for. */
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
    int result = list(client, remote, &listing);
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
    free(listing.entries);
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
    if (result < 0) /* a server's failure, or one of this host */
        client_complain(client, client->failure[0] != '\0' ? remote : local, result);
}

int verb_get(struct client *client, int count, char **arguments)
{
    struct getting getting = {.transfers = {.client = client}};
    struct sfs_meta meta;
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
    for (int i = 0; i < count - 1; i++) {
        char *remote = arguments[i];
        if (!path_good(client, remote))
            continue;
        int result = lookup(client, remote, &meta);
        const char *name = strcmp(remote, "/") == 0 ? "." : base_name(remote);
        char *to = folder ? path_join(client, local, name) : path_copy(client, local);
        if (result < 0)
            client_complain(client, remote, result);
        else if (to != NULL)
            get_path(&getting, remote, to, &meta);
        free(to);
    }
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

/* ---- the others ------------------------------------------------------------------------------ */

int verb_cat(struct client *client, int count, char **arguments)
{
    struct sfs_meta meta;
    for (int i = 0; i < count; i++) {
        if (!path_good(client, arguments[i]))
            continue;
        int result = lookup(client, arguments[i], &meta);
        if (result == 0 && meta.kind != SFS_FILE)
            result = meta.kind == SFS_FOLDER ? -BMI_EISDIR : -BMI_EINVAL;
        if (result == 0)
            result = file_cat(client, &meta);
        if (result < 0)
            client_complain(client, arguments[i], result);
    }
    return client->failures > 0;
}

/* A name of others' making: to a terminal without what that would take for orders. */
static void name_print(const char *name)
{
    static int terminal = -1;
    if (terminal < 0)
        terminal = isatty(STDOUT_FILENO);
    for (; *name != '\0'; name++) {
        unsigned char c = (unsigned char)*name;
        putchar(terminal && (c < 0x20 || c == 0x7f) ? '?' : c);
    }
}

static void meta_print(const char *name, const struct sfs_meta *meta)
{
    static const char kinds[] = "?-dl";
    char text[64], mode[11] = "?rwxrwxrwx";
    time_t seconds = (time_t)(meta->mtime_ns / 1000000000);
    struct tm local;
    mode[0] = kinds[meta->kind];
    for (int i = 0; i < 9; i++)
        if (!(meta->mode >> (8 - i) & 1))
            mode[1 + i] = '-';
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&seconds, &local));
    printf("%s %5u %5u %12llu %s ", mode, meta->uid, meta->gid, (unsigned long long)meta->size,
           text);
    name_print(name);
    if (meta->kind == SFS_LINK) {
        printf(" -> ");
        name_print(meta->target);
    }
    putchar('\n');
}

static void ls_folder(struct client *client, const char *path)
{
    struct listing listing;
    int result = list(client, path, &listing);
    if (result < 0)
        client_complain(client, path, result);
    if (client->recursive)
        name_print(path), printf(":\n");
    for (size_t i = 0; i < listing.count; i++)
        meta_print(listing.entries[i].name, &listing.entries[i].meta);
    for (size_t i = 0; client->recursive && i < listing.count; i++) {
        if (listing.entries[i].meta.kind != SFS_FOLDER)
            continue;
        char *below = path_join(client, path, listing.entries[i].name);
        if (below != NULL)
            ls_folder(client, below);
        free(below);
    }
    free(listing.entries);
}

int verb_ls(struct client *client, int count, char **arguments)
{
    static char root[] = "/";
    char *roots[] = {root};
    struct sfs_meta meta;
    if (count == 0) {
        count = 1;
        arguments = roots;
    }
    for (int i = 0; i < count; i++) {
        if (!path_good(client, arguments[i]))
            continue;
        int result = lookup(client, arguments[i], &meta);
        if (result < 0)
            client_complain(client, arguments[i], result);
        else if (meta.kind == SFS_FOLDER)
            ls_folder(client, arguments[i]);
        else
            meta_print(arguments[i], &meta);
    }
    return client->failures > 0;
}

int verb_stat(struct client *client, int count, char **arguments)
{
    struct sfs_meta meta;
    for (int i = 0; i < count; i++) {
        if (!path_good(client, arguments[i]))
            continue;
        int result = lookup(client, arguments[i], &meta);
        if (result < 0) {
            client_complain(client, arguments[i], result);
            continue;
        }
        meta_print(arguments[i], &meta);
        if (meta.kind != SFS_FILE)
            continue;
        printf("  object %016llx, stripes of %u bytes, on", (unsigned long long)meta.object,
               meta.stripe);
        for (int server = 0; server < client->count; server++)
            if (meta.holders >> server & 1)
                printf(" %s", client->urls[server]);
        printf("%s\n", meta.holders == 0 ? " no server: it has no bytes" : "");
    }
    return client->failures > 0;
}

int verb_df(struct client *client, int count, char **arguments)
{
    struct rpc rpc;
    (void)count;
    (void)arguments;
    printf("%14s %14s %5s  server\n", "MB", "available", "used");
    for (int server = 0; server < client->count; server++) {
        rpc_make(&rpc, client, server, SFS_SPACE, NULL);
        int result = rpc_call(&rpc);
        if (result < 0) {
            client_complain(client, client->urls[server], result);
            continue;
        }
        double total = (double)rpc.reply.total / 1e6, free_mb = (double)rpc.reply.available / 1e6;
        printf("%14.0f %14.0f %4.0f%%  %s\n", total, free_mb,
               total > 0 ? (total - free_mb) / total * 100 : 0, client->urls[server]);
    }
    return client->failures > 0;
}
