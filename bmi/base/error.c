/* SPDX-License-Identifier: BSD-3-Clause
 *
 * error.c - the one table of errors: BMI's number, the system's, name and text.
 */
#include "bmi/base/error.h"

#include <errno.h>
#include <stddef.h>

static const struct {
    int32_t code;
    int system;       /* 0: none, or another row maps it */
    const char *text; /* begins with the name */
} errors[] = {
    {BMI_EPERM, EPERM, "EPERM: Operation not permitted"},
    {BMI_ENOENT, ENOENT, "ENOENT: No such entry"},
    {BMI_EINTR, EINTR, "EINTR: Interrupted"},
    {BMI_EIO, EIO, "EIO: Input/output error"},
    {BMI_ENXIO, ENXIO, "ENXIO: No such device or address"},
    {BMI_EBADF, EBADF, "EBADF: Bad descriptor"},
    {BMI_EAGAIN, EAGAIN, "EAGAIN: Try again"},
    {BMI_ENOMEM, ENOMEM, "ENOMEM: Out of memory"},
    {BMI_EFAULT, EFAULT, "EFAULT: Bad address in memory"},
    {BMI_EBUSY, EBUSY, "EBUSY: Busy"},
    {BMI_EEXIST, EEXIST, "EEXIST: Exists already"},
    {BMI_ENODEV, ENODEV, "ENODEV: No such device"},
    {BMI_ENOTDIR, ENOTDIR, "ENOTDIR: Not a directory"},
    {BMI_EISDIR, EISDIR, "EISDIR: Is a directory"},
    {BMI_EINVAL, EINVAL, "EINVAL: Invalid argument"},
    {BMI_EMFILE, EMFILE, "EMFILE: Too many open descriptors"},
    {BMI_EFBIG, EFBIG, "EFBIG: Too large"},
    {BMI_ENOSPC, ENOSPC, "ENOSPC: No space left"},
    {BMI_EROFS, EROFS, "EROFS: Read-only"},
    {BMI_EMLINK, EMLINK, "EMLINK: Too many links"},
    {BMI_EPIPE, EPIPE, "EPIPE: Connection closed for sending"},
    {BMI_EDEADLK, EDEADLK, "EDEADLK: Deadlock avoided"},
    {BMI_ENAMETOOLONG, ENAMETOOLONG, "ENAMETOOLONG: Name or address too long"},
    {BMI_ENOLCK, ENOLCK, "ENOLCK: No locks available"},
    {BMI_ENOSYS, ENOSYS, "ENOSYS: Not implemented or unknown option"},
    {BMI_ENOTEMPTY, ENOTEMPTY, "ENOTEMPTY: Not empty"},
    {BMI_ELOOP, ELOOP, "ELOOP: Too many levels of links"},
    {BMI_EWOULDBLOCK, 0, "EWOULDBLOCK: Would block"},
    {BMI_ENOMSG, ENOMSG, "ENOMSG: No message"},
    {BMI_EUNATCH, EUNATCH, "EUNATCH: Protocol driver not attached"},
    {BMI_EBADR, EBADR, "EBADR: Bad request"},
    {BMI_EDEADLOCK, 0, "EDEADLOCK: Deadlock"},
    {BMI_ENODATA, ENODATA, "ENODATA: No data"},
    {BMI_ETIME, ETIME, "ETIME: Timer expired"},
    {BMI_ENONET, ENONET, "ENONET: Not on the network"},
    {BMI_EREMOTE, EREMOTE, "EREMOTE: Remote object"},
    {BMI_ECOMM, ECOMM, "ECOMM: Communication error on send"},
    {BMI_EPROTO, EPROTO, "EPROTO: Protocol error"},
    {BMI_EBADMSG, EBADMSG, "EBADMSG: Bad message"},
    {BMI_EOVERFLOW, EOVERFLOW, "EOVERFLOW: Value too large"},
    {BMI_ERESTART, ERESTART, "ERESTART: Restart"},
    {BMI_EMSGSIZE, EMSGSIZE, "EMSGSIZE: Message too long"},
    {BMI_EPROTOTYPE, EPROTOTYPE, "EPROTOTYPE: Wrong protocol type"},
    {BMI_ENOPROTOOPT, ENOPROTOOPT, "ENOPROTOOPT: No such method or address scheme"},
    {BMI_EPROTONOSUPPORT, EPROTONOSUPPORT, "EPROTONOSUPPORT: Protocol not supported"},
    {BMI_EOPNOTSUPP, EOPNOTSUPP, "EOPNOTSUPP: Operation not supported"},
    {BMI_EADDRINUSE, EADDRINUSE, "EADDRINUSE: Address in use already"},
    {BMI_EADDRNOTAVAIL, EADDRNOTAVAIL, "EADDRNOTAVAIL: Address not available"},
    {BMI_ENETDOWN, ENETDOWN, "ENETDOWN: Network down"},
    {BMI_ENETUNREACH, ENETUNREACH, "ENETUNREACH: Network unreachable"},
    {BMI_ENETRESET, ENETRESET, "ENETRESET: Connection reset by the network"},
    {BMI_ENOBUFS, ENOBUFS, "ENOBUFS: No buffer space"},
    {BMI_ETIMEDOUT, ETIMEDOUT, "ETIMEDOUT: Timed out"},
    {BMI_ECONNREFUSED, ECONNREFUSED, "ECONNREFUSED: Connection refused"},
    {BMI_EHOSTDOWN, EHOSTDOWN, "EHOSTDOWN: Host down"},
    {BMI_EHOSTUNREACH, EHOSTUNREACH, "EHOSTUNREACH: Host unreachable"},
    {BMI_EALREADY, EALREADY, "EALREADY: In progress already"},
    {BMI_EACCES, EACCES, "EACCES: Permission denied"},
    {BMI_ECONNRESET, ECONNRESET, "ECONNRESET: Connection reset by peer"},
    {BMI_ECANCEL, 0, "ECANCEL: Operation cancelled"},
    {BMI_EDEVINIT, 0, "EDEVINIT: Device or method not initialized"},
    {BMI_EDETAIL, 0, "EDETAIL: See the log for details"},
    {BMI_EHOSTNTFD, 0, "EHOSTNTFD: Host not found"},
    {BMI_EADDRNTFD, 0, "EADDRNTFD: No address of that host"},
    {BMI_ENORECVR, 0, "ENORECVR: No receiver"},
    {BMI_ETRYAGAIN, 0, "ETRYAGAIN: Temporary failure, try again"},
};

enum { ERRORS = sizeof errors / sizeof errors[0] };

bmi_error_code_t bmi__error(int negated_errno)
{
    if (negated_errno == 0)
        return 0;
    if (negated_errno == BMI__CANCELLED || negated_errno == -ECANCELED)
        return -BMI_ECANCEL;
    if ((-negated_errno & BMI_ERROR_BIT) != 0)
        return negated_errno;
    if (negated_errno == -ENFILE || negated_errno == -ETOOMANYREFS)
        negated_errno = -EMFILE;
    if (negated_errno == -EDQUOT)
        negated_errno = -ENOSPC;
    for (size_t i = 0; i < ERRORS; i++)
        if (errors[i].system == -negated_errno)
            return -errors[i].code;
    return -BMI_EIO;
}

bmi_error_code_t bmi_status_of(int number)
{
    return bmi__error(number > 0 ? -number : number);
}

const char *bmi_status_string(int32_t code)
{
    int32_t positive = code < 0 ? (code == INT32_MIN ? 0 : -code) : code;
    if (code == 0)
        return "Success";
    for (size_t i = 0; i < ERRORS; i++)
        if (errors[i].code == positive)
            return errors[i].text;
    return "Unknown status";
}
