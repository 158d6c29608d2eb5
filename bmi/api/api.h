/* SPDX-License-Identifier: BSD-3-Clause
 * api.h - posting, for the public functions and for pings. */
#ifndef BMI_API_H
#define BMI_API_H

#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"

struct bmi_instance;

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

/* Posts, in the instance of the context. Returns as the public functions do. */
int bmi__post(const struct post *post, bmi_op_id_t *id);

/* The context of an id. NULL: there is none, or its instance ends. */
static inline struct context *running_context(bmi_context_id id)
{
    struct context *context = bmi__context_find(id);
    return context != NULL && bmi__running(context->instance) ? context : NULL;
}

/* start.c: what BMI_initialize and the last BMI_finalize do. `settings`: "" or NULL: none; as
 * options of the former, or of the instance's own (`own`). Return as those. */
int bmi__instance_start(struct bmi_instance *instance, const char *method_list,
                        const char *listen_addr, int flags, const char *settings, bool own);
int bmi__instance_end(struct bmi_instance *instance);
/* Applies the setting worker_policy. */
void bmi__worker_policy_follow(struct bmi_instance *instance);

/* start.c: what the files keep for an instance, without starting it. Returns 0 or an errno: then
 * nothing is left. */
int bmi__parts_open(struct bmi_instance *instance);
void bmi__parts_close(struct bmi_instance *instance);

/* forward.c */
int bmi__forwards_open(struct bmi_instance *instance);
void bmi__forwards_close(struct bmi_instance *instance);

#endif
