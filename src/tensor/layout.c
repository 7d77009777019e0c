/* The two layouts of images. Operations on images leave their results channels last, and ask for their
 * inputs that way; everything else asks for plain data. A tensor is converted at most once each way,
 * so that a chain of convolution, normalisation, activation and pooling is not converted inside. */
#include "tensor/tensor.h"

bool ls__tensor_one_layout(const ls_tensor *tensor) {
    return tensor->dims != 4 || tensor->shape[1] == 1 || tensor->shape[2] * tensor->shape[3] == 1;
}

ls_status ls__tensor_convert(const ls_tensor *tensor, ls_device *device, const void *from,
                             ls__layout to_layout, void *to, bool accumulate) {
    const size_t permutation[] = {0, 2, 1};
    size_t channels = tensor->shape[1], pixels = tensor->shape[2] * tensor->shape[3];
    size_t plain[] = {tensor->shape[0], channels, pixels};
    size_t last[] = {tensor->shape[0], pixels, channels};
    return device->table->permute(device, tensor->dtype, 3,
                                  to_layout == LS__CHANNELS_LAST ? plain : last, permutation, from,
                                  to, accumulate);
}

void *ls__tensor_data_in(ls_step *step, ls_tensor *tensor, ls__layout layout) {
    if (tensor->layout == layout || ls__tensor_one_layout(tensor))
        return tensor->data;
    if (tensor->twin)
        return tensor->twin;
    void *twin = ls__step_alloc(step, tensor->count * ls_dtype_size(tensor->dtype));
    if (!twin)
        return NULL;
    ls_status status = ls__tensor_convert(tensor, step->device, tensor->data, layout, twin, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!tensor->parameter) /* its value changes, and it outlives the step */
        tensor->twin = twin;
    return twin;
}

bool ls__tensor_make_plain(ls_step *step, ls_tensor *tensor) {
    if (tensor->layout == LS__PLAIN)
        return true;
    void *plain = ls__tensor_data_in(step, tensor, LS__PLAIN);
    if (!plain)
        return false;
    tensor->twin = tensor->data;
    tensor->data = plain;
    tensor->layout = LS__PLAIN;
    return true;
}
