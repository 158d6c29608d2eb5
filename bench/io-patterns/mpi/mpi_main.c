/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_main.c - bmi-bench-mpi: one rank, started by the coordinator's mpiexec or by the user's.
 */
#include "mpi_side.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define END_SECONDS 5

static const struct mpi_pattern *const mpi_patterns[] = {&mpi_read,      &mpi_write, &mpi_latency,
                                                         &mpi_bandwidth, &mpi_rate,  &mpi_overlap,
                                                         &mpi_rpc,       &mpi_is};

const struct mpi_pattern *mpi_pattern_named(const char *name)
{
    for (size_t i = 0; i < sizeof mpi_patterns / sizeof *mpi_patterns; i++)
        if (strcmp(mpi_patterns[i]->name, name) == 0)
            return mpi_patterns[i];
    refuse("%s: not written for MPI", name);
}

/* Whether all ranks are known to be on one host: a coordinator's are; some mpiexecs of users report
 * it. */
static bool ranks_share_host(const struct options *options)
{
    static const char *const counts[][2] = {
        {"MPI_LOCALNRANKS", "PMI_SIZE"}, /* MPICH */
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *here = getenv(counts[i][0]), *all = getenv(counts[i][1]);
        if (here && all && strcmp(here, all) == 0)
            return true;
    }
    return options->control != NULL;
}

/* Makes every known MPI use tcp, also between processes of one host, where it prefers shared
 * memory; beside a method over shared memory it may use its own choice. Call it before MPI_Init. */
static void environment_set(const struct options *options)
{
    static const char *const variables[][2] = {
        {"MPIR_CVAR_NOLOCAL", "1"}, /* MPICH: no shared memory */
        {"UCX_TLS", "tcp"},         /* MPICH or Open MPI over UCX */
        {"FI_PROVIDER", "tcp"},     /* MPICH over libfabric */
        {"OMPI_MCA_pml", "ob1"},    /* Open MPI */
        {"OMPI_MCA_btl", "tcp,self"},
    };
    if (options_use_memory(options))
        return;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        setenv(variables[i][0], variables[i][1], 0); /* the user's own setting stays */
    if (ranks_share_host(options))
        setenv("UCX_NET_DEVICES", "lo", 0); /* else it takes the first device */
}

/* Under a coordinator: takes samples on request. A rank that waits for a request uses no CPU,
 * unlike MPI's own waiting. */
static void coordinated_run(const struct options *options, const struct mpi_world *world)
{
    const struct mpi_pattern *pattern = mpi_pattern_named(options->pattern->name);
    bool server = world->rank < world->servers;
    struct work work;
    uint64_t start_ns;
    int control = control_open(options, server ? "server" : "client");
    work_start(&work, options);
    control_tell(control, "ready ");
    while (control_work(control, &work, &start_ns)) {
        double figure = mpi_sample_take(pattern, world, &work);
        control_tell(control, "result %.9g", figure);
    }
    /* The coordinator is ending mpiexec, which ends this rank: see group.c. */
    sleep(END_SECONDS);
    _exit(0);
}

/* Over UCX's tcp MPI_Finalize now and then waits for ever. */
static void finalize_give_up(int signal_number)
{
    static const char text[] = "bmi-bench-mpi: MPI_Finalize does not end; the report is complete\n";
    (void)signal_number;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(1);
    _exit(0);
}

/* Where a rank is, and may run. */
struct place {
    char host[MPI_MAX_PROCESSOR_NAME];
    cpu_set_t cpus;
};

/* Whether this host has more of the ranks than CPUs that they may use together. Without shared
 * memory MPI does not report which ranks share a host, so their host names decide. */
static bool host_crowded(int size)
{
    struct place own = {0}, *all = allocate((size_t)size * sizeof *all);
    cpu_set_t cpus = {0};
    int length, ranks = 0;
    if (sched_getaffinity(0, sizeof own.cpus, &own.cpus) < 0)
        die("sched_getaffinity: %s", strerror(errno));
    MPI_Get_processor_name(own.host, &length);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) {
        if (strcmp(all[i].host, own.host) != 0)
            continue;
        CPU_OR(&cpus, &cpus, &all[i].cpus);
        ranks++;
    }
    free(all);
    return ranks > CPU_COUNT(&cpus);
}

static void world_open(struct mpi_world *world, struct options *options)
{
    int size;
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    world->servers = options->grids[0].servers;
    world->clients = options->grids[0].clients;
    world->crowded = host_crowded(size); /* before --bind takes CPUs away */
    if (world->servers + world->clients != size)
        refuse("%d ranks for %d servers and %d clients: mpiexec -n %d starts them", size,
               world->servers, world->clients, world->servers + world->clients);
    if (options->bind)
        cpu_take(world->rank);
    bool server = world->rank < world->servers;
    options->number = server ? world->rank : world->rank - world->servers;
    name_set("bmi-bench-mpi: %s %d", server ? "server" : "client", options->number);
}

int main(int argc, char **argv)
{
    struct options options;
    struct mpi_world world;
    name_set("bmi-bench-mpi");
    if (argc == 1)
        refuse("mpiexec starts it: mpiexec -n N+M bmi-bench-mpi PATTERN --servers N --clients M");
    options_parse(&options, argc, argv);
    environment_set(&options);
    MPI_Init(&argc, &argv);
    layout_segment_set(options.segment);
    world_open(&world, &options);
    if (options.control)
        coordinated_run(&options, &world);
    else
        alone_run(&options, &world);
    signal(SIGALRM, finalize_give_up);
    alarm(END_SECONDS);
    MPI_Finalize();
    return 0;
}
