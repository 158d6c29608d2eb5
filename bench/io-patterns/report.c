/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.c - medians, the table, JSON lines.
 */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int order(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int rows_prepare(const struct options *options, const struct grid *grid, struct row *rows)
{
    int count =
        options->pattern->rows ? options->pattern->rows(options, grid, rows) : options->size_count;
    for (int i = 0; i < count; i++) {
        rows[i].grid = *grid;
        if (!options->pattern->rows)
            work_fill(&rows[i].work, options, grid, options->sizes[i]);
    }
    return count;
}

const char *row_unit(const struct row *row, const struct pattern *pattern)
{
    return row->unit ? row->unit : pattern->unit;
}

bool row_less_is_better(const struct row *row, const struct pattern *pattern)
{
    return row->unit ? !strstr(row->unit, "/s") : pattern->less_is_better;
}

void row_open(struct row *row, const struct options *options, unsigned contenders)
{
    for (int i = 0; i < CONTENDER_COUNT; i++)
        if (contenders & BIT(i))
            row->series[i].samples = allocate((size_t)options->reps * sizeof(double));
}

void row_finish(struct row *row, const struct options *options)
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
        series->value = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
        if (options->pattern->low_quartile)
            series->value = sorted[count / 4];
    }
}

static bool takes_part(const struct report *report, enum contender contender)
{
    return report->options->contenders & BIT(contender);
}

/* Calls for each ratio that the table has: ours over the references. */
static void ratios_each(const struct report *report, const struct row *row,
                        void (*each)(enum contender our, enum contender reference,
                                     const struct row *row))
{
    for (enum contender our = 0; our < CONTENDER_COUNT; our++)
        for (enum contender other = 0; other < CONTENDER_COUNT; other++)
            if (BIT(our) & BITS_OURS && !(BIT(other) & BITS_OURS) && takes_part(report, our) &&
                takes_part(report, other))
                each(our, other, row);
}

/* "plain" of "bmi-plain". */
static const char *short_name(enum contender contender)
{
    const char *name = contender_name(contender);
    return strncmp(name, "bmi-", 4) == 0 ? name + 4 : name;
}

static void ratio_head_print(enum contender our, enum contender reference, const struct row *row)
{
    char text[32];
    (void)row;
    format_text(text, sizeof text, "%s/%s", short_name(our), contender_name(reference));
    printf(" %14s", text);
}

static void ratio_print(enum contender our, enum contender reference, const struct row *row)
{
    if (row->series[our].samples && row->series[reference].samples)
        printf(" %14.3f", row->series[our].value / row->series[reference].value);
    else
        printf(" %14s", "-");
}

/* A contender's column is wide enough for its name. */
static int column_width(enum contender contender)
{
    int length = (int)strlen(contender_name(contender));
    return length < 11 ? 11 : length;
}

static void file_check(const char *path)
{
    if (!path)
        return;
    bool there = access(path, F_OK) == 0;
    FILE *file = fopen(path, "a");
    if (!file)
        die("%s: %s", path, strerror(errno));
    fclose(file);
    if (!there)
        unlink(path);
}

void report_files_check(const struct options *options)
{
    file_check(options->json);
    file_check(options->plot);
}

void report_start(const struct report *report)
{
    const struct options *options = report->options;
    const struct pattern *pattern = options->pattern;
    printf("%s%s%s, %s: %s of %d", pattern->name, pattern->run_here ? "" : " over ",
           pattern->run_here ? "" : options->method, pattern->unit,
           pattern->low_quartile ? "lower quartile" : "median", options->reps);
    if (pattern->takes & TAKES_BYTES)
        printf("; %llu bytes%s", (unsigned long long)options->bytes,
               pattern->one_pair ? "" : " a pair");
    if (pattern->takes & TAKES_SEGMENT)
        printf(", segments of %llu", (unsigned long long)options->segment);
    if (options->post == POST_ALL)
        printf(", all posted at once");
    else if (options->post == POST_ONE)
        printf(", one at a time");
    else if (pattern->takes & TAKES_WINDOW)
        printf(", window %d", options->window);
    if (options->first != FIRST_RECEIVER)
        printf(", %s first", options->first == FIRST_SENDER ? "sender" : "nobody");
    if (options->poll)
        printf(", polling");
    if (options->memory)
        printf(", in turn in %llu bytes of memory", (unsigned long long)options->memory);
    printf("%s\n", options->verify ? "; every byte checked, NOT a measurement" : "");
    if (pattern->labels)
        printf("%-36s", pattern->labels);
    else
        printf("%-8s %11s", "servers", pattern->size_name);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (takes_part(report, i))
            printf(" %*s", column_width(i), contender_name(i));
    ratios_each(report, NULL, ratio_head_print);
    printf("\n");
    output_flush();
}

static void row_head_print(const struct report *report, const struct row *row)
{
    char grid[32];
    format_text(grid, sizeof grid, "%dx%d", row->grid.servers, row->grid.clients);
    if (!report->options->pattern->labels)
        printf("%-8s %11u", grid, row->work.size);
    else if (row == report->rows || strcmp(row[-1].panel, row->panel) != 0)
        printf("%s\n  %-34s", row->panel, row->label);
    else
        printf("  %-34s", row->label);
}

void report_row_print(const struct report *report, const struct row *row)
{
    row_head_print(report, row);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++) {
        double value = row->series[i].value;
        if (takes_part(report, i) && row->series[i].samples)
            printf(" %*.*f", column_width(i), value < 100 ? 3 : value < 10000 ? 1 : 0, value);
        else if (takes_part(report, i))
            printf(" %*s", column_width(i), "-");
    }
    ratios_each(report, row, ratio_print);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (takes_part(report, i) && row->series[i].note[0])
            printf("  %s: %s", contender_name(i), row->series[i].note);
    printf("\n");
    output_flush();
}

static void json_line_write(FILE *file, const struct report *report, const struct row *row,
                            enum contender contender)
{
    const struct options *options = report->options;
    const struct pattern *pattern = options->pattern;
    const struct series *series = &row->series[contender];
    bool bmi = BIT(contender) & BITS_BMI_OURS;
    bool bare = contender == CONTENDER_BMI_PLAIN && pattern->plain_is_bare;
    uint32_t size = pattern->message_size ? pattern->message_size : row->work.size;
    uint64_t bytes = pattern->amount_is_bytes ? row->work.amount : row->work.amount * size;
    fprintf(file,
            "{\"pattern\": \"%s\", \"implementation\": \"%s\", \"method\": \"%s\", "
            "\"servers\": %d, \"clients\": %d, \"size\": %u, ",
            pattern->name, bmi && !bare ? "bmi" : contender_name(contender),
            pattern->run_here ? "none" : options->method, row->grid.servers, row->grid.clients,
            row->work.size);
    if (pattern->amount_is_bytes || pattern->takes & TAKES_VERIFY) /* messages of known bytes */
        fprintf(file, "\"bytes\": %llu, ", (unsigned long long)bytes);
    if (options->verify)
        fprintf(file, "\"verify\": true, "); /* not a measurement */
    if (bmi && !pattern->plain_is_bare && (pattern->contenders & BIT(CONTENDER_BMI_PLAIN)))
        fprintf(file, "\"buffers\": \"%s\", ",
                contender == CONTENDER_BMI_PLAIN ? "plain" : "memalloc");
    if (bmi && (pattern->contenders & BIT(CONTENDER_BMI_BACKGROUND)))
        fprintf(file, "\"progress\": \"%s\", ",
                contender == CONTENDER_BMI_BACKGROUND ? "background" : "caller");
    if (options->contenders & BIT(CONTENDER_BMI_URING) && bmi)
        fprintf(file, "\"engine\": \"%s\", ",
                contender == CONTENDER_BMI_URING ? "io_uring" : "epoll");
    if (pattern->labels)
        fprintf(file, "\"panel\": \"%s\", \"label\": \"%s\", ", row->panel, row->label);
    if (pattern->takes & TAKES_ON)
        fprintf(file, "\"on\": \"%s\", ", on_name(row->work.on));
    if (pattern->takes & TAKES_COMPUTE)
        fprintf(file, "\"compute_us\": %u, ", row->work.compute_us);
    if (pattern->takes & TAKES_POST)
        fprintf(file, "\"post\": \"%s\", \"first\": \"%s\", \"poll\": %s, ",
                post_name(options->post), first_name(options->first),
                options->poll ? "true" : "false");
    if (row->work.memory)
        fprintf(file, "\"memory\": %llu, ", (unsigned long long)row->work.memory);
    if (series->note[0])
        fprintf(file, "\"note\": \"%s\", ", series->note);
    fprintf(file, "\"unit\": \"%s\", \"value\": %.6g, \"samples\": [", row_unit(row, pattern),
            series->value);
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
            if (takes_part(report, j) && report->rows[i].series[j].samples)
                json_line_write(file, report, &report->rows[i], j);
    if (fclose(file) != 0)
        die("%s: %s", path, strerror(errno));
}

void report_end(const struct report *report)
{
    if (report->options->pattern->end_print)
        report->options->pattern->end_print(report);
    if (report->options->json)
        json_write(report, report->options->json);
    if (report->options->plot)
        plot_write(report, report->options->plot);
}
