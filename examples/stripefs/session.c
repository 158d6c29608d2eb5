/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session.c - objects that have no name yet, by the connection that wrote them last. A session is
 * such a connection. It notices its end by a receive that is pending there (a lease). Its client
 * may go on with an object over another connection within 2 s, or within 10 minutes if the
 * connection was silent instead of closed, as of a stopped process or over a broken network. After
 * that the objects that were not kept are removed. Kept ones are ignored: the client has named
 * them, or was interrupted just before; then `bmi-stripefs check` finds them.
 *
 *   hold -> ended -> wait -> reap: wait, reap, over
 */
#include <stdlib.h>

#include "server.h"

enum { CLOSED_MS = 2000, SILENT_MS = 600000 };

struct object {
    uint64_t number;
    bool kept;
    struct session *session;
    struct object *next_bucket;
    struct object *next, **at; /* of the session */
};

struct session {
    struct session *next;
    struct server *server;
    BMI_addr_t client; /* 0: the connection has ended */
    struct bmi_job_status status;
    int served;   /* its requests that are being served */
    int grace_ms; /* after its end */
    bool over;    /* its machine has ended */
    struct object *objects;
};

/* ---- objects --------------------------------------------------------------------------------- */

static struct object **object_find(struct server *server, uint64_t number)
{
    struct object **at =
        &server->sessions.buckets[number * 0x9e3779b97f4a7c15u >> (64 - SESSION_BITS)];
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next_bucket;
    return at;
}

static void object_unlink(struct object *object)
{
    *object->at = object->next;
    if (object->next != NULL)
        object->next->at = object->at;
}

static void object_link(struct object *object, struct session *session)
{
    object->session = session;
    object->next = session->objects;
    object->at = &session->objects;
    if (object->next != NULL)
        object->next->at = &object->next;
    session->objects = object;
}

int object_track(struct served *served, uint64_t number)
{
    struct object **at = object_find(served->server, number), *object = *at;
    if (object == NULL) {
        object = calloc(1, sizeof *object);
        if (object == NULL)
            return -BMI_ENOMEM;
        object->number = number;
        *at = object;
    } else {
        if (object->session == served->session)
            return 0;
        object_unlink(object);
    }
    object_link(object, served->session);
    return 0;
}

bool object_keep(struct served *served, uint64_t number)
{
    struct object *object = *object_find(served->server, number);
    if (object != NULL)
        object->kept = true;
    return object != NULL;
}

void object_forget(struct server *server, uint64_t number)
{
    struct object **at = object_find(server, number), *object = *at;
    if (object == NULL)
        return;
    *at = object->next_bucket;
    object_unlink(object);
    free(object);
}

bool object_used(struct server *server, uint64_t number)
{
    return *object_find(server, number) != NULL;
}

/* ---- a session's machine --------------------------------------------------------------------- */

/* No message has this tag: if one comes, the server ignores it. */
static int hold(struct bmi_sm *machine, void *data)
{
    struct session *session = data;
    static char nothing[1];
    return bmi_sm_posted(bmi_job_recv(session->server->jobs, session->client, nothing,
                                      sizeof nothing, BMI_EXT_ALLOC, SFS_LEASE_TAG,
                                      BMI_SM_MINE(machine), NULL, &session->status));
}

static int ended(struct bmi_sm *machine, void *data)
{
    struct session *session = data;
    int error = bmi_sm_last(machine);
    session->grace_ms = error == -BMI_ECONNRESET || error == -BMI_EPIPE ? CLOSED_MS : SILENT_MS;
    BMI_set_info(session->client, BMI_DEC_ADDR_REF, NULL);
    session->client = 0;
    return BMI_SM_DONE;
}

static int wait_ms(struct bmi_sm *machine, void *data)
{
    const struct session *session = data;
    return bmi_sm_posted(bmi_job_timer(session->server->jobs, bmi_job_deadline(session->grace_ms),
                                       BMI_SM_MINE(machine), NULL, NULL));
}

/* Choices: 0: the next; 1: wait: requests of it are still being served; 2: none is left, or the
 * server ends. */
static int reap(struct bmi_sm *machine, void *data)
{
    struct session *session = data;
    struct server *server = session->server;
    if (bmi_sm_cancelled(machine))
        return 2;
    session->grace_ms = CLOSED_MS;
    if (session->served > 0)
        return 1;
    while (session->objects != NULL) {
        struct bmi_trove_place place = {server->store, DATA, session->objects->number};
        bool kept = session->objects->kept;
        object_forget(server, place.object);
        if (!kept &&
            bmi_job_trove_remove(server->jobs, &place, 0, BMI_SM_MINE(machine), NULL, NULL) == 0)
            return BMI_SM_DEFERRED;
    }
    return 2;
}

static void session_free_if_over(struct session *session)
{
    if (!session->over || session->served > 0)
        return;
    while (session->objects != NULL) /* the server ends */
        object_forget(session->server, session->objects->number);
    free(session);
}

static int over(struct bmi_sm *machine, void *data)
{
    struct session *session = data;
    struct session **at = &session->server->sessions.first;
    (void)machine;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    session->over = true;
    session_free_if_over(session);
    return BMI_SM_DONE;
}

enum { HOLD, ENDED, WAIT, REAP, OVER };

static const struct bmi_sm_state states[] = {
    [HOLD] = {"hold", .action = hold,
              .on = {BMI_SM_OK(HOLD), BMI_SM_ON(-BMI_EMSGSIZE, HOLD), BMI_SM_FAIL(ENDED)}},
    [ENDED] = {"ended", .action = ended, .on = {BMI_SM_ELSE(WAIT)}},
    [WAIT] = {"wait", .action = wait_ms, .on = {BMI_SM_ELSE(REAP)}},
    [REAP] = {"reap", .action = reap, .choices = 3,
              .on = {BMI_SM_OK(REAP), BMI_SM_ON(1, WAIT), BMI_SM_ON(2, OVER), BMI_SM_FAIL(REAP)}},
    [OVER] = {"over", .action = over, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table session_table = BMI_SM_TABLE("session", states);

/* ---- requests -------------------------------------------------------------------------------- */

/* The session that was found last comes first. */
static struct session *session_find(struct server *server, BMI_addr_t client)
{
    struct session **at = &server->sessions.first;
    while (*at != NULL && (*at)->client != client)
        at = &(*at)->next;
    struct session *session = *at;
    if (session == NULL)
        return NULL;
    *at = session->next;
    session->next = server->sessions.first;
    server->sessions.first = session;
    return session;
}

static int session_make(struct server *server, BMI_addr_t client)
{
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return -BMI_ENOMEM;
    *session = (struct session){.next = server->sessions.first, .server = server, .client = client};
    int result = bmi_sm_start(server->jobs, &session_table, session, NULL, NULL, NULL, NULL);
    if (result < 0) {
        free(session);
        return result;
    }
    BMI_set_info(client, BMI_INC_ADDR_REF, NULL);
    server->sessions.first = session;
    return 0;
}

int session_enter(struct served *served)
{
    struct server *server = served->server;
    if (session_find(server, served->client) == NULL) {
        int result = session_make(server, served->client);
        if (result < 0)
            return result;
    }
    served->session = server->sessions.first;
    served->session->served++;
    return 0;
}

void session_leave(struct served *served)
{
    struct session *session = served->session;
    if (session == NULL)
        return;
    served->session = NULL;
    session->served--;
    session_free_if_over(session);
}
