/* SPDX-License-Identifier: BSD-3-Clause
 *
 * line.h - safe output of the programs: text that may come from a peer, a file, or another process
 * cannot move the cursor, forge a line, or reverse the text beside it. Also what the programs'
 * options have in common, and the exit status.
 */
#ifndef LINE_H
#define LINE_H

#include <stddef.h>
#include <stdio.h>

/* Prints one line and ends it. Everything in it is escaped, newlines included; at most 8 KiB. */
void line_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints text of many lines: newlines stay, everything else is escaped. */
void text_print(FILE *out, const char *text, size_t length);

/* Writes text with everything in it escaped, and with a backslash before each byte of `also`. */
void escaped_write(FILE *out, const char *text, size_t length, const char *also);

/* The number in the argument of an option, within limits; exits with status 2 if it is none. */
double option_number(char option, const char *text, double least, double most);
/* The exit status of a program that ends with `status`: 1 if its output could not be written. */
int output_end(int status);
/* Ends the program for an option that needs nothing more: 'V' prints the version, 'h' the usage;
 * any other is wrong usage. */
_Noreturn void option_end(int option, const char *usage);

#endif
