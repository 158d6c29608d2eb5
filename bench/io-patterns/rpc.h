/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc.h - what the pattern rpc and its references have in common.
 *
 * A body has `size` bytes, which its receiver learns from the call. One thread; no locks.
 */
#ifndef BENCH_RPC_H
#define BENCH_RPC_H

#include "calls.h"

/* work.on */
enum rpc_kind {
    RPC_NULL,    /* neither side sends more than a header */
    RPC_REQUEST, /* the request has a body, whose place the server chooses */
    RPC_REPLY    /* the reply has one, whose place the client chooses */
};

/* The header of the references' messages, where ours has its own. */
struct rpc_header {
    uint64_t body;   /* bytes that follow */
    uint64_t wanted; /* bytes of the reply's body */
};

#define RPC_BARE 40         /* bytes of a bare message without a body: as many as our header */
#define RPC_STREAM 0x50000u /* of bodies */

/* The body of the call with a number; the sender makes it, and the receiver checks it, where the
 * sample is to be verified. */
void rpc_body_fill(const struct work *work, void *body, uint64_t number);
void rpc_body_check(const struct work *work, const void *body, uint64_t number);

/* rpc_bmi.c, rpc_raw.c */
struct bmi_side;
struct bmi_client;
struct raw_link;
struct raw_client;
void rpc_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client);
double rpc_run_bmi(struct bmi_client *client, const struct work *work);
void rpc_serve_raw(struct raw_link *link, const struct work *work);
double rpc_run_raw(struct raw_client *client, const struct work *work);

#endif
