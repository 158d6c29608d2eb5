/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_core.h - a small core for exact tests of a method (tcp, unless fake_method says otherwise).
 * It implements the services of bmi/method.h, polls when the test calls it, and records every
 * report of the method. Frames of the tests carry a struct fake_header in their 40 bytes; small
 * ones with each fourth sequence (3, 7, ...) its short form.
 */
#ifndef STREAM_FAKE_CORE_H
#define STREAM_FAKE_CORE_H

#include <pthread.h>

#include "bmi/method.h"

enum { FAKE_MAGIC = 0x746f6c66, FAKE_MAGIC_SHORT = 0x746f6ce6, FAKE_OWNERS = 64 };

struct fake_header {
    uint32_t magic, sequence;
    uint64_t length; /* of the body that follows */
    uint64_t keep;   /* bytes of it that the receiver wants */
    uint64_t unused[2];
};

struct fake_short {
    uint32_t magic, sequence, length, keep;
};

/* Stands for the core's peer. */
struct fake_owner {
    struct bmi_link *link;
    char host[64];
    uint8_t ends[2 * BMI_LINK_END]; /* the dialler's, then the accepter's */
    int ups, downs, status;
    int frames, bodies;           /* that arrived */
    struct fake_header last;      /* header of the last frame */
    int sent, failed, last_error; /* frames that came back; lock */
    pthread_mutex_t lock;

    /* Where bodies go: one after the other into `into`, or the next one into `list`. A sink's owner
     * is its place in `into`. */
    uint8_t *into;
    size_t received;
    void *one_buffer;
    bmi_size_t one_size;
    struct bmi_segments list;
    bool takes_whole; /* frames whose body is there already come in one step */

    void (*on_frame)(struct fake_owner *owner); /* may be NULL */
    void (*on_sent)(struct fake_owner *owner, struct bmi_frame *frame);
};

extern const struct bmi_method *fake_method; /* set before fake_start */
extern const char *fake_host;                /* it listens there: 127.0.0.1 */
extern void *fake_state;                     /* the method's, started */
/* Called when a transfer ends; NULL: no transfer may end. */
extern void (*fake_on_transfer)(struct bmi_transfer *transfer, int status);
extern struct fake_owner fake_accepted[FAKE_OWNERS];
extern int fake_accepted_count;
extern _Atomic int64_t fake_counters[BMI_COUNT_COUNTERS];
extern char fake_logged[256];    /* the last text of the log */
extern int64_t fake_send_buffer; /* the setting tcp_sndbuf */
extern int64_t fake_peer_timeout_ms, fake_connect_timeout_ms;
extern const char *fake_tls_psk;     /* the setting */
extern int64_t fake_tls_key_records; /* the setting */
extern int64_t fake_tls_session_s;   /* the setting; 0 at first */
extern bool fake_quiet;              /* the log is not printed */
extern const char *fake_tcp_engine;  /* the setting tcp_engine */

void fake_start(void);
/* Stops the method, then runs the deferred calls. Returns the number of links not taken down. */
int fake_stop(void);

/* One pass: deferred calls, events (waits up to wait_ms for them), timers. */
void fake_drive(int wait_ms);

/* Polls until the condition holds; false after a minute. */
#define FAKE_UNTIL(condition)                             \
    ({                                                    \
        int64_t fake_end_ = fake_now_ms() + 60000;        \
        while (!(condition) && fake_now_ms() < fake_end_) \
            fake_drive(5);                                \
        (condition);                                      \
    })

int64_t fake_now_ms(void);
void fake_owner_init(struct fake_owner *owner, uint8_t *into);
void fake_header_write(uint8_t header[BMI_FRAME_HEADER], uint32_t sequence, uint64_t length,
                       uint64_t keep);
/* Either form. Returns whether it is one. */
bool fake_header_read(const uint8_t *bytes, struct fake_header *header);

/* Listens on fake_host; returns the port, and the address in `bound`. */
int fake_listen(char *bound, size_t size);
/* Makes the method dial. Returns 0 or an errno. */
int fake_dial(const char *address, struct fake_owner *owner, uint8_t *into);
/* A plain socket connected to the method; the method's side is the last of fake_accepted. */
int fake_raw_peer(int port, struct fake_owner **owner, uint8_t *into);

#endif
