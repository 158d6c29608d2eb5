/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow_testing.h - shared by flow's tests: a store in memory with objects, a peer that is this
 * process, and waits for flows.
 */
#ifndef FLOW_TESTING_H
#define FLOW_TESTING_H

#include "bmi/flow.h"
#include "trove-stub/trove_testing.h"

static struct bmi_trove_store *store;
static bmi_trove_context_id_t storage_context;
static bmi_flow_context_id_t context;
static BMI_addr_t self;

static inline void store_open(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, "mem:", NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_context_open(&storage_context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
}

static inline void store_close(void)
{
    struct bmi_trove_statistics statistics;
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.outstanding, 0);
    CU_ASSERT_EQUAL(bmi_trove_context_close(storage_context), 0);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* A new object with these bytes, written in one write. */
static inline struct bmi_trove_place object_make(const void *bytes, bmi_size_t size)
{
    bmi_trove_op_id_t op;
    struct bmi_trove_place place = {.store = store, .collection = 1};
    bmi_trove_object_id_t number = 0;
    int result = bmi_trove_post_create(&op, &place, &number, 0, NULL, storage_context);
    CU_ASSERT_EQUAL_FATAL(outcome_of(result, &op, storage_context).error, 0);
    place.object = number;
    result = bmi_trove_post_write_at(&op, &place, bytes, size, 0, NULL, 0, NULL, storage_context);
    CU_ASSERT_EQUAL_FATAL(outcome_of(result, &op, storage_context).error, 0);
    return place;
}

/* Reads an object's bytes; beyond its end are zeros. */
static inline void object_read(const struct bmi_trove_place *place, void *bytes, bmi_size_t size)
{
    bmi_trove_op_id_t op;
    int result = bmi_trove_post_read_at(&op, place, bytes, size, 0, NULL, BMI_TROVE_ZEROS, NULL,
                                        storage_context);
    CU_ASSERT_EQUAL_FATAL(outcome_of(result, &op, storage_context).error, 0);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

static inline struct bmi_flow_endpoint from_network(bmi_msg_tag_t tag)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_NETWORK,
                                      .u.network = {.address = self, .tag = tag}};
}

static inline struct bmi_flow_endpoint on_storage(const struct bmi_trove_place *place)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_STORAGE, .u.storage = {.place = *place}};
}

/* One region; lent until the flow has ended. */
struct region {
    void *buffer;
    bmi_size_t size;
};

static inline struct bmi_flow_endpoint in_memory(const struct region *region)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_MEMORY,
                                      .u.memory = {.buffers = &region->buffer,
                                                   .sizes = &region->size,
                                                   .count = 1}};
}

/* ---- waiting --------------------------------------------------------------------------------- */

enum { FLOWS_MOST = 16 };

/* Flows that were posted, and their results. */
struct flows {
    int count, left;
    bmi_flow_id_t ids[FLOWS_MOST];
    bmi_error_code_t errors[FLOWS_MOST];
    bmi_size_t actuals[FLOWS_MOST]; /* -1: done within the post */
};

static inline int flows_post(struct flows *flows, const struct bmi_flow_description *what)
{
    int index = flows->count++;
    int result = bmi_flow_post(&flows->ids[index], what, &flows->ids[index], context);
    flows->errors[index] = result < 0 ? result : 0;
    flows->actuals[index] = -1;
    flows->left += result == 0;
    return index;
}

static inline void flows_wait(struct flows *flows)
{
    while (flows->left > 0) {
        bmi_flow_id_t id;
        bmi_error_code_t error;
        bmi_size_t actual;
        void *pointer;
        int count = 0;
        CU_ASSERT_EQUAL(bmi_flow_testcontext(1, &id, &count, &error, &actual, &pointer, PATIENCE_MS,
                                             context),
                        1);
        CU_ASSERT_EQUAL_FATAL(count, 1);
        long index = (bmi_flow_id_t *)pointer - flows->ids;
        CU_ASSERT_FATAL(index >= 0 && index < flows->count);
        CU_ASSERT_EQUAL(flows->ids[index], id);
        flows->ids[index] = 0; /* a second completion would not be equal */
        flows->errors[index] = error;
        flows->actuals[index] = actual;
        flows->left--;
    }
}

/* One flow, from its post to its end. */
static inline bmi_error_code_t flow_run(const struct bmi_flow_description *what, bmi_size_t *actual)
{
    struct flows flows = {0};
    flows_post(&flows, what);
    flows_wait(&flows);
    if (actual != NULL)
        *actual = flows.actuals[0];
    return flows.errors[0];
}

#endif
