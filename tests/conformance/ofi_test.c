/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Conformance over one of libfabric's providers. OFI_SCHEME ("ofi+tcp"), OFI_METHOD and OFI_HOST
 * come from the build; if OFI_HOST is empty (the program for RDMA) the address of the RDMA device's
 * network interface comes from the environment. Without a device for the provider all is skipped,
 * with the reason. With OFI_CALLED_BEFORE=1 the program calls libfabric before the library does,
 * which then cannot change its settings.
 */
#include "conformance.h"

#include <rdma/fabric.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi.h"

#define BAD(rest) OFI_SCHEME rest

/* Makes libfabric read its settings, as a program that uses it directly. */
static void libfabric_call(void)
{
    struct fi_param *parameters = NULL;
    int count = 0;
    if (fi_getparams(&parameters, &count) == 0)
        fi_freeparams(parameters);
}

/* The first call of libfabric examines the host and all providers, which takes a tenth of a second:
 * called here, the processes of the cases inherit the result. Not for a provider that opens a
 * device: the processes would share it, and its queues outlive a killed process. */
static int provider_look(void)
{
    struct bmi_method_choice choice = {.reason = "no such method"};
    struct bmi_method_info info;
    int index = 0;
    if (getenv("OFI_CALLED_BEFORE") != NULL)
        libfabric_call();
    while (bmi_method_next(index, &info) == 0 && strcmp(info.name, OFI_METHOD) != 0)
        index++;
    int status = bmi_method_choose(index, &choice);
    if (status != 0)
        printf("skipped: %s\n", choice.reason);
    return status;
}

static int provider_look_elsewhere(void)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        status = provider_look() != 0;
        fflush(NULL);
        _exit(status);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return -1;
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
    static char listen[128];
    static struct conformance_method method = {
        .name = OFI_METHOD,
        .scheme = OFI_SCHEME,
        .listen = listen,
        .host = OFI_HOST,
        .bad_addresses = bad,
        .features = CONFORMANCE_PROCESSES | CONFORMANCE_PORTS,
    };
    if (strcmp(OFI_SCHEME, "ofi+shm") == 0)
        method.features |= CONFORMANCE_ALONE;
    bool remote = method.host[0] == '\0';
    if (remote)
        method.host = getenv("OFI_HOST");
    if (!method.host) {
        puts("skipped: OFI_HOST is not set, the address of an RDMA device's network interface");
        return 77;
    }
    snprintf(listen, sizeof listen, "%s://%s:0", OFI_SCHEME, method.host);
    if ((remote ? provider_look_elsewhere() : provider_look()) != 0)
        return 77;
    return conformance_main(argc, argv, &method);
}
