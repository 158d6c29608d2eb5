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

static int write_ask(struct bmi_job_context *jobs, BMI_addr_t server, unsigned number)
{
    struct sfs_request request = {.op = SFS_WRITE,
                                  .servers = 1,
                                  .tag = 2 * number + 2,
                                  .object = number + 1,
                                  .stripe = 65536,
                                  .extent_count = 1,
                                  .extents = {{0, 1 << 20}}};
    struct bmi_job_status status;
    uint8_t bytes[SFS_REQUEST_MAX];
    bmi_job_id_t id;
    int count = 0;
    int64_t size = sfs_request_encode(&request, bytes, sizeof bytes);
    int posted = bmi_job_sendunexpected(jobs, server, bytes, size, BMI_EXT_ALLOC,
                                        (bmi_msg_tag_t)request.tag, NULL, &id, &status);
    if (posted == 0)
        posted = bmi_job_test(jobs, id, &count, &status, PATIENCE_MS);
    return posted <= 0 ? -BMI_ETIMEDOUT : status.error;
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
