/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fuzz_replay.c - runs a fuzz target on stored inputs, where libFuzzer is not there to do it.
 *
 * Arguments are files, or folders of files. Fails if there is not one input: a corpus that has been
 * mislaid must not look like one that passes.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int inputs_run;

static void die(const char *path)
{
    perror(path);
    exit(2);
}

static void run_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size ? size : 1); /* exact size: a read beyond it is seen by checkers */

    if (!file || !data || fread(data, 1, size, file) != size)
        die(path);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    inputs_run++;
}

static void run_path(const char *path)
{
    struct stat status;
    struct dirent *entry;
    DIR *folder;

    if (stat(path, &status))
        die(path);
    if (S_ISREG(status.st_mode)) {
        run_file(path, (size_t)status.st_size);
        return;
    }
    folder = opendir(path);
    if (!folder)
        die(path);
    while ((entry = readdir(folder))) {
        char *child;

        if (entry->d_name[0] == '.')
            continue;
        if (asprintf(&child, "%s/%s", path, entry->d_name) < 0)
            die(path);
        run_path(child);
        free(child);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        run_path(argv[i]);
    printf("%d inputs\n", inputs_run);
    return inputs_run ? 0 : 1;
}
