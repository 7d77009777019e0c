/* libFuzzer target: any bytes as an IDX file, plain or gzip. Built with -DLOCKSTEP_FUZZ=ON and clang. */
#include "data/idx.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    for (size_t dims = 1; dims <= 3; dims += 2) {
        ls__idx idx;
        if (ls__idx_parse(&idx, bytes, size, dims, "fuzz") == LS_OK) {
            size_t product = 1;
            for (size_t i = 0; i < dims; i++)
                product *= idx.shape[i];
            volatile unsigned char last = idx.size ? idx.data[idx.size - 1] : 0;
            (void)last;
            if (product != idx.size)
                abort();
        }
        ls__idx_free(&idx);
    }
    return 0;
}
