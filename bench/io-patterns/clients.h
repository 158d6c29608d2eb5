/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clients.h - what the pattern clients and its reference have in common.
 *
 * One process plays all clients: to the server each of its connections is one. It dials the server
 * by another address of 127.0.0.0/8 for each, since BMI keeps one connection for an address. So the
 * server listens on all addresses, and both sides run on this host.
 *
 * work.size is the number of connected clients, work.window that of active ones, with one call each
 * under way: a request of 25 bytes, a reply of 400. One thread; no locks.
 */
#ifndef BENCH_CLIENTS_H
#define BENCH_CLIENTS_H

#include "calls.h"

/* work.figure, after the times of calls: what the server used, for each call */
enum clients_figure { CLIENTS_CPU = CALLS_ELSEWHERE, CLIENTS_SYSTEM_CALLS };

/* work.on: what a request asks for. The reply to the last three holds a struct clients_usage. */
enum { CLIENTS_CALL, CLIENTS_START, CLIENTS_START_COUNTING, CLIENTS_END };

/* What the server process has used so far. In the byte order of the one host. */
struct clients_usage {
    uint64_t cpu_ns;
    uint64_t system_calls; /* since CLIENTS_START_COUNTING */
};
_Static_assert(sizeof(struct clients_usage) <= ACK_SIZE, "it fits into a reply");

/* The server's: fills the reply to a request. */
void clients_reply(const struct work *work, uint8_t reply[ACK_SIZE]);
/* The client's: what a sample's first question asks for; whether the figure needs one. */
bool clients_asks(const struct work *work, uint8_t *on);
/* Returns: the figure, from the replies before and after the calls. */
double clients_used(const struct work *work, const uint8_t before[ACK_SIZE],
                    const uint8_t after[ACK_SIZE]);
/* The client with a number below the active ones, spread evenly over the connected ones. */
uint32_t clients_active(const struct work *work, uint32_t number);
/* The address of the server for a client: 127.0.0.1 for the first one. In the host's byte order. */
uint32_t clients_address(uint32_t client);

/* system_calls.c: of all threads that the process has now, counted by the kernel (perf_event_open).
 */
bool system_calls_countable(void);
void system_calls_start(void);
uint64_t system_calls_end(void); /* 0: they were not counted */

/* clients_bmi.c, clients_raw.c */
struct bmi_side;
struct bmi_client;
struct raw_link;
struct raw_client;
void clients_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client);
double clients_run_bmi(struct bmi_client *client, const struct work *work);
void clients_serve_raw(struct raw_link *link, const struct work *work);
double clients_run_raw(struct raw_client *client, const struct work *work);

#endif
