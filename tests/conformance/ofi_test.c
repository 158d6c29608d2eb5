/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Conformance over one of libfabric's providers. OFI_SCHEME ("ofi+tcp"), OFI_METHOD and OFI_LISTEN
 * come from the build, or, of the program for RDMA, from the environment. Where the provider has no
 * device all is skipped, with the reason.
 */
#include "conformance.h"

#include <rdma/fabric.h>
#include <stdio.h>
#include <string.h>

#define BAD(rest) OFI_SCHEME rest

/* libfabric looks at the host and for all of its providers at its first call, which takes a tenth
 * of a second: done here, the processes of the cases inherit it. */
static int provider_look(void)
{
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    if (hints == NULL)
        return -1;
    hints->fabric_attr->prov_name = strdup(OFI_PROVIDER);
    int status = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info);
    if (status != 0)
        printf("skipped: libfabric's provider %s: %s\n", OFI_PROVIDER, fi_strerror(-status));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const bad[] = {BAD(":/127.0.0.1"),
                                      BAD("://127.0.0.1:65536"),
                                      BAD("://host:x"),
                                      BAD("://:3334"),
                                      BAD("://[::1:3334"),
                                      BAD("://a b:1"),
                                      NULL};
    static const struct conformance_method method = {
        .name = OFI_METHOD,
        .scheme = OFI_SCHEME,
        .listen = OFI_SCHEME "://" OFI_HOST ":0",
        .host = OFI_HOST,
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES | CONFORMANCE_PORTS,
    };
    if (provider_look() != 0)
        return 77;
    return conformance_main(argc, argv, &method);
}
