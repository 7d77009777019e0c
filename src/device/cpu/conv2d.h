/* Between conv2d.c, which says what the arguments are, and the kernel for few input values. */
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

#endif
