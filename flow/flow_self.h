/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow_self.h - tests of flows over tcp whose peer is this process, and the bytes of a file that
 * they move.
 */
#ifndef FLOW_SELF_H
#define FLOW_SELF_H

#include "flow/flow_testing.h"

enum { FILE_SIZE = 3 * 1024 * 1024 + 4321 };
static char file[FILE_SIZE], arrived[FILE_SIZE];

static inline struct bmi_flow_extent all(bmi_size_t size)
{
    return (struct bmi_flow_extent){.offset = 0, .size = size, .count = 1};
}

static inline void files_make(unsigned seed)
{
    bytes_make(file, FILE_SIZE, seed);
    memset(arrived, 0, FILE_SIZE);
}

static inline void network_start(void)
{
    char address[BMI_MAX_ADDR_LEN];
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self, address), 0);
}

static inline void set_up(void)
{
    network_start();
    store_open();
}

static inline void tear_down(void)
{
    store_close();
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

#endif
