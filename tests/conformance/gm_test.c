/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {
        "gm:/127.0.0.1",  "gm://127.0.0.1:65536", "gm://host:x", "gm://:3334",
        "gm://[::1:3334", "gm://a b:1",           NULL};
    static const struct conformance_method method = {
        .name = "bmi_gm",
        .scheme = "gm",
        .listen = "gm://127.0.0.1:0",
        .refused = "gm://nobody",
        .host = "127.0.0.1",
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES,
    };
    return conformance_main(argc, argv, &method);
}
