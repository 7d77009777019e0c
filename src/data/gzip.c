#include "data/gzip.h"

#include "base/error.h"
#include <stdlib.h>

bool ls__gunzip_looks_like(const unsigned char *bytes, size_t size) {
    return size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

#ifdef LOCKSTEP_WITH_ZLIB

#include <zlib.h>

/* zlib counts in unsigned int: larger inputs and outputs go in pieces. */
static const size_t PIECE = 1u << 30;

struct ls__gunzip {
    z_stream z;
    size_t left; /* bytes not yet given to zlib */
    bool member_done;
    const char *name;
};

ls_status ls__gunzip_open(ls__gunzip **gunzip, const unsigned char *bytes, size_t size,
                          const char *name) {
    ls__gunzip *g = calloc(1, sizeof *g);
    if (!g)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to unpack it", name);
    g->z.next_in = (z_const Bytef *)bytes;
    g->left = size;
    g->name = name;
    if (inflateInit2(&g->z, 15 + 16) != Z_OK) { /* largest window; + 16: gzip, not zlib */
        free(g);
        return ls__fail(LS_ERR_MEMORY, "%s: zlib has no memory to unpack it", name);
    }
    *gunzip = g;
    return LS_OK;
}

static ls_status inflate_some(ls__gunzip *g, unsigned char *out, size_t want, size_t *got) {
    z_stream *z = &g->z;
    if (z->avail_in == 0) {
        z->avail_in = (uInt)(g->left < PIECE ? g->left : PIECE);
        g->left -= z->avail_in;
    }
    z->next_out = out;
    z->avail_out = (uInt)(want < PIECE ? want : PIECE);
    uInt room = z->avail_out;
    int result = inflate(z, Z_NO_FLUSH);
    *got = room - z->avail_out;
    if (result == Z_STREAM_END) {
        g->member_done = true;
        return LS_OK;
    }
    if (result == Z_BUF_ERROR || (result == Z_OK && *got == 0 && z->avail_in + g->left == 0))
        return ls__fail(LS_ERR_FORMAT, "%s: the gzip data is cut off", g->name);
    if (result == Z_MEM_ERROR)
        return ls__fail(LS_ERR_MEMORY, "%s: zlib has no memory to unpack it", g->name);
    if (result != Z_OK)
        return ls__fail(LS_ERR_FORMAT, "%s: the gzip data is corrupt: %s", g->name,
                        z->msg ? z->msg : "no reason given");
    return LS_OK;
}

ls_status ls__gunzip_read(ls__gunzip *gunzip, unsigned char *out, size_t want, size_t *got) {
    *got = 0;
    while (*got < want) {
        if (gunzip->member_done) {
            if (gunzip->z.avail_in + gunzip->left == 0)
                break;
            inflateReset(&gunzip->z);
            gunzip->member_done = false;
        }
        size_t more;
        LS_TRY(inflate_some(gunzip, out + *got, want - *got, &more));
        *got += more;
    }
    return LS_OK;
}

void ls__gunzip_close(ls__gunzip *gunzip) {
    if (gunzip)
        inflateEnd(&gunzip->z);
    free(gunzip);
}

#else

ls_status ls__gunzip_open(ls__gunzip **gunzip, const unsigned char *bytes, size_t size,
                          const char *name) {
    (void)gunzip, (void)bytes, (void)size;
    return ls__fail(LS_ERR_UNSUPPORTED,
                    "%s: is gzip, but this build has no zlib; unpack it with gunzip", name);
}

ls_status ls__gunzip_read(ls__gunzip *gunzip, unsigned char *out, size_t want, size_t *got) {
    (void)gunzip, (void)out, (void)want, (void)got;
    return ls__fail(LS_ERR_UNSUPPORTED, "this build has no zlib");
}

void ls__gunzip_close(ls__gunzip *gunzip) {
    (void)gunzip;
}

#endif
