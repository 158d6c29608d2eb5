/* SPDX-License-Identifier: BSD-3-Clause
 *
 * error.c - see error.h.
 */
#include "task/error.h"

#include <errno.h>
#include <stddef.h>

int bmi__task_error(int number)
{
    static const struct {
        int system, code;
    } known[] = {
        {EPERM, BMI_EPERM},   {ENOENT, BMI_ENOENT}, {EAGAIN, BMI_EAGAIN},
        {ENOMEM, BMI_ENOMEM}, {EACCES, BMI_EACCES}, {ENOTDIR, BMI_ENOTDIR},
        {EISDIR, BMI_EISDIR}, {EINVAL, BMI_EINVAL}, {EMFILE, BMI_EMFILE},
        {ENFILE, BMI_EMFILE}, {ELOOP, BMI_ELOOP},   {ENAMETOOLONG, BMI_ENAMETOOLONG},
        {ENOSYS, BMI_ENOSYS},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].system == number)
            return -known[i].code;
    }
    return number == 0 ? 0 : -BMI_EIO;
}
