/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instances_test.c - job contexts of the default instance and of one beside it, which talk to each
 * other and share nothing else; and a third one that ends first. Each test runs in the foreground
 * and in the background.
 */
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/job.h"
#include "bmi/progress/progress.h"
#include "bmi/state/library.h"
#include "tests/unit/unit.h"

enum { PATIENCE_MS = 30000, LARGE = 1 << 20, DEFAULT = 0, BESIDE = 1, SIDES = 2 };

struct side {
    struct bmi_instance *instance;
    struct bmi_job_context *context;
    BMI_addr_t other;
    char url[BMI_MAX_ADDR_LEN];
    atomic_int accepted; /* messages that a machine got */
    struct caught log;   /* errors */
};

static struct side sides[SIDES];
static bool background;
static struct bmi_trove_store *store;

/* ---- the two sides --------------------------------------------------------------------------- */

/* Of an instance that listens. */
static void side_begin(struct side *side, struct bmi_instance *instance)
{
    struct bmi_log_callback callback = {.write = caught_write,
                                        .argument = &side->log,
                                        .level = BMI_LOG_ERROR};
    side->instance = instance;
    side->log.text[0] = '\0';
    side->accepted = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_instance_set_info(instance, BMI_LOG_CALLBACK, &callback), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_get_info(instance, BMI_GET_LISTEN_ADDR, side->url), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_job_context_open(instance,
                                                        background ? BMI_JOB_BACKGROUND : 0,
                                                        &side->context),
                          0);
}

static void beside_open(struct side *side, const char *name)
{
    struct bmi_instance *instance;
    const struct bmi_instance_options options = {.name = name,
                                                 .methods = "bmi_tcp",
                                                 .listen = "tcp://127.0.0.1:0",
                                                 .flags = BMI_INIT_SERVER};
    CU_ASSERT_EQUAL_FATAL(bmi_instance_open(&instance, &options), 0);
    side_begin(side, instance);
}

/* May be called twice. */
static void side_end(struct side *side)
{
    if (side->context == NULL)
        return;
    CU_ASSERT_EQUAL(bmi_job_context_close(side->context), 0);
    side->context = NULL;
    bool is_default = side->instance == bmi_instance_default();
    CU_ASSERT_EQUAL(is_default ? BMI_finalize() : bmi_instance_close(side->instance), 0);
}

static void begin(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER), 0);
    side_begin(&sides[DEFAULT], bmi_instance_default());
    beside_open(&sides[BESIDE], "beside");
    for (int i = 0; i < SIDES; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[i].instance, &sides[i].other,
                                                       sides[1 - i].url),
                              0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, "mem:", NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
}

static void begin_foreground(void)
{
    background = false;
    begin();
}

static void begin_background(void)
{
    background = true;
    begin();
}

static void end(void)
{
    for (int i = 0; i < SIDES; i++)
        side_end(&sides[i]);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
}

/* Makes progress for a millisecond, and reports nothing. */
static void drive(struct side *side)
{
    int count;
    if (side->context != NULL)
        CU_ASSERT_EQUAL(bmi_job_testsome(side->context, 0, NULL, &count, NULL, NULL, 1), 0);
}

static void drive_all(void)
{
    for (int i = 0; i < SIDES; i++)
        drive(&sides[i]);
}

/* In the background there is progress without a test call. */
static void let_go_on(void)
{
    if (background)
        poll(NULL, 0, 1);
    else
        drive_all();
}

/* Waits until the value is reached. */
static bool reached(atomic_int *value, int wanted)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    while (atomic_load(value) < wanted && bmi_job_deadline(0) < until_ns)
        let_go_on();
    return atomic_load(value) >= wanted;
}

/* Waits until a job has ended, without a report of it. */
static bool has_ended(const struct side *side)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    struct bmi_job_statistics statistics = {0};
    while (statistics.completions_waiting == 0 && bmi_job_deadline(0) < until_ns) {
        let_go_on();
        CU_ASSERT_EQUAL_FATAL(bmi_job_statistics(side->context, &statistics), 0);
    }
    return statistics.completions_waiting > 0;
}

/* Waits until a message has arrived that no job takes. */
static bool has_message(const struct side *side)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    while (!bmi__unexpected_waiting(side->instance) && bmi_job_deadline(0) < until_ns)
        drive_all();
    drive_all();
    return bmi__unexpected_waiting(side->instance);
}

/* The error of a job that was posted with this result, or of the post. */
static bmi_error_code_t outcome(struct side *side, int posted, bmi_job_id_t id,
                                struct bmi_job_status *status)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    if (posted != 0)
        return posted < 0 ? posted : 0;
    for (int count = 0; bmi_job_deadline(0) < until_ns; drive_all()) {
        CU_ASSERT_FATAL(bmi_job_test(side->context, id, &count, status, 1) >= 0);
        if (count > 0)
            return status->error;
    }
    return -BMI_EAGAIN;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void message(struct side *from, struct side *to, bmi_size_t size)
{
    static char out[LARGE], in[LARGE];
    struct bmi_job_status sent = {0}, received = {0};
    bmi_job_id_t sending, receiving;
    out[0] = out[size - 1] = (char)(out[0] + 1);
    int posted = bmi_job_recv(to->context, to->other, in, size, BMI_EXT_ALLOC, 7, NULL, &receiving,
                              &received);
    int other = bmi_job_send(from->context, from->other, out, size, BMI_EXT_ALLOC, 7, NULL,
                             &sending, &sent);
    CU_ASSERT_EQUAL(outcome(from, other, sending, &sent), 0);
    CU_ASSERT_EQUAL(outcome(to, posted, receiving, &received), 0);
    CU_ASSERT_EQUAL(received.actual, size);
    CU_ASSERT_EQUAL(memcmp(in, out, (size_t)size), 0);
}

static void messages(void)
{
    message(&sides[DEFAULT], &sides[BESIDE], 100);
    message(&sides[BESIDE], &sides[DEFAULT], 100);
    message(&sides[DEFAULT], &sides[BESIDE], LARGE);
    message(&sides[BESIDE], &sides[DEFAULT], LARGE);
}

static void an_address_of_another_is_refused(void)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_send(sides[BESIDE].context, sides[DEFAULT].other, "x", 1, BMI_EXT_ALLOC,
                                 1, NULL, &id, &status),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_rpc(sides[BESIDE].context, sides[DEFAULT].other, "who",
                                bmi_message_new(), NULL, NULL, NULL, NULL, &id, &status),
                    -BMI_EINVAL);
}

static void send_unexpected(struct side *from, const char *text)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    int posted =
        bmi_job_sendunexpected(from->context, from->other, text, (bmi_size_t)strlen(text) + 1,
                               BMI_EXT_ALLOC, 3, NULL, &id, &status);
    CU_ASSERT_EQUAL(outcome(from, posted, id, &status), 0);
}

static void message_check(const struct BMI_unexpected_info *info, struct side *to, const char *text)
{
    CU_ASSERT_STRING_EQUAL(info->buffer, text);
    CU_ASSERT_PTR_EQUAL(bmi_instance_of_addr(info->addr), to->instance);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info->addr, info->buffer), 0);
}

static void each_gets_its_unexpected_messages(void)
{
    struct BMI_unexpected_info info[SIDES];
    struct bmi_job_status status;
    bmi_job_id_t ids[SIDES];
    for (int i = 0; i < SIDES; i++)
        CU_ASSERT_EQUAL(bmi_job_unexpected(sides[i].context, &info[i], NULL, &ids[i], &status), 0);
    send_unexpected(&sides[DEFAULT], "to the one beside");
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], 0, ids[BESIDE], &status), 0);
    message_check(&info[BESIDE], &sides[BESIDE], "to the one beside");
    int count = 1;
    CU_ASSERT_EQUAL(bmi_job_test(sides[DEFAULT].context, ids[DEFAULT], &count, &status, 0), 0);
    CU_ASSERT_EQUAL(count, 0);
    send_unexpected(&sides[BESIDE], "to the default one");
    CU_ASSERT_EQUAL(outcome(&sides[DEFAULT], 0, ids[DEFAULT], &status), 0);
    message_check(&info[DEFAULT], &sides[DEFAULT], "to the default one");
}

/* A message of an instance without such a job stays there, and a later job gets it. */
static void a_message_waits_in_its_instance(void)
{
    struct BMI_unexpected_info info = {0}, other = {0};
    struct bmi_job_status status;
    bmi_job_id_t id, late;
    CU_ASSERT_EQUAL(bmi_job_unexpected(sides[DEFAULT].context, &info, NULL, &id, &status), 0);
    send_unexpected(&sides[DEFAULT], "later");
    CU_ASSERT_TRUE(has_message(&sides[BESIDE]));
    CU_ASSERT_EQUAL(bmi_job_unexpected(sides[BESIDE].context, &other, NULL, &late, &status), 0);
    CU_ASSERT_TRUE(has_ended(&sides[BESIDE]));
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], 0, late, &status), 0);
    message_check(&other, &sides[BESIDE], "later");
    CU_ASSERT_EQUAL(bmi_job_cancel(sides[DEFAULT].context, id), 0);
    CU_ASSERT_EQUAL(outcome(&sides[DEFAULT], 0, id, &status), -BMI_ECANCEL);
}

/* A context that is closed returns the message that no test call has reported. */
static void a_message_returns_to_its_instance(void)
{
    struct BMI_unexpected_info info, again;
    int count = 0;
    CU_ASSERT_EQUAL(bmi_job_unexpected(sides[BESIDE].context, &info, NULL, NULL, NULL), 0);
    send_unexpected(&sides[DEFAULT], "again");
    CU_ASSERT_TRUE(has_ended(&sides[BESIDE]));
    CU_ASSERT_EQUAL(bmi_job_context_close(sides[BESIDE].context), 0);
    CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &again, 0), 0);
    CU_ASSERT_EQUAL(bmi_instance_testunexpected(sides[BESIDE].instance, 1, &count, &again, 0), 1);
    CU_ASSERT_EQUAL_FATAL(count, 1);
    message_check(&again, &sides[BESIDE], "again");
    CU_ASSERT_EQUAL_FATAL(bmi_instance_job_context_open(sides[BESIDE].instance, 0,
                                                        &sides[BESIDE].context),
                          0);
}

/* ---- machines for messages ------------------------------------------------------------------- */

static int accepted(struct bmi_sm *machine, void *data)
{
    const struct bmi_job_accepted *one = data;
    struct side *side = one->user_ptr;
    (void)machine;
    CU_ASSERT_PTR_EQUAL(bmi_instance_of_addr(one->message.addr), side->instance);
    atomic_fetch_add(&side->accepted, 1);
    return BMI_SM_DONE;
}

static atomic_bool held; /* machines wait */

static int hold(struct bmi_sm *machine, void *data)
{
    (void)data;
    if (!atomic_load(&held))
        return 1;
    return bmi_sm_posted(bmi_job_timer(bmi_sm_context(machine), bmi_job_deadline(1),
                                       BMI_SM_MINE(machine), NULL, NULL));
}

static const struct bmi_sm_state accepted_states[] = {
    {"hold", .action = hold, .choices = 2, .on = {BMI_SM_ON(1, 1), BMI_SM_ELSE(0)}},
    {"accepted", .action = accepted, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table acceptor = BMI_SM_TABLE("acceptor", accepted_states);

static bmi_job_id_t accept_begin(struct side *side)
{
    const struct bmi_job_options options = {.user_ptr = side};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_job_accept(side->context, &acceptor, 1, 0, &options, &id, NULL), 0);
    return id;
}

static void each_accepts_its_messages(void)
{
    enum { MESSAGES = 8 };
    struct bmi_job_status status = {0};
    bmi_job_id_t ids[SIDES];
    send_unexpected(&sides[DEFAULT], "earlier"); /* than the job that accepts it */
    CU_ASSERT_TRUE(has_message(&sides[BESIDE]));
    for (int i = 0; i < SIDES; i++)
        ids[i] = accept_begin(&sides[i]);
    CU_ASSERT_TRUE(reached(&sides[BESIDE].accepted, 1));
    atomic_store(&held, true);
    for (int i = 1; i < MESSAGES; i++)
        send_unexpected(&sides[DEFAULT], "to the one beside");
    CU_ASSERT_TRUE(has_message(&sides[BESIDE])); /* the limit is 1 */
    atomic_store(&held, false);
    CU_ASSERT_TRUE(reached(&sides[BESIDE].accepted, MESSAGES));
    CU_ASSERT_EQUAL(sides[DEFAULT].accepted, 0);
    send_unexpected(&sides[BESIDE], "to the default one");
    CU_ASSERT_TRUE(reached(&sides[DEFAULT].accepted, 1));
    for (int i = 0; i < SIDES; i++) {
        CU_ASSERT_EQUAL(bmi_job_cancel(sides[i].context, ids[i]), 0);
        CU_ASSERT_EQUAL(outcome(&sides[i], 0, ids[i], &status), -BMI_ECANCEL);
        CU_ASSERT_EQUAL(status.actual, i == BESIDE ? MESSAGES : 1);
    }
}

/* ---- services -------------------------------------------------------------------------------- */

static int reply(struct bmi_sm *machine, void *data)
{
    const struct bmi_job_request *request = data;
    const struct side *side = request->user_ptr;
    struct bmi_message *text = bmi_message_new();
    (void)machine;
    bmi_pack_string(text, bmi_instance_name(side->instance));
    return bmi_rpc_reply(request->request, text);
}

static const struct bmi_sm_state reply_states[] = {
    {.name = "reply", .action = reply, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table replier = BMI_SM_TABLE("replier", reply_states);
static const struct bmi_job_service who = {.table = &replier};

static bmi_job_id_t serve_begin(struct side *side)
{
    const struct bmi_job_options options = {.user_ptr = side};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_job_serve(side->context, "who", &who, &options, &id, NULL), 0);
    return id;
}

static int unpack(struct bmi_message *answer, void *argument)
{
    const char *text;
    int result = bmi_unpack_string(answer, &text);
    snprintf(argument, BMI_INSTANCE_NAME_MAX, "%s", result == 0 ? text : "none");
    return result;
}

/* Asks the other side. */
static bmi_error_code_t ask(struct side *side, char *text)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    strcpy(text, "nothing");
    int posted = bmi_job_rpc(side->context, side->other, "who", bmi_message_new(), unpack, text,
                             NULL, NULL, &id, &status);
    return outcome(side, posted, id, &status);
}

static void each_has_services_of_its_own(void)
{
    char text[BMI_INSTANCE_NAME_MAX];
    struct bmi_job_status status = {0};
    bmi_job_id_t ids[SIDES];
    for (int i = 0; i < SIDES; i++)
        ids[i] = serve_begin(&sides[i]);
    CU_ASSERT_EQUAL(ask(&sides[DEFAULT], text), 0);
    CU_ASSERT_STRING_EQUAL(text, "beside");
    CU_ASSERT_EQUAL(ask(&sides[BESIDE], text), 0);
    CU_ASSERT_STRING_EQUAL(text, "");
    CU_ASSERT_EQUAL(bmi_job_cancel(sides[BESIDE].context, ids[BESIDE]), 0);
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], 0, ids[BESIDE], &status), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(status.actual, 1);
    CU_ASSERT_EQUAL(ask(&sides[DEFAULT], text), -BMI_ENOSYS);
    CU_ASSERT_EQUAL(ask(&sides[BESIDE], text), 0);
    CU_ASSERT_STRING_EQUAL(text, "");
    CU_ASSERT_EQUAL(bmi_job_cancel(sides[DEFAULT].context, ids[DEFAULT]), 0);
    CU_ASSERT_EQUAL(outcome(&sides[DEFAULT], 0, ids[DEFAULT], &status), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(status.actual, 2);
}

/* ---- other events ---------------------------------------------------------------------------- */

static int nothing(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return BMI_SM_DONE;
}

static const struct bmi_sm_state nothing_states[] = {
    {.name = "nothing", .action = nothing, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table idler = BMI_SM_TABLE("idler", nothing_states);

static atomic_int ended;

/* Waits for longer than the test: a wait checks once more when its time is over. */
static void *wait_for_any(void *argument)
{
    struct side *side = argument;
    struct bmi_job_status status;
    int count = 0;
    bmi_job_testcontext(side->context, 1, &count, &status, 100 * PATIENCE_MS);
    atomic_fetch_add(&ended, count);
    return NULL;
}

/* A thread that waits in a test call, with nothing else to wake it, is woken by what `cause` does.
 * A thread that is not woken cannot be ended. */
static void woken_by(struct side *side, void (*cause)(struct side *side))
{
    pthread_t thread;
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    atomic_store(&ended, 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, wait_for_any, side), 0);
    while (!bmi__progress_poller_blocks(side->instance))
        poll(NULL, 0, 1); /* a worker may need an idle CPU */
    cause(side);
    while (atomic_load(&ended) == 0 && bmi_job_deadline(0) < until_ns)
        poll(NULL, 0, 1);
    if (atomic_load(&ended) == 0) {
        fprintf(stderr, "the thread that waits for \"%s\" was not woken\n",
                bmi_instance_name(side->instance));
        _exit(1);
    }
    pthread_join(thread, NULL);
}

static void event_cause(struct side *side)
{
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_event(side->context, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_event_complete(side->context, id, 0, 0), 0);
}

static void machine_cause(struct side *side)
{
    CU_ASSERT_EQUAL(bmi_sm_start(side->context, &idler, NULL, NULL, NULL, NULL, NULL), 0);
}

static void timer_cause(struct side *side)
{
    CU_ASSERT_EQUAL(bmi_job_timer(side->context, bmi_job_deadline(20), NULL, NULL, NULL), 0);
}

static void signal_cause(struct side *side)
{
    CU_ASSERT_EQUAL(bmi_job_signal(side->context, SIGUSR1, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(kill(getpid(), SIGUSR1), 0);
}

static void write_cause(struct side *side)
{
    const struct bmi_trove_place place = {store, 1, 7};
    const struct bmi_trove_fault slow = {.kinds = BMI_TROVE_WRITES, .delay_ms = 20};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &slow), 0);
    CU_ASSERT_EQUAL(bmi_job_trove_write_at(side->context, &place, "x", 1, 0, 0, NULL, NULL, NULL),
                    0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
}

static struct bmi_trove_store *folder_store;

/* The write may be done at once. */
static void folder_cause(struct side *side)
{
    static char bytes[LARGE];
    const struct bmi_trove_place place = {folder_store, 1, 7};
    int posted = bmi_job_trove_write_at(side->context, &place, bytes, LARGE, 0, BMI_TROVE_SYNC,
                                        NULL, NULL, NULL);
    CU_ASSERT_TRUE(posted >= 0);
    if (posted != 0)
        event_cause(side);
}

static int unlink_each(const char *path, const struct stat *stat, int kind, struct FTW *walk)
{
    (void)stat;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void a_waiting_thread_is_woken(void)
{
    for (int i = 0; i < SIDES; i++) {
        woken_by(&sides[i], event_cause);
        woken_by(&sides[i], machine_cause);
        woken_by(&sides[i], timer_cause);
        woken_by(&sides[i], signal_cause);
        woken_by(&sides[i], write_cause);
    }
}

/* A store whose descriptor becomes readable when an operation completes. */
static void storage_in_a_folder(void)
{
    char folder[] = "/tmp/bmi-job-XXXXXX", where[64];
    struct bmi_job_status status;
    bmi_trove_object_id_t object = 7;
    bmi_job_id_t id;
    if (!BMI_WITH_LMDB) {
        printf("skipped: built without LMDB ");
        return;
    }
    const struct bmi_trove_settings settings = {.create = true};
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(where, sizeof where, "dir:%s/store", folder);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&folder_store, where, &settings, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(folder_store, 1), 0);
    int posted =
        bmi_job_trove_create(sides[BESIDE].context, &(struct bmi_trove_place){folder_store, 1, 0},
                             &object, 0, NULL, &id, &status);
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], posted, id, &status), 0);
    woken_by(&sides[DEFAULT], folder_cause);
    woken_by(&sides[BESIDE], folder_cause);
    CU_ASSERT_EQUAL(bmi_trove_close(folder_store), 0);
    nftw(folder, unlink_each, 16, FTW_DEPTH | FTW_PHYS);
}

static void a_watch_is_removed(void)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_signal(sides[BESIDE].context, SIGUSR1, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_cancel(sides[BESIDE].context, id), 0);
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], 0, id, &status), -BMI_ECANCEL);
}

/* Without a thread that waits: the call that finds nothing to wait for polls the network. */
static void a_loop_with_a_descriptor(struct side *from, struct side *to)
{
    char in[8] = "";
    struct bmi_job_status status = {0};
    bmi_job_id_t id, sending;
    int count = 0;
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    struct pollfd poll_fd = {.fd = bmi_job_context_fd(to->context), .events = POLLIN};
    CU_ASSERT_TRUE_FATAL(poll_fd.fd >= 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_recv(to->context, to->other, in, 8, BMI_EXT_ALLOC, 9, NULL, &id,
                                       NULL),
                          0);
    int sent = bmi_job_send(from->context, from->other, "looped", 7, BMI_EXT_ALLOC, 9, NULL,
                            &sending, &status);
    while (count == 0 && bmi_job_deadline(0) < until_ns) {
        drive(from);
        if (poll(&poll_fd, 1, 1) > 0)
            CU_ASSERT(bmi_job_test(to->context, id, &count, &status, 0) >= 0);
    }
    CU_ASSERT_EQUAL(count, 1);
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_STRING_EQUAL(in, "looped");
    CU_ASSERT_EQUAL(outcome(from, sent, sending, &status), 0);
}

static void each_has_a_descriptor(void)
{
    a_loop_with_a_descriptor(&sides[DEFAULT], &sides[BESIDE]);
    a_loop_with_a_descriptor(&sides[BESIDE], &sides[DEFAULT]);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Jobs of each kind, which are pending. */
static void jobs_begin(struct side *side)
{
    static struct BMI_unexpected_info info;
    static char byte;
    bmi_job_id_t event;
    CU_ASSERT_EQUAL(bmi_job_event(side->context, NULL, &event, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_timer(side->context, bmi_job_deadline(1000000), NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_signal(side->context, SIGUSR2, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_recv(side->context, side->other, &byte, 1, BMI_EXT_ALLOC, 11, NULL,
                                 NULL, NULL),
                    0);
    CU_ASSERT_EQUAL(bmi_job_unexpected(side->context, &info, NULL, NULL, NULL), 0);
    machine_cause(side);
    write_cause(side);
    accept_begin(side);
    serve_begin(side);
}

static void one_ends_and_the_others_go_on(void)
{
    struct side third = {.context = NULL};
    bmi_job_id_t id = accept_begin(&sides[BESIDE]);
    beside_open(&third, "third");
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(third.instance, &third.other, sides[BESIDE].url),
                          0);
    jobs_begin(&third);
    messages();
    side_end(&third);
    messages();
    send_unexpected(&sides[DEFAULT], "hello");
    CU_ASSERT_TRUE(reached(&sides[BESIDE].accepted, 1));
    woken_by(&sides[DEFAULT], timer_cause);
    CU_ASSERT_EQUAL(bmi_job_cancel(sides[BESIDE].context, id), 0);
}

/* Then a context of another instance is all that there is of BMI. */
static void the_default_one_ends_first(void)
{
    struct side third = {.context = NULL};
    jobs_begin(&sides[DEFAULT]);
    messages();
    side_end(&sides[DEFAULT]);
    beside_open(&third, "third");
    sides[DEFAULT].context = NULL;
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(third.instance, &third.other, sides[BESIDE].url),
                          0);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_addr_lookup(sides[BESIDE].instance, &sides[BESIDE].other,
                                                   third.url),
                          0);
    accept_begin(&sides[BESIDE]);
    if (background) /* in the foreground outcome() does not drive this one */
        message(&third, &sides[BESIDE], LARGE);
    a_loop_with_a_descriptor(&sides[BESIDE], &third);
    woken_by(&sides[BESIDE], event_cause);
    woken_by(&sides[BESIDE], signal_cause);
    side_end(&third);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int wrong_choice(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return 5;
}

static const struct bmi_sm_state wrong_states[] = {
    {.name = "choose",
     .action = wrong_choice,
     .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}},
};

static void each_has_a_log_of_its_own(void)
{
    struct bmi_sm_table empty = BMI_SM_TABLE("empty", wrong_states);
    struct bmi_sm_table wrong = BMI_SM_TABLE("wrong", wrong_states);
    struct bmi_job_status status;
    bmi_job_id_t id;
    empty.count = 0;
    CU_ASSERT_EQUAL(bmi_sm_start(sides[BESIDE].context, &empty, NULL, NULL, NULL, &id, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_accept(sides[BESIDE].context, &empty, 1, 0, NULL, &id, NULL),
                    -BMI_EINVAL);
    const struct bmi_job_service service = {.table = &empty};
    CU_ASSERT_EQUAL(bmi_job_serve(sides[BESIDE].context, "x", &service, NULL, &id, NULL),
                    -BMI_EINVAL);
    const char *one = strstr(sides[BESIDE].log.text, "empty"), *two, *three;
    CU_ASSERT_TRUE(one != NULL && (two = strstr(one + 1, "empty")) != NULL &&
                   (three = strstr(two + 1, "empty")) != NULL);
    int posted = bmi_sm_start(sides[BESIDE].context, &wrong, NULL, NULL, NULL, &id, NULL);
    CU_ASSERT_EQUAL(outcome(&sides[BESIDE], posted, id, &status), -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(sides[BESIDE].log.text, "no transition"));
    CU_ASSERT_STRING_EQUAL(sides[DEFAULT].log.text, "");
}

/* A flow of four bytes between memory and a network end. */
static struct bmi_flow_description flow_of(void **buffer, BMI_addr_t address, bool sends)
{
    static const struct bmi_flow_extent extent = {.size = 4, .count = 1};
    static const bmi_size_t size = 4;
    const struct bmi_flow_endpoint memory = {.kind = BMI_FLOW_MEMORY,
                                             .u.memory = {buffer, &size, 1}};
    const struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK, .u.network = {address, 1}};
    return (struct bmi_flow_description){.source = sends ? memory : network,
                                         .destination = sends ? network : memory,
                                         .extents = &extent,
                                         .extent_count = 1};
}

static void flow(struct side *from, struct side *to)
{
    char got[4] = "";
    void *out = "flow", *in = got;
    struct bmi_flow_description sent = flow_of(&out, from->other, true),
                                received = flow_of(&in, to->other, false);
    struct bmi_job_status status;
    bmi_job_id_t ids[2];
    CU_ASSERT_EQUAL(bmi_job_flow(to->context, &sent, NULL, &ids[0], &status), -BMI_EINVAL);
    CU_ASSERT_EQUAL(ids[0], 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(to->log.text, "a flow has a context of instance"));
    int receiving = bmi_job_flow(to->context, &received, NULL, &ids[0], &status);
    int sending = bmi_job_flow(from->context, &sent, NULL, &ids[1], &status);
    CU_ASSERT_EQUAL(outcome(from, sending, ids[1], &status), 0);
    CU_ASSERT_EQUAL(outcome(to, receiving, ids[0], &status), 0);
    CU_ASSERT_EQUAL(memcmp(got, "flow", 4), 0);
}

static void each_has_flows(void)
{
    flow(&sides[DEFAULT], &sides[BESIDE]);
    flow(&sides[BESIDE], &sides[DEFAULT]);
}

static void contexts_that_cannot_open(void)
{
    struct bmi_job_context *context;
    CU_ASSERT_EQUAL(bmi_instance_job_context_open(NULL, 0, &context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_instance_job_context_open(sides[BESIDE].instance, 0, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_instance_job_context_open(sides[BESIDE].instance, 1u << 30, &context),
                    -BMI_EINVAL);
    side_end(&sides[DEFAULT]);
    CU_ASSERT_EQUAL(bmi_instance_job_context_open(bmi_instance_default(), 0, &context),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_context_open(0, &context), -BMI_EINVAL);
    CU_ASSERT_EQUAL_FATAL(bmi_instance_job_context_open(sides[BESIDE].instance, 0, &context), 0);
    CU_ASSERT_EQUAL(bmi_job_context_close(context), 0);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"messages", messages},
        {"an address of another is refused", an_address_of_another_is_refused},
        {"each gets its unexpected messages", each_gets_its_unexpected_messages},
        {"a message waits in its instance", a_message_waits_in_its_instance},
        {"a message returns to its instance", a_message_returns_to_its_instance},
        {"each accepts its messages", each_accepts_its_messages},
        {"each has services of its own", each_has_services_of_its_own},
        {"a waiting thread is woken", a_waiting_thread_is_woken},
        {"storage in a folder", storage_in_a_folder},
        {"a watch is removed", a_watch_is_removed},
        {"each has a descriptor", each_has_a_descriptor},
        {"one ends and the others go on", one_ends_and_the_others_go_on},
        {"the default one ends first", the_default_one_ends_first},
        {"each has a log of its own", each_has_a_log_of_its_own},
        {"each has flows", each_has_flows},
        {"contexts that cannot open", contexts_that_cannot_open},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "instances",
         .pSetUpFunc = begin_foreground,
         .pTearDownFunc = end,
         .pTests = tests},
        {.pName = "instances, background",
         .pSetUpFunc = begin_background,
         .pTearDownFunc = end,
         .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return unit_run_suites(suites);
}
