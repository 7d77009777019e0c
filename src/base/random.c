/* Philox4x32-10; constants from the paper named in random.h. */
#include <lockstep/random.h>
#include <math.h>

static const uint32_t MULTIPLIER_0 = 0xD2511F53, MULTIPLIER_1 = 0xCD9E8D57;
static const uint32_t WEYL_0 = 0x9E3779B9, WEYL_1 = 0xBB67AE85;

void ls_random_u32x4(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]) {
    if (!out)
        return;
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0;
        uint64_t p1 = (uint64_t)MULTIPLIER_1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void ls_random_uniform4(uint64_t seed, uint64_t stream, uint64_t counter, float out[4]) {
    uint32_t bits[4];
    ls_random_u32x4(seed, stream, counter, bits);
    for (int i = 0; out && i < 4; i++)
        out[i] = (float)(bits[i] >> 8) * 0x1p-24f;
}

void ls_random_normal4(uint64_t seed, uint64_t stream, uint64_t counter, float out[4]) {
    uint32_t bits[4];
    ls_random_u32x4(seed, stream, counter, bits);
    for (int i = 0; out && i < 4; i += 2) {
        double u = ((double)bits[i] + 1) * 0x1p-32; /* (0, 1]: the logarithm is finite */
        double angle = (double)bits[i + 1] * 0x1p-32 * 6.283185307179586;
        double radius = sqrt(-2 * log(u));
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

uint64_t ls_random_stream(const char *name) {
    uint64_t hash = 0xcbf29ce484222325;
    if (!name)
        return 0;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        hash = (hash ^ *p) * 0x100000001b3;
    return hash;
}
