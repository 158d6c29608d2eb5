/* SPDX-License-Identifier: BSD-3-Clause distribution.c - the built-in distributions, and queries
 * for any. */
#include <stddef.h>
#include <string.h>

#include "bmi/flow.h"

/* ---- simple stripe --------------------------------------------------------------------------- */

static bmi_size_t stripe_size(const void *parameters)
{
    const struct bmi_flow_stripe *stripe = parameters;
    return stripe != NULL && stripe->stripe_size > 0 ? stripe->stripe_size : BMI_FLOW_STRIPE_SIZE;
}

static bmi_size_t stripe_next_mapped(const void *parameters, uint32_t server, uint32_t servers,
                                     bmi_size_t logical)
{
    bmi_size_t size = stripe_size(parameters), unit = logical / size;
    bmi_size_t ahead = ((bmi_size_t)server - unit % servers + servers) % servers;
    if (ahead == 0)
        return logical;
    return unit + ahead > INT64_MAX / size ? -1 : (unit + ahead) * size;
}

static bmi_size_t stripe_to_physical(const void *parameters, uint32_t server, uint32_t servers,
                                     bmi_size_t logical)
{
    bmi_size_t size = stripe_size(parameters);
    (void)server;
    return logical / size / servers * size + logical % size;
}

static bmi_size_t stripe_to_logical(const void *parameters, uint32_t server, uint32_t servers,
                                    bmi_size_t physical)
{
    bmi_size_t size = stripe_size(parameters), logical;
    if (__builtin_mul_overflow(physical / size, (bmi_size_t)servers, &logical) ||
        __builtin_add_overflow(logical, (bmi_size_t)server, &logical) ||
        __builtin_mul_overflow(logical, size, &logical) ||
        __builtin_add_overflow(logical, physical % size, &logical))
        return INT64_MAX;
    return logical;
}

static bmi_size_t stripe_contiguous(const void *parameters, uint32_t server, uint32_t servers,
                                    bmi_size_t physical)
{
    bmi_size_t size = stripe_size(parameters);
    (void)server;
    return servers == 1 ? INT64_MAX - physical : size - physical % size;
}

static bmi_size_t stripe_file_size(const void *parameters, uint32_t server, uint32_t servers,
                                   bmi_size_t size)
{
    bmi_size_t last = size > 0 ? stripe_to_logical(parameters, server, servers, size - 1) : -1;
    return last == INT64_MAX ? last : last + 1;
}

const struct bmi_flow_distribution bmi_flow_simple_stripe = {
    .name = "simple_stripe",
    .next_mapped = stripe_next_mapped,
    .to_physical = stripe_to_physical,
    .to_logical = stripe_to_logical,
    .contiguous = stripe_contiguous,
    .file_size = stripe_file_size,
};

/* ---- contiguous ------------------------------------------------------------------------------ */

static bmi_size_t contiguous_next_mapped(const void *parameters, uint32_t server, uint32_t servers,
                                         bmi_size_t logical)
{
    (void)parameters, (void)servers;
    return server == 0 ? logical : -1;
}

static bmi_size_t contiguous_same(const void *parameters, uint32_t server, uint32_t servers,
                                  bmi_size_t offset)
{
    (void)parameters, (void)server, (void)servers;
    return offset;
}

static bmi_size_t contiguous_run(const void *parameters, uint32_t server, uint32_t servers,
                                 bmi_size_t physical)
{
    (void)parameters, (void)server, (void)servers;
    return INT64_MAX - physical;
}

static bmi_size_t contiguous_file_size(const void *parameters, uint32_t server, uint32_t servers,
                                       bmi_size_t size)
{
    (void)parameters, (void)servers;
    return server == 0 ? size : 0;
}

const struct bmi_flow_distribution bmi_flow_contiguous = {
    .name = "contiguous",
    .next_mapped = contiguous_next_mapped,
    .to_physical = contiguous_same,
    .to_logical = contiguous_same,
    .contiguous = contiguous_run,
    .file_size = contiguous_file_size,
};

/* ---- questions ------------------------------------------------------------------------------- */

const struct bmi_flow_distribution *bmi_flow_distribution_find(const char *name)
{
    static const struct bmi_flow_distribution *const all[] = {&bmi_flow_simple_stripe,
                                                              &bmi_flow_contiguous};
    for (size_t i = 0; name != NULL && i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

bmi_size_t bmi_flow_file_size(const struct bmi_flow_distribution *distribution,
                              const void *parameters, uint32_t servers, const bmi_size_t *sizes)
{
    if (distribution == NULL || distribution->file_size == NULL || servers == 0 || sizes == NULL)
        return -BMI_EINVAL;
    bmi_size_t most = 0;
    for (uint32_t server = 0; server < servers; server++) {
        if (sizes[server] < 0)
            return -BMI_EINVAL;
        bmi_size_t size = distribution->file_size(parameters, server, servers, sizes[server]);
        most = size > most ? size : most;
    }
    return most;
}
