/* SPDX-License-Identifier: BSD-3-Clause
 * api.h - posting, for the public functions and for pings. */
#ifndef BMI_API_H
#define BMI_API_H

#include "bmi/state/op.h"

/* The arguments of a post. */
struct post {
    enum op_kind kind;
    BMI_addr_t address;
    void *const *buffers; /* NULL: the one buffer */
    const bmi_size_t *sizes;
    uint32_t count;
    void *buffer;
    bmi_size_t total;
    bmi_size_t *actual; /* receive */
    wire_tag tag;
    void *user_ptr;
    bmi_context_id context;
    struct context *internal; /* instead of `context`; takes completions at once */
};

/* Posts. Returns as the public functions do. */
int bmi__post(const struct post *post, bmi_op_id_t *id);

#endif
