/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session.c - objects that have no name yet, by the client that writes them. A session is a
 * client's process, identified by a random number, with its connections. It notices the end of a
 * connection by a receive that is pending there (a lease). When the last one has ended, the client
 * may connect again within 2 s, or within 10 minutes if the connection was silent instead of
 * closed, as of a stopped process or over a broken network. After that the objects that the session
 * has not kept are removed. The session ignores kept objects: the client has named them, or was
 * interrupted just before; then `bmi-stripefs check` finds them.
 *
 *   lease:  hold -> ended -> grace -> expired
 *   reap:   take -> take ...
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

struct lease {
    struct lease *next;
    struct server *server;
    struct session *session;
    BMI_addr_t client;
    struct bmi_job_status status;
};

struct session {
    struct session *next;
    struct server *server;
    uint64_t client;
    struct lease *leases; /* one for each of its connections */
    int machines;         /* machines of leases, and the one that removes objects */
    int served;           /* its requests that are being served */
    bool gone, reaping;
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

/* ---- removing what a client has left --------------------------------------------------------- */

static void session_free_if_idle(struct session *session)
{
    if (session->machines > 0 || session->served > 0 || session->objects != NULL)
        return;
    struct session **at = &session->server->sessions.first;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    free(session);
}

static int reap_end(struct session *session)
{
    session->reaping = false;
    session->machines--;
    session_free_if_idle(session);
    return 1;
}

/* Choices: 0: take the next; 1: none is left, or the client has connected again. */
static int reap_take(struct bmi_sm *machine, void *data)
{
    struct session *session = data;
    struct server *server = session->server;
    if (bmi_sm_cancelled(machine))
        return reap_end(session);
    while (session->gone && session->served == 0 && session->objects != NULL) {
        struct bmi_trove_place place = {server->store, DATA, session->objects->number};
        bool kept = session->objects->kept;
        object_forget(server, place.object);
        if (kept)
            continue;
        int posted =
            bmi_job_trove_remove(server->jobs, &place, 0, BMI_SM_MINE(machine), NULL, NULL);
        if (posted == 0)
            return BMI_SM_DEFERRED;
    }
    return reap_end(session);
}

static const struct bmi_sm_state reap_states[] = {
    {"take", .action = reap_take, .choices = 2,
     .on = {BMI_SM_OK(0), BMI_SM_ON(1, BMI_SM_END), BMI_SM_FAIL(0)}},
};
static struct bmi_sm_table reap_table = {"reap", reap_states, 1, 0};

static void reap_if_due(struct session *session)
{
    if (session->gone && session->served == 0 && session->objects != NULL && !session->reaping &&
        bmi_sm_start(session->server->jobs, &reap_table, session, NULL, NULL, NULL, NULL) == 0) {
        session->reaping = true;
        session->machines++;
    }
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* No message has this tag: if one comes, the server ignores it. */
static int lease_hold(struct bmi_sm *machine, void *data)
{
    struct lease *lease = data;
    static char nothing[1];
    return bmi_sm_posted(bmi_job_recv(lease->server->jobs, lease->client, nothing, sizeof nothing,
                                      BMI_EXT_ALLOC, SFS_LEASE_TAG, BMI_SM_MINE(machine), NULL,
                                      &lease->status));
}

static int lease_ended(struct bmi_sm *machine, void *data)
{
    struct lease *lease = data;
    int error = bmi_sm_last(machine);
    bool closed = error == -BMI_ECONNRESET || error == -BMI_EPIPE;
    struct lease **at = &lease->session->leases;
    while (*at != lease)
        at = &(*at)->next;
    *at = lease->next;
    BMI_set_info(lease->client, BMI_DEC_ADDR_REF, NULL);
    return bmi_sm_posted(bmi_job_timer(lease->server->jobs,
                                       bmi_job_deadline(closed ? CLOSED_MS : SILENT_MS),
                                       BMI_SM_MINE(machine), NULL, NULL));
}

static int lease_expired(struct bmi_sm *machine, void *data)
{
    struct lease *lease = data;
    struct session *session = lease->session;
    session->machines--;
    if (session->leases == NULL && !bmi_sm_cancelled(machine)) {
        session->gone = true;
        reap_if_due(session);
    }
    session_free_if_idle(session);
    free(lease);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state lease_states[] = {
    {"hold", .action = lease_hold,
     .on = {BMI_SM_OK(0), BMI_SM_ON(-BMI_EMSGSIZE, 0), BMI_SM_FAIL(1)}},
    {"ended", .action = lease_ended, .on = {BMI_SM_ELSE(2)}},
    {"expired", .action = lease_expired, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table lease_table = {"lease", lease_states, 3, 0};

static int lease_start(struct session *session, BMI_addr_t client)
{
    struct server *server = session->server;
    struct lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL)
        return -BMI_ENOMEM;
    *lease = (struct lease){session->leases, server, session, client, {0}};
    int result = bmi_sm_start(server->jobs, &lease_table, lease, NULL, NULL, NULL, NULL);
    if (result < 0) {
        free(lease);
        return result;
    }
    BMI_set_info(client, BMI_INC_ADDR_REF, NULL);
    session->leases = lease;
    session->machines++;
    session->gone = false;
    return 0;
}

/* ---- sessions -------------------------------------------------------------------------------- */

static bool session_leases(const struct session *session, BMI_addr_t client)
{
    const struct lease *lease = session->leases;
    while (lease != NULL && lease->client != client)
        lease = lease->next;
    return lease != NULL;
}

/* A connection has one session, for any client numbers that come over it, so that the connections
 * bound the sessions. The session that was found last comes first. */
static struct session *session_find(struct server *server, BMI_addr_t client, uint64_t number)
{
    struct session **at = &server->sessions.first, **same = NULL;
    for (; *at != NULL && !session_leases(*at, client); at = &(*at)->next)
        if ((*at)->client == number)
            same = at;
    if (*at == NULL)
        at = same;
    if (at == NULL)
        return NULL;
    struct session *session = *at;
    *at = session->next;
    session->next = server->sessions.first;
    server->sessions.first = session;
    return session;
}

int session_enter(struct served *served)
{
    struct server *server = served->server;
    BMI_addr_t client = served->client;
    struct session *session = session_find(server, client, served->request.client);
    if (session == NULL) {
        session = calloc(1, sizeof *session);
        if (session == NULL)
            return -BMI_ENOMEM;
        session->server = server;
        session->client = served->request.client;
        session->next = server->sessions.first;
        server->sessions.first = session;
    }
    int result = session_leases(session, client) ? 0 : lease_start(session, client);
    if (result < 0) {
        session_free_if_idle(session);
        return result;
    }
    session->served++;
    served->session = session;
    return 0;
}

void session_leave(struct served *served)
{
    struct session *session = served->session;
    if (session == NULL)
        return;
    served->session = NULL;
    session->served--;
    reap_if_due(session);
    session_free_if_idle(session);
}

void sessions_close(struct server *server)
{
    while (server->sessions.first != NULL) {
        struct session *session = server->sessions.first;
        while (session->objects != NULL)
            object_forget(server, session->objects->number);
        server->sessions.first = session->next;
        free(session);
    }
}
