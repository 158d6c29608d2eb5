/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.h - numbers in little-endian bytes, at any alignment.
 */
#ifndef BMI_BASE_BYTES_H
#define BMI_BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void bmi__put16(uint8_t *bytes, uint16_t value)
{
    value = htole16(value);
    memcpy(bytes, &value, sizeof value);
}

static inline void bmi__put32(uint8_t *bytes, uint32_t value)
{
    value = htole32(value);
    memcpy(bytes, &value, sizeof value);
}

static inline void bmi__put64(uint8_t *bytes, uint64_t value)
{
    value = htole64(value);
    memcpy(bytes, &value, sizeof value);
}

static inline uint16_t bmi__get16(const uint8_t *bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof value);
    return le16toh(value);
}

static inline uint32_t bmi__get32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return le32toh(value);
}

static inline uint64_t bmi__get64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return le64toh(value);
}

#endif
