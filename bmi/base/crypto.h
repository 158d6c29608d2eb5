/* SPDX-License-Identifier: BSD-3-Clause
 * crypto.h - SHA-256 and random numbers, from OpenSSL's libcrypto. Any thread may call these. */
#ifndef BMI_BASE_CRYPTO_H
#define BMI_BASE_CRYPTO_H

#include <stddef.h>
#include <stdint.h>

/* Prepares libcrypto; may be called again. Negative: -EIO if it offers no SHA-256. */
int bmi__crypto_start(void);
/* The thread that forks calls these, around it; the second one in both processes. */
void bmi__crypto_before_fork(void);
void bmi__crypto_after_fork(void);

/* The first 16 bytes of the SHA-256, after bmi__crypto_start. */
void bmi__digest16(uint8_t digest[16], const void *bytes, size_t size);

struct bmi_instance;

/* Random bytes of the instance's source. OpenSSL's are fit for secrets, and a forked child draws
 * others than its parent. Negative: an errno. */
int bmi__random(const struct bmi_instance *instance, void *bytes, size_t size);

#endif
