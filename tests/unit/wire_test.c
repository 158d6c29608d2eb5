/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wire_test.c - frames to bytes and back: every type, every field's bounds, every kind of invalid
 * frame.
 */
#include "bmi/state/wire.h"

#include <errno.h>

#include "unit.h"

/* The properties of each type in docs and wire.h, written down a second time. */
static const struct {
    uint8_t type, flags;
    uint64_t body_max;
    const char *name;
} types[] = {
    {WIRE_HELLO, WIRE_REPLY, WIRE_HELLO_MAX, "HELLO"},
    {WIRE_JOIN, WIRE_REPLY, WIRE_JOIN_ITEMS *WIRE_JOIN_ITEM, "JOIN"},
    {WIRE_REJECT, 0, 0, "REJECT"},
    {WIRE_EAGER, 0, WIRE_DATA_MAX, "EAGER"},
    {WIRE_UNEXPECTED, 0, WIRE_DATA_MAX, "UNEXPECTED"},
    {WIRE_RTS, 0, WIRE_REGIONS_MAX *WIRE_REGION, "RTS"},
    {WIRE_CTS, WIRE_DISCARD, WIRE_REGIONS_MAX *WIRE_REGION, "CTS"},
    {WIRE_DATA, WIRE_FIRST | WIRE_LAST | WIRE_BY_PUT, WIRE_DATA_MAX, "DATA"},
    {WIRE_PUT_DONE, 0, 0, "PUT_DONE"},
    {WIRE_GET_DONE, 0, 0, "GET_DONE"},
    {WIRE_RTR, 0, WIRE_REGIONS_MAX *WIRE_REGION, "RTR"},
    {WIRE_RTR_CANCEL, 0, 0, "RTR_CANCEL"},
    {WIRE_RTR_CANCELLED, 0, 0, "RTR_CANCELLED"},
    {WIRE_ABORT, WIRE_MOVED, 0, "ABORT"},
    {WIRE_VOID, 0, 0, "VOID"},
    {WIRE_CREDIT, 0, 0, "CREDIT"},
    {WIRE_WANT, WIRE_EAGER_CREDIT | WIRE_UNEXPECTED_CREDIT | WIRE_ANNOUNCE | WIRE_UNUSED, 0,
     "WANT"},
    {WIRE_PING, 0, 0, "PING"},
    {WIRE_PONG, 0, 0, "PONG"},
    {WIRE_BYE, 0, 0, "BYE"},
    {WIRE_CANCEL, WIRE_NO_HEAD | WIRE_NO_STREAM | WIRE_NO_BODY, 0, "CANCEL"},
};

/* Whether frames of that type carry a tag. */
static bool is_tagged(uint8_t type)
{
    static const uint8_t tagged[] = {WIRE_EAGER, WIRE_UNEXPECTED, WIRE_RTS,           WIRE_DATA,
                                     WIRE_RTR,   WIRE_RTR_CANCEL, WIRE_RTR_CANCELLED, WIRE_ABORT,
                                     WIRE_VOID,  WIRE_WANT,       WIRE_CANCEL};
    return memchr(tagged, type, sizeof tagged) != NULL;
}

/* ---- headers -------------------------------------------------------------------------------- */

static bool header_equal(const struct wire_header *one, const struct wire_header *other)
{
    return one->type == other->type && one->flags == other->flags && one->tag == other->tag &&
           one->length == other->length && one->seen == other->seen &&
           one->credit == other->credit && one->source == other->source &&
           one->target == other->target;
}

static int round_trip(const struct wire_header *header, const char **reason)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct wire_header decoded;
    memset(&decoded, 0xee, sizeof decoded);
    wire_encode(bytes, header);
    int status = wire_decode(bytes, &decoded, reason);
    if (status == 0)
        CU_ASSERT_TRUE(header_equal(header, &decoded));
    return status;
}

static void every_type_is_listed(void)
{
    CU_ASSERT_EQUAL(COUNT_OF(types), WIRE_TYPES - 1);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        CU_ASSERT_EQUAL(types[i].type, i + 1);
        CU_ASSERT_STRING_EQUAL(wire_type_name(types[i].type), types[i].name);
    }
    CU_ASSERT_STRING_EQUAL(wire_type_name(0), "unknown");
    CU_ASSERT_STRING_EQUAL(wire_type_name(WIRE_TYPES), "unknown");
    CU_ASSERT_STRING_EQUAL(wire_type_name(255), "unknown");
}

static void round_trip_of_every_type_and_bound(void)
{
    static const int32_t tags[] = {INT32_MIN, -1, 0, 1, INT32_MAX};
    static const uint64_t numbers[] = {0, 1, UINT32_MAX, INT64_MAX, UINT64_MAX};
    const char *reason = "";
    for (size_t i = 0; i < COUNT_OF(types); i++)
        for (size_t k = 0; k < 5; k++) {
            struct wire_header header = {.type = types[i].type,
                                         .flags = k % 2 ? types[i].flags : 0,
                                         .tag = tags[k],
                                         .length = k % 2 ? types[i].body_max : 0,
                                         .seen = (uint32_t)numbers[k],
                                         .credit = (uint32_t)numbers[4 - k],
                                         .source = numbers[k],
                                         .target = numbers[4 - k]};
            CU_ASSERT_EQUAL(round_trip(&header, &reason), 0);
        }
}

static void flags_are_checked_bit_by_bit(void)
{
    for (size_t i = 0; i < COUNT_OF(types); i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            const char *reason = "";
            struct wire_header header = {.type = types[i].type, .flags = (uint8_t)(1u << bit)};
            bool allowed = (types[i].flags & header.flags) != 0;
            CU_ASSERT_EQUAL(round_trip(&header, &reason), allowed ? 0 : -EBADMSG);
            if (!allowed)
                CU_ASSERT_PTR_NOT_NULL(strstr(reason, "flags"));
        }
}

static void lengths_are_checked(void)
{
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const uint64_t most = types[i].body_max;
        const uint64_t too_long[] = {most + 1, UINT32_MAX, INT64_MAX, UINT64_MAX};
        const char *reason = "";
        struct wire_header header = {.type = types[i].type, .length = most};
        CU_ASSERT_EQUAL(round_trip(&header, &reason), 0);
        for (size_t k = 0; k < COUNT_OF(too_long); k++) {
            reason = "";
            header.length = too_long[k];
            CU_ASSERT_EQUAL(round_trip(&header, &reason), -EBADMSG);
            CU_ASSERT_PTR_NOT_NULL(strstr(reason, "longer"));
        }
    }
}

static void unknown_types_are_refused(void)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct wire_header decoded;
    wire_encode(bytes, &(struct wire_header){.type = WIRE_PING});
    for (unsigned first = 0; first < 128; first++) {
        const char *reason = "";
        unsigned type = first & 31, space = first >> 5;
        bool known = type >= 1 && type < WIRE_TYPES &&
                     (space == 0 || (space < SPACES && is_tagged((uint8_t)type)));
        bytes[0] = (uint8_t)first;
        CU_ASSERT_EQUAL(wire_decode(bytes, &decoded, &reason), known ? 0 : -EBADMSG);
        if (!known)
            CU_ASSERT_PTR_NOT_NULL(strstr(reason, "type"));
    }
}

/* Tags of each space, of long and short headers, come back as they were; a program's tag is a tag
 * of the first space as it is. */
static void spaces_are_kept(void)
{
    static const int32_t tags[] = {0, 1, -1, INT32_MAX, INT32_MIN};
    for (int space = 0; space < SPACES; space++)
        for (size_t i = 0; i < COUNT_OF(tags); i++)
            for (size_t k = 0; k < COUNT_OF(types); k++) {
                const char *reason = "";
                wire_tag tag = wire_tag_of((enum wire_space)space, tags[i]);
                struct wire_header header = {.type = types[k].type, .tag = tag};
                if (space != SPACE_PROGRAM && !is_tagged(types[k].type))
                    continue;
                CU_ASSERT_EQUAL((int)wire_tag_space(tag), space);
                CU_ASSERT_EQUAL((int32_t)tag, tags[i]);
                CU_ASSERT_EQUAL(round_trip(&header, &reason), 0);
            }
    CU_ASSERT_EQUAL(wire_tag_of(SPACE_PROGRAM, -7), -7);
}

/* ---- short headers -------------------------------------------------------------------------- */

static size_t encoded_size(const struct wire_header *header)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    wire_encode(bytes, header);
    return bmi_frame_header_size(bytes[0]);
}

/* Short if it can express the frame, and only then. */
static void small_messages_have_short_headers(void)
{
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        bool message = types[i].type == WIRE_EAGER || types[i].type == WIRE_UNEXPECTED;
        struct wire_header header = {.type = types[i].type,
                                     .tag = -1,
                                     .length = UINT16_MAX,
                                     .seen = UINT32_MAX,
                                     .credit = UINT32_MAX};
        CU_ASSERT_EQUAL(encoded_size(&header), message ? BMI_FRAME_SHORT : BMI_FRAME_HEADER);
        header.length++;
        CU_ASSERT_EQUAL(encoded_size(&header), BMI_FRAME_HEADER);
        header.length = 0;
        header.source = 1;
        CU_ASSERT_EQUAL(encoded_size(&header), BMI_FRAME_HEADER);
        header.source = 0;
        header.target = UINT64_C(1) << 63;
        CU_ASSERT_EQUAL(encoded_size(&header), BMI_FRAME_HEADER);
    }
}

/* Bytes beyond the 16 are not read: they are in memory of exactly that size. */
static void short_layout_is_little_endian_and_fixed(void)
{
    static const uint8_t expected[BMI_FRAME_SHORT] = {0x80 | WIRE_EAGER,
                                                      0xb3,
                                                      0x66,
                                                      0x55,
                                                      4,
                                                      3,
                                                      2,
                                                      1,
                                                      0x0d,
                                                      0x0c,
                                                      0x0b,
                                                      0x0a,
                                                      0x40,
                                                      0x30,
                                                      0x20,
                                                      0x10};
    const struct wire_header header = {.type = WIRE_EAGER,
                                       .tag = 0x01020304,
                                       .length = 0x5566,
                                       .seen = 0x0a0b0c0d,
                                       .credit = 0x10203040};
    struct wire_header decoded;
    const char *reason = "";
    uint8_t bytes[BMI_FRAME_HEADER], *exact = malloc(BMI_FRAME_SHORT);
    CU_ASSERT_PTR_NOT_NULL_FATAL(exact);
    wire_encode(bytes, &header);
    CU_ASSERT_EQUAL(memcmp(bytes, expected, BMI_FRAME_SHORT), 0);
    memcpy(exact, bytes, BMI_FRAME_SHORT);
    CU_ASSERT_EQUAL(wire_decode(exact, &decoded, &reason), 0);
    CU_ASSERT_TRUE(header_equal(&header, &decoded));
    free(exact);
}

static void bad_short_headers_are_refused(void)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct wire_header decoded;
    wire_encode(bytes, &(struct wire_header){.type = WIRE_EAGER});
    for (unsigned type = 0; type < 128; type++) {
        const char *reason = "";
        unsigned plain = type & 31;
        bool message = (plain == WIRE_EAGER || plain == WIRE_UNEXPECTED) && type >> 5 < SPACES;
        bytes[0] = (uint8_t)(0x80 | type);
        CU_ASSERT_EQUAL(wire_decode(bytes, &decoded, &reason), message ? 0 : -EBADMSG);
        if (!message)
            CU_ASSERT_PTR_NOT_NULL(strstr(reason, "type"));
    }
    bytes[0] = 0x80 | WIRE_EAGER;
    for (unsigned bit = 0; bit < 8; bit++) {
        const char *reason = "";
        bytes[1] ^= (uint8_t)(1u << bit);
        CU_ASSERT_EQUAL(wire_decode(bytes, &decoded, &reason), -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(strstr(reason, "magic"));
        bytes[1] ^= (uint8_t)(1u << bit);
    }
}

/* ---- long ones ------------------------------------------------------------------------------ */

static void magic_is_checked_bit_by_bit(void)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    struct wire_header decoded;
    wire_encode(bytes, &(struct wire_header){.type = WIRE_PING});
    for (unsigned bit = 0; bit < 16; bit++) {
        const char *reason = "";
        bytes[2 + bit / 8] ^= (uint8_t)(1u << bit % 8);
        CU_ASSERT_EQUAL(wire_decode(bytes, &decoded, &reason), -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(strstr(reason, "magic"));
        bytes[2 + bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    const char *reason = "";
    CU_ASSERT_EQUAL(wire_decode(bytes, &decoded, &reason), 0);
}

/* The layout itself: other implementations and captures depend on it. */
static void layout_is_little_endian_and_fixed(void)
{
    uint8_t bytes[BMI_FRAME_HEADER];
    static const uint8_t expected[BMI_FRAME_HEADER] = {
        WIRE_DATA, 3, 0x1f, 0xb3, 0x04, 0x03, 0x02, 0x01, 0x66, 0x55, 0x44, 0x03, 0,    0,
        0,         0, 0x0d, 0x0c, 0x0b, 0x0a, 0x40, 0x30, 0x20, 0x10, 0x08, 0x07, 0x06, 0x05,
        4,         3, 2,    1,    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    wire_encode(bytes, &(struct wire_header){.type = WIRE_DATA,
                                             .flags = 3,
                                             .tag = 0x01020304,
                                             .length = 0x03445566,
                                             .seen = 0x0a0b0c0d,
                                             .credit = 0x10203040,
                                             .source = UINT64_C(0x0102030405060708),
                                             .target = UINT64_C(0x1112131415161718)});
    CU_ASSERT_EQUAL(memcmp(bytes, expected, sizeof bytes), 0);
}

/* ---- HELLO ---------------------------------------------------------------------------------- */

static struct wire_hello hello_make(size_t listen_length)
{
    struct wire_hello hello = {.version = WIRE_VERSION,
                               .eager_max = 1,
                               .unexpected_max = UINT32_MAX,
                               .eager_credit = 0x01020304,
                               .unexpected_credit = 7};
    for (uint8_t i = 0; i < 16; i++) {
        hello.incarnation[i] = i;
        hello.nonce[i] = (uint8_t)(255 - i);
    }
    memset(hello.listen, 'x', listen_length);
    return hello;
}

static void hello_round_trip(void)
{
    static const size_t lengths[] = {0, 1, 100, BMI_MAX_ADDR_LEN - 1};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        struct wire_hello hello = hello_make(lengths[i]), decoded;
        uint8_t bytes[WIRE_HELLO_MAX];
        const char *reason = "";
        size_t size = wire_hello_encode(bytes, &hello);
        CU_ASSERT_EQUAL(size, 52 + lengths[i] + WIRE_HELLO_TAIL);
        CU_ASSERT_EQUAL(memcmp(bytes + size - WIRE_HELLO_TAIL, "\r\n\r\n", 4), 0);
        CU_ASSERT_TRUE(size <= WIRE_HELLO_MAX);
        CU_ASSERT_EQUAL(wire_hello_decode(bytes, size, &decoded, &reason), 0);
        CU_ASSERT_EQUAL(memcmp(decoded.incarnation, hello.incarnation, 16), 0);
        CU_ASSERT_EQUAL(memcmp(decoded.nonce, hello.nonce, 16), 0);
        CU_ASSERT_EQUAL(decoded.version, hello.version);
        CU_ASSERT_EQUAL(decoded.eager_max, hello.eager_max);
        CU_ASSERT_EQUAL(decoded.unexpected_max, hello.unexpected_max);
        CU_ASSERT_EQUAL(decoded.eager_credit, hello.eager_credit);
        CU_ASSERT_EQUAL(decoded.unexpected_credit, hello.unexpected_credit);
        CU_ASSERT_STRING_EQUAL(decoded.listen, hello.listen);
    }
}

/* Every truncation of a HELLO, in memory of exactly that size: a read beyond it is detected. */
static void hello_truncated_anywhere(void)
{
    struct wire_hello hello = hello_make(40), decoded;
    uint8_t bytes[WIRE_HELLO_MAX];
    size_t size = wire_hello_encode(bytes, &hello) - WIRE_HELLO_TAIL;
    for (size_t left = 0; left < size; left++) {
        uint8_t *exact = malloc(left > 0 ? left : 1);
        const char *reason = NULL;
        CU_ASSERT_PTR_NOT_NULL_FATAL(exact);
        memcpy(exact, bytes, left);
        CU_ASSERT_EQUAL(wire_hello_decode(exact, left, &decoded, &reason), -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(reason);
        free(exact);
    }
    /* trailing bytes belong to a later version: allowed */
    const char *reason = "";
    memset(bytes + size, 0xff, 32);
    CU_ASSERT_EQUAL(wire_hello_decode(bytes, size + 32, &decoded, &reason), 0);
    CU_ASSERT_STRING_EQUAL(decoded.listen, hello.listen);
}

static void hello_with_a_bad_listen_address(void)
{
    struct wire_hello hello = hello_make(BMI_MAX_ADDR_LEN - 1), decoded;
    uint8_t bytes[WIRE_HELLO_MAX];
    const char *reason = "";
    size_t size = wire_hello_encode(bytes, &hello);
    /* one byte longer than an address may be, although the body has that byte */
    bytes[34] = (uint8_t)(BMI_MAX_ADDR_LEN & 0xff);
    bytes[35] = BMI_MAX_ADDR_LEN >> 8;
    bytes[size] = 'x';
    CU_ASSERT_EQUAL(wire_hello_decode(bytes, size + 1, &decoded, &reason), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason, "longer"));
    bytes[34] = bytes[35] = 0xff;
    CU_ASSERT_EQUAL(wire_hello_decode(bytes, sizeof bytes, &decoded, &reason), -EBADMSG);

    hello = hello_make(10);
    size = wire_hello_encode(bytes, &hello);
    bytes[52 + 4] = '\0';
    CU_ASSERT_EQUAL(wire_hello_decode(bytes, size, &decoded, &reason), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason, "NUL"));
}

/* ---- regions -------------------------------------------------------------------------------- */

static void regions_round_trip(void)
{
    static uint8_t bytes[(WIRE_REGIONS_MAX + 1) * WIRE_REGION];
    struct bmi_region regions[WIRE_REGIONS_MAX], decoded[WIRE_REGIONS_MAX];
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++)
        regions[i] = (struct bmi_region){.address = UINT64_MAX - i, .length = i, .key = i * 77u};
    for (uint32_t count = 0; count <= WIRE_REGIONS_MAX; count++) {
        wire_regions_encode(bytes, regions, count);
        CU_ASSERT_EQUAL(wire_regions_decode(bytes, count * WIRE_REGION, decoded), (int)count);
        CU_ASSERT_EQUAL(memcmp(regions, decoded, count * sizeof *regions), 0);
    }
    CU_ASSERT_EQUAL(wire_regions_decode(bytes, sizeof bytes, decoded), -EBADMSG);
}

static void regions_truncated(void)
{
    uint8_t bytes[3 * WIRE_REGION] = {0};
    struct bmi_region decoded[WIRE_REGIONS_MAX];
    for (size_t size = 0; size <= sizeof bytes; size++) {
        int expected = size % WIRE_REGION == 0 ? (int)(size / WIRE_REGION) : -EBADMSG;
        CU_ASSERT_EQUAL(wire_regions_decode(bytes, size, decoded), expected);
    }
}

static void regions_whose_sum_overflows(void)
{
    static const struct {
        uint64_t first, second;
        int expected;
    } cases[] = {
        {INT64_MAX, 0, 2},
        {INT64_MAX - 1, 1, 2},
        {INT64_MAX, 1, -EBADMSG},
        {UINT64_MAX, 0, -EBADMSG},
        {UINT64_MAX, 1, -EBADMSG},
        {0, UINT64_MAX, -EBADMSG},
        {UINT64_MAX, UINT64_MAX, -EBADMSG},
        {UINT64_C(1) << 63, UINT64_C(1) << 63, -EBADMSG},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t bytes[2 * WIRE_REGION];
        struct bmi_region decoded[WIRE_REGIONS_MAX];
        const struct bmi_region regions[2] = {{.length = cases[i].first},
                                              {.length = cases[i].second}};
        wire_regions_encode(bytes, regions, 2);
        CU_ASSERT_EQUAL(wire_regions_decode(bytes, sizeof bytes, decoded), cases[i].expected);
    }
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"every type is listed", every_type_is_listed},
        {"round trip of every type, at every bound", round_trip_of_every_type_and_bound},
        {"flags are checked bit by bit", flags_are_checked_bit_by_bit},
        {"lengths are checked", lengths_are_checked},
        {"unknown types are refused", unknown_types_are_refused},
        {"spaces are kept", spaces_are_kept},
        {"small messages have short headers", small_messages_have_short_headers},
        {"short layout is little-endian and fixed", short_layout_is_little_endian_and_fixed},
        {"bad short headers are refused", bad_short_headers_are_refused},
        {"the magic number is checked bit by bit", magic_is_checked_bit_by_bit},
        {"layout is little-endian and fixed", layout_is_little_endian_and_fixed},
        {"HELLO round trip", hello_round_trip},
        {"HELLO truncated anywhere", hello_truncated_anywhere},
        {"HELLO with a bad listen address", hello_with_a_bad_listen_address},
        {"regions round trip", regions_round_trip},
        {"regions truncated", regions_truncated},
        {"regions whose sum overflows", regions_whose_sum_overflows},
        CU_TEST_INFO_NULL,
    };
    return unit_run("wire", tests);
}
