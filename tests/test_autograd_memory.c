/* The arena: equal addresses, no growth, nothing lost or touched when memory runs out. */
#include "autograd_check.h"

#include "tensor/arena.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

/* --- a device that counts, and fails at one allocation --- */

static struct {
    const ls__device_table *original;
    ls__device_table table;
    size_t allocations, fail_at, held; /* fail_at 0: never */
    bool stuck;                        /* nothing can be taken */
} counting;

static ls_status counted_alloc(ls_device *device, size_t bytes, void **memory) {
    if (++counting.allocations == counting.fail_at || counting.stuck)
        return ls__fail(LS_ERR_MEMORY, "device: no memory for %zu bytes", bytes);
    LS_TRY(counting.original->alloc(device, bytes, memory));
    memset(*memory, 0xFF, bytes);
    counting.held++;
    return LS_OK;
}

static void counted_free(ls_device *device, void *memory) {
    counting.held -= memory != NULL;
    counting.original->free(device, memory);
}

static int set_up(void **state) {
    ls_device *device = NULL;
    check_status(ls_device_cpu(&device, 1));
    memset(&counting, 0, sizeof counting);
    counting.original = device->table;
    counting.table = *device->table;
    counting.table.alloc = counted_alloc;
    counting.table.free = counted_free;
    device->table = &counting.table;
    *state = device;
    return 0;
}

static int tear_down(void **state) {
    ls_device *device = *state;
    size_t held = counting.held;
    device->table = counting.original;
    ls_device_destroy(device);
    return held == 0 ? 0 : -1;
}

/* --- the arena alone --- */

static void test_arena_aligns_and_separates(void **state) {
    ls__arena *arena = NULL;
    check_status(ls__arena_create(&arena, *state));
    static const size_t sizes[] = {0, 1, 63, 64, 65, 300 << 10, 7, 1 << 20, 3};
    char *memory[9];
    for (size_t i = 0; i < 9; i++) {
        void *taken = NULL;
        check_status(ls__arena_alloc(arena, sizes[i], &taken));
        assert_int_equal((uintptr_t)taken % 64, 0);
        memory[i] = taken;
        memset(taken, (int)i, sizes[i]);
    }
    for (size_t i = 0; i < 9; i++)
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(memory[i][j], i);
    ls__arena_destroy(arena);
}

static void test_arena_refuses_impossible_sizes(void **state) {
    ls__arena *arena = NULL;
    check_status(ls__arena_create(&arena, *state));
    void *memory = NULL;
    assert_int_equal(ls__arena_alloc(arena, SIZE_MAX, &memory), LS_ERR_MEMORY);
    assert_int_equal(ls__arena_alloc(arena, SIZE_MAX - 63, &memory), LS_ERR_MEMORY);
    assert_int_equal(ls__arena_alloc(arena, SIZE_MAX / 3, &memory), LS_ERR_MEMORY);
    assert_int_equal(counting.held, 0);
    check_status(ls__arena_alloc(arena, 8, &memory));
    ls__arena_destroy(arena);
}

/* A failing reset leaves an arena that works again. */
static void test_arena_survives_a_failing_reset(void **state) {
    ls__arena *arena = NULL;
    void *memory = NULL;
    check_status(ls__arena_create(&arena, *state));
    for (size_t i = 0; i < 3; i++)
        check_status(ls__arena_alloc(arena, 1 << 20, &memory));
    check_status(ls__arena_reset(arena));
    check_status(ls__arena_alloc(arena, 4 << 20, &memory)); /* fits none of the three */
    assert_true(counting.held >= 3);
    counting.fail_at = counting.allocations + 1;
    assert_int_equal(ls__arena_reset(arena), LS_ERR_MEMORY);
    assert_int_equal(counting.held, 0);
    check_status(ls__arena_reset(arena));
    check_status(ls__arena_alloc(arena, 1 << 20, &memory));
    memset(memory, 1, 1 << 20);
    ls__arena_destroy(arena);
}

/* Sizes that do not fit the chunks of the steps before: one chunk takes the place of all, once, and is
 * filled from then on. */
static void test_arena_of_changing_sizes_becomes_one_chunk(void **state) {
    ls__arena *arena = NULL;
    void *memory = NULL, *again = NULL;
    check_status(ls__arena_create(&arena, *state));
    for (size_t i = 0; i < 3; i++)
        check_status(ls__arena_alloc(arena, 1 << 20, &memory));
    check_status(ls__arena_reset(arena));
    check_status(ls__arena_alloc(arena, 4 << 20, &memory));
    assert_true(counting.held > 1);
    check_status(ls__arena_reset(arena));
    assert_int_equal(counting.held, 1);
    size_t allocations = counting.allocations;
    check_status(ls__arena_alloc(arena, 3 << 20, &memory));
    check_status(ls__arena_reset(arena));
    check_status(ls__arena_alloc(arena, 4 << 20, &again));
    assert_ptr_equal(again, memory);
    assert_int_equal(counting.allocations, allocations);
    ls__arena_destroy(arena);
}

/* A rewind keeps the chunks that were begun after the mark: running a part again takes nothing. */
static void test_arena_rewinds_over_chunks(void **state) {
    ls__arena *arena = NULL;
    void *memory[2][3];
    ls__arena_mark mark;
    size_t allocations = 0;
    check_status(ls__arena_create(&arena, *state));
    for (int round = 0; round < 2; round++) {
        ls__arena_get_mark(arena, &mark); /* of an arena that holds nothing */
        for (size_t i = 0; i < 3; i++)
            check_status(ls__arena_alloc(arena, (1 + i) << 20, &memory[round][i]));
        ls__arena_rewind(arena, &mark);
        if (round == 0)
            allocations = counting.allocations;
    }
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
    assert_true(allocations > 1);
    assert_int_equal(counting.allocations, allocations);
    ls__arena_destroy(arena);
}

/* What is released goes to the next of its size; a rewind frees what came after the mark, and takes
 * back what was released since. */
static void test_arena_releases_and_rewinds(void **state) {
    ls__arena *arena = NULL;
    void *a, *b, *c, *d;
    ls__arena_mark mark;
    check_status(ls__arena_create(&arena, *state));
    check_status(ls__arena_alloc(arena, 1000, &a));
    check_status(ls__arena_alloc(arena, 2000, &b));
    ls__arena_release(arena, a, 1000);
    check_status(ls__arena_alloc(arena, 2000, &c));
    assert_true(c != a && c != b);
    check_status(ls__arena_alloc(arena, 999, &d));
    assert_ptr_equal(d, a);
    size_t peak = ls__arena_peak(arena);
    for (int round = 0; round < 3; round++) {
        ls__arena_get_mark(arena, &mark);
        ls__arena_release(arena, a, 1000);
        check_status(ls__arena_alloc(arena, 1000, &d));
        assert_ptr_equal(d, a);
        check_status(ls__arena_alloc(arena, 1 << 20, &c)); /* another chunk */
        memset(c, 1, 1 << 20);
        ls__arena_release(arena, c, 1 << 20);
        ls__arena_rewind(arena, &mark);
        check_status(ls__arena_alloc(arena, 1000, &d));
        assert_true(d != a);
        memset(b, 2, 2000);
        ls__arena_rewind(arena, &mark);
    }
    assert_true(ls__arena_peak(arena) < peak + (1 << 20) + 4096);
    check_status(ls__arena_reset(arena));
    check_status(ls__arena_alloc(arena, 64, &a));
    ls__arena_destroy(arena);
}

/* --- steps --- */

enum { BATCH = 4, TIME = 32, WIDTH = 64, VOCAB = 100 };

struct net {
    struct ls_parameter p[4]; /* table (V, C), weight (3C, C), gain (C), kernel (8, 1, 3, 3) */
    float *storage[4];
};

static void net_create(struct net *net, ls_device *device) {
    static const size_t shapes[4][4] = {{VOCAB, WIDTH}, {3 * WIDTH, WIDTH}, {WIDTH}, {8, 1, 3, 3}};
    static const size_t dims[4] = {2, 2, 1, 4};
    for (size_t i = 0; i < 4; i++) {
        size_t count = check_count(shapes[i], dims[i]);
        net->storage[i] = check_random(i, count, true);
        net->p[i] = (struct ls_parameter){.name = (char *)"p", .device = device, .role = LS_WEIGHT};
        net->p[i].value = (ls_tensor){.dtype = LS_F32,
                                      .dims = dims[i],
                                      .count = count,
                                      .data = net->storage[i],
                                      .parameter = &net->p[i]};
        memcpy(net->p[i].value.shape, shapes[i], sizeof shapes[i]);
    }
}

static void net_destroy(struct net *net, ls_device *device) {
    for (size_t i = 0; i < 4; i++) {
        if (net->p[i].gradient)
            device->table->free(device, net->p[i].gradient);
        free(net->storage[i]);
    }
}

static ls_status begin(ls_step *step, size_t batch) {
    return ls_step_begin(step, &(ls_step_mode){.training = true, .sample_count = batch});
}

/* Some of everything that takes memory, forward and back; `batch` rows. */
static ls_status compute(ls_step *step, struct net *net, size_t batch, float **first,
                         float **last) {
    static int32_t tokens[BATCH * TIME];
    ls_tensor *ids = ls_tensor_wrap(step, tokens, LS_I32, (size_t[]){batch, TIME}, 2);
    ls_tensor *x = ls_embedding(step, &net->p[0].value, ids); /* (B, T, C) */
    *first = ls_tensor_data(x);
    ls_tensor *qkv = ls_linear(step, x, &net->p[1].value, NULL);
    x = ls_add(step, x, ls_causal_attention(step, qkv, 4));
    x = ls_dropout(step, x, 0.1F, 1);
    x = ls_layer_norm(step, x, &net->p[2].value, &net->p[2].value, 1e-5F);
    ls_tensor *image = ls_reshape(step, x, (size_t[]){batch, 1, TIME, WIDTH}, 4);
    image =
        ls_relu(step, ls_conv2d(step, image, &net->p[3].value, NULL, (ls_conv2d_options){1, 1}));
    image = ls_max_pool2d(step, image, (ls_pool2d_options){.kernel = 2});
    ls_tensor *halves[] = {ls_slice(step, image, 1, 0, 4), ls_slice(step, image, 1, 4, 8)};
    image = ls_softmax(step, ls_concat(step, halves, 2, 0));
    ls_tensor *error = ls_squared_error(step, image, ls_scale(step, image, 0.5F));
    ls_tensor *logits = ls_linear(step, x, &net->p[0].value, NULL);
    ls_tensor *loss = ls_add(step, ls_cross_entropy(step, logits, ids), error);
    *last = ls_tensor_data(loss);
    return ls_backward(step, loss, NULL, NULL);
}

static ls_status run(ls_step *step, struct net *net, size_t batch, float **first, float **last) {
    LS_TRY(begin(step, batch));
    return compute(step, net, batch, first, last);
}

static void test_equal_steps_get_equal_addresses_and_take_nothing(void **state) {
    ls_device *device = *state;
    ls_step *step = NULL;
    struct net net;
    float *first[5], *last[5];
    net_create(&net, device);
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(run(step, &net, BATCH, &first[0], &last[0]));
    size_t peak = ls_step_peak_bytes(step);
    assert_true(peak > 1 << 20); /* several chunks, or this test shows nothing */
    float loss = *last[0], gradient = net.p[1].gradient[5];
    size_t allocations = counting.allocations;
    for (size_t i = 1; i < 5; i++) {
        /* a smaller batch between them moves nothing either */
        if (i > 1)
            check_status(run(step, &net, 1 + i % 3, &first[i], &last[i]));
        check_status(run(step, &net, BATCH, &first[i], &last[i]));
        assert_ptr_equal(first[i], first[0]);
        assert_ptr_equal(last[i], last[0]);
        assert_memory_equal(last[i], &loss, sizeof loss); /* and the bits are the same */
        assert_memory_equal(&net.p[1].gradient[5], &gradient, sizeof gradient);
    }
    assert_int_equal(counting.allocations, allocations);
    assert_int_equal(ls_step_peak_bytes(step), peak);
    ls_step_destroy(step);
    net_destroy(&net, device);
}

/* Three steps, with the n-th allocation failing, for every n there is: the step reports it, and the
 * next one works. tear_down looks whether all memory came back. */
static void test_every_failing_allocation(void **state) {
    ls_device *device = *state;
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        ls_step *step = NULL;
        struct net net;
        float *first, *last;
        counting.allocations = 0;
        counting.fail_at = n;
        net_create(&net, device);
        check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
        size_t failed = 0;
        for (size_t i = 0; i < 3; i++) {
            ls_status status = run(step, &net, BATCH, &first, &last);
            if (status == LS_OK)
                continue;
            assert_int_equal(status, LS_ERR_MEMORY);
            assert_int_equal(ls_step_status(step), LS_ERR_MEMORY);
            assert_non_null(strstr(ls_error_text(), "no memory"));
            failed++;
        }
        bool reached = counting.allocations >= n;
        assert_int_equal(failed, reached ? 1 : 0);
        ls_step_destroy(step);
        net_destroy(&net, device);
        if (!reached)
            break;
        failures++;
    }
    assert_true(failures >= 6); /* chunks of the first step, gradients */
}

/* The arena has room for `left` bytes and cannot grow: for all sizes of `left` that are too few, so that
 * (nearly) every place that takes memory is the first to fail once; `records` or elements. */
static void fail_everywhere(ls_device *device, bool records) {
    enum { ROOM = 8 << 20, PLACES = 100 };
    ls_step *step = NULL;
    struct net net;
    float *first, *last;
    net_create(&net, device);
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(run(step, &net, BATCH, &first, &last));
    ls__arena **place = records ? &step->records : &step->arena;
    size_t need = ls__arena_peak(*place);
    assert_true(need < ROOM);
    ls__arena_destroy(
        *place); /* for one whose memory can be made to fail, with one chunk of ROOM */
    *place = NULL;
    check_status(ls__arena_create(place, device));
    ls__arena *arena = *place;
    void *memory = NULL;
    check_status(ls__arena_alloc(arena, ROOM, &memory));
    size_t each = records ? 64 : need / PLACES / 64 * 64;
    for (size_t left = 0;; left += each) {
        check_status(begin(step, BATCH));
        check_status(ls__arena_alloc(arena, ROOM - left, &memory));
        counting.stuck = true;
        ls_status status = compute(step, &net, BATCH, &first, &last);
        counting.stuck = false;
        if (left >= need) {
            check_status(status);
            break;
        }
        assert_int_equal(status, LS_ERR_MEMORY);
        assert_int_equal(ls_step_status(step), LS_ERR_MEMORY);
    }
    ls_step_destroy(step);
    net_destroy(&net, device);
}

static void test_elements_run_out_anywhere(void **state) {
    fail_everywhere(*state, false);
}

static void test_records_run_out_anywhere(void **state) {
    fail_everywhere(*state, true);
}

/* Under AddressSanitizer a tensor of the step before, and the byte behind a tensor, are poisoned. */
static void test_stale_memory_is_poisoned(void **state) {
#if defined(__SANITIZE_ADDRESS__)
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = *state}));
    check_status(ls_step_begin(step, NULL));
    ls_tensor *x = ls_tensor_new(step, LS_F32, (size_t[]){16}, 1);
    char *data = ls_tensor_data(x);
    assert_false(__asan_address_is_poisoned(data + 63));
    assert_true(__asan_address_is_poisoned(data + 64));
    assert_false(__asan_address_is_poisoned(x));
    check_status(ls_step_begin(step, NULL));
    assert_true(__asan_address_is_poisoned(data));
    assert_true(__asan_address_is_poisoned(x));
    ls_step_destroy(step);
#else
    (void)state;
    skip();
#endif
}

#define WITH_DEVICE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DEVICE(test_arena_aligns_and_separates),
        WITH_DEVICE(test_arena_refuses_impossible_sizes),
        WITH_DEVICE(test_arena_survives_a_failing_reset),
        WITH_DEVICE(test_arena_releases_and_rewinds),
        WITH_DEVICE(test_arena_of_changing_sizes_becomes_one_chunk),
        WITH_DEVICE(test_arena_rewinds_over_chunks),
        WITH_DEVICE(test_equal_steps_get_equal_addresses_and_take_nothing),
        WITH_DEVICE(test_every_failing_allocation),
        WITH_DEVICE(test_elements_run_out_anywhere),
        WITH_DEVICE(test_records_run_out_anywhere),
        WITH_DEVICE(test_stale_memory_is_poisoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
