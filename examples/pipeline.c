/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pipeline.c - three processes, a flow each: the source sends memory, the relay forwards it, the
 * sink receives it and checks it. The program forks the three before BMI starts, and gives each one
 * the addresses of all.
 *
 *     pipeline BYTES
 */
#include <bmi/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOURCE, RELAY, SINK, STAGES, TAG = 7, TIMEOUT_MS = 60000 };

struct url {
    char text[256];
};

static BMI_addr_t addresses[STAGES];
static bmi_size_t size;
static void *bytes;

static struct bmi_flow_endpoint peer(int stage)
{
    struct bmi_flow_endpoint end = {.kind = BMI_FLOW_NETWORK};
    end.u.network.address = addresses[stage];
    end.u.network.tag = TAG;
    return end;
}

static struct bmi_flow_endpoint memory(void)
{
    struct bmi_flow_endpoint end = {.kind = BMI_FLOW_MEMORY};
    end.u.memory.buffers = &bytes;
    end.u.memory.sizes = &size;
    end.u.memory.count = 1;
    return end;
}

/* Runs the stage's flow to its end. */
static int flow_run(int stage)
{
    const struct bmi_flow_extent all = {.size = size, .count = 1};
    struct bmi_flow_description what = {
        .source = stage == SOURCE ? memory() : peer(stage - 1),
        .destination = stage == SINK ? memory() : peer(stage + 1),
        .extents = &all,
        .extent_count = 1,
    };
    struct bmi_job_context *context;
    struct bmi_job_status status;
    bmi_job_id_t id;
    int result = bmi_job_context_open(0, &context);
    if (result < 0)
        return result;
    int posted = bmi_job_flow(context, &what, NULL, &id, &status);
    result = bmi_job_wait(context, id, &status, posted, TIMEOUT_MS);
    bmi_job_context_close(context);
    return result;
}

/* Sends the parent the listen address of this process, and receives those of the others. */
static int meet(int in, int out)
{
    struct url own = {""}, all[STAGES];
    char text[BMI_MAX_ADDR_LEN];
    int result = BMI_get_info(0, BMI_GET_LISTEN_ADDR, text);
    snprintf(own.text, sizeof own.text, "%.255s", text);
    if (result < 0)
        return result;
    if (write(out, &own, sizeof own) != sizeof own || read(in, all, sizeof all) != sizeof all)
        return -BMI_EIO;
    for (int i = 0; i < STAGES && result == 0; i++)
        result = BMI_addr_lookup(&addresses[i], all[i].text);
    return result;
}

static int stage_run(int stage, int in, int out)
{
    bytes = stage == RELAY ? NULL : malloc((size_t)size);
    if (stage != RELAY && bytes == NULL)
        return -BMI_ENOMEM;
    if (stage == SOURCE)
        for (bmi_size_t i = 0; i < size; i++)
            ((unsigned char *)bytes)[i] = (unsigned char)(i * 7 + i / 4096);
    int result =
        BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC);
    if (result == 0) {
        result = meet(in, out);
        if (result == 0)
            result = flow_run(stage);
        /* the end of a send is local: a process stays until all have ended */
        if (write(out, &result, sizeof result) == sizeof result) {
            char end;
            while (read(in, &end, 1) > 0)
                ;
        }
        BMI_finalize();
    }
    for (bmi_size_t i = 0; stage == SINK && result == 0 && i < size; i++)
        if (((unsigned char *)bytes)[i] != (unsigned char)(i * 7 + i / 4096))
            result = -BMI_EIO;
    if (result < 0)
        fprintf(stderr, "pipeline, stage %d: %s\n", stage, bmi_status_string(result));
    free(bytes);
    return result;
}

int main(int argc, char **argv)
{
    int in[STAGES], out[STAGES], failed = 0;
    struct url all[STAGES];
    size = argc == 2 ? atoll(argv[1]) : 0;
    if (size < 1) {
        fprintf(stderr, "usage: pipeline BYTES\n");
        return 2;
    }
    for (int i = 0; i < STAGES; i++) {
        int down[2], up[2];
        if (pipe(down) != 0 || pipe(up) != 0)
            return 1;
        if (fork() == 0) {
            for (int k = 0; k < i; k++)
                close(out[k]), close(in[k]);
            close(down[1]), close(up[0]);
            _exit(stage_run(i, down[0], up[1]) != 0);
        }
        close(down[0]), close(up[1]);
        out[i] = down[1], in[i] = up[0];
    }
    for (int i = 0; i < STAGES; i++)
        failed |= read(in[i], &all[i], sizeof all[i]) != sizeof all[i];
    for (int i = 0; i < STAGES; i++)
        failed |= write(out[i], all, sizeof all) != sizeof all;
    for (int i = 0; i < STAGES; i++) {
        int result = -1;
        failed |= read(in[i], &result, sizeof result) != sizeof result || result != 0;
    }
    for (int i = 0; i < STAGES; i++)
        close(out[i]);
    for (int status; wait(&status) > 0;)
        failed |= status != 0;
    printf("%s\n", failed ? "failed" : "all bytes have arrived");
    return failed;
}
