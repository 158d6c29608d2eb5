/* SPDX-License-Identifier: BSD-3-Clause
 *
 * escape.h - text from outside (peers, files, other processes) made safe to show to people.
 *
 * Depends on nothing: the library uses it for its log and reports, the programs in tools/ for their
 * output (tools/line.h).
 */
#ifndef BMI_BASE_ESCAPE_H
#define BMI_BASE_ESCAPE_H

#include <stddef.h>

/* Copies `length` bytes of `from` to `to`, as one line of UTF-8: each byte of a control character,
 * of a character that changes the order or the lines of the text around it, and of invalid UTF-8
 * becomes \xHH. A backslash stays as it is: the result is for people, not for parsers. Stops before
 * the first character that does not fit whole. `to` ends with a NUL; size > 0. Returns the length
 * of the result. */
size_t bmi__escape(char *to, size_t size, const void *from, size_t length);

#endif
