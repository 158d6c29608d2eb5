/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wire.c - encodes and decodes frames. No I/O, no state, no allocation: it is fuzzed.
 */
#include "bmi/state/wire.h"

#include <errno.h>
#include <string.h>

#include "bmi/base/bytes.h"

/* What each type allows. body_max: the largest body; exact: the body is that long or (with 0
 * allowed) as said. */
static const struct {
    const char *name;
    uint8_t flags;
    uint64_t body_max;
} rules[WIRE_TYPES] = {
    [WIRE_HELLO] = {"HELLO", WIRE_REPLY, WIRE_HELLO_MAX},
    [WIRE_JOIN] = {"JOIN", WIRE_REPLY, WIRE_JOIN_ITEMS *WIRE_JOIN_ITEM},
    [WIRE_REJECT] = {"REJECT", 0, 0},
    [WIRE_EAGER] = {"EAGER", 0, WIRE_DATA_MAX},
    [WIRE_UNEXPECTED] = {"UNEXPECTED", 0, WIRE_DATA_MAX},
    [WIRE_RTS] = {"RTS", 0, WIRE_REGIONS_MAX *WIRE_REGION},
    [WIRE_CTS] = {"CTS", WIRE_DISCARD, WIRE_REGIONS_MAX *WIRE_REGION},
    [WIRE_DATA] = {"DATA", WIRE_FIRST | WIRE_LAST | WIRE_BY_PUT, WIRE_DATA_MAX},
    [WIRE_PUT_DONE] = {"PUT_DONE", 0, 0},
    [WIRE_GET_DONE] = {"GET_DONE", 0, 0},
    [WIRE_RTR] = {"RTR", 0, WIRE_REGIONS_MAX *WIRE_REGION},
    [WIRE_RTR_CANCEL] = {"RTR_CANCEL", 0, 0},
    [WIRE_RTR_CANCELLED] = {"RTR_CANCELLED", 0, 0},
    [WIRE_ABORT] = {"ABORT", WIRE_MOVED, 0},
    [WIRE_VOID] = {"VOID", 0, 0},
    [WIRE_CREDIT] = {"CREDIT", 0, 0},
    [WIRE_WANT] = {"WANT", WIRE_EAGER_CREDIT | WIRE_UNEXPECTED_CREDIT | WIRE_ANNOUNCE | WIRE_UNUSED,
                   0},
    [WIRE_PING] = {"PING", 0, 0},
    [WIRE_PONG] = {"PONG", 0, 0},
    [WIRE_BYE] = {"BYE", 0, 0},
    [WIRE_CANCEL] = {"CANCEL", WIRE_NO_HEAD | WIRE_NO_STREAM | WIRE_NO_BODY, 0},
};

/* Whether frames of the type carry a tag, and so belong to a space. */
static bool is_tagged(uint8_t type)
{
    const uint32_t tagged = 1u << WIRE_EAGER | 1u << WIRE_UNEXPECTED | 1u << WIRE_RTS |
                            1u << WIRE_DATA | 1u << WIRE_RTR | 1u << WIRE_RTR_CANCEL |
                            1u << WIRE_RTR_CANCELLED | 1u << WIRE_ABORT | 1u << WIRE_VOID |
                            1u << WIRE_WANT | 1u << WIRE_CANCEL;
    return (tagged >> type & 1) != 0;
}

const char *wire_type_name(uint8_t type)
{
    return type > 0 && type < WIRE_TYPES ? rules[type].name : "unknown";
}

/* The short form: EAGER and UNEXPECTED up to 65535 bytes. Their other fields are 0. */
enum { SHORT = 0x80, SHORT_MAGIC = WIRE_MAGIC >> 8 };

/* The bits of the first byte that name the space. */
enum { SPACE_SHIFT = 5, TYPE_MASK = (1 << SPACE_SHIFT) - 1, SPACE_MASK = 3 << SPACE_SHIFT };
_Static_assert((int)WIRE_TYPES <= TYPE_MASK && SPACES <= 4, "they fit");

uint8_t wire_type_of(uint8_t first)
{
    return first & TYPE_MASK;
}

static uint8_t first_byte(const struct wire_header *header)
{
    return (uint8_t)(header->type | wire_tag_space(header->tag) << SPACE_SHIFT);
}

static enum wire_space space_of(uint8_t first)
{
    return (enum wire_space)((first & SPACE_MASK) >> SPACE_SHIFT);
}

static bool is_message(unsigned type)
{
    return type == WIRE_EAGER || type == WIRE_UNEXPECTED;
}

static bool fits_short(const struct wire_header *header)
{
    return is_message(header->type) && header->length <= UINT16_MAX && header->source == 0 &&
           header->target == 0 && header->flags == 0;
}

/* In two stores, since it is soon copied in few loads: see cmake/compiler.cmake. */
static void short_encode(uint8_t *bytes, const struct wire_header *header)
{
    uint64_t what = SHORT | first_byte(header) | (uint64_t)SHORT_MAGIC << 8;
    bmi__put64(bytes, what | header->length << 16 | (uint64_t)(uint32_t)header->tag << 32);
    bmi__put64(bytes + 8, header->seen | (uint64_t)header->credit << 32);
}

static int short_decode(const uint8_t *bytes, struct wire_header *header, const char **reason)
{
    uint8_t type = wire_type_of(bytes[0]);
    if (bytes[1] != SHORT_MAGIC) {
        *reason = "no frame: wrong magic number";
        return -EBADMSG;
    }
    if (!is_message(type) || space_of(bytes[0]) >= SPACES) {
        *reason = "unknown frame type";
        return -EBADMSG;
    }
    *header = (struct wire_header){
        .type = type,
        .length = bmi__get16(bytes + 2),
        .tag = wire_tag_of(space_of(bytes[0]), (int32_t)bmi__get32(bytes + 4)),
        .seen = bmi__get32(bytes + 8),
        .credit = bmi__get32(bytes + 12),
    };
    return 0;
}

void wire_encode(uint8_t bytes[BMI_FRAME_HEADER], const struct wire_header *header)
{
    if (fits_short(header)) {
        short_encode(bytes, header);
        return;
    }
    bytes[0] = first_byte(header);
    bytes[1] = header->flags;
    bmi__put16(bytes + 2, WIRE_MAGIC);
    bmi__put32(bytes + 4, (uint32_t)header->tag);
    bmi__put64(bytes + 8, header->length);
    bmi__put32(bytes + 16, header->seen);
    bmi__put32(bytes + 20, header->credit);
    bmi__put64(bytes + 24, header->source);
    bmi__put64(bytes + 32, header->target);
}

int wire_decode(const uint8_t *bytes, struct wire_header *header, const char **reason)
{
    if (bytes[0] & SHORT)
        return short_decode(bytes, header, reason);
    uint8_t type = wire_type_of(bytes[0]);
    if (bmi__get16(bytes + 2) != WIRE_MAGIC) {
        *reason = "no frame: wrong magic number";
        return -EBADMSG;
    }
    if (type == 0 || type >= WIRE_TYPES || space_of(bytes[0]) >= SPACES ||
        (space_of(bytes[0]) != SPACE_PROGRAM && !is_tagged(type))) {
        *reason = "unknown frame type";
        return -EBADMSG;
    }
    if (bytes[1] & ~rules[type].flags) {
        *reason = "flags that the frame's type does not have";
        return -EBADMSG;
    }
    *header = (struct wire_header){
        .type = type,
        .flags = bytes[1],
        .tag = wire_tag_of(space_of(bytes[0]), (int32_t)bmi__get32(bytes + 4)),
        .length = bmi__get64(bytes + 8),
        .seen = bmi__get32(bytes + 16),
        .credit = bmi__get32(bytes + 20),
        .source = bmi__get64(bytes + 24),
        .target = bmi__get64(bytes + 32),
    };
    if (header->length > rules[type].body_max) {
        *reason = "body longer than the frame's type allows";
        return -EBADMSG;
    }
    return 0;
}

bool wire_begins(const uint8_t *bytes, size_t have)
{
    uint8_t magic[2];
    bmi__put16(magic, WIRE_MAGIC);
    return (have < 1 || (bytes[0] != 0 && bytes[0] < WIRE_TYPES)) &&
           (have < 3 || bytes[2] == magic[0]) && (have < 4 || bytes[3] == magic[1]);
}

/* Fixed part of a HELLO's body: incarnation 16, nonce 16, version 2, length of listen 2, four
 * numbers of 4. */
enum { HELLO_FIXED = 52 };

static const char empty_line[WIRE_HELLO_TAIL] = {'\r', '\n', '\r', '\n'};
_Static_assert(HELLO_FIXED + BMI_MAX_ADDR_LEN + sizeof empty_line <= WIRE_HELLO_MAX, "it fits");

size_t wire_hello_encode(uint8_t *bytes, const struct wire_hello *hello)
{
    size_t length = strnlen(hello->listen, sizeof hello->listen - 1);
    memcpy(bytes, hello->incarnation, 16);
    memcpy(bytes + 16, hello->nonce, 16);
    bmi__put16(bytes + 32, hello->version);
    bmi__put16(bytes + 34, (uint16_t)length);
    bmi__put32(bytes + 36, hello->eager_max);
    bmi__put32(bytes + 40, hello->unexpected_max);
    bmi__put32(bytes + 44, hello->eager_credit);
    bmi__put32(bytes + 48, hello->unexpected_credit);
    memcpy(bytes + HELLO_FIXED, hello->listen, length);
    memcpy(bytes + HELLO_FIXED + length, empty_line, sizeof empty_line);
    return HELLO_FIXED + length + sizeof empty_line;
}

int wire_hello_decode(const uint8_t *bytes, size_t size, struct wire_hello *hello,
                      const char **reason)
{
    if (size < HELLO_FIXED) {
        *reason = "HELLO too short";
        return -EBADMSG;
    }
    memcpy(hello->incarnation, bytes, 16);
    memcpy(hello->nonce, bytes + 16, 16);
    hello->version = bmi__get16(bytes + 32);
    size_t length = bmi__get16(bytes + 34);
    hello->eager_max = bmi__get32(bytes + 36);
    hello->unexpected_max = bmi__get32(bytes + 40);
    hello->eager_credit = bmi__get32(bytes + 44);
    hello->unexpected_credit = bmi__get32(bytes + 48);
    if (length > size - HELLO_FIXED || length >= sizeof hello->listen) {
        *reason = "HELLO with a listen address longer than itself";
        return -EBADMSG;
    }
    memcpy(hello->listen, bytes + HELLO_FIXED, length);
    hello->listen[length] = '\0';
    if (strlen(hello->listen) != length) {
        *reason = "HELLO with a NUL in its listen address";
        return -EBADMSG;
    }
    return 0;
}

void wire_regions_encode(uint8_t *bytes, const struct bmi_region *regions, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, bytes += WIRE_REGION) {
        bmi__put64(bytes, regions[i].address);
        bmi__put64(bytes + 8, regions[i].length);
        bmi__put64(bytes + 16, regions[i].key);
    }
}

int wire_regions_decode(const uint8_t *bytes, size_t size, struct bmi_region *regions)
{
    if (size % WIRE_REGION != 0 || size > WIRE_REGIONS_MAX * WIRE_REGION)
        return -EBADMSG;
    uint64_t total = 0;
    uint32_t count = (uint32_t)(size / WIRE_REGION);
    for (uint32_t i = 0; i < count; i++, bytes += WIRE_REGION) {
        regions[i].address = bmi__get64(bytes);
        regions[i].length = bmi__get64(bytes + 8);
        regions[i].key = bmi__get64(bytes + 16);
        if (__builtin_add_overflow(total, regions[i].length, &total) || total > INT64_MAX)
            return -EBADMSG;
    }
    return (int)count;
}
