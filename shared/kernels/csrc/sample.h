/* One token for a row of logits: weights, cuts, and one draw by the row's noise.
 *
 * A weight is exp((logit - best) / temperature), so the best token has weight 1. Sums are double, in fixed blocks in
 * order of token id; cuts look at tokens in order of rising gap to the best, equals by id. Every function here handles
 * one row, so no result depends on a neighbour.
 */
#pragma once
#include "vector.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>

#define SUMMED 512        /* tokens of a block; a multiple of LANES */
#define MOST_EXPONENT 87.0f /* beyond it a weight is 0: next to a total of at least 1 it is nothing */
#define SHELL 2.0         /* exponents that candidates are collected by, as long as that goes on … */
#define FINE 16.0         /* … up to here; then by doubling */
#define FEW 24 /* keys that are sorted by insertion */

typedef struct {
  const float *logits; /* [vocab] */
  double temperature, top_p, min_p, noise;
  int32_t top_k; /* 0: off */
  int32_t token; /* what was drawn */
} draw;

typedef struct {
  const float *logits;
  int size;
  float best;
  float *weights;       /* [size up to a multiple of LANES] */
  double *sums;         /* [blocks]: all weights up to the end of each */
  uint64_t *keys, *spare; /* [size + 8]: gap << 32 | id, which sorts as gap and id do, for floats that are not negative */
} row_space;

/* Sixteen logits; those beyond the row have no weight. */
static inline __m512 load_logits(const row_space *s, int i) {
  int left = s->size - i;
  __mmask16 own = left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), own, s->logits + i);
}

/* How far logits lie below the best one; never -0, whose bits would sort last. */
static inline __m512 gaps16(const row_space *s, int i) {
  return _mm512_abs_ps(_mm512_sub_ps(_mm512_set1_ps(s->best), load_logits(s, i)));
}

static float best_logit(const row_space *s) {
  __m512 best = _mm512_set1_ps(-INFINITY);
  for (int i = 0; i < s->size; i += LANES) best = _mm512_max_ps(best, load_logits(s, i));
  return _mm512_reduce_max_ps(best);
}

/* The largest float that is not above x >= 0. */
static float at_most(double x) {
  float nearest = (float)x;
  return nearest > x ? nextafterf(nearest, 0) : nearest;
}

/* What weighs less than min_p is told by its gap: at a high temperature many weights round to 1. The exponent is kept in
 * two floats: rounded to one, all weights of a flat tail would be wrong in the same direction. */
static void weigh(const row_space *s, double temperature, double min_p) {
  double inverse = fmin(1.0 / temperature, FLT_MAX);
  __m512 high = _mm512_set1_ps((float)inverse), low = _mm512_set1_ps((float)(inverse - (float)inverse));
  __m512 widest = _mm512_set1_ps(at_most(-temperature * log(min_p)));
  for (int i = 0; i < s->size; i += LANES) {
    __m512 gap = gaps16(s, i);
    __m512 exponent = _mm512_mul_ps(gap, high);
    __m512 rest = _mm512_fmadd_ps(gap, low, _mm512_fmsub_ps(gap, high, exponent));
    __m512 weight = exp16(_mm512_sub_ps(_mm512_setzero_ps(), exponent));
    weight = _mm512_fnmadd_ps(weight, rest, weight);
    __mmask16 counts = _mm512_cmp_ps_mask(exponent, _mm512_set1_ps(MOST_EXPONENT), _CMP_LT_OQ);
    counts = _mm512_mask_cmp_ps_mask(counts, gap, widest, _CMP_LE_OQ);
    _mm512_storeu_ps(s->weights + i, _mm512_maskz_mov_ps(counts, weight));
  }
}

/* Fills the running sums; returns the total. */
static double add_up(const row_space *s) {
  double total = 0;
  for (int first = 0, block = 0; first < s->size; first += SUMMED, block++) {
    __m512d even = _mm512_setzero_pd(), odd = _mm512_setzero_pd();
    int last = first + SUMMED < s->size ? first + SUMMED : s->size;
    for (int i = first; i < last; i += LANES) {
      even = _mm512_add_pd(even, _mm512_cvtps_pd(_mm256_loadu_ps(s->weights + i)));
      odd = _mm512_add_pd(odd, _mm512_cvtps_pd(_mm256_loadu_ps(s->weights + i + LANES / 2)));
    }
    total += _mm512_reduce_add_pd(_mm512_add_pd(even, odd));
    s->sums[block] = total;
  }
  return total;
}

/* The first token whose running sum lies above noise * total; one of weight 0 is never hit. */
static int32_t invert(const row_space *s, double total, double noise) {
  double target = fmin(noise * total, nextafter(total, 0));
  int block = 0, blocks = (s->size + SUMMED - 1) / SUMMED;
  while (block < blocks - 1 && s->sums[block] <= target) block++;
  double running = block ? s->sums[block - 1] : 0;
  int last = (block + 1) * SUMMED < s->size ? (block + 1) * SUMMED : s->size, token = 0;
  for (int i = block * SUMMED; i < last && running <= target; i++)
    if (s->weights[i] > 0) {
      running += s->weights[i];
      token = i; /* also where the block's own sum, added in another order, came out a little higher */
    }
  return token;
}

static inline int append_keys(uint64_t *keys, __mmask8 which, __m256i gaps, __m256i ids) {
  __m512i key = _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(gaps), 32), _mm512_cvtepu32_epi64(ids));
  _mm512_storeu_si512(keys, _mm512_maskz_compress_epi64(which, key));
  return __builtin_popcount(which);
}

/* Keys of the tokens with a weight whose gap lies in (above, up_to], in order of id; returns how many, adds up what they weigh. */
static int collect(const row_space *s, float above, float up_to, uint64_t *keys, double *sum) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512d even = _mm512_setzero_pd(), odd = _mm512_setzero_pd();
  int count = 0;
  for (int i = 0; i < s->size; i += LANES) {
    __m512 gap = gaps16(s, i);
    __mmask16 in = _mm512_cmp_ps_mask(gap, _mm512_set1_ps(up_to), _CMP_LE_OQ);
    in = _mm512_mask_cmp_ps_mask(in, gap, _mm512_set1_ps(above), _CMP_GT_OQ);
    in = _mm512_mask_cmp_ps_mask(in, _mm512_loadu_ps(s->weights + i), _mm512_setzero_ps(), _CMP_GT_OQ);
    if (!in) continue;
    even = _mm512_add_pd(even, _mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)in, s->weights + i)));
    odd = _mm512_add_pd(odd, _mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)(in >> 8), s->weights + i + LANES / 2)));
    __m512i bits = _mm512_castps_si512(gap), ids = _mm512_add_epi32(lanes, _mm512_set1_epi32(i));
    count += append_keys(keys + count, (__mmask8)in, _mm512_castsi512_si256(bits), _mm512_castsi512_si256(ids));
    count += append_keys(keys + count, (__mmask8)(in >> 8), _mm512_extracti64x4_epi64(bits, 1), _mm512_extracti64x4_epi64(ids, 1));
  }
  *sum += _mm512_reduce_add_pd(_mm512_add_pd(even, odd));
  return count;
}

static void sort_few(uint64_t *keys, int count) {
  for (int i = 1; i < count; i++) {
    uint64_t key = keys[i];
    int to = i;
    for (; to > 0 && keys[to - 1] > key; to--) keys[to] = keys[to - 1];
    keys[to] = key;
  }
}

static inline double weight_of(const row_space *s, uint64_t key) { return s->weights[(uint32_t)key]; }

/* Of `count` keys the one, in rising order, at which k are reached or their weights reach `wanted`, whichever comes
 * first; else the last one. `sum` is then the weight up to there. Digit by digit, looking only at keys that share the
 * digits before; keys of equal gap stay in order of id.
 */
static uint64_t find_last(const row_space *s, int count, int k, double wanted, double *sum) {
  static const int shifts[] = {52, 41, 32}, masks[] = {2047, 2047, 511};
  int32_t numbers[2048];
  double weights[2048];
  uint64_t *from = s->keys;
  int before = 0;
  *sum = 0;
  for (int pass = 0; pass < 3 && count > FEW; pass++) {
    const int shift = shifts[pass], mask = masks[pass];
    memset(numbers, 0, sizeof(numbers));
    memset(weights, 0, sizeof(weights));
    int most = 0;
    for (int i = 0; i < count; i++) {
      int digit = from[i] >> shift & mask;
      most = digit > most ? digit : most;
      numbers[digit]++;
      weights[digit] += weight_of(s, from[i]);
    }
    int digit = 0;
    for (; digit < most && before + numbers[digit] < k && *sum + weights[digit] < wanted; digit++) {
      before += numbers[digit];
      *sum += weights[digit];
    }
    int left = 0;
    for (int i = 0; i < count; i++) {
      uint64_t key = from[i];
      s->spare[left] = key;
      left += (int)(key >> shift & mask) == digit;
    }
    from = s->spare;
    count = left;
  }
  if (count <= FEW) sort_few(from, count);
  for (int i = 0; i < count; i++) {
    *sum += weight_of(s, from[i]);
    if (before + i + 1 >= k || *sum >= wanted) return from[i];
  }
  return count ? from[count - 1] : 0;
}

/* Key of the last token that stays: at most k, and no more than it takes to reach top_p of what k leaves. */
static uint64_t last_kept(const row_space *s, const draw *d, int k, double total) {
  int count = 0;
  double sum = 0, enough = k < s->size ? INFINITY : d->top_p * total;
  float above = -1;
  /* Shells of tokens around the best one, until they suffice. */
  for (double exponent = SHELL; above < INFINITY && count < k && (sum < enough || !count);
       exponent = exponent < FINE ? exponent + SHELL : 2 * exponent) {
    float up_to = exponent > MOST_EXPONENT ? INFINITY : (float)(exponent * d->temperature);
    count += collect(s, above, up_to, s->keys + count, &sum);
    above = up_to;
  }
  if (k == s->size) return find_last(s, count, k, enough, &sum);
  uint64_t last = find_last(s, count, k, INFINITY, &sum);
  return d->top_p < 1 ? find_last(s, count, k, d->top_p * sum, &sum) : last;
}

/* Takes the weight of everything that comes after `last`. */
static void drop_after(const row_space *s, uint64_t last) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512 last_gap = _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)(last >> 32)));
  const __m512i last_id = _mm512_set1_epi32((int32_t)(uint32_t)last);
  for (int i = 0; i < s->size; i += LANES) {
    __m512 gap = gaps16(s, i);
    __mmask16 stays = _mm512_cmp_ps_mask(gap, last_gap, _CMP_LT_OQ);
    __mmask16 equal = _mm512_cmp_ps_mask(gap, last_gap, _CMP_EQ_OQ);
    stays |= _mm512_mask_cmp_epu32_mask(equal, _mm512_add_epi32(lanes, _mm512_set1_epi32(i)), last_id, _MM_CMPINT_LE);
    _mm512_storeu_ps(s->weights + i, _mm512_maskz_loadu_ps(stays, s->weights + i));
  }
}

static void draw_row(row_space *s, draw *d) {
  s->logits = d->logits;
  s->best = best_logit(s);
  weigh(s, d->temperature, d->min_p);
  double total = add_up(s);
  int k = d->top_k > 0 && d->top_k < s->size ? d->top_k : s->size;
  if (k < s->size || d->top_p < 1) {
    drop_after(s, last_kept(s, d, k, total));
    total = add_up(s);
  }
  d->token = invert(s, total, d->noise);
}

/* One token for each row, which holds a finite maximum and no NaN. Returns 0, or -1 if there is no memory. */
static int draw_rows(draw *rows, int count, int vocab) {
  size_t size = (size_t)vocab + LANES;
  row_space s = {.size = vocab, .weights = malloc(size * sizeof(float)), .sums = malloc((size / SUMMED + 1) * sizeof(double)),
                 .keys = malloc(size * sizeof(uint64_t)), .spare = malloc(size * sizeof(uint64_t))};
  int ok = s.weights && s.sums && s.keys && s.spare;
  for (int i = 0; ok && i < count; i++) draw_row(&s, rows + i);
  free(s.weights), free(s.sums), free(s.keys), free(s.spare);
  return ok ? 0 : -1;
}
