/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"unix:/path", "unix://",         "unix://name",
                                      "unix://@",   "unix:///folder/", NULL};
    static const struct conformance_method method = {
        .name = "bmi_unix",
        .scheme = "unix",
        .listen = "unix://@",
        .refused = "unix://@bmi-conformance-nobody",
        .host = "127.0.0.1",
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES,
    };
    return conformance_main(argc, argv, &method);
}
