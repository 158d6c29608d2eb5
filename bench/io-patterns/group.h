/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group.h - a contender's processes, from the coordinator's side.
 *
 * All are started by fork and exec of this program (MPI's by mpiexec). Each has a line back to the
 * coordinator, on which it sends hello, its address, "ready", and its figures. The kernel ends them
 * when the coordinator ends for any reason; a process that ends early ends the run.
 */
#ifndef BENCH_GROUP_H
#define BENCH_GROUP_H

#include "bench.h"

#include <sys/types.h>

struct member {
    int line; /* -1 until it has sent hello */
    size_t used;
    char text[4096]; /* read so far of its next line */
};

struct group {
    enum contender contender;
    const struct options *options;
    int servers, clients; /* processes of its own; servers 0 where they run elsewhere */
    pid_t *processes;
    int process_count;
    struct member *members; /* servers, then clients */
    char *urls;             /* the servers', comma list */
    char note[256];         /* of its first client; may be empty */
    uint64_t traffic;       /* MPI: bytes that this host's networks carried before */
};

void group_start(struct group *group, enum contender contender, const struct options *options,
                 const struct grid *grid);
/* Takes a sample. Returns: the slowest client's figure. */
double group_sample(struct group *group, const struct work *work);
void group_end(struct group *group);

#endif
