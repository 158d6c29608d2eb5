/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.c - medians, the table, JSON lines.
 */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int order(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

void row_finish(struct row *row)
{
    for (int i = 0; i < CONTENDER_COUNT; i++) {
        struct series *series = &row->series[i];
        if (!series->samples)
            continue;
        double sorted[REPS_MAX];
        int count = series->count;
        memcpy(sorted, series->samples, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, order);
        series->least = sorted[0];
        series->most = sorted[count - 1];
        series->median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    }
}

/* Servers that the user named, of BMI. */
int report_servers(const struct options *options)
{
    int count = 0;
    for (int i = 0; i < options->url_count; i++)
        count += strncmp(options->urls[i], "raw://", 6) != 0;
    return count;
}

static bool takes_part(const struct report *report, enum contender contender)
{
    return report->options->contenders & BIT(contender);
}

/* Calls for each ratio that the table has: BMI's kinds over the references. */
static void ratios_each(const struct report *report, const struct row *row,
                        void (*each)(enum contender bmi, enum contender reference,
                                     const struct row *row))
{
    for (enum contender bmi = CONTENDER_BMI; bmi <= CONTENDER_BMI_PLAIN; bmi++)
        for (enum contender other = CONTENDER_RAW; other < CONTENDER_COUNT; other++)
            if (takes_part(report, bmi) && takes_part(report, other))
                each(bmi, other, row);
}

static void ratio_head_print(enum contender bmi, enum contender reference, const struct row *row)
{
    char text[32];
    (void)row;
    format_text(text, sizeof text, "%s/%s", bmi == CONTENDER_BMI ? "bmi" : "plain",
                contender_name(reference));
    printf(" %14s", text);
}

static void ratio_print(enum contender bmi, enum contender reference, const struct row *row)
{
    printf(" %14.3f", row->series[bmi].median / row->series[reference].median);
}

void report_start(const struct report *report)
{
    const struct options *options = report->options;
    const struct pattern *pattern = options->pattern;
    printf("%s over %s, %s: median of %d", pattern->name, options->method, pattern->unit,
           options->reps);
    if (pattern->amount_is_bytes)
        printf("; %llu bytes%s", (unsigned long long)options->bytes,
               pattern->one_pair ? "" : " a pair");
    if (!pattern->one_pair && pattern->amount_is_bytes)
        printf(", segments of %llu, window %d", (unsigned long long)options->segment,
               options->window);
    printf("%s\n", options->verify ? "; every byte checked, NOT a measurement" : "");
    printf("%-8s %11s", "servers", pattern->size_name);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (takes_part(report, i))
            printf(" %11s", contender_name(i));
    ratios_each(report, NULL, ratio_head_print);
    printf("\n");
    fflush(stdout);
}

void report_row_print(const struct report *report, const struct row *row)
{
    char grid[32];
    format_text(grid, sizeof grid, "%dx%d", row->grid.servers, row->grid.clients);
    printf("%-8s %11u", grid, row->work.size);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (takes_part(report, i)) {
            double value = row->series[i].median;
            printf(" %11.*f", value < 100 ? 3 : value < 10000 ? 1 : 0, value);
        }
    ratios_each(report, row, ratio_print);
    printf("\n");
    fflush(stdout);
}

static void json_line_write(FILE *file, const struct report *report, const struct row *row,
                            enum contender contender)
{
    const struct options *options = report->options;
    const struct pattern *pattern = options->pattern;
    const struct series *series = &row->series[contender];
    bool bmi = BIT(contender) & BITS_BMI;
    uint64_t bytes =
        pattern->amount_is_bytes ? row->work.amount : row->work.amount * row->work.size;
    fprintf(file,
            "{\"pattern\": \"%s\", \"implementation\": \"%s\", \"method\": \"%s\", "
            "\"servers\": %d, \"clients\": %d, \"size\": %u, \"bytes\": %llu, ",
            pattern->name, bmi ? "bmi" : contender_name(contender), options->method,
            row->grid.servers, row->grid.clients, row->work.size, (unsigned long long)bytes);
    if (bmi && (pattern->contenders & BIT(CONTENDER_BMI_PLAIN)))
        fprintf(file, "\"buffers\": \"%s\", ", contender == CONTENDER_BMI ? "memalloc" : "plain");
    fprintf(file, "\"unit\": \"%s\", \"value\": %.6g, \"samples\": [", pattern->unit,
            series->median);
    for (int i = 0; i < series->count; i++)
        fprintf(file, "%s%.6g", i ? ", " : "", series->samples[i]);
    fprintf(file, "]}\n");
}

static void json_write(const struct report *report, const char *path)
{
    FILE *file = fopen(path, "a");
    if (!file)
        die("%s: %s", path, strerror(errno));
    for (int i = 0; i < report->count; i++)
        for (enum contender j = 0; j < CONTENDER_COUNT; j++)
            if (takes_part(report, j))
                json_line_write(file, report, &report->rows[i], j);
    if (fclose(file) != 0)
        die("%s: %s", path, strerror(errno));
}

void report_end(const struct report *report)
{
    if (report->options->json)
        json_write(report, report->options->json);
    if (report->options->plot)
        plot_write(report, report->options->plot);
}
