/* Causal attention of new rows over paged keys and values, one softmax pass over pairs of tiles of sixteen keys.
 *
 * A tile is sixteen consecutive slots that start at a multiple of sixteen positions. Keys and values are signed bytes with
 * a scale per 32 elements of a head; memory is what attention waits for. A head's part of a tile lies in one piece: keys as
 * [head_dim, 16], values as [16, head_dim], then the scales as [head_dim / 32, 16]. A query visits its keys from the oldest on,
 * in pairs of tiles that start at multiples of 32 positions, whatever else is computed beside it: its result depends on its
 * own position and the cache alone.
 */
#pragma once
#include "pool.h"
#include "vector.h"

#define MOST_QUERIES 16  /* new tokens of one sequence that share a converted tile */
#define MOST_HEAD_DIM 256
#define MOST_GROUP 16 /* query heads per key head */
#define TOGETHER 4    /* queries per pass over a pair */
#define PAIR (2 * LANES)

typedef struct { int32_t start, num_new, context, table; } span; /* rows of one sequence; table: where its blocks begin */

typedef struct {
  const float *qkv; /* [rows, heads + 2 kv_heads, head_dim], rotated */
  const uint8_t *keys, *values;
  const int32_t *tables;
  const span *spans;
  const int32_t *tasks; /* [tasks, 2]: span and its first query; times kv_heads */
  const quantised *out; /* [rows, heads * head_dim], nothing refined */
  int heads, kv_heads, head_dim, block_tokens, window;
  float scale, softcap;
} attention;

/* Bytes of one head's keys, or values, in a tile. */
static inline int64_t head_bytes(int dim) { return LANES * (dim + 4 * dim / GROUP); }

/* What one pair's 32 keys add to some queries: q[r] → most, total and acc of row r. `last`: keys anybody sees. */
static inline __attribute__((always_inline)) void attend_rows(
    const int rows, const float *const *q, const float *k, const float *v, const float *v_scales, int dim, const uint32_t *seen,
    int last, float scale, float softcap, float *most, float *total, float *acc) {
  __m512 low[TOGETHER], high[TOGETHER]; /* scores, then weights, of either tile */
  for (int r = 0; r < rows; r++) low[r] = high[r] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d++) {
    __m512 k0 = _mm512_load_ps(k + d * PAIR), k1 = _mm512_load_ps(k + d * PAIR + LANES);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
      __m512 element = _mm512_set1_ps(q[r][d]);
      low[r] = _mm512_fmadd_ps(k0, element, low[r]);
      high[r] = _mm512_fmadd_ps(k1, element, high[r]);
    }
  }
  __attribute__((aligned(64))) float weights[TOGETHER][PAIR], drops[LANES] = {0};
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++) {
    low[r] = _mm512_mul_ps(low[r], _mm512_set1_ps(scale));
    high[r] = _mm512_mul_ps(high[r], _mm512_set1_ps(scale));
    if (softcap > 0) {
      low[r] = _mm512_mul_ps(tanh16(_mm512_div_ps(low[r], _mm512_set1_ps(softcap))), _mm512_set1_ps(softcap));
      high[r] = _mm512_mul_ps(tanh16(_mm512_div_ps(high[r], _mm512_set1_ps(softcap))), _mm512_set1_ps(softcap));
    }
    const __m512 unseen = _mm512_set1_ps(-INFINITY);
    low[r] = _mm512_mask_mov_ps(unseen, (__mmask16)seen[r], low[r]);
    high[r] = _mm512_mask_mov_ps(unseen, (__mmask16)(seen[r] >> LANES), high[r]);
    float peak = _mm512_reduce_max_ps(_mm512_max_ps(low[r], high[r]));
    if (peak < most[r]) peak = most[r];
    drops[r] = most[r] - peak; /* -inf at the first keys: the sums are zero then */
    most[r] = peak;
    low[r] = _mm512_maskz_mov_ps((__mmask16)seen[r], exp16(_mm512_sub_ps(low[r], _mm512_set1_ps(peak))));
    high[r] = _mm512_maskz_mov_ps((__mmask16)(seen[r] >> LANES), exp16(_mm512_sub_ps(high[r], _mm512_set1_ps(peak))));
  }
  _mm512_store_ps(drops, exp16(_mm512_load_ps(drops)));
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++) total[r] = total[r] * drops[r] + _mm512_reduce_add_ps(_mm512_add_ps(low[r], high[r]));
  for (int d = 0; d < dim; d += GROUP) {
    __m512 a[TOGETHER], b[TOGETHER];
    __m512 low_scales = _mm512_load_ps(v_scales + d / GROUP * PAIR), high_scales = _mm512_load_ps(v_scales + d / GROUP * PAIR + LANES);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
      _mm512_store_ps(weights[r], _mm512_maskz_mul_ps((__mmask16)seen[r], low[r], low_scales));
      _mm512_store_ps(weights[r] + LANES, _mm512_maskz_mul_ps((__mmask16)(seen[r] >> LANES), high[r], high_scales));
      a[r] = _mm512_mul_ps(_mm512_load_ps(acc + r * dim + d), _mm512_set1_ps(drops[r]));
      b[r] = _mm512_mul_ps(_mm512_load_ps(acc + r * dim + d + LANES), _mm512_set1_ps(drops[r]));
    }
    for (int j = 0; j < last; j++) {
      __m512 v0 = _mm512_load_ps(v + j * dim + d), v1 = _mm512_load_ps(v + j * dim + d + LANES);
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++) {
        __m512 weight = _mm512_set1_ps(weights[r][j]);
        a[r] = _mm512_fmadd_ps(v0, weight, a[r]);
        b[r] = _mm512_fmadd_ps(v1, weight, b[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
      _mm512_store_ps(acc + r * dim + d, a[r]);
      _mm512_store_ps(acc + r * dim + d + LANES, b[r]);
    }
  }
}

/* Ask for a tile before it is needed: blocks lie anywhere in memory. */
static inline void fetch_tile(const uint8_t *keys, const uint8_t *values, int64_t size) {
  for (int64_t line = 0; line < size; line += 64) {
    _mm_prefetch((const char *)keys + line, _MM_HINT_T0);
    _mm_prefetch((const char *)values + line, _MM_HINT_T0);
  }
}

static inline __m512 load_bytes(const uint8_t *from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from))); }

/* One tile as floats, into its half of a pair: keys [head_dim, 32] with their scales, values [32, head_dim] without: theirs
 * go into the weights. */
static inline void convert_tile(const uint8_t *keys, const uint8_t *values, int dim, int half, float *k, float *v, float *v_scales) {
  for (int g = 0; g < dim / GROUP; g++) {
    __m512 scale = _mm512_loadu_ps(keys + LANES * dim + g * 4 * LANES);
    for (int d = g * GROUP; d < (g + 1) * GROUP; d++) _mm512_store_ps(k + d * PAIR + half * LANES, _mm512_mul_ps(load_bytes(keys + d * LANES), scale));
    _mm512_store_ps(v_scales + g * PAIR + half * LANES, _mm512_loadu_ps(values + LANES * dim + g * 4 * LANES));
  }
  for (int i = 0; i < dim * LANES; i += LANES) _mm512_store_ps(v + half * LANES * dim + i, load_bytes(values + i));
}

/* Which of the 32 keys from `first` on the query at `position` sees. */
static inline uint32_t visible(int position, int first, int window) {
  int newest = position - first, eldest = window > 0 ? newest - window + 1 : 0; /* counted from `first` */
  if (newest < 0 || eldest >= PAIR) return 0;
  uint32_t mask = newest >= PAIR - 1 ? ~0u : (1u << (newest + 1)) - 1;
  return eldest > 0 ? mask & ~0u << eldest : mask;
}

/* The new tokens [first, first + count) of a span, for the query heads of one key head. */
static void attend(const attention *a, const span *s, int first, int count, int kv_head) {
  const int dim = a->head_dim, group = a->heads / a->kv_heads, width = (a->heads + 2 * a->kv_heads) * dim;
  const int64_t size = head_bytes(dim);
  __attribute__((aligned(64))) float acc[MOST_QUERIES * MOST_GROUP * MOST_HEAD_DIM], v_scales[MOST_HEAD_DIM / GROUP * PAIR];
  __attribute__((aligned(64))) float k[MOST_HEAD_DIM * PAIR], v[PAIR * MOST_HEAD_DIM];
  float most[MOST_QUERIES * MOST_GROUP], total[MOST_QUERIES * MOST_GROUP];
  const float *q[MOST_QUERIES * MOST_GROUP];
  uint32_t seen[MOST_QUERIES * MOST_GROUP];
  for (int i = 0; i < count * group; i++) {
    most[i] = -INFINITY;
    total[i] = 0;
    q[i] = a->qkv + (int64_t)(s->start + first + i / group) * width + (kv_head * group + i % group) * dim;
    for (int d = 0; d < dim; d += LANES) _mm512_store_ps(acc + i * dim + d, _mm512_setzero_ps());
  }
  int position = s->context - s->num_new + first; /* of the first query */
  int oldest = a->window > 0 && position - a->window + 1 > 0 ? position - a->window + 1 : 0;
  int tiles_per_block = a->block_tokens / LANES, num_tiles = (position + count + LANES - 1) / LANES;
  const int32_t *table = a->tables + s->table;
#define TILE_AT(tile) (((int64_t)table[(tile) / tiles_per_block] * tiles_per_block + (tile) % tiles_per_block) * a->kv_heads + kv_head) * size
  for (int tile = oldest / PAIR * 2; tile < num_tiles; tile += 2) {
    for (int half = 0; half < 2 && tile + half < num_tiles; half++) {
      if (tile + half + 2 < num_tiles) fetch_tile(a->keys + TILE_AT(tile + half + 2), a->values + TILE_AT(tile + half + 2), size);
      convert_tile(a->keys + TILE_AT(tile + half), a->values + TILE_AT(tile + half), dim, half, k, v, v_scales);
    }
    int from = count, to = 0; /* queries that see any of the pair: consecutive ones */
    for (int i = 0; i < count; i++) {
      uint32_t mask = visible(position + i, tile * LANES, a->window);
      if (!mask) continue;
      for (int h = 0; h < group; h++) seen[i * group + h] = mask;
      if (i < from) from = i;
      to = i + 1;
    }
    for (int i = from * group; i < to * group; i += TOGETHER) {
      int rows = to * group - i < TOGETHER ? to * group - i : TOGETHER, last = 32 - __builtin_clz(seen[i + rows - 1]);
#define SOME_ROWS(n) \
  case n: attend_rows(n, q + i, k, v, v_scales, dim, seen + i, last, a->scale, a->softcap, most + i, total + i, acc + i * dim); break;
      switch (rows) { SOME_ROWS(1) SOME_ROWS(2) SOME_ROWS(3) SOME_ROWS(4) }
    }
  }
  int groups_per_row = a->heads * dim / GROUP;
  for (int i = 0; i < count; i++)
    for (int h = 0; h < group; h++) {
      int at = i * group + h;
      __m512 factor = _mm512_set1_ps(1.0f / total[at]);
      for (int d = 0; d < dim; d += LANES) _mm512_store_ps(acc + at * dim + d, _mm512_mul_ps(_mm512_load_ps(acc + at * dim + d), factor));
      int64_t row = s->start + first + i;
      int out = (kv_head * group + h) * dim / GROUP;
      for (int g = 0; g < dim / GROUP; g++) quantise_at(acc + at * dim + g * GROUP, a->out, group_at(row, out + g, groups_per_row));
    }
}

/* Write one head's key and value into their slot of a tile. */
static void store_head(const float *k, const float *v, int dim, int lane, uint8_t *keys, uint8_t *values) {
  for (int g = 0; g < dim / GROUP; g++) {
    int8_t q[GROUP];
    float sum, scale;
    quantise_group(k + g * GROUP, q, &scale, &sum);
    for (int i = 0; i < GROUP; i++) keys[(g * GROUP + i) * LANES + lane] = (uint8_t)q[i];
    ((float *)(keys + LANES * dim))[g * LANES + lane] = scale;
    quantise_group(v + g * GROUP, (int8_t *)values + lane * dim + g * GROUP, &scale, &sum);
    ((float *)(values + LANES * dim))[g * LANES + lane] = scale;
  }
}

static void attention_chunk(void *context, int chunk) {
  const attention *a = context;
  const int32_t *task = a->tasks + chunk / a->kv_heads * 2;
  const span *s = a->spans + task[0];
  int count = s->num_new - task[1] < MOST_QUERIES ? s->num_new - task[1] : MOST_QUERIES;
  attend(a, s, task[1], count, chunk % a->kv_heads);
}
