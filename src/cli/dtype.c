#include "cli/commands.h"
#include <stdio.h>

static const char *const names[] = {"f32", "bf16"};

const char *ls__cli_dtype_name(ls_dtype dtype) {
    return names[dtype == LS_BF16];
}

ls_dtype ls__cli_dtype_choose(const char *command, const ls_device *device, int wanted, bool tell) {
    ls_dtype dtype = wanted == 1 ? LS_BF16 : LS_F32;
    const char *lacks = ls_device_lacks(device, dtype);
    if (!lacks)
        return dtype;
    if (tell)
        fprintf(stderr, "%s: --dtype %s needs %s; computing in f32\n", command, names[wanted],
                lacks);
    return LS_F32;
}
