/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/instance.h - several instances of BMI in a process.
 *
 * An instance is a BMI of its own: its methods, listen addresses, settings, log, address book,
 * connections, contexts, budgets, services, and waiting threads. Two components of a program that
 * open one each share none of these, and neither notices what happens to the other one's peers.
 *
 * The functions of bmi.h that take a context or an address find the instance by it; ids of
 * operations, contexts, and addresses are unique in the process. An operation's context and address
 * must belong to one instance (-BMI_EINVAL). The other functions of bmi.h act on the default
 * instance, which BMI_initialize starts. For the rest of the instances the functions below do that.
 *
 * Until it has a callback of its own (BMI_LOG_CALLBACK), an instance logs to that of the default
 * instance, if there is one when it is opened, with its name in front of each text; otherwise to
 * standard error, as its setting `log` says. Calls of one callback by two instances may overlap.
 *
 * A process has one task manager, whatever its instances. Contexts of jobs and flows belong to an
 * instance (bmi_instance_job_context_open, bmi_instance_flow_context_open), those of trove to none.
 * Names of the loop method are an instance's own.
 *
 * After a fork, the child may use the parent's instances as bmi(7) says for the default one.
 */
#ifndef BMI_INSTANCE_PUBLIC_H
#define BMI_INSTANCE_PUBLIC_H

#include "../bmi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bmi_instance;
struct bmi_rpc_service;
struct bmi_rpc_statistics;

enum { BMI_INSTANCE_NAME_MAX = 32 }; /* bytes, with the final null */

/* What to open. All zero: no method runs before an address is looked up, and nothing is listened
 * on. */
struct bmi_instance_options {
    const char *name;     /* for the log and the report: 1 to 31 letters, digits, '.', '_', '-';
                           * should be unique in the process: of equal ones only the first has a
                           * report. NULL: "instance" and a number */
    const char *methods;  /* as BMI_initialize's; NULL: as look-ups need them */
    const char *listen;   /* as BMI_initialize's listen_addr, with BMI_INIT_SERVER in flags */
    const char *settings; /* "name=value[,name=value...]": of this instance, ahead of the
                           * environment and the configuration file; NULL: none */
    int flags;            /* BMI_INIT_SERVER, BMI_TCP_BIND_SPECIFIC, BMI_AUTO_REF_COUNT,
                           * BMI_INIT_BACKGROUND */

    /* For simulations: time and random numbers of the instance, so that a run of one thread over
     * the loop method depends on them alone. They are called with locks of the instance held, and
     * must not call BMI; only `wait` may call other instances.
     *   now_ns  the clock: nanoseconds, and never less than before; NULL: CLOCK_MONOTONIC
     *   wait    set if and only if now_ns is; called in place of any wait for events. It returns
     *           when the clock has come to until_ns, or before. Such an instance makes no progress
     *           in the background
     *   random  writes random bytes; returns 0, or an errno, negated; NULL: OpenSSL's, which are
     *           fit for secrets */
    uint64_t (*now_ns)(void *argument);
    void (*wait)(void *argument, uint64_t until_ns);
    int (*random)(void *argument, void *bytes, size_t size);
    void *argument; /* of these functions */
};

/* Opens an instance. `options` may be NULL. Returns: 0; or as BMI_initialize, with the cause in the
 * log: then *instance is NULL. Owns: the instance is the caller's, until bmi_instance_close; the
 * options are copied. Threads: any. Blocks: as BMI_initialize. */
int bmi_instance_open(struct bmi_instance **instance, const struct bmi_instance_options *options);

/* Ends all operations, closes the connections and contexts, and frees the instance, as the last
 * BMI_finalize does with the default one. NULL: nothing is done. Returns: 0; -BMI_EDEADLK: as
 * BMI_finalize, and the instance stays open; -BMI_EINVAL: it is the default instance. Owns: the
 * instance, its addresses, contexts, and operations are gone; fetched unexpected messages are still
 * to be freed. Threads: any, while no other thread is in a call that uses the instance. Blocks: as
 * BMI_finalize: for its setting linger_ms at most, and 1 s. */
int bmi_instance_close(struct bmi_instance *instance);

/* The instance that the functions of bmi.h act on. Returns: it, also before BMI_initialize. Owns:
 * the library's. Threads: any. Blocks: no. */
struct bmi_instance *bmi_instance_default(void);

/* The instance of a context, or of an address. Returns: it; NULL: there is no such context or
 * address. Owns: nothing. Threads: any. Blocks: no. */
struct bmi_instance *bmi_instance_of_context(bmi_context_id context_id);
struct bmi_instance *bmi_instance_of_addr(BMI_addr_t addr);

/* The name of an instance; "" for the default one. Returns: a string. Owns: the instance's.
 * Threads: any. Blocks: no. */
const char *bmi_instance_name(const struct bmi_instance *instance);

/* As BMI_open_context, BMI_addr_lookup, BMI_testunexpected, and BMI_memalloc, for an instance; the
 * memory is not registered for any method. Returns, Owns, Threads, Blocks: as those. -BMI_EINVAL
 * (NULL): the instance is NULL or does not run. BMI_close_context, BMI_unexpected_free and
 * BMI_memfree take back memory of any instance. */
int bmi_instance_open_context(struct bmi_instance *instance, bmi_context_id *context_id);
int bmi_instance_addr_lookup(struct bmi_instance *instance, BMI_addr_t *new_addr,
                             const char *id_string);
int bmi_instance_testunexpected(struct bmi_instance *instance, int incount, int *outcount,
                                struct BMI_unexpected_info *info_array, int max_idle_time_ms);
void *bmi_instance_memalloc(struct bmi_instance *instance, bmi_size_t size);

/* As BMI_set_info and BMI_get_info with address 0, for an instance: BMI_SETTING,
 * BMI_LOG_CALLBACK, BMI_BACKGROUND, BMI_GET_LISTEN_ADDR, BMI_GET_STATISTICS, and the like. Returns,
 * Owns, Threads, Blocks: as those. */
int bmi_instance_set_info(struct bmi_instance *instance, int option, void *inout_parameter);
int bmi_instance_get_info(struct bmi_instance *instance, int option, void *inout_parameter);

/* As bmi_rpc_register, bmi_rpc_unregister, and bmi_rpc_service_next (bmi/rpc.h), for an instance.
 * Returns, Owns, Threads, Blocks: as those. */
int bmi_instance_rpc_register(struct bmi_instance *instance, const char *name,
                              const struct bmi_rpc_service *calls);
int bmi_instance_rpc_unregister(struct bmi_instance *instance, const char *name);
int bmi_instance_rpc_service_next(struct bmi_instance *instance, int index,
                                  struct bmi_rpc_statistics *statistics);

#ifdef __cplusplus
}
#endif

#endif
