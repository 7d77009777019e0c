/* A device that computes nothing. Memory that it hands out is never touched, so it takes no room, and every
 * operation returns at once and leaves its results as they are: a whole training step on it tells what the
 * step on a real device would allocate, for a model of any size. */
#ifndef LS_DEVICE_DRY_H
#define LS_DEVICE_DRY_H

#include "device/device.h"

/* Sizes that are the kernels' own (packed factors, what attention saves) and what it lacks are `real`'s, which
 * must outlive it. */
ls_status ls__device_dry(ls_device **device, ls_device *real);
/* Bytes handed out and not given back. */
size_t ls__device_dry_bytes(const ls_device *device);

#endif
