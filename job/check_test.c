/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check_test.c - valid tables of state machines, and the texts for invalid ones. */
#include "bmi/job.h"
#include "tests/unit/unit.h"

static int act(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return 0;
}

/* The text of a table's fault; "" if it is valid. */
static const char *flaw_of(struct bmi_sm_table *table)
{
    static char text[256];
    text[0] = '\0';
    int result = bmi_sm_check(table, text, sizeof text);
    CU_ASSERT_EQUAL(result == 0, text[0] == '\0');
    CU_ASSERT_TRUE(result == 0 || result == -BMI_EINVAL);
    return text;
}

#define EXPECT_FLAW(words, ...)                                                 \
    do {                                                                        \
        static const struct bmi_sm_state states[] = {__VA_ARGS__};              \
        struct bmi_sm_table table = {"t", states, COUNT_OF(states), 0};         \
        const char *said = flaw_of(&table);                                     \
        if (strstr(said, words) == NULL || (*(words) == '\0' && *said != '\0')) \
            printf("said: \"%s\"; wanted: \"%s\"\n", said, words);              \
        CU_ASSERT_PTR_NOT_NULL(strstr(said, words));                            \
        CU_ASSERT_FALSE(*(words) == '\0' && *said != '\0');                     \
    } while (0)

static void test_good(void)
{
    EXPECT_FLAW("", {"a", .action = act, .on = {BMI_SM_OK(1), BMI_SM_FAIL(BMI_SM_END)}},
                {"b", .action = act, .choices = 3,
                 .on = {BMI_SM_ON(2, 0), BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("", {"a", .action = act,
                     .on = {BMI_SM_ON(-BMI_ENOENT, 0), BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(0)}});
}

static void test_states(void)
{
    struct bmi_sm_table empty = {"empty", NULL, 0, 0}, nameless = {0};
    CU_ASSERT_PTR_NOT_NULL(strstr(flaw_of(&empty), "empty: a table has 1 to"));
    CU_ASSERT_PTR_NOT_NULL(strstr(flaw_of(&nameless), "without a name"));
    EXPECT_FLAW("state 0 has no name", {.action = act, .on = {BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("\"a\" has no action and no jump", {"a", .on = {BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("\"a\" has -1 choices",
                {"a", .action = act, .choices = -1, .on = {BMI_SM_ELSE(BMI_SM_END)}});
}

static void test_transitions(void)
{
    EXPECT_FLAW("leads to 1, which is no state", {"a", .action = act, .on = {BMI_SM_ELSE(1)}});
    EXPECT_FLAW("leads to -3, which is no state", {"a", .action = act, .on = {BMI_SM_ELSE(-3)}});
    EXPECT_FLAW("no transition for failures", {"a", .action = act, .on = {BMI_SM_OK(BMI_SM_END)}});
    EXPECT_FLAW("no transition for the result 0",
                {"a", .action = act, .on = {BMI_SM_FAIL(BMI_SM_END)}});
    EXPECT_FLAW("no transition for the result 1",
                {"a", .action = act, .choices = 2, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(0)}});
    EXPECT_FLAW("for the result 2, of 2 choices",
                {"a", .action = act, .choices = 2,
                 .on = {BMI_SM_ON(2, BMI_SM_END), BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("transitions 0 and 1 are for the same result",
                {"a", .action = act, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_OK(0), BMI_SM_FAIL(0)}});
    EXPECT_FLAW("a gap before transition 3",
                {"a", .action = act,
                 .on = {BMI_SM_ELSE(BMI_SM_END), {0, 0, 0}, {0, 0, 0}, BMI_SM_OK(0)}});
    EXPECT_FLAW("for BMI_SM_DEFERRED, which is no result",
                {"a", .action = act,
                 .on = {BMI_SM_ON(BMI_SM_DEFERRED, 0), BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("transition 0 is of no kind", {"a", .action = act, .on = {{9, 0, 0}}});
}

static void test_ways(void)
{
    EXPECT_FLAW("nothing leads to state \"lost\"",
                {"a", .action = act, .on = {BMI_SM_ELSE(BMI_SM_END)}},
                {"lost", .action = act, .on = {BMI_SM_ELSE(BMI_SM_END)}});
    EXPECT_FLAW("nothing leads from state \"a\" to the end",
                {"a", .action = act, .on = {BMI_SM_ELSE(1)}},
                {"b", .action = act, .on = {BMI_SM_ELSE(0)}});
    EXPECT_FLAW("nothing leads from state \"round\" to the end",
                {"a", .action = act, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(1)}},
                {"round", .action = act, .on = {BMI_SM_ELSE(1)}});
}

/* ---- jumps ----------------------------------------------------------------------------------- */

static struct bmi_sm_table ping, pong, self;
static const struct bmi_sm_state ping_states[] = {
    {"to pong", .jump = &pong, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static const struct bmi_sm_state pong_states[] = {
    {"work", .action = act, .on = {BMI_SM_ELSE(1)}},
    {"to ping", .jump = &ping, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static const struct bmi_sm_state self_states[] = {
    {"again", .jump = &self, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table ping = {"ping", ping_states, 1, 0};
static struct bmi_sm_table pong = {"pong", pong_states, 2, 0};
static struct bmi_sm_table self = {"self", self_states, 1, 0};

static void test_jumps(void)
{
    CU_ASSERT_STRING_EQUAL(flaw_of(&ping), "pong jumps into ping, within which it runs");
    CU_ASSERT_STRING_EQUAL(flaw_of(&self), "self jumps into self, within which it runs");
    struct bmi_sm_table tables[18];
    struct bmi_sm_state states[18];
    memset(states, 0, sizeof states);
    for (int i = 0; i < 18; i++) {
        states[i] = (struct bmi_sm_state){.name = "s", .on = {BMI_SM_ELSE(BMI_SM_END)}};
        if (i < 17)
            states[i].jump = &tables[i + 1];
        else
            states[i].action = act;
        tables[i] = (struct bmi_sm_table){"deep", &states[i], 1, 0};
    }
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[0]), "deep: jumps more than 16 tables deep");
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[2]), "");
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[2]), "");
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[1]), "deep: jumps more than 16 tables deep");
}

/* A nest has many paths but few tables: 8 to the 15th checks would take years. */
static void test_many_ways(void)
{
    enum { DEPTH = 16, JUMPS = 8 };
    static struct bmi_sm_table tables[DEPTH];
    static struct bmi_sm_state states[DEPTH][JUMPS];
    for (int i = 0; i < DEPTH; i++) {
        for (int k = 0; k < JUMPS; k++) {
            int next = k < JUMPS - 1 ? k + 1 : BMI_SM_END;
            states[i][k] = (struct bmi_sm_state){.name = "s", .on = {BMI_SM_ELSE(next)}};
            if (i < DEPTH - 1)
                states[i][k].jump = &tables[i + 1];
            else
                states[i][k].action = act;
        }
        tables[i] = (struct bmi_sm_table){"wide", states[i], JUMPS, 0};
    }
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[0]), "");
    states[DEPTH - 1][0].action = NULL;
    for (int i = 0; i < DEPTH; i++)
        tables[i].checked = 0;
    CU_ASSERT_STRING_EQUAL(flaw_of(&tables[0]), "wide: state \"s\" has no action and no jump");
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"good tables", test_good},
        {"states", test_states},
        {"transitions", test_transitions},
        {"ways through a table", test_ways},
        {"jumps between tables", test_jumps},
        {"many ways through a nest", test_many_ways},
        CU_TEST_INFO_NULL,
    };
    return unit_run("tables of state machines", tests);
}
