/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request.h - a walk through a request: its pieces on one server, in order. Both sides of a
 * connection walk the same request and so get the same pieces.
 */
#ifndef FLOW_REQUEST_H
#define FLOW_REQUEST_H

#include <stdbool.h>

#include "bmi/flow.h"

struct flow_piece {
    bmi_size_t request;  /* bytes of the request before it, those of other servers too */
    bmi_size_t physical; /* offset in the server's stream */
    bmi_size_t size;     /* >= 1 */
};

struct flow_walk {
    const struct bmi_flow_extent *extents;
    int extent_count;
    const struct bmi_flow_distribution *distribution;
    const void *parameters;
    uint32_t server, servers;
    /* the present position */
    int extent;
    bmi_size_t block;   /* of the extent */
    bmi_size_t done;    /* bytes of the block */
    bmi_size_t request; /* bytes of the request before the block */
    int budget;         /* blocks without a piece that the walk may still check */
};

enum flow_walked { FLOW_WALKED, FLOW_PIECE, FLOW_LATER };

/* Of all servers: the bytes of a request; or -BMI_EINVAL, -BMI_EFBIG. */
bmi_size_t bmi__flow_request_total(const struct bmi_flow_extent *extents, int count);
bool bmi__flow_distribution_valid(const struct bmi_flow_distribution *distribution);
/* The next piece, of at most `most` bytes (>= 1). FLOW_WALKED: there is none; FLOW_LATER: the
 * budget is used up. */
enum flow_walked bmi__flow_walk_next(struct flow_walk *walk, bmi_size_t most,
                                     struct flow_piece *piece);

#endif
