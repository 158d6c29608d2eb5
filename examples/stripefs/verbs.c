/* SPDX-License-Identifier: BSD-3-Clause
 *
 * verbs.c - the verbs that only show: cat, ls, stat, df.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

int verb_cat(struct client *client, int count, char **arguments)
{
    struct sfs_meta meta;
    bool slash;
    for (int i = 0; i < count; i++) {
        if (!path_take(client, arguments[i], &slash))
            continue;
        int result = lookup_argument(client, arguments[i], slash, &meta);
        if (result == 0 && meta.kind != SFS_FILE)
            result = meta.kind == SFS_FOLDER ? -BMI_EISDIR : -BMI_EINVAL;
        if (result == 0)
            result = file_cat(client, &meta);
        if (result < 0)
            client_complain(client, arguments[i], result);
    }
    return client->failures > 0;
}

static void meta_print(const char *name, const struct sfs_meta *meta)
{
    static const char kinds[] = "?-dl";
    char text[64], mode[11] = "?rwxrwxrwx";
    static const struct {
        int at;
        uint32_t special, execute;
        char with, without;
    } bits[] = {{3, 04000, 0100, 's', 'S'}, {6, 02000, 010, 's', 'S'}, {9, 01000, 01, 't', 'T'}};
    time_t seconds = (time_t)(meta->mtime_ns / 1000000000);
    struct tm local;
    mode[0] = kinds[meta->kind];
    for (int i = 0; i < 9; i++)
        if (!(meta->mode >> (8 - i) & 1))
            mode[1 + i] = '-';
    for (int i = 0; i < 3; i++)
        if (meta->mode & bits[i].special)
            mode[bits[i].at] = meta->mode & bits[i].execute ? bits[i].with : bits[i].without;
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&seconds, &local));
    printf("%s %5u %5u %12llu %s ", mode, meta->uid, meta->gid, (unsigned long long)meta->size,
           text);
    sfs_name_print(stdout, name);
    if (meta->kind == SFS_LINK) {
        printf(" -> ");
        sfs_name_print(stdout, meta->target);
    }
    putchar('\n');
}

static void ls_folder(struct client *client, const char *path)
{
    struct listing listing;
    int result = list_read(client, &listing, path);
    if (result < 0)
        client_complain(client, path, result);
    if (client->recursive) {
        sfs_name_print(stdout, path);
        printf(":\n");
    }
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
    list_free(&listing);
}

int verb_ls(struct client *client, int count, char **arguments)
{
    static char root[] = "/";
    char *roots[] = {root};
    struct sfs_meta meta;
    bool slash;
    if (count == 0) {
        count = 1;
        arguments = roots;
    }
    for (int i = 0; i < count; i++) {
        if (!path_take(client, arguments[i], &slash))
            continue;
        int result = lookup_argument(client, arguments[i], slash, &meta);
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
    bool slash;
    for (int i = 0; i < count; i++) {
        if (!path_take(client, arguments[i], &slash))
            continue;
        int result = lookup_argument(client, arguments[i], slash, &meta);
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
