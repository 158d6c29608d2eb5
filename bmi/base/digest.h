/* SPDX-License-Identifier: BSD-3-Clause
 * digest.h - SHA-256 of short messages: names and proofs that do not give their secret away. */
#ifndef BMI_DIGEST_H
#define BMI_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_MOST = 55 }; /* one block, less padding and length */

/* The first 16 bytes of the SHA-256 of at most DIGEST_MOST bytes. */
void bmi__digest16(uint8_t digest[16], const void *bytes, size_t size);

#endif
