/* SPDX-License-Identifier: BSD-3-Clause
 *
 * text.h - text that comes from programs and their configuration files. Letters and white space are
 * ASCII's, whatever the program's locale.
 */
#ifndef BMI_TEXT_H
#define BMI_TEXT_H

#include <string.h>

/* Removes white space at both ends, in place. Returns where the rest begins. */
static inline char *bmi__trimmed(char *text)
{
    static const char space[] = " \t\r\n\v\f";
    text += strspn(text, space);
    size_t length = strlen(text);
    while (length > 0 && strchr(space, text[length - 1]) != NULL)
        length--;
    text[length] = '\0';
    return text;
}

#endif
