/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_reply.c - for a test: in place of bmi_message_new, with no memory for a server's third
 * reply.
 */
#include <stddef.h>

#include <bmi/rpc.h>

struct bmi_message *__real_bmi_message_new(void);
struct bmi_message *__wrap_bmi_message_new(void);

struct bmi_message *__wrap_bmi_message_new(void)
{
    static int replies;
    return ++replies == 3 ? NULL : __real_bmi_message_new();
}
