/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"tcp:/127.0.0.1",
                                      "tcp://127.0.0.1:65536",
                                      "tcp://host:x",
                                      "tcp://:3334",
                                      "tcp://[::1:3334",
                                      "tcp://a b:1",
                                      NULL};
    static const struct conformance_method method = {
        .name = "bmi_tcp",
        .scheme = "tcp",
        .listen = "tcp://127.0.0.1:0",
        .host = "127.0.0.1",
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES | CONFORMANCE_PORTS | CONFORMANCE_SOCKETS,
    };
    return conformance_main(argc, argv, &method);
}
