/* SPDX-License-Identifier: BSD-3-Clause
 * digest.h - a name for a secret that does not tell it. */
#ifndef BMI_DIGEST_H
#define BMI_DIGEST_H

#include <stdint.h>

/* The first 16 bytes of the SHA-256 of 16 bytes. */
void bmi__digest16(uint8_t digest[16], const uint8_t secret[16]);

#endif
