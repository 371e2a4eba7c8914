/* One training step of an additive sum of LeNets, forward and backward, for one processor core.
 *
 * Compiled for one architecture at a time: CHANNELS, HEIGHT, WIDTH, WIDTH1..WIDTH4 and CLASSES are macros, so
 * that every loop has constant bounds and the innermost ones unroll into registers. Only GCC's vector extension
 * is used (GCC and Clang; x86-64 and ARM).
 *
 * Samples are the lanes: a `vec` holds one scalar of the network for LANES samples. Every sum over inputs and
 * kernel positions is then a broadcast weight times a contiguous vector, whatever the layer's shape. A batch is
 * cut into blocks of LANES samples; lanes without a sample carry zero gradients.
 *
 * Weights of one part lie in one row of PART floats, the tensors in schema order; the rows of linear layers are
 * padded with zeros to whole vectors (STRIDE1..3). The parts follow one another. Gradients have the same layout.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#endif

/* Output channels that share one pass over the input, as many as the vector registers hold sums for. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define FORWARD_BLOCK 6 /* x 4 pooling positions */
#define WEIGHT_BLOCK(n) ((n) % 4 == 0 ? 4 : (n) % 3 == 0 ? 3 : 5) /* x 5 kernel columns */
#define INPUT_BLOCK 2 /* x (8 + 4) columns */
#define LINEAR_BLOCK 12
#define OUTER_ROWS 4 /* x OUTER_COLUMNS */
#define OUTER_COLUMNS 4
#else
#define FORWARD_BLOCK 2
#define WEIGHT_BLOCK(n) 2
#define INPUT_BLOCK 1
#define LINEAR_BLOCK 8
#define OUTER_ROWS 2
#define OUTER_COLUMNS 4
#endif

#define H1 ((HEIGHT - 4) / 2) /* after convolution 1 and pooling */
#define W1 ((WIDTH - 4) / 2)
#define H2 ((H1 - 4) / 2) /* after convolution 2 and pooling */
#define W2 ((W1 - 4) / 2)
#define FEATURES (WIDTH2 * H2 * W2)

#define PAD(n) (((n) + 15) / 16 * 16)
#define STRIDE1 PAD(FEATURES)
#define STRIDE2 PAD(WIDTH3)
#define STRIDE3 PAD(WIDTH4)

enum {
    CONV1 = 0,
    BIAS1 = CONV1 + WIDTH1 * CHANNELS * 25,
    CONV2 = BIAS1 + WIDTH1,
    BIAS2 = CONV2 + WIDTH2 * WIDTH1 * 25,
    LINEAR1 = PAD(BIAS2 + WIDTH2),
    LBIAS1 = LINEAR1 + WIDTH3 * STRIDE1,
    LINEAR2 = PAD(LBIAS1 + WIDTH3),
    LBIAS2 = LINEAR2 + WIDTH4 * STRIDE2,
    LINEAR3 = PAD(LBIAS2 + WIDTH4),
    LBIAS3 = LINEAR3 + CLASSES * STRIDE3,
    PART = PAD(LBIAS3 + CLASSES)
};

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* What one part keeps of one block between forward and backward. `route` says which of the four positions of a
 * pooling window passed its value on (0..3), or 4 when ReLU stopped it. */
typedef struct {
    vec pooled1[WIDTH1][H1][W1];
    mask route1[WIDTH1][H1][W1];
    vec pooled2[WIDTH2][H2][W2];
    mask route2[WIDTH2][H2][W2];
    vec hidden1[WIDTH3];
    vec hidden2[WIDTH4];
    /* Sums of the convolutions' weight gradients, still apart by lane; they live for a whole batch. */
    vec sums1[WIDTH1][CHANNELS][25];
    vec sums2[WIDTH2][WIDTH1][25];
    vec bias_sums1[WIDTH1];
    vec bias_sums2[WIDTH2];
} part_state;

/* Scratch of one thread; the states of its parts follow it in memory. */
typedef struct {
    vec x[CHANNELS][HEIGHT][WIDTH];
    vec logits[CLASSES];
    vec dlogits[CLASSES];
    vec dhidden1[WIDTH3];
    vec dhidden2[WIDTH4];
    vec dpooled2[WIDTH2][H2][W2];
    vec dpooled1[WIDTH1][H1][W1];
    vec dz1[8][2][2 * W1];           /* gradients before pooling: a few channels, one pooled row */
    vec dz2[WIDTH2][2 * H2][2 * W2]; /* gradients before pooling: all of convolution 2 */
    float rows[LANES][STRIDE1 > STRIDE2 ? (STRIDE1 > STRIDE3 ? STRIDE1 : STRIDE3)
                                        : (STRIDE2 > STRIDE3 ? STRIDE2 : STRIDE3)]
        __attribute__((aligned(64)));
} scratch;

INLINE vec splat(float a) { return (vec){0} + a; }
INLINE vec select_vec(mask m, vec a, vec b) { return (vec)((m & (mask)a) | (~m & (mask)b)); }
INLINE mask select_mask(mask m, mask a, mask b) { return (m & a) | (~m & b); }

INLINE float lane_sum(vec v) {
    float lanes[LANES];
    memcpy(lanes, &v, sizeof v);
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) {
        UNROLL for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* ---------------------------------------------------------------- convolution with 2x2 pooling and ReLU */

/* OUT output channels at one pooled position. x: [in][rows][columns] at the window's corner. */
INLINE void conv_pool_block(const int OUT, const int in, const int rows, const int columns, const vec *x,
                            const float *weight, const float *bias, const int plane, vec *pooled, mask *route) {
    vec z[FORWARD_BLOCK][4];
    UNROLL for (int o = 0; o < OUT; o++) {
        UNROLL for (int k = 0; k < 4; k++) z[o][k] = (vec){0};
    }
    for (int c = 0; c < in; c++) {
        for (int ky = 0; ky < 5; ky++) {
            const vec *row = x + (c * rows + ky) * columns;
            const float *w = weight + (c * 5 + ky) * 5;
            UNROLL for (int kx = 0; kx < 5; kx++) {
                const vec x0 = row[kx], x1 = row[kx + 1], x2 = row[columns + kx], x3 = row[columns + kx + 1];
                UNROLL for (int o = 0; o < OUT; o++) {
                    const vec tap = splat(w[o * in * 25 + kx]);
                    z[o][0] += tap * x0;
                    z[o][1] += tap * x1;
                    z[o][2] += tap * x2;
                    z[o][3] += tap * x3;
                }
            }
        }
    }
    UNROLL for (int o = 0; o < OUT; o++) {
        vec best = z[o][0];
        mask where = {0};
        UNROLL for (int k = 1; k < 4; k++) {
            const mask above = z[o][k] > best;
            best = select_vec(above, z[o][k], best);
            where = select_mask(above, (mask){0} + k, where);
        }
        best += splat(bias[o]);
        const mask alive = best > (vec){0};
        pooled[o * plane] = (vec)((mask)best & alive);
        route[o * plane] = select_mask(alive, where, (mask){0} + 4);
    }
}

INLINE void conv_pool(const int in, const int rows, const int columns, const int out, const vec *x,
                      const float *weight, const float *bias, vec *pooled, mask *route) {
    const int ph = (rows - 4) / 2, pw = (columns - 4) / 2, plane = ph * pw;
    for (int y = 0; y < ph; y++) {
        int o = 0;
        for (; o + FORWARD_BLOCK <= out; o += FORWARD_BLOCK) {
            for (int px = 0; px < pw; px++)
                conv_pool_block(FORWARD_BLOCK, in, rows, columns, x + 2 * y * columns + 2 * px,
                                weight + o * in * 25, bias + o, plane, pooled + o * plane + y * pw + px,
                                route + o * plane + y * pw + px);
        }
        if (out % FORWARD_BLOCK) {
            for (int px = 0; px < pw; px++)
                conv_pool_block(out % FORWARD_BLOCK, in, rows, columns, x + 2 * y * columns + 2 * px,
                                weight + o * in * 25, bias + o, plane, pooled + o * plane + y * pw + px,
                                route + o * plane + y * pw + px);
        }
    }
}

/* Undo pooling for one row: dz[2][2 * pw] from the gradients of pw pooled outputs. Returns their sum. */
INLINE vec unpool_row(const int pw, const vec *dpooled, const mask *route, vec *dz) {
    vec sum = {0};
    for (int px = 0; px < pw; px++) {
        const mask g = (mask)dpooled[px], r = route[px];
        dz[2 * px] = (vec)(g & (r == 0));
        dz[2 * px + 1] = (vec)(g & (r == 1));
        dz[2 * pw + 2 * px] = (vec)(g & (r == 2));
        dz[2 * pw + 2 * px + 1] = (vec)(g & (r == 3));
        sum += (vec)(g & (r < 4));
    }
    return sum;
}

/* Weight gradients of OUT channels from dz [OUT][height][width] (stride dz_plane) over an input of `in` planes. */
INLINE void conv_weight_block(const int OUT, const int in, const int rows, const int columns, const int height,
                              const int width, const vec *x, const vec *dz, const int dz_plane, vec *sums) {
    for (int c = 0; c < in; c++) {
        for (int ky = 0; ky < 5; ky++) {
            vec acc[5][5];
            UNROLL for (int o = 0; o < OUT; o++) {
                UNROLL for (int kx = 0; kx < 5; kx++) acc[o][kx] = sums[(o * in + c) * 25 + ky * 5 + kx];
            }
            for (int y = 0; y < height; y++) {
                const vec *row = x + (c * rows + y + ky) * columns;
                for (int i = 0; i < width; i++) {
                    const vec x0 = row[i], x1 = row[i + 1], x2 = row[i + 2], x3 = row[i + 3], x4 = row[i + 4];
                    UNROLL for (int o = 0; o < OUT; o++) {
                        const vec g = dz[o * dz_plane + y * width + i];
                        acc[o][0] += g * x0;
                        acc[o][1] += g * x1;
                        acc[o][2] += g * x2;
                        acc[o][3] += g * x3;
                        acc[o][4] += g * x4;
                    }
                }
            }
            UNROLL for (int o = 0; o < OUT; o++) {
                UNROLL for (int kx = 0; kx < 5; kx++) sums[(o * in + c) * 25 + ky * 5 + kx] = acc[o][kx];
            }
        }
    }
}

/* Input gradients of IN channels, COLUMNS columns of dz: dx[y + ky][i + kx] += sum_o dz[o][y][i] w[o][ky][kx]. */
INLINE void conv_input_block(const int IN, const int COLUMNS, const int in, const int rows, const int columns,
                             const int out, const int height, const int width, const vec *dz,
                             const float *weight, vec *dx) {
    for (int y = 0; y < height; y++) {
        for (int ky = 0; ky < 5; ky++) {
            vec acc[INPUT_BLOCK][8 + 4];
            UNROLL for (int c = 0; c < IN; c++) {
                UNROLL for (int i = 0; i < COLUMNS + 4; i++) acc[c][i] = dx[(c * rows + y + ky) * columns + i];
            }
            for (int o = 0; o < out; o++) {
                const vec *g = dz + (o * height + y) * width;
                const float *w = weight + o * in * 25 + ky * 5;
                UNROLL for (int i = 0; i < COLUMNS; i++) {
                    const vec gi = g[i];
                    UNROLL for (int c = 0; c < IN; c++) {
                        UNROLL for (int kx = 0; kx < 5; kx++) acc[c][i + kx] += splat(w[c * 25 + kx]) * gi;
                    }
                }
            }
            UNROLL for (int c = 0; c < IN; c++) {
                UNROLL for (int i = 0; i < COLUMNS + 4; i++) dx[(c * rows + y + ky) * columns + i] = acc[c][i];
            }
        }
    }
}

INLINE void conv_input_columns(const int COLUMNS, const vec *dz, const float *weight, vec *dx) {
    int c = 0;
    for (; c + INPUT_BLOCK <= WIDTH1; c += INPUT_BLOCK)
        conv_input_block(INPUT_BLOCK, COLUMNS, WIDTH1, H1, W1, WIDTH2, 2 * H2, 2 * W2, dz, weight + c * 25,
                         dx + c * H1 * W1);
    if (WIDTH1 % INPUT_BLOCK)
        conv_input_block(WIDTH1 % INPUT_BLOCK, COLUMNS, WIDTH1, H1, W1, WIDTH2, 2 * H2, 2 * W2, dz,
                         weight + c * 25, dx + c * H1 * W1);
}

/* ---------------------------------------------------------------- linear layers */

INLINE void linear_block(const int OUT, const int in, const int stride, const vec *x, const float *weight,
                         const float *bias, const int relu, vec *out) {
    vec acc[LINEAR_BLOCK];
    UNROLL for (int o = 0; o < OUT; o++) acc[o] = splat(bias[o]);
    for (int i = 0; i < in; i++) {
        UNROLL for (int o = 0; o < OUT; o++) acc[o] += splat(weight[o * stride + i]) * x[i];
    }
    UNROLL for (int o = 0; o < OUT; o++)
        out[o] = relu ? (vec)((mask)acc[o] & (acc[o] > (vec){0})) : out[o] + acc[o];
}

/* relu: out = relu(W x + b); otherwise out += W x + b. */
INLINE void linear(const int in, const int out_count, const int stride, const vec *x, const float *weight,
                   const float *bias, const int relu, vec *out) {
    int o = 0;
    for (; o + LINEAR_BLOCK <= out_count; o += LINEAR_BLOCK)
        linear_block(LINEAR_BLOCK, in, stride, x, weight + o * stride, bias + o, relu, out + o);
    if (out_count % LINEAR_BLOCK)
        linear_block(out_count % LINEAR_BLOCK, in, stride, x, weight + o * stride, bias + o, relu, out + o);
}

INLINE void linear_input_block(const int IN, const int out_count, const int stride, const vec *dout,
                               const float *weight, const vec *x, vec *dx) {
    vec acc[LINEAR_BLOCK];
    UNROLL for (int i = 0; i < IN; i++) acc[i] = (vec){0};
    for (int o = 0; o < out_count; o++) {
        UNROLL for (int i = 0; i < IN; i++) acc[i] += splat(weight[o * stride + i]) * dout[o];
    }
    /* x is the output of a ReLU: nothing passes where it is zero. */
    UNROLL for (int i = 0; i < IN; i++) dx[i] = (vec)((mask)acc[i] & (x[i] > (vec){0}));
}

INLINE void linear_input(const int in, const int out_count, const int stride, const vec *dout,
                         const float *weight, const vec *x, vec *dx) {
    int i = 0;
    for (; i + LINEAR_BLOCK <= in; i += LINEAR_BLOCK)
        linear_input_block(LINEAR_BLOCK, out_count, stride, dout, weight + i, x + i, dx + i);
    if (in % LINEAR_BLOCK)
        linear_input_block(in % LINEAR_BLOCK, out_count, stride, dout, weight + i, x + i, dx + i);
}

/* gradient[ROWS][COLUMNS vectors] += sum over samples of dout[o][sample] * rows[sample][i]. */
INLINE void linear_weight_block(const int ROWS, const int COLUMNS, const int stride, const float *dout,
                                const float *rows, const int rows_stride, float *gradient) {
    vec acc[OUTER_ROWS][OUTER_COLUMNS];
    UNROLL for (int o = 0; o < ROWS; o++) {
        UNROLL for (int i = 0; i < COLUMNS; i++) acc[o][i] = *(const vec *)(gradient + o * stride + i * LANES);
    }
    UNROLL for (int n = 0; n < LANES; n++) {
        UNROLL for (int i = 0; i < COLUMNS; i++) {
            const vec x = *(const vec *)(rows + n * rows_stride + i * LANES);
            UNROLL for (int o = 0; o < ROWS; o++) acc[o][i] += splat(dout[o * LANES + n]) * x;
        }
    }
    UNROLL for (int o = 0; o < ROWS; o++) {
        UNROLL for (int i = 0; i < COLUMNS; i++) *(vec *)(gradient + o * stride + i * LANES) = acc[o][i];
    }
}

INLINE void linear_weight_rows(const int ROWS, const int stride, const float *dout, const float *rows,
                               const int rows_stride, float *gradient) {
    int i = 0;
    for (; i + OUTER_COLUMNS * LANES <= stride; i += OUTER_COLUMNS * LANES)
        linear_weight_block(ROWS, OUTER_COLUMNS, stride, dout, rows + i, rows_stride, gradient + i);
    for (; i < stride; i += LANES)
        linear_weight_block(ROWS, 1, stride, dout, rows + i, rows_stride, gradient + i);
}

/* Weight and bias gradients of one linear layer; here inputs are the lanes, so x is transposed first. */
INLINE void linear_weight(scratch *s, const int in, const int out_count, const int stride, const vec *dout,
                          const vec *x, float *weight, float *bias) {
    const int rows_stride = sizeof s->rows[0] / sizeof(float);
    for (int i = 0; i < in; i++) {
        UNROLL for (int n = 0; n < LANES; n++) s->rows[n][i] = x[i][n];
    }
    for (int n = 0; n < LANES; n++) memset(&s->rows[n][in], 0, (stride - in) * sizeof(float));
    int o = 0;
    for (; o + OUTER_ROWS <= out_count; o += OUTER_ROWS)
        linear_weight_rows(OUTER_ROWS, stride, (const float *)(dout + o), &s->rows[0][0], rows_stride,
                           weight + o * stride);
    if (out_count % OUTER_ROWS)
        linear_weight_rows(out_count % OUTER_ROWS, stride, (const float *)(dout + o), &s->rows[0][0],
                           rows_stride, weight + o * stride);
    for (o = 0; o < out_count; o++) bias[o] += lane_sum(dout[o]);
}

/* ---------------------------------------------------------------- one block through one part */

static void load_block(scratch *s, const float *x, int count) {
    const int size = CHANNELS * HEIGHT * WIDTH;
    vec *out = &s->x[0][0][0];
    if (count == LANES) {
        for (int i = 0; i < size; i++) {
            UNROLL for (int n = 0; n < LANES; n++) out[i][n] = x[n * size + i];
        }
    } else {
        memset(out, 0, sizeof s->x);
        for (int i = 0; i < size; i++) {
            for (int n = 0; n < count; n++) out[i][n] = x[n * size + i];
        }
    }
}

static void forward(scratch *s, part_state *a, const float *w) {
    conv_pool(CHANNELS, HEIGHT, WIDTH, WIDTH1, &s->x[0][0][0], w + CONV1, w + BIAS1, &a->pooled1[0][0][0],
              &a->route1[0][0][0]);
    conv_pool(WIDTH1, H1, W1, WIDTH2, &a->pooled1[0][0][0], w + CONV2, w + BIAS2, &a->pooled2[0][0][0],
              &a->route2[0][0][0]);
    linear(FEATURES, WIDTH3, STRIDE1, &a->pooled2[0][0][0], w + LINEAR1, w + LBIAS1, 1, a->hidden1);
    linear(WIDTH3, WIDTH4, STRIDE2, a->hidden1, w + LINEAR2, w + LBIAS2, 1, a->hidden2);
    linear(WIDTH4, CLASSES, STRIDE3, a->hidden2, w + LINEAR3, w + LBIAS3, 0, s->logits);
}

static void backward_conv2(scratch *s, part_state *a, const float *w) {
    for (int o = 0; o < WIDTH2; o++) {
        for (int y = 0; y < H2; y++)
            a->bias_sums2[o] += unpool_row(W2, s->dpooled2[o][y], a->route2[o][y], s->dz2[o][2 * y]);
    }
    enum { BLOCK = WEIGHT_BLOCK(WIDTH2), PLANE = 4 * H2 * W2 };
    int o = 0;
    for (; o + BLOCK <= WIDTH2; o += BLOCK)
        conv_weight_block(BLOCK, WIDTH1, H1, W1, 2 * H2, 2 * W2, &a->pooled1[0][0][0], &s->dz2[o][0][0], PLANE,
                          &a->sums2[o][0][0]);
    if (WIDTH2 % BLOCK)
        conv_weight_block(WIDTH2 % BLOCK, WIDTH1, H1, W1, 2 * H2, 2 * W2, &a->pooled1[0][0][0],
                          &s->dz2[o][0][0], PLANE, &a->sums2[o][0][0]);

    memset(s->dpooled1, 0, sizeof s->dpooled1);
    int i = 0;
    for (; i + 8 <= 2 * W2; i += 8)
        conv_input_columns(8, &s->dz2[0][0][i], w + CONV2, &s->dpooled1[0][0][i]);
    if (2 * W2 % 8) conv_input_columns(2 * W2 % 8, &s->dz2[0][0][i], w + CONV2, &s->dpooled1[0][0][i]);
}

INLINE void backward_conv1_block(const int OUT, scratch *s, part_state *a, int o) {
    for (int y = 0; y < H1; y++) {
        UNROLL for (int k = 0; k < OUT; k++)
            a->bias_sums1[o + k] += unpool_row(W1, s->dpooled1[o + k][y], a->route1[o + k][y], s->dz1[k][0]);
        conv_weight_block(OUT, CHANNELS, HEIGHT, WIDTH, 2, 2 * W1, &s->x[0][2 * y][0], &s->dz1[0][0][0], 4 * W1,
                          &a->sums1[o][0][0]);
    }
}

static void backward_conv1(scratch *s, part_state *a) {
    enum { BLOCK = WEIGHT_BLOCK(WIDTH1) };
    int o = 0;
    for (; o + BLOCK <= WIDTH1; o += BLOCK) backward_conv1_block(BLOCK, s, a, o);
    if (WIDTH1 % BLOCK) backward_conv1_block(WIDTH1 % BLOCK, s, a, o);
}

static void backward(scratch *s, part_state *a, const float *w, float *g) {
    const vec *features = &a->pooled2[0][0][0];
    linear_weight(s, WIDTH4, CLASSES, STRIDE3, s->dlogits, a->hidden2, g + LINEAR3, g + LBIAS3);
    linear_input(WIDTH4, CLASSES, STRIDE3, s->dlogits, w + LINEAR3, a->hidden2, s->dhidden2);
    linear_weight(s, WIDTH3, WIDTH4, STRIDE2, s->dhidden2, a->hidden1, g + LINEAR2, g + LBIAS2);
    linear_input(WIDTH3, WIDTH4, STRIDE2, s->dhidden2, w + LINEAR2, a->hidden1, s->dhidden1);
    linear_weight(s, FEATURES, WIDTH3, STRIDE1, s->dhidden1, features, g + LINEAR1, g + LBIAS1);
    linear_input(FEATURES, WIDTH3, STRIDE1, s->dhidden1, w + LINEAR1, features, &s->dpooled2[0][0][0]);
    backward_conv2(s, a, w);
    backward_conv1(s, a);
}

/* Softmax cross-entropy of the summed logits: fills dlogits (divided by the batch), returns the summed loss. */
static double cross_entropy(scratch *s, const int64_t *y, int count, int batch) {
    double total = 0.0;
    memset(s->dlogits, 0, sizeof s->dlogits);
    for (int n = 0; n < count; n++) {
        float top = s->logits[0][n], sum = 0.0f;
        for (int k = 1; k < CLASSES; k++) top = s->logits[k][n] > top ? s->logits[k][n] : top;
        float e[CLASSES];
        for (int k = 0; k < CLASSES; k++) sum += e[k] = expf(s->logits[k][n] - top);
        total += logf(sum) + top - s->logits[y[n]][n];
        for (int k = 0; k < CLASSES; k++) {
            const float p = e[k] / sum;
            /* Denormal numbers would slow every product that follows. */
            s->dlogits[k][n] = ((p < 1e-30f ? 0.0f : p) - (k == y[n])) / (float)batch;
        }
    }
    return total;
}

/* ---------------------------------------------------------------- what Python calls */

/* Samples that share a vector. */
int fedbac_lanes(void) { return LANES; }

/* Floats of one part, padding included. */
int64_t fedbac_part_floats(void) { return PART; }

/* Bytes of work memory (64-byte aligned) that one thread needs. */
int64_t fedbac_work_bytes(int parts) { return sizeof(scratch) + (int64_t)parts * sizeof(part_state); }

/* What one block of samples makes of its logits: fills dlogits, returns its share of the loss. */
typedef struct {
    const int64_t *y;     /* labels, for the cross-entropy; or NULL, and */
    const float *dlogits; /* count * CLASSES: the loss's gradient as the caller has it */
    int batch;
    const float *beside; /* count * CLASSES, with labels: logits that stand beside this network's, or NULL */
    const float *q;      /* count * CLASSES, with `beside`: probabilities that softmax(logits / tau) follows */
    float tau, lambda;
} objective;

/* e: softmax of z, without denormal numbers; returns log(sum exp(z)). */
static float softmax(const float *z, float *e) {
    float top = z[0], sum = 0.0f;
    for (int k = 1; k < CLASSES; k++) top = z[k] > top ? z[k] : top;
    for (int k = 0; k < CLASSES; k++) sum += e[k] = expf(z[k] - top);
    for (int k = 0; k < CLASSES; k++) {
        e[k] /= sum;
        if (e[k] < 1e-30f) e[k] = 0.0f;
    }
    return logf(sum) + top;
}

/* -sum q log softmax(logits / tau) + lambda * cross-entropy of (beside + logits), summed over the block. */
static double complement(scratch *s, const objective *o, int start, int here) {
    double total = 0.0;
    memset(s->dlogits, 0, sizeof s->dlogits);
    for (int n = 0; n < here; n++) {
        const size_t at = (size_t)(start + n) * CLASSES;
        const int y = (int)o->y[start + n];
        float soft[CLASSES], summed[CLASSES], p[CLASSES], e[CLASSES];
        for (int k = 0; k < CLASSES; k++) {
            soft[k] = s->logits[k][n] / o->tau;
            summed[k] = s->logits[k][n] + o->beside[at + k];
        }
        const float soft_log = softmax(soft, p), log_sum = softmax(summed, e);
        for (int k = 0; k < CLASSES; k++) {
            const float q = o->q[at + k], slope = (p[k] - q) / o->tau + o->lambda * (e[k] - (k == y));
            total += (double)q * (soft_log - soft[k]);
            s->dlogits[k][n] = slope / (float)o->batch;
        }
        total += (double)o->lambda * (log_sum - summed[y]);
    }
    return total;
}

static double differentiate(scratch *s, const objective *o, int start, int here) {
    if (o->beside) return complement(s, o, start, here);
    if (o->y) return cross_entropy(s, o->y + start, here, o->batch);
    memset(s->dlogits, 0, sizeof s->dlogits);
    for (int n = 0; n < here; n++)
        for (int k = 0; k < CLASSES; k++) s->dlogits[k][n] = o->dlogits[(size_t)(start + n) * CLASSES + k];
    return 0.0;
}

static double accumulate(const float *x, const objective *o, int count, int parts, const float *weights,
                         float *gradient, void *work) {
    scratch *s = work;
    part_state *states = (part_state *)(s + 1);
    double loss = 0.0;
    memset(gradient, 0, (size_t)parts * PART * sizeof(float));
    for (int p = 0; p < parts; p++) {
        memset(states[p].sums1, 0, sizeof states[p].sums1);
        memset(states[p].sums2, 0, sizeof states[p].sums2);
        memset(states[p].bias_sums1, 0, sizeof states[p].bias_sums1);
        memset(states[p].bias_sums2, 0, sizeof states[p].bias_sums2);
    }
    for (int start = 0; start < count; start += LANES) {
        const int here = MIN(LANES, count - start);
        load_block(s, x + (size_t)start * CHANNELS * HEIGHT * WIDTH, here);
        memset(s->logits, 0, sizeof s->logits);
        for (int p = 0; p < parts; p++) forward(s, states + p, weights + p * PART);
        loss += differentiate(s, o, start, here);
        for (int p = 0; p < parts; p++) backward(s, states + p, weights + p * PART, gradient + p * PART);
    }
    for (int p = 0; p < parts; p++) {
        float *g = gradient + p * PART;
        const vec *sums1 = &states[p].sums1[0][0][0], *sums2 = &states[p].sums2[0][0][0];
        for (int i = 0; i < WIDTH1 * CHANNELS * 25; i++) g[CONV1 + i] = lane_sum(sums1[i]);
        for (int i = 0; i < WIDTH2 * WIDTH1 * 25; i++) g[CONV2 + i] = lane_sum(sums2[i]);
        for (int i = 0; i < WIDTH1; i++) g[BIAS1 + i] = lane_sum(states[p].bias_sums1[i]);
        for (int i = 0; i < WIDTH2; i++) g[BIAS2 + i] = lane_sum(states[p].bias_sums2[i]);
    }
    return loss;
}

/* Gradient of the summed cross-entropy of `count` samples divided by `batch`; returns the summed loss.
 * x: count * CHANNELS * HEIGHT * WIDTH normalised floats. weights, gradient: parts * PART, 64-byte aligned. */
double fedbac_gradient(const float *x, const int64_t *y, int count, int batch, int parts, const float *weights,
                       float *gradient, void *work) {
    const objective o = {.y = y, .batch = batch};
    return accumulate(x, &o, count, parts, weights, gradient, work);
}

/* Gradient of one part for a loss whose gradient by the logits (count * CLASSES) is given; the forward pass is
 * made again, which costs less than keeping a batch's activations. */
void fedbac_pullback(const float *x, const float *dlogits, int count, const float *weights, float *gradient,
                     void *work) {
    const objective o = {.dlogits = dlogits};
    accumulate(x, &o, count, 1, weights, gradient, work);
}

/* Gradient of one part for the mean of `complement`; returns the summed loss. */
double fedbac_complement(const float *x, const int64_t *y, const float *beside, const float *q, float tau,
                         float lambda, int count, const float *weights, float *gradient, void *work) {
    const objective o = {.y = y, .batch = count, .beside = beside, .q = q, .tau = tau, .lambda = lambda};
    return accumulate(x, &o, count, 1, weights, gradient, work);
}

/* One SGD step on parts * PART weights. gradients: `shares` gradients to be summed, one after another; the first
 * is overwritten. l2: lambda of each part. Order: sum, L2 term, clipping at a global norm, weight decay, momentum,
 * step. */
void fedbac_update(float *weights, float *gradients, float *momentum, int shares, int parts, const float *l2,
                   float rate, float decay, float inertia, float clip) {
    const int64_t size = (int64_t)parts * PART;
    double squares = 0.0;
    for (int p = 0; p < parts; p++) {
        vec sum = {0};
        for (int64_t i = (int64_t)p * PART; i < (int64_t)(p + 1) * PART; i += LANES) {
            vec *g = (vec *)(gradients + i);
            for (int k = 1; k < shares; k++) *g += *(const vec *)(gradients + k * size + i);
            *g += splat(2.0f * l2[p]) * *(const vec *)(weights + i);
            sum += *g * *g;
        }
        squares += lane_sum(sum);
    }
    const float bound = clip / ((float)sqrt(squares) + 1e-6f);
    const float scale = bound >= 1.0f ? 1.0f : bound; /* not a number stays so, and is refused at the gate */
    for (int64_t i = 0; i < size; i += LANES) {
        vec *theta = (vec *)(weights + i), *v = (vec *)(momentum + i);
        *v = splat(inertia) * *v + splat(scale) * *(const vec *)(gradients + i) + splat(decay) * *theta;
        *theta -= splat(rate) * *v;
    }
}

/* logits[count][CLASSES] of one part. */
void fedbac_logits(const float *x, int count, const float *weights, float *logits, void *work) {
    scratch *s = work;
    for (int start = 0; start < count; start += LANES) {
        const int here = MIN(LANES, count - start);
        load_block(s, x + (size_t)start * CHANNELS * HEIGHT * WIDTH, here);
        memset(s->logits, 0, sizeof s->logits);
        forward(s, (part_state *)(s + 1), weights);
        for (int n = 0; n < here; n++) {
            for (int k = 0; k < CLASSES; k++) logits[(start + n) * CLASSES + k] = s->logits[k][n];
        }
    }
}
