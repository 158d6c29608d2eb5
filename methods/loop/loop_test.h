/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_test.h - test hooks that slow the loop method down, inject failures, and limit its memory.
 *
 * Internal: only tests linked with the static library see these. Every function takes the method
 * whose network it concerns (&bmi__method_loop, ...). All hooks are off at first and keep their
 * values over BMI_finalize, until bmi__loop_reset. Errors are positive errno values (ECONNRESET).
 * Threads: any, at any time. Blocks: no. A hook takes effect with the poller's next step: where
 * another thread polls, a frame that it is just moving is not affected.
 */
#ifndef LOOP_TEST_H
#define LOOP_TEST_H

#include "bmi/method.h"

extern struct bmi_method bmi__method_loop;    /* frames only */
extern struct bmi_method bmi__method_loopput; /* and put */
extern struct bmi_method bmi__method_loopget; /* and get */

/* From which end of a link: that of connect, or the accepted one. May be or-ed. */
enum bmi__loop_direction { BMI__LOOP_FROM_DIALLER = 1, BMI__LOOP_FROM_ACCEPTOR = 2 };

enum bmi__loop_failure {
    BMI__LOOP_SEND,        /* the link goes down when it comes to this frame */
    BMI__LOOP_CONNECT,     /* connect succeeds, link_down follows */
    BMI__LOOP_CONNECT_NOW, /* connect itself returns the error */
    BMI__LOOP_EXPOSE,
    BMI__LOOP_TRANSFER, /* transfer_done has the error; the link stays */
    BMI__LOOP_FAILURES  /* how many there are */
};

/* Turns all hooks off and, if the method is not started, restores its limits. Held frames go on. */
void bmi__loop_reset(const struct bmi_method *method);

/* Each frame and transfer of a link waits this long, one after another. 0: off. */
void bmi__loop_delay(const struct bmi_method *method, unsigned delay_ms);

/* Bodies arrive, and transfers move, this many bytes at a time; the poller serves other links in
 * between. 0: off. */
void bmi__loop_piece(const struct bmi_method *method, size_t bytes);

/* The nth frame given to send, connect, expose, or transfer from now on fails; 1 is the next, 0
 * turns it off. Later ones go well. */
void bmi__loop_fail(const struct bmi_method *method, enum bmi__loop_failure place, unsigned nth,
                    int error);

/* Cuts all links: both ends go down with the error. */
void bmi__loop_cut(const struct bmi_method *method, int error);

/* While on, expose returns -ENOMEM. */
void bmi__loop_refuse_memory(const struct bmi_method *method, bool on);

/* Freezes all links' traffic in these directions. First `body_bytes` bytes of bodies and transfers
 * pass, with the headers before them; then nothing does, so that a body can be stopped at an exact
 * byte. 0: nothing passes any more. */
void bmi__loop_hold(const struct bmi_method *method, unsigned directions, uint64_t body_bytes);
void bmi__loop_release(const struct bmi_method *method, unsigned directions);

/* While on, the first 16 bytes of each HELLO's body (frame type 1) arrive altered: there stands the
 * sender's incarnation, so a process that talks to itself takes itself for another one. */
void bmi__loop_strangers(const struct bmi_method *method, bool on);

/* Other limits for the next start; 0 leaves one as it is. Returns: 0, or -EBUSY if started. */
int bmi__loop_limits(const struct bmi_method *method, bmi_size_t eager_max,
                     bmi_size_t unexpected_max, bmi_size_t frame_max);

#endif
