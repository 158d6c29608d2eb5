/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance_fork_test.c - a process that forks while another thread opens and closes instances. What
 * that thread was making stays in the child's memory, where no one frees it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi/instance.h"
#include "unit.h"

enum { PATIENCE_S = 10, FORKS = 200 };

static void *open_and_close(void *stop)
{
    const struct bmi_instance_options options = {.methods = "bmi_tcp",
                                                 .listen = "tcp://127.0.0.1:0",
                                                 .flags = BMI_INIT_SERVER};
    while (!atomic_load((atomic_bool *)stop)) {
        struct bmi_instance *instance;
        CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance, &options), 0);
        CU_ASSERT_EQUAL(bmi_instance_close(instance), 0);
        CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), 0);
        CU_ASSERT_EQUAL(BMI_finalize(), 0);
    }
    return NULL;
}

/* Meanwhile this thread forks. The child ends what it has, if anything, and forks, too. It does
 * not start: libcrypto's locks are not for a fork beside other threads. */
static void a_fork_finds_none_half_open(void)
{
    atomic_bool stop = false;
    pthread_t thread;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, open_and_close, &stop), 0);
    for (int i = 0; i < FORKS; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_S);
            BMI_finalize();
            if (fork() == 0)
                _exit(0);
            _exit(wait(&status) < 0 || status != 0);
        }
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT_EQUAL(status, 0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a fork finds none half open", a_fork_finds_none_half_open},
        CU_TEST_INFO_NULL,
    };
    return unit_run("a fork beside starts and ends", tests);
}
