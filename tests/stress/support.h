/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.h - shared by the stress and fault tests: a deadline, a seed, a scale, children ended by
 * pid, message patterns, and measures of memory.
 *
 * A test is a plain program: exit 0 passed, 1 failed, 77 cannot run here (with its reason). The
 * program forks its children before it starts the library, and each child starts its own.
 */
#ifndef BMI_TESTS_SUPPORT_H
#define BMI_TESTS_SUPPORT_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "bmi.h"

enum { TEST_SKIP = 77 };

/* ---- begin, check, end ----------------------------------------------------------------------- */

/* Starts a test: prints its seed, and ends it as failed, children included, after four times
 * `seconds` (more under a sanitizer) or BMI_TEST_DEADLINE seconds, which ctest sets. */
void test_begin(const char *name, unsigned seconds);

/* The seed: BMI_TEST_SEED, or a fresh one. */
uint64_t test_seed(void);

/* How long to run, as a factor: BMI_TEST_SCALE, or 1 (less under ThreadSanitizer). */
double test_scale(void);
/* `count` scaled, at least `least`. */
unsigned test_scaled(unsigned count, unsigned least);

/* How much slower than plain code this build is; time limits are multiplied by it. */
unsigned test_slowness(void);

/* No wait may take longer, on any loaded machine: a bound on hanging, not a check of speed. */
enum { TEST_BOUND_MS = 60000 };

/* False under a sanitizer, whose allocator does not count the library's memory. */
bool test_memory_measurable(void);

/* Ends the program with exit code 1 and the text, unless `good`. */
void test_check(bool good, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define CHECK(condition, ...) test_check((condition), __FILE__, __LINE__, __VA_ARGS__)

/* Called by the deadline's handler before the program ends; must be async-signal-safe enough for a
 * program that fails anyway. */
extern void (*test_dump)(void);

/* Arms the deadline in this process; a child does so by itself. */
void test_deadline(void);

/* Prints the reason and ends the program with TEST_SKIP. */
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Ends the program as passed: no child may be left. Returns 0 for main. */
int test_passed(void);

/* ---- time and chance ------------------------------------------------------------------------- */

uint64_t now_ns(void);
uint64_t cpu_ns(void); /* processor time of this process so far */

struct chance {
    uint64_t state;
};
uint64_t chance_next(struct chance *chance);
/* A number below `bound` (> 0). */
uint64_t chance_below(struct chance *chance, uint64_t bound);

/* ---- children -------------------------------------------------------------------------------- */

struct child {
    const char *name;
    pid_t pid;
    int channel; /* socket to its own end */
};

/* What a child runs: `channel` leads to the parent. Its result is its exit code. */
typedef int child_main(void *argument, int channel);

/* Forks. To be called before the library is started in this process. The child dies with its
 * parent. */
struct child child_start(const char *name, child_main *run, void *argument);
/* Waits for its end; any exit code but 0 fails the test. */
void child_end(struct child *child);
/* Fails the test if the child has ended, which it should not have yet. */
void child_check(const struct child *child);
/* Waits for its end and returns its status, as of waitpid. */
int child_wait(struct child *child);
/* Kills it (SIGKILL) and waits. */
void child_kill(struct child *child);
void child_signal(const struct child *child, int signal_number);

/* Forks, as daemon(3) does. Returns true in the parent, which is to end; false in the child, when
 * the parent has ended. */
bool leave_to_child(void);

void children_kill(void);  /* all of this process, by pid; async-signal-safe */
pid_t children_left(void); /* one that was not ended, or 0 */

/* Whole messages on a channel; both ends block. A closed channel fails the test. */
void tell(int channel, const void *data, size_t size);
void hear(int channel, void *data, size_t size);
/* Whether a message arrives within `wait_ms`. */
bool heard(int channel, int wait_ms);
void tell_number(int channel, int64_t number);
int64_t hear_number(int channel);

/* Zeroed memory that children share with their parent. */
void *shared_memory(size_t size);

/* ---- patterns -------------------------------------------------------------------------------- */

/* The key of one message of a stream: far from all others. */
uint64_t pattern_key(uint64_t stream, uint64_t sequence);

/* Fills, or checks, `size` bytes that stand at `offset` of the message `key`. Each byte depends on
 * key and position. pattern_wrong returns the offset of the first wrong byte, or -1. */
void pattern_fill(void *buffer, size_t size, uint64_t key, uint64_t offset);
int64_t pattern_wrong(const void *buffer, size_t size, uint64_t key, uint64_t offset);

/* ---- the library ----------------------------------------------------------------------------- */

/* Checks a call that must return 0 or more. */
int must(int result, const char *what);
/* Starts the library as a server on scheme://... (skips the test if the table of methods lacks that
 * scheme), and returns its address. */
void serve(const char *address, int flags, char listening[BMI_MAX_ADDR_LEN]);

/* The method under test, if a test is not for one method: its scheme, BMI_TEST_METHOD or "tcp", and
 * its name ("bmi_tcp"). */
const char *test_scheme(void);
const char *test_method(void);
/* Writes the address of this host at which a server of that method may listen; 0: any port. */
void test_address(char address[64], unsigned port);
/* Serves there. */
void serve_here(int flags, char listening[BMI_MAX_ADDR_LEN]);
/* The port of an address. */
unsigned test_port(const char *listening);
struct bmi_statistics statistics_of(BMI_addr_t address);
struct bmi_method_statistics method_statistics(const char *method);
/* Waits in a test call of `context` once, and reports what completed. Returns outcount (0 or 1). */
struct completion {
    bmi_op_id_t id;
    bmi_error_code_t status;
    bmi_size_t size;
    void *user;
};
bool next_completion(bmi_context_id context, int wait_ms, struct completion *completion);
const char *status_name(int status);

/* ---- measures of this process ---------------------------------------------------------------- */

size_t memory_in_use(void); /* bytes allocated and not freed */
size_t memory_resident(void);
unsigned descriptors_open(void);
/* Raises the limit of descriptors to `wanted` if it may; returns the limit. */
unsigned descriptors_allow(unsigned wanted);
/* Sets it, up or down. */
void descriptors_limit(unsigned limit);

#endif
