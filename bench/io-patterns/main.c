/* SPDX-License-Identifier: BSD-3-Clause
 *
 * main.c - bmi-bench: the coordinator, or one of the processes that it starts.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include "coordinator.h"

#include <string.h>

static void server_main(const struct options *options)
{
    bool raw = options->control ? (BIT(options->contender) & BITS_RAW) != 0
                                : options->listen && strncmp(options->listen, "raw://", 6) == 0;
    if (raw)
        raw_server_main(options);
    else
        bmi_server_main(options);
}

static void client_main(const struct options *options)
{
    if (BIT(options->contender) & BITS_RAW)
        raw_client_main(options);
    else
        bmi_client_main(options);
}

int main(int argc, char **argv)
{
    struct options options;
    options_parse(&options, argc, argv);
    layout_segment_set(options.segment);
    if (options.control)
        name_set("bmi-bench: %s %s %d", contender_name(options.contender),
                 options.role == ROLE_SERVER ? "server" : "client", options.number);
    if (options.role == ROLE_SERVER)
        server_main(&options);
    else if (options.control)
        client_main(&options);
    else
        coordinator_run(&options);
    options_free(&options);
    output_flush();
    return 0;
}
