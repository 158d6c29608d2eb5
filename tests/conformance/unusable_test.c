/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unusable_test.c - a method whose processes cannot start: a case fails then, and does not pass
 * because it has checked nothing. Exits with 0 if it has failed.
 */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {NULL};
    static const struct conformance_method method = {
        .name = "bmi_tcp",
        .scheme = "tcp",
        .listen = "tcp://127.0.0.1:65536",
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES,
    };
    return conformance_main(argc, argv, &method) == 1 ? 0 : 1;
}
