/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frame_queue_test.c - frames that leave a queue in any pieces, and frames that the core takes back
 * before, during, and after that.
 */
#include "bmi/method.h"
#include "unit.h"

enum { FRAMES = 3, BODY = 10, WHOLE = BMI_FRAME_HEADER + BODY };

static uint8_t bytes[FRAMES][BODY];
static void *buffers[FRAMES];
static bmi_size_t sizes[FRAMES];
static struct bmi_frame frames[FRAMES];
static struct bmi_frame_queue queue;

/* Three frames wait, each with a body of one segment. */
static void queue_fill(void)
{
    memset(&queue, 0, sizeof queue);
    memset(frames, 0, sizeof frames);
    for (int i = 0; i < FRAMES; i++) {
        memset(bytes[i], 'a' + i, BODY);
        buffers[i] = bytes[i];
        sizes[i] = BODY;
        frames[i].body = (struct bmi_segments){.buffers = &buffers[i],
                                               .sizes = &sizes[i],
                                               .count = 1,
                                               .left = BODY};
        bmi_frame_queue_append(&queue, &frames[i]);
    }
}

/* Removes everything, `step` bytes at a time. Returns the frames that came back, in order. */
static int drain(size_t step, struct bmi_frame **back, int64_t *counted)
{
    struct bmi_frame *done = NULL, **end = &done;
    int count = 0;
    *counted = 0;
    while (queue.first != NULL) {
        int64_t now;
        end = bmi_frame_queue_sent(&queue, step, end, &now);
        *counted += now;
    }
    for (; done != NULL; done = done->next) {
        CU_ASSERT_EQUAL(done->status, 0);
        CU_ASSERT_EQUAL(bmi_frame_header_left(done), 0);
        back[count++] = done;
    }
    return count;
}

/* Given frames that wait, when they leave in pieces of any size, then each comes back once. */
static void leave_in_pieces(void)
{
    for (size_t step = 1; step <= FRAMES * WHOLE + 1; step++) {
        struct bmi_frame *back[FRAMES];
        int64_t counted;
        queue_fill();
        CU_ASSERT_EQUAL_FATAL(drain(step, back, &counted), FRAMES);
        CU_ASSERT_EQUAL(counted, FRAMES);
        for (int i = 0; i < FRAMES; i++)
            CU_ASSERT_PTR_EQUAL(back[i], &frames[i]);
    }
}

/* Given frames of which none has begun, when one is withdrawn, then its replacement, or nothing,
 * stands there, and the queue can still be appended to. */
static void withdraw_untouched(void)
{
    for (int at = 0; at < FRAMES; at++)
        for (int with = 0; with < 2; with++) {
            struct bmi_frame other = {.next = NULL}, last = {.next = NULL};
            struct bmi_frame *back[FRAMES + 1];
            int64_t counted;
            queue_fill();
            CU_ASSERT_TRUE(bmi_frame_queue_withdraw(&queue, &frames[at], with ? &other : NULL));
            CU_ASSERT_FALSE(bmi_frame_queue_withdraw(&queue, &frames[at], NULL));
            bmi_frame_queue_append(&queue, &last);
            CU_ASSERT_EQUAL_FATAL(drain(WHOLE, back, &counted), FRAMES + with);
            CU_ASSERT_PTR_EQUAL(back[FRAMES - 1 + with], &last);
            if (with)
                CU_ASSERT_PTR_EQUAL(back[at], &other);
        }
}

/* Given a frame whose first bytes have gone, when it is withdrawn and its memory changes, then its
 * other bytes still go as they were, and only the frames behind it come back. */
static void withdraw_begun(void)
{
    for (size_t gone = 1; gone < WHOLE; gone++) {
        struct bmi_frame *done = NULL, other = {.next = NULL}, *back[FRAMES];
        struct iovec rest;
        size_t size;
        int64_t counted;
        queue_fill();
        bmi_frame_queue_sent(&queue, gone, &done, &counted);
        CU_ASSERT_TRUE_FATAL(bmi_frame_queue_withdraw(&queue, &frames[0], &other));
        CU_ASSERT_EQUAL(frames[0].body.left, 0);
        memset(bytes[0], 'z', BODY);
        size_t body = gone <= BMI_FRAME_HEADER ? BODY : WHOLE - gone;
        CU_ASSERT_EQUAL_FATAL(bmi_segments_window(&queue.first->body, &rest, 1, BODY, &size), 1);
        CU_ASSERT_EQUAL(bmi_frame_header_left(queue.first), WHOLE - gone - body);
        CU_ASSERT_EQUAL(size, body);
        CU_ASSERT_EQUAL(*(const char *)rest.iov_base, 'a');
        CU_ASSERT_EQUAL_FATAL(drain(7, back, &counted), FRAMES - 1);
        CU_ASSERT_PTR_EQUAL(back[0], &frames[1]);
        CU_ASSERT_PTR_NULL(queue.rest);
    }
}

/* Given a begun frame that was withdrawn, when the link ends, then nothing of it is kept. */
static void take_all(void)
{
    struct bmi_frame *done = NULL;
    int64_t counted;
    queue_fill();
    bmi_frame_queue_sent(&queue, 1, &done, &counted);
    CU_ASSERT_TRUE_FATAL(bmi_frame_queue_withdraw(&queue, &frames[0], NULL));
    CU_ASSERT_PTR_EQUAL(bmi_frame_queue_take(&queue), &frames[1]);
    CU_ASSERT_PTR_NULL(queue.rest);
    CU_ASSERT_PTR_NULL(bmi_frame_queue_take(&queue));
}

/* Given a write that reaches to some frame, then the frames up to it are found to be in it. */
static void find_before_the_end(void)
{
    bool before;
    queue_fill();
    for (int at = 0; at < FRAMES; at++) {
        CU_ASSERT_TRUE(bmi_frame_queue_has(&queue, &frames[at], &frames[1], &before));
        CU_ASSERT_EQUAL(before, at <= 1);
        CU_ASSERT_TRUE(bmi_frame_queue_has(&queue, &frames[at], NULL, &before));
        CU_ASSERT_FALSE(before);
    }
    bmi_frame_queue_withdraw(&queue, &frames[1], NULL);
    CU_ASSERT_FALSE(bmi_frame_queue_has(&queue, &frames[1], NULL, &before));
}

int main(void)
{
    static CU_TestInfo cases[] = {
        {"leave in pieces", leave_in_pieces},
        {"withdraw a frame that has not begun", withdraw_untouched},
        {"withdraw a frame that has begun", withdraw_begun},
        {"take all", take_all},
        {"find a frame before the end of a write", find_before_the_end},
        CU_TEST_INFO_NULL,
    };
    return unit_run("frame queue", cases);
}
