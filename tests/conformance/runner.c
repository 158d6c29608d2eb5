/* SPDX-License-Identifier: BSD-3-Clause
 *
 * runner.c - the program around the cases.
 *
 *   PROGRAM [--arrangement self|pair|first|second|instances] [--immediate on|off] [--small]
 *           [--copies N] [--repeat N] [--list] [PATTERN...]
 *
 * runs every case (or those whose "Section: name" matches a shell pattern) as one CUnit test. The
 * runner never starts BMI itself: it forks a process for each role of a case, watches them through
 * pidfds, reads their failures from shared memory, and ends them by pid when one fails or the
 * case's time is over. So no case can affect the next one, or hang the suite. With --copies N, the
 * process of "instances" runs N copies of all roles at once; a case passes if all copies do.
 */
#define HARNESS_INTERNAL
#include "harness.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS_MAX = 4096 };

/* One case in one arrangement with one setting of immediate completion: one CUnit test. */
struct run {
    const struct conformance_case *conformance_case;
    enum conformance_arrangement arrangement;
    bool immediate;
    CU_pTest test;
};

struct role_process {
    pid_t pid;
    int pidfd;
    bool ended;
};

static const char *const arrangement_names[CONFORMANCE_ARRANGEMENTS] = {
    [CONFORMANCE_SELF] = "self",           [CONFORMANCE_PAIR] = "pair",
    [CONFORMANCE_FIRST_SERVES] = "first",  [CONFORMANCE_SECOND_SERVES] = "second",
    [CONFORMANCE_INSTANCES] = "instances",
};

static struct runner {
    const struct conformance_method *method;
    struct report *report;
    struct run runs[RUNS_MAX];
    int run_count, skipped;
    bool arrangements[CONFORMANCE_ARRANGEMENTS];
    bool immediates[2];
    int repeat, copies;
    bool list, small; /* small: for a slow machine, see rank.small */
    char **patterns;
    int pattern_count;
} runner;

static void case_title(const struct conformance_case *one, char *title, size_t size)
{
    snprintf(title, size, "%s: %s", one->section, one->name);
}

static const char first_step[] = "before its first step";

/* ---- one case -------------------------------------------------------------------------------- */

static void failure_add(int copy, int role, const char *file, int line, const char *text)
{
    char whole[700], of_copy[40] = "";
    if (runner.copies > 1)
        snprintf(of_copy, sizeof of_copy, "copy %d, ", copy);
    snprintf(whole, sizeof whole, "%srole %d: %s", of_copy, role, text);
    CU_assertImplementation(CU_FALSE, (unsigned)line, whole, file ? file : first_step, "",
                            CU_FALSE);
}

static void report_failure(int copy, int role, const char *text)
{
    const struct position *at = &runner.report->position[copy][role];
    failure_add(copy, role, atomic_load(&at->file), atomic_load(&at->line), text);
}

/* Sockets between every two roles; wires[from][to]. */
static bool wires_make(int wires[ROLES][ROLES], int roles)
{
    for (int a = 0; a < roles; a++) {
        for (int b = a + 1; b < roles; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return false;
            wires[a][b] = pair[0];
            wires[b][a] = pair[1];
        }
    }
    return true;
}

static void wires_close(int wires[ROLES][ROLES], int roles)
{
    for (int a = 0; a < roles; a++) {
        for (int b = 0; b < roles; b++) {
            if (wires[a][b] >= 0)
                close(wires[a][b]);
            wires[a][b] = -1;
        }
    }
}

static int case_roles(const struct conformance_case *one)
{
    return one->where & (SOLO | RAW) ? 1 : one->where & CAST ? one->roles : 2;
}

static int case_seconds(const struct conformance_case *one)
{
    return (one->seconds ? one->seconds : 180) * patience();
}

/* In the child: roles [role, role + count) of one copy. */
static void ranks_make(struct rank *ranks, const struct run *run, int wires[ROLES][ROLES], int role,
                       int count, int copy)
{
    for (int i = 0; i < count; i++) {
        ranks[i] = (struct rank){.method = runner.method,
                                 .conformance_case = run->conformance_case,
                                 .arrangement = run->arrangement,
                                 .role = role + i,
                                 .copy = copy,
                                 .may_be_immediate = run->immediate,
                                 .small = runner.small,
                                 .report = runner.report};
        memcpy(ranks[i].wires, wires[role + i], sizeof ranks[i].wires);
    }
}

/* In the child: plays `count` roles from `role` on, and their copies. */
_Noreturn static void role_main(const struct run *run, int wires[ROLES][ROLES], int role, int count)
{
    int copies = run->arrangement == CONFORMANCE_INSTANCES ? runner.copies : 1;
    struct rank *ranks = calloc((size_t)(count * copies), sizeof *ranks);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm((unsigned)case_seconds(run->conformance_case) + 30); /* in case the runner is stopped */
    setenv("BMI_IMMEDIATE", run->immediate ? "on" : "off", 1);
    atomic_store(&runner.report->pids[role], getpid());
    for (int copy = 0; copy < copies; copy++) {
        if (ranks == NULL || (copy > 0 && !wires_make(wires, count)))
            exit(1);
        ranks_make(&ranks[copy * count], run, wires, role, count, copy);
    }
    int status = rank_run(ranks, count * copies);
    free(ranks);
    exit(status);
}

static void role_ended(struct role_process *process, int role)
{
    char text[200];
    int status = 0;
    waitpid(process->pid, &status, 0);
    close(process->pidfd);
    process->ended = true;
    if (atomic_load(&runner.report->may_die[role]))
        return;
    if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "died of signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
        report_failure(0, role, text);
        atomic_fetch_add(&runner.report->failures, 1);
    } else if (WEXITSTATUS(status) != 0 && atomic_load(&runner.report->failures) == 0) {
        snprintf(text, sizeof text, "exit status %d", WEXITSTATUS(status));
        report_failure(0, role, text);
        atomic_fetch_add(&runner.report->failures, 1);
    }
}

/* Returns false when no process is left to wait for. */
static bool roles_poll(struct role_process *processes, int count, int64_t deadline)
{
    struct pollfd polled[ROLES];
    int alive = 0;
    for (int i = 0; i < count; i++) {
        polled[i] =
            (struct pollfd){.fd = processes[i].ended ? -1 : processes[i].pidfd, .events = POLLIN};
        alive += !processes[i].ended;
    }
    int64_t left = deadline - now_ms();
    if (alive == 0 || left <= 0)
        return false;
    if (poll(polled, (nfds_t)count, (int)left) < 0 && errno != EINTR)
        return false;
    for (int i = 0; i < count; i++) {
        if (polled[i].fd >= 0 && (polled[i].revents & POLLIN))
            role_ended(&processes[i], i);
    }
    return atomic_load(&runner.report->failures) == 0 && !atomic_load(&runner.report->skipped);
}

/* The threads that are not done, if the roles are threads. */
static void report_late(const struct run *run, int role, int seconds)
{
    char text[100];
    snprintf(text, sizeof text, "not done after %d s; this was its last step", seconds);
    if (run->arrangement != CONFORMANCE_INSTANCES) {
        report_failure(0, role, text);
        return;
    }
    for (int copy = 0; copy < runner.copies; copy++)
        for (int i = 0; i < case_roles(run->conformance_case); i++)
            if (!atomic_load(&runner.report->position[copy][i].ended))
                report_failure(copy, i, text);
}

static void roles_wait(const struct run *run, struct role_process *processes, int count)
{
    int seconds = case_seconds(run->conformance_case);
    int64_t deadline = now_ms() + (int64_t)seconds * 1000;
    while (roles_poll(processes, count, deadline))
        ;
    bool late = now_ms() >= deadline;
    for (int i = 0; i < count; i++) {
        if (processes[i].ended)
            continue;
        if (late)
            report_late(run, i, seconds);
        kill(processes[i].pid, SIGKILL);
        waitpid(processes[i].pid, NULL, 0);
        close(processes[i].pidfd);
    }
}

static void roles_report(const struct run *run)
{
    struct report *report = runner.report;
    int failures = atomic_load(&report->failures);
    for (int i = 0; i < failures && i < FAILURES; i++) {
        const struct failure *failure = &report->list[i];
        if (failure->text[0] != '\0') /* else role_ended has reported it */
            failure_add(failure->copy, failure->role, failure->file, failure->line, failure->text);
    }
    if (atomic_load(&report->skipped) && failures == 0) {
        runner.skipped++;
        printf("skipped: %s: %s ", run->conformance_case->name, report->reason);
    }
    CU_PASS("case done");
}

static void run_one(const struct run *run)
{
    const struct conformance_case *one = run->conformance_case;
    struct role_process processes[ROLES] = {0};
    int wires[ROLES][ROLES];
    int roles = case_roles(one);
    bool together =
        run->arrangement == CONFORMANCE_SELF || run->arrangement == CONFORMANCE_INSTANCES;
    int count = together ? 1 : roles;

    memset(runner.report, 0, sizeof *runner.report);
    memset(wires, -1, sizeof wires);
    if (!wires_make(wires, roles)) {
        CU_FAIL("no sockets for the roles");
        return;
    }
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        processes[i].pid = fork();
        if (processes[i].pid == 0)
            role_main(run, wires, i, together ? roles : 1);
        processes[i].pidfd = processes[i].pid > 0 ? pidfd_open(processes[i].pid, 0) : -1;
        processes[i].ended = processes[i].pid < 0;
        if (processes[i].pid < 0)
            CU_FAIL("no process for a role");
    }
    wires_close(wires, roles);
    int64_t start = now_ms();
    roles_wait(run, processes, count);
    if (now_ms() - start > 2000)
        printf("(%.1f s) ", (double)(now_ms() - start) / 1000);
    roles_report(run);
}

static void run_current(void)
{
    CU_pTest test = CU_get_current_test();
    for (int i = 0; i < runner.run_count; i++) {
        if (runner.runs[i].test == test)
            run_one(&runner.runs[i]);
    }
}

/* ---- which cases ----------------------------------------------------------------------------- */

static bool case_fits(const struct conformance_case *one, enum conformance_arrangement arrangement)
{
    bool self = arrangement == CONFORMANCE_SELF, instances = arrangement == CONFORMANCE_INSTANCES;
    bool pair = arrangement == CONFORMANCE_PAIR || instances;
    if (instances && (one->where & (RAW | OF_PROCESS)))
        return false;
    if ((one->where & GIGABYTES) && runner.small)
        return false;
    if ((one->where & PORTS) && !(runner.method->features & CONFORMANCE_PORTS))
        return false;
    if ((one->where & SOCKETS) && !(runner.method->features & CONFORMANCE_SOCKETS))
        return false;
    if (one->where & (SOLO | RAW))
        return self || instances;
    if (one->where & (CAST | BOTH_LISTEN))
        return pair;
    if (one->where & ONE_SERVES)
        return !self && !pair;
    return !(one->where & PROCESSES) || !self;
}

static bool case_has(const struct conformance_case *one, const char *pattern)
{
    char title[200];
    case_title(one, title, sizeof title);
    return fnmatch(pattern, title, 0) == 0 || strstr(title, pattern) != NULL;
}

static bool case_chosen(const struct conformance_case *one)
{
    int i = 0;
    while (i < runner.pattern_count && !case_has(one, runner.patterns[i]))
        i++;
    return i < runner.pattern_count || runner.pattern_count == 0;
}

static bool pattern_known(const char *pattern)
{
    for (const struct conformance_case *const *table = conformance_tables; *table; table++)
        for (const struct conformance_case *one = *table; one->name; one++)
            if (case_has(one, pattern))
                return true;
    return false;
}

/* A pattern without a case, for instance after a case was renamed, would never choose one. */
static bool patterns_known(void)
{
    for (int i = 0; i < runner.pattern_count; i++)
        if (!pattern_known(runner.patterns[i])) {
            fprintf(stderr, "no case is named like '%s'\n", runner.patterns[i]);
            return false;
        }
    return true;
}

static void run_add(CU_pSuite suite, const struct run *wanted)
{
    char title[200];
    case_title(wanted->conformance_case, title, sizeof title);
    if (runner.run_count == RUNS_MAX) {
        fprintf(stderr, "RUNS_MAX is too small\n");
        exit(1);
    }
    struct run *run = &runner.runs[runner.run_count++];
    *run = *wanted;
    if (runner.list)
        puts(title);
    else
        run->test = CU_add_test(suite, title, run_current);
}

static void suite_add(enum conformance_arrangement arrangement, bool immediate)
{
    char name[200];
    snprintf(name, sizeof name, "%s, %s, immediate=%s", runner.method->name,
             arrangement_names[arrangement], immediate ? "on" : "off");
    CU_pSuite suite = CU_add_suite(name, NULL, NULL);
    for (const struct conformance_case *const *table = conformance_tables; *table; table++) {
        for (const struct conformance_case *one = *table; one->name; one++) {
            struct run run = {.conformance_case = one,
                              .arrangement = arrangement,
                              .immediate = immediate};
            if (case_fits(one, arrangement) && case_chosen(one))
                run_add(suite, &run);
        }
    }
}

static bool arrangement_possible(int arrangement)
{
    unsigned features = runner.method->features;
    return arrangement == CONFORMANCE_SELF ||
           ((features & CONFORMANCE_PROCESSES) &&
            !(arrangement == CONFORMANCE_INSTANCES && (features & CONFORMANCE_ALONE)));
}

static void suites_add(void)
{
    for (int arrangement = 0; arrangement < CONFORMANCE_ARRANGEMENTS; arrangement++) {
        for (int immediate = 0; immediate < 2; immediate++) {
            if (arrangement_possible(arrangement) && runner.arrangements[arrangement] &&
                runner.immediates[immediate])
                suite_add((enum conformance_arrangement)arrangement, immediate);
        }
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool option_arrangement(const char *name)
{
    bool found = false;
    for (int i = 0; i < CONFORMANCE_ARRANGEMENTS; i++) {
        runner.arrangements[i] = strcmp(name, arrangement_names[i]) == 0;
        found |= runner.arrangements[i];
    }
    return found;
}

static bool options_read(int argc, char **argv)
{
    memset(runner.arrangements, true, sizeof runner.arrangements);
    memset(runner.immediates, true, sizeof runner.immediates);
    runner.repeat = runner.copies = 1;
    runner.patterns = argv + 1;
    for (int i = 1; i < argc; i++) {
        bool last = i + 1 == argc;
        if (argv[i][0] != '-') {
            runner.patterns[runner.pattern_count++] = argv[i];
        } else if (strcmp(argv[i], "--list") == 0) {
            runner.list = true;
        } else if (strcmp(argv[i], "--small") == 0) {
            runner.small = true;
        } else if (strcmp(argv[i], "--repeat") == 0 && !last) {
            runner.repeat = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--copies") == 0 && !last) {
            runner.copies = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--immediate") == 0 && !last) {
            bool on = strcmp(argv[++i], "on") == 0;
            runner.immediates[on] = true;
            runner.immediates[!on] = false;
        } else if (strcmp(argv[i], "--arrangement") != 0 || last ||
                   !option_arrangement(argv[++i])) {
            fprintf(stderr,
                    "%s [--arrangement self|pair|first|second|instances] [--immediate on|off] "
                    "[--small] [--copies 1 to %d] [--repeat N] [--list] [PATTERN...]\n",
                    argv[0], COPIES);
            return false;
        }
    }
    return runner.copies >= 1 && runner.copies <= COPIES;
}

static int outcome(unsigned failures)
{
    if (runner.skipped)
        printf("%d of %d cases skipped, for the reasons above\n", runner.skipped,
               runner.run_count * runner.repeat);
    if (failures)
        return 1;
    if (runner.run_count == 0) {
        puts("no case runs in this arrangement of this method");
        return 77;
    }
    return runner.skipped == runner.run_count * runner.repeat ? 77 : 0;
}

int conformance_main(int argc, char **argv, const struct conformance_method *method)
{
    unsigned failures = 0;
    runner.method = method;
    if (!options_read(argc, argv) || !patterns_known())
        return 2;
    runner.report = mmap(NULL, sizeof *runner.report, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (runner.report == MAP_FAILED || CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    suites_add();
    CU_basic_set_mode(CU_BRM_VERBOSE);
    for (int i = 0; i < runner.repeat && !runner.list && failures == 0; i++) {
        CU_basic_run_tests();
        failures += CU_get_number_of_failures();
    }
    CU_cleanup_registry();
    return runner.list ? 0 : outcome(failures);
}
