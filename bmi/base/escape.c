/* SPDX-License-Identifier: BSD-3-Clause
 *
 * escape.c - see escape.h.
 */
#include "escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { ESCAPED = 4 }; /* bytes of \xHH */

/* Bytes of the UTF-8 character that begins here, and its code point. 0: there is none. */
static size_t character_take(const uint8_t *at, size_t left, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* shorter forms are invalid */
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xc0 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (size == 0 || size > left || at[0] > 0xf4)
        return 0;
    *code = size == 1 ? at[0] : at[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (at[i] & 0x3f);
    }
    bool valid = *code >= least[size] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return valid ? size : 0;
}

/* C0, C1, DEL; line and paragraph separators; marks, embeddings, overrides, and isolates of
 * bidirectional text; invisible characters that no name needs. */
static bool is_harmless(uint32_t code)
{
    if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c)
        return false;
    if (code == 0x200b || code == 0x200e || code == 0x200f || code == 0xfeff)
        return false;
    if ((code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f))
        return false;
    return (code < 0xfff9 || code > 0xfffb) && (code < 0xe0000 || code > 0xe007f);
}

static void byte_escape(char *to, uint8_t byte)
{
    static const char digits[] = "0123456789abcdef";
    to[0] = '\\';
    to[1] = 'x';
    to[2] = digits[byte >> 4];
    to[3] = digits[byte & 15];
}

size_t bmi__escape(char *to, size_t size, const void *from, size_t length)
{
    const uint8_t *at = from;
    size_t used = 0;
    while (length > 0) {
        uint32_t code;
        size_t bytes = character_take(at, length, &code);
        bool plain = bytes > 0 && is_harmless(code);
        if (bytes == 0)
            bytes = 1;
        if (used + (plain ? bytes : bytes * ESCAPED) >= size)
            break;
        if (plain) {
            memcpy(to + used, at, bytes);
            used += bytes;
        }
        for (size_t i = 0; !plain && i < bytes; i++, used += ESCAPED)
            byte_escape(to + used, at[i]);
        at += bytes;
        length -= bytes;
    }
    to[used] = '\0';
    return used;
}
