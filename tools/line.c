/* SPDX-License-Identifier: BSD-3-Clause
 *
 * line.c - see line.h. The escapes themselves are the library's (bmi/base/escape.c).
 */
#include "line.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../bmi/base/escape.h"
#include "bmi.h"

enum { LINE_MOST = 8192, PART = 1024, ESCAPED = 4 /* bytes for each of the text, at most */ };

/* In parts, none of which ends within a character. */
void escaped_write(FILE *out, const char *text, size_t length, const char *also)
{
    while (length > 0) {
        char shown[PART * ESCAPED + 1];
        size_t part = length < PART ? length : PART;

        while (part < length && part > PART - 4 && ((unsigned char)text[part] & 0xc0) == 0x80)
            part--;
        bmi__escape(shown, sizeof shown, text, part);
        for (const char *at = shown; *at != '\0'; at++) {
            if (strchr(also, *at) != NULL)
                putc('\\', out);
            putc(*at, out);
        }
        text += part;
        length -= part;
    }
}

void line_print(FILE *out, const char *format, ...)
{
    char line[LINE_MOST];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    escaped_write(out, line, strlen(line), "");
    putc('\n', out);
}

void text_print(FILE *out, const char *text, size_t length)
{
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        size_t line = end != NULL ? (size_t)(end - text) : length;

        escaped_write(out, text, line, "");
        if (end == NULL)
            return;
        putc('\n', out);
        text += line + 1;
        length -= line + 1;
    }
}

double option_number(char option, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= least && value <= most)) {
        line_print(stderr, "%s: -%c %s: a number from %g to %g is wanted",
                   program_invocation_short_name, option, text, least, most);
        exit(2);
    }
    return value;
}

int output_end(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "%s: cannot write to standard output\n", program_invocation_short_name);
    return 1;
}

void option_end(int option, const char *usage)
{
    if (option == 'V')
        printf("%s (libbmi) %s\n", program_invocation_short_name, bmi_version());
    else
        fputs(usage, option == 'h' ? stdout : stderr);
    exit(option == 'V' || option == 'h' ? output_end(0) : 2);
}
