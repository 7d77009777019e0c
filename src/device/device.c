/* Devices as seen from outside. */
#include <lockstep/tensor.h>

#include "device/device.h"

void ls_device_destroy(ls_device *device) {
    if (device)
        device->table->destroy(device);
}

const char *ls_device_name(const ls_device *device) {
    return device ? device->table->name : "";
}

const char *ls_device_lacks(const ls_device *device, ls_dtype dtype) {
    return device ? device->table->lacks(device, dtype) : "a device";
}

int ls_device_threads(const ls_device *device) {
    return device ? device->threads : 0;
}
