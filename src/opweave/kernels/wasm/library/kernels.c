// The kernels of Opweave's WebAssembly library, in freestanding C (no libc, no imports).
//
// Tensors are float32 and C-contiguous in linear memory, 64-byte aligned. How each function is called from a graph stands
// in ../library.py, next to its name. tools/build_wasm.py makes kernels.wasm from this file.

#include <stdint.h>
#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(#name))) name
#define INLINE static inline __attribute__((always_inline))

typedef int32_t i32;

INLINE i32 least(i32 a, i32 b) { return a < b ? a : b; }

// Pointwise -----------------------------------------------------------------------------------------------------------

// Elements between two checks for interruption; the compiler unrolls the inner loops.
enum { CHUNK = 32 };

// out[i] = a[i] + b[i]
void EXPORT(add)(const float *a, const float *b, float *out, i32 n) {
    i32 i = 0;
    for (; i + CHUNK <= n; i += CHUNK) {
        for (i32 k = i; k < i + CHUNK; k += 4) wasm_v128_store(out + k, wasm_f32x4_add(wasm_v128_load(a + k), wasm_v128_load(b + k)));
    }
    for (; i < n; i++) out[i] = a[i] + b[i];
}

// out[i] = max(x[i], 0); NaN stays NaN, which f32x4.max does and f32x4.pmax does not.
void EXPORT(relu)(const float *x, float *out, i32 n) {
    const v128_t zero = wasm_f32x4_const_splat(0.0f);
    i32 i = 0;
    for (; i + CHUNK <= n; i += CHUNK) {
        for (i32 k = i; k < i + CHUNK; k += 4) wasm_v128_store(out + k, wasm_f32x4_max(wasm_v128_load(x + k), zero));
    }
    for (; i < n; i++) out[i] = x[i] < 0.0f ? 0.0f : x[i];
}

// Colours -------------------------------------------------------------------------------------------------------------

INLINE v128_t weighted(v128_t a, float wa, v128_t b, float wb, v128_t c, float wc, float offset) {
    v128_t sum = wasm_f32x4_add(wasm_f32x4_mul(a, wasm_f32x4_splat(wa)), wasm_f32x4_splat(offset));
    sum = wasm_f32x4_add(sum, wasm_f32x4_mul(b, wasm_f32x4_splat(wb)));
    return wasm_f32x4_add(sum, wasm_f32x4_mul(c, wasm_f32x4_splat(wc)));
}

// out[c] = in[0] m[c][0] + in[1] m[c][1] + in[2] m[c][2] + m[c][3], for each pixel of [batches, 3, plane]
INLINE void convert(const float *in, float *out, i32 batches, i32 plane, const float m[3][4]) {
    for (i32 batch = 0; batch < batches; batch++, in += 3 * plane, out += 3 * plane) {
        for (i32 c = 0; c < 3; c++) {
            const float *x = in, *y = in + plane, *z = in + 2 * plane;
            float *to = out + c * plane;
            i32 i = 0;
            for (; i + 4 <= plane; i += 4) {
                v128_t a = wasm_v128_load(x + i), b = wasm_v128_load(y + i), d = wasm_v128_load(z + i);
                wasm_v128_store(to + i, weighted(a, m[c][0], b, m[c][1], d, m[c][2], m[c][3]));
            }
            for (; i < plane; i++) to[i] = x[i] * m[c][0] + m[c][3] + y[i] * m[c][1] + z[i] * m[c][2];
        }
    }
}

// Full-range YCbCr of JPEG (ITU-R BT.601), all channels in [0, 1]; [batches, 3, plane] in and out.
void EXPORT(rgb_to_ycbcr)(const float *in, float *out, i32 batches, i32 plane) {
    static const float m[3][4] = {{0.299f, 0.587f, 0.114f, 0.0f},
                                  {-0.168735892f, -0.331264108f, 0.5f, 0.5f},
                                  {0.5f, -0.418687589f, -0.081312411f, 0.5f}};
    convert(in, out, batches, plane, m);
}

void EXPORT(ycbcr_to_rgb)(const float *in, float *out, i32 batches, i32 plane) {
    static const float m[3][4] = {{1.0f, 0.0f, 1.402f, -0.701f},
                                  {1.0f, -0.344136286f, -0.714136286f, 0.529136286f},
                                  {1.0f, 1.772f, 0.0f, -0.886f}};
    convert(in, out, batches, plane, m);
}

// Blur ----------------------------------------------------------------------------------------------------------------

// The mean of each 3 × 3 window, without padding: [planes, h, w] -> [planes, h - 2, w - 2].
void EXPORT(box3)(const float *x, float *out, i32 planes, i32 h, i32 w) {
    const v128_t ninth = wasm_f32x4_const_splat(1.0f / 9.0f);
    for (i32 p = 0; p < planes; p++, x += h * w) {
        for (i32 y = 0; y + 2 < h; y++, out += w - 2) {
            const float *a = x + y * w, *b = a + w, *c = b + w;
            i32 i = 0;
            for (; i + 4 <= w - 2; i += 4) {
                v128_t sum = wasm_f32x4_const_splat(0.0f);
                for (i32 k = 0; k < 3; k++) {
                    sum = wasm_f32x4_add(sum, wasm_v128_load(a + i + k));
                    sum = wasm_f32x4_add(sum, wasm_v128_load(b + i + k));
                    sum = wasm_f32x4_add(sum, wasm_v128_load(c + i + k));
                }
                wasm_v128_store(out + i, wasm_f32x4_mul(sum, ninth));
            }
            for (; i < w - 2; i++) {
                float sum = 0.0f;
                for (i32 k = i; k < i + 3; k++) sum += a[k] + b[k] + c[k];
                out[i] = sum * (1.0f / 9.0f);
            }
        }
    }
}

// Selection -----------------------------------------------------------------------------------------------------------

// Whether (a, at i) comes before (b, at j): greater first, NaN as the greatest, equal ones in their order.
INLINE i32 before(float a, i32 i, float b, i32 j) {
    if (a != a || b != b) return (a != a) && (b == b || i < j);
    return a > b || (a == b && i < j);
}

// The k greatest of each row in descending order, and where they stood: [rows, n] -> [rows, k] twice.
// A heap of the best k, the worst of them on top, in the outputs themselves; then sorted in place.
INLINE void sink(float *value, i32 *index, i32 root, i32 count) {
    float v = value[root];
    i32 at = index[root];
    for (i32 child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && before(value[child], index[child], value[child + 1], index[child + 1])) child++;
        if (!before(v, at, value[child], index[child])) break;
        value[root] = value[child];
        index[root] = index[child];
    }
    value[root] = v;
    index[root] = at;
}

i32 EXPORT(top_k)(const float *x, float *values, i32 *indices, i32 rows, i32 n, i32 k) {
    if (k < 1 || k > n) return 1;
    for (i32 row = 0; row < rows; row++, x += n, values += k, indices += k) {
        for (i32 i = 0; i < k; i++) {
            values[i] = x[i];
            indices[i] = i;
        }
        for (i32 i = k / 2 - 1; i >= 0; i--) sink(values, indices, i, k);
        for (i32 i = k; i < n; i++) {
            if (!before(x[i], i, values[0], indices[0])) continue;
            values[0] = x[i];
            indices[0] = i;
            sink(values, indices, 0, k);
        }
        for (i32 last = k - 1; last > 0; last--) {
            float v = values[0];
            i32 at = indices[0];
            values[0] = values[last];
            indices[0] = indices[last];
            values[last] = v;
            indices[last] = at;
            sink(values, indices, 0, last);
        }
    }
    return 0;
}

// Convolution ---------------------------------------------------------------------------------------------------------
//
// A matrix product: filter [outputs, K] times the windows of the image [K, pixels], where K = channels × height × width of
// a filter. DEPTH of K are done at a time: the filters are packed in fours, then the windows of WIDE pixels are gathered
// into a tile small enough for the first-level cache, which is also where padding, strides and dilations end; blocks of
// 4 outputs × 8 pixels stay in registers.

enum { PIXELS = 8, PANELS = 4, WIDE = PIXELS * PANELS, DEPTH = 240, FOURS = 32 };

static float tile[PANELS][DEPTH][PIXELS] __attribute__((aligned(64)));
static float filters[FOURS][DEPTH][4] __attribute__((aligned(64)));

typedef struct {
    i32 channels, h, w, outputs, kernel_h, kernel_w, out_w, pixels, top, left, stride_h, stride_w, dilation_h, dilation_w;
} Shape;

// One panel of the tile: rows [first, first + depth) of K for `count` pixels from `start`; zeros for the rest.
static void gather(float (*panel)[PIXELS], const float *x, const Shape *s, i32 first, i32 depth, i32 start, i32 count) {
    i32 out_y = start / s->out_w, out_x = start % s->out_w, area = s->kernel_h * s->kernel_w;
    i32 straight = s->stride_w == 1 && count == PIXELS && out_x + PIXELS <= s->out_w;
    i32 tap_y = first % area / s->kernel_w, tap_x = first % s->kernel_w;
    const float *plane = x + first / area * s->h * s->w;
    for (i32 k = 0; k < depth; k++) {
        i32 dy = tap_y * s->dilation_h - s->top, dx = tap_x * s->dilation_w - s->left;
        i32 y = out_y * s->stride_h + dy, column = out_x + dx;
        if (straight && y >= 0 && y < s->h && column >= 0 && column + PIXELS <= s->w) {
            const float *from = plane + y * s->w + column;
            for (i32 i = 0; i < PIXELS; i += 4) wasm_v128_store(panel[k] + i, wasm_v128_load(from + i));
        } else {
            i32 row = out_y, at = out_x;
            for (i32 i = 0; i < PIXELS; i++) {
                i32 from_y = row * s->stride_h + dy, from_x = at * s->stride_w + dx;
                i32 inside = i < count && from_y >= 0 && from_y < s->h && from_x >= 0 && from_x < s->w;
                panel[k][i] = inside ? plane[from_y * s->w + from_x] : 0.0f;
                if (++at == s->out_w) at = 0, row++;
            }
        }
        if (++tap_x == s->kernel_w) {
            tap_x = 0;
            if (++tap_y == s->kernel_h) tap_y = 0, plane += s->h * s->w;
        }
    }
}

// Pack `depth` of K of up to 4 × FOURS filters; zeros where there are no four.
static void pack(const float *filter, i32 count, i32 depth, i32 total) {
    for (i32 o = 0; o < ((count + 3) & ~3); o++) {
        const float *from = filter + o * total;
        for (i32 k = 0; k < depth; k++) filters[o / 4][k][o % 4] = o < count ? from[k] : 0.0f;
    }
}

// sums[4 outputs][8 pixels] += four × panel
INLINE void block(const float (*four)[4], const float (*panel)[PIXELS], i32 depth, v128_t sum[4][2]) {
    v128_t a0 = sum[0][0], a1 = sum[0][1], b0 = sum[1][0], b1 = sum[1][1];
    v128_t c0 = sum[2][0], c1 = sum[2][1], d0 = sum[3][0], d1 = sum[3][1];
    // Sixteen steps with a way out after each: a compiler that moves arithmetic to its first use (Cranelift) leaves it in its
    // step, where the registers suffice, and the check for interruption at the end of the loop is paid once in sixteen.
#define STEP                                                                                             \
    {                                                                                                    \
        v128_t x0 = wasm_v128_load(panel[k]), x1 = wasm_v128_load(panel[k] + 4), f = wasm_v128_load(four[k]); \
        v128_t a = wasm_i32x4_shuffle(f, f, 0, 0, 0, 0), b = wasm_i32x4_shuffle(f, f, 1, 1, 1, 1);       \
        v128_t c = wasm_i32x4_shuffle(f, f, 2, 2, 2, 2), d = wasm_i32x4_shuffle(f, f, 3, 3, 3, 3);       \
        a0 = wasm_f32x4_relaxed_madd(a, x0, a0), a1 = wasm_f32x4_relaxed_madd(a, x1, a1);                \
        b0 = wasm_f32x4_relaxed_madd(b, x0, b0), b1 = wasm_f32x4_relaxed_madd(b, x1, b1);                \
        c0 = wasm_f32x4_relaxed_madd(c, x0, c0), c1 = wasm_f32x4_relaxed_madd(c, x1, c1);                \
        d0 = wasm_f32x4_relaxed_madd(d, x0, d0), d1 = wasm_f32x4_relaxed_madd(d, x1, d1);                \
        if (++k == depth) break;                                                                         \
    }
    for (i32 k = 0;;) { STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP }
#undef STEP
    sum[0][0] = a0, sum[0][1] = a1, sum[1][0] = b0, sum[1][1] = b1;
    sum[2][0] = c0, sum[2][1] = c1, sum[3][0] = d0, sum[3][1] = d1;
}

// Multiply up to four filters by a panel into `width` pixels at `out`; `fresh` sums start with `bias` (or 0 where null).
static void multiply(const float (*four)[4], const float (*panel)[PIXELS], const float *bias, float *out, i32 pixels, i32 live,
                     i32 width, i32 depth, i32 fresh) {
    v128_t sum[4][2];
    float edge[PIXELS];
    for (i32 j = 0; j < 4; j++) {
        const float *at = out + j * pixels;
        if (fresh || j >= live) {
            sum[j][0] = sum[j][1] = wasm_f32x4_splat(bias && j < live ? bias[j] : 0.0f);
            continue;
        }
        if (width < PIXELS) {
            for (i32 i = 0; i < PIXELS; i++) edge[i] = i < width ? at[i] : 0.0f;
            at = edge;
        }
        for (i32 v = 0; v < 2; v++) sum[j][v] = wasm_v128_load(at + 4 * v);
    }
    block(four, panel, depth, sum);
    for (i32 j = 0; j < live; j++) {
        float *at = out + j * pixels, *to = width == PIXELS ? at : edge;
        for (i32 v = 0; v < 2; v++) wasm_v128_store(to + 4 * v, sum[j][v]);
        if (to == edge) for (i32 i = 0; i < width; i++) at[i] = edge[i];
    }
}

// One image and one group of filters.
static void convolve(const float *x, const float *filter, const float *bias, float *out, const Shape *s) {
    i32 total = s->channels * s->kernel_h * s->kernel_w;
    for (i32 first = 0; first < total; first += DEPTH) {
        i32 depth = least(DEPTH, total - first);
        for (i32 output = 0; output < s->outputs; output += 4 * FOURS) {
            i32 outputs = least(4 * FOURS, s->outputs - output);
            pack(filter + output * total + first, outputs, depth, total);
            for (i32 start = 0; start < s->pixels; start += WIDE) {
                i32 count = least(WIDE, s->pixels - start);
                for (i32 at = 0; at < count; at += PIXELS)
                    gather(tile[at / PIXELS], x, s, first, depth, start + at, least(PIXELS, count - at));
                for (i32 o = 0; o < outputs; o += 4) {
                    for (i32 at = 0; at < count; at += PIXELS)
                        multiply(filters[o / 4], tile[at / PIXELS], bias ? bias + output + o : 0,
                                 out + (output + o) * s->pixels + start + at, s->pixels, least(4, outputs - o),
                                 least(PIXELS, count - at), depth, first == 0);
                }
            }
        }
    }
}

// WebNN's conv2d: input [batches, channels, h, w], filter [outputs, channels / groups, kernel_h, kernel_w],
// bias [outputs] or null, out [batches, outputs, out_h, out_w].
void EXPORT(conv2d)(const float *x, const float *filter, const float *bias, float *out, i32 batches, i32 channels, i32 h, i32 w,
                    i32 outputs, i32 kernel_h, i32 kernel_w, i32 out_h, i32 out_w, i32 top, i32 left, i32 stride_h,
                    i32 stride_w, i32 dilation_h, i32 dilation_w, i32 groups) {
    Shape s = {channels / groups, h, w, outputs / groups, kernel_h, kernel_w, out_w, out_h * out_w, top, left,
               stride_h, stride_w, dilation_h, dilation_w};
    i32 weights = s.outputs * s.channels * kernel_h * kernel_w;
    for (i32 n = 0; n < batches * groups; n++, x += s.channels * h * w, out += s.outputs * s.pixels) {
        i32 group = n % groups;
        convolve(x, filter + group * weights, bias ? bias + group * s.outputs : 0, out, &s);
    }
}
