/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bad_requests.c - for the test: sends a server messages that are invalid, or almost valid, and
 * then a valid request for its space, which the server must answer.
 *
 * usage: stripefs-bad-requests URL [COUNT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi/job.h>

#include "protocol.h"

enum { TAG = 1000, PATIENCE_MS = 60000 };

static struct bmi_job_context *jobs;
static BMI_addr_t server;

static int await(int posted, bmi_job_id_t id, struct bmi_job_status *status)
{
    int count = 0;
    if (posted != 0)
        return posted < 0 ? posted : status->error;
    int result = bmi_job_test(jobs, id, &count, status, PATIENCE_MS);
    return result < 0 ? result : count == 0 ? -BMI_ETIMEDOUT : status->error;
}

static int message_send(const uint8_t *bytes, int64_t size)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    int posted =
        bmi_job_sendunexpected(jobs, server, bytes, size, BMI_EXT_ALLOC, TAG, NULL, &id, &status);
    return await(posted, id, &status);
}

/* Sends some request with changed bytes; its tag is one that no receive waits for. */
static int bad_send(unsigned seed)
{
    struct sfs_request request = {.op = (uint16_t)(1 + seed % (SFS_OPS - 1)),
                                  .servers = 4,
                                  .tag = 2,
                                  .object = seed,
                                  .stripe = 65536,
                                  .extent_count = 1};
    uint8_t bytes[SFS_REQUEST_MAX];
    request.extents[0] = (struct sfs_extent){seed, 100};
    request.meta = (struct sfs_meta){.kind = SFS_FOLDER, .mode = 0755};
    strcpy(request.path, "/../x");
    request.path_size = 5;
    int64_t size = sfs_request_encode(&request, bytes, sizeof bytes);
    switch (seed % 4) {
    case 0: /* cut short */
        size = (int64_t)((unsigned)rand() % (unsigned)size);
        break;
    case 1: /* random bytes */
        for (int i = 0; i < 64; i++)
            bytes[i] = (uint8_t)rand();
        size = 64;
        break;
    case 2: /* too long */
        memset(bytes + size, 0, 100);
        size += 100;
        break;
    default: /* impossible numbers */
        memset(bytes + 12, 0xff, (size_t)(size - 12));
    }
    return message_send(bytes, size);
}

static int space_ask(void)
{
    struct sfs_request request = {.op = SFS_SPACE, .servers = 4, .tag = TAG};
    struct sfs_reply reply;
    struct bmi_job_status received;
    uint8_t bytes[SFS_REQUEST_MAX], answer[1000];
    bmi_job_id_t id;
    int64_t size = sfs_request_encode(&request, bytes, sizeof bytes);
    int posted =
        bmi_job_recv(jobs, server, answer, sizeof answer, BMI_EXT_ALLOC, TAG, NULL, &id, &received);
    int result = message_send(bytes, size);
    if (result == 0)
        result = await(posted, id, &received);
    if (result == 0)
        result = sfs_reply_decode(&reply, answer, (size_t)received.actual);
    return result < 0 ? result : reply.status;
}

int main(int argc, char **argv)
{
    unsigned count = argc > 2 ? (unsigned)atoi(argv[2]) : 500;
    int result = BMI_initialize(NULL, NULL, 0);
    if (argc < 2 || result < 0)
        return 2;
    result = BMI_addr_lookup(&server, argv[1]);
    if (result == 0)
        result = bmi_job_context_open(0, &jobs);
    srand(1);
    for (unsigned i = 0; i < count && result == 0; i++)
        result = bad_send(i);
    if (result == 0)
        result = space_ask();
    printf("after %u bad requests: %s\n", count, bmi_status_string(result));
    bmi_job_context_close(jobs);
    BMI_finalize();
    return result < 0;
}
