/* Between conv2d.c, which says what the arguments are, the kernel for few input values, and oneDNN's own
 * convolutions. */
#ifndef LS_DEVICE_CPU_CONV2D_H
#define LS_DEVICE_CPU_CONV2D_H

#include "device/cpu/cpu.h"

/* True where the narrow kernel is the faster one. It makes no dx. */
bool ls__conv2d_is_narrow(const ls__conv2d *shape);
ls_status ls__conv2d_narrow_forward(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *w, const float *bias, float *y);
ls_status ls__conv2d_narrow_backward(ls_device *device, const ls__conv2d *shape, const float *x,
                                     const float *y, const float *dy, float *dw, bool accumulate_dw,
                                     float *dbias, bool accumulate_dbias);

/* True where oneDNN's convolution is the faster one, forward and to the input; and to the weights. None
 * knows relu. Follows from shape and instruction set. */
bool ls__conv2d_is_direct(const ls__conv2d *shape);
bool ls__conv2d_weights_are_direct(const ls__conv2d *shape);
ls_status ls__conv2d_direct_forward(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *w, const float *bias, float *y);
ls_status ls__conv2d_direct_input(ls_device *device, const ls__conv2d *shape, const float *w,
                                  const float *dy, float *dx, bool accumulate);
/* dw is wanted, dbias may be NULL. */
ls_status ls__conv2d_direct_weights(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *dy, float *dw, bool accumulate_dw, float *dbias,
                                    bool accumulate_dbias);

#endif
