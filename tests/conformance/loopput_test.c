/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"loopput:/x", "loopput", NULL};
    static const struct conformance_method method = {
        .name = "bmi_loopput",
        .scheme = "loopput",
        .listen = "loopput://conformance",
        .refused = "loopput://nobody",
        .bad_addresses = bad,
    };
    return conformance_main(argc, argv, &method);
}
