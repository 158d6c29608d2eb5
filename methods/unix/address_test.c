/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_test.c - addresses of Unix sockets: which are accepted, their canonical form, and why
 * others are refused.
 */
#include "unix.h"

#include <CUnit/Basic.h>

static const struct {
    const char *text, *canonical;
} good[] = {
    {"/run/server", "/run/server"},
    {"/s", "/s"},
    {"@name", "@name"},
    {"@name/path", "@name"},
};

static const struct {
    const char *text, *reason;
} bad[] = {
    {"", "neither an absolute path nor '@' and a name"},
    {"server", "neither an absolute path nor '@' and a name"},
    {"@", "name behind '@' is empty"},
    {"/", "path ends with '/'"},
    {"/run/", "path ends with '/'"},
    {"/run\n", "path has a control character"},
};

static void accepts(void)
{
    char canonical[BMI_MAX_ADDR_LEN];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CU_ASSERT_EQUAL(unix_parse(good[i].text, canonical, sizeof(canonical), NULL), 0);
        CU_ASSERT_STRING_EQUAL(canonical, good[i].canonical);
        CU_ASSERT_EQUAL(unix_parse(good[i].text, canonical, 2, NULL), -ENAMETOOLONG);
    }
}

static void refuses(void)
{
    char canonical[BMI_MAX_ADDR_LEN];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *reason = "";
        CU_ASSERT_EQUAL(unix_parse(bad[i].text, canonical, sizeof(canonical), &reason), -EINVAL);
        CU_ASSERT_STRING_EQUAL(reason, bad[i].reason);
    }
}

/* Given: a path as long as the kernel takes, and one longer by a character. */
static void length(void)
{
    char path[110], canonical[BMI_MAX_ADDR_LEN];
    const char *reason = "";
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[107] = '\0';
    CU_ASSERT_EQUAL(unix_parse(path, canonical, sizeof(canonical), &reason), 0);
    path[107] = 'x';
    path[108] = '\0';
    CU_ASSERT_EQUAL(unix_parse(path, canonical, sizeof(canonical), &reason), -EINVAL);
    CU_ASSERT_STRING_EQUAL(reason, "path is above 107 characters");
}

int main(void)
{
    CU_initialize_registry();
    CU_pSuite suite = CU_add_suite("unix address", NULL, NULL);
    CU_ADD_TEST(suite, accepts);
    CU_ADD_TEST(suite, refuses);
    CU_ADD_TEST(suite, length);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
