/* SPDX-License-Identifier: BSD-3-Clause
 *
 * depot.h - the messages between depot_client and depot_server: docs/request-reply.md. */
#include <bmi/job.h>

enum { DEPOT_PUT, DEPOT_GET, DEPOT_MAX = 64 << 20, DEPOT_MS = 60000 };

struct depot_request { /* unexpected */
    int32_t operation;
    bmi_msg_tag_t tag; /* of the replies and the bytes */
    bmi_size_t size;   /* put */
    uint64_t number;   /* get */
};
struct depot_reply {
    bmi_error_code_t error;
    int32_t unused;
    bmi_size_t size;
    uint64_t number;
};

/* A flow of `size` bytes from one end to the other. */
static inline struct bmi_flow_description depot_flow(struct bmi_flow_endpoint from,
                                                     struct bmi_flow_endpoint to,
                                                     const struct bmi_flow_extent *all)
{
    struct bmi_flow_description what = {.source = from, .destination = to};
    what.extents = all;
    what.extent_count = 1;
    what.flags = BMI_FLOW_DRAIN;
    return what;
}
