/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_keep_fault.c - memory of BMI_memalloc that is freed while registrations are kept
 * (registration_keep), and other memory at its address: the registration of the first one's pages
 * is not used for the second.
 *
 * Over ofi+tcp, with the setting to register as for a device. A process sends to itself.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "serve.h"

enum { BYTES = 1 << 20, TAG = 5 };

static uint64_t hits(void)
{
    return method_statistics("bmi_ofi_tcp").registration_hits;
}

static void exchange(BMI_addr_t own, char *into)
{
    static char from[BYTES];
    struct noted send, receive;
    memset(from, 'x', BYTES);
    note_receive(&receive, own, into, BYTES, TAG);
    note_send(&send, own, from, BYTES, TAG);
    noted_good(&send, "the send");
    noted_good(&receive, "the receive");
    CHECK(memcmp(into, from, BYTES) == 0, "other bytes came than were sent");
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t own;
    test_begin("ofi_keep_fault", 60);
    setenv("BMI_TEST_METHOD", "ofi+tcp", 1);
    setenv("BMI_OFI_REGISTER_ALL", "1", 1);
    setenv("BMI_REGISTRATION_KEEP", "1", 1);
    serve_here(0, listening);
    operations_open();
    must(BMI_addr_lookup(&own, listening), "BMI_addr_lookup");
    char *memory = BMI_memalloc(own, BYTES, BMI_RECV);
    CHECK(memory != NULL, "no memory");
    exchange(own, memory);
    uint64_t before = hits();
    exchange(own, memory);
    uint64_t each = hits() - before;
    CHECK(each > 1, "registrations are not kept");
    must(BMI_memfree(own, memory, BYTES, BMI_RECV), "BMI_memfree");

    void *again = mmap(memory, BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(again == memory, "the address was not given back");
    before = hits();
    exchange(own, again);
    CHECK(hits() == before + each - 1, "an old registration was used for other memory");
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    munmap(again, BYTES);
    return test_passed();
}
