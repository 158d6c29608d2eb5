/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol_test.c - messages of stripefs, encoded and decoded, cut short at every length, and
 * paths. With a folder as argument it writes a message of each kind there, as seeds of the fuzz
 * target.
 */
#include <CUnit/Basic.h>
#include <bmi.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

static struct sfs_request request_of(enum sfs_op op)
{
    struct sfs_request request = {.op = (uint16_t)op,
                                  .server = 1,
                                  .servers = 4,
                                  .tag = 0x1234,
                                  .flags = SFS_SYNCED,
                                  .client = 99};
    if (op <= SFS_KEEP || op == SFS_OBJECTS)
        request.object = 77;
    if (op == SFS_DROP) {
        request.object_count = 2;
        request.objects[0] = 5;
        request.objects[1] = UINT64_MAX;
    }
    if (op <= SFS_READ) {
        request.part = 2;
        request.stripe = 65536;
        request.extent_count = 2;
        request.extents[0] = (struct sfs_extent){0, 100};
        request.extents[1] = (struct sfs_extent){4096, UINT64_C(1) << 40};
    }
    if (op == SFS_UNLINK) {
        static uint8_t paths[64];
        request.path_count = 2;
        request.paths = paths;
        request.paths_size = (size_t)sfs_path_encode("/a", 2, paths, sizeof paths);
        request.paths_size += (size_t)sfs_path_encode("/b/c", 4, paths + request.paths_size, 32);
    }
    if ((op >= SFS_COMMIT && op <= SFS_LIST) || op == SFS_NAMES) {
        strcpy(request.path, "/some folder/and a file");
        request.path_size = (uint16_t)strlen(request.path);
    }
    if (op == SFS_LIST) {
        strcpy(request.after, "before");
        request.after_size = 6;
    }
    if (op == SFS_COMMIT)
        request.meta = (struct sfs_meta){
            .kind = SFS_LINK, .mode = 0777, .mtime_ns = -5, .target_size = 3, .target = "../"};
    return request;
}

static int64_t reply_of(uint8_t *bytes, size_t room)
{
    uint8_t entries[1000];
    struct sfs_entry entry = {.name_size = 4,
                              .name = "name",
                              .meta = {.kind = SFS_FILE, .mode = 0644, .object = 5, .stripe = 1}};
    int64_t size = sfs_entry_encode(&entry, entries, sizeof entries);
    struct sfs_reply reply = {.op = SFS_LIST,
                              .has_meta = true,
                              .meta = {.kind = SFS_FOLDER, .mode = 0755},
                              .more = true,
                              .entry_count = 1,
                              .entries = entries,
                              .entries_size = (size_t)size};
    return sfs_reply_encode(&reply, bytes, room);
}

static void test_requests(void)
{
    uint8_t bytes[SFS_REQUEST_MAX + 1], again[SFS_REQUEST_MAX];
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS; op++) {
        struct sfs_request request = request_of(op), decoded;
        int64_t size = sfs_request_encode(&request, bytes, SFS_REQUEST_MAX);
        CU_ASSERT_TRUE_FATAL(size > 0);
        CU_ASSERT_EQUAL(sfs_request_decode(&decoded, bytes, (size_t)size), 0);
        CU_ASSERT_EQUAL(sfs_request_encode(&decoded, again, sizeof again), size);
        CU_ASSERT_EQUAL(memcmp(bytes, again, (size_t)size), 0);
        for (int64_t cut = 0; cut < size; cut++) {
            CU_ASSERT_EQUAL(sfs_request_decode(&decoded, bytes, (size_t)cut), -BMI_EPROTO);
            CU_ASSERT_EQUAL(sfs_request_encode(&request, again, (size_t)cut), -BMI_EMSGSIZE);
        }
        bytes[size] = 0;
        CU_ASSERT_EQUAL(sfs_request_decode(&decoded, bytes, (size_t)size + 1), -BMI_EPROTO);
        bytes[4] = 9;
        CU_ASSERT_EQUAL(sfs_request_decode(&decoded, bytes, (size_t)size), -BMI_EPROTONOSUPPORT);
        CU_ASSERT_EQUAL(decoded.tag, 0x1234); /* so that it can be answered */
    }
}

static void test_replies(void)
{
    uint8_t bytes[2000];
    struct sfs_reply reply;
    struct sfs_entry entry;
    int64_t size = reply_of(bytes, sizeof bytes);
    CU_ASSERT_EQUAL_FATAL(sfs_reply_decode(&reply, bytes, (size_t)size), 0);
    const uint8_t *at = reply.entries;
    sfs_entry_take(&entry, &at, at + reply.entries_size);
    CU_ASSERT_STRING_EQUAL(entry.name, "name");
    CU_ASSERT_EQUAL(entry.meta.object, 5);
    CU_ASSERT_TRUE(reply.more && reply.has_meta);
    for (int64_t cut = 0; cut < size; cut++)
        CU_ASSERT_EQUAL(sfs_reply_decode(&reply, bytes, (size_t)cut), -BMI_EPROTO);
}

/* Names that would lead out of the destination folder. */
static void test_names(void)
{
    static const char *const names[] = {"..", ".", "a/b", ""};
    uint8_t bytes[2000], entries[1000];
    for (int i = 0; i < 4; i++) {
        struct sfs_entry entry = {.name_size = (uint16_t)strlen(names[i]),
                                  .meta = {.kind = SFS_FOLDER, .mode = 0755}};
        struct sfs_reply reply = {.op = SFS_LIST, .entry_count = 1, .entries = entries}, decoded;
        strcpy(entry.name, names[i]);
        reply.entries_size = (size_t)sfs_entry_encode(&entry, entries, sizeof entries);
        int64_t size = sfs_reply_encode(&reply, bytes, sizeof bytes);
        CU_ASSERT_EQUAL(sfs_reply_decode(&decoded, bytes, (size_t)size), -BMI_EPROTO);
    }
}

static void test_paths(void)
{
    static const struct {
        const char *path;
        int result;
    } cases[] = {
        {"/", 0},
        {"/a", 0},
        {"/a/b c/d", 0},
        {"/...", 0},
        {"/.a", 0},
        {"", -BMI_EINVAL},
        {"a", -BMI_EINVAL},
        {"//", -BMI_EINVAL},
        {"/a/", -BMI_EINVAL},
        {"/a//b", -BMI_EINVAL},
        {"/..", -BMI_EINVAL},
        {"/a/../b", -BMI_EINVAL},
        {"/.", -BMI_EINVAL},
        {"/a/./b", -BMI_EINVAL},
    };
    char longest[SFS_PATH_MAX + 2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CU_ASSERT_EQUAL(sfs_path_check(cases[i].path, strlen(cases[i].path)), cases[i].result);
    CU_ASSERT_EQUAL(sfs_path_check("/a\0b", 4), -BMI_EINVAL);
    memset(longest, 'n', sizeof longest);
    longest[0] = longest[200] = '/';
    CU_ASSERT_EQUAL(sfs_path_check(longest, 456), 0);
    CU_ASSERT_EQUAL(sfs_path_check(longest, 457), -BMI_ENAMETOOLONG); /* a name of 256 */
    longest[400] = '/';
    CU_ASSERT_EQUAL(sfs_path_check(longest, SFS_PATH_MAX), 0);
    CU_ASSERT_EQUAL(sfs_path_check(longest, SFS_PATH_MAX + 1), -BMI_ENAMETOOLONG);
}

static int examples_write(const char *folder)
{
    uint8_t bytes[SFS_REQUEST_MAX];
    char path[4096];
    for (enum sfs_op op = SFS_WRITE; op <= SFS_OPS; op++) {
        struct sfs_request request = request_of(op);
        int64_t size = op < SFS_OPS ? sfs_request_encode(&request, bytes, sizeof bytes)
                                    : reply_of(bytes, sizeof bytes);
        snprintf(path, sizeof path, "%s/message%d", folder, op);
        FILE *file = fopen(path, "w");
        if (file == NULL || fwrite(bytes, 1, (size_t)size, file) != (size_t)size ||
            fclose(file) != 0)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static CU_TestInfo tests[] = {
        {"requests", test_requests}, {"replies", test_replies}, {"names of entries", test_names},
        {"paths", test_paths},       CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {{.pName = "stripefs's messages", .pTests = tests}, CU_SUITE_INFO_NULL};
    if (argc > 1)
        return examples_write(argv[1]);
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed > 0;
}
