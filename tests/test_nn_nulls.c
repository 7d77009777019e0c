/* Handles that are NULL are an error, or nothing, in every function of liblockstep that takes one. */
#include <lockstep/lockstep.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_nulls(void **state) {
    (void)state;
    size_t first = 7, count = 7, shape[3];
    assert_int_equal(ls_ddp_begin(NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_ddp_backward(NULL, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_ddp_skip(NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_ddp_wait(NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_ddp_verify(NULL), LS_ERR_ARGUMENT);
    assert_true(ls_ddp_loss(NULL) == 0);
    ls_ddp_shards(NULL, &first, &count);
    assert_true(first == 0 && count == 0);
    assert_int_equal(ls_optimizer_step(NULL, 1, NULL), LS_ERR_ARGUMENT);
    assert_null(ls_model_forward(NULL, NULL, NULL));
    assert_null(ls_model_spec(NULL));
    assert_null(ls_model_parameter(NULL, 0));
    assert_true(ls_model_parameter_count(NULL) == 0 && ls_model_element_count(NULL) == 0);
    assert_true(ls_model_hash(NULL) == 0);
    assert_null(ls_parameter_name(NULL));
    assert_null(ls_parameter_gradient(NULL));
    assert_true(ls_dataset_count(NULL, LS_TRAIN) == 0 && ls_dataset_classes(NULL) == 0);
    assert_true(ls_dataset_sample_shape(NULL, shape) == 0);
    assert_null(ls_dataset_vocabulary(NULL));
    assert_true(ls_loader_batches_per_epoch(NULL) == 0);
    assert_true(ls_safetensors_count(NULL) == 0);
    assert_null(ls_safetensors_get(NULL, 0));
    assert_null(ls_safetensors_find(NULL, "x"));
    assert_null(ls_safetensors_metadata(NULL, "x"));
}

static void test_nulls_without_a_status(void **state) {
    (void)state;
    float four[4] = {7};
    assert_int_equal(ls_parameter_role(NULL), 0);
    assert_null(ls_parameter_value(NULL));
    assert_true(ls_tensor_count(ls_parameter_value(NULL)) == 0);
    assert_int_equal(ls_dataset_get_kind(NULL), 0);
    assert_true(ls_schedule_rate(NULL, 3) == 0);
    assert_true(ls_random_stream(NULL) == 0);
    ls_random_u32x4(1, 2, 3, NULL);
    ls_random_uniform4(1, 2, 3, NULL);
    ls_random_normal4(1, 2, 3, NULL);
    ls_random_uniform4(1, 2, 3, four);
    assert_true(four[0] < 1);
}

/* Places for results that are NULL. */
static void test_no_place_for_results(void **state) {
    (void)state;
    ls_dataset *data;
    ls_ddp_shards(NULL, NULL, NULL);
    ls_local_sgd_shards(NULL, NULL, NULL);
    assert_null(ls_residual_layer_norm(NULL, NULL, NULL, NULL, NULL, NULL, 1e-5F, NULL));
    assert_non_null(strstr(ls_error_text(), "residual_layer_norm: sum is NULL"));
    assert_int_equal(ls_dataset_open(&data, "text:/proc/self/exe", 8), LS_OK);
    assert_true(ls_dataset_sample_shape(data, NULL) == 1);
    ls_dataset_close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nulls),
                                       cmocka_unit_test(test_nulls_without_a_status),
                                       cmocka_unit_test(test_no_place_for_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
