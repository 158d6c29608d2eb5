/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"loop:/x", "loop", NULL};
    static const struct conformance_method method = {
        .name = "bmi_loop",
        .scheme = "loop",
        .listen = "loop://conformance",
        .refused = "loop://nobody",
        .bad_addresses = bad,
    };
    return conformance_main(argc, argv, &method);
}
