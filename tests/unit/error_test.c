/* SPDX-License-Identifier: BSD-3-Clause
 *
 * error_test.c - the table of errors: numbers, names, and the conversion from errno and back.
 */
#include "bmi/base/error.h"

#include <errno.h>

#include "unit.h"

/* BMI's numbers 1 to 59 in order, as the contract lists them. */
static const struct {
    const char *name;
    int system;
} listed[] = {
    {"EPERM", EPERM},
    {"ENOENT", ENOENT},
    {"EINTR", EINTR},
    {"EIO", EIO},
    {"ENXIO", ENXIO},
    {"EBADF", EBADF},
    {"EAGAIN", EAGAIN},
    {"ENOMEM", ENOMEM},
    {"EFAULT", EFAULT},
    {"EBUSY", EBUSY},
    {"EEXIST", EEXIST},
    {"ENODEV", ENODEV},
    {"ENOTDIR", ENOTDIR},
    {"EISDIR", EISDIR},
    {"EINVAL", EINVAL},
    {"EMFILE", EMFILE},
    {"EFBIG", EFBIG},
    {"ENOSPC", ENOSPC},
    {"EROFS", EROFS},
    {"EMLINK", EMLINK},
    {"EPIPE", EPIPE},
    {"EDEADLK", EDEADLK},
    {"ENAMETOOLONG", ENAMETOOLONG},
    {"ENOLCK", ENOLCK},
    {"ENOSYS", ENOSYS},
    {"ENOTEMPTY", ENOTEMPTY},
    {"ELOOP", ELOOP},
    {"EWOULDBLOCK", EWOULDBLOCK},
    {"ENOMSG", ENOMSG},
    {"EUNATCH", EUNATCH},
    {"EBADR", EBADR},
    {"EDEADLOCK", EDEADLOCK},
    {"ENODATA", ENODATA},
    {"ETIME", ETIME},
    {"ENONET", ENONET},
    {"EREMOTE", EREMOTE},
    {"ECOMM", ECOMM},
    {"EPROTO", EPROTO},
    {"EBADMSG", EBADMSG},
    {"EOVERFLOW", EOVERFLOW},
    {"ERESTART", ERESTART},
    {"EMSGSIZE", EMSGSIZE},
    {"EPROTOTYPE", EPROTOTYPE},
    {"ENOPROTOOPT", ENOPROTOOPT},
    {"EPROTONOSUPPORT", EPROTONOSUPPORT},
    {"EOPNOTSUPP", EOPNOTSUPP},
    {"EADDRINUSE", EADDRINUSE},
    {"EADDRNOTAVAIL", EADDRNOTAVAIL},
    {"ENETDOWN", ENETDOWN},
    {"ENETUNREACH", ENETUNREACH},
    {"ENETRESET", ENETRESET},
    {"ENOBUFS", ENOBUFS},
    {"ETIMEDOUT", ETIMEDOUT},
    {"ECONNREFUSED", ECONNREFUSED},
    {"EHOSTDOWN", EHOSTDOWN},
    {"EHOSTUNREACH", EHOSTUNREACH},
    {"EALREADY", EALREADY},
    {"EACCES", EACCES},
    {"ECONNRESET", ECONNRESET},
};

static const char *const own[] = {"ECANCEL",   "EDEVINIT", "EDETAIL",  "EHOSTNTFD",
                                  "EADDRNTFD", "ENORECVR", "ETRYAGAIN"};

static bool named(int32_t code, const char *name)
{
    const char *text = bmi_status_string(code);
    size_t length = strlen(name);
    return strncmp(text, name, length) == 0 && strncmp(text + length, ": ", 2) == 0 &&
           text[length + 2] != '\0';
}

static void every_code_has_its_number_and_name(void)
{
    CU_ASSERT_EQUAL(COUNT_OF(listed), 59);
    for (int i = 0; i < (int)COUNT_OF(listed); i++) {
        int32_t code = (i + 1) | 1 << 30 | 1 << 7;
        CU_ASSERT_TRUE(named(code, listed[i].name));
        CU_ASSERT_TRUE(named(-code, listed[i].name));
    }
    for (int i = 0; i < (int)COUNT_OF(own); i++) {
        int32_t code = (i + 1) | 1 << 30 | 1 << 29 | 1 << 7;
        CU_ASSERT_TRUE(named(code, own[i]));
        CU_ASSERT_TRUE(named(-code, own[i]));
    }
}

static void errno_becomes_its_code(void)
{
    for (int i = 0; i < (int)COUNT_OF(listed); i++) {
        bmi_error_code_t code = bmi__error(-listed[i].system);
        int32_t expected = -((i + 1) | 1 << 30 | 1 << 7);
        if (listed[i].system == EAGAIN) /* two BMI errors for one of the system's: the first one */
            expected = -BMI_EAGAIN;
        if (listed[i].system == EDEADLK)
            expected = -BMI_EDEADLK;
        CU_ASSERT_EQUAL(code, expected);
        CU_ASSERT_EQUAL(bmi__error(code), code); /* translating twice is harmless */
    }
    CU_ASSERT_EQUAL(bmi__error(0), 0);
    CU_ASSERT_EQUAL(bmi_status_of(0), 0);
    CU_ASSERT_EQUAL(bmi_status_of(ENOSPC), -BMI_ENOSPC);
    CU_ASSERT_EQUAL(bmi_status_of(-ENOSPC), -BMI_ENOSPC);
    CU_ASSERT_EQUAL(bmi_status_of(-BMI_ECANCEL), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi__error(-ENFILE), -BMI_EMFILE);
    CU_ASSERT_EQUAL(bmi__error(-ETOOMANYREFS), -BMI_EMFILE);
    CU_ASSERT_EQUAL(bmi__error(-EDQUOT), -BMI_ENOSPC);
    CU_ASSERT_EQUAL(bmi__error(-ECANCELED), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi__error(BMI__CANCELLED), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi__error(-BMI_ENORECVR), -BMI_ENORECVR);
}

/* Each errno becomes a BMI error, never 0 and never positive. */
static void no_errno_is_lost(void)
{
    for (int number = 1; number < 600; number++) {
        bmi_error_code_t code = bmi__error(-number);
        CU_ASSERT_TRUE(code < 0);
        CU_ASSERT_TRUE((-code & BMI_ERROR) != 0);
        CU_ASSERT_STRING_NOT_EQUAL(bmi_status_string(code), "Unknown status");
    }
    CU_ASSERT_EQUAL(bmi__error(-599), -BMI_EIO);
}

static void other_numbers_have_a_text_too(void)
{
    static const int32_t unknown[] = {1,       -1,     60,        INT32_MIN, INT32_MAX,
                                      1 << 30, 1 << 7, BMI_E(60), BMI_EN(8), BMI_E(0)};
    CU_ASSERT_STRING_EQUAL(bmi_status_string(0), "Success");
    for (size_t i = 0; i < COUNT_OF(unknown); i++)
        CU_ASSERT_STRING_EQUAL(bmi_status_string(unknown[i]), "Unknown status");
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"every code has its number and name", every_code_has_its_number_and_name},
        {"an errno becomes its code", errno_becomes_its_code},
        {"no errno is lost", no_errno_is_lost},
        {"other numbers have a text, too", other_numbers_have_a_text_too},
        CU_TEST_INFO_NULL,
    };
    return unit_run("errors", tests);
}
