/* SPDX-License-Identifier: BSD-3-Clause
 * crypto.h - SHA-256 and random numbers, from OpenSSL's libcrypto. Any thread may call these. */
#ifndef BMI_BASE_CRYPTO_H
#define BMI_BASE_CRYPTO_H

#include <stddef.h>
#include <stdint.h>

/* Prepares libcrypto; may be called again. Negative: -EIO if it offers no SHA-256. */
int bmi__crypto_start(void);

/* The first 16 bytes of the SHA-256, after bmi__crypto_start. */
void bmi__digest16(uint8_t digest[16], const void *bytes, size_t size);

/* Random bytes, fit for secrets; a forked child draws others than its parent. Negative: -EIO. */
int bmi__random(void *bytes, size_t size);

#endif
