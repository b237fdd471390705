/* SPDX-License-Identifier: MIT
 * What a caller on a GPU relies on: runs can be captured into a graph and replayed, go to
 * the stream they are given, side by side with others, and give the same bits every time. */
#include "tests/cuda/scene.h"

#include "cli/device.h"

#include <string.h>

enum { SKIPPED = 77, REPLAYS = 3, ROUNDS = 8 };

/* One plain run: what all others must equal. */
static values plain_run(const spec *s)
{
    scene x;
    scene_make(&x, s);
    scene_launch(&x, NULL);
    scene_finish(&x);
    values v = values_like(s, &x.v);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (v.x[which]) memcpy(v.x[which], x.v.x[which], (size_t)slot_size(&v, (slot)which) * sizeof(double));
    if (v.info) memcpy(v.info, x.v.info, (size_t)slot_size(&v, SLOT_INFO) * sizeof *v.info);
    scene_free(&x);
    return v;
}

/* Capture in the strictest mode, which refuses whatever allocates or waits. */
static void check_graph(const spec *s)
{
    values want = plain_run(s);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    scene x;
    scene_make(&x, s);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    scene_launch(&x, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < REPLAYS; i++)
        CUDA(cudaGraphLaunch(replay, stream));
    scene_finish(&x);
    scene_expect_same("replayed graph", &x.v, &want);
    CUDA(cudaGraphExecDestroy(replay));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    scene_free(&x);
    values_free(&want);
}

/* Two streams that do not wait for each other or for the default stream, each with its own arrays. */
static void check_streams(const spec *s)
{
    spec specs[2] = { *s, *s };
    specs[1].seed += 100;
    specs[1].batch = 3;
    values want[2];
    scene x[2];
    cudaStream_t stream[2];
    for (int i = 0; i < 2; i++) {
        want[i] = plain_run(&specs[i]);
        scene_make(&x[i], &specs[i]);
        CUDA(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
    }
    for (int round = 0; round < ROUNDS; round++)
        scene_launch(&x[round % 2], stream[round % 2]);
    for (int i = 0; i < 2; i++) {
        scene_finish(&x[i]);
        scene_expect_same("one of two streams", &x[i].v, &want[i]);
        CUDA(cudaStreamDestroy(stream[i]));
        scene_free(&x[i]);
        values_free(&want[i]);
    }
}

static void check_again(const spec *s)
{
    values want = plain_run(s);
    for (int i = 0; i < REPLAYS; i++) {
        values again = plain_run(s);
        scene_expect_same("the same run again", &again, &want);
        values_free(&again);
    }
    values_free(&want);
}

/* A run belongs to the stream: nothing is written before what the stream waits for has happened. */
static void check_stream_order(const spec *s)
{
    values want = plain_run(s);
    cudaStream_t first, second;
    cudaEvent_t open;
    scene x;
    scene_make(&x, s);
    CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&open));
    /* q arrives on the first stream, late; the run on the second waits for it there. */
    const guard *q = &x.m.array[SLOT_Q];
    CUDA(cudaMemsetAsync(guard_address(q), 0, q->bytes, first));
    for (int i = 0; i < 64; i++)
        CUDA(cudaMemcpyAsync(guard_address(q), q->data, q->bytes, cudaMemcpyHostToDevice, first));
    CUDA(cudaEventRecord(open, first));
    CUDA(cudaStreamWaitEvent(second, open, 0));
    scene_launch(&x, second);
    scene_finish(&x);
    scene_expect_same("after what the stream waited for", &x.v, &want);
    CUDA(cudaEventDestroy(open));
    CUDA(cudaStreamDestroy(first));
    CUDA(cudaStreamDestroy(second));
    scene_free(&x);
    values_free(&want);
}

/* The last device, where there are several: plans and runs follow the thread's current device. */
static void check_device(const spec *s)
{
    values want = plain_run(s);
    CUDA(cudaSetDevice(device_count() - 1));
    values other = plain_run(s);
    CUDA(cudaSetDevice(0));
    scene_expect_same("another device", &other, &want);
    values_free(&other);
    values_free(&want);
}

static void graphs_replay_the_same_bits(void **state) { (void)state, scene_for_all(check_graph); }
static void streams_run_side_by_side(void **state) { (void)state, scene_for_all(check_streams); }
static void runs_wait_for_their_stream(void **state) { (void)state, scene_for_all(check_stream_order); }
static void runs_repeat_their_bits(void **state) { (void)state, scene_for_all(check_again); }
static void devices_are_the_current_one(void **state)
{
    (void)state;
    if (device_count() < 2) skip();
    scene_for_all(check_device);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_replay_the_same_bits), cmocka_unit_test(streams_run_side_by_side),
        cmocka_unit_test(runs_wait_for_their_stream),  cmocka_unit_test(runs_repeat_their_bits),
        cmocka_unit_test(devices_are_the_current_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
