/* SPDX-License-Identifier: BSD-3-Clause
 *
 * path.c - remote and local paths as arguments, and the look-up of remote ones.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

bool path_good(struct client *client, const char *path)
{
    int result = sfs_path_check(path, strlen(path));
    if (result < 0) {
        snprintf(client->failure, sizeof client->failure, "%s",
                 result == -BMI_ENAMETOOLONG
                     ? "the path is too long"
                     : "no path: it begins with / and has no \".\" or \"..\"");
        client_complain(client, path, result);
    }
    return result == 0;
}

bool path_take(struct client *client, char *path, bool *folder)
{
    char *to = path;
    for (const char *from = path; *from != '\0'; from++)
        if (*from != '/' || to == path || to[-1] != '/')
            *to++ = *from;
    *folder = to > path + 1 && to[-1] == '/';
    *(*folder ? to - 1 : to) = '\0';
    return path_good(client, path);
}

char *path_join(struct client *client, const char *folder, const char *name)
{
    char *path = NULL;
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    if (asprintf(&path, "%s%s%s", folder, slash, name) < 0)
        client_complain(client, name, -BMI_ENOMEM);
    return path;
}

char *path_copy(struct client *client, const char *path)
{
    char *copy = strdup(path);
    if (copy == NULL)
        client_complain(client, path, -BMI_ENOMEM);
    return copy;
}

/* ---- last names ------------------------------------------------------------------------------ */

const char *base_find(const char *path, size_t *length)
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

char *base_join(struct client *client, const char *folder, const char *path)
{
    size_t length;
    const char *base = base_find(path, &length);
    char name[4096];
    snprintf(name, sizeof name, "%.*s", (int)length, base);
    return path_join(client, folder, name);
}

static int base_order(const void *one, const void *other)
{
    size_t lengths[2];
    const char *a = base_find(*(char *const *)one, &lengths[0]);
    const char *b = base_find(*(char *const *)other, &lengths[1]);
    int order = memcmp(a, b, lengths[0] < lengths[1] ? lengths[0] : lengths[1]);
    return order != 0 ? order : (lengths[0] > lengths[1]) - (lengths[0] < lengths[1]);
}

bool bases_differ(struct client *client, int count, char **paths)
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

/* ---- look-up --------------------------------------------------------------------------------- */

int lookup(struct client *client, const char *path, struct sfs_meta *meta)
{
    struct rpc rpc;
    rpc_make(&rpc, client, path_server(client, path), SFS_LOOKUP, path);
    int result = rpc_call(&rpc);
    if (result == -BMI_ENOENT)
        snprintf(client->failure, sizeof client->failure, "there is no such file or folder");
    if (result < 0)
        return result;
    *meta = rpc.reply.meta;
    return 0;
}

int lookup_argument(struct client *client, const char *path, bool folder, struct sfs_meta *meta)
{
    int result = lookup(client, path, meta);
    return result == 0 && folder && meta->kind != SFS_FOLDER ? -BMI_ENOTDIR : result;
}
