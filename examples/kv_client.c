/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kv_client.c - the client of kv_server. A value is `SIZE` times one character.
 *
 *     kv_client ADDRESS put KEY SIZE CHARACTER
 *     kv_client ADDRESS get KEY                  prints size and character
 *     kv_client ADDRESS loop KEYS SIZE ROUNDS    puts and gets, and checks that no value is mixed
 */
#include <bmi/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv.h"

static struct bmi_job_context *context;
static BMI_addr_t server;

struct pending {
    int posted;
    bmi_job_id_t id;
    struct bmi_job_status status;
};

static int finish(struct pending *job, int timeout_ms)
{
    return bmi_job_wait(context, job->id, &job->status, job->posted, timeout_ms);
}

static void reply_expect(struct pending *job, struct kv_reply *reply, bmi_msg_tag_t tag)
{
    job->posted = bmi_job_recv(context, server, reply, sizeof *reply, BMI_EXT_ALLOC, tag, NULL,
                               &job->id, &job->status);
}

/* Sends the request and waits for the first reply, whose receive is posted already. */
static int ask(struct kv_request *request, struct pending *job, struct kv_reply *reply)
{
    struct pending send;
    send.posted = bmi_job_sendunexpected(context, server, request, sizeof *request, BMI_EXT_ALLOC,
                                         KV_REQUEST_TAG, NULL, &send.id, &send.status);
    int result = finish(&send, KV_DEADLINE_MS);
    int received = finish(job, result < 0 ? 0 : KV_DEADLINE_MS);
    return result < 0 ? result : received < 0 ? received : reply->error;
}

/* Moves the value between memory and the server. */
static int move(void *bytes, bmi_size_t size, bmi_msg_tag_t tag, bool out)
{
    const struct bmi_flow_extent all = {.size = size, .count = 1};
    struct bmi_flow_endpoint memory = {.kind = BMI_FLOW_MEMORY}, peer = {.kind = BMI_FLOW_NETWORK};
    struct pending flow;
    memory.u.memory.buffers = &bytes;
    memory.u.memory.sizes = &size;
    memory.u.memory.count = 1;
    peer.u.network.address = server;
    peer.u.network.tag = tag;
    struct bmi_flow_description what = {.source = out ? memory : peer,
                                        .destination = out ? peer : memory,
                                        .extents = &all,
                                        .extent_count = 1};
    flow.posted = bmi_job_flow(context, &what, NULL, &flow.id, &flow.status);
    return finish(&flow, KV_DEADLINE_MS);
}

static int put(const char *key, void *bytes, bmi_size_t size)
{
    struct kv_request request = {.operation = KV_PUT, .size = size, .tag = bmi_tag_take(server)};
    struct kv_reply replies[2] = {{0}};
    struct pending jobs[2];
    if (request.tag < 0)
        return request.tag;
    snprintf(request.key, sizeof request.key, "%s", key);
    for (int i = 0; i < 2; i++)
        reply_expect(&jobs[i], &replies[i], request.tag);
    int result = ask(&request, &jobs[0], &replies[0]);
    if (result == 0)
        result = move(bytes, size, request.tag, true);
    int received = finish(&jobs[1], result < 0 ? 0 : KV_DEADLINE_MS);
    bmi_tag_give(server, request.tag);
    return result < 0 ? result : received < 0 ? received : replies[1].error;
}

/* *bytes is to be freed. */
static int get(const char *key, char **bytes, bmi_size_t *size)
{
    struct kv_request request = {.operation = KV_GET, .tag = bmi_tag_take(server)};
    struct kv_reply reply = {0};
    struct pending job;
    if (request.tag < 0)
        return request.tag;
    snprintf(request.key, sizeof request.key, "%s", key);
    reply_expect(&job, &reply, request.tag);
    int result = ask(&request, &job, &reply);
    *size = reply.size;
    *bytes = result == 0 ? malloc((size_t)reply.size + 1) : NULL;
    if (result == 0)
        result = *bytes != NULL ? move(*bytes, *size, request.tag, false) : -BMI_ENOMEM;
    bmi_tag_give(server, request.tag);
    return result;
}

static bool of_one_character(const char *bytes, bmi_size_t size)
{
    return size < 2 || memcmp(bytes, bytes + 1, (size_t)size - 1) == 0;
}

static int loop(int keys, bmi_size_t most, int rounds)
{
    unsigned seed = (unsigned)getpid();
    char *bytes = malloc((size_t)most);
    int result = bytes != NULL ? 0 : -BMI_ENOMEM;
    for (int i = 0; i < rounds && result == 0; i++) {
        char key[16], *got = NULL;
        bmi_size_t size = 1 + rand_r(&seed) % most;
        snprintf(key, sizeof key, "key %d", rand_r(&seed) % keys);
        memset(bytes, 'a' + rand_r(&seed) % 26, (size_t)size);
        result = put(key, bytes, size);
        snprintf(key, sizeof key, "key %d", rand_r(&seed) % keys);
        if (result == 0)
            result = get(key, &got, &size);
        if (result == 0 && !of_one_character(got, size))
            result = -BMI_EIO;
        if (result == -BMI_ENOENT)
            result = 0;
        free(got);
    }
    free(bytes);
    return result;
}

static int command(int argc, char **argv)
{
    char *bytes = NULL;
    bmi_size_t size = 0;
    int result = -BMI_EINVAL;
    if (argc == 6 && strcmp(argv[2], "put") == 0) {
        size = atoll(argv[4]);
        bytes = malloc((size_t)size + 1);
        if (bytes == NULL)
            return -BMI_ENOMEM;
        memset(bytes, argv[5][0], (size_t)size);
        result = put(argv[3], bytes, size);
    } else if (argc == 4 && strcmp(argv[2], "get") == 0) {
        result = get(argv[3], &bytes, &size);
        if (result == 0 && !of_one_character(bytes, size))
            result = -BMI_EIO;
        if (result == 0)
            printf("%lld %c\n", (long long)size, size > 0 ? bytes[0] : '-');
    } else if (argc == 6 && strcmp(argv[2], "loop") == 0) {
        result = loop(atoi(argv[3]), atoll(argv[4]), atoi(argv[5]));
    }
    free(bytes);
    return result;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: kv_client ADDRESS put|get|loop ...\n");
        return 2;
    }
    int result = BMI_initialize(NULL, NULL, 0);
    if (result < 0)
        goto out;
    result = BMI_addr_lookup(&server, argv[1]);
    if (result == 0)
        result = bmi_job_context_open(0, &context);
    if (result == 0) {
        result = command(argc, argv);
        bmi_job_context_close(context);
    }
    BMI_finalize();
out:
    if (result < 0)
        fprintf(stderr, "kv_client: %s\n", bmi_status_string(result));
    return result < 0;
}
