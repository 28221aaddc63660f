/* The convolutional half of LeNet5 on one CPU thread: forward, and the gradients of its four parameters.
 *
 *     x (32, 32) -> convolution 1 -> 6, 5 x 5 -> max-pool 2 -> ReLU    "pooled": (14, 14, 6), channels last
 *                -> convolution 6 -> 16, 5 x 5 -> max-pool 2 -> ReLU   "features": (16, 5, 5), channels first
 *
 * Channels are too few to fill a vector register, so the lanes of a vector are as many images. A group of that many
 * images goes through both layers while it is in the cache, and one pooling window at a time is summed in registers
 * and pooled there. Of every window only one position has a gradient, and it differs between images: the gradient of the
 * second convolution's weight, the one sum where this saves most, takes images one by one and only those positions.
 *
 * A "code" is what the backward pass needs to know of a window: the position 0..3 of its maximum in row-major order,
 * or 4 where ReLU is zero. Ties and NaN are settled as by torch: the first maximum, and NaN above any number.
 *
 * Every sum is taken in a fixed order, so results are the same from call to call.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* at any address */
typedef int32_t masks __attribute__((vector_size(4 * LANES)));
typedef uint8_t codes __attribute__((vector_size(LANES)));

enum {
    SIDE = 32,
    PIXELS = SIDE * SIDE,
    CHANNELS1 = 6,
    CHANNELS2 = 16,
    SIDE1 = 14,                  /* of the pooled first layer */
    ROW1 = SIDE1 * CHANNELS1,    /* floats in one of its rows */
    POOLED = SIDE1 * ROW1,       /* floats of one image there */
    STRIDE1 = 1184,              /* the same up to a multiple of 16 */
    SIDE2 = 5,
    WINDOWS2 = SIDE2 * SIDE2,
    FEATURES = CHANNELS2 * WINDOWS2,
    RUN = 5 * CHANNELS1,         /* a row of a 5 x 5 patch of the pooled layer is contiguous */
    RUN_PADDED = 32,
    VECTORS = 5 * RUN_PADDED / LANES,
    EDGE = 12,                   /* of the second convolution's output with a border of one */
    BLOCK = 4                    /* images at once in the gradient of the second convolution's weight */
};

#define UNROLL _Pragma("GCC unroll 32")

int lenet_lanes(void) { return LANES; }

static inline lanes splat(float v) {
#if LANES == 16
    return (lanes){v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
#elif LANES == 8
    return (lanes){v, v, v, v, v, v, v, v};
#else
    return (lanes){v, v, v, v};
#endif
}

static inline lanes choose(masks which, lanes yes, lanes no) {
    return (lanes)((which & (masks)yes) | (~which & (masks)no));
}

/* The codes of a window as integers. */
static inline masks widened(const uint8_t *code) {
#if LANES == 16 /* GCC 12 converts one by one */
    return (masks)_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)code));
#else
    return __builtin_convertvector(*(const codes *)code, masks);
#endif
}

/* The LANES x LANES transpose: to[i] gets element i of each of the rows from[0], from[stride], ... */
static inline void transpose(const float *const *rows, long offset, lanes *to) {
#if LANES == 16
    lanes r[16], s[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = *(const loose *)(rows[i] + offset);
#define STAGE(from, into, bit, ...)                                                                     \
    UNROLL for (int i = 0; i < 16; i++) if (!(i & bit)) {                                               \
        into[i] = __builtin_shufflevector(from[i], from[i | bit], __VA_ARGS__);                         \
    }
#define SECOND(from, into, bit, ...)                                                                    \
    UNROLL for (int i = 0; i < 16; i++) if (!(i & bit)) {                                               \
        into[i | bit] = __builtin_shufflevector(from[i], from[i | bit], __VA_ARGS__);                   \
    }
    STAGE(r, s, 8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
    SECOND(r, s, 8, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
    STAGE(s, r, 4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    SECOND(s, r, 4, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
    STAGE(r, s, 2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    SECOND(r, s, 2, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
    STAGE(s, r, 1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
    SECOND(s, r, 1, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
    UNROLL for (int i = 0; i < 16; i++) to[i] = r[i];
#else
    for (int i = 0; i < LANES; i++)
        for (int lane = 0; lane < LANES; lane++) ((float *)to)[i * LANES + lane] = rows[lane][offset + i];
#endif
}

/* The images `rows`, `size` values each (a multiple of LANES), as `size` vectors. */
static void to_lanes(const float *const *rows, long size, lanes *to) {
    for (long i = 0; i < size; i += LANES) transpose(rows, i, to + i);
}

/* The reverse, for the first `count` images of a group. */
static void from_lanes(const lanes *from, long size, long count, float *to, long stride) {
    const float *rows[LANES];
    lanes block[LANES];
    for (long i = 0; i < size; i += LANES) {
        for (int k = 0; k < LANES; k++) rows[k] = (const float *)(from + i + k);
        transpose(rows, 0, block);
        for (long image = 0; image < count; image++) *(loose *)(to + image * stride + i) = block[image];
    }
}

/* The maximum of a window and ReLU of it; the code goes to `code` unless that is NULL. */
static inline lanes pool(lanes a, lanes b, lanes c, lanes d, uint8_t *code) {
    const lanes zero = {0};
    const masks first = {0};
    lanes most = a;
    masks above = (b > most) | (b != b);
    masks where = above & (first + 1);
    most = choose(above, b, most);
    above = (c > most) | (c != c);
    where = (above & (first + 2)) | (~above & where);
    most = choose(above, c, most);
    above = (d > most) | (d != d);
    where = (above & (first + 3)) | (~above & where);
    most = choose(above, d, most);
    above = most <= zero;
    if (code) {
        where = (above & (first + 4)) | (~above & where);
        *(codes *)code = __builtin_convertvector(where, codes);
    }
    return choose(above, zero, most);
}

static void first_layer(const lanes *x, const float *weight, const float *bias, lanes *pooled, uint8_t *code) {
    for (int row = 0; row < SIDE1; row++)
        for (int column = 0; column < SIDE1; column++) {
            lanes sum[CHANNELS1][4];
            UNROLL for (int c = 0; c < CHANNELS1; c++)
                UNROLL for (int k = 0; k < 4; k++) sum[c][k] = splat(bias[c]);
            for (int i = 0; i < 5; i++) {
                const lanes *top = x + (2 * row + i) * SIDE + 2 * column;
                UNROLL for (int j = 0; j < 5; j++) {
                    lanes v0 = top[j], v1 = top[j + 1], v2 = top[j + SIDE], v3 = top[j + SIDE + 1];
                    UNROLL for (int c = 0; c < CHANNELS1; c++) {
                        lanes w = splat(weight[(i * 5 + j) * CHANNELS1 + c]);
                        sum[c][0] += w * v0;
                        sum[c][1] += w * v1;
                        sum[c][2] += w * v2;
                        sum[c][3] += w * v3;
                    }
                }
            }
            long at = row * ROW1 + column * CHANNELS1;
            UNROLL for (int c = 0; c < CHANNELS1; c++)
                pooled[at + c] = pool(sum[c][0], sum[c][1], sum[c][2], sum[c][3],
                                      code ? code + (at + c) * LANES : NULL);
        }
}

static void second_layer(const lanes *pooled, const float *weight, const float *bias, lanes *features,
                         uint8_t *code) {
    for (int row = 0; row < SIDE2; row++)
        for (int column = 0; column < SIDE2; column++)
            for (int block = 0; block < CHANNELS2; block += 4) {
                const float *w = weight + block * 5 * RUN;
                lanes sum[4][4];
                UNROLL for (int c = 0; c < 4; c++)
                    UNROLL for (int k = 0; k < 4; k++) sum[c][k] = splat(bias[block + c]);
                for (int i = 0; i < 5; i++) {
                    const lanes *top = pooled + (2 * row + i) * ROW1 + 2 * column * CHANNELS1;
                    for (int j = 0; j < RUN; j++, w += 4) {
                        lanes v0 = top[j], v1 = top[j + CHANNELS1];
                        lanes v2 = top[j + ROW1], v3 = top[j + ROW1 + CHANNELS1];
                        UNROLL for (int c = 0; c < 4; c++) {
                            lanes each = splat(w[c]);
                            sum[c][0] += each * v0;
                            sum[c][1] += each * v1;
                            sum[c][2] += each * v2;
                            sum[c][3] += each * v3;
                        }
                    }
                }
                UNROLL for (int c = 0; c < 4; c++) {
                    long at = (block + c) * WINDOWS2 + row * SIDE2 + column;
                    features[at] = pool(sum[c][0], sum[c][1], sum[c][2], sum[c][3],
                                        code ? code + at * LANES : NULL);
                }
            }
}

/* The addresses of a group's images; those it lacks are `blank`. */
static void image_rows(const float *first, long stride, long count, const float *blank, const float **rows) {
    for (long i = 0; i < LANES; i++) rows[i] = i < count ? first + i * stride : blank;
}

/* Features (n, 400) of images (n, 1024). weight1 is (6, 5, 5), weight2 (16, 5, 5, 6). What the backward pass needs goes
 * to pooled (n, STRIDE1) and, for the groups of images, code1 (POOLED, LANES) and code2 (FEATURES, LANES), unless these
 * are NULL. Returns 0, or 1 if there is no memory. */
int lenet_forward(long n, const float *x, const float *weight1, const float *bias1, const float *weight2,
                  const float *bias2, float *features, float *pooled, uint8_t *code1, uint8_t *code2) {
    struct work {
        lanes x[PIXELS], pooled[STRIDE1], features[FEATURES];
        float blank[PIXELS], weight1[25 * CHANNELS1], weight2[CHANNELS2 * 5 * RUN];
    } *work;
    if (posix_memalign((void **)&work, 64, sizeof *work)) return 1;
    memset(work->blank, 0, sizeof work->blank);
    memset(work->pooled + POOLED, 0, (STRIDE1 - POOLED) * sizeof(lanes));
    for (int c = 0; c < CHANNELS1; c++)
        for (int k = 0; k < 25; k++) work->weight1[k * CHANNELS1 + c] = weight1[c * 25 + k];
    for (int c = 0; c < CHANNELS2; c++) /* four channels side by side */
        for (int k = 0; k < 5 * RUN; k++) work->weight2[(c / 4 * 5 * RUN + k) * 4 + c % 4] = weight2[c * 5 * RUN + k];
    for (long start = 0, group = 0; start < n; start += LANES, group++) {
        long count = n - start < LANES ? n - start : LANES;
        const float *rows[LANES];
        image_rows(x + start * PIXELS, PIXELS, count, work->blank, rows);
        to_lanes(rows, PIXELS, work->x);
        first_layer(work->x, work->weight1, bias1, work->pooled, code1 ? code1 + group * POOLED * LANES : NULL);
        second_layer(work->pooled, work->weight2, bias2, work->features,
                     code2 ? code2 + group * FEATURES * LANES : NULL);
        from_lanes(work->features, FEATURES, count, features + start * FEATURES, FEATURES);
        if (pooled) from_lanes(work->pooled, STRIDE1, count, pooled + start * STRIDE1, STRIDE1);
    }
    free(work);
    return 0;
}

/* Adds the gradients of the second convolution's weight (CHANNELS2, 5, RUN_PADDED) and bias of `count` <= BLOCK images.
 * `gradient` (count, FEATURES) is that of the features, `code` their codes, LANES apart. */
static void second_weight(long count, const float *gradient, const uint8_t *code, const float *pooled,
                          lanes *to_weight, float *to_bias) {
    for (int c = 0; c < CHANNELS2; c++) {
        int32_t at[WINDOWS2 * BLOCK + 1]; /* where there is a gradient */
        float value[WINDOWS2 * BLOCK + 1];
        float total = 0;
        int entries = 0;
        for (int image = 0; image < count; image++)
            for (int row = 0; row < SIDE2; row++)
                UNROLL for (int column = 0; column < SIDE2; column++) {
                    int window = c * WINDOWS2 + row * SIDE2 + column;
                    int where = code[window * LANES + image];
                    at[entries] = image * STRIDE1 + (2 * row + (where >> 1)) * ROW1 +
                                  (2 * column + (where & 1)) * CHANNELS1;
                    value[entries] = gradient[image * FEATURES + window];
                    entries += where < 4;
                }
        lanes sum[VECTORS];
        UNROLL for (int k = 0; k < VECTORS; k++) sum[k] = (lanes){0};
        for (int e = 0; e < entries; e++) {
            const float *from = pooled + at[e];
            lanes g = splat(value[e]);
            total += value[e];
            UNROLL for (int k = 0; k < VECTORS; k++)
                sum[k] += g * *(const loose *)(from + k * LANES / RUN_PADDED * ROW1 + k * LANES % RUN_PADDED);
        }
        UNROLL for (int k = 0; k < VECTORS; k++) to_weight[c * VECTORS + k] += sum[k];
        to_bias[c] += total;
    }
}

/* The gradient of the second convolution before pooling, (EDGE, EDGE, CHANNELS2): a border of zeros is left as it is. */
static void second_spread(const lanes *gradient, const uint8_t *code, lanes *spread) {
    const masks none = {0};
    for (int row = 0; row < SIDE2; row++)
        for (int column = 0; column < SIDE2; column++)
            for (int c = 0; c < CHANNELS2; c++) {
                int at = c * WINDOWS2 + row * SIDE2 + column;
                masks where = widened(code + at * LANES);
                lanes *corner = spread + ((2 * row + 1) * EDGE + 2 * column + 1) * CHANNELS2 + c;
                UNROLL for (int k = 0; k < 4; k++)
                    corner[((k >> 1) * EDGE + (k & 1)) * CHANNELS2] =
                        (lanes)((where == none + k) & (masks)gradient[at]);
            }
}

/* The gradient of the pooled layer, two by two pixels at once; `weight` is (5, 5, CHANNELS2, CHANNELS1). */
static void second_input(const lanes *spread, const float *weight, lanes *back) {
    for (int row = 0; row < SIDE1; row += 2)
        for (int column = 0; column < SIDE1; column += 2) {
            /* Only the taps that meet at least one of the four pixels inside the border. */
            int top = row > 9 ? row - 9 : 0, bottom = row < 3 ? row + 1 : 4;
            int left = column > 9 ? column - 9 : 0, right = column < 3 ? column + 1 : 4;
            lanes sum[CHANNELS1][4];
            UNROLL for (int c = 0; c < CHANNELS1; c++) UNROLL for (int k = 0; k < 4; k++) sum[c][k] = (lanes){0};
            for (int i = top; i <= bottom; i++)
                for (int j = left; j <= right; j++) {
                    const float *w = weight + (i * 5 + j) * CHANNELS2 * CHANNELS1;
                    const lanes *from = spread + ((row - i + 1) * EDGE + column - j + 1) * CHANNELS2;
                    for (int k = 0; k < CHANNELS2; k++, w += CHANNELS1) {
                        lanes v0 = from[k], v1 = from[k + CHANNELS2];
                        lanes v2 = from[k + EDGE * CHANNELS2], v3 = from[k + (EDGE + 1) * CHANNELS2];
                        UNROLL for (int c = 0; c < CHANNELS1; c++) {
                            lanes each = splat(w[c]);
                            sum[c][0] += each * v0;
                            sum[c][1] += each * v1;
                            sum[c][2] += each * v2;
                            sum[c][3] += each * v3;
                        }
                    }
                }
            UNROLL for (int c = 0; c < CHANNELS1; c++)
                UNROLL for (int k = 0; k < 4; k++)
                    back[(row + (k >> 1)) * ROW1 + (column + (k & 1)) * CHANNELS1 + c] = sum[c][k];
        }
}

/* Adds the first convolution's gradients of a group, given its images and the gradient of the pooled layer. */
static void first_backward(const lanes *x, const lanes *back, const uint8_t *code, lanes *to_weight,
                           lanes *to_bias) {
    const masks none = {0};
    lanes bias[CHANNELS1] = {{0}}; /* of this group: shorter sums round less, and this one's terms cancel */
    for (int row = 0; row < SIDE1; row++)
        for (int block = 0; block < CHANNELS1; block += 3) {
            lanes spread[2][2 * SIDE1][3]; /* two rows of the gradient before pooling */
            lanes subtotal[3] = {{0}};
            for (int column = 0; column < SIDE1; column++)
                UNROLL for (int c = 0; c < 3; c++) {
                    long at = row * ROW1 + column * CHANNELS1 + block + c;
                    masks where = widened(code + at * LANES);
                    masks value = (masks)back[at];
                    UNROLL for (int k = 0; k < 4; k++)
                        spread[k >> 1][2 * column + (k & 1)][c] = (lanes)((where == none + k) & value);
                    subtotal[c] += (lanes)((where < none + 4) & value);
                }
            UNROLL for (int c = 0; c < 3; c++) bias[block + c] += subtotal[c];
            for (int i = 0; i < 5; i++) {
                lanes sum[3][5];
                UNROLL for (int c = 0; c < 3; c++) UNROLL for (int j = 0; j < 5; j++) sum[c][j] = (lanes){0};
                for (int half = 0; half < 2; half++) {
                    const lanes *from = x + (2 * row + half + i) * SIDE;
                    for (int column = 0; column < 2 * SIDE1; column++)
                        UNROLL for (int j = 0; j < 5; j++) {
                            lanes v = from[column + j];
                            UNROLL for (int c = 0; c < 3; c++) sum[c][j] += spread[half][column][c] * v;
                        }
                }
                UNROLL for (int c = 0; c < 3; c++)
                    UNROLL for (int j = 0; j < 5; j++) to_weight[(block + c) * 25 + i * 5 + j] += sum[c][j];
            }
        }
    for (int c = 0; c < CHANNELS1; c++) to_bias[c] += bias[c];
}

static float across(lanes v) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
}

/* The parameters' gradients, shaped as the parameters are for lenet_forward, from that of the features (n, 400) and what
 * lenet_forward saved. Returns 0, or 1 if there is no memory. */
int lenet_backward(long n, const float *x, const float *weight2, const float *pooled, const uint8_t *code1,
                   const uint8_t *code2, const float *gradient, float *to_weight1, float *to_bias1, float *to_weight2,
                   float *to_bias2) {
    struct work {
        lanes x[PIXELS], gradient[FEATURES], spread[EDGE * EDGE * CHANNELS2], back[POOLED];
        lanes sum1[CHANNELS1 * 25], bias1[CHANNELS1], sum2[CHANNELS2 * VECTORS];
        float blank[PIXELS], weight2[25 * CHANNELS2 * CHANNELS1];
    } *work;
    if (posix_memalign((void **)&work, 64, sizeof *work)) return 1;
    memset(work->blank, 0, sizeof work->blank);
    memset(work->sum1, 0, sizeof work->sum1);
    memset(work->bias1, 0, sizeof work->bias1);
    memset(work->sum2, 0, sizeof work->sum2);
    memset(work->spread, 0, sizeof work->spread);
    memset(to_bias2, 0, CHANNELS2 * sizeof(float));
    for (int c = 0; c < CHANNELS2; c++)
        for (int k = 0; k < 25; k++)
            memcpy(work->weight2 + (k * CHANNELS2 + c) * CHANNELS1, weight2 + (c * 25 + k) * CHANNELS1,
                   CHANNELS1 * sizeof(float));
    for (long start = 0, group = 0; start < n; start += LANES, group++) {
        long count = n - start < LANES ? n - start : LANES;
        const uint8_t *own1 = code1 + group * POOLED * LANES, *own2 = code2 + group * FEATURES * LANES;
        const float *rows[LANES];
        for (long first = 0; first < count; first += BLOCK)
            second_weight(count - first < BLOCK ? count - first : BLOCK, gradient + (start + first) * FEATURES,
                          own2 + first, pooled + (start + first) * STRIDE1, work->sum2, to_bias2);
        image_rows(gradient + start * FEATURES, FEATURES, count, work->blank, rows);
        to_lanes(rows, FEATURES, work->gradient);
        second_spread(work->gradient, own2, work->spread);
        second_input(work->spread, work->weight2, work->back);
        image_rows(x + start * PIXELS, PIXELS, count, work->blank, rows);
        to_lanes(rows, PIXELS, work->x);
        first_backward(work->x, work->back, own1, work->sum1, work->bias1);
    }
    for (int k = 0; k < CHANNELS1 * 25; k++) to_weight1[k] = across(work->sum1[k]);
    for (int c = 0; c < CHANNELS1; c++) to_bias1[c] = across(work->bias1[c]);
    for (int k = 0; k < CHANNELS2 * 5; k++)
        memcpy(to_weight2 + k * RUN, (const float *)work->sum2 + k * RUN_PADDED, RUN * sizeof(float));
    free(work);
    return 0;
}
