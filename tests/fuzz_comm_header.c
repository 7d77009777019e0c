/* libFuzzer target: the header of an operation as it comes from another rank, against one of this rank. */
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

/* Fields that are equal in most inputs, so that every comparison is reached. */
static void read_headers(const uint8_t *bytes, size_t size, ls__header header[2]) {
    memset(header, 0, 2 * sizeof *header);
    header[0].magic = LS__HEADER_MAGIC;
    header[0].kind = LS__ALL_REDUCE;
    if (size > 0 && bytes[0] & 1)
        memcpy(&header[0], bytes + 1, size - 1 < sizeof *header ? size - 1 : sizeof *header);
    header[1] = header[0];
    for (size_t i = 1; i + 1 < size && i < 2 * sizeof *header; i += 2)
        ((unsigned char *)&header[1])[bytes[i] % sizeof *header] = bytes[i + 1];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    ls__header header[2];
    read_headers(bytes, size, header);
    ls_status status = ls__header_compare(&header[0], 0, &header[1], 1);
    require(status == LS_OK || status == LS_ERR_MISMATCH);
    require(status == LS_OK || ls_error_text()[0]);
    /* a magic of its own makes a header wrong even where both have it */
    if (header[0].magic == LS__HEADER_MAGIC)
        require(status == ls__header_compare(&header[1], 1, &header[0], 0) ||
                header[1].magic != LS__HEADER_MAGIC);
    if (status == LS_OK && header[0].magic == header[1].magic)
        require(ls__header_identity(&header[0]) == ls__header_identity(&header[1]));
    const ls__operation operation = {.header = header[1], .root = (int)header[1].root};
    status = ls__operation_fail(LS_ERR_PEER, &operation, 0, "rank %u", header[1].root);
    require(status == LS_ERR_PEER && ls_error_text()[0]);
    return 0;
}
