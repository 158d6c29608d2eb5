/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_side.h - the patterns over MPI.
 *
 * Ranks 0 to servers-1 serve, the others are clients. Servers find requests with MPI_Iprobe, and
 * all wait with MPI_Testsome over an array of requests, where a request's place identifies its
 * purpose.
 */
#ifndef BENCH_MPI_SIDE_H
#define BENCH_MPI_SIDE_H

#include "../bench.h"
#include "../layout.h"

#include <mpi.h>

#define TAG_REQUEST 1
#define TAG_ACK 2
#define TAG_DATA 3

struct mpi_world {
    int servers, clients;
    int rank;
    bool crowded; /* more processes on a host than CPUs: yield where there is nothing to do */
};

struct mpi_pattern {
    const char *name;
    void (*serve)(const struct mpi_world *world); /* `clients` requests, all of them */
    double (*run)(const struct mpi_world *world, const struct work *work);
};

extern const struct mpi_pattern mpi_read, mpi_write, mpi_latency, mpi_bandwidth, mpi_rate,
    mpi_overlap, mpi_rpc, mpi_is;

const struct mpi_pattern *mpi_pattern_named(const char *name);
/* Takes one sample, all ranks at once. Returns: a client's seconds, a server's 0. */
double mpi_sample_take(const struct mpi_pattern *pattern, const struct mpi_world *world,
                       const struct work *work);
/* The whole run without a coordinator, the ranks being this program's own servers and clients. */
void alone_run(struct options *options, const struct mpi_world *world);

/* A set of requests; a place is free where it is MPI_REQUEST_NULL. */
struct mpi_set {
    MPI_Request *requests;
    int *indices;
    int count;
};
void set_open(struct mpi_set *set, int count);
void set_close(struct mpi_set *set);
/* Checks once for completions, and yields if there are none and the machine is crowded. Returns:
 * their number; set->indices names the places. */
int set_test(struct mpi_set *set, const struct mpi_world *world);

/* Whether a request has arrived; receives it and reports its sender. */
bool request_take(struct work *work, int *client);
void request_await(struct work *work, int *client);
void acknowledge(int client);
void ask_and_await(int server, const struct work *work);

/* The datatype, relative to layout->memory or to the first piece (*base), of a stream's bytes.
 * An hvector wherever the message consists of whole segments. The caller frees it. */
MPI_Datatype layout_type(const struct layout *layout, int server, uint64_t position, uint64_t size,
                         void **base);

#endif
