#include "comm/transport.h"

#include "base/clock.h"

ls_status ls__transport_gather(ls__transport *transport, uint64_t number, const void *mine,
                               void *all, size_t bytes, uint64_t deadline) {
    ls__operation gather = {.header = {.magic = LS__HEADER_MAGIC,
                                       .kind = LS__ALL_GATHER,
                                       .dtype = LS_U8,
                                       .sequence = number,
                                       .count = bytes},
                            .send = mine,
                            .recv = all,
                            .count = bytes,
                            .dtype = LS_U8,
                            .deadline = deadline};
    gather.times.begin_ns = ls__now_ns();
    return transport->table->run(transport, &gather);
}
