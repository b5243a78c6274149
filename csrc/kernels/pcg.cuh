// Preconditioned conjugate gradients (kernels/pcg.h says what an iteration is) as phases: products and passes
// over chunks of rows, and between them `PcgJudge`, which adds up the partial sums and decides about columns.
// The phases are launched one after another, or run by one persistent kernel, whose blocks all judge for
// themselves: they have the same sums, so the same bits. Scalars never leave the device.
//
// A column that has stopped keeps x and r, and p = 0; a member of the batch whose columns have all stopped is
// left alone.
//
// More than 300 lines, because the phases are one list: each pass, what makes it for a member of the batch,
// and the kernels that run it are read together.
#pragma once

#include "kernels/pcg_judge.cuh"

namespace learnsolve::cuda {

// out = r - alpha q,  <out, out>, and <out, d o out> with a diagonal.
template <class T, bool Diagonal>
struct PcgResidualPass {
  static constexpr int kSums = 1 + Diagonal;
  const T* r;
  const T* q;
  const T* d;
  T* out;
  T* p;            // or null
  const T* alpha;  // or null: `all`
  const T* wipe;
  T all;
  bool moves;

  LS_DEVICE bool skips() const { return !moves && r == out; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    Pack<T, V> value = place.get(r);
    if (moves) {
      const Pack<T, V> product = place.get(q);
      LS_UNROLL
      for (int e = 0; e < V; ++e) {
        const T a = alpha ? place.coefficient(alpha, e) : all;
        if (a != T(0)) value.v[e] -= a * product.v[e];
        sums[0].v[e] += value.v[e] * value.v[e];
        if constexpr (Diagonal) sums[1].v[e] += value.v[e] * (place.of_row(d, e) * value.v[e]);
        if (p && place.coefficient(wipe, e) != T(0)) p[place.o + e] = 0;
      }
    }
    place.set(out, value);
  }
};

// x += alpha p,  next = z + beta p, or d o z + beta p; r becomes zero where it must be cleared.
template <class T>
struct PcgUpdatePass {
  static constexpr int kSums = 0;
  const T* z;
  const T* d;  // or null
  const T* p;  // or null
  T* x;        // or null
  T* next;
  T* r;
  const T* alpha;
  const T* beta;
  const T* keep;
  const T* wipe;
  bool moves;

  LS_DEVICE bool skips() const { return !moves && p == next; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>*) const {
    Pack<T, V> value{};
    if (moves) {
      const Pack<T, V> from = place.get(z), before = p ? place.get(p) : Pack<T, V>{};
      if (x) {
        Pack<T, V> moved = place.get(x);
        LS_UNROLL
        for (int e = 0; e < V; ++e) {
          const T a = place.coefficient(alpha, e);
          if (a != T(0)) moved.v[e] += a * before.v[e];
        }
        place.set(x, moved);
      }
      LS_UNROLL
      for (int e = 0; e < V; ++e) {
        const T scaled = d ? place.of_row(d, e) * from.v[e] : from.v[e];
        if (place.coefficient(keep, e) != T(0))
          value.v[e] = scaled + place.coefficient(beta, e) * before.v[e];
        if (place.coefficient(wipe, e) != T(0)) r[place.o + e] = 0;
      }
    }
    place.set(next, value);
  }
};

// y = the product,  <u, y> with a u.
template <class T, int Sums>
struct PcgProductPass {
  static constexpr int kSums = Sums;
  const T* u;
  T* y;
  bool moves;

  LS_DEVICE bool skips() const { return !moves; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& product, Pack<T, V>* sums) const {
    place.set(y, product);
    if constexpr (Sums > 0) {
      const Pack<T, V> other = place.get(u);
      LS_UNROLL
      for (int e = 0; e < V; ++e) sums[0].v[e] += other.v[e] * product.v[e];
    }
  }
};

// <u, w>
template <class T>
struct PcgDotPass {
  static constexpr int kSums = 1;
  const T* u;
  const T* w;
  bool moves;

  LS_DEVICE bool skips() const { return !moves; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    const Pack<T, V> a = place.get(u), b = place.get(w);
    LS_UNROLL
    for (int e = 0; e < V; ++e) sums[0].v[e] += a.v[e] * b.v[e];
  }
};

// Where everything lies. All arrays have an axis for the batch in front.
template <class T>
struct PcgForward {
  Preconditioning kind;
  const T* m;
  int64_t m_step;
  int64_t n, k, batch, iterations, first, width;
  bool begins, store, packs;
  T *x, *last_r, *last_p, *spare, *slots_r, *slots_p;  // spare: p between iterations, without `store`
  T *q, *z, *w;
  T* sums[3];  // partial: of <p, A p>, of the norms, of <r, M r>
  PcgColumns<T> columns;
  T *norms, *scalars;
  const T* target;  // (B, k), or null

  LS_BOTH int64_t nk() const { return n * k; }
  LS_BOTH T* r_at(int64_t b, int64_t i) const {
    return store && i < iterations ? slots_r + (b * iterations + i) * nk() : last_r + b * nk();
  }
  LS_BOTH T* p_at(int64_t b, int64_t i) const {
    if (i == iterations) return last_p + b * nk();
    return store ? slots_p + (b * iterations + i) * nk() : spare + b * nk();
  }
  LS_BOTH const T* diagonal(int64_t b) const {
    return kind == Preconditioning::diagonal ? m + b * m_step : nullptr;
  }
  LS_BOTH bool has_factor() const {
    return kind == Preconditioning::product || kind == Preconditioning::triangular;
  }
  LS_BOTH Partials<T> curvature() const { return {{sums[0], nullptr}}; }
  LS_BOTH Partials<T> of_residual() const { return {{sums[1], sums[2]}}; }
  LS_BOTH Partials<T> of_preconditioned() const { return {{sums[2], nullptr}}; }

  LS_BOTH PcgJudge<T> judge(const PcgColumns<T>& known, Judged what, int64_t i, bool writes) const {
    const bool stores = writes && i >= 0;
    return {known,
            what,
            kind,
            first + i,
            target,
            writes ? norms + (i + begins) * k : nullptr,
            stores ? scalars + i * kScalars * k : nullptr,
            (iterations + begins) * k,
            iterations * kScalars * k};
  }
  template <bool Diagonal>
  LS_DEVICE PcgResidualPass<T, Diagonal> residual(const PcgColumns<T>& known, int64_t b, int64_t i) const {
    return {r_at(b, i),          q + b * nk(),         diagonal(b), r_at(b, i + 1),       p_at(b, i),
            known.now(b, kStep), known.now(b, kWipeP), T(0),        known.entered(b) != 0};
  }
  LS_DEVICE const T* preconditioned(int64_t b, int64_t i) const {
    return has_factor() ? z + b * nk() : r_at(b, i);
  }
  LS_DEVICE PcgUpdatePass<T> update(const PcgColumns<T>& known, int64_t b, int64_t i) const {
    const bool begin = i < 0;
    return {preconditioned(b, i + 1),
            diagonal(b),
            begin ? nullptr : p_at(b, i),
            begin ? nullptr : x + b * nk(),
            p_at(b, i + 1),
            r_at(b, i + 1),
            known.now(b, kStep),
            known.now(b, kTurn),
            known.now(b, kKeep),
            known.now(b, kWipeR),
            known.entered(b) != 0};
  }
};

// What a kernel over chunks makes for each member: a pass, or a product that ends in one.
template <class T, bool Diagonal>
struct MakeResidual {
  PcgForward<T> P;
  int64_t i;
  LS_DEVICE auto operator()(int64_t b) const { return P.template residual<Diagonal>(P.columns, b, i); }
};
// r = b - q for q = A x, or b.
template <class T, bool Diagonal>
struct MakeBegin {
  PcgForward<T> P;
  const T* b;
  bool moved;
  LS_DEVICE PcgResidualPass<T, Diagonal> operator()(int64_t s) const {
    const int64_t at = s * P.nk();
    return {b + at,  moved ? P.q + at : b + at, P.diagonal(s), P.r_at(s, 0), nullptr, nullptr,
            nullptr, moved ? T(1) : T(0),       true};
  }
};
template <class T>
struct MakeUpdate {
  PcgForward<T> P;
  int64_t i;
  LS_DEVICE auto operator()(int64_t b) const { return P.update(P.columns, b, i); }
};
template <class T>
struct MakeDot {
  Vectors<const T> u, w;
  const int* flags;  // of PcgColumns: one for each member; or null
  LS_DEVICE PcgDotPass<T> operator()(int64_t b) const {
    return {u.of(b), w.of(b), !flags || flags[2 * b] != 0};
  }
};

// y = rows x, and <u, y> with a sum.
template <class T, class I, int Sums>
struct MakeProduct {
  RowsOf<T, I> rows;
  int64_t values_step;
  Vectors<const T> x, u;
  Vectors<T> y;
  const int* flags;
  LS_DEVICE RowsOf<T, I> rows_of(int64_t b) const {
    return {rows.ptr, rows.idx, rows.values + b * values_step};
  }
  LS_DEVICE const T* from(int64_t b) const { return x.of(b); }
  LS_DEVICE PcgProductPass<T, Sums> operator()(int64_t b) const {
    return {u.of(b), y.of(b), !flags || flags[2 * b] != 0};
  }
};

// The end of a product whose results have been written to `made` already.
template <class T, class Make>
struct MakeAfter {
  Make make;
  Vectors<const T> made;
  template <class Pass>
  struct After {
    static constexpr int kSums = Pass::kSums;
    Pass pass;
    const T* made;
    LS_DEVICE bool skips() const { return pass.skips(); }
    template <class At, int V>
    LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
      pass.at(place, place.get(made), sums);
    }
  };
  LS_DEVICE auto operator()(int64_t b) const {
    const auto pass = make(b);
    return After<std::remove_cvref_t<decltype(pass)>>{pass, made.of(b)};
  }
};

template <bool One, int V, class T, class Make>
LS_KERNEL(kThreads, 4)
chunk_pass_kernel(LS_ARGUMENT Make make, Chunks chunks, int64_t batch, int64_t k, bool packs,
                  Partials<T> partials) {
  LS_SHARED(scratch, PassScratch<T, 2>);
  const Block<kThreads> team;
  for_blocks(chunks.count * batch, [&](int64_t item) {
    const int64_t b = item / chunks.count, chunk = item % chunks.count;
    const auto pass = make(b);
    if (pass.skips()) return;
    pass_chunk<One, V>(team, pass, chunks.begin(chunk), chunks.end(chunk), k, packs, partials, item, scratch);
  });
}

template <int Lanes, int V, class T, class Make>
LS_KERNEL(kThreads, 4)
chunk_product_kernel(LS_ARGUMENT Make make, Chunks chunks, int64_t batch, int64_t k, bool packs,
                     Partials<T> partials) {
  LS_SHARED(scratch, PassScratch<T, 1>);
  const Block<kThreads> team;
  for_blocks(chunks.count * batch, [&](int64_t item) {
    const int64_t b = item / chunks.count, chunk = item % chunks.count;
    const auto pass = make(b);
    if (pass.skips()) return;
    product_chunk<Lanes, V>(team, make.rows_of(b), make.from(b), pass, chunks.begin(chunk), chunks.end(chunk),
                            k, packs, partials, item, scratch);
  });
}

// out_p = values[perm_p], of each member.
template <class T, class I>
LS_KERNEL(kThreads)
reorder_kernel(const I* perm, const T* values, int64_t count, int64_t batch, T* out) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(count, [&](const auto& team, int64_t p) {
      team.first([&] { out[b * count + p] = values[b * count + perm[p]]; });
    });
  });
}

}  // namespace learnsolve::cuda
