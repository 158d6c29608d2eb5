/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memfd.c - memory that is shared with other processes.
 *
 * It has no name: the kernel takes it back with the last descriptor and mapping, however a process
 * ends. Memory of another process is used only if it cannot shrink under us (an access would be a
 * SIGBUS), and is the kernel's plain memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "internal.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int nic__memory_make(uint64_t length, bool read_only_to_others, int *fd, void **memory)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW, status;
    int made = memfd_create("bmi-gm-nic", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0)
        return -errno;
    if (ftruncate(made, (off_t)length) != 0)
        goto undo_made;
    void *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (mapped == MAP_FAILED)
        goto undo_made;
    /* Kernels before 5.1 do not have this seal; without it peers merely could write. */
    if (read_only_to_others && fcntl(made, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 &&
        errno != EINVAL)
        goto undo_mapped;
    if (fcntl(made, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
        goto undo_mapped;
    *fd = made;
    *memory = mapped;
    return 0;

undo_mapped:
    status = -errno;
    munmap(mapped, length);
    close(made);
    return status;
undo_made:
    status = -errno;
    close(made);
    return status;
}

int nic__memory_map(int fd, uint64_t length, bool write, void **memory)
{
    struct stat file;
    struct statfs kind;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return -EPROTO;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &kind) != 0)
        return -errno;
    if (kind.f_type != TMPFS_MAGIC || file.st_size < 0 || (uint64_t)file.st_size < length ||
        length == 0)
        return -EPROTO;
    *memory = mmap(NULL, length, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    return *memory == MAP_FAILED ? -errno : 0;
}
