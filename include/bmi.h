/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi.h - the Buffered Message Interface, the classic API.
 *
 * A connectionless message layer for parallel I/O, after BMI of PVFS2 (Carns, Ligon, Ross, Wyckoff,
 * "BMI: A Network Abstraction Layer for Parallel I/O", IPDPS/CAC 2005). Post a send or a receive to
 * an address, test a context for completions, fetch unexpected messages. Names, argument
 * orders and numeric values are fixed; programs written for the classic header recompile unchanged.
 *
 * Every function returns a negative BMI error on failure (bmi_status_string names it). Sizes are in
 * bytes, times in milliseconds. Unless its comment says otherwise a function may be called by any
 * thread between BMI_initialize and BMI_finalize, and does not block. At any time: BMI_SETTING and
 * BMI_LOG_CALLBACK of BMI_set_info; BMI_SETTING, BMI_CHECK_INIT and BMI_TRANSPORT_METHODS_STRING of
 * BMI_get_info; the functions that describe methods, settings and errors.
 */
#ifndef BMI_H
#define BMI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BMI_VERSION_MAJOR 0
#define BMI_VERSION_MINOR 2
#define BMI_VERSION_PATCH 0

/* ---- types -------------------------------------------------------------------------------- */

typedef int64_t bmi_size_t;     /* bytes */
typedef int32_t bmi_msg_tag_t;  /* user's message tag: any value, negative ones too */
typedef int64_t bmi_context_id; /* completion context */
typedef int64_t bmi_op_id_t;    /* outstanding operation; 0 is none */
typedef int64_t BMI_addr_t;     /* peer's address handle; its upper 32 bits differ between peers */
typedef int32_t bmi_error_code_t; /* 0 or a negated BMI error */

struct PVFS_hint_s;
typedef struct PVFS_hint_s *bmi_hint; /* opaque; NULL is normal, ignored otherwise */

#define BMI_MAX_ADDR_LEN 2048 /* bytes of an address string, its NUL included */

enum bmi_op_type { BMI_SEND = 1, BMI_RECV = 2 };

enum bmi_buffer_type {
    BMI_PRE_ALLOC = 1, /* memory from BMI_memalloc */
    BMI_EXT_ALLOC = 2  /* any other memory */
};

/* flags of BMI_initialize */
enum {
    BMI_INIT_SERVER = 1,       /* listen on the addresses given */
    BMI_TCP_BIND_SPECIFIC = 2, /* bind to the listen address's host only, not to all interfaces */
    BMI_AUTO_REF_COUNT = 4,    /* each unexpected message adds a reference to its address */

    /* this library's own */
    BMI_INIT_BACKGROUND = 0x1000 /* messages move also while the program computes: BMI_BACKGROUND */
};

/* options of BMI_set_info and BMI_get_info; the parameter's type stands behind each */
enum {
    BMI_DROP_ADDR = 1,            /* set: forget an address, and close the connection that only this
                                     address uses */
    BMI_CHECK_INIT = 2,           /* get: int, nonzero if initialized. With NULL the function's
                                     status is the answer: 0, or ENETDOWN */
    BMI_CHECK_MAXSIZE = 3,        /* get: int, largest expected message (clamped to INT_MAX) */
    BMI_GET_METH_ADDR = 4,        /* get: void *, the method's link of this address or NULL */
    BMI_INC_ADDR_REF = 5,         /* set: add a reference (parameter unused) */
    BMI_DEC_ADDR_REF = 6,         /* set: drop a reference (parameter unused) */
    BMI_DROP_ADDR_QUERY = 7,      /* get: int, nonzero if there is no connection to close */
    BMI_FORCEFUL_CANCEL_MODE = 8, /* set: accepted, changes nothing */
    BMI_TRUSTED_CONNECTION = 9,   /* set: accepted, changes nothing */
    BMI_GET_UNEXP_SIZE = 10,      /* get: int, largest unexpected message that programs should send:
                                     16384, or the value set (const int *, for the whole library),
                                     at most the peer's limit. Larger messages up to that limit
                                     still go */
    BMI_TCP_BUFFER_SEND_SIZE = 11, /* set, get: int, bytes of socket send buffer; 0 = automatic */
    BMI_TCP_BUFFER_RECEIVE_SIZE = 12, /* set, get: int, bytes of receive buffer; 0 = automatic */
    BMI_TCP_CLOSE_SOCKET = 13,        /* set: close the address's connection (parameter unused) */
    BMI_OPTIMISTIC_BUFFER_REG = 14,   /* set: struct bmi_optimistic_buffer_info; accepted, changes
                                        nothing: memory is registered as it is used */
    BMI_TCP_CHECK_UNEXPECTED = 15,    /* get: int, unexpected messages of the address not fetched */
    BMI_TRANSPORT_METHODS_STRING = 16, /* get: char *, methods built in, "tcp,gm,..."; the caller's
                                          to free(); returns how many; at any time */
    BMI_TCP_GET_PORT = 17,             /* get: int, the first tcp port listened on; without tcp,
                                          another method's; 0: the process does not listen */

    /* this library's own */
    BMI_GET_LISTEN_ADDR = 1000, /* get: char[BMI_MAX_ADDR_LEN], addresses listened on */
    BMI_GET_CONTEXT_FD = 1001,  /* get: struct bmi_context_fd, in: context, out: fd */
    BMI_GET_STATISTICS = 1002,  /* get: struct bmi_statistics; an address of 0: the whole library */
    BMI_SETTING = 1003,         /* set: const char *, "name=value"; get: struct bmi_setting */
    BMI_LOG_CALLBACK = 1004,    /* set: struct bmi_log_callback */
    BMI_GET_METHOD_STATISTICS = 1005,  /* get: struct bmi_method_statistics, in: name */
    BMI_GET_CONTEXT_STATISTICS = 1006, /* get: struct bmi_context_statistics, in: context */
    BMI_REAP_IDLE = 1007,    /* set: const int *, seconds; close connections idle that long. If the
                             idle time of one is not known, it counts from now */
    BMI_BACKGROUND = 1008,   /* set: const int *, 1: a thread of the library moves messages while no
                             thread of the program is in a test call; 0: test calls only (default).
                             get: int. Same as the setting `progress` */
    BMI_PEER_IDENTITY = 1009 /* get: struct bmi_peer_identity, the name that an address's connection
                                has proved. ENXIO: not connected; EOPNOTSUPP: the method
                                proves none */
};

/* ---- errors: BMI_ERROR is in all, negated where returned ----------------------------------- */

#define BMI_ERROR (1 << 7)
#define BMI_NON_ERRNO_ERROR_BIT (1 << 29)
#define BMI_ERROR_BIT (1 << 30)
#define BMI_E(number) ((number) | BMI_ERROR_BIT | BMI_ERROR)
#define BMI_EN(number) ((number) | BMI_NON_ERRNO_ERROR_BIT | BMI_ERROR_BIT | BMI_ERROR)

#define BMI_EPERM BMI_E(1)
#define BMI_ENOENT BMI_E(2)
#define BMI_EINTR BMI_E(3)
#define BMI_EIO BMI_E(4)
#define BMI_ENXIO BMI_E(5)
#define BMI_EBADF BMI_E(6)
#define BMI_EAGAIN BMI_E(7)
#define BMI_ENOMEM BMI_E(8)
#define BMI_EFAULT BMI_E(9)
#define BMI_EBUSY BMI_E(10)
#define BMI_EEXIST BMI_E(11)
#define BMI_ENODEV BMI_E(12)
#define BMI_ENOTDIR BMI_E(13)
#define BMI_EISDIR BMI_E(14)
#define BMI_EINVAL BMI_E(15)
#define BMI_EMFILE BMI_E(16)
#define BMI_EFBIG BMI_E(17)
#define BMI_ENOSPC BMI_E(18)
#define BMI_EROFS BMI_E(19)
#define BMI_EMLINK BMI_E(20)
#define BMI_EPIPE BMI_E(21)
#define BMI_EDEADLK BMI_E(22)
#define BMI_ENAMETOOLONG BMI_E(23)
#define BMI_ENOLCK BMI_E(24)
#define BMI_ENOSYS BMI_E(25)
#define BMI_ENOTEMPTY BMI_E(26)
#define BMI_ELOOP BMI_E(27)
#define BMI_EWOULDBLOCK BMI_E(28)
#define BMI_ENOMSG BMI_E(29)
#define BMI_EUNATCH BMI_E(30)
#define BMI_EBADR BMI_E(31)
#define BMI_EDEADLOCK BMI_E(32)
#define BMI_ENODATA BMI_E(33)
#define BMI_ETIME BMI_E(34)
#define BMI_ENONET BMI_E(35)
#define BMI_EREMOTE BMI_E(36)
#define BMI_ECOMM BMI_E(37)
#define BMI_EPROTO BMI_E(38)
#define BMI_EBADMSG BMI_E(39)
#define BMI_EOVERFLOW BMI_E(40)
#define BMI_ERESTART BMI_E(41)
#define BMI_EMSGSIZE BMI_E(42)
#define BMI_EPROTOTYPE BMI_E(43)
#define BMI_ENOPROTOOPT BMI_E(44)
#define BMI_EPROTONOSUPPORT BMI_E(45)
#define BMI_EOPNOTSUPP BMI_E(46)
#define BMI_EADDRINUSE BMI_E(47)
#define BMI_EADDRNOTAVAIL BMI_E(48)
#define BMI_ENETDOWN BMI_E(49)
#define BMI_ENETUNREACH BMI_E(50)
#define BMI_ENETRESET BMI_E(51)
#define BMI_ENOBUFS BMI_E(52)
#define BMI_ETIMEDOUT BMI_E(53)
#define BMI_ECONNREFUSED BMI_E(54)
#define BMI_EHOSTDOWN BMI_E(55)
#define BMI_EHOSTUNREACH BMI_E(56)
#define BMI_EALREADY BMI_E(57)
#define BMI_EACCES BMI_E(58)
#define BMI_ECONNRESET BMI_E(59)

#define BMI_ECANCEL BMI_EN(1)
#define BMI_EDEVINIT BMI_EN(2)
#define BMI_EDETAIL BMI_EN(3)
#define BMI_EHOSTNTFD BMI_EN(4)
#define BMI_EADDRNTFD BMI_EN(5)
#define BMI_ENORECVR BMI_EN(6)
#define BMI_ETRYAGAIN BMI_EN(7)

/* ---- structures ---------------------------------------------------------------------------- */

/* One unexpected message, reported by BMI_testunexpected. */
struct BMI_unexpected_info {
    bmi_error_code_t error_code; /* 0 */
    BMI_addr_t addr;             /* the sender; replies go there */
    void *buffer;                /* BMI's until BMI_unexpected_free(addr, buffer) */
    bmi_size_t size;
    bmi_msg_tag_t tag;
};

/* BMI_OPTIMISTIC_BUFFER_REG: memory that will be sent from or received to. */
enum BMI_io_type { BMI_IO_READ = 1, BMI_IO_WRITE = 2 };
struct bmi_optimistic_buffer_info {
    const void *buffer;
    bmi_size_t len; /* bytes */
    enum BMI_io_type rw;
};

/* BMI_GET_CONTEXT_FD: one descriptor to put into a program's own poll, select, or epoll loop. It is
 * readable (level-triggered) while the context has a completion, an unexpected message waits, or
 * the network has work: then call BMI_testcontext and BMI_testunexpected with 0 ms until they
 * report nothing. Never read, write, or close it; it is valid until BMI_close_context. */
struct bmi_context_fd {
    bmi_context_id context; /* in */
    int fd;                 /* out */
};

/* BMI_SETTING for get: fills `value` with the present value of the setting, as text. */
struct bmi_setting {
    const char *name; /* in */
    char value[256];  /* out, NUL-terminated */
};

/* BMI_PEER_IDENTITY: of a tls peer the name in its certificate that was accepted, or the identity
 * of the shared key that it knows. A name belongs to the present connection. */
struct bmi_peer_identity {
    char name[256];       /* out, NUL-terminated, printable ASCII */
    char protection[128]; /* out, for people: "TLS 1.3, TLS_AES_128_GCM_SHA256, resumed" */
    int64_t expires_s;    /* out: when the name is valid no more, as time(2); 0: no such time */
};

enum bmi_log_level {
    BMI_LOG_OFF = 0,
    BMI_LOG_ERROR = 1,
    BMI_LOG_WARN = 2,
    BMI_LOG_INFO = 3,
    BMI_LOG_DEBUG = 4,
    BMI_LOG_TRACE = 5
};

/* BMI_LOG_CALLBACK: messages up to `level` go to `write` instead of standard error. The callback
 * runs on whichever thread logs, with locks held: it must not call BMI. NULL restores the default.
 * Peers can cause warnings, so at most 100 a second are written, and then the number of those left
 * out. */
struct bmi_log_callback {
    void (*write)(void *argument, enum bmi_log_level level, const char *text);
    void *argument;
    enum bmi_log_level level;
};

/* BMI_GET_STATISTICS of one address, or of all (address 0). Counters only grow; gauges
 * are marked. */
struct bmi_statistics {
    uint64_t messages_sent, messages_received; /* that succeeded; unexpected messages
                                                  not included */
    uint64_t bytes_sent, bytes_received;       /* bodies of both, of unexpected messages as well */
    uint64_t unexpected_sent, unexpected_received;        /* received: also if not fetched yet */
    uint64_t eager_sent, rendezvous_sent, announced_sent; /* how expected messages went */
    uint64_t announcements;                    /* receives that were announced to the sender before
                                                  it asked */
    uint64_t puts, put_bytes, gets, get_bytes; /* remote memory operations */
    uint64_t copies, copied_bytes;             /* bodies that were copied through the library's
                                                  memory */
    uint64_t credit_waits;                     /* sends that waited for the peer's memory */
    uint64_t connects, reconnects, accepts;
    uint64_t errors; /* operations that failed, without cancelled ones */
    uint64_t cancels;
    uint64_t outstanding_sends, outstanding_receives; /* gauge */
    uint64_t unmatched_messages, unmatched_bytes;     /* gauge: memory held for them */
    uint64_t unexpected_waiting, unexpected_bytes;    /* gauge: not fetched or not freed */
};

/* BMI_GET_METHOD_STATISTICS: counters of one method. */
struct bmi_method_statistics {
    const char *name; /* in: "bmi_tcp" */
    uint64_t frames_sent, frames_received;
    uint64_t bytes_sent, bytes_received; /* on the wire, headers included */
    uint64_t writes, reads;              /* system calls (or their equivalent) that moved frames */
    uint64_t copies, copied_bytes;       /* received bodies that were copied into place */
    uint64_t links;                      /* gauge: connections open */
    uint64_t links_opened, links_accepted, links_failed;
    uint64_t bad_frames;      /* connections ended because the peer sent a bad frame */
    uint64_t puts, put_bytes; /* remote writes and reads that this process started */
    uint64_t gets, get_bytes;
    uint64_t registrations;      /* of plain memory with the network; hits: the memory */
    uint64_t registration_hits;  /* was registered already */
    uint64_t handshakes;         /* that proved identities; of those by a ticket of an */
    uint64_t handshakes_resumed; /* earlier one */
};

/* BMI_GET_CONTEXT_STATISTICS */
struct bmi_context_statistics {
    bmi_context_id context; /* in */
    uint64_t completions;   /* reported */
    uint64_t immediate;     /* completed within the post call */
    uint64_t queue_depth;   /* gauge: completed, not reported yet */
    uint64_t waiters;       /* gauge: threads that wait on it */
};

/* ---- start and end ------------------------------------------------------------------------- */

/* Starts the library, or counts one more user of it.
 *   method_list  "bmi_tcp,bmi_ofi+tcp", or "tcp,ofi+tcp": methods to start now, by name or scheme;
 *                NULL: each starts on its first look-up
 *   listen_addr  "tcp://host:port,...": where a server listens, matched to methods by scheme; a
 *                port of 0, or none, takes a free one (BMI_TCP_GET_PORT and BMI_GET_LISTEN_ADDR
 *                return it). A host name is looked up with BMI_TCP_BIND_SPECIFIC only. Addresses of
 *                methods that are not in the list are ignored, if another address remains
 *   flags        BMI_INIT_SERVER and the others above, or 0
 * Later calls only count; their arguments are ignored.
 * Returns: 0; EINVAL (NULL methods with an address, server without an address, an address without
 *          BMI_INIT_SERVER, unknown flag, bad address or setting), ENOPROTOOPT (unknown method or
 *          scheme), ENAMETOOLONG, EADDRINUSE, EADDRNOTAVAIL, EACCES, EHOSTNTFD, ETRYAGAIN (the name
 *          to bind to), ENOMEM, EMFILE, EAGAIN (no thread for progress in the background), EBUSY (a
 *          child of fork, see bmi(7)), or the reason why a method does not start: ENODEV (no
 *          device), ENOSYS (a library is missing), EPERM (the system denies a resource); the log
 *          has the details. EDEADLK (within a task, while another thread finalizes and may wait for
 *          that task). After a failure nothing is left behind.
 * Owns: strings are copied. Threads: any; calls are serialised. Blocks: for name look-up of a
 *       listen address, and where libfabric's methods load it, only. */
int BMI_initialize(const char *method_list, const char *listen_addr, int flags);

/* Ends one use of the library. The last call writes out data whose sends have completed (within
 * BMI_LINGER_MS), closes connections, frees everything, and makes all handles stale.
 * Returns: 0; EINVAL (not initialized); EDEADLK (within a task that progress in the background
 *          runs, or within a task while another thread finalizes or switches progress in the
 *          background and may wait for that task: nothing has changed). Owns: buffers of operations
 *          still outstanding return to the caller; fetched unexpected messages are still to be
 *          freed. Threads: the last call excludes all others. Blocks: up to BMI_LINGER_MS where a
 *          peer does not read. */
int BMI_finalize(void);

/* Opens a completion context: it queues the completions of operations posted to it.
 * Returns: 0; EINVAL, ENOMEM. Owns: *context_id is valid until BMI_close_context. Threads: any.
 * Blocks: no. */
int BMI_open_context(bmi_context_id *context_id);

/* Closes a context: drops completions not fetched, cancels outstanding operations.
 * Returns: nothing. Owns: buffers are the caller's again when it returns. Threads: no other thread
 * may be using it. Blocks: while a method is moving one of the buffers; if a silent peer may still
 * write to a buffer, up to BMI_PEER_TIMEOUT_MS. */
void BMI_close_context(bmi_context_id context_id);

/* ---- post ------------------------------------------------------------------------------------
 * Common to all: `*id` is set before any completion can be seen. Returns 0: pending, a test call
 * will report it once; 1: completed already, *id is 0 and no test reports it (BMI_IMMEDIATE=off
 * turns this off); <0: refused, *id is 0, nothing happens. Refusals: EINVAL (NULL, negative size or
 * count, stale address or context, list whose total is not its sum), EMSGSIZE (see each), ENOMEM,
 * or the reason why an accepted peer's connection ended (ECONNRESET, ...). Completion errors:
 * ECANCEL, EMSGSIZE, EPROTO, ENOMEM, EMFILE; of connections ECONNREFUSED, ECONNRESET, ETIMEDOUT,
 * EHOSTUNREACH, ENETUNREACH; of names EHOSTNTFD, EADDRNTFD, and, for a temporary failure, EAGAIN,
 * ETRYAGAIN; of an IPv6 address without the interface that it needs EINVAL; of another user's peer
 * (gm) EACCES; where the network cannot be used EADDRNOTAVAIL, ENODEV, EIO.
 * Owns: buffers, and the arrays of lists, are lent to BMI until completion. user_ptr comes back
 * with the completion. Threads: any. Blocks: never. A post after 100 ms without one first makes a
 * few passes of progress, if no other thread makes progress: so it notices a peer that has closed
 * its connection, and a looked-up address is connected again. */

/* Sends `size` bytes (0 is legal) to `dest` under `tag`. Completion is local: the buffer may be
 * reused. */
int BMI_post_send(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                  enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                  bmi_context_id context_id, bmi_hint hints);

/* Sends a message that the peer fetches by BMI_testunexpected, without a receive. EMSGSIZE: larger
 * than the network or the peer accepts; all accept up to BMI_GET_UNEXP_SIZE. */
int BMI_post_sendunexpected(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                            enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                            bmi_context_id context_id, bmi_hint hints);

/* Receives the next message from `src` under `tag` into up to `expected_size` bytes. On immediate
 * completion *actual_size is set. EMSGSIZE: the waiting message is too large for the buffer; it
 * stays for a larger receive. */
int BMI_post_recv(bmi_op_id_t *id, BMI_addr_t src, void *buffer, bmi_size_t expected_size,
                  bmi_size_t *actual_size, enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                  void *user_ptr, bmi_context_id context_id, bmi_hint hints);

/* As BMI_post_send, gathering `list_count` segments (1 or more; empty ones are legal). total_size
 * must be the sum of size_list. */
int BMI_post_send_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                       bmi_context_id context_id, bmi_hint hints);

/* As BMI_post_recv, scattering into `list_count` segments; the sender's segments may differ. */
int BMI_post_recv_list(bmi_op_id_t *id, BMI_addr_t src, void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_expected_size,
                       bmi_size_t *total_actual_size, enum bmi_buffer_type buffer_type,
                       bmi_msg_tag_t tag, void *user_ptr, bmi_context_id context_id,
                       bmi_hint hints);

/* As BMI_post_sendunexpected, gathering a list. */
int BMI_post_sendunexpected_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                                 const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                                 enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                                 void *user_ptr, bmi_context_id context_id, bmi_hint hints);

/* ---- test ------------------------------------------------------------------------------------
 * Common to all: max_idle_ms of 0 polls; above 0 waits at most that long, using no CPU; below 0 is
 * EINVAL. An incount of 0 only waits until a call with room would report something. Returns 1 if
 * *outcount > 0, 0 if not, <0 on a usage error (EINVAL). Each completion is reported once. A failed
 * operation reports 0 bytes. Threads: any number at once, also on one context: one polls the
 * network, the others sleep. Blocks: up to max_idle_ms. */

/* Reports whether operation `id` has completed. actual_size and user_ptr may be NULL. */
int BMI_test(bmi_op_id_t id, int *outcount, bmi_error_code_t *error_code, bmi_size_t *actual_size,
             void **user_ptr, int max_idle_time_ms, bmi_context_id context_id);

/* Reports which of `incount` operations have completed (ids of 0 are skipped). Outputs are packed
 * at [0..*outcount); index_array[k] is the place in id_array. actual_size_array and user_ptr_array
 * may be NULL. */
int BMI_testsome(int incount, bmi_op_id_t *id_array, int *outcount, int *index_array,
                 bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                 void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);

/* Reports up to `incount` completions of the context, in order of completion. Ends early, with
 * *outcount 0, when an unexpected message can be fetched. */
int BMI_testcontext(int incount, bmi_op_id_t *out_id_array, int *outcount,
                    bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                    void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);

/* Fetches up to `incount` unexpected messages. Ends early, with *outcount 0, when the only open
 * context has a completion.
 * Owns: each buffer is BMI's until BMI_unexpected_free, and counts against its sender's budget
 * until then. */
int BMI_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                       int max_idle_time_ms);

/* Asks an operation to end. It completes through a test call of its own context: with ECANCEL, or
 * with its real result if that came first. Other operations are not affected.
 * Returns: 0, also for an operation that has completed, tested or not; EINVAL for an id that no
 * operation has had since BMI_initialize, or an invalid context. Owns: buffers stay lent until the
 * completion. Threads: any. Blocks: no. */
int BMI_cancel(bmi_op_id_t id, bmi_context_id context_id);

/* ---- memory -------------------------------------------------------------------------------- */

/* Allocates zeroed memory that suits the address's method best (aligned, registered where the
 * network needs that), for BMI_PRE_ALLOC and either direction. Size 0 also returns a pointer.
 * Returns: memory, or NULL (stale address, size < 0, no memory).
 * Owns: the caller, until BMI_memfree. Threads: any. Blocks: no. */
void *BMI_memalloc(BMI_addr_t addr, bmi_size_t size, enum bmi_op_type send_recv);

/* Frees memory of BMI_memalloc. Returns: 0; EINVAL for NULL. The address may be stale by then.
 * Owns: takes the buffer back. Threads: any. Blocks: no. */
int BMI_memfree(BMI_addr_t addr, void *buffer, bmi_size_t size, enum bmi_op_type send_recv);

/* Gives the buffer of an unexpected message back. The address may be stale by then, and BMI, or the
 * instance that received it, may have ended. Returns: 0; EINVAL for NULL.
 * Owns: takes the buffer back. Threads: any. Blocks: no. */
int BMI_unexpected_free(BMI_addr_t addr, void *buffer);

/* ---- options ------------------------------------------------------------------------------- */

/* Sets an option (see the enum) of the library (addr 0) or of an address.
 * Returns: 0; EINVAL (stale address, bad value, references below 0), ENOSYS (unknown option), EBUSY
 *          (BMI_DROP_ADDR of an address with operations). If it switches progress in the
 *          background: EAGAIN, ENOMEM, EMFILE (it cannot be started: nothing has changed), EDEADLK
 *          (within a task of the background, or within any task while another thread switches the
 *          background and may wait for that task).
 * Owns: the parameter is copied. Threads: any. Blocks: no; switching progress in the background
 *       waits until its thread has ended. */
int BMI_set_info(BMI_addr_t addr, int option, void *inout_parameter);

/* Reads an option. Returns: 0; BMI_TRANSPORT_METHODS_STRING: the number of methods; EINVAL, ENOSYS
 *          as above; ENETDOWN (BMI_CHECK_INIT with NULL: not initialized), ENOMEM; EMFILE
 *          (BMI_GET_CONTEXT_FD: no descriptor is left).
 * Owns: out parameters are the caller's memory. Threads: any. Blocks: no. */
int BMI_get_info(BMI_addr_t addr, int option, void *inout_parameter);

/* ---- addresses ----------------------------------------------------------------------------- */

/* Returns the handle of "scheme://host:port[/path][,alternative...]". The same string gives the
 * same handle. It does not connect or resolve names: both happen later, in the background.
 * Returns: 0; EINVAL (the log names the bad part), ENAMETOOLONG, ENOPROTOOPT (no such scheme),
 *          ENOMEM, or, with the first address of a scheme, the reason why its method does not
 *          start: see BMI_initialize. Owns: the string is copied; the handle lives until
 *          BMI_DROP_ADDR or BMI_finalize. Threads: any. Blocks: no; methods over libfabric load
 *          that library when they start. */
int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string);

/* The string that was looked up. Returns: BMI's string, valid while the handle is; NULL for a peer
 * that was never looked up, or a stale handle. Owns: BMI. Threads: any. Blocks: no. */
const char *BMI_addr_rev_lookup(BMI_addr_t addr);

/* The bare numeric host of an unexpected message's sender. Returns: BMI's string, valid while the
 * handle is; NULL for a stale handle, or one that never connected. Owns: BMI. Threads: any.
 * Blocks: no. */
const char *BMI_addr_rev_lookup_unexpected(BMI_addr_t addr);

/* Whether the address's host is in a range: "tcp://10.1.0.0" with netmask bits, or a wildcard
 * "tcp://10.1.*" (netmask is ignored then). An address of another scheme is in none.
 * Returns: 1 in range, 0 not, <0: EINVAL (stale address, bad range). Owns: nothing. Threads: any.
 * Blocks: no. */
int BMI_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask);

/* ---- this library's own -------------------------------------------------------------------- */

/* The text of a status (0, a BMI error, or its negation). Returns: a constant string, never NULL.
 * Owns: nothing. Threads: any, at any time. Blocks: no. */
const char *bmi_status_string(int32_t code);

/* The status of an errno, plain or negated; one that is a BMI error already is kept. Returns: the
 * BMI error, negated; EIO for an errno that has none of its own; 0 for 0. Owns: nothing.
 * Threads: any, at any time. Blocks: no. */
bmi_error_code_t bmi_status_of(int number);

/* Writes the library's present state as lines of text: its listen addresses, totals, methods,
 * contexts, and for each peer its outstanding operations, waiting messages and held memory.
 * `bmi-info --process` prints this text of a process whose setting `report` is on. It asks over an
 * abstract Unix socket with the name BMI_REPORT_NAME and the process id; further instances
 * (bmi/instance.h) have sockets of their own. The process answers its own user and root, while one
 * of its threads makes progress. Returns: the length of the whole text, of which up to size-1 bytes
 * and a NUL are written; 0: not initialized, or no memory. Owns: nothing (size 0: text may be
 * NULL). Threads: any; not from within the log's callback. Blocks: briefly, it reads files with
 * credentials that have changed since the last report; takes 0.4 to 1 us for each peer. */
size_t bmi_report(char *text, size_t size);
#define BMI_REPORT_NAME "bmi-report-%ld"
#define BMI_REPORT_INSTANCE_NAME BMI_REPORT_NAME "-%s" /* bmi_instance_name(), if not "" */

/* Walks the table of settings. Returns: 0 and sets *name, *value (static per thread until the next
 * call), *help; ENOENT past the last. Owns: BMI. Threads: any, at any time. Blocks: no. */
int bmi_setting_next(int index, const char **name, const char **value, const char **help);

/* Walks the methods built in. Returns: 0 and fills info; ENOENT past the last. Owns: BMI's strings,
 * static. Threads: any, at any time. Blocks: no. */
struct bmi_method_info {
    const char *name;    /* "bmi_tcp" */
    const char *schemes; /* "tcp" */
    const char *description;
    bmi_size_t eager_max; /* largest message that is sent without a rendezvous */
    bmi_size_t unexpected_max;
    int segments_max; /* gathered in one network operation */
    int can_put, can_get, needs_registration;
    int proves_identity; /* peers prove a name: BMI_PEER_IDENTITY */
};
int bmi_method_next(int index, struct bmi_method_info *info);

/* For a method that has several ways to its network (ib: libfabric's providers): the one it would
 * choose on this host, and why. It looks for devices and opens none. For a method with credentials
 * (tls): whether those that are set can be used; `reason` says for how long, as a "warning: " where
 * it is less than 30 days.
 * Returns: 0: it can be used; ENOENT past the last; another error: it would not start, and `reason`
 * names the missing thing. Unknown fields are empty. Owns: nothing. Threads: any, at any time.
 * Blocks: while libraries are loaded and devices looked for (some 0.2 s at the first call). */
struct bmi_method_choice {
    char provider[64]; /* "verbs;ofi_rxm" */
    char device[64];   /* "rxe0", the first of the provider's */
    char reason[512];
};
int bmi_method_choose(int index, struct bmi_method_choice *choice);

/* Sends an echo request that the peer's library answers, not its program; connects if necessary.
 * The peer must be making progress (inside a test call, or in the background).
 *   timeout_ms       how long to wait, > 0
 *   round_trip_us    out: microseconds from asking to the answer
 * Returns: 0; EINVAL, ETIMEDOUT, or the cause of a failed connection. Owns: nothing. Threads: any.
 * Blocks: up to timeout_ms. */
int bmi_ping(BMI_addr_t addr, int timeout_ms, double *round_trip_us);

/* Takes a tag for one exchange with a peer: it differs from each other tag that this process has
 * taken, and from those that the peer takes for its own exchanges. Taken tags are BMI_TAG_FIRST or
 * above, so a program that also chooses tags itself stays below. The two sides of a connection take
 * different ones as long as one of them knows the other from unexpected messages only; two
 * processes that have both looked each other up must agree which of them takes tags.
 * Returns: the tag, > 0; EINVAL (stale address, not initialized), ENOMEM. Owns: the tag is the
 * caller's until bmi_tag_give, or the last BMI_finalize. Threads: any. Blocks: no. */
bmi_msg_tag_t bmi_tag_take(BMI_addr_t addr);
#define BMI_TAG_FIRST (1 << 30)

/* Gives a tag back; the address may be stale. It is taken again only after 2^29 others, so that a
 * late message cannot match another exchange.
 * Returns: 0; EINVAL: it is not taken. Owns: takes the tag. Threads: any. Blocks: no. */
int bmi_tag_give(BMI_addr_t addr, bmi_msg_tag_t tag);

/* The library's version. Returns: "0.2.0". Owns: static. Threads: any, at any time. Blocks: no. */
const char *bmi_version(void);

#ifdef BMI_CLASSIC_API
/* Classic file-system code passes an options string as the last argument; it may be NULL or empty,
 * else "name=value,..." settings for the BMI_initialize that starts the library. Environment
 * variables take precedence. Options of the classic library's network modules (ib_port=1) are
 * ignored with a warning in the log. It is ignored by BMI_addr_lookup. Such code also gets: an
 * address of 0 where a look-up fails; "UNKNOWN" instead of NULL of BMI_addr_rev_lookup_unexpected;
 * netmask -1 of BMI_query_addr_range for a single host. */
int bmi_classic_initialize(const char *method_list, const char *listen_addr, int flags,
                           const char *options);
int bmi_classic_addr_lookup(BMI_addr_t *new_addr, const char *id_string, const char *options);
const char *bmi_classic_addr_rev_lookup_unexpected(BMI_addr_t addr);
int bmi_classic_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask);
#define BMI_initialize bmi_classic_initialize
#define BMI_addr_lookup bmi_classic_addr_lookup
#define BMI_addr_rev_lookup_unexpected bmi_classic_addr_rev_lookup_unexpected
#define BMI_query_addr_range bmi_classic_query_addr_range
#endif

#ifdef __cplusplus
}
#endif
#endif
