/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tables.c - the cases of all files, in the order in which they run.
 */
#include "harness.h"

extern const struct conformance_case types_cases[], function_cases[], classic_cases[],
    statistics_cases[], init_cases[], address_cases[], connect_cases[], reference_cases[],
    post_cases[], list_cases[], matching_cases[], size_cases[], mismatch_cases[], unmatched_cases[],
    test_cases[], wait_cases[], thread_cases[], context_cases[], cancel_cases[], transfer_cases[],
    failure_cases[], rpc_cases[], forward_cases[], mercury_cases[];

const struct conformance_case *const conformance_tables[] = {
    types_cases,    function_cases, classic_cases,   statistics_cases, init_cases,
    address_cases,  connect_cases,  reference_cases, post_cases,       list_cases,
    matching_cases, size_cases,     mismatch_cases,  unmatched_cases,  test_cases,
    wait_cases,     thread_cases,   context_cases,   cancel_cases,     transfer_cases,
    failure_cases,  rpc_cases,      forward_cases,   mercury_cases,    NULL,
};
