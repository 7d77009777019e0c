/* A tensor's elements in BF16, beside the F32 ones: made when a product first asks, and kept for the next
 * product and for its backward. */
#include "tensor/tensor.h"

void *ls__tensor_half(ls_step *step, ls_tensor *tensor) {
    if (tensor->half)
        return tensor->half;
    void *half = ls__step_alloc(step, tensor->count * sizeof(uint16_t));
    if (!half)
        return NULL;
    ls_status status = step->device->table->narrow(step->device, LS_BF16, 1, tensor->count,
                                                   tensor->data, half, NULL, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!tensor->parameter) /* its value changes, and it outlives the step */
        tensor->half = half;
    return half;
}
