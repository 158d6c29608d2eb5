/* SPDX-License-Identifier: BSD-3-Clause
 *
 * local.h - local files: reading and writing by tasks that may block, holes, and the metadata of a
 * fetched file.
 */
#ifndef STRIPEFS_LOCAL_H
#define STRIPEFS_LOCAL_H

#include "client.h"

/* Pieces of a file to read into, or write from, one buffer, one after another. */
struct local {
    const struct bmi_flow_extent *extents;
    int count;
    bmi_size_t got; /* by stream_start */
    /* local.c's own */
    bool stream;
    bmi_size_t room;
    struct bmi_task task;
    bmi_job_id_t event;
    struct file *file;
    struct local *next; /* the file's lock */
    uint8_t *buffer;
};

/* Begins to read from a file for put, or to write to one for get; a job of the machine ends with
 * it. Returns BMI_SM_DEFERRED or an error. Blocks of zeros are not written: they become holes. */
int local_start(struct local *local, struct file *file, struct bmi_sm *machine, uint8_t *buffer);

/* Begins to read up to `room` bytes of a stream: fewer only at its end. */
int stream_start(struct local *local, struct file *file, struct bmi_sm *machine, uint8_t *buffer,
                 bmi_size_t room);

/* The pieces of [at, at + size) of a file without the holes: SFS_EXTENTS_MAX at most; the last one
 * may contain holes. Returns 0 or an error. */
int extents_find(struct file *file, uint64_t at, uint64_t size, struct bmi_flow_extent *extents,
                 int *count, bmi_size_t *bytes);

/* All return 0 or an error. */
int file_open(struct file *file); /* once; the file, or the temporary one */
/* Put: whether size and time are the same; and whether an empty file has no bytes, unlike those of
 * /proc. */
int file_unchanged(const struct file *file);
int file_finish(struct file *file); /* get: its metadata, and its name */
/* Sets owner and group as far as this user may; otherwise it clears set-user-id, set-group-id, and
 * the sticky bit, which would act for another user. */
int metadata_apply(const char *path, int fd, const struct sfs_meta *meta);
void file_undo(struct file *file); /* get: removes the temporary one */
void file_close(struct file *file);
/* Removes all open temporary files before the program ends; no more can be created. */
void temporaries_remove(void);
void metadata_of(struct sfs_meta *meta, const void *stat);

#endif
