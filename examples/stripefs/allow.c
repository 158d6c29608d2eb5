/* SPDX-License-Identifier: BSD-3-Clause
 *
 * allow.c - which clients are served: those whose proved identity fits a pattern of --allow. The
 * identity belongs to the connection that brought the request, since a server looks up no address.
 * Each request is checked: a connection keeps its identity, but the check costs little beside a
 * request, and needs no memory for each connection. Runs in the machines of the job context.
 */
#include <fnmatch.h>
#include <string.h>
#include <time.h>

#include "server.h"

enum { LINES_MOST = 100 }; /* a second, as in the library's log: clients can cause them */

/* Whether the peers of a URL's method prove an identity. Unknown schemes are left to
 * BMI_initialize, which refuses them. */
static bool scheme_proves(const char *url)
{
    struct bmi_method_info info;
    size_t size = strcspn(url, ":");
    for (int i = 0; bmi_method_next(i, &info) == 0; i++)
        if (strlen(info.schemes) == size && strncmp(info.schemes, url, size) == 0)
            return info.proves_identity;
    return false;
}

bool allow_list_usable(const struct allow_list *allowed, const char *listen)
{
    for (const char *at = listen; allowed->count > 0 && at != NULL;) {
        at += strspn(at, " ,");
        if (*at != '\0' && !scheme_proves(at)) {
            fprintf(stderr,
                    "bmi-stripefsd: --allow: clients at %.*s prove no identity; listen on tls:// "
                    "only\n",
                    (int)strcspn(at, ","), at);
            return false;
        }
        at = strchr(at, ',');
    }
    return true;
}

static void refused_print(struct allow_list *allowed, const struct bmi_peer_identity *identity,
                          const char *host)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((uint64_t)now.tv_sec != allowed->second)
        allowed->lines = 0;
    allowed->second = (uint64_t)now.tv_sec;
    if (allowed->lines++ < LINES_MOST)
        fprintf(stderr, "bmi-stripefsd: refused %s from %s: no --allow names it\n", identity->name,
                host != NULL ? host : "?");
}

int allow_list_check(struct allow_list *allowed, BMI_addr_t client)
{
    struct bmi_peer_identity identity;
    if (allowed->count == 0)
        return 0;
    int result = BMI_get_info(client, BMI_PEER_IDENTITY, &identity);
    if (result < 0) /* it has disconnected */
        return -BMI_EACCES;
    for (int i = 0; i < allowed->count; i++)
        if (fnmatch(allowed->patterns[i], identity.name, FNM_NOESCAPE) == 0)
            return 0;
    refused_print(allowed, &identity, BMI_addr_rev_lookup_unexpected(client));
    return -BMI_EACCES;
}
