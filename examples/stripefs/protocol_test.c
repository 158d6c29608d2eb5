/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol_test.c - requests and replies of stripefs, packed and unpacked, cut short at every
 * length, and paths. With a folder as argument it writes a message of each kind there, as seeds of
 * the fuzz target.
 */
#include <CUnit/Basic.h>
#include <stdio.h>

#include "message_case.h"
#include "protocol.h"

static struct sfs_request request_of(enum sfs_op op)
{
    struct sfs_request request = {.op = op,
                                  .server = 1,
                                  .servers = 4,
                                  .flags = SFS_SYNCED,
                                  .object = 77,
                                  .part = 2,
                                  .stripe = 65536,
                                  .tag = 0x1234,
                                  .count = 2,
                                  .path = "/some folder/and a file",
                                  .after = "before"};
    request.u.extents[0] = (struct sfs_extent){0, 100};
    request.u.extents[1] = (struct sfs_extent){4096, UINT64_C(1) << 40};
    if (op == SFS_DROP) {
        request.u.objects[0] = 5;
        request.u.objects[1] = UINT64_MAX;
    }
    if (op == SFS_UNLINK) {
        request.u.paths[0] = "/a";
        request.u.paths[1] = "/b/c";
    }
    request.meta = (struct sfs_meta){
        .kind = SFS_LINK, .mode = 0777, .mtime_ns = -5, .target_size = 3, .target = "../"};
    return request;
}

static struct bmi_message *pack(const struct sfs_request *request)
{
    struct bmi_message *message = bmi_message_new();
    sfs_request_pack(message, request);
    return message;
}

static int unpack(struct sfs_request *request, enum sfs_op op, const void *bytes, size_t size)
{
    struct opened opened;
    *request = (struct sfs_request){.op = op};
    int result = sfs_request_unpack(message_open(&opened, bytes, size), request);
    message_close(&opened);
    return result;
}

/* Unpacked and packed again it is the same; cut short, or with more behind it, it is refused. */
static void test_requests(void)
{
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS; op++) {
        struct sfs_request request = request_of(op), taken = {.op = op};
        struct bmi_message *message = pack(&request);
        struct opened opened;
        size_t size = message->stream_size;
        CU_ASSERT_EQUAL_FATAL(message->error, 0);
        CU_ASSERT_EQUAL_FATAL(sfs_request_unpack(message_open(&opened, message->stream, size),
                                                 &taken),
                              0);
        struct bmi_message *again = pack(&taken);
        message_close(&opened);
        CU_ASSERT_EQUAL(again->stream_size, size);
        CU_ASSERT_EQUAL(memcmp(again->stream, message->stream, size), 0);
        bool paths = op == SFS_UNLINK; /* may end after any of them */
        for (size_t cut = 0; cut < size; cut++)
            if (!paths || cut % 8 != 0)
                CU_ASSERT_EQUAL(unpack(&taken, op, message->stream, cut), -BMI_EBADMSG);
        bmi_pack_u32(message, 0);
        CU_ASSERT_EQUAL(unpack(&taken, op, message->stream, message->stream_size), -BMI_EBADMSG);
        bmi_message_free(message);
        bmi_message_free(again);
    }
}

/* Impossible values. */
static void test_refusals(void)
{
    static const struct {
        enum sfs_op op;
        size_t at; /* a number of 32 bits in the request */
        uint32_t value;
        int result;
    } cases[] = {
        {SFS_SPACE, offsetof(struct sfs_request, server), 4, -BMI_EINVAL},
        {SFS_SPACE, offsetof(struct sfs_request, servers), SFS_SERVERS_MAX + 1, -BMI_EINVAL},
        {SFS_WRITE, offsetof(struct sfs_request, part), 4, -BMI_EINVAL},
        {SFS_READ, offsetof(struct sfs_request, stripe), 0, -BMI_EINVAL},
        {SFS_READ, offsetof(struct sfs_request, tag), SFS_LEASE_TAG, -BMI_EINVAL},
        {SFS_READ, offsetof(struct sfs_request, count), 0, -BMI_EBADMSG},
        {SFS_READ, offsetof(struct sfs_request, u.extents[1].offset), 99, -BMI_EINVAL},
        {SFS_WRITE, offsetof(struct sfs_request, u.extents[0].offset) + 4, 1u << 31, -BMI_EINVAL},
        {SFS_DROP, offsetof(struct sfs_request, u.objects[0]), 0, -BMI_EINVAL},
        {SFS_COMMIT, offsetof(struct sfs_request, meta.mode), 010000, -BMI_EBADMSG},
        {SFS_UNLINK, offsetof(struct sfs_request, count), 0, -BMI_EBADMSG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sfs_request request = request_of(cases[i].op), taken;
        memcpy((char *)&request + cases[i].at, &cases[i].value, sizeof cases[i].value);
        struct bmi_message *message = pack(&request);
        CU_ASSERT_EQUAL(unpack(&taken, cases[i].op, message->stream, message->stream_size),
                        cases[i].result);
        bmi_message_free(message);
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

static struct bmi_message *list_of(const char *name)
{
    const struct sfs_meta meta = {.kind = SFS_FILE, .mode = 0644, .object = 5, .stripe = 1};
    uint8_t encoded[SFS_META_MAX];
    struct bmi_message *message = bmi_message_new();
    sfs_entry_pack(message, name, encoded, sfs_meta_encode(&meta, encoded));
    sfs_entries_end(message, true);
    return message;
}

/* Takes the first entry of a list of one. */
static int first_of(const char *name, struct sfs_entry *entry)
{
    struct bmi_message *message = list_of(name), *open;
    struct opened opened;
    bool more = false;
    open = message_open(&opened, message->stream, message->stream_size);
    int result = sfs_entry_unpack(open, SFS_LIST, entry, &more);
    if (result > 0) {
        struct sfs_entry none;
        CU_ASSERT_EQUAL(sfs_entry_unpack(open, SFS_LIST, &none, &more), 0);
        CU_ASSERT_TRUE(more);
    }
    message_close(&opened);
    bmi_message_free(message);
    return result;
}

/* No name leads out of the destination folder. */
static void test_lists(void)
{
    static const char *const bad[] = {"..", ".", "a/b", "/"};
    struct sfs_entry entry;
    CU_ASSERT_EQUAL_FATAL(first_of("name", &entry), 1);
    CU_ASSERT_STRING_EQUAL(entry.name, "name");
    CU_ASSERT_EQUAL(entry.name_size, 4);
    CU_ASSERT_EQUAL(entry.meta.object, 5);
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(first_of(bad[i], &entry), -BMI_EBADMSG);
}

static void test_formers_and_objects(void)
{
    const struct sfs_former formers[] = {{.kind = SFS_FILE, .object = 7, .holders = 1},
                                         {.status = -BMI_ENOENT}};
    const uint64_t objects[] = {3, 4, 5}, *objects_taken;
    const uint8_t used[] = {0, 1, 0}, *used_taken;
    struct bmi_message *message = bmi_message_new(), *open;
    struct sfs_former taken[2];
    struct opened opened;
    size_t count;
    bool more = false;
    sfs_formers_pack(message, formers, 2);
    sfs_objects_pack(message, objects, used, 3, true);
    open = message_open(&opened, message->stream, message->stream_size);
    CU_ASSERT_EQUAL(sfs_formers_unpack(open, taken, 2), 0);
    CU_ASSERT_EQUAL(memcmp(taken, formers, sizeof taken), 0);
    CU_ASSERT_EQUAL(sfs_objects_unpack(open, &objects_taken, &used_taken, &count, &more), 0);
    CU_ASSERT_TRUE(count == 3 && objects_taken[2] == 5 && used_taken[1] == 1 && more);
    message_close(&opened);
    open = message_open(&opened, message->stream, message->stream_size);
    CU_ASSERT_EQUAL(sfs_formers_unpack(open, taken, 1), -BMI_EBADMSG);
    message_close(&opened);
    bmi_message_free(message);
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

/* A seed: the operation, then a request or a reply. */
static int example_write(const char *folder, const char *kind, int op,
                         const struct bmi_message *message)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%d", folder, kind, op);
    FILE *file = fopen(path, "w");
    if (file == NULL || fputc(op - SFS_WRITE, file) == EOF ||
        fwrite(message->stream, 1, message->stream_size, file) != message->stream_size ||
        fclose(file) != 0)
        return 1;
    return 0;
}

static int examples_write(const char *folder)
{
    struct bmi_message *list = list_of("name");
    int failed = example_write(folder, "reply", SFS_LIST, list);
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS; op++) {
        struct sfs_request request = request_of(op);
        struct bmi_message *message = pack(&request);
        failed |= example_write(folder, "request", (int)op, message);
        bmi_message_free(message);
    }
    bmi_message_free(list);
    return failed;
}

int main(int argc, char **argv)
{
    static CU_TestInfo tests[] = {
        {"requests", test_requests}, {"impossible values", test_refusals},
        {"lists", test_lists},       {"formers and objects", test_formers_and_objects},
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
