/* SPDX-License-Identifier: BSD-3-Clause
 *
 * metrics_instances.c - a process of several instances, for metrics_test.py.
 *
 * usage: metrics_instances NAME...
 *
 * Opens an instance of each name, "default" the default one, and prints their URLs in one line.
 * Each reports, and makes progress in the background. Then it obeys lines of its input: "stall
 * NAME", "go NAME" (progress again), and "end NAME". It answers each by "done".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>
#include <bmi/instance.h>

enum { MOST = 8 };

static struct bmi_instance *instances[MOST];

static void must(int status, const char *what)
{
    if (status >= 0)
        return;
    fprintf(stderr, "metrics_instances: %s: %s\n", what, bmi_status_string(status));
    exit(1);
}

static void background(struct bmi_instance *instance, int on)
{
    must(bmi_instance_set_info(instance, BMI_BACKGROUND, &on), "background");
}

static struct bmi_instance *begin(const char *name)
{
    const char *const listen = "tcp://127.0.0.1:0";
    const struct bmi_instance_options options = {.name = name,
                                                 .methods = "bmi_tcp",
                                                 .listen = listen,
                                                 .flags = BMI_INIT_SERVER};
    struct bmi_instance *instance = bmi_instance_default();
    if (strcmp(name, "default") == 0)
        must(BMI_initialize("bmi_tcp", listen, BMI_INIT_SERVER), name);
    else
        must(bmi_instance_open(&instance, &options), name);
    must(bmi_instance_set_info(instance, BMI_SETTING, "report=on"), "report");
    background(instance, 1);
    return instance;
}

static void end(struct bmi_instance *instance)
{
    must(instance == bmi_instance_default() ? BMI_finalize() : bmi_instance_close(instance), "end");
}

static void obey(const char *command, struct bmi_instance **instance)
{
    if (strcmp(command, "end") == 0) {
        end(*instance);
        *instance = NULL;
    } else {
        background(*instance, strcmp(command, "go") == 0);
    }
    printf("done\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char command[8], name[BMI_INSTANCE_NAME_MAX], url[BMI_MAX_ADDR_LEN];
    int count = argc - 1 < MOST ? argc - 1 : MOST;
    for (int i = 0; i < count; i++) {
        instances[i] = begin(argv[i + 1]);
        must(bmi_instance_get_info(instances[i], BMI_GET_LISTEN_ADDR, url), "URL");
        printf("%s%s", url, i + 1 < count ? " " : "\n");
    }
    fflush(stdout);
    while (scanf("%7s %31s", command, name) == 2) {
        for (int i = 0; i < count; i++) {
            if (instances[i] != NULL && strcmp(argv[i + 1], name) == 0)
                obey(command, &instances[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (instances[i] != NULL)
            end(instances[i]);
    }
    return 0;
}
