/* Handles that are NULL are an error, or nothing, in every function of liblockstep that takes one. */
#include <lockstep/lockstep.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nulls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
