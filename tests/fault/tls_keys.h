/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_keys.h - credentials for the tests of the tls method, made by bmi-keys in a folder of the
 * test: two authorities, a and b; certificates good, other (another address), expired, early (not
 * yet valid), gone and gonehost (revoked), client of a; stranger of b; files of shared keys.
 */
#ifndef BMI_TESTS_TLS_KEYS_H
#define BMI_TESTS_TLS_KEYS_H

#include "../stress/support.h"

extern char keys_folder[64];

/* With the program bmi-keys. */
void keys_make(const char *tool);
void keys_remove(void);
/* A shell command in the folder, where `keys` is bmi-keys. */
void keys_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Signs a certificate of a again, valid between these seconds from now. */
void keys_validity_set(const char *who, long from_s, long to_s);

/* Sets the credentials of this process: "good" is a/good.pem with a/good.key; "psk:one" a file of
 * keys. `peers`: accepted names; NULL: all. */
void credentials_set(const char *who, const char *peers);

#endif
