/* SPDX-License-Identifier: BSD-3-Clause
 *
 * config_fuzz.c - the configuration file's lines: any bytes, in memory of exactly their size and
 * one. An assignment that is written again without spaces must be read as the same one.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/config_file.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_trimmed(const char *text)
{
    static const char space[] = " \t\r\n\v\f";
    size_t length = strlen(text);
    return length == 0 ||
           (strchr(space, text[0]) == NULL && strchr(space, text[length - 1]) == NULL);
}

static void try_again(const char *name, const char *value)
{
    char *text = NULL;
    int size = asprintf(&text, "\n%s=%s", name, value);
    if (size < 0)
        return;
    struct bmi__config_cursor cursor = {.at = text, .end = text + size};
    require(bmi__config_next(&cursor) == 1 && cursor.line == 2);
    require(strcmp(cursor.name, name) == 0 && strcmp(cursor.value, value) == 0);
    require(bmi__config_next(&cursor) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    char *text = malloc(size + 1);
    unsigned line = 0;
    int status;
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    struct bmi__config_cursor cursor = {.at = text, .end = text + size};
    while ((status = bmi__config_next(&cursor)) > 0) {
        require(cursor.line > line && cursor.at > text && cursor.at <= cursor.end);
        require(*cursor.name != '\0' && is_trimmed(cursor.name) && is_trimmed(cursor.value));
        require(strchr(cursor.name, '=') == NULL && strchr(cursor.value, '\n') == NULL);
        line = cursor.line;
        try_again(cursor.name, cursor.value);
    }
    require(status == 0 ? cursor.at == cursor.end : cursor.reason != NULL);
    free(text);
    return 0;
}
