/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_fuzz.c - reports of other processes, as bmi-metrics gets them, whatever they are: parsed,
 * and printed as metrics. No byte of them may forge a line.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/openmetrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void text_check(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)text[i] < ' ' && text[i] != '\n')
            abort();
    }
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, "bmi_", 4) != 0 && strncmp(line, "# ", 2) != 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct metrics_instance instance = {.process = 1,
                                        .program = "fuzz",
                                        .name = "further",
                                        .up = true};
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (report_parse(&instance.report, text, size)) {
        size_t length;
        char *page = metrics_text(&(struct metrics){&instance, 1, .peers = true}, &length);
        if (page != NULL)
            text_check(page, length);
        free(page);
        report_release(&instance.report);
    }
    free(text);
    return 0;
}
