/* One step of a decoder on integer weights: new tokens of any number of sequences in, logits of the wanted rows out.
 *
 * The switches are those of the Python decoder; a pointer that is NULL or a number that is 0 is a switch that is off.
 * All sizes are multiples of 16, those that are quantised multiples of 32; whoever packs the weights sees to it.
 */
#include "attention.h"
#include "linear.h"
#include "sample.h"
#include <string.h>

typedef struct {
  linear qkv, o, gate_up, down;
  const float *attention_norm, *post_attention_norm, *mlp_norm, *post_mlp_norm;
  const float *q_norm, *k_norm; /* [head_dim] */
  const float *rope;            /* [context, 2, rope_dims / 2]: cosines, then sines */
  int32_t rope_dims, window;
} layer;

typedef struct {
  int32_t hidden, intermediate, heads, kv_heads, head_dim, vocab, num_layers, is_gelu;
  float eps, attention_scale, attention_softcap, final_softcap, embed_scale;
  int32_t is_tied;
  const layer *layers;
  linear head;
  const float *final_norm;
  const uint16_t *embedding; /* [vocab, hidden] bf16 when the head is not tied */
} model;

typedef struct {
  int32_t num_rows, num_logits, num_spans, block_tokens;
  const int64_t *ids, *positions, *slots, *logit_rows;
  const span *spans;
  const int32_t *tables;
  uint8_t *kv;           /* [layers, 2, tiles, kv_heads, head_bytes] */
  int64_t kv_stride;     /* bytes from a layer's keys to its values */
  float *logits;         /* [num_logits, vocab] */
} step;

typedef struct {
  pool threads;
  int64_t capacity, task_capacity;
  float *x, *wide, *normed;
  quantised narrow, mixed; /* inputs of the layer's products: up to the wider of hidden and heads * head_dim; intermediate */
  int32_t *tasks;
} context;

typedef struct {
  context *c;
  const model *m;
  const step *s;
  const layer *l;
  const float *norm, *post_norm;
  const linear *into; /* what the normed row is an input of */
  int index, rows_per_chunk, num_rows;
} rowwise;

static void *aligned(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

static int32_t widest(int32_t a, int32_t b) { return a > b ? a : b; }

static void release(quantised *x) {
  free(x->q);
  free(x->scale);
  free(x->sum);
}

static int reserve(quantised *x, int64_t rows, int64_t inputs) {
  release(x);
  inputs += MOST_REFINED * GROUP;
  rows = (rows + PANEL - 1) / PANEL * PANEL;
  x->q = aligned(rows * inputs);
  x->scale = aligned(rows * inputs / GROUP * 4);
  x->sum = aligned(rows * inputs / GROUP * 4);
  return x->q && x->scale && x->sum;
}

/* Room for the step's rows; 0 if there is no memory. */
static int make_room(context *c, const model *m, const step *s) {
  int64_t rows = s->num_rows, width = (m->heads + 2 * m->kv_heads) * m->head_dim;
  if (rows > c->capacity) {
    free(c->x), free(c->wide), free(c->normed);
    c->capacity = 0;
    c->x = aligned(rows * m->hidden * 4);
    c->wide = aligned(rows * width * 4);
    c->normed = aligned(rows * m->hidden * 4);
    int ok = reserve(&c->narrow, rows, widest(m->hidden, m->heads * m->head_dim)) && reserve(&c->mixed, rows, m->intermediate);
    if (!c->x || !c->wide || !c->normed || !ok) return 0;
    c->capacity = rows;
  }
  int64_t tasks = s->num_rows + s->num_spans;
  if (tasks > c->task_capacity) {
    free(c->tasks);
    c->tasks = aligned(tasks * 8);
    c->task_capacity = c->tasks ? tasks : 0;
  }
  return c->tasks != NULL;
}

static void by_rows(rowwise *r, chunk_fn run, int num_rows) {
  int workers = num_workers(&r->c->threads);
  r->num_rows = num_rows;
  r->rows_per_chunk = num_rows < 4 ? num_rows : (num_rows + 3 * workers - 1) / (3 * workers);
  run_chunks(&r->c->threads, (num_rows + r->rows_per_chunk - 1) / r->rows_per_chunk, run, r);
}

#define EACH_ROW(r, chunk) \
  for (int row = (chunk) * (r)->rows_per_chunk, last = row + (r)->rows_per_chunk < (r)->num_rows ? row + (r)->rows_per_chunk : (r)->num_rows; \
       row < last; row++)

/* A row of the tied embedding, out of the tiles of the head. */
static void embed_packed(const linear *w, int64_t id, float factor, float *out) {
  int64_t lane = id % LANES;
  const uint8_t *group = w->tiles + id / LANES * tile_bytes(w);
  for (int first = 0; first < w->inputs; first += GROUP, group += group_bytes(w)) {
    __m512 scale, offset;
    load_scales(group + GROUP * LANES * w->bits / 8, w->has_half_scales, &scale, &offset);
    __mmask16 own = (__mmask16)(1u << lane);
    float s = _mm512_mask_reduce_add_ps(own, scale), o = _mm512_mask_reduce_add_ps(own, offset);
    for (int i = 0; i < GROUP; i++) {
      int quad = i / 4;
      int q = w->bits == 8 ? group[quad * 64 + lane * 4 + i % 4] : group[quad % 4 * 64 + lane * 4 + i % 4] >> (quad / 4 * 4) & 15;
      out[first + i] = ((float)q * s + o) * factor;
    }
  }
}

static void embed_chunk(void *argument, int chunk) {
  rowwise *r = argument;
  EACH_ROW(r, chunk) {
    float *x = r->c->x + (int64_t)row * r->m->hidden;
    if (r->m->is_tied) {
      embed_packed(&r->m->head, r->s->ids[row], r->m->embed_scale, x);
      continue;
    }
    const uint16_t *from = r->m->embedding + r->s->ids[row] * r->m->hidden;
    for (int i = 0; i < r->m->hidden; i += LANES)
      _mm512_storeu_ps(x + i, _mm512_mul_ps(load_bf16(from + i), _mm512_set1_ps(r->m->embed_scale)));
  }
}

/* x += post_norm(normed) where there is one, then norm(x) quantised where one follows. */
static void norm_chunk(void *argument, int chunk) {
  rowwise *r = argument;
  int size = r->m->hidden;
  float normed[size];
  EACH_ROW(r, chunk) {
    float *x = r->c->x + (int64_t)row * size;
    if (r->post_norm) {
      rms_norm(r->c->normed + (int64_t)row * size, r->post_norm, size, r->m->eps, normed);
      for (int i = 0; i < size; i += LANES) _mm512_storeu_ps(x + i, _mm512_add_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(normed + i)));
    }
    if (!r->norm) continue;
    rms_norm(x, r->norm, size, r->m->eps, normed);
    quantise_row(normed, r->into, &r->c->narrow, row);
  }
}

static void final_chunk(void *argument, int chunk) {
  rowwise *r = argument;
  int size = r->m->hidden;
  float normed[size];
  EACH_ROW(r, chunk) {
    rms_norm(r->c->x + r->s->logit_rows[row] * size, r->m->final_norm, size, r->m->eps, normed);
    quantise_row(normed, r->into, &r->c->narrow, row);
  }
}

static void rotate(float *x, const float *table, int dims) {
  int half = dims / 2;
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half], cosine = table[i], sine = table[half + i];
    x[i] = a * cosine - b * sine;
    x[i + half] = b * cosine + a * sine;
  }
}

/* Norm and rotate queries and keys, write keys and values to their slots. */
static void cache_chunk(void *argument, int chunk) {
  rowwise *r = argument;
  const model *m = r->m;
  const layer *l = r->l;
  const int dim = m->head_dim;
  uint8_t *keys = r->s->kv + r->index * 2 * r->s->kv_stride, *values = keys + r->s->kv_stride;
  EACH_ROW(r, chunk) {
    float *x = r->c->wide + (int64_t)row * (m->heads + 2 * m->kv_heads) * dim;
    for (int h = 0; h < m->heads + m->kv_heads; h++) {
      const float *norm = h < m->heads ? l->q_norm : l->k_norm;
      if (norm) rms_norm(x + h * dim, norm, dim, m->eps, x + h * dim);
      if (l->rope) rotate(x + h * dim, l->rope + r->s->positions[row] * l->rope_dims, l->rope_dims);
    }
    int64_t slot = r->s->slots[row], tile = slot / LANES, lane = slot % LANES;
    const float *k = x + m->heads * dim, *v = k + m->kv_heads * dim;
    for (int h = 0; h < m->kv_heads; h++) {
      int64_t at = (tile * m->kv_heads + h) * head_bytes(dim);
      store_head(k + h * dim, v + h * dim, dim, (int)lane, keys + at, values + at);
    }
  }
}

static int list_tasks(context *c, const step *s) {
  int count = 0;
  for (int i = 0; i < s->num_spans; i++)
    for (int first = 0; first < s->spans[i].num_new; first += MOST_QUERIES, count++) {
      c->tasks[count * 2] = i;
      c->tasks[count * 2 + 1] = first;
    }
  return count;
}

static void add_product(context *c, const linear *w, const quantised *x, int rows, int has_post_norm) {
  product p = {.w = w, .x = x, .out = has_post_norm ? c->normed : c->x, .rows = rows, .adds = !has_post_norm};
  multiply(&c->threads, &p);
}

static void run_layer(rowwise *r, int num_tasks, const float *next_norm, const linear *next) {
  context *c = r->c;
  const model *m = r->m;
  const layer *l = r->l;
  int rows = r->s->num_rows;
  product qkv = {.w = &l->qkv, .x = &c->narrow, .out = c->wide, .rows = rows};
  multiply(&c->threads, &qkv);
  by_rows(r, cache_chunk, rows);
  uint8_t *keys = r->s->kv + r->index * 2 * r->s->kv_stride;
  attention a = {.qkv = c->wide, .keys = keys, .values = keys + r->s->kv_stride, .tables = r->s->tables, .spans = r->s->spans,
                 .tasks = c->tasks, .out = &c->narrow, .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim,
                 .block_tokens = r->s->block_tokens, .window = l->window, .scale = m->attention_scale, .softcap = m->attention_softcap};
  run_chunks(&c->threads, num_tasks * m->kv_heads, attention_chunk, &a);
  add_product(c, &l->o, &c->narrow, rows, l->post_attention_norm != NULL);
  r->post_norm = l->post_attention_norm;
  r->norm = l->mlp_norm;
  r->into = &l->gate_up;
  by_rows(r, norm_chunk, rows);
  product gate_up = {.w = &l->gate_up, .x = &c->narrow, .gated = &c->mixed, .into = &l->down, .rows = rows, .is_gelu = m->is_gelu};
  multiply(&c->threads, &gate_up);
  add_product(c, &l->down, &c->mixed, rows, l->post_mlp_norm != NULL);
  r->post_norm = l->post_mlp_norm;
  r->norm = next_norm;
  r->into = next;
  if (r->norm || r->post_norm) by_rows(r, norm_chunk, rows);
}

/* Compute a step. Returns 0, or -1 if there is no memory for it. */
int headrace_forward(context *c, const model *m, const step *s) {
  if (!make_room(c, m, s)) return -1;
  begin_step(&c->threads);
  rowwise r = {.c = c, .m = m, .s = s, .norm = m->layers[0].attention_norm, .into = &m->layers[0].qkv};
  int num_tasks = list_tasks(c, s);
  by_rows(&r, embed_chunk, s->num_rows);
  by_rows(&r, norm_chunk, s->num_rows);
  for (int i = 0; i < m->num_layers; i++) {
    r.l = m->layers + i;
    r.index = i;
    const layer *next = i + 1 < m->num_layers ? m->layers + i + 1 : NULL;
    run_layer(&r, num_tasks, next ? next->attention_norm : NULL, next ? &next->qkv : &m->head);
  }
  if (s->num_logits) {
    r.into = &m->head;
    by_rows(&r, final_chunk, s->num_logits);
    product head = {.w = &m->head, .x = &c->narrow, .out = s->logits, .rows = s->num_logits};
    multiply(&c->threads, &head);
    int64_t count = (int64_t)s->num_logits * m->vocab;
    if (m->final_softcap > 0)
      for (int64_t i = 0; i < count; i += LANES) {
        __m512 capped = tanh16(_mm512_div_ps(_mm512_loadu_ps(s->logits + i), _mm512_set1_ps(m->final_softcap)));
        _mm512_storeu_ps(s->logits + i, _mm512_mul_ps(capped, _mm512_set1_ps(m->final_softcap)));
      }
  }
  end_step(&c->threads);
  return 0;
}

/* `page` is a shared mapping of PAGE_LINES lines of 64 bytes, or NULL; `line` this engine's own. NULL if there is no memory. */
context *headrace_open(int num_threads, void *page, int line) {
  context *c = aligned(sizeof(context));
  if (!c) return NULL;
  memset(c, 0, sizeof(context));
  pool *p = &c->threads;
  p->num_cores = num_threads;
  p->lines = page;
  p->own_line = line;
  for (int i = 0; i < num_threads - 1 && i < MOST_HELPERS; i++) {
    helper_start *start = malloc(sizeof(helper_start));
    if (!start) break;
    *start = (helper_start){p, i};
    if (pthread_create(&p->threads[i], NULL, help, start)) {
      free(start);
      break;
    }
    p->num_helpers++;
  }
  return c;
}

void headrace_close(context *c) {
  atomic_store(&c->threads.is_closed, 1);
  ring(&c->threads);
  for (int i = 0; i < c->threads.num_helpers; i++) pthread_join(c->threads.threads[i], NULL);
  free(c->x), free(c->wide), free(c->normed), free(c->tasks);
  release(&c->narrow), release(&c->mixed);
  free(c);
}

/* See `draw_rows`. Needs no context. */
int headrace_draw(draw *rows, int count, int vocab) { return draw_rows(rows, count, vocab); }

/* Sizes of the structures, so that whoever describes them in another language can check itself. */
int headrace_size(int which) {
  size_t sizes[] = {sizeof(linear), sizeof(layer), sizeof(model), sizeof(step), sizeof(span), sizeof(draw)};
  return which < 6 ? (int)sizes[which] : -1;
}
