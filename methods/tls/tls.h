/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls.h - declarations that the files of the tls method share.
 *
 * The method is tcp with a layer below the frames (struct stream_bytes): TLS 1.3 by OpenSSL, which
 * authenticates both sides. Sockets, dialling and listening are those of methods/tcp, links those
 * of methods/stream.
 *
 * Locks: `lock` of a struct tls_link guards its SSL object and what that writes to; it is held over
 * one read of the stream or some records of SSL_write; within it only that of struct tls_sessions
 * (session.c) is taken. The writer (stream.h) sends the ciphertext without it. `lock` of struct
 * tls_contexts guards the contexts.
 */
#ifndef TLS_H
#define TLS_H

#include <openssl/ssl.h>

#include "methods/tcp/tcp.h"

enum { TLS_NAME = 256, TLS_INSTANCE = 16 };

enum tls_role { TLS_CLIENT, TLS_SERVER, TLS_ROLES } __attribute__((packed));

struct tls_contexts;

struct tls_state {
    struct tcp_state tcp;
    struct tls_contexts *contexts;
    uint8_t instance[TLS_INSTANCE]; /* random: names this process to the peers of a shared key */
};

/* Ciphertext on its way to the socket. */
struct tls_buffer {
    size_t have, room, sent;
    uint8_t bytes[];
};

/* An idle peer has one, so it is small. */
struct tls_link {
    struct stream_link *link;
    SSL *ssl;                   /* lock; NULL before the first step of the handshake */
    struct tls_buffer *out;     /* lock: written by SSL, not taken by the writer; NULL: nothing */
    struct tls_buffer *sending; /* the writer's; NULL: nothing */
    char *identity;             /* the peer's; set once, before the link is up */
    struct tls_making *making;  /* during the handshake: its step's */
    struct bmi_lock lock;
    uint32_t records;                 /* lock; writer if kernel_sends. Sent with this key */
    int socket_error;                 /* lock: of the socket; 0: none */
    int status;                       /* poller: as of a read, if `over` */
    bool read_any : 1;                /* lock: the socket gave a byte at all */
    bool read_short : 1;              /* lock: it gave less than asked for */
    uint8_t messages : 6;             /* lock: of TLS, that came since data did */
    atomic_bool any_out, any_sending; /* whether these hold anything */
    bool unread;                      /* poller: more can be read without the socket's report */
    bool over;                        /* poller: reading has ended, with `status` */
    atomic_bool end_waits;            /* for room: the announcement of our end, the kernel's */
    /* set once, before the link is up: by a ticket; the kernel has the key */
    bool resumed : 1, kernel_sends : 1;
    enum tls_role role;
};

_Static_assert(sizeof(struct tls_link) <= 72, "an idle peer stays small");

/* What only the handshake needs. */
struct tls_making {
    const char *fault;       /* in words: why the peer is refused; NULL: see OpenSSL's errors */
    char identity[TLS_NAME]; /* of the key that was used */
    char wire[TLS_NAME];     /* the same, as it is sent */
    char host[IP_HOST_SIZE]; /* that was dialled, for the check of the server's name */
    bool host_is_numeric;
};

extern const struct bmi_method bmi__method_tls;

static inline struct tls_state *tls_state_of(const struct stream_link *link)
{
    return link->base.state;
}

static inline struct tls_link *tls_link_of(const struct stream_link *link)
{
    return link->layer;
}

/* bytes.c */
extern const struct stream_bytes tls_bytes;

/* cause.c: why a connection failed, as an errno; logs it with the peer. The SSL's errors are in
 * this thread's queue. The link's lock. */
int tls_cause_locked(struct tls_link *tls);
/* Logs why a peer is refused. */
void tls_cause_log(const struct tls_link *tls, const char *text);

/* context.c: contexts with the credentials, read again when their files have changed. */
struct tls_contexts *tls_contexts_make(struct bmi_instance *instance);
void tls_contexts_free(struct tls_contexts *contexts);
/* Returns one that the caller frees; NULL: there is none, which was logged. Any thread. Reads
 * files. */
SSL_CTX *tls_context_get(struct tls_contexts *contexts, enum tls_role role);
/* When the credentials of now end. Any thread. Reads files that have changed since the last one. */
void tls_contexts_expiry(struct tls_contexts *contexts, struct bmi_method_expiry *expiry);
/* Whether the credentials of now can be used. Returns 0, or an errno, and why. Any thread, at any
 * time. */
int tls_context_check(struct bmi_instance *instance, char *why, size_t size);
/* Whether a file of keys has the rights of a secret. Returns 0, or an errno, and why. */
int tls_file_check(const char *file, char *why, size_t size);

/* identity.c: names of peers. */
/* A callback of SSL_CTX_set_verify. */
int tls_verify(int ok, X509_STORE_CTX *store);
/* Sets what the link knows of its peer. Returns 0, or an errno, which was logged. The handshake is
 * complete. */
int tls_identity_set(struct tls_link *tls);
/* Finds the first name that is accepted. Returns whether there is one. */
bool tls_name_find(struct bmi_instance *instance, X509 *certificate, char name[TLS_NAME]);
/* What the link knows of its peer. The link is up. Any thread, with the link's send_lock. */
void tls_identity_get(struct tls_link *tls, struct bmi_peer_identity *identity);
/* Whether the peer's certificate has the host of a canonical address. The link is up. Poller. */
bool tls_address_proved(struct tls_link *tls, const char *address);
/* The fault of a certificate, in words. */
const char *tls_fault_name(long error);

/* psk.c: keys that both sides know. */
/* Reads the file into the context. Returns 0, or an errno, and why. */
int tls_psk_load(SSL_CTX *context, const char *file, char *why, size_t size);

/* session.c: tickets of a context whose peers have certificates. */
/* Returns false without memory. The credentials are in the context. */
bool tls_sessions_open(SSL_CTX *context, enum tls_role role);
/* Before the handshake: a client uses the ticket of its server, if there is one. The name that is
 * checked is set. */
void tls_session_begin(SSL *ssl);

/* kernel.c */
/* Puts behind a BIO the one by which OpenSSL hands the key to the kernel. Returns false without
 * memory. */
bool tls_kernel_add(BIO *bio, const struct tls_link *tls);
/* Whether the kernel has taken the key for sending. `socket` may be NULL. */
bool tls_kernel_has_key(BIO *socket);
/* Writes bytes that belong to no frame to such a BIO, without SIGPIPE. Returns as BIO_write_ex, and
 * sets errno. */
int tls_kernel_write(BIO *socket, const char *from, size_t size, size_t *written);
/* Sends frames, as the `write` of struct stream_bytes. The writer. */
ssize_t tls_kernel_send(struct stream_link *link, struct iovec *iov, size_t count);

/* expiry.c */
/* Whether the credentials of now can be used, and for how long. Returns 0 or an errno. Any thread,
 * at any time. */
int tls_credentials_check(struct bmi_instance *instance, struct bmi_method_choice *choice);
/* The same from the files. Any thread, at any time. */
void tls_expiry_read(struct bmi_instance *instance, struct bmi_method_expiry *expiry);
/* In seconds of time(2). */
int64_t tls_time_of(const ASN1_TIME *time);

#endif
