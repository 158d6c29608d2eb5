/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ourselves.c - tests over shm in one process.
 */
#include <stdio.h>

#include "methods/ib/ourselves.h"

extern const struct bmi_method bmi__method_ofi_shm;

struct ourselves ourselves;

static uint8_t into_dialled[64], into_accepted[64];

void ourselves_send(void)
{
    static struct bmi_frame frame;
    frame = (struct bmi_frame){0};
    fake_header_write(frame.header, 1, 0, 0);
    fake_method->send(ourselves.dialled.link, &frame);
    fake_method->flush(ourselves.dialled.link);
}

void ourselves_connect(void)
{
    char url[200];
    fake_listen(url, sizeof(url));
    fake_owner_init(&fake_accepted[0], into_accepted);
    CU_ASSERT_EQUAL_FATAL(fake_dial(url, &ourselves.dialled, into_dialled), 0);
    CU_ASSERT_FATAL(FAKE_UNTIL(ourselves.dialled.ups == 1 && fake_accepted_count == 1));
    ourselves.accepted = &fake_accepted[0];
    ourselves_send(); /* the provider's own acquaintance is made with the first */
    CU_ASSERT_FATAL(FAKE_UNTIL(ourselves.accepted->frames == 1));
    ourselves.state = fake_state;
    CU_ASSERT_PTR_NOT_NULL_FATAL(ourselves.state->bell);
}

void ourselves_disconnect(void)
{
    fake_method->close(ourselves.dialled.link, true);
    CU_ASSERT(FAKE_UNTIL(ourselves.dialled.downs == 1 && ourselves.accepted->downs == 1));
}

int ourselves_run(const char *suite, CU_TestInfo *tests)
{
    fake_method = &bmi__method_ofi_shm;
    void *trial;
    int error = fake_method->start(&trial);
    if (error == -ENOSYS) {
        puts("skipped: no libfabric");
        return 77;
    }
    if (error) {
        fprintf(stderr, "%s does not start: %s\n", fake_method->name, strerror(-error));
        return 1;
    }
    fake_method->stop(trial);
    fake_start();
    int status = unit_run(suite, tests);
    return fake_stop() || status ? 1 : 0;
}
