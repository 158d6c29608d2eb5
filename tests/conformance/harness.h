/* SPDX-License-Identifier: BSD-3-Clause
 *
 * harness.h - the functions of the cases.
 *
 * A case is one function that every role runs, each with its own `struct rank`; roles synchronize
 * by rank_write, rank_read, and rank_barrier, which make progress while they wait. Where both roles
 * are threads of one BMI (CONFORMANCE_SELF) they share the key (peer, tag): a case uses distinct
 * tags for the two directions. Roles may be threads of one process, with copies, so a case has no
 * static variables: rank_keep and rank_of_case are in their place.
 *
 * Most cases post by struct op only: op_* checks the rules of every post and every completion (ids,
 * immediate completion, exactly once, byte counts), so each case checks them too. NEED ends the
 * whole case when it fails, CHECK only records the failure.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bmi.h"
#include "bmi/rpc.h"
#include "conformance.h"

enum { ROLES = 4, COPIES = 64, SENDER = 0, RECEIVER = 1, FAILURES = 16 };
enum { KIB = 1024, MIB = 1024 * 1024 };
/* Beyond what 31 bits hold; whole pieces of 3 MIB. */
#define OVER_2_GIB ((bmi_size_t)2049 * MIB)

/* Which roles and arrangements a case runs in. */
enum {
    SOLO = 1,        /* one role, started, whose peer is itself; CONFORMANCE_SELF, _INSTANCES */
    RAW = 2,         /* one role, and the case itself starts BMI; CONFORMANCE_SELF only */
    PROCESSES = 4,   /* not two roles in one BMI: all arrangements but CONFORMANCE_SELF */
    BOTH_LISTEN = 8, /* CONFORMANCE_PAIR, _INSTANCES */
    ONE_SERVES = 16, /* CONFORMANCE_*_SERVES only */
    CAST = 32,       /* `roles` of them, which start BMI themselves; CONFORMANCE_PAIR, _INSTANCES */
    PORTS = 64,      /* methods with CONFORMANCE_PORTS only */
    SOCKETS = 128,   /* methods with CONFORMANCE_SOCKETS only */
    GIGABYTES = 256, /* moves gigabytes: left out with --small */
    OF_PROCESS = 512 /* a process dies, is measured, or has the handles: not _INSTANCES */
};

struct rank;

struct conformance_case {
    const char *section; /* of the contract */
    const char *name;
    void (*run)(struct rank *rank);
    unsigned where;
    int seconds; /* longest; 0: 180 */
    int roles;   /* of CAST */
};

/* Shared by the runner and all roles of one case. */
struct report {
    atomic_int failures;
    struct failure {
        const char *file; /* the same program, so the same address */
        int line, role, copy;
        char text[512];
    } list[FAILURES];
    atomic_bool skips, skipped; /* skipped: reason is set */
    char reason[256];
    struct position {
        _Atomic(const char *) file;
        atomic_int line;
        atomic_bool ended; /* of a thread of CONFORMANCE_INSTANCES */
    } position[COPIES][ROLES];
    atomic_bool may_die[ROLES]; /* the case kills this role */
    atomic_int pids[ROLES];
};

struct rank {
    const struct conformance_method *method;
    const struct conformance_case *conformance_case;
    enum conformance_arrangement arrangement;
    int role, copy; /* copy: of the case, in this process */
    bool may_be_immediate;
    bool small;       /* gigabytes would take too long here */
    int wires[ROLES]; /* sockets to the other roles */
    struct report *report;
    BMI_addr_t peer; /* the other of roles 0 and 1; in CONFORMANCE_SELF the process itself */
    bmi_context_id context;
    char listen[BMI_MAX_ADDR_LEN];   /* the listen address of this process, or "" */
    char peer_url[BMI_MAX_ADDR_LEN]; /* the looked-up address, or "" */
    unsigned long pending, reported; /* operations */
    struct bmi_instance *instance;   /* the role's own, in CONFORMANCE_INSTANCES */
    void *of_case;                   /* rank_of_case's */
    struct kept *kept;
};

struct op {
    bmi_op_id_t id;
    bool sends, done;
    int posted; /* result of the post */
    bmi_error_code_t error;
    bmi_size_t size, actual;
    unsigned reports;
};

/* ---- checks -------------------------------------------------------------------------------- */

#define CHECK(rank, condition) \
    rank_check((rank), (condition), false, __FILE__, __LINE__, #condition)
#define NEED(rank, condition) rank_check((rank), (condition), true, __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(rank, actual, expected)                                                     \
    rank_check_equal((rank), (int64_t)(actual), (int64_t)(expected), false, __FILE__, __LINE__, \
                     #actual " == " #expected)
#define NEED_EQUAL(rank, actual, expected)                                                     \
    rank_check_equal((rank), (int64_t)(actual), (int64_t)(expected), true, __FILE__, __LINE__, \
                     #actual " == " #expected)
/* For results of BMI: prints their names. */
#define CHECK_STATUS(rank, actual, expected)                                   \
    rank_check_status((rank), (actual), (expected), false, __FILE__, __LINE__, \
                      #actual " == " #expected)
#define NEED_STATUS(rank, actual, expected)                                   \
    rank_check_status((rank), (actual), (expected), true, __FILE__, __LINE__, \
                      #actual " == " #expected)

bool rank_check(struct rank *rank, bool holds, bool fatal, const char *file, int line,
                const char *text);
bool rank_check_equal(struct rank *rank, int64_t actual, int64_t expected, bool fatal,
                      const char *file, int line, const char *text);
bool rank_check_status(struct rank *rank, int actual, int expected, bool fatal, const char *file,
                       int line, const char *text);
/* Records a failure with its own text. */
void rank_fail(struct rank *rank, bool fatal, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Ends the case as skipped. */
_Noreturn void rank_skip(struct rank *rank, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- a role's life ------------------------------------------------------------------------- */

/* Starts BMI as a server on the method's listen address, or on `listen`; opens the context. */
void rank_start_server(struct rank *rank, const char *listen, int flags);
/* Starts BMI as a client. */
void rank_start_client(struct rank *rank);
/* Closes the context and finalizes. */
void rank_stop(struct rank *rank);
/* Looks an address up; ends the case if that fails. */
BMI_addr_t rank_look_up(struct rank *rank, const char *url);
/* A client sends a message to the server that it looked up, so that the server learns
 * its address. */
void rank_hello_send(struct rank *rank);
BMI_addr_t rank_hello_receive(struct rank *rank);

/* Memory of the role, zeroed, that the harness frees when BMI has ended. */
void *rank_keep(struct rank *rank, size_t size);
/* Such memory for the case's functions: the same at each call. */
void *rank_of_case(struct rank *rank, size_t size);
/* Room for a descriptor, -1, that the harness closes then. */
int *rank_keep_descriptor(struct rank *rank);
/* Starts a thread of the role. The case joins it. */
pthread_t rank_thread(struct rank *rank, void *(*run)(void *), void *argument);

/* Whether the role's peer is its own BMI. */
bool rank_is_self(const struct rank *rank);
int rank_other(const struct rank *rank);

/* Sends bytes to another role, which gets them in order. rank_read makes progress in BMI;
 * rank_read_idle does not, so that no message arrives in the meantime. */
void rank_write(struct rank *rank, int role, const void *bytes, size_t size);
void rank_read(struct rank *rank, int role, void *bytes, size_t size);
void rank_read_idle(struct rank *rank, int role, void *bytes, size_t size);
void rank_signal(struct rank *rank, int role);
void rank_await_signal(struct rank *rank, int role);
/* Roles 0 and 1 wait for each other. */
void rank_barrier(struct rank *rank);
void rank_barrier_idle(struct rank *rank);
/* Ends the process at once, as a crash. */
_Noreturn void rank_crash(struct rank *rank);
/* Waits until another role's process has ended, and the system has closed its descriptors. */
void rank_wait_for_end(struct rank *rank, int role);

/* ---- operations ---------------------------------------------------------------------------- */

void op_send(struct rank *rank, struct op *op, const void *buffer, bmi_size_t size,
             bmi_msg_tag_t tag);
void op_receive(struct rank *rank, struct op *op, void *buffer, bmi_size_t size, bmi_msg_tag_t tag);
void op_send_unexpected(struct rank *rank, struct op *op, const void *buffer, bmi_size_t size,
                        bmi_msg_tag_t tag);
/* The same to any address. */
enum post_kind { POST_SEND, POST_UNEXPECTED, POST_RECEIVE };
void op_post(struct rank *rank, struct op *op, enum post_kind kind, BMI_addr_t peer, void *buffer,
             bmi_size_t size, bmi_msg_tag_t tag);

struct list {
    void **buffers;
    bmi_size_t *sizes;
    int count;
    bmi_size_t total;
    void *memory; /* list_make's */
};
void op_post_list(struct rank *rank, struct op *op, enum post_kind kind, BMI_addr_t peer,
                  const struct list *list, bmi_msg_tag_t tag);
void op_send_list(struct rank *rank, struct op *op, const struct list *list, bmi_msg_tag_t tag);
void op_receive_list(struct rank *rank, struct op *op, const struct list *list, bmi_msg_tag_t tag);

/* Passes the completions that BMI_testcontext reports within `ms` to the ops; returns
 * their number. */
int op_collect(struct rank *rank, int ms);
/* Waits until it is done; ends the case when that takes too long. */
void op_wait(struct rank *rank, struct op *op);
/* Waits; checks success and the bytes moved. */
void op_finish(struct rank *rank, struct op *op, bmi_size_t size);
/* Waits; checks the error, and that no bytes are reported. */
void op_finish_error(struct rank *rank, struct op *op, bmi_error_code_t error);
/* Cancels and waits; it must end with ECANCEL or, if `may_succeed`, with success. */
void op_cancel(struct rank *rank, struct op *op, bool may_succeed);
/* Waits, for a while, until no message is left without a receive; checks that. */
void none_unmatched(struct rank *rank);
/* Whether this error means that the peer's connection is lost. */
bool error_is_loss(bmi_error_code_t error);

/* Fetches the next unexpected message; ends the case when none comes. */
void unexpected_take(struct rank *rank, struct BMI_unexpected_info *info);
void unexpected_give_back(struct rank *rank, struct BMI_unexpected_info *info);

/* One message from SENDER to RECEIVER, every byte checked. */
enum message_order { TOGETHER, RECEIVE_FIRST, SEND_FIRST };
void message_pass(struct rank *rank, bmi_size_t size, bmi_msg_tag_t tag, enum message_order order);

/* A message each way, then both roles synchronize: all connections are up. Tags 0x77000000 and the
   next.
 */
void rank_warm_up(struct rank *rank);
/* One small message within one role, whose peer is itself. */
void message_pass_self(struct rank *rank);

/* ---- support ------------------------------------------------------------------------------- */

void *memory_take(struct rank *rank, bmi_size_t size); /* zeroed; ends the case on failure */
void memory_give_back(void *memory);
void pattern_fill(void *buffer, bmi_size_t size, uint64_t seed);
/* As if the bytes began at `offset` of a larger pattern. */
void pattern_fill_from(void *buffer, bmi_size_t size, uint64_t seed, bmi_size_t offset);
bool pattern_holds(const void *buffer, bmi_size_t size, uint64_t seed);
bool pattern_holds_from(const void *buffer, bmi_size_t size, uint64_t seed, bmi_size_t offset);

/* Lists of `count` segments of total size `total`, sizes by a generator seeded; about one in
 * `empty_every` is empty (0: none). */
struct list list_make(struct rank *rank, int count, bmi_size_t total, uint64_t seed,
                      unsigned empty_every);
/* All segments the same `period` bytes of memory. */
struct list list_repeat(struct rank *rank, void *buffer, bmi_size_t period, int count);
void list_fill(const struct list *list, uint64_t seed);
bool list_holds(const struct list *list, bmi_size_t size, uint64_t seed);
void list_free(struct list *list);

uint64_t random_next(uint64_t *state);
void random_shuffle(int *numbers, int count, uint64_t seed);

int64_t now_ms(void);
int64_t thread_cpu_ms(void);
int64_t process_cpu_ms(void);
/* How much slower than usual this run is (CONFORMANCE_PATIENCE in the environment; sanitizers). */
int patience(void);
/* From here on no timer of the library wakes a waiting thread: only a missing wake-up remains. */
void timers_quieten(struct rank *rank);
/* Whether a sanitizer or valgrind is at work, so that large memory or speed are not possible. */
bool instrumented(void);

/* An address of the method without a listener. With CONFORMANCE_PORTS the rank keeps a socket that
 * reserves the port. */
void refused_address(struct rank *rank, char *url, size_t size);
/* Different legal addresses; no message may be sent there. */
void made_up_address(struct rank *rank, int number, char *url, size_t size);
/* A listening socket of another protocol on 127.0.0.1; returns its port. */
int plain_listener(struct rank *rank, int *descriptor);
int plain_connect(const char *host, int port); /* descriptor or -errno */
/* The port in "scheme://host:port", or 0. */
int url_port(const char *url);

/* The text on standard output and error between the two calls. Returns its length. */
struct capture {
    int file, saved[2];
};
void capture_begin(struct rank *rank, struct capture *capture);
size_t capture_end(struct rank *rank, struct capture *capture, char *text, size_t size);

/* The description of the method under test by bmi_method_next. */
struct bmi_method_info method_info(struct rank *rank);
struct bmi_statistics statistics_of(struct rank *rank, BMI_addr_t addr);
struct bmi_method_statistics method_statistics(struct rank *rank);
/* The largest unexpected message that can be sent: BMI_GET_UNEXP_SIZE may report less. */
int unexpected_limit(struct rank *rank);

/* Every file's cases; each table ends with a NULL name. */
extern const struct conformance_case *const conformance_tables[];

/* Runs roles of one case, in their own process: ranks[0..count) are its roles, of all copies.
 * Returns the process's exit status. */
int rank_run(struct rank *ranks, int count);

/* ---- the instance of a role ------------------------------------------------------------------ */

/* Calls that name no context and no address are for the default instance. In CONFORMANCE_INSTANCES
 * they become calls for the instance of the role that the thread belongs to. */
int instance_open_context(bmi_context_id *context);
int instance_addr_lookup(BMI_addr_t *addr, const char *url);
int instance_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *infos, int ms);
int instance_set_info(BMI_addr_t addr, int option, void *value);
int instance_get_info(BMI_addr_t addr, int option, void *value);
int instance_rpc_register(const char *name, const struct bmi_rpc_service *service);
int instance_rpc_unregister(const char *name);
/* Start and end of the role's instance. */
int instance_start(struct rank *rank, const char *methods, const char *listen, int flags);
int instance_stop(struct rank *rank);
/* Runs the roles of all copies, each in a thread of its own. */
void instances_run(struct rank *ranks, int count);
/* Starts BMI, runs the case, and stops BMI, for one role. */
void rank_play(struct rank *rank);
/* Frees the memory of rank_keep, and closes the descriptors. */
void rank_release(struct rank *rank);

#ifndef INSTANCE_INTERNAL
#define BMI_open_context(context) instance_open_context(context)
#define BMI_testunexpected(...) instance_testunexpected(__VA_ARGS__)
#define BMI_set_info(addr, option, value) instance_set_info((addr), (option), (value))
#define BMI_get_info(addr, option, value) instance_get_info((addr), (option), (value))
#define bmi_rpc_register(name, service) instance_rpc_register((name), (service))
#define bmi_rpc_unregister(name) instance_rpc_unregister(name)
#ifndef BMI_CLASSIC_API
#define BMI_addr_lookup(addr, url) instance_addr_lookup((addr), (url))
#endif
#endif

/* ---- positions: a failure inside the harness is reported with the line of the case ----------- */

void rank_at(struct rank *rank, const char *file, int line);
/* A failure at the last position. */
void rank_fail_here(struct rank *rank, bool fatal, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifndef HARNESS_INTERNAL
#define HARNESS_AT(rank) rank_at((rank), __FILE__, __LINE__)
#define rank_start_server(rank, ...) (HARNESS_AT(rank), rank_start_server((rank), __VA_ARGS__))
#define rank_start_client(rank) (HARNESS_AT(rank), rank_start_client(rank))
#define rank_stop(rank) (HARNESS_AT(rank), rank_stop(rank))
#define rank_look_up(rank, url) (HARNESS_AT(rank), rank_look_up((rank), (url)))
#define rank_hello_send(rank) (HARNESS_AT(rank), rank_hello_send(rank))
#define rank_hello_receive(rank) (HARNESS_AT(rank), rank_hello_receive(rank))
#define rank_read(rank, ...) (HARNESS_AT(rank), rank_read((rank), __VA_ARGS__))
#define rank_read_idle(rank, ...) (HARNESS_AT(rank), rank_read_idle((rank), __VA_ARGS__))
#define rank_await_signal(rank, role) (HARNESS_AT(rank), rank_await_signal((rank), (role)))
#define rank_barrier(rank) (HARNESS_AT(rank), rank_barrier(rank))
#define rank_barrier_idle(rank) (HARNESS_AT(rank), rank_barrier_idle(rank))
#define op_send(rank, ...) (HARNESS_AT(rank), op_send((rank), __VA_ARGS__))
#define op_receive(rank, ...) (HARNESS_AT(rank), op_receive((rank), __VA_ARGS__))
#define op_send_unexpected(rank, ...) (HARNESS_AT(rank), op_send_unexpected((rank), __VA_ARGS__))
#define op_post(rank, ...) (HARNESS_AT(rank), op_post((rank), __VA_ARGS__))
#define op_post_list(rank, ...) (HARNESS_AT(rank), op_post_list((rank), __VA_ARGS__))
#define op_send_list(rank, ...) (HARNESS_AT(rank), op_send_list((rank), __VA_ARGS__))
#define op_receive_list(rank, ...) (HARNESS_AT(rank), op_receive_list((rank), __VA_ARGS__))
#define op_collect(rank, ms) (HARNESS_AT(rank), op_collect((rank), (ms)))
#define op_wait(rank, op) (HARNESS_AT(rank), op_wait((rank), (op)))
#define op_finish(rank, ...) (HARNESS_AT(rank), op_finish((rank), __VA_ARGS__))
#define op_finish_error(rank, ...) (HARNESS_AT(rank), op_finish_error((rank), __VA_ARGS__))
#define op_cancel(rank, ...) (HARNESS_AT(rank), op_cancel((rank), __VA_ARGS__))
#define unexpected_take(rank, info) (HARNESS_AT(rank), unexpected_take((rank), (info)))
#define unexpected_give_back(rank, info) (HARNESS_AT(rank), unexpected_give_back((rank), (info)))
#define rank_warm_up(rank) (HARNESS_AT(rank), rank_warm_up(rank))
#define message_pass_self(rank) (HARNESS_AT(rank), message_pass_self(rank))
#define message_pass(rank, ...) (HARNESS_AT(rank), message_pass((rank), __VA_ARGS__))
#endif

#endif
