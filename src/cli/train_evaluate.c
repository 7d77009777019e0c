/* Evaluation on all ranks together. The validation split is cut into units of a fixed size; ranks take
 * contiguous units, every unit's sums travel by themselves, and all ranks add them up in the order of the
 * units. So the result does not depend on how many ranks there are, and padding weighs nothing. */
#include "base/error.h"
#include "cli/train.h"
#include "reducer/agree.h"
#include <stdlib.h>

enum { IMAGE_UNIT = 250, TOKENS_PER_UNIT = 2048 };

/* What one unit adds: sum of losses, targets that count, targets hit. */
typedef struct unit_sums {
    double loss, weight, correct;
} unit_sums;

typedef struct buffers {
    uint64_t *samples;
    void *input;
    int32_t *target;
} buffers;

static ls_status run_unit(ls__train *train, const buffers *b, uint64_t first, size_t count,
                          unit_sums *sums) {
    for (size_t i = 0; i < count; i++)
        b->samples[i] = first + i;
    LS_TRY(ls_dataset_read(train->dataset, LS_VALIDATION, b->samples, count, b->input, b->target,
                           &sums->weight));
    const ls_step_mode mode = {.compute = train->dtype};
    LS_TRY(ls_step_begin(train->step, &mode));
    ls_tensor *x, *y;
    ls__train_wrap(train, b->input, b->target, count, &x, &y);
    size_t correct = 0;
    ls_tensor *loss = ls_model_loss(train->step, train->model, x, y, &correct);
    LS_TRY(ls_step_status(train->step));
    sums->loss = ls_tensor_item(loss);
    sums->correct = (double)correct;
    return LS_OK;
}

static ls_status run_units(ls__train *train, size_t unit, size_t units, unit_sums *sums) {
    size_t elements = 1;
    for (size_t d = 0; d < train->sample_dims; d++)
        elements *= train->sample_shape[d];
    size_t count = ls_dataset_count(train->dataset, LS_VALIDATION);
    buffers b = {malloc(unit * sizeof(uint64_t)), malloc(unit * elements * sizeof(float)),
                 malloc(unit * (train->tokens ? elements : 1) * sizeof(int32_t))};
    ls_status status = LS_OK;
    if (!b.samples || !b.input || !b.target)
        status = ls__fail(LS_ERR_MEMORY, "evaluation: no memory for %zu samples", unit);
    size_t ranks = (size_t)train->ranks, rank = (size_t)train->rank;
    for (size_t u = rank * units / ranks; status == LS_OK && u < (rank + 1) * units / ranks; u++) {
        size_t first = u * unit, left = count - first;
        status = run_unit(train, &b, first, left < unit ? left : unit, &sums[u]);
    }
    free(b.samples);
    free(b.input);
    free(b.target);
    return status;
}

size_t ls__train_evaluation_unit(const ls_dataset *dataset) {
    size_t shape[3], unit = IMAGE_UNIT, count = ls_dataset_count(dataset, LS_VALIDATION);
    ls_dataset_sample_shape(dataset, shape);
    if (ls_dataset_get_kind(dataset) == LS_TOKENS)
        unit = TOKENS_PER_UNIT / shape[0];
    unit = unit < count ? unit : count;
    return unit ? unit : 1;
}

ls_status ls__train_evaluate(ls__train *train, double *loss, double *accuracy) {
    size_t count = ls_dataset_count(train->dataset, LS_VALIDATION);
    size_t unit = ls__train_evaluation_unit(train->dataset);
    size_t units = (count + unit - 1) / unit;
    unit_sums *sums = calloc(units, sizeof *sums);
    ls_status status = sums ? run_units(train, unit, units, sums)
                            : ls__fail(LS_ERR_MEMORY, "evaluation: no memory for %zu units", units);
    status = ls__agree(train->world, status);
    /* Each unit is non-zero on one rank only, so this sum is exact. */
    if (status == LS_OK)
        status = ls_all_reduce(train->world, sums, sums, units * 3, LS_F64, LS_SUM);
    unit_sums total = {0};
    for (size_t u = 0; status == LS_OK && u < units; u++) {
        total.loss += sums[u].loss;
        total.weight += sums[u].weight;
        total.correct += sums[u].correct;
    }
    free(sums);
    *loss = total.loss / total.weight;
    *accuracy = total.correct / total.weight;
    return status;
}
