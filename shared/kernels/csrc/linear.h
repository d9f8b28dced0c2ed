/* Products of quantised rows with quantised weights: exact integer sums per group of 32, floats across groups.
 *
 * Weights are unsigned bytes or nibbles, value = scale * q + offset per (output, group). They lie in tiles of sixteen
 * outputs, a tile group by group: its integers, then sixteen scales and sixteen offsets, in fp16 where that is exact.
 * Four consecutive inputs of each output stand side by side, as vpdpbusd takes them; a nibble byte holds quad i below and
 * quad i + 4 above. A weight is thus read once, from front to back. The order of the float sums depends on neither the
 * number of rows nor the number of threads.
 */
#pragma once
#include "pool.h"
#include "vector.h"

#define CHUNK_PRODUCTS 1500000.0

#define ABREAST 4
#define AHEAD 4096 /* bytes of weights asked for before they are needed: one row alone waits for little else */

typedef struct {
  int32_t rows, inputs, bits, has_half_scales, num_refined;
  const uint8_t *tiles;
  const float *bias;      /* [rows] in tile order or NULL */
  const int32_t *refined; /* groups of the input that come twice */
} linear;

static inline int input_groups(const linear *w) { return w->inputs / GROUP + w->num_refined; }

static inline void quantise_row(const float *x, const linear *into, const quantised *out, int64_t row) {
  int own = into->inputs / GROUP, groups = input_groups(into);
  for (int g = 0; g < own; g++) quantise_at(x + g * GROUP, out, group_at(row, g, groups));
  for (int i = 0; i < into->num_refined; i++) {
    int g = into->refined[i];
    refine_at(x + g * GROUP, out, group_at(row, g, groups), group_at(row, own + i, groups));
  }
}

static inline int64_t group_bytes(const linear *w) { return GROUP * LANES * w->bits / 8 + (w->has_half_scales ? 4 : 8) * LANES; }

static inline int64_t tile_bytes(const linear *w) { return w->inputs / GROUP * group_bytes(w); }

static inline void load_scales(const uint8_t *at, int has_half, __m512 *scale, __m512 *offset) {
  if (has_half) {
    *scale = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)at));
    *offset = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(at + 2 * LANES)));
  } else {
    *scale = _mm512_load_ps(at);
    *offset = _mm512_load_ps(at + 4 * LANES);
  }
}

static inline __attribute__((always_inline)) void load_group(const uint8_t *q, int bits, __m512i w[8]) {
  if (bits == 8) {
    for (int i = 0; i < 8; i++) w[i] = _mm512_loadu_si512(q + i * 64);
    return;
  }
  const __m512i low = _mm512_set1_epi8(0x0f);
  for (int i = 0; i < 4; i++) {
    __m512i both = _mm512_loadu_si512(q + i * 64);
    w[i] = _mm512_and_si512(both, low);
    w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

/* sums + weights * one row's quad, for sixteen outputs. By hand: gcc loads the quad into a register of its own first. */
static inline __attribute__((always_inline)) __m512i add_products(__m512i sums, __m512i weights, const int32_t *quad) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*quad));
  return sums;
}

/* The first `rows` rows of a panel by one tile → out[r * stride + 0 … 15], added to what is there if `adds`. */
static inline __attribute__((always_inline)) void tile_product(
    const int rows, const int bits, const linear *w, int tile, const quantised *x, int64_t panel, float *out, int64_t stride, int adds) {
  const int own = w->inputs / GROUP, groups = input_groups(w);
  const uint8_t *weights = w->tiles + tile * tile_bytes(w);
  const int64_t size = group_bytes(w);
  const int64_t first = panel * groups * PANEL;
  const int32_t *quads = (const int32_t *)(x->q + first * GROUP);
  const float *xs = x->scale + first, *xsum = x->sum + first;
  __m512 sums[PANEL];
  for (int r = 0; r < rows; r++) sums[r] = w->bias ? _mm512_loadu_ps(w->bias + tile * LANES) : _mm512_setzero_ps();
  for (int g = 0; g < groups; g++, quads += PANEL * GROUP / 4, xs += PANEL, xsum += PANEL) {
    const uint8_t *from = weights + (g < own ? g : w->refined[g - own]) * size;
    for (int64_t line = 0; line < size; line += 64) _mm_prefetch((const char *)from + AHEAD + line, _MM_HINT_T1);
    __m512i v[8];
    __m512 ws, wo;
    load_group(from, bits, v);
    load_scales(from + GROUP * LANES * bits / 8, w->has_half_scales, &ws, &wo);
    /* Four rows abreast: one row's chain of sums alone would fill the processor's queue with waiting operations. */
#pragma GCC unroll 4
    for (int first_row = 0; first_row < rows; first_row += ABREAST) {
      const int some = rows - first_row < ABREAST ? rows - first_row : ABREAST;
      __m512i dots[ABREAST];
#pragma GCC unroll 4
      for (int r = 0; r < some; r++) dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
#pragma GCC unroll 4
        for (int r = 0; r < some; r++)
          dots[r] = add_products(dots[r], v[i], quads + (first_row + r) * GROUP / 4 + i);
      }
#pragma GCC unroll 4
      for (int r = 0; r < some; r++) {
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r]), ws);
        sums[first_row + r] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(xs[first_row + r]), sums[first_row + r]);
        sums[first_row + r] = _mm512_fmadd_ps(wo, _mm512_set1_ps(xsum[first_row + r]), sums[first_row + r]);
      }
    }
  }
  for (int r = 0; r < rows; r++) {
    float *to = out + r * stride;
    _mm512_storeu_ps(to, adds ? _mm512_add_ps(_mm512_loadu_ps(to), sums[r]) : sums[r]);
  }
}

typedef void (*tile_fn)(const linear *w, int tile, const quantised *x, int64_t panel, float *out, int64_t stride, int adds);

/* One function per number of rows and width, so that the sums stay in registers. */
#define TILE_FUNCTION(rows, bits)                                                                                            \
  static __attribute__((noinline)) void tile_##rows##_##bits(                                                                \
      const linear *w, int tile, const quantised *x, int64_t panel, float *out, int64_t stride, int adds) {                  \
    tile_product(rows, bits, w, tile, x, panel, out, stride, adds);                                                          \
  }
#define TILE_FUNCTIONS(rows) TILE_FUNCTION(rows, 4) TILE_FUNCTION(rows, 8)
#define TILE_NAMES(rows) {tile_##rows##_4, tile_##rows##_8},
#define EACH_PANEL(do) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) do(13) do(14) do(15) do(16)

EACH_PANEL(TILE_FUNCTIONS)
static const tile_fn TILES[PANEL][2] = {EACH_PANEL(TILE_NAMES)};

static inline int panel_rows(int rows, int panel) { return rows - panel * PANEL < PANEL ? rows - panel * PANEL : PANEL; }

static inline int num_panels(int rows) { return (rows + PANEL - 1) / PANEL; }

static inline void multiply_tile(const linear *w, int tile, const quantised *x, int panel, int rows, float *out, int64_t stride, int adds) {
  TILES[rows - 1][w->bits == 8](w, tile, x, panel, out, stride, adds);
}

typedef struct {
  const linear *w;
  const quantised *x;
  float *out; /* [rows, w->rows], or unused when gated */
  const quantised *gated; /* quantised act(gate) * up as input of `into`, or NULL */
  const linear *into;
  int rows, adds, is_gelu, units_per_chunk, num_units;
} product;

static void plain_chunk(void *context, int chunk) {
  const product *p = context;
  int last = (chunk + 1) * p->units_per_chunk;
  if (last > p->num_units) last = p->num_units;
  for (int tile = chunk * p->units_per_chunk; tile < last; tile++)
    for (int panel = 0; panel < num_panels(p->rows); panel++) {
      float *out = p->out + (int64_t)panel * PANEL * p->w->rows + tile * LANES;
      multiply_tile(p->w, tile, p->x, panel, panel_rows(p->rows, panel), out, p->w->rows, p->adds);
    }
}

/* A unit is one group of the result: two tiles of gate and two of up. */
static void gated_chunk(void *context, int chunk) {
  const product *p = context;
  int last = (chunk + 1) * p->units_per_chunk;
  if (last > p->num_units) last = p->num_units;
  int own = p->into->inputs / GROUP, groups = input_groups(p->into);
  float both[PANEL * 4 * LANES], mixed[GROUP];
  for (int unit = chunk * p->units_per_chunk; unit < last; unit++)
    for (int panel = 0; panel < num_panels(p->rows); panel++) {
      int rows = panel_rows(p->rows, panel);
      for (int t = 0; t < 4; t++) multiply_tile(p->w, unit * 4 + t, p->x, panel, rows, both + t * LANES, 4 * LANES, 0);
      for (int r = 0; r < rows; r++) {
        for (int half = 0; half < 2; half++) {
          __m512 gate = _mm512_loadu_ps(both + (r * 4 + half * 2) * LANES), up = _mm512_loadu_ps(both + (r * 4 + half * 2 + 1) * LANES);
          gate = p->is_gelu ? gelu16(gate) : _mm512_mul_ps(gate, sigmoid16(gate));
          _mm512_storeu_ps(mixed + half * LANES, _mm512_mul_ps(gate, up));
        }
        int64_t row = (int64_t)panel * PANEL + r, at = group_at(row, unit, groups);
        quantise_at(mixed, p->gated, at);
        for (int i = 0; i < p->into->num_refined; i++)
          if (p->into->refined[i] == unit) refine_at(mixed, p->gated, at, group_at(row, own + i, groups));
      }
    }
}

/* Chunks small enough to balance the threads, large enough to be worth taking. */
static void multiply(pool *threads, product *p) {
  int tiles_per_unit = p->gated ? 4 : 1;
  p->num_units = p->w->rows / LANES / tiles_per_unit;
  double products = (double)p->rows * p->w->rows * p->w->inputs;
  int wanted = (int)(products / CHUNK_PRODUCTS), fewest = 3 * num_workers(threads);
  if (wanted < fewest) wanted = fewest;
  if (wanted > p->num_units) wanted = p->num_units;
  p->units_per_chunk = (p->num_units + wanted - 1) / wanted;
  int chunks = (p->num_units + p->units_per_chunk - 1) / p->units_per_chunk;
  run_chunks(threads, chunks, p->gated ? gated_chunk : plain_chunk, p);
}
