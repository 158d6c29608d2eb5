/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bench.h - shared by all files of bmi-bench.
 *
 * A *pattern* is one kind of exchange (read, latency, ...); a *contender* is one way to carry it
 * out (BMI, plain sockets, MPI). The coordinator, the process that the user started, starts for
 * each contender a *group* of server and client processes, and lets the groups take their samples
 * in turn. A `struct work` describes each sample. The client sends it to the server in its request
 * of 25 bytes, so servers need no options. A process that detects an error prints it and exits
 * non-zero (die); the coordinator then ends all others.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REQUEST_SIZE 25    /* bytes of a request, as in the paper's read test */
#define ACK_SIZE 400       /* bytes of an acknowledgement */
#define WARM_UP_ROUNDS 200 /* a ping-pong's round trips before its time begins: processes wake */
#define SIZES_MAX 32
#define TIMES_MAX 32
#define ROWS_MAX 512 /* of a grid */
#define GRIDS_MAX 16
#define REPS_MAX 1000
#define SERVERS_MAX 255   /* a request has one byte for the number */
#define CLIENTS_MAX 16384 /* clients: played by one process */

enum contender {
    CONTENDER_BMI,            /* BMI, buffers from BMI_memalloc where the pattern has the choice */
    CONTENDER_BMI_PLAIN,      /* BMI, plain buffers */
    CONTENDER_BMI_BACKGROUND, /* BMI, progress=background */
    CONTENDER_BMI_URING,      /* BMI, tcp_engine=io_uring; beside it BMI has epoll */
    CONTENDER_LOCK_FREE,      /* the task manager */
    CONTENDER_POST,           /* BMI's posted messages beside calls */
    CONTENDER_RAW,            /* sockets: blocking, or epoll for N x M */
    CONTENDER_RAW_POLL,       /* sockets, spinning on a non-blocking receive */
    CONTENDER_TLS,            /* OpenSSL on such sockets */
    CONTENDER_TLS_POLL,
    CONTENDER_MPI,
    CONTENDER_MPI_PROBE, /* the receiver learns sizes by MPI_Mprobe */
    CONTENDER_MPI_YIELD, /* ranks yield while they wait */
    CONTENDER_FI,        /* libfabric's fi_pingpong */
    CONTENDER_MEMCPY,    /* one process copies as much within its memory */
    CONTENDER_SPINLOCK,  /* the tree of lists of PIOMan's paper */
    CONTENDER_LINE,      /* a cache line that goes to another CPU and back */
    CONTENDER_MIXED,     /* place: the task manager's decisions */
    CONTENDER_UNPLACED,  /* place: other policies, and the lower bound */
    CONTENDER_RANDOM,
    CONTENDER_TASKS_ONLY,
    CONTENDER_NEXT_TOUCH,
    CONTENDER_BOUND,
    CONTENDER_COUNT
};

#define BIT(contender) (1u << (contender))
#define BITS_BMI_OURS                                                                \
    (BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_BACKGROUND) | \
     BIT(CONTENDER_BMI_URING))
#define BITS_BMI (BITS_BMI_OURS | BIT(CONTENDER_POST)) /* processes of BMI */
#define BITS_TLS (BIT(CONTENDER_TLS) | BIT(CONTENDER_TLS_POLL))
#define BITS_RAW (BIT(CONTENDER_RAW) | BIT(CONTENDER_RAW_POLL) | BITS_TLS)
#define BITS_MPI (BIT(CONTENDER_MPI) | BIT(CONTENDER_MPI_PROBE) | BIT(CONTENDER_MPI_YIELD))
/* The measured contenders; all others are references. */
#define BITS_OURS (BITS_BMI_OURS | BIT(CONTENDER_LOCK_FREE) | BIT(CONTENDER_MIXED))

/* Options that only some patterns use. */
enum {
    TAKES_PARTICIPANTS = 1, /* --method --servers --clients --grid --role --listen */
    TAKES_SIZE = 2,
    TAKES_BYTES = 4,
    TAKES_MESSAGES = 8,
    TAKES_SEGMENT = 16,
    TAKES_WINDOW = 32,
    TAKES_VERIFY = 64,
    TAKES_COMPUTE = 128,
    TAKES_TREE = 256,
    TAKES_ON = 512,
    TAKES_MEMORY = 1024,
    TAKES_POST = 2048, /* --post --first --poll */
    TAKES_ACTIVE = 4096,
    TAKES_CLASS = 8192
};

/* The side that computes while a message is on its way. */
enum { ON_SENDER = 1, ON_RECEIVER = 2, ON_BOTH = 3 };

/* How many messages a side posts at once. */
enum post { POST_DEFAULT, POST_ALL, POST_WINDOW, POST_ONE };
/* Which side posts its first messages before the other one does. */
enum first { FIRST_RECEIVER, FIRST_SENDER, FIRST_TOGETHER };

/* One sample as its client and server both know it. */
struct work {
    uint8_t pattern;     /* place in the pattern table */
    bool verify;         /* check every byte */
    bool plain;          /* plain buffers instead of BMI_memalloc's; flow, rpc: bare messages, or
                            MPI's probing; is: MPI's yielding */
    bool spin;           /* calls do not wait; sockets spin instead of block */
    uint8_t first;       /* enum first */
    uint8_t on;          /* overlap: the side that computes; rpc, clients: the kind of call */
    uint8_t figure;      /* rpc, clients: enum calls_figure; is: enum is_figure. Only the client
                            needs it */
    uint8_t server;      /* number of the server asked */
    uint16_t client;     /* number of the client that asks */
    uint32_t window;     /* messages under way at once */
    uint64_t memory;     /* bandwidth: bytes that a side's messages share; 0: each has its own */
    uint32_t size;       /* bytes of a message */
    uint64_t amount;     /* bytes, or messages, by the pattern's definition; below 2^48 */
    uint16_t compute_us; /* overlap, flow: for how long */
    uint32_t sequence;   /* number of the sample; BMI and MPI tags follow from it */
};

enum role { ROLE_COORDINATOR, ROLE_SERVER, ROLE_CLIENT };

struct grid {
    int servers, clients;
};

struct options {
    const struct pattern *pattern;
    enum role role;
    const char *method; /* "tcp" */
    char scheme[32];    /* the method, where it is taken from a URL */
    const char *listen; /* URLs that servers listen on; NULL: this host, a free port */
    char **urls;        /* servers that run already */
    int url_count;
    struct grid grids[GRIDS_MAX];
    int grid_count;
    bool bind; /* each process to a CPU of its own, as long as there are such */
    uint64_t sizes[SIZES_MAX];
    int size_count;
    uint64_t times[TIMES_MAX]; /* overlap, flow: microseconds to compute */
    int time_count;
    uint64_t actives[SIZES_MAX]; /* clients */
    int active_count;
    unsigned on;              /* overlap: bits 1 << ON_... */
    const char *tree;         /* tasks, place: synthetic topology; place: also a file's name */
    uint64_t bytes, messages; /* amount of a sample, each where the pattern counts so */
    uint64_t segment;
    uint64_t memory; /* bandwidth; 0: each message has its own */
    enum post post;
    enum first first;
    bool poll;
    int window;
    int reps;
    int timeout_s;
    bool verify;
    unsigned contenders; /* bits */
    bool references_only;
    unsigned given; /* TAKES_* bits of the command line's options */
    const char *json, *plot;
    /* the coordinator passes it to the processes that it starts */
    const char *control;
    enum contender contender;
    int number;
};

/* Whether the method goes through shared memory, so that MPI must do so, too. */
bool options_use_memory(const struct options *options);
/* Where the pattern's servers listen that are started here. */
const char *listen_host(const struct options *options);
/* Whether a contender's servers, or its clients, use tcp's engine io_uring. */
bool engine_is_uring(const struct options *options, enum contender contender, bool server);

struct report;
struct row;
struct bmi_side;
struct bmi_client;
struct raw_link;
struct raw_client;
typedef int64_t bmi_peer; /* BMI_addr_t, without bmi.h for the MPI program */

struct pattern {
    const char *name;
    const char *summary;
    const char *unit;      /* of value: "us", "MB/s", "msg/s" */
    const char *size_name; /* the meaning of a size */
    const char *sizes;     /* the list taken if none is given */
    uint32_t message_size; /* bytes, where a size has another meaning; else 0 */
    bool size_is_clients;  /* a size is the number of clients, whatever is given */
    const char *actives;   /* the list of active clients taken if none is given */
    const char *amount;    /* taken if none is given */
    bool amount_is_bytes;  /* else messages */
    uint32_t amount_unit;  /* an amount is whole ones of it; 0: any */
    bool less_is_better;
    bool empty_messages;     /* a size may be 0 */
    bool one_pair;           /* one server and one client only */
    bool listens_everywhere; /* its server: on all of this host's addresses */
    bool engine_of_server;   /* tcp's engine is its server's choice; the client has epoll */
    bool plain_is_bare;      /* work.plain means bare messages, not other memory */
    bool low_quartile;       /* the value is not the median of samples, but a quarter from below */
    unsigned takes;          /* TAKES_* bits of options that mean something to it */
    enum post post;          /* if not given; POST_DEFAULT: a window */
    int window;              /* 0: 1 */
    int reps;                /* 0: 5 */
    const char *grid;        /* servers x clients, if not given; NULL: 1x1 */
    unsigned on_request;     /* bits: contenders of ours that take part only on request */
    const char *labels;      /* the meaning of the rows' labels; NULL: rows differ by size only */
    unsigned contenders;     /* bits: those that exist for it */
    /* Ends the process if the options are none for this pattern. NULL: the common checks do. */
    void (*options_check)(const struct options *options);
    /* Prepares a grid's rows if they do not differ by size only: work, panel, label. Returns:
     * their number, at most ROWS_MAX. */
    int (*rows)(const struct options *options, const struct grid *grid, struct row *rows);
    /* Prints at the end of the run figures that combine several rows. */
    void (*end_print)(const struct report *report);
    /* The whole run, where it needs no other process. */
    void (*run_here)(const struct options *options, struct report *report);
    /* The value from the slowest client's figure (seconds, unless run_* states another unit). */
    double (*value)(double slowest, const struct work *work, int pairs);
    /* A server got a request: begin to answer it. */
    void (*serve_bmi)(struct bmi_side *side, const struct work *work, bmi_peer peer);
    void (*serve_raw)(struct raw_link *link, const struct work *work);
    /* A client runs one sample against all its servers. */
    double (*run_bmi)(struct bmi_client *client, const struct work *work);
    double (*run_raw)(struct raw_client *client, const struct work *work);
};

extern const struct pattern *const patterns[]; /* NULL-terminated */
const struct pattern *pattern_named(const char *name);
const struct pattern *pattern_numbered(uint8_t number);
uint8_t pattern_number(const struct pattern *pattern);
const char *contender_name(enum contender contender);
const char *on_name(uint8_t on);
const char *post_name(enum post post);
const char *first_name(enum first first);

double value_bandwidth(double slowest, const struct work *work, int pairs);
double value_rate(double slowest, const struct work *work, int pairs);
double value_latency(double slowest, const struct work *work, int pairs);
/* overlap: a round's seconds on the side that computes; of two that do, on the slower one. */
double overlap_seconds(const struct work *work, uint64_t sender_ns, uint64_t receiver_ns);
uint64_t rounds_median(uint64_t *rounds_ns, uint64_t count); /* sorts them */

/* options.c, options_check.c */
/* Servers that the user named: plain sockets', or BMI's. */
int options_servers(const struct options *options, bool raw);
void options_check(const struct options *options);
void options_method_check(const struct options *options);
void options_parse(struct options *options, int argc, char **argv);
void options_free(struct options *options);
bool size_parse(const char *text, uint64_t *size);

/* util.c */
void name_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
void output_flush(void);
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void refuse(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); /* usage */
void *allocate(size_t size);       /* zeroed, or the process ends */
void *allocate_pages(size_t size); /* page-aligned, touched */
void format_text(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void cpu_take(int turn); /* binds the process to that CPU of its own; beyond the last they repeat */
void thread_cpu_take(int turn); /* the same for this thread and those that it creates later */
void thread_cpus_release(void); /* for one of those: back to all CPUs that the process began with */
uint64_t now_ns(void);
double seconds_since(uint64_t start_ns);
void compute(uint64_t time_us); /* for so long in CPU time, not wall-clock time */

/* request.c: a sample's description */
void request_encode(uint8_t bytes[REQUEST_SIZE], const struct work *work);
void request_decode(struct work *work, const uint8_t bytes[REQUEST_SIZE]);
void work_start(struct work *work, const struct options *options);
/* Sets the members that depend on the contender. */
void work_contender_set(struct work *work, const struct options *options, enum contender contender);
/* Sets the window from the sample's size and amount, where not every sample has the same. */
void work_window_set(struct work *work, const struct options *options);
void work_fill(struct work *work, const struct options *options, const struct grid *grid,
               uint64_t size);
uint64_t message_count(const struct work *work);
uint32_t message_size(const struct work *work, uint64_t message);
/* Of messages that share memory, or have memory of their own (bandwidth): the bytes of that memory,
 * and a message's place in it. */
uint64_t memory_size(const struct work *work);
uint64_t memory_place(const struct work *work, uint64_t message);

/* data.c: position-dependent contents */
void data_fill(void *buffer, uint64_t size, uint32_t stream, uint64_t position);
void data_check(const void *buffer, uint64_t size, uint32_t stream, uint64_t position);
const uint8_t *data_source(uint32_t stream, uint64_t size);
uint8_t *data_arena(uint64_t size);

/* The source of the data's memory, if it is not the process's own. Memory kept for reuse is kept
 * separately for either kind. */
struct data_allocator {
    void *(*allocate)(uint64_t size);
    void (*release)(void *memory, uint64_t size);
};
void data_allocator_set(const struct data_allocator *allocator); /* NULL: the process's own */
bool data_is_own(void);
void *data_allocate(uint64_t size); /* touched */
void data_release(void *memory, uint64_t size);
/* Memory that is kept, of each kind. Returns: that of the requested kind, allocated anew if too
 * small. */
struct data_kept {
    void *memory;
    uint64_t size;
};
void *data_renew(struct data_kept kept[2], uint64_t size);
uint64_t data_area(const struct work *work);
uint64_t data_place(const struct work *work, uint64_t position);
uint64_t data_ahead(const struct work *work, uint64_t position);
#define DATA_SHIFT 4096 /* bytes by which the data for the next peer is shifted */

/* traffic.c: returns the bytes that the networks of this host have received so far, lo included. */
uint64_t traffic_carried(void);
/* Ends the run with an error if the networks carried less than the sample's bytes since `before`:
 * then MPI did not use tcp. */
void traffic_check(const struct options *options, const struct work *work, uint64_t pairs,
                   uint64_t before);

/* control.c: a process's line to its coordinator */
int control_open(const struct options *options, const char *role);
void control_tell(int control, const char *format, ...) __attribute__((format(printf, 2, 3)));
void address_tell(int control, const char *url);
bool control_work(int control, struct work *work, uint64_t *start_ns);
void start_await(uint64_t start_ns);
/* A client's life: it takes samples when the coordinator asks for them. `note` is for the report.
 * `run` returns its pattern's figure. */
void samples_take(int control, const struct options *options, const char *note,
                  double (*run)(void *client, const struct work *work), void *client);

#endif
