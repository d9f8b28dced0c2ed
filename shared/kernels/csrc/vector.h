/* Sixteen floats at a time: exponentials, bf16, and the quantisation of activations.
 *
 * Activations are signed bytes with one scale per group of GROUP; beside the scale stands scale * sum, which the
 * weights' offsets are multiplied with. A few groups of an input hold channels much larger than the rest, whose rounding
 * would be most of the error: these are refined, which means that what rounding left over is quantised too and stands as
 * one more group at the end of the row. Every function here handles one row, so no result depends on a neighbour.
 */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define GROUP 32
#define LANES 16

#define MOST_REFINED 8
#define PANEL 16 /* rows whose groups lie side by side */

typedef struct { int8_t *q; float *scale; float *sum; } quantised; /* [panels, groups, 16 rows, 32], without the 32 for the others */

/* Where a row's group lies, `groups` to a row. */
static inline int64_t group_at(int64_t row, int group, int groups) { return (row / PANEL * groups + group) * PANEL + row % PANEL; }

static inline __m512 exp16(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-103.0f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(y, n);
}

static inline __m512 sigmoid16(__m512 x) {
  __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(x, _mm512_set1_ps(-80.0f))));
  return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

/* tanh(x) = 2 sigmoid(2x) - 1 */
static inline __m512 tanh16(__m512 x) {
  __m512 s = sigmoid16(_mm512_add_ps(x, x));
  return _mm512_sub_ps(_mm512_add_ps(s, s), _mm512_set1_ps(1.0f));
}

static inline __m512 gelu16(__m512 x) {
  __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
  __m512 inner = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
  __m512 t = tanh16(_mm512_mul_ps(inner, _mm512_set1_ps(0.7978845608028654f)));
  __m512 half = _mm512_mul_ps(x, _mm512_set1_ps(0.5f));
  return _mm512_fmadd_ps(half, t, half);
}

static inline __m512 load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

/* One group: 32 floats → 32 bytes, its scale and scale * sum. */
static inline void quantise_group(const float *x, int8_t *q, float *scale, float *sum) {
  __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + LANES);
  float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  float inverse = most > 0 ? 127.0f / most : 0.0f;
  __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(inverse)));
  __m512i qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(inverse)));
  _mm_storeu_si128((__m128i *)q, _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128((__m128i *)(q + LANES), _mm512_cvtsepi32_epi8(qb));
  *scale = most / 127.0f;
  *sum = *scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
}

static inline void quantise_at(const float *x, const quantised *out, int64_t group) {
  quantise_group(x, out->q + group * GROUP, out->scale + group, out->sum + group);
}

/* What rounding left of group `from`, as group `to`. */
static inline void refine_at(const float *x, const quantised *out, int64_t from, int64_t to) {
  float rest[GROUP];
  __m512 scale = _mm512_set1_ps(out->scale[from]);
  for (int half = 0; half < GROUP; half += LANES) {
    __m512 q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(out->q + from * GROUP + half))));
    _mm512_storeu_ps(rest + half, _mm512_fnmadd_ps(q, scale, _mm512_loadu_ps(x + half)));
  }
  quantise_at(rest, out, to);
}

/* Scale factor of an RMS norm: 1 / rms(x). Sizes are multiples of 16. */
static inline float inverse_rms(const float *x, int size, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < size; i += LANES) {
    __m512 v = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  return 1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + eps);
}

static inline void rms_norm(const float *x, const float *weight, int size, float eps, float *out) {
  __m512 factor = _mm512_set1_ps(inverse_rms(x, size, eps));
  for (int i = 0; i < size; i += LANES)
    _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor), _mm512_loadu_ps(weight + i)));
}
