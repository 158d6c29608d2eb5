/* SPDX-License-Identifier: BSD-3-Clause
 *
 * config_file.h - a configuration file: lines "name = value". A `#` at the beginning of a line or
 * after white space begins a comment. White space around names and values is ignored, and so are
 * empty lines. settings.c gives names and values their meaning.
 */
#ifndef BMI_CONFIG_FILE_H
#define BMI_CONFIG_FILE_H

#include <stddef.h>

enum { BMI__CONFIG_BYTES = 1 << 16 }; /* a larger file is refused */

/* A text of at most `end - at` bytes, with one writable byte beyond it; the cursor changes it. */
struct bmi__config_cursor {
    char *at, *end;
    unsigned line; /* of the assignment or fault that was found last, from 1 */
    const char *name, *value;
    const char *reason; /* of a fault, in words */
};

/* Reads a regular file, of BMI__CONFIG_BYTES at most, without waiting for a writer. The caller
 * frees *text. Returns 0 or an errno, with a reason in words. */
int bmi__config_read(const char *path, char **text, size_t *size, const char **reason);

/* Finds the next assignment. Returns 1: name and value are it; 0: no more; -EINVAL: a line is
 * malformed. */
int bmi__config_next(struct bmi__config_cursor *cursor);

#endif
