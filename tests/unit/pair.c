/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pair.c - see pair.h.
 */
#include "tests/unit/pair.h"
#include "bmi/base/instance.h"

#include <stdio.h>

#include "bmi/base/settings.h"
#include "bmi/progress/methods.h"

static const struct bmi_method *const methods[] = {&bmi__method_loop, &bmi__method_loopput,
                                                   &bmi__method_loopget};

void pair_listen(struct pair *pair, const struct bmi_method *method, const char *settings)
{
    char listen[64], bound[BMI_MAX_ADDR_LEN];
    *pair = (struct pair){.method = method};
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        bmi__loop_reset(methods[i]);
    CU_ASSERT_EQUAL_FATAL(
        bmi__settings_set(&bmi__default,
                          "immediate=on,announce=on,peer_memory=1M,total_memory=256M,spin_us=0,"
                          "cancel_grace_ms=60000,eager_max=0,coalesce=on"),
        0);
    if (settings != NULL)
        CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, settings), 0);
    bmi__loop_strangers(method, true);
    snprintf(listen, sizeof listen, "%s://pair:0", method->schemes);
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(method->name, listen, BMI_INIT_SERVER), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&pair->context), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, bound), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&pair->end[DIALLER], bound), 0);
    /* so that the HELLO does not claim the address that is dialled */
    bmi__method_named(&bmi__default, method->name, strlen(method->name))->listen[0] = '\0';
}

int pair_connect(struct pair *pair)
{
    struct BMI_unexpected_info info;
    bmi_op_id_t id;
    bmi_error_code_t error = 0;
    int count = 0;
    int status = BMI_post_sendunexpected(&id, pair->end[DIALLER], "hi", 2, BMI_EXT_ALLOC, 0, NULL,
                                         pair->context, NULL);
    CU_ASSERT_TRUE_FATAL(status >= 0);
    while (status == 0 && count == 0)
        CU_ASSERT_TRUE_FATAL(BMI_test(id, &count, &error, NULL, NULL, 100, pair->context) >= 0);
    if (error != 0)
        return error;
    for (count = 0; count == 0;)
        CU_ASSERT_TRUE_FATAL(BMI_testunexpected(1, &count, &info, 100) >= 0);
    pair->end[ACCEPTOR] = info.addr;
    CU_ASSERT_NOT_EQUAL(info.addr, pair->end[DIALLER]);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    return 0;
}

void pair_open(struct pair *pair, const struct bmi_method *method, const char *settings)
{
    pair_listen(pair, method, settings);
    CU_ASSERT_EQUAL_FATAL(pair_connect(pair), 0);
}

void pair_close(struct pair *pair)
{
    bmi__loop_reset(pair->method);
    BMI_close_context(pair->context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

void pair_drive(struct pair *pair,
                void (*one)(void *user_ptr, bmi_error_code_t error, bmi_size_t actual))
{
    enum { MOST = 32 };
    bmi_op_id_t ids[MOST];
    bmi_error_code_t errors[MOST];
    bmi_size_t actuals[MOST];
    void *user_ptrs[MOST];
    int count = 0;
    CU_ASSERT_TRUE(
        BMI_testcontext(MOST, ids, &count, errors, actuals, user_ptrs, 0, pair->context) >= 0);
    for (int i = 0; i < count; i++)
        one(user_ptrs[i], errors[i], actuals[i]);
}

/* ---- messages ------------------------------------------------------------------------------- */

enum { BLOCK = 256 };

/* The bytes of a message from `at` on. By words, since instrumented code pays for each access. */
static void pattern(uint64_t block[BLOCK / 8], uint64_t seed, size_t at)
{
    for (size_t i = 0; i < BLOCK / 8; i++)
        block[i] = seed * 2654435761u + (at + i) * 0x9e3779b97f4a7c15u;
}

static size_t block_size(size_t at, bmi_size_t size)
{
    return (size_t)size - at < BLOCK ? (size_t)size - at : BLOCK;
}

void label_write(uint8_t *buffer, bmi_size_t size, int end, int tag, uint64_t number)
{
    uint64_t words[3] = {(uint64_t)end << 32 | (uint32_t)tag, number, (uint64_t)size};
    uint64_t block[BLOCK / 8];
    memcpy(buffer, words, LABEL);
    for (size_t at = LABEL; at < (size_t)size; at += BLOCK) {
        pattern(block, words[0] ^ number << 8, at);
        memcpy(buffer + at, block, block_size(at, size));
    }
}

bool label_read(const uint8_t *buffer, bmi_size_t size, int *end, int *tag, uint64_t *number)
{
    uint64_t words[3], block[BLOCK / 8];
    if (size < LABEL)
        return false;
    memcpy(words, buffer, LABEL);
    *end = (int)(words[0] >> 32);
    *tag = (int)(uint32_t)words[0];
    *number = words[1];
    if (words[2] != (uint64_t)size)
        return false;
    for (size_t at = LABEL; at < (size_t)size; at += BLOCK) {
        pattern(block, words[0] ^ *number << 8, at);
        if (memcmp(buffer + at, block, block_size(at, size)) != 0)
            return false;
    }
    return true;
}
