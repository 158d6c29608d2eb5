/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bad_requests.c - for the test: calls each service of a server with requests that are invalid, or
 * almost valid. Each call must fail with an error that names the fault. Then a message that is no
 * call ends the connection, and a valid request for its space must be answered.
 *
 * usage: stripefs-bad-requests URL [ROUNDS]
 */
#include <stdio.h>
#include <stdlib.h>

#include <bmi/job.h>

#include "protocol.h"

enum { TAG = 1000, PATIENCE_MS = 60000, SERVERS = 4 };

static struct bmi_job_context *jobs;
static BMI_addr_t server;

static int space_take(struct bmi_message *reply, void *argument)
{
    uint64_t total, available;
    (void)argument;
    bmi_unpack_u64(reply, &total);
    return bmi_unpack_u64(reply, &available);
}

static int call(const char *service, struct bmi_message *message)
{
    bmi_job_id_t id;
    int posted =
        bmi_job_rpc(jobs, server, service, message, space_take, NULL, NULL, NULL, &id, NULL);
    return bmi_job_wait(jobs, id, NULL, posted, PATIENCE_MS);
}

static struct sfs_request request_of(enum sfs_op op)
{
    struct sfs_request request = {.op = op,
                                  .servers = SERVERS,
                                  .object = 1,
                                  .stripe = 65536,
                                  .tag = TAG,
                                  .count = 1,
                                  .path = "/none",
                                  .after = "",
                                  .meta = {.kind = SFS_FOLDER, .mode = 0755}};
    request.u.extents[0] = (struct sfs_extent){1, 100};
    if (op == SFS_UNLINK)
        request.u.paths[0] = "/none";
    return request;
}

enum fault { OTHER_PIECE, MORE_PIECES, BODY, NO_SERVICE, OTHER_LIST, IMPOSSIBLE, FAULTS };

static int bad_call(enum sfs_op op, enum fault fault)
{
    static const int errors[FAULTS] = {
        [OTHER_PIECE] = BMI_EBADMSG, [MORE_PIECES] = BMI_EBADMSG, [BODY] = BMI_EBADMSG,
        [NO_SERVICE] = BMI_ENOSYS,   [OTHER_LIST] = BMI_EBADR,    [IMPOSSIBLE] = BMI_EINVAL};
    static const char large[1 << 20];
    struct sfs_request request = request_of(op);
    struct bmi_message *message = bmi_message_new();
    if (fault == OTHER_LIST)
        request.servers = 1;
    if (fault == IMPOSSIBLE)
        request.server = SERVERS;
    if (fault != OTHER_PIECE)
        sfs_request_pack(message, &request);
    if (fault == OTHER_PIECE || fault == MORE_PIECES)
        bmi_pack_u32(message, 1);
    if (fault == BODY)
        bmi_pack(message, large, sizeof large, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    int result = call(fault == NO_SERVICE ? "stripefs.none" : sfs_service(op), message);
    if (result == -errors[fault])
        return 0;
    printf("%s, fault %d: %s\n", sfs_service(op), fault, bmi_status_string(result));
    return -BMI_EPROTO;
}

/* A message of a protocol without calls: its sender would wait for a reply. */
static int stray_send(void)
{
    bmi_job_id_t id, reply;
    char byte = 0;
    int awaits = bmi_job_recv(jobs, server, &byte, 1, BMI_EXT_ALLOC, TAG, NULL, &reply, NULL);
    int posted =
        bmi_job_sendunexpected(jobs, server, "hello", 5, BMI_EXT_ALLOC, TAG, NULL, &id, NULL);
    bmi_job_wait(jobs, id, NULL, posted, PATIENCE_MS);
    int result = bmi_job_wait(jobs, reply, NULL, awaits, PATIENCE_MS);
    if (result == -BMI_ECONNRESET || result == -BMI_EPIPE)
        return 0;
    printf("a message that is no call: %s\n", bmi_status_string(result));
    return -BMI_EPROTO;
}

static int space_ask(void)
{
    struct sfs_request request = request_of(SFS_SPACE);
    struct bmi_message *message = bmi_message_new();
    sfs_request_pack(message, &request);
    return call(sfs_service(SFS_SPACE), message);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    int result = BMI_initialize(NULL, NULL, 0);
    if (argc < 2 || result < 0)
        return 2;
    result = BMI_addr_lookup(&server, argv[1]);
    if (result == 0)
        result = bmi_job_context_open(0, &jobs);
    for (int i = 0; i < rounds * FAULTS; i++)
        for (enum sfs_op op = SFS_WRITE; op < SFS_OPS && result == 0; op++)
            result = bad_call(op, (enum fault)(i % FAULTS));
    if (result == 0)
        result = stray_send();
    if (result == 0)
        result = space_ask();
    printf("after bad requests: %s\n", bmi_status_string(result));
    bmi_job_context_close(jobs);
    BMI_finalize();
    return result < 0;
}
