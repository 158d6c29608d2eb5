/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plot.c - the values as a drawing, written as SVG.
 *
 * One place on the x axis for each row of the table, evenly spaced; y from 0. Rows of growing
 * size are drawn as lines, others (numbers of servers and clients) as bars; either way with a
 * whisker from the least to the greatest sample. Patterns with rows of their own kind have a panel
 * for each part of their table.
 */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 760
#define HEIGHT 440
#define LEFT 80
#define RIGHT 20
#define TOP 72
#define BOTTOM 60

/* Colour-blind readers can distinguish them, too. */
static const char *const colours[CONTENDER_COUNT] = {
    [CONTENDER_BMI] = "#0072b2",
    [CONTENDER_BMI_PLAIN] = "#56b4e9",
    [CONTENDER_BMI_BACKGROUND] = "#cc79a7",
    [CONTENDER_BMI_URING] = "#cc79a7",
    [CONTENDER_LOCK_FREE] = "#0072b2",
    [CONTENDER_POST] = "#56b4e9",
    [CONTENDER_RAW] = "#d55e00",
    [CONTENDER_RAW_POLL] = "#e69f00",
    [CONTENDER_TLS] = "#882255",
    [CONTENDER_TLS_POLL] = "#aa4499",
    [CONTENDER_MPI] = "#009e73",
    [CONTENDER_MPI_PROBE] = "#f0e442",
    [CONTENDER_MPI_YIELD] = "#999933",
    [CONTENDER_FI] = "#000000",
    [CONTENDER_MEMCPY] = "#999999",
    [CONTENDER_SPINLOCK] = "#d55e00",
    [CONTENDER_LINE] = "#999999",
    [CONTENDER_MIXED] = "#0072b2",
    [CONTENDER_UNPLACED] = "#d55e00",
    [CONTENDER_RANDOM] = "#e69f00",
    [CONTENDER_TASKS_ONLY] = "#cc79a7",
    [CONTENDER_NEXT_TOUCH] = "#009e73",
    [CONTENDER_BOUND] = "#999999",
};

struct plot {
    FILE *file;
    const struct options *options;
    const struct row *rows; /* of this panel */
    int count;
    enum contender drawn[CONTENDER_COUNT];
    int drawn_count;
    double step, top; /* of the y axis */
};

/* A step of 1, 2 or 5 times a power of ten that makes about five of `most`. */
static double step_choose(double most)
{
    double power = pow(10, floor(log10(most / 5)));
    double rest = most / 5 / power;
    return (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10) * power;
}

static void plot_scale(struct plot *plot)
{
    double most = 0;
    for (int i = 0; i < plot->count; i++)
        for (int j = 0; j < plot->drawn_count; j++)
            most = fmax(most, plot->rows[i].series[plot->drawn[j]].most);
    if (most <= 0)
        most = 1;
    plot->step = step_choose(most);
    plot->top = ceil(most / plot->step) * plot->step;
}

static double y_of(const struct plot *plot, double value)
{
    return HEIGHT - BOTTOM - value / plot->top * (HEIGHT - TOP - BOTTOM);
}

static double x_of(const struct plot *plot, double row)
{
    return LEFT + (row + 0.5) * (WIDTH - LEFT - RIGHT) / plot->count;
}

/* A size in the usual units. */
static void size_text(uint32_t size, char text[32])
{
    if (size >= 1u << 20 && size % (1u << 20) == 0)
        format_text(text, 32, "%u MiB", size >> 20);
    else if (size >= 1u << 10 && size % (1u << 10) == 0)
        format_text(text, 32, "%u KiB", size >> 10);
    else
        format_text(text, 32, "%u", size);
}

static bool grids_differ(const struct plot *plot)
{
    for (int i = 1; i < plot->count; i++)
        if (memcmp(&plot->rows[i].grid, &plot->rows[0].grid, sizeof(struct grid)) != 0)
            return true;
    return false;
}

static bool sizes_differ(const struct plot *plot)
{
    for (int i = 1; i < plot->count; i++)
        if (plot->rows[i].work.size != plot->rows[0].work.size)
            return true;
    return false;
}

static void row_label(const struct plot *plot, const struct row *row, char text[64])
{
    char size[32];
    size_text(row->work.size, size);
    if (plot->options->pattern->labels)
        format_text(text, 64, "%s", row->label);
    else if (!grids_differ(plot))
        format_text(text, 64, "%s", size);
    else if (!sizes_differ(plot))
        format_text(text, 64, "%d×%d", row->grid.servers, row->grid.clients);
    else
        format_text(text, 64, "%d×%d, %s", row->grid.servers, row->grid.clients, size);
}

static void file_head_write(FILE *file, int height)
{
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height);
}

static void head_write(const struct plot *plot)
{
    const struct options *options = plot->options;
    const struct pattern *pattern = options->pattern;
    fprintf(plot->file,
            "<text x=\"%d\" y=\"24\" font-size=\"16\" font-weight=\"bold\">%s%s%s</text>\n", LEFT,
            pattern->name, pattern->labels ? ": " : " over ",
            pattern->labels ? plot->rows[0].panel : options->method);
    fprintf(plot->file,
            "<text x=\"%d\" y=\"24\" text-anchor=\"end\" fill=\"#555\">%s of %d, whiskers "
            "from least to greatest; %s is better%s</text>\n",
            WIDTH - RIGHT, pattern->low_quartile ? "lower quartile" : "median", options->reps,
            row_less_is_better(&plot->rows[0], pattern) ? "less" : "more",
            options->verify ? "; NOT a measurement (--verify)" : "");
}

static void axes_write(const struct plot *plot)
{
    const struct pattern *pattern = plot->options->pattern;
    int digits = plot->step >= 1 ? 0 : (int)ceil(-log10(plot->step));
    for (double value = 0; value < plot->top + plot->step / 2; value += plot->step) {
        double y = y_of(plot, value);
        fprintf(plot->file,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n",
                LEFT, WIDTH - RIGHT, y, y, value > 0 ? "#ddd" : "#333", LEFT - 8, y + 4.5, digits,
                value);
    }
    for (int i = 0; i < plot->count; i++) {
        char label[64];
        row_label(plot, &plot->rows[i], label);
        fprintf(plot->file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x_of(plot, i), HEIGHT - BOTTOM + 20, label);
    }
    const char *what = pattern->labels      ? pattern->labels
                       : grids_differ(plot) ? "servers × clients"
                                            : pattern->size_name;
    bool bytes = !pattern->labels && !grids_differ(plot) && strcmp(what, "message") == 0;
    fprintf(plot->file,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s%s</text>\n"
            "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, what, bytes ? " (bytes)" : "",
            (TOP + HEIGHT - BOTTOM) / 2, row_unit(&plot->rows[0], pattern));
}

static void legend_write(const struct plot *plot)
{
    for (int i = 0; i < plot->drawn_count; i++) {
        int x = LEFT + i * 130;
        fprintf(plot->file,
                "<rect x=\"%d\" y=\"40\" width=\"14\" height=\"14\" fill=\"%s\"/>\n"
                "<text x=\"%d\" y=\"52\">%s</text>\n",
                x, colours[plot->drawn[i]], x + 20, contender_name(plot->drawn[i]));
    }
}

static void whisker_write(const struct plot *plot, double x, const struct series *series,
                          const char *colour)
{
    double low = y_of(plot, series->least), high = y_of(plot, series->most);
    fprintf(plot->file,
            "<path d=\"M%.1f %.1fV%.1fM%.1f %.1fh8M%.1f %.1fh8\" stroke=\"%s\" fill=\"none\"/>\n",
            x, low, high, x - 4, low, x - 4, high, colour);
}

static void line_write(const struct plot *plot, enum contender contender)
{
    fprintf(plot->file, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"%s\" points=\"",
            colours[contender]);
    for (int i = 0; i < plot->count; i++)
        if (plot->rows[i].series[contender].samples)
            fprintf(plot->file, "%.1f,%.1f ", x_of(plot, i),
                    y_of(plot, plot->rows[i].series[contender].value));
    fprintf(plot->file, "\"/>\n");
    for (int i = 0; i < plot->count; i++) {
        const struct series *series = &plot->rows[i].series[contender];
        if (!series->samples)
            continue;
        whisker_write(plot, x_of(plot, i), series, colours[contender]);
        fprintf(plot->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                x_of(plot, i), y_of(plot, series->value), colours[contender]);
    }
}

static void bars_write(const struct plot *plot, int place)
{
    enum contender contender = plot->drawn[place];
    double room = (double)(WIDTH - LEFT - RIGHT) / plot->count * 0.7;
    double width = fmin(room / plot->drawn_count, 60);
    for (int i = 0; i < plot->count; i++) {
        const struct series *series = &plot->rows[i].series[contender];
        if (!series->samples)
            continue;
        double x = x_of(plot, i) + (place - plot->drawn_count / 2.0) * width;
        double y = y_of(plot, series->value);
        fprintf(plot->file,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x + 1,
                y, width - 2, HEIGHT - BOTTOM - y, colours[contender]);
        whisker_write(plot, x + width / 2, series, "#333");
    }
}

static void panel_write(struct plot *plot)
{
    const struct pattern *pattern = plot->options->pattern;
    bool lines = plot->count > 2 && !grids_differ(plot);
    if (pattern->labels) /* of one size: things of different kinds */
        lines = lines && (sizes_differ(plot) || pattern->takes & TAKES_COMPUTE);
    plot_scale(plot);
    head_write(plot);
    axes_write(plot);
    legend_write(plot);
    for (int i = 0; i < plot->drawn_count; i++) {
        if (lines)
            line_write(plot, plot->drawn[i]);
        else
            bars_write(plot, i);
    }
}

/* Rows from `first` on that are one panel. */
static int panel_rows(const struct report *report, int first)
{
    int end = first + 1;
    while (end < report->count && strcmp(report->rows[end].panel, report->rows[first].panel) == 0)
        end++;
    return end - first;
}

/* Writes the drawing, panels below one another; ends the process where that fails. */
void plot_write(const struct report *report, const char *path)
{
    struct plot plot = {.options = report->options, .file = fopen(path, "w")};
    int panels = 0;
    if (!plot.file)
        die("%s: %s", path, strerror(errno));
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (report->options->contenders & BIT(i))
            plot.drawn[plot.drawn_count++] = i;
    for (int first = 0; first < report->count; first += panel_rows(report, first))
        panels++;
    file_head_write(plot.file, panels * HEIGHT);
    for (int first = 0, panel = 0; first < report->count; first += plot.count, panel++) {
        plot.rows = &report->rows[first];
        plot.count = panel_rows(report, first);
        fprintf(plot.file, "<g transform=\"translate(0 %d)\">\n", panel * HEIGHT);
        panel_write(&plot);
        fprintf(plot.file, "</g>\n");
    }
    fprintf(plot.file, "</svg>\n");
    if (fclose(plot.file) != 0)
        die("%s: %s", path, strerror(errno));
}
