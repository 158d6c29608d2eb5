/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unload_test.c - a program that loads the library, gives it a name to look up, and unloads it.
 *
 * A look-up may outlive BMI_finalize, as nothing can interrupt getaddrinfo. This program's own
 * getaddrinfo, which the library finds first, returns when the library has been unloaded.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <semaphore.h>
#include <unistd.h>

#include "unit.h"

enum { BOUND_MS = 60000 };

static sem_t asked, unloaded, answered;
static pid_t asker; /* the thread that looks up */

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    (void)name, (void)service, (void)hints, (void)list;
    asker = gettid();
    sem_post(&asked);
    while (sem_wait(&unloaded) != 0 && errno == EINTR)
        continue;
    sem_post(&answered);
    return EAI_NONAME;
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(found);
    return found;
}

static void look_up_and_finalize(void *library)
{
    int (*initialize)(const char *, const char *, int) = symbol(library, "BMI_initialize");
    int (*finalize)(void) = symbol(library, "BMI_finalize");
    int (*look_up)(BMI_addr_t *, const char *) = symbol(library, "BMI_addr_lookup");
    int (*open)(bmi_context_id *) = symbol(library, "BMI_open_context");
    int (*post)(bmi_op_id_t *, BMI_addr_t, const void *, bmi_size_t, enum bmi_buffer_type,
                bmi_msg_tag_t, void *, bmi_context_id, bmi_hint) = symbol(library, "BMI_post_send");
    int (*test)(int, bmi_op_id_t *, int *, bmi_error_code_t *, bmi_size_t *, void **, int,
                bmi_context_id) = symbol(library, "BMI_testcontext");
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count;
    bmi_context_id context;
    BMI_addr_t addr;

    CU_ASSERT_EQUAL_FATAL(initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(open(&context), 0);
    CU_ASSERT_EQUAL(look_up(&addr, "tcp://name.invalid:7"), 0);
    CU_ASSERT_EQUAL(post(&id, addr, "", 1, BMI_EXT_ALLOC, 0, NULL, context, NULL), 0);
    while (sem_trywait(&asked) != 0)
        CU_ASSERT_EQUAL(test(1, &id, &count, &error, NULL, NULL, 1, context), 0);
    CU_ASSERT_EQUAL(finalize(), 0);
}

/* The thread returns into the library, and its end cannot be observed. */
static bool asker_ends(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d", (int)asker);
    for (int i = 0; access(path, F_OK) == 0; i++) {
        if (i == BOUND_MS)
            return false;
        usleep(1000);
    }
    return true;
}

static void look_up_outlives_library(void)
{
    void *library = dlopen("libbmi.so.0", RTLD_NOW);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CU_ASSERT_PTR_NOT_NULL_FATAL(library);
    look_up_and_finalize(library);
    CU_ASSERT_EQUAL(dlclose(library), 0);
    sem_post(&unloaded);
    while (sem_wait(&answered) != 0 && errno == EINTR)
        continue;
    CU_ASSERT(asker_ends());
}

int main(void)
{
    CU_TestInfo tests[] = {{"a look-up outlives the library", look_up_outlives_library},
                           CU_TEST_INFO_NULL};
    sem_init(&asked, 0, 0);
    sem_init(&unloaded, 0, 0);
    sem_init(&answered, 0, 0);
    return unit_run("unload", tests);
}
