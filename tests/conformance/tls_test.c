/* SPDX-License-Identifier: BSD-3-Clause */
#include "conformance.h"

#include <stddef.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const char *const bad[] = {"tls:/127.0.0.1", "tls://127.0.0.1:65536", "tls://host:x",
                                      "tls://:3334",    "tls://[::1:3334",       NULL};
    static const struct conformance_method method = {
        .name = "bmi_tls",
        .scheme = "tls",
        .listen = "tls://127.0.0.1:0",
        .host = "127.0.0.1",
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES | CONFORMANCE_PORTS | CONFORMANCE_SOCKETS,
    };
    setenv("BMI_TLS_CERTIFICATE", TEST_KEYS "/localhost.pem", 0);
    setenv("BMI_TLS_KEY", TEST_KEYS "/localhost.key", 0);
    setenv("BMI_TLS_AUTHORITIES", TEST_KEYS "/authority.pem", 0);
    return conformance_main(argc, argv, &method);
}
