/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_memory_test.c - registrations, puts, and gets of the loop method. The acceptor lends memory,
 * the dialler moves it.
 */
#include <errno.h>
#include <string.h>

#include "methods/loop/fake_core.h"
#include "methods/loop/loop_suites.h"

#define PUT (&bmi__method_loopput)
#define GET (&bmi__method_loopget)
#define DIALLER (&fake_dialler)
#define ACCEPTOR (&fake_peers[0])
#define CHECK_EVENTS(peer, expected) CU_ASSERT_STRING_EQUAL((peer)->events, expected)

enum { SIZE = 300 };

/* A list of two pieces over one array, and a transfer from or into another. */
struct scene {
    uint8_t remote[SIZE], local[SIZE];
    void *buffers[2];
    bmi_size_t sizes[2];
    struct bmi_region regions[16];
    uint32_t count;
    void *handle;
    void *local_buffer;
    bmi_size_t local_size;
    struct bmi_transfer transfer;
    int number; /* shown in the log */
};

static void scene_make(struct scene *scene, bool get)
{
    memset(scene, 0, sizeof *scene);
    for (unsigned i = 0; i < SIZE; i++)
        (get ? scene->remote : scene->local)[i] = (uint8_t)(i * 7 + 1);
    scene->buffers[0] = scene->remote;
    scene->sizes[0] = 100;
    scene->buffers[1] = scene->remote + 100;
    scene->sizes[1] = SIZE - 100;
    scene->local_buffer = scene->local;
    scene->local_size = SIZE;
    scene->number = 1;
    scene->transfer = (struct bmi_transfer){
        .local = {.buffers = &scene->local_buffer,
                  .sizes = &scene->local_size,
                  .count = 1,
                  .left = SIZE},
        .remote = scene->regions,
        .remote_count = 2,
        .get = get,
        .owner = &scene->number,
    };
}

static int scene_expose(struct scene *scene, struct fake_peer *peer)
{
    struct bmi_segments memory = {.buffers = scene->buffers,
                                  .sizes = scene->sizes,
                                  .count = 2,
                                  .left = SIZE};
    return peer->link->method->expose(peer->link, &memory, scene->regions, &scene->count,
                                      &scene->handle);
}

static void scene_open(struct scene *scene, const struct bmi_method *method)
{
    fake_pair_open(method);
    scene_make(scene, method == GET);
    CU_ASSERT_EQUAL_FATAL(scene_expose(scene, ACCEPTOR), 0);
    CU_ASSERT_EQUAL_FATAL(scene->count, 2);
}

static void scene_transfer(struct scene *scene)
{
    pthread_mutex_lock(&DIALLER->lock);
    DIALLER->link->method->transfer(DIALLER->link, &scene->transfer);
    pthread_mutex_unlock(&DIALLER->lock);
}

static void test_tables(void)
{
    CU_ASSERT_PTR_NULL(bmi__method_loop.expose);
    CU_ASSERT_PTR_NULL(bmi__method_loop.transfer);
    CU_ASSERT_EQUAL(bmi__method_loop.limits.regions_max, 0);
    CU_ASSERT_TRUE(PUT->limits.put && !PUT->limits.get);
    CU_ASSERT_TRUE(GET->limits.get && !GET->limits.put);
    CU_ASSERT_EQUAL(GET->limits.regions_max, 16);
}

static void test_move(void)
{
    const struct bmi_method *methods[] = {PUT, GET};
    static const size_t pieces[] = {0, 1, 64};
    for (unsigned m = 0; m < 2; m++)
        for (unsigned p = 0; p < 3; p++) {
            struct scene scene;
            scene_open(&scene, methods[m]);
            bmi__loop_piece(methods[m], pieces[p]);
            scene_transfer(&scene);
            CHECK_EVENTS(DIALLER, ""); /* never from within transfer */
            CU_ASSERT_TRUE(fake_drive(1000));
            CHECK_EVENTS(DIALLER, "done:1:0");
            CU_ASSERT_EQUAL(memcmp(scene.local, scene.remote, SIZE), 0);
            CU_ASSERT_EQUAL(scene.remote[SIZE - 1], (uint8_t)((SIZE - 1) * 7 + 1));
            PUT->release(ACCEPTOR->link, scene.handle, true);
            fake_pair_close();
        }
}

/* A put is visible before a frame that was sent after its transfer_done. */
static void test_put_before_frame(void)
{
    struct scene scene;
    scene_open(&scene, PUT);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 7, NULL, 0);
    bmi__loop_delay(PUT, 5);
    scene_transfer(&scene);
    fake_drive(100);
    fake_advance(4);
    CHECK_EVENTS(DIALLER, "");
    fake_advance(1);
    CHECK_EVENTS(DIALLER, "done:1:0");
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    fake_advance(5);
    CHECK_EVENTS(ACCEPTOR, "head:7");
    CU_ASSERT_EQUAL(memcmp(scene.local, scene.remote, SIZE), 0);
    fake_pair_close();
}

enum fault {
    FAULT_KEY,
    FAULT_ADDRESS_LOW,
    FAULT_ADDRESS_HIGH,
    FAULT_LENGTH,
    FAULT_LENGTH_WRAPS,
    FAULT_TOO_SHORT,
    FAULT_KEY_OF_OTHER,
    FAULT_RELEASED,
    FAULTS
};

static void fault_make(struct scene *scene, enum fault fault)
{
    struct bmi_region *region = &scene->regions[0];
    switch (fault) {
    case FAULT_KEY:
        region->key ^= 1;
        break;
    case FAULT_ADDRESS_LOW:
        region->address--;
        break;
    case FAULT_ADDRESS_HIGH:
        region->address++;
        break;
    case FAULT_LENGTH:
        region->length++;
        break;
    case FAULT_LENGTH_WRAPS:
        region->length = UINT64_MAX;
        break;
    case FAULT_TOO_SHORT: /* all regions together */
        scene->transfer.remote_count = 0;
        break;
    case FAULT_KEY_OF_OTHER:
        region->key = scene->regions[1].key;
        break;
    default:
        ACCEPTOR->link->method->release(ACCEPTOR->link, scene->handle, true);
    }
}

static void test_bad_regions(void)
{
    const struct bmi_method *methods[] = {PUT, GET};
    for (unsigned m = 0; m < 2; m++)
        for (unsigned fault = 0; fault < FAULTS; fault++) {
            struct scene scene, before;
            scene_open(&scene, methods[m]);
            fault_make(&scene, (enum fault)fault);
            before = scene;
            scene_transfer(&scene);
            fake_drive(100);
            CHECK_EVENTS(DIALLER, "done:1:-13");
            CU_ASSERT_EQUAL(memcmp(scene.local, before.local, SIZE), 0);
            CU_ASSERT_EQUAL(memcmp(scene.remote, before.remote, SIZE), 0);
            fake_pair_close();
        }
}

static void test_part_of_a_region(void)
{
    struct scene scene;
    scene_open(&scene, PUT);
    scene.regions[0] = (struct bmi_region){.address = scene.regions[1].address + 20,
                                           .length = 30,
                                           .key = scene.regions[1].key};
    scene.transfer.remote_count = 1;
    scene.transfer.local.left = 30;
    scene_transfer(&scene);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "done:1:0");
    CU_ASSERT_EQUAL(scene.remote[119], 0);
    CU_ASSERT_EQUAL(memcmp(scene.remote + 120, scene.local, 30), 0);
    CU_ASSERT_EQUAL(scene.remote[150], 0);
    fake_pair_close();
}

/* Regions are the link pair's: neither another link's nor one's own. */
static void test_regions_of_another_link(void)
{
    struct scene scene;
    scene_open(&scene, PUT);
    CU_ASSERT_EQUAL_FATAL(fake_dial(PUT, &fake_peers[5], "server"), 0);
    fake_drive(100);
    struct fake_peer *owners[] = {&fake_peers[1], DIALLER};
    for (unsigned i = 0; i < 2; i++) {
        scene_make(&scene, false);
        CU_ASSERT_EQUAL(scene_expose(&scene, owners[i]), 0);
        scene_transfer(&scene);
        fake_drive(100);
        CU_ASSERT_EQUAL(scene.remote[0], 0);
    }
    CHECK_EVENTS(DIALLER, "done:1:-13 done:1:-13");
    fake_pair_close();
}

static void test_release_in_mid_transfer(void)
{
    struct scene scene;
    scene_open(&scene, PUT);
    bmi__loop_hold(PUT, BMI__LOOP_FROM_DIALLER, 150);
    scene_transfer(&scene);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "");
    CU_ASSERT_EQUAL(scene.remote[149], scene.local[149]);
    CU_ASSERT_EQUAL(scene.remote[150], 0);
    PUT->release(ACCEPTOR->link, scene.handle, true);
    bmi__loop_release(PUT, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "done:1:-13");
    CU_ASSERT_EQUAL(scene.remote[150], 0);
    fake_pair_close();
}

static void test_wrong_direction(void)
{
    struct scene scene;
    scene_open(&scene, PUT);
    scene.transfer.get = true;
    scene_transfer(&scene);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "done:1:-95");
    fake_pair_close();
}

static void test_failures_on_demand(void)
{
    struct scene scene;
    scene_open(&scene, GET);
    bmi__loop_fail(GET, BMI__LOOP_EXPOSE, 2, EIO);
    CU_ASSERT_EQUAL(scene_expose(&scene, ACCEPTOR), 0);
    CU_ASSERT_EQUAL(scene_expose(&scene, ACCEPTOR), -EIO);
    bmi__loop_refuse_memory(GET, true);
    CU_ASSERT_EQUAL(scene_expose(&scene, ACCEPTOR), -ENOMEM);
    bmi__loop_refuse_memory(GET, false);
    CU_ASSERT_EQUAL(scene_expose(&scene, ACCEPTOR), 0);
    bmi__loop_fail(GET, BMI__LOOP_TRANSFER, 1, EREMOTEIO);
    scene_transfer(&scene);
    fake_drive(100);
    scene_transfer(&scene);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "done:1:-121 done:1:0");
    fake_pair_close();
}

static void test_list_too_long(void)
{
    fake_pair_open(PUT);
    uint8_t bytes[17];
    void *buffers[18];
    bmi_size_t sizes[18];
    for (unsigned i = 0; i < 18; i++) {
        buffers[i] = bytes + (i < 17 ? i : 0);
        sizes[i] = i < 17 ? 1 : 0;
    }
    struct bmi_segments memory = {.buffers = buffers, .sizes = sizes, .count = 18, .left = 17};
    struct bmi_region regions[16];
    uint32_t count = 99;
    void *handle;
    CU_ASSERT_EQUAL(PUT->expose(ACCEPTOR->link, &memory, regions, &count, &handle), -EMSGSIZE);
    sizes[16] = 0; /* empty segments take no place */
    memory.left = 16;
    CU_ASSERT_EQUAL(PUT->expose(ACCEPTOR->link, &memory, regions, &count, &handle), 0);
    CU_ASSERT_EQUAL(count, 16);
    fake_pair_close();
}

static void test_end_with_transfers(void)
{
    struct scene scenes[2];
    scene_open(&scenes[0], PUT);
    scene_make(&scenes[1], false);
    scenes[1].number = 2;
    bmi__loop_hold(PUT, BMI__LOOP_FROM_DIALLER, 10);
    scene_transfer(&scenes[0]);
    scene_transfer(&scenes[1]);
    fake_drive(100);
    bmi__loop_cut(PUT, ECONNRESET);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "done:1:-104 done:2:-104 down:-104");
    PUT->release(ACCEPTOR->gone, scenes[0].handle, true); /* the link's memory is still there */
    fake_pair_close();
}

CU_TestInfo loop_memory_tests[] = {
    {"tables", test_tables},
    {"put, get", test_move},
    {"a put before a frame", test_put_before_frame},
    {"bad regions", test_bad_regions},
    {"part of a region", test_part_of_a_region},
    {"regions of another link", test_regions_of_another_link},
    {"release in mid-transfer", test_release_in_mid_transfer},
    {"wrong direction", test_wrong_direction},
    {"failures on demand", test_failures_on_demand},
    {"list too long", test_list_too_long},
    {"end with transfers", test_end_with_transfers},
    CU_TEST_INFO_NULL,
};
