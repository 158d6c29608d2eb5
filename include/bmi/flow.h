/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow.h - streams between network, memory, and storage.
 *
 * A flow moves the bytes of a request from one endpoint to another, in buffers, several in flight,
 * so that network and storage work at the same time. Endpoints are a BMI peer, regions of memory,
 * and an object's stream (trove.h); all pairs but storage to storage.
 *
 * The request is a list of pieces of a *file*, in logical offsets; the distribution says which of
 * these bytes are on which server and where in that server's stream. A flow concerns one server: it
 * moves those bytes of the request that are this server's, in the order of the request. A client
 * that reads a striped file posts, for each server, a flow from the network to memory, with the
 * same request and memory and the server's number; each server posts one from storage to the
 * network. The pieces that are another server's are skipped:
 *
 *     endpoint   where the next bytes of the flow are
 *     memory     at their place in the request: byte n of the request is byte n of the regions
 *     storage    at the physical offset that the distribution gives
 *     network    in messages of buffer_size bytes (the last one may be smaller), one after another,
 *                under one tag
 *
 * So both sides of a connection need the same request, distribution, server and buffer_size, and a
 * tag that is theirs alone. A message of another size ends the receiving flow with EPROTO. If the
 * source of a sending flow fails, the flow sends an empty message, which ends the other side with
 * EPIPE. A receiving flow that fails ends at once; with BMI_FLOW_DRAIN it receives the remaining
 * messages first, so that the sender does not wait for ever.
 *
 * A flow ends with an error when its connection ends, even if it has no operation posted at that
 * moment. This is the connection that exists when the flow is posted: so post a flow before the
 * message that makes the other side begin.
 *
 * Memory is used in place: between network and memory, and memory and storage, no byte is copied.
 * Posts and tests are as in bmi.h and trove.h: 1 done, 0 pending, <0 refused; errors are BMI's,
 * negated. Steps of flows are tasks of the default manager (bmi/task.h): its workers run them, or
 * without workers the threads that are in test calls. BMI must be initialized for flows with a
 * network endpoint, and flow contexts closed before BMI_finalize. A context belongs to an instance
 * of BMI (bmi/instance.h), the default one or another, which must run until the context is closed;
 * the addresses of its flows are of that instance. A child of fork() that may use BMI (see bmi(7))
 * opens contexts of its own; its parent's are not for it.
 *
 * One wait for several sources: bmi_flow_context_fd, and see the top of trove.h.
 */
#ifndef BMI_FLOW_H
#define BMI_FLOW_H

#include "trove.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bmi_instance;

typedef int64_t bmi_flow_id_t; /* outstanding flow; 0 is none */
typedef int64_t bmi_flow_context_id_t;

/* ---- distributions --------------------------------------------------------------------------- */

/* How a file's bytes lie on its servers' streams: a table of functions. A program may supply its
 * own. `parameters` is the flow's distribution_parameters. Functions must be pure: called by any
 * thread, always the same answer. Offsets are >= 0. A byte is on one server; a server's physical
 * order is the logical order of its bytes. */
struct bmi_flow_distribution {
    const char *name;
    /* The first logical offset >= `logical` that is on `server`; -1: there is none. */
    bmi_size_t (*next_mapped)(const void *parameters, uint32_t server, uint32_t servers,
                              bmi_size_t logical);
    /* The place in the server's stream of a logical offset that is on this server. */
    bmi_size_t (*to_physical)(const void *parameters, uint32_t server, uint32_t servers,
                              bmi_size_t logical);
    /* The logical offset of a byte of the server's stream. */
    bmi_size_t (*to_logical)(const void *parameters, uint32_t server, uint32_t servers,
                             bmi_size_t physical);
    /* How many bytes from `physical` on are contiguous both in the stream and in the file; >= 1. */
    bmi_size_t (*contiguous)(const void *parameters, uint32_t server, uint32_t servers,
                             bmi_size_t physical);
    /* The size that a file has at least if this server's stream has `size` bytes. */
    bmi_size_t (*file_size)(const void *parameters, uint32_t server, uint32_t servers,
                            bmi_size_t size);
};

/* Units of `stripe_size` bytes go to servers 0, 1, ... in turn. Parameters: struct bmi_flow_stripe,
 * or NULL for the default. */
struct bmi_flow_stripe {
    bmi_size_t stripe_size; /* 64 KiB */
};
#define BMI_FLOW_STRIPE_SIZE 65536
extern const struct bmi_flow_distribution bmi_flow_simple_stripe;

/* The whole file is on server 0. No parameters. */
extern const struct bmi_flow_distribution bmi_flow_contiguous;

/* The built-in distribution of that name ("simple_stripe", "contiguous"), e.g. one from a file's
 * metadata. Returns: it, or NULL. Owns: static. Threads: any. Blocks: no. */
const struct bmi_flow_distribution *bmi_flow_distribution_find(const char *name);

/* The size of a file, from the sizes of its streams. Returns: bytes; EINVAL (NULL, no servers).
 * Owns: nothing. Threads: any. Blocks: no. */
bmi_size_t bmi_flow_file_size(const struct bmi_flow_distribution *distribution,
                              const void *parameters, uint32_t servers, const bmi_size_t *sizes);

/* ---- requests -------------------------------------------------------------------------------- */

/* `count` blocks of `size` bytes, `stride` bytes from the start of one to that of the next: count 1
 * is a plain piece. Blocks must not overlap where they are written to. */
struct bmi_flow_extent {
    bmi_size_t offset; /* logical, of the first block */
    bmi_size_t size;
    bmi_size_t stride; /* >= 0; unused with count 1 */
    bmi_size_t count;
};

/* How many bytes a request has: on all servers (server == servers), or those on one.
 * Returns: bytes; EINVAL (bad extents or distribution, server > servers), EFBIG. distribution NULL:
 * contiguous. Owns: nothing. Threads: any. Blocks: no; one server's: the time grows with the number
 * of blocks and pieces (some 10 ns each). */
bmi_size_t bmi_flow_request_size(const struct bmi_flow_extent *extents, int count,
                                 const struct bmi_flow_distribution *distribution,
                                 const void *parameters, uint32_t server, uint32_t servers);

/* ---- flows ----------------------------------------------------------------------------------- */

enum bmi_flow_kind { BMI_FLOW_NETWORK = 1, BMI_FLOW_MEMORY, BMI_FLOW_STORAGE };

struct bmi_flow_endpoint {
    enum bmi_flow_kind kind;
    union {
        struct {
            BMI_addr_t address;
            bmi_msg_tag_t tag;
        } network;
        struct {
            void *const *buffers; /* read only where it is the source */
            const bmi_size_t *sizes;
            int count; /* the total must be at least that of the request, over all servers */
        } memory;
        struct {
            struct bmi_trove_place place;
            unsigned flags; /* BMI_TROVE_SYNC: flushed before the flow ends */
        } storage;
    } u;
};

enum bmi_flow_flag {
    BMI_FLOW_DRAIN = 1, /* see the top */
    BMI_FLOW_ZEROS = 2  /* storage as source: bytes beyond the stream's end are zeros, as in a file
                           with holes; without it, a stream that ends too early ends the flow with
                           ENODATA */
};

/* What to move. Set unused fields to zero. */
struct bmi_flow_description {
    struct bmi_flow_endpoint source, destination;
    const struct bmi_flow_extent *extents; /* the request */
    int extent_count;                      /* 0, or sizes of 0: nothing is moved, and the flow is
                                              done within the post */
    const struct bmi_flow_distribution *distribution; /* NULL: contiguous */
    const void *distribution_parameters;
    uint32_t server, servers; /* the number of this flow's server, and of all; servers 0 is 1 */
    uint32_t flags;           /* of enum bmi_flow_flag */
    uint32_t buffer_count;    /* in flight: 8 (BMI_FLOW_BUFFERS); at most 1024 */
    bmi_size_t buffer_size;   /* 256 KiB (BMI_FLOW_BUFFER_SIZE); at most 1 GiB */
    int timeout_ms;           /* the flow ends with ETIMEDOUT after that; 0: never */
};
#define BMI_FLOW_BUFFERS 8
#define BMI_FLOW_BUFFER_SIZE (256 * 1024)

/* Starts a flow.
 * Returns: 0: pending, a test call reports it once; 1: done within the call; EINVAL (NULL, both
 *          ends storage, bad extents, server, memory too small, invalid context, BMI not
 *          initialized for a network endpoint, an address of another instance than the
 *          context's, which the log says), EFBIG, ENOMEM, EMFILE. Completes with: 0; an error
 *          of the network or of the storage; EPIPE (the sender failed), EPROTO, ENODATA, ETIMEDOUT,
 *          ECANCEL. The first error counts.
 * Owns: memory, extents, arrays of memory regions, and parameters are lent until the completion;
 *       the description is copied. Threads: any. Blocks: no. */
int bmi_flow_post(bmi_flow_id_t *flow, const struct bmi_flow_description *description,
                  void *user_ptr, bmi_flow_context_id_t context);

/* Contexts and tests: exactly as those of trove.h, with flows instead of operations. `actual`
 * counts the bytes known good, also of a failed flow: those that have reached the destination
 * without a gap from the beginning (network: handed over, as by a completed BMI send). Opening a
 * context may fail with EDEADLK, as bmi_trove_open; on a machine with several NUMA nodes the first
 * one may wait, as bmi_task_group_create (bmi/task_group.h). */
int bmi_flow_context_open(bmi_flow_context_id_t *context);
/* As bmi_flow_context_open, which opens a context for flows of the default instance, for any
 * instance. Returns, Owns, Threads, Blocks: as that. -BMI_EINVAL: the instance is NULL or does not
 * run. */
int bmi_instance_flow_context_open(struct bmi_instance *instance, bmi_flow_context_id_t *context);
int bmi_flow_context_close(bmi_flow_context_id_t context);
int bmi_flow_context_fd(bmi_flow_context_id_t context);
int bmi_flow_context_notify(bmi_flow_context_id_t context, void (*notify)(void *argument),
                            void *argument);
int bmi_flow_test(bmi_flow_id_t flow, int *outcount, bmi_error_code_t *error, bmi_size_t *actual,
                  void **user_ptr, int max_idle_ms, bmi_flow_context_id_t context);
int bmi_flow_testsome(int incount, const bmi_flow_id_t *flows, int *outcount, int *index,
                      bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                      int max_idle_ms, bmi_flow_context_id_t context);
int bmi_flow_testcontext(int incount, bmi_flow_id_t *flows, int *outcount, bmi_error_code_t *errors,
                         bmi_size_t *actuals, void **user_ptrs, int max_idle_ms,
                         bmi_flow_context_id_t context);

/* Asks a flow to end: with ECANCEL, or with its real result where that came first; once. The other
 * side of a network flow gets no notice. Returns: 0; EINVAL. Owns: memory stays lent until the
 * completion.
 * Threads: any. Blocks: no. */
int bmi_flow_cancel(bmi_flow_id_t flow, bmi_flow_context_id_t context);

/* How far a flow is. */
struct bmi_flow_progress {
    bmi_size_t total;     /* bytes of the whole flow. With one server, or the distribution
                             contiguous, known from the post on; else -1 until the flow has walked
                             through its request. bmi_flow_request_size computes it at any time */
    bmi_size_t taken;     /* from the source, in all */
    bmi_size_t delivered; /* to the destination, in all */
    bmi_size_t good;      /* of these, without a gap from the beginning */
    bmi_size_t copied;    /* bytes that had to be copied: memory to memory */
    uint32_t in_flight;   /* buffers that are being filled or emptied, or are queued for that */
};

/* Reads it while the flow runs, or before its completion is fetched.
 * Returns: 0; EINVAL (no such flow or context). Owns: nothing. Threads: any. Blocks: no. */
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
int bmi_flow_progress(bmi_flow_id_t flow, struct bmi_flow_progress *progress,
                      bmi_flow_context_id_t context);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#endif
