/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_folder.c - for a test: in place of readdir(3), that of a disk which fails after three
 * entries of a folder.
 */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>

struct dirent *__real_readdir(DIR *folder);
struct dirent *__wrap_readdir(DIR *folder);

struct dirent *__wrap_readdir(DIR *folder)
{
    static int left = 3;
    if (left-- > 0)
        return __real_readdir(folder);
    errno = EIO;
    return NULL;
}
