/* Threads that share the chunks of one operation, and how the engines of one machine share its cores.
 *
 * The calling thread takes chunks like the helpers do and never waits for a helper that has not begun: on a machine
 * with other work, a helper without a core costs nothing. Helpers spin inside a step and sleep between steps.
 *
 * Cores are lent: every engine of a machine stamps its own line of a shared page while it computes. An engine alone
 * uses all cores, several at once divide them. The stamps are re-read at each operation, so a change is seen within
 * microseconds; the stamp of a process that died goes stale by itself.
 */
#pragma once
#define _GNU_SOURCE
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_HELPERS 63
#define PAGE_LINES 64
#define STALE_NS 50000000ull /* no operation takes longer */
#define SPINS_BEFORE_YIELD 256

typedef void (*chunk_fn)(void *context, int chunk);
typedef struct { _Atomic uint64_t busy_since; uint8_t padding[56]; } core_line;

typedef struct {
  _Atomic uint64_t ticket; /* generation << 32 | next chunk: a helper that was late can take nothing of a new operation */
  _Atomic uint32_t num_done;
  _Atomic uint32_t num_chunks;
  chunk_fn run;
  void *context;
  _Atomic int32_t allowed; /* helpers that may work now */
  _Atomic int32_t is_stepping;
  _Atomic uint32_t bell; /* futex word: changes whenever sleepers should look again */
  _Atomic int32_t num_asleep;
  _Atomic int32_t is_closed;
  int32_t num_helpers;
  int32_t num_cores;
  core_line *lines; /* NULL: this engine has its cores to itself */
  int32_t own_line;
  pthread_t threads[MOST_HELPERS];
} pool;

typedef struct { pool *owner; int index; } helper_start;

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void ring(pool *p) {
  atomic_fetch_add(&p->bell, 1);
  syscall(SYS_futex, &p->bell, FUTEX_WAKE_PRIVATE, MOST_HELPERS, NULL, NULL, 0);
}

static inline int take_chunk(pool *p, chunk_fn *run, void **context) {
  uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
  for (;;) {
    if ((uint32_t)ticket >= atomic_load_explicit(&p->num_chunks, memory_order_relaxed)) return -1;
    *run = p->run;
    *context = p->context;
    if (atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + 1, memory_order_acq_rel, memory_order_acquire))
      return (int)(uint32_t)ticket;
  }
}

/* Wait a moment for another thread, which may need this very core. */
static inline void relax(int spins) {
  if (spins % SPINS_BEFORE_YIELD == SPINS_BEFORE_YIELD - 1) sched_yield();
  else _mm_pause();
}

static void *help(void *argument) {
  helper_start start = *(helper_start *)argument;
  free(argument);
  pool *p = start.owner;
  for (int spins = 0; !atomic_load(&p->is_closed);) {
    uint32_t bell = atomic_load(&p->bell);
    if (!atomic_load(&p->is_stepping) || atomic_load(&p->allowed) <= start.index) {
      atomic_fetch_add(&p->num_asleep, 1);
      syscall(SYS_futex, &p->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
      atomic_fetch_sub(&p->num_asleep, 1);
      continue;
    }
    chunk_fn run;
    void *context;
    int chunk = take_chunk(p, &run, &context);
    if (chunk < 0) {
      relax(spins++);
      continue;
    }
    spins = 0;
    run(context, chunk);
    atomic_fetch_add_explicit(&p->num_done, 1, memory_order_acq_rel);
  }
  return NULL;
}

static void share_cores(pool *p) {
  int num_engines = 1;
  if (p->lines) {
    uint64_t now = now_ns();
    atomic_store_explicit(&p->lines[p->own_line].busy_since, now, memory_order_relaxed);
    for (int i = 0; i < PAGE_LINES; i++) {
      uint64_t stamp = atomic_load_explicit(&p->lines[i].busy_since, memory_order_relaxed);
      num_engines += i != p->own_line && stamp && now - stamp < STALE_NS;
    }
  }
  int allowed = p->num_cores / num_engines - 1;
  if (allowed > p->num_helpers) allowed = p->num_helpers;
  if (allowed < 0) allowed = 0;
  int before = atomic_exchange(&p->allowed, allowed);
  if (allowed > before) ring(p);
}

static void begin_step(pool *p) {
  atomic_store(&p->is_stepping, 1);
  atomic_store(&p->allowed, 0);
  share_cores(p);
}

static void end_step(pool *p) {
  atomic_store(&p->is_stepping, 0);
  if (p->lines) atomic_store_explicit(&p->lines[p->own_line].busy_since, 0, memory_order_relaxed);
}

/* Run chunks 0 … num_chunks - 1, in any order, on as many threads as may work now; returns when all are done. */
static void run_chunks(pool *p, int num_chunks, chunk_fn run, void *context) {
  share_cores(p);
  if (num_chunks <= 1 || atomic_load(&p->allowed) == 0) {
    for (int i = 0; i < num_chunks; i++) run(context, i);
    return;
  }
  uint64_t generation = (atomic_load(&p->ticket) >> 32) + 1;
  atomic_store(&p->num_chunks, 0); /* nobody can take while the operation changes */
  p->run = run;
  p->context = context;
  atomic_store(&p->num_done, 0);
  atomic_store(&p->ticket, generation << 32);
  atomic_store_explicit(&p->num_chunks, (uint32_t)num_chunks, memory_order_release);
  chunk_fn same;
  void *unused;
  for (int chunk; (chunk = take_chunk(p, &same, &unused)) >= 0;) {
    run(context, chunk);
    atomic_fetch_add_explicit(&p->num_done, 1, memory_order_acq_rel);
  }
  for (int spins = 0; atomic_load_explicit(&p->num_done, memory_order_acquire) < (uint32_t)num_chunks;) relax(spins++);
}

static inline int num_workers(pool *p) { return 1 + atomic_load_explicit(&p->allowed, memory_order_relaxed); }
