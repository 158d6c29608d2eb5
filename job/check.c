/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check.c - finds faults of a table before a machine runs it. `checked` in a valid table records
 * the result; threads that check a table at the same time store the same value.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "job/internal.h"

enum { STATES_MOST = 4096 };

/* The place of the check in a nest of tables. */
struct check {
    const struct bmi_sm_table *tables[SM_DEPTH_MOST];
    int depth;
    char *text;
    size_t size;
};

static int flaw(struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int flaw(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (check->text != NULL && check->size > 0)
        vsnprintf(check->text, check->size, format, arguments);
    va_end(arguments);
    return -BMI_EINVAL;
}

static int choices_of(const struct bmi_sm_state *state)
{
    return state->choices > 0 ? state->choices : 1;
}

static int transitions_of(const struct bmi_sm_state *state)
{
    int count = 0;
    while (count < BMI_SM_TRANSITIONS && state->on[count].when != BMI_SM_NEVER)
        count++;
    return count;
}

/* ---- one state ------------------------------------------------------------------------------- */

static bool same_case(const struct bmi_sm_transition *a, const struct bmi_sm_transition *b)
{
    return a->when == b->when && (a->when != BMI_SM_IS || a->result == b->result);
}

static int transition_check(struct check *check, const struct bmi_sm_table *table,
                            const struct bmi_sm_state *state, int index)
{
    const struct bmi_sm_transition *on = &state->on[index];
    if (on->when > BMI_SM_ANY)
        return flaw(check, "%s: state \"%s\": transition %d is of no kind", table->name,
                    state->name, index);
    if (on->when == BMI_SM_IS && on->result == BMI_SM_DEFERRED)
        return flaw(check, "%s: state \"%s\": a transition for BMI_SM_DEFERRED, which is no result",
                    table->name, state->name);
    if (on->to != BMI_SM_END && (on->to < 0 || on->to >= table->count))
        return flaw(check, "%s: state \"%s\": transition %d leads to %d, which is no state",
                    table->name, state->name, index, on->to);
    if (on->when == BMI_SM_IS && on->result >= choices_of(state))
        return flaw(check, "%s: state \"%s\": a transition for the result %d, of %d choices",
                    table->name, state->name, on->result, choices_of(state));
    for (int i = 0; i < index; i++)
        if (same_case(&state->on[i], on))
            return flaw(check, "%s: state \"%s\": transitions %d and %d are for the same result",
                        table->name, state->name, i, index);
    return 0;
}

static bool has_transition(const struct bmi_sm_state *state, int result)
{
    for (int i = 0; i < transitions_of(state); i++) {
        const struct bmi_sm_transition *on = &state->on[i];
        if (on->when == BMI_SM_ANY || (on->when == BMI_SM_FAILED && result < 0) ||
            (on->when == BMI_SM_IS && on->result == result && result >= 0))
            return true;
    }
    return false;
}

static int results_check(struct check *check, const struct bmi_sm_table *table,
                         const struct bmi_sm_state *state)
{
    /* If there are more results than transitions, one of the first few lacks a transition. */
    int most = transitions_of(state) + 1;
    for (int result = 0; result < choices_of(state) && result < most; result++)
        if (!has_transition(state, result))
            return flaw(check, "%s: state \"%s\": no transition for the result %d", table->name,
                        state->name, result);
    if (!has_transition(state, -1))
        return flaw(check, "%s: state \"%s\": no transition for failures", table->name,
                    state->name);
    return 0;
}

static int state_check(struct check *check, const struct bmi_sm_table *table, int index)
{
    const struct bmi_sm_state *state = &table->states[index];
    if (state->name == NULL)
        return flaw(check, "%s: state %d has no name", table->name, index);
    if ((state->action == NULL) == (state->jump == NULL))
        return flaw(check, "%s: state \"%s\" has %s", table->name, state->name,
                    state->jump == NULL ? "no action and no jump" : "both an action and a jump");
    if (state->choices < 0)
        return flaw(check, "%s: state \"%s\" has %d choices", table->name, state->name,
                    state->choices);
    for (int i = 0; i < BMI_SM_TRANSITIONS; i++) {
        bool used = state->on[i].when != BMI_SM_NEVER;
        if (used && i >= transitions_of(state))
            return flaw(check, "%s: state \"%s\": a gap before transition %d", table->name,
                        state->name, i);
        if (used && transition_check(check, table, state, i) < 0)
            return -BMI_EINVAL;
    }
    return results_check(check, table, state);
}

/* ---- ways through a table -------------------------------------------------------------------- */

enum mark { MARK_REACHED = 1, MARK_ENDS = 2 };

/* Marks the successors of each reached state as reached. A state ends if it leads to the end, or to
 * a state that ends. Returns whether a new mark was set. */
static bool marks_spread(const struct bmi_sm_table *table, unsigned char *marks)
{
    bool any = false;
    for (int i = 0; i < table->count; i++) {
        const struct bmi_sm_state *state = &table->states[i];
        for (int k = 0; k < transitions_of(state); k++) {
            int to = state->on[k].to;
            unsigned char ends = to == BMI_SM_END ? MARK_ENDS : marks[to] & MARK_ENDS;
            unsigned char reached = marks[i] & MARK_REACHED;
            if (to != BMI_SM_END && (reached & ~marks[to])) {
                marks[to] |= reached;
                any = true;
            }
            if (ends & ~marks[i]) {
                marks[i] |= ends;
                any = true;
            }
        }
    }
    return any;
}

static int ways_check(struct check *check, const struct bmi_sm_table *table)
{
    unsigned char marks[STATES_MOST] = {MARK_REACHED};
    while (marks_spread(table, marks))
        ;
    for (int i = 0; i < table->count; i++) {
        if (!(marks[i] & MARK_REACHED))
            return flaw(check, "%s: nothing leads to state \"%s\"", table->name,
                        table->states[i].name);
        if (!(marks[i] & MARK_ENDS))
            return flaw(check, "%s: nothing leads from state \"%s\" to the end", table->name,
                        table->states[i].name);
    }
    return 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int table_check_alone(struct check *check, const struct bmi_sm_table *table)
{
    if (table == NULL || table->name == NULL)
        return flaw(check, "a table without a name");
    if (table->states == NULL || table->count < 1 || table->count > STATES_MOST)
        return flaw(check, "%s: a table has 1 to %d states", table->name, STATES_MOST);
    for (int i = 0; i < table->count; i++)
        if (state_check(check, table, i) < 0)
            return -BMI_EINVAL;
    return ways_check(check, table);
}

/* Returns the depth of the nest of tables, or an error. */
static int table_check(struct check *check, struct bmi_sm_table *table)
{
    /* Checked already, on another path to it or before; so are the tables that it jumps to. */
    int deepest = 0, known = 0;
    if (check->depth > 0 && table != NULL)
        known = atomic_load_explicit(&table->checked, memory_order_acquire);
    if (known > 0 && check->depth + known <= SM_DEPTH_MOST)
        return known;
    if (table_check_alone(check, table) < 0)
        return -BMI_EINVAL;
    for (int i = 0; i < check->depth; i++)
        if (check->tables[i] == table)
            return flaw(check, "%s jumps into %s, within which it runs",
                        check->tables[check->depth - 1]->name, table->name);
    if (check->depth == SM_DEPTH_MOST)
        return flaw(check, "%s: jumps more than %d tables deep", check->tables[0]->name,
                    SM_DEPTH_MOST);
    check->tables[check->depth++] = table;
    for (int i = 0; i < table->count; i++) {
        int below = table->states[i].jump != NULL ? table_check(check, table->states[i].jump) : 0;
        if (below < 0)
            return below;
        if (below > deepest)
            deepest = below;
    }
    check->depth--;
    atomic_store_explicit(&table->checked, deepest + 1, memory_order_release);
    return deepest + 1;
}

int bmi_sm_check(struct bmi_sm_table *table, char *text, size_t size)
{
    struct check check = {.text = text, .size = size};
    int result = table_check(&check, table);
    return result < 0 ? result : 0;
}

int bmi__sm_frames(const struct bmi_job_context *context, struct bmi_sm_table *table)
{
    char text[256] = "";
    int frames = atomic_load_explicit(&table->checked, memory_order_acquire);
    if (frames > 0)
        return frames;
    int result = bmi_sm_check(table, text, sizeof text);
    if (result < 0) {
        bmi__log(context != NULL ? context->instance : &bmi__default, BMI_LOG_ERROR,
                 "state machine refused: %s", text);
        return result;
    }
    return atomic_load_explicit(&table->checked, memory_order_acquire);
}
