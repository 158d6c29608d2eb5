/* SPDX-License-Identifier: BSD-3-Clause
 *
 * idle_writes.c - for the test: announces COUNT writes to a server and never sends their bytes,
 * prints a line when the server has received all requests, and stays until standard input ends.
 *
 * usage: stripefs-idle-writes URL COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <bmi/job.h>

#include "protocol.h"

enum { PATIENCE_MS = 60000 };

static int start_take(struct bmi_message *reply, void *argument)
{
    uint64_t start;
    (void)argument;
    return bmi_unpack_u64(reply, &start);
}

static int write_ask(struct bmi_job_context *jobs, BMI_addr_t server, unsigned number)
{
    struct sfs_request request = {.op = SFS_WRITE,
                                  .servers = 1,
                                  .tag = number + 2,
                                  .object = number + 1,
                                  .stripe = 65536,
                                  .count = 1,
                                  .u.extents = {{0, 1 << 20}}};
    struct bmi_message *message = bmi_message_new();
    sfs_request_pack(message, &request);
    return bmi_job_rpc(jobs, server, sfs_service(SFS_WRITE), message, start_take, NULL, NULL, NULL,
                       NULL, NULL);
}

int main(int argc, char **argv)
{
    struct bmi_job_context *jobs = NULL;
    BMI_addr_t server;
    double us;
    char byte;
    int result = BMI_initialize(NULL, NULL, 0);
    if (argc < 3 || result < 0)
        return 2;
    result = BMI_addr_lookup(&server, argv[1]);
    if (result == 0)
        result = bmi_job_context_open(0, &jobs);
    for (unsigned i = 0; i < (unsigned)atoi(argv[2]) && result == 0; i++)
        result = write_ask(jobs, server, i);
    if (result == 0) /* answered after all earlier requests have arrived */
        result = bmi_ping(server, PATIENCE_MS, &us);
    printf("%s\n", bmi_status_string(result));
    fflush(stdout);
    while (result == 0 && read(0, &byte, 1) > 0)
        ;
    if (jobs != NULL)
        bmi_job_context_close(jobs);
    BMI_finalize();
    return result < 0;
}
