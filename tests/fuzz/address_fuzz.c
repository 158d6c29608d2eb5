/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_fuzz.c - address strings: tcp's parser alone, and whole strings through the address book.
 * A canonical form must be its own canonical form; an accepted string gives the same handle again,
 * and BMI_addr_rev_lookup returns it unchanged; a refused string leaves no memory behind.
 */
#include <stdlib.h>
#include <string.h>

#include "bmi/connection/address.h"
#include "methods/ip/ip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void start(void)
{
    static bool started;
    if (!started)
        require(BMI_initialize("bmi_tcp,bmi_loop", NULL, 0) == 0);
    started = true;
}

static void try_parser(const char *text)
{
    extern const struct bmi_method bmi__method_tcp;
    char canonical[BMI_MAX_ADDR_LEN], again[BMI_MAX_ADDR_LEN], small[8];
    const char *reason = NULL;
    memset(small, 'x', sizeof small);
    int status = bmi__method_tcp.parse(text, canonical, sizeof canonical, &reason);
    if (status < 0) {
        require(reason != NULL && *reason != '\0');
        return;
    }
    require(strlen(canonical) > 0);
    require(bmi__method_tcp.parse(canonical, again, sizeof again, &reason) == 0);
    require(strcmp(canonical, again) == 0);
    bmi__method_tcp.parse(text, small, sizeof small - 1, &reason);
    require(small[sizeof small - 1] == 'x');
}

static void try_lookup(const char *text)
{
    BMI_addr_t handle = 0, again = 0;
    int status = BMI_addr_lookup(&handle, text);
    if (status < 0) {
        require(handle == 0 && (-status & BMI_ERROR) != 0);
        return;
    }
    require(handle > 0 && BMI_addr_lookup(&again, text) == 0 && again == handle);
    require(strcmp(BMI_addr_rev_lookup(handle), text) == 0);
    BMI_query_addr_range(handle, text, 24);
    require(BMI_set_info(handle, BMI_DROP_ADDR, NULL) == 0);
    require(BMI_addr_rev_lookup(handle) == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    start();
    const char *separator = strstr(text, "://");
    if (strlen(text) < BMI_MAX_ADDR_LEN)
        try_parser(separator != NULL ? separator + 3 : text);
    try_lookup(text);
    free(text);
    return 0;
}
