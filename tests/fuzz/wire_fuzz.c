/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wire_fuzz.c - the decoder: a header, then the rest as the body of a HELLO or of regions. An
 * accepted input must encode to the same bytes, within the bounds of wire.h.
 */
#include <stdlib.h>
#include <string.h>

#include "bmi/state/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void try_header(const uint8_t *data)
{
    struct wire_header header, decoded;
    uint8_t again[BMI_FRAME_HEADER];
    const char *reason = NULL;
    if (wire_decode(data, &header, &reason) < 0) {
        require(reason != NULL && *reason != '\0');
        return;
    }
    require(header.type >= 1 && header.type < WIRE_TYPES && header.length <= WIRE_DATA_MAX);
    wire_encode(again, &header);
    if (bmi_frame_header_size(*again) == bmi_frame_header_size(*data)) {
        require(memcmp(again, data, bmi_frame_header_size(*data)) == 0);
    } else { /* a long header where a short one would be enough */
        require(bmi_frame_header_size(*data) == BMI_FRAME_HEADER);
        require(wire_decode(again, &decoded, &reason) == 0 && decoded.tag == header.tag);
        require(decoded.length == header.length && decoded.seen == header.seen);
        require(decoded.credit == header.credit && decoded.type == header.type);
    }
}

static void try_hello(const uint8_t *data, size_t size)
{
    static struct wire_hello hello;
    static uint8_t again[WIRE_HELLO_MAX];
    const char *reason = NULL;
    if (wire_hello_decode(data, size, &hello, &reason) < 0) {
        require(reason != NULL && *reason != '\0');
        return;
    }
    size_t length = wire_hello_encode(again, &hello);
    require(length > WIRE_HELLO_TAIL && length <= sizeof again);
    length -= WIRE_HELLO_TAIL;
    require(length <= size && memcmp(again, data, length) == 0);
}

static void try_regions(const uint8_t *data, size_t size)
{
    struct bmi_region regions[WIRE_REGIONS_MAX];
    static uint8_t again[WIRE_REGIONS_MAX * WIRE_REGION];
    int count = wire_regions_decode(data, size, regions);
    if (count < 0)
        return;
    require(count <= WIRE_REGIONS_MAX && (size_t)count * WIRE_REGION == size);
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += regions[i].length;
    require(sum <= INT64_MAX);
    wire_regions_encode(again, regions, (uint32_t)count);
    require(memcmp(again, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < BMI_FRAME_HEADER)
        return 0;
    try_header(data);
    try_hello(data + BMI_FRAME_HEADER, size - BMI_FRAME_HEADER);
    try_regions(data + BMI_FRAME_HEADER, size - BMI_FRAME_HEADER);
    return 0;
}
