/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_kv_client.c - the client of rpc_kv_server. A value is `SIZE` times one character.
 *
 *     rpc_kv_client ADDRESS put KEY SIZE CHARACTER
 *     rpc_kv_client ADDRESS get KEY                  prints size and character
 *     rpc_kv_client ADDRESS delete KEY
 *     rpc_kv_client ADDRESS loop KEYS SIZE ROUNDS    puts, gets, checks that no value is mixed
 */
#include <bmi/rpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEADLINE_MS = 60000 };

struct value {
    char *bytes;
    bmi_size_t size;
};

static bmi_context_id context;
static BMI_addr_t server;

/* Makes a call and waits for its end. */
static int call(const char *service, struct bmi_message *request, bmi_rpc_unpack unpack,
                void *argument)
{
    static const struct bmi_rpc_options options = {.timeout_ms = DEADLINE_MS};
    bmi_op_id_t op;
    bmi_error_code_t error = 0;
    bmi_size_t size;
    int count = 0;
    int result =
        bmi_rpc_call(&op, server, service, request, unpack, argument, &options, NULL, context);
    while (result == 0 && count == 0)
        result = BMI_test(op, &count, &error, &size, NULL, 1000, context);
    return result < 0 ? result : error;
}

static int put(const char *key, const struct value *value)
{
    struct bmi_message *request = bmi_message_new();
    bmi_pack_string(request, key);
    bmi_pack(request, value->bytes, value->size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    return call("kv.put", request, NULL, NULL);
}

/* The size of the value is known now: its bytes follow to the memory that is allocated here. */
static int value_unpack(struct bmi_message *reply, void *argument)
{
    struct value *value = argument;
    int result = bmi_unpack_size(reply, &value->size);
    if (result < 0)
        return result;
    value->bytes = malloc((size_t)value->size + 1);
    if (value->bytes == NULL)
        return -BMI_ENOMEM;
    return bmi_unpack(reply, value->bytes, value->size, BMI_UNPACK_CHEAPER);
}

/* value->bytes is to be freed, also after an error. */
static int get(const char *key, struct value *value)
{
    struct bmi_message *request = bmi_message_new();
    *value = (struct value){0};
    bmi_pack_string(request, key);
    return call("kv.get", request, value_unpack, value);
}

static int delete (const char *key)
{
    struct bmi_message *request = bmi_message_new();
    bmi_pack_string(request, key);
    return call("kv.delete", request, NULL, NULL);
}

static int value_make(struct value *value, bmi_size_t size, char character)
{
    *value = (struct value){.bytes = malloc((size_t)size + 1), .size = size};
    if (value->bytes == NULL)
        return -BMI_ENOMEM;
    memset(value->bytes, character, (size_t)size);
    return 0;
}

static bool of_one_character(const struct value *value)
{
    for (bmi_size_t i = 1; i < value->size; i++)
        if (value->bytes[i] != value->bytes[0])
            return false;
    return true;
}

static int checked_get(const char *key, struct value *value)
{
    int result = get(key, value);
    return result == 0 && !of_one_character(value) ? -BMI_EIO : result;
}

static int loop(int keys, bmi_size_t most, int rounds)
{
    unsigned seed = (unsigned)getpid();
    int result = 0;
    for (int i = 0; i < rounds && result == 0; i++) {
        char key[16];
        struct value value, got = {0};
        result = value_make(&value, 1 + rand_r(&seed) % most, (char)('a' + rand_r(&seed) % 26));
        snprintf(key, sizeof key, "key %d", rand_r(&seed) % keys);
        if (result == 0)
            result = put(key, &value);
        snprintf(key, sizeof key, "key %d", rand_r(&seed) % keys);
        if (result == 0)
            result = checked_get(key, &got);
        if (result == -BMI_ENOENT)
            result = 0;
        free(value.bytes);
        free(got.bytes);
    }
    return result;
}

static int command(int argc, char **argv)
{
    struct value value = {0};
    int result = -BMI_EINVAL;
    if (argc == 6 && strcmp(argv[2], "put") == 0) {
        result = value_make(&value, atoll(argv[4]), argv[5][0]);
        if (result == 0)
            result = put(argv[3], &value);
    } else if (argc == 4 && strcmp(argv[2], "get") == 0) {
        result = checked_get(argv[3], &value);
        if (result == 0)
            printf("%lld %c\n", (long long)value.size, value.size > 0 ? value.bytes[0] : '-');
    } else if (argc == 4 && strcmp(argv[2], "delete") == 0) {
        result = delete (argv[3]);
    } else if (argc == 6 && strcmp(argv[2], "loop") == 0) {
        result = loop(atoi(argv[3]), atoll(argv[4]), atoi(argv[5]));
    }
    free(value.bytes);
    return result;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: rpc_kv_client ADDRESS put|get|delete|loop ...\n");
        return 2;
    }
    int result = BMI_initialize(NULL, NULL, 0);
    if (result < 0)
        goto out;
    result = BMI_addr_lookup(&server, argv[1]);
    if (result == 0)
        result = BMI_open_context(&context);
    if (result == 0) {
        result = command(argc, argv);
        BMI_close_context(context);
    }
    BMI_finalize();
out:
    if (result < 0)
        fprintf(stderr, "rpc_kv_client: %s\n", bmi_status_string(result));
    return result < 0;
}
