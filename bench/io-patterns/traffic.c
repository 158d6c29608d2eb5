/* SPDX-License-Identifier: BSD-3-Clause
 *
 * traffic.c - whether MPI's data went over the networks of this host, lo included.
 */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

uint64_t traffic_carried(void)
{
    char line[512];
    uint64_t sum = 0;
    FILE *file = fopen("/proc/net/dev", "r");
    if (!file)
        die("/proc/net/dev: %s", strerror(errno));
    while (fgets(line, sizeof line, file)) {
        unsigned long long received;
        const char *colon = strchr(line, ':');
        if (colon && sscanf(colon + 1, "%llu", &received) == 1)
            sum += received;
    }
    fclose(file);
    return sum;
}

void traffic_check(const struct options *options, const struct work *work, uint64_t pairs,
                   uint64_t before)
{
    uint64_t size = options->pattern->amount_is_bytes ? 1 : work->size;
    uint64_t carried = traffic_carried() - before;
    if (carried < work->amount * size * pairs)
        die("MPI moved %llu bytes, the networks only %llu: it did not use tcp",
            (unsigned long long)(work->amount * size * pairs), (unsigned long long)carried);
}
