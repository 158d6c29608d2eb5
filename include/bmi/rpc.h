/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/rpc.h - remote procedure calls: header first, body in place.
 *
 * After Madeleine (Bouge, Mehaut, Namyst: "Madeleine: An Efficient and Portable Communication
 * Interface for RPC-based Multithreaded Environments", 1999). A message is built piece by piece and
 * taken apart in the same order. Express pieces are there as soon as the message is noticed; from
 * them the receiver learns how large the others are and where they go. The others are then read
 * straight to that place, from the socket or by the NIC. So a receiver need not know a size in
 * advance, and there is neither a guessed buffer nor a further copy.
 *
 * A call sends a request to a named service and receives one reply. It is an operation of bmi.h: it
 * has an id, completes in a context, and can be cancelled. docs/rpc.md shows the messages of a
 * call, and what each mode costs.
 *
 * Errors are negated BMI errors. BMI must be initialized, except for packing and unpacking. A
 * message belongs to one thread at a time.
 */
#ifndef BMI_RPC_H
#define BMI_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bmi.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bmi_message;
struct bmi_rpc_request;

/* ---- messages -------------------------------------------------------------------------------- */

/* The mode of a piece: one of the first three (when the sender's memory is read) and one of the
 * last two (when the piece is there for the receiver), added. */
enum bmi_pack_mode {
    BMI_PACK_SAFER = 1,      /* copied by bmi_pack: the memory may change at once */
    BMI_PACK_LATER = 2,      /* read from the post on: the memory is lent from then to the end */
    BMI_PACK_CHEAPER = 4,    /* lent from bmi_pack to the end, and must not change */
    BMI_UNPACK_EXPRESS = 16, /* there when bmi_unpack returns; all of these together are limited:
                                bmi_rpc_limits */
    BMI_UNPACK_CHEAPER = 32  /* there when the message is complete; of any size */
};

/* Makes an empty message to pack. Returns: it; NULL: no memory. Owns: the caller, until it is
 * posted or freed. Threads: any, at any time. Blocks: no. */
struct bmi_message *bmi_message_new(void);

/* Frees a message that was not posted. NULL: nothing. Returns: nothing. Owns: takes the message;
 * the memory of its pieces is the caller's again. Threads: any, at any time. Blocks: no. */
void bmi_message_free(struct bmi_message *message);

/* Adds a piece of `size` bytes (0 is legal). Returns: 0; EINVAL (NULL, size < 0, unknown mode, a
 * message to unpack), EMSGSIZE (too many express bytes, see bmi_rpc_limits), ENOMEM. The first
 * error also fails the post of the message, so a program may check that alone. Owns: as `mode`
 * says. Threads: the message's. Blocks: no. */
int bmi_pack(struct bmi_message *message, const void *memory, bmi_size_t size, unsigned mode);

/* The same for a number, a string with its NUL, and an array of numbers of 1, 2, 4, or 8 bytes;
 * little endian on the way. All are copied, and express. Returns, Owns, Threads, Blocks: as
 * bmi_pack. */
int bmi_pack_u32(struct bmi_message *message, uint32_t value);
int bmi_pack_u64(struct bmi_message *message, uint64_t value);
int bmi_pack_string(struct bmi_message *message, const char *string);
int bmi_pack_array(struct bmi_message *message, const void *array, size_t count, unsigned width);

/* The size of the next piece, in bytes. Returns: 0 and *size; ENODATA: there is none; EINVAL,
 * EBADMSG: as bmi_unpack. Owns: nothing. Threads: the message's. Blocks: no. */
int bmi_unpack_size(struct bmi_message *message, bmi_size_t *size);

/* Takes the next piece, which the sender packed with this size and this mode (BMI_UNPACK_EXPRESS or
 * BMI_UNPACK_CHEAPER). A cheaper piece can be taken until the function that unpacks the message has
 * returned, or until bmi_rpc_resume.
 * Returns: 0; EINVAL (NULL, unknown mode, a message to pack, a cheaper piece too late), ENOMEM;
 *          EBADMSG: the piece is another one, or there is none. After an EBADMSG nothing more can
 *          be unpacked, and the request or reply fails with it.
 * Owns: an express piece is copied; the memory of a cheaper one is lent until the message is
 *       complete: until `run` or `ended`, or the completion of the call. Threads: the message's.
 * Blocks: no. */
int bmi_unpack(struct bmi_message *message, void *memory, bmi_size_t size, unsigned mode);

/* The same for a number. Returns, Owns, Threads, Blocks: as bmi_unpack. */
int bmi_unpack_u32(struct bmi_message *message, uint32_t *value);
int bmi_unpack_u64(struct bmi_message *message, uint64_t *value);

/* The same in place, for an express piece, a string, an array: a pointer into the message, aligned
 * to 8 bytes. Returns, Threads, Blocks: as bmi_unpack. Owns: the message's, until the request has
 * ended or the function that unpacks the reply returns. */
int bmi_unpack_in_place(struct bmi_message *message, const void **memory, bmi_size_t *size);
int bmi_unpack_string(struct bmi_message *message, const char **string);
int bmi_unpack_array(struct bmi_message *message, const void **array, size_t *count,
                     unsigned width);

/* ---- services -------------------------------------------------------------------------------- */

#define BMI_RPC_NAME_MAX 64 /* bytes of a service's name, its NUL included */

/* `arrived` returns it to unpack later, see there. */
#define BMI_RPC_LATER 1

enum bmi_rpc_service_option {
    BMI_RPC_BLOCKING = 1 /* `run` may block: it is called on a thread of the task manager's blocking
                            pool (bmi/task.h). Without it, on the thread that makes progress */
};

/* A service. Unused functions are NULL; `run` is needed.
 *   arrived    the request was noticed: unpacks `arguments`, and so gives each cheaper piece its
 *              place. It is called by the poller, with a lock held: it must not block, and of the
 *              library it may call bmi_unpack's family, the accessors of a request, and BMI_mem*
 *              only. It returns 0; BMI_RPC_LATER: it has not unpacked all, and the program will do
 *              so, on any thread, and call bmi_rpc_resume; or an error, which ends the call. A
 *              service without it has requests without cheaper pieces, and unpacks them in `run`
 *   run        all of the request is there. It, or whatever it starts, ends the request by
 *              bmi_rpc_reply, bmi_rpc_fail, or bmi_rpc_forward; a one-way request, too
 *   cancelled  the caller cancelled a request that runs or was deferred, or has gone. The request
 *              still has to be ended; its reply will not be sent
 *   ended      the request is over, `status` says how: 0 (the reply was sent), ECANCEL, or an
 *              error. Memory of the reply's and the arguments' pieces is the program's again. The
 *              request is gone when it returns. Called for each request whose `arrived` or `run`
 *              was called
 *   timeout_ms a caller's time to send express pieces that travel apart, to send the cheaper ones
 *              from `arrived` or bmi_rpc_resume on, and to take a reply. A request whose rest has
 *              not come by then fails with ETIMEDOUT. Messages of the reply that have not gone are
 *              withdrawn, and the caller gets ETIMEDOUT. `ended` gets ETIMEDOUT, too, unless the
 *              request had failed before. A time without progress counts as an eighth of it. If a
 *              message cannot be withdrawn within another time-out and about cancel_grace_ms, the
 *              connection ends. 0: no such bound
 *   withdrawn  the service was withdrawn, by bmi_rpc_unregister or the last BMI_finalize, and its
 *              last request has ended: `argument` is used no more. It must not block
 * All of one request are called one after the other, but cancelled may be called while a BLOCKING
 * `run` is under way. `run`, `cancelled` and `ended` hold no lock; on the thread that makes
 * progress they must not block. That can be a thread in a post, too (a post after a pause makes a
 * few passes of progress): do not post with a lock held that they take. No function of a service
 * may call BMI_finalize. */
struct bmi_rpc_service {
    int (*arrived)(struct bmi_rpc_request *request, struct bmi_message *arguments);
    void (*run)(struct bmi_rpc_request *request);
    void (*cancelled)(struct bmi_rpc_request *request);
    void (*ended)(struct bmi_rpc_request *request, bmi_error_code_t status);
    void (*withdrawn)(void *argument);
    void *argument;
    unsigned options; /* of enum bmi_rpc_service_option */
    int timeout_ms;
};

/* Offers a service under a name to all peers, until bmi_rpc_unregister or the last BMI_finalize.
 * From the first one on the library offers "bmi.services" as well, which bmi-rpc(1) asks.
 * Returns: 0; EINVAL (not initialized, NULL, no `run`, unknown option, time < 0, empty name),
 *          ENAMETOOLONG, EEXIST (the name is taken), ENOMEM. Owns: both are copied. Threads: any.
 * Blocks: no. */
int bmi_rpc_register(const char *name, const struct bmi_rpc_service *service);

/* Withdraws it: later calls end with ENOSYS. Requests that have arrived go on. Returns: 0; ENOENT;
 * EINVAL. Owns: nothing. Threads: any. Blocks: no. */
int bmi_rpc_unregister(const char *name);

/* Counters of a service. */
struct bmi_rpc_statistics {
    char name[BMI_RPC_NAME_MAX];
    uint64_t requests;            /* that arrived */
    uint64_t failed, cancelled;   /* of these, by how they ended */
    uint64_t running;             /* gauge: not ended */
    uint64_t bytes_in, bytes_out; /* of pieces */
};

/* Walks the services. Returns: 0 and fills *statistics; ENOENT past the last; EINVAL. Owns:
 * nothing. Threads: any. Blocks: no. */
int bmi_rpc_service_next(int index, struct bmi_rpc_statistics *statistics);

/* ---- requests -------------------------------------------------------------------------------- */

/* Of a request: its caller's address, for as long as the request lives; the service's `argument`;
 * the message to unpack; a pointer of the program's own, NULL at first; whether its caller has
 * cancelled it or gone; whether it is one-way. Returns: that. Owns: the request's. Threads: that
 * which handles the request. Blocks: no. */
BMI_addr_t bmi_rpc_address(const struct bmi_rpc_request *request);
void *bmi_rpc_argument(const struct bmi_rpc_request *request);
struct bmi_message *bmi_rpc_arguments(struct bmi_rpc_request *request);
void bmi_rpc_set_data(struct bmi_rpc_request *request, void *data);
void *bmi_rpc_data(const struct bmi_rpc_request *request);
bool bmi_rpc_is_cancelled(const struct bmi_rpc_request *request);
bool bmi_rpc_is_one_way(const struct bmi_rpc_request *request);

/* The rest of a deferred request (BMI_RPC_LATER) has been unpacked; `run` follows when it is there.
 * Returns: 0; EINVAL: not deferred. A request that was cancelled meanwhile just ends. Owns: see
 * bmi_unpack. Threads: any. Blocks: no. */
int bmi_rpc_resume(struct bmi_rpc_request *request);

/* Ends a request with a reply (NULL: an empty one), or with an error. The reply of a one-way
 * request, or of one whose caller has gone, is not sent.
 * Returns: 0; EINVAL (NULL, ended already, a deferred one that was not resumed, error >= 0). An
 *          error of packing the reply ends the call with that error.
 * Owns: takes the reply, also where it fails; the memory of its pieces is lent until `ended`. The
 *       request may be gone when it returns. Threads: any. Blocks: no. */
int bmi_rpc_reply(struct bmi_rpc_request *request, struct bmi_message *reply);
int bmi_rpc_fail(struct bmi_rpc_request *request, bmi_error_code_t error);

/* ---- calls ----------------------------------------------------------------------------------- */

/* Options of a call; NULL means none. */
struct bmi_rpc_options {
    int timeout_ms;       /* the call ends with ETIMEDOUT then; 0: never */
    bmi_size_t reply_max; /* a reply of more bytes ends the call with EMSGSIZE; 0: any */
    unsigned one_way : 1; /* no reply: the call completes when the request has been sent */
};

/* Unpacks a reply: gives each cheaper piece its place. Called by the poller, as a service's
 * `arrived`, with the same restrictions. It returns 0, or an error, with which the call ends. */
typedef int (*bmi_rpc_unpack)(struct bmi_message *reply, void *argument);

/* Calls a service. It completes in the context as a post of bmi.h does, with the size of the
 * reply as actual size: that of its pieces, express ones padded to 8, and 8 for each. It never
 * completes within the post. It is executed at most once: a request is never sent again.
 *   request   NULL: an empty one
 *   unpack    NULL: the reply is empty; unpack_argument is handed to it
 * Returns: 0: pending; <0: refused, as posts (bmi.h), an error of packing, ENAMETOOLONG. Completion
 *          errors: those of posts; ETIMEDOUT, ECANCEL; ENOSYS: no such service; EBADMSG: the
 *          request or the reply was not unpacked as it was packed; EMSGSIZE: beyond reply_max, or
 *          beyond the server's limit of express bytes; each other: as the service failed.
 * Owns: takes the request, also where it is refused; the memory of its pieces is lent until the
 *       completion, as that of the reply's places. Threads: any. Blocks: no. */
int bmi_rpc_call(bmi_op_id_t *id, BMI_addr_t server, const char *service,
                 struct bmi_message *request, bmi_rpc_unpack unpack, void *unpack_argument,
                 const struct bmi_rpc_options *options, void *user_ptr, bmi_context_id context_id);

/* Ends a request by a call of a service, mostly one of another server, with the same arguments: the
 * caller gets the reply of that call, or its error, as if this server had replied. All pieces of
 * the request are there, as for bmi_rpc_reply. They are sent from where they lie: the express ones
 * from the library's memory, cheaper ones from the places that `arrived` named. The reply is
 * received to memory of the library, up to the options' reply_max, and sent on when it is whole.
 *   options   NULL: none. Those of the call, but it is one-way if, and only if, the request is
 * If the caller cancels the request, or goes, the call is cancelled; the service's `cancelled` is
 * not called any more.
 * Returns: 0: `ended` follows, with 0 (the reply was sent; one-way: the request), ECANCEL, or the
 *          error with which the call was refused or has ended. <0: the request still has to be
 *          ended: EINVAL (as bmi_rpc_reply; wrong options; empty name), ENAMETOOLONG, ENOMEM.
 * Owns: the name and the options are copied; the places are lent until `ended`, and must not
 *       change. The request may be gone when it returns. Threads: any. Blocks: no. */
int bmi_rpc_forward(struct bmi_rpc_request *request, BMI_addr_t server, const char *service,
                    const struct bmi_rpc_options *options);

/* What this library sends and accepts, in bytes. Returns: nothing. Owns: nothing. Threads: any, at
 * any time. Blocks: no. */
struct bmi_rpc_limits {
    bmi_size_t express_max; /* express bytes of a message, with 8 for each piece */
    bmi_size_t message_max; /* a message up to this size goes as one, its cheaper pieces are copied
                               by the receiver */
    bmi_size_t request_express_max; /* a request's express bytes up to this travel in its header */
};
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
void bmi_rpc_limits(struct bmi_rpc_limits *limits);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#endif
