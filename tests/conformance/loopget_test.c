/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"loopget:/x", "loopget", NULL};
    static const struct conformance_method method = {
        .name = "bmi_loopget",
        .scheme = "loopget",
        .listen = "loopget://conformance",
        .refused = "loopget://nobody",
        .bad_addresses = bad,
    };
    return conformance_main(argc, argv, &method);
}
