/* SPDX-License-Identifier: BSD-3-Clause
 *
 * types_cases.c - "Types and constants": names, sizes, values, and the text of every error.
 */
#include "harness.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct constant {
    const char *name;
    int64_t actual, expected;
};

#define IS_SIGNED(type) ((type)-1 < 0)
_Static_assert(sizeof(bmi_size_t) == 8 && IS_SIGNED(bmi_size_t), "bmi_size_t is int64");
_Static_assert(sizeof(bmi_msg_tag_t) == 4 && IS_SIGNED(bmi_msg_tag_t), "bmi_msg_tag_t is int32");
_Static_assert(sizeof(bmi_context_id) == 8 && IS_SIGNED(bmi_context_id), "bmi_context_id is int64");
_Static_assert(sizeof(bmi_op_id_t) == 8 && IS_SIGNED(bmi_op_id_t), "bmi_op_id_t is int64");
_Static_assert(sizeof(BMI_addr_t) == 8 && IS_SIGNED(BMI_addr_t), "BMI_addr_t is int64");
_Static_assert(sizeof(bmi_error_code_t) == 4 && IS_SIGNED(bmi_error_code_t),
               "bmi_error_code_t is int32");
_Static_assert(BMI_MAX_ADDR_LEN == 2048, "an array of this size must be declarable");

static void types(struct rank *rank)
{
    bmi_hint hint = (struct PVFS_hint_s *)NULL;
    struct BMI_unexpected_info info = {0};
    bmi_error_code_t *error_code = &info.error_code;
    BMI_addr_t *addr = &info.addr;
    void **buffer = &info.buffer;
    bmi_size_t *size = &info.size;
    bmi_msg_tag_t *tag = &info.tag;
    CHECK(rank, hint == NULL);
    CHECK(rank, *error_code == 0 && *addr == 0 && !*buffer && *size == 0 && *tag == 0);
}

static void constants(struct rank *rank)
{
    static const struct constant table[] = {
        {"BMI_MAX_ADDR_LEN", BMI_MAX_ADDR_LEN, 2048},
        {"BMI_SEND", BMI_SEND, 1},
        {"BMI_RECV", BMI_RECV, 2},
        {"BMI_PRE_ALLOC", BMI_PRE_ALLOC, 1},
        {"BMI_EXT_ALLOC", BMI_EXT_ALLOC, 2},
        {"BMI_INIT_SERVER", BMI_INIT_SERVER, 1},
        {"BMI_TCP_BIND_SPECIFIC", BMI_TCP_BIND_SPECIFIC, 2},
        {"BMI_AUTO_REF_COUNT", BMI_AUTO_REF_COUNT, 4},
        {"BMI_DROP_ADDR", BMI_DROP_ADDR, 1},
        {"BMI_CHECK_INIT", BMI_CHECK_INIT, 2},
        {"BMI_CHECK_MAXSIZE", BMI_CHECK_MAXSIZE, 3},
        {"BMI_GET_METH_ADDR", BMI_GET_METH_ADDR, 4},
        {"BMI_INC_ADDR_REF", BMI_INC_ADDR_REF, 5},
        {"BMI_DEC_ADDR_REF", BMI_DEC_ADDR_REF, 6},
        {"BMI_DROP_ADDR_QUERY", BMI_DROP_ADDR_QUERY, 7},
        {"BMI_FORCEFUL_CANCEL_MODE", BMI_FORCEFUL_CANCEL_MODE, 8},
        {"BMI_TRUSTED_CONNECTION", BMI_TRUSTED_CONNECTION, 9},
        {"BMI_GET_UNEXP_SIZE", BMI_GET_UNEXP_SIZE, 10},
        {"BMI_TCP_BUFFER_SEND_SIZE", BMI_TCP_BUFFER_SEND_SIZE, 11},
        {"BMI_TCP_BUFFER_RECEIVE_SIZE", BMI_TCP_BUFFER_RECEIVE_SIZE, 12},
        {"BMI_TCP_CLOSE_SOCKET", BMI_TCP_CLOSE_SOCKET, 13},
        {"BMI_OPTIMISTIC_BUFFER_REG", BMI_OPTIMISTIC_BUFFER_REG, 14},
        {"BMI_TCP_CHECK_UNEXPECTED", BMI_TCP_CHECK_UNEXPECTED, 15},
        {"BMI_TRANSPORT_METHODS_STRING", BMI_TRANSPORT_METHODS_STRING, 16},
        {"BMI_TCP_GET_PORT", BMI_TCP_GET_PORT, 17},
        {"BMI_ERROR", BMI_ERROR, 1 << 7},
        {"BMI_NON_ERRNO_ERROR_BIT", BMI_NON_ERRNO_ERROR_BIT, 1 << 29},
        {"BMI_ERROR_BIT", BMI_ERROR_BIT, 1 << 30},
    };
    static const int ours[] = {BMI_GET_LISTEN_ADDR,        BMI_GET_CONTEXT_FD,
                               BMI_GET_STATISTICS,         BMI_SETTING,
                               BMI_LOG_CALLBACK,           BMI_GET_METHOD_STATISTICS,
                               BMI_GET_CONTEXT_STATISTICS, BMI_REAP_IDLE};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].actual != table[i].expected)
            rank_fail(rank, false, __FILE__, __LINE__, "%s is %lld, not %lld", table[i].name,
                      (long long)table[i].actual, (long long)table[i].expected);
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        CHECK(rank, ours[i] >= 1000);
}

/* Every error number of the contract, in its order. */
static const struct constant errno_like[] = {
    {"EPERM", BMI_EPERM, 1},
    {"ENOENT", BMI_ENOENT, 2},
    {"EINTR", BMI_EINTR, 3},
    {"EIO", BMI_EIO, 4},
    {"ENXIO", BMI_ENXIO, 5},
    {"EBADF", BMI_EBADF, 6},
    {"EAGAIN", BMI_EAGAIN, 7},
    {"ENOMEM", BMI_ENOMEM, 8},
    {"EFAULT", BMI_EFAULT, 9},
    {"EBUSY", BMI_EBUSY, 10},
    {"EEXIST", BMI_EEXIST, 11},
    {"ENODEV", BMI_ENODEV, 12},
    {"ENOTDIR", BMI_ENOTDIR, 13},
    {"EISDIR", BMI_EISDIR, 14},
    {"EINVAL", BMI_EINVAL, 15},
    {"EMFILE", BMI_EMFILE, 16},
    {"EFBIG", BMI_EFBIG, 17},
    {"ENOSPC", BMI_ENOSPC, 18},
    {"EROFS", BMI_EROFS, 19},
    {"EMLINK", BMI_EMLINK, 20},
    {"EPIPE", BMI_EPIPE, 21},
    {"EDEADLK", BMI_EDEADLK, 22},
    {"ENAMETOOLONG", BMI_ENAMETOOLONG, 23},
    {"ENOLCK", BMI_ENOLCK, 24},
    {"ENOSYS", BMI_ENOSYS, 25},
    {"ENOTEMPTY", BMI_ENOTEMPTY, 26},
    {"ELOOP", BMI_ELOOP, 27},
    {"EWOULDBLOCK", BMI_EWOULDBLOCK, 28},
    {"ENOMSG", BMI_ENOMSG, 29},
    {"EUNATCH", BMI_EUNATCH, 30},
    {"EBADR", BMI_EBADR, 31},
    {"EDEADLOCK", BMI_EDEADLOCK, 32},
    {"ENODATA", BMI_ENODATA, 33},
    {"ETIME", BMI_ETIME, 34},
    {"ENONET", BMI_ENONET, 35},
    {"EREMOTE", BMI_EREMOTE, 36},
    {"ECOMM", BMI_ECOMM, 37},
    {"EPROTO", BMI_EPROTO, 38},
    {"EBADMSG", BMI_EBADMSG, 39},
    {"EOVERFLOW", BMI_EOVERFLOW, 40},
    {"ERESTART", BMI_ERESTART, 41},
    {"EMSGSIZE", BMI_EMSGSIZE, 42},
    {"EPROTOTYPE", BMI_EPROTOTYPE, 43},
    {"ENOPROTOOPT", BMI_ENOPROTOOPT, 44},
    {"EPROTONOSUPPORT", BMI_EPROTONOSUPPORT, 45},
    {"EOPNOTSUPP", BMI_EOPNOTSUPP, 46},
    {"EADDRINUSE", BMI_EADDRINUSE, 47},
    {"EADDRNOTAVAIL", BMI_EADDRNOTAVAIL, 48},
    {"ENETDOWN", BMI_ENETDOWN, 49},
    {"ENETUNREACH", BMI_ENETUNREACH, 50},
    {"ENETRESET", BMI_ENETRESET, 51},
    {"ENOBUFS", BMI_ENOBUFS, 52},
    {"ETIMEDOUT", BMI_ETIMEDOUT, 53},
    {"ECONNREFUSED", BMI_ECONNREFUSED, 54},
    {"EHOSTDOWN", BMI_EHOSTDOWN, 55},
    {"EHOSTUNREACH", BMI_EHOSTUNREACH, 56},
    {"EALREADY", BMI_EALREADY, 57},
    {"EACCES", BMI_EACCES, 58},
    {"ECONNRESET", BMI_ECONNRESET, 59},
};

static const struct constant own[] = {
    {"ECANCEL", BMI_ECANCEL, 1},     {"EDEVINIT", BMI_EDEVINIT, 2},   {"EDETAIL", BMI_EDETAIL, 3},
    {"EHOSTNTFD", BMI_EHOSTNTFD, 4}, {"EADDRNTFD", BMI_EADDRNTFD, 5}, {"ENORECVR", BMI_ENORECVR, 6},
    {"ETRYAGAIN", BMI_ETRYAGAIN, 7},
};

enum { ERRNO_LIKE = sizeof errno_like / sizeof *errno_like, OWN = sizeof own / sizeof *own };

static void error_numbers(struct rank *rank)
{
    int bits = 1 << 30 | 1 << 7;
    CHECK_EQUAL(rank, ERRNO_LIKE, 59);
    CHECK_EQUAL(rank, OWN, 7);
    for (int i = 0; i < ERRNO_LIKE; i++) {
        CHECK_EQUAL(rank, errno_like[i].expected, i + 1);
        CHECK_EQUAL(rank, errno_like[i].actual, errno_like[i].expected | bits);
    }
    for (int i = 0; i < OWN; i++)
        CHECK_EQUAL(rank, own[i].actual, own[i].expected | bits | 1 << 29);
}

static void expect_named(struct rank *rank, const struct constant *error)
{
    char text[200];
    int32_t code = (int32_t)error->actual;
    snprintf(text, sizeof text, "%s", bmi_status_string(code));
    if (!strstr(text, error->name))
        rank_fail(rank, false, __FILE__, __LINE__, "the text of %s is \"%s\"", error->name, text);
    CHECK(rank, strcmp(text, bmi_status_string(-code)) == 0);
}

static void error_texts(struct rank *rank)
{
    static const int32_t strange[] = {1,         -1,        BMI_E(0),  BMI_E(60), BMI_EN(0),
                                      BMI_EN(8), INT32_MAX, INT32_MIN, BMI_ERROR, BMI_ERROR_BIT};
    for (int i = 0; i < ERRNO_LIKE; i++)
        expect_named(rank, &errno_like[i]);
    for (int i = 0; i < OWN; i++)
        expect_named(rank, &own[i]);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        const char *text = bmi_status_string(strange[i]);
        CHECK(rank, text && text[0]);
    }
    CHECK(rank, bmi_status_string(0) && bmi_status_string(0)[0]);
    CHECK(rank, strcmp(bmi_status_string(0), bmi_status_string(BMI_EPERM)) != 0);
}

const struct conformance_case types_cases[] = {
    {.section = "Types and constants", .name = "types", .run = types, .where = RAW},
    {.section = "Types and constants", .name = "values", .run = constants, .where = RAW},
    {.section = "Types and constants", .name = "error numbers", .run = error_numbers, .where = RAW},
    {.section = "Types and constants",
     .name = "every error has a text",
     .run = error_texts,
     .where = RAW},
    {0},
};
