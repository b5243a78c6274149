// A stencil on a structured grid and its derivatives:
//
//   stencil              y_i    = sum_k c_k(i) x_{i + o_k}
//   stencil_products     q_k(i) = u_i w_{i + o_k}
//   stencil_correlation  q_k    = sum_i u_i w_{i + o_k}, one sum for each block of points
//
// where what lies outside of the grid is zero or, along a periodic axis, wraps around. The transposed
// operator is a stencil with the offsets -o_k, whose coefficient is that of the neighbor: c_k(i - o_k).
//
// x and y are read and written about once: within a piece of a line (views.h) all neighbors are
// summed up in registers. The order of a sum depends on the point alone, not on the thread that works on its
// block.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

// The maximum number of offsets processed together: their data for a line stay on the stack.
inline constexpr int kOffsets = 64;

// The same if each has a coefficient of its own at every point: with more streams than this the machine no
// longer prefetches (27 points on 100^3, float64: 11 ms in three chunks, 27 at once).
inline constexpr int kStencilStreams = 12;

// Pieces of a line whose neighbors are kept for the following lines (7 points on 100^3: 1.0 ms, 1.8
// without).
inline constexpr int kPieces = 8;

struct Neighbors {
  int count;
  int k[kOffsets];             // which of the offsets, from the first of the chunk
  int64_t distance[kOffsets];  // from a point to its neighbor, in points
};

// i + o along an axis of n points: where the neighbor is, or -1.
LS_INLINE int64_t neighbor(int64_t i, int64_t o, int64_t n, bool periodic) {
  const int64_t t = i + o;
  if (t >= 0 && t < n) return t;
  return periodic ? (t < 0 ? t + n : t - n) : -1;
}

// The offsets k0 <= k < k1 that lead from line (i0, i1) to another, and how far that is.
LS_INLINE void find_lines(const StencilView& S, int64_t i0, int64_t i1, int64_t k0, int64_t k1,
                          Neighbors& line) {
  line.count = 0;
  for (int64_t k = k0; k < k1; ++k) {
    const int64_t* o = S.offsets + 3 * k;
    const int64_t t0 = neighbor(i0, o[0], S.grid[0], S.periodic[0]);
    const int64_t t1 = neighbor(i1, o[1], S.grid[1], S.periodic[1]);
    if (t0 < 0 || t1 < 0) continue;
    line.k[line.count] = static_cast<int>(k - k0);
    line.distance[line.count++] = ((t0 - i0) * S.grid[1] + t1 - i1) * S.grid[2];
  }
}

// Those of them that lead from point i2 = j, and all points of its piece, to another.
LS_INLINE void find_points(const StencilView& S, int64_t j, int64_t k0, const Neighbors& line,
                           Neighbors& found) {
  found.count = 0;
  for (int a = 0; a < line.count; ++a) {
    const int64_t t = neighbor(j, S.offsets[3 * (k0 + line.k[a]) + 2], S.grid[2], S.periodic[2]);
    if (t < 0) continue;
    found.k[found.count] = line.k[a];
    found.distance[found.count++] = line.distance[a] + t - j;
  }
}

// f.begin(k0, k1), f.piece(first point, points, neighbors), f.end(k0, k1) for each chunk of offsets of block
// b.
template <class F>
LS_INLINE void for_each_piece(const StencilView& S, int64_t b, F& f) {
  const int64_t n1 = S.grid[1], n2 = S.grid[2], all_lines = S.grid[0] * n1;
  const int64_t first = b / S.segments * S.lines;
  const int64_t last = first + S.lines < all_lines ? first + S.lines : all_lines;
  const int64_t from = b % S.segments * S.segment, to = from + S.segment < n2 ? from + S.segment : n2;
  const int64_t chunks = (S.count + F::kTogether - 1) / F::kTogether;
  Neighbors line, pieces[kPieces];
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t k0 = S.count * chunk / chunks, k1 = S.count * (chunk + 1) / chunks;
    // All lines from which no offset leaves the grid have the same neighbors.
    int64_t lo[2] = {0, 0}, hi[2] = {S.grid[0], n1};
    for (int64_t k = k0; k < k1; ++k)
      for (int a = 0; a < 2; ++a) {
        const int64_t o = S.offsets[3 * k + a];
        if (-o > lo[a]) lo[a] = -o;
        if (S.grid[a] - o < hi[a]) hi[a] = S.grid[a] - o;
      }
    bool known = false;
    f.begin(k0, k1);
    for (int64_t l = first; l < last; ++l) {
      const int64_t i0 = l / n1, i1 = l % n1;
      const bool inner = i0 >= lo[0] && i0 < hi[0] && i1 >= lo[1] && i1 < hi[1];
      const bool look = !(inner && known);
      if (look) find_lines(S, i0, i1, k0, k1, line);
      for (int64_t p = 0; p < S.pieces; ++p) {
        const int64_t j0 = S.bounds[p] > from ? S.bounds[p] : from;
        const int64_t j1 = S.bounds[p + 1] < to ? S.bounds[p + 1] : to;
        if (j0 >= j1) continue;
        Neighbors& found = pieces[p < kPieces ? p : kPieces - 1];
        if (look) find_points(S, j0, k0, line, found);
        f.piece(l * n2 + j0, j1 - j0, found);
      }
      known = inner && S.pieces <= kPieces;
    }
    f.end(k0, k1);
  }
}

template <class T, Coefficients kind>
struct ApplyStencil {
  static constexpr int kTogether = kind == Coefficients::constant ? kOffsets : kStencilStreams;
  const T* c;
  const T* x;
  T* y;
  int64_t points;
  bool accumulate;
  int64_t k0 = 0;

  LS_INLINE void begin(int64_t k0_, int64_t) { k0 = k0_; }
  LS_INLINE void end(int64_t, int64_t) {}

  LS_INLINE void piece(int64_t i, int64_t n, const Neighbors& found) const {
    if (accumulate || k0 > 0)
      run<true>(i, n, found);
    else
      run<false>(i, n, found);
  }

  template <bool Add>
  LS_INLINE void run(int64_t i, int64_t n, const Neighbors& found) const {
    constexpr int V = kLanes<T>;
    const int64_t end = i + n;
    for (; i + 8 * V <= end; i += 8 * V) tile<8, Add>(i, found);
    if (i + 4 * V <= end) tile<4, Add>(i, found), i += 4 * V;
    if (i + 2 * V <= end) tile<2, Add>(i, found), i += 2 * V;
    if (i + V <= end) tile<1, Add>(i, found), i += V;
    for (; i < end; ++i) {
      T s = Add ? y[i] : T(0);
      for (int a = 0; a < found.count; ++a) s += coefficients(i, found, a)[0] * x[i + found.distance[a]];
      y[i] = s;
    }
  }

  // Those of neighbor a, from point i on.
  LS_INLINE const T* coefficients(int64_t i, const Neighbors& found, int a) const {
    const int64_t k = k0 + found.k[a];
    if constexpr (kind == Coefficients::constant) return c + k;
    return c + k * points + i + (kind == Coefficients::of_neighbor ? found.distance[a] : 0);
  }

  template <int N, bool Add>
  LS_INLINE void tile(int64_t i, const Neighbors& found) const {
    constexpr int V = kLanes<T>;
    T* LS_RESTRICT out = y + i;
    typename Lanes<T>::vector s[N];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) s[r] = Add ? load(out + r * V) : typename Lanes<T>::vector{};
    for (int a = 0; a < found.count; ++a) {
      const T* LS_RESTRICT xa = x + i + found.distance[a];
      const T* LS_RESTRICT ca = coefficients(i, found, a);
      if constexpr (kind == Coefficients::constant) {
        const T constant = *ca;
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) s[r] += constant * load(xa + r * V);
      } else {
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) s[r] += load(ca + r * V) * load(xa + r * V);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) store(out + r * V, s[r]);
  }
};

// y, or y += if `accumulate`, on the blocks b0 <= b < b1.
template <class T>
void stencil(const StencilView& S, Coefficients kind, int64_t b0, int64_t b1, const T* c, const T* x, T* y,
             bool accumulate) {
  const auto run = [&](auto f) {
    for (int64_t b = b0; b < b1; ++b) for_each_piece(S, b, f);
  };
  const int64_t points = S.points();
  if (kind == Coefficients::constant)
    run(ApplyStencil<T, Coefficients::constant>{c, x, y, points, accumulate});
  else if (kind == Coefficients::variable)
    run(ApplyStencil<T, Coefficients::variable>{c, x, y, points, accumulate});
  else
    run(ApplyStencil<T, Coefficients::of_neighbor>{c, x, y, points, accumulate});
}

template <class T, bool Add>
struct StencilProducts {
  static constexpr int kTogether = kStencilStreams;
  const T* u;
  const T* w;
  T* q;
  int64_t points;
  int64_t k0 = 0, k1 = 0;

  LS_INLINE void begin(int64_t k0_, int64_t k1_) { k0 = k0_, k1 = k1_; }
  LS_INLINE void end(int64_t, int64_t) {}

  LS_INLINE void piece(int64_t i, int64_t n, const Neighbors& found) {
    const T* LS_RESTRICT ui = u + i;
    int a = 0;
    for (int64_t k = k0; k < k1; ++k) {
      T* LS_RESTRICT out = q + k * points + i;
      if (a < found.count && found.k[a] == k - k0) {
        const T* LS_RESTRICT wi = w + i + found.distance[a++];
        for (int64_t j = 0; j < n; ++j) out[j] = Add ? out[j] + ui[j] * wi[j] : ui[j] * wi[j];
      } else if (!Add) {
        for (int64_t j = 0; j < n; ++j) out[j] = 0;
      }
    }
  }
};

template <class T>
void stencil_products(const StencilView& S, int64_t b0, int64_t b1, const T* u, const T* w, T* q,
                      bool accumulate) {
  const auto run = [&](auto f) {
    for (int64_t b = b0; b < b1; ++b) for_each_piece(S, b, f);
  };
  if (accumulate)
    run(StencilProducts<T, true>{u, w, q, S.points()});
  else
    run(StencilProducts<T, false>{u, w, q, S.points()});
}

template <class T>
struct StencilCorrelation {
  static constexpr int kTogether = kOffsets;
  using vector = typename Lanes<T>::vector;
  const T* u;
  const T* w;
  T* sums;  // of this block
  vector lanes[kOffsets];
  T rest[kOffsets];

  LS_INLINE void begin(int64_t k0, int64_t k1) {
    for (int64_t k = 0; k < k1 - k0; ++k) lanes[k] = vector{}, rest[k] = 0;
  }
  LS_INLINE void end(int64_t k0, int64_t k1) {
    for (int64_t k = k0; k < k1; ++k) sums[k] = sum_lanes(lanes[k - k0]) + rest[k - k0];
  }
  LS_INLINE void piece(int64_t i, int64_t n, const Neighbors& found) {
    int a = 0;
    for (; a + 4 <= found.count; a += 4) sums_of<4>(i, n, found, a);
    for (; a < found.count; ++a) sums_of<1>(i, n, found, a);
  }
  // Several offsets share the loads of u.
  template <int G>
  LS_INLINE void sums_of(int64_t i, int64_t n, const Neighbors& found, int a) {
    constexpr int V = kLanes<T>;
    constexpr int N = G == 1 ? 4 : 2;  // sums in flight of each
    const T* LS_RESTRICT ui = u + i;
    const T* LS_RESTRICT ws[G];
    vector s[G][N] = {};
#pragma GCC unroll 4
    for (int e = 0; e < G; ++e) ws[e] = w + i + found.distance[a + e];
    int64_t j = 0;
    for (; j + N * V <= n; j += N * V)
#pragma GCC unroll 4
      for (int r = 0; r < N; ++r) {
        const vector ur = load(ui + j + r * V);
#pragma GCC unroll 4
        for (int e = 0; e < G; ++e) s[e][r] += ur * load(ws[e] + j + r * V);
      }
    for (; j + V <= n; j += V)
#pragma GCC unroll 4
      for (int e = 0; e < G; ++e) s[e][0] += load(ui + j) * load(ws[e] + j);
#pragma GCC unroll 4
    for (int e = 0; e < G; ++e) {
      const int k = found.k[a + e];
      lanes[k] += G == 1 ? (s[e][0] + s[e][1]) + (s[e][N - 2] + s[e][N - 1]) : s[e][0] + s[e][1];
      T t = 0;
      for (int64_t m = j; m < n; ++m) t += ui[m] * ws[e][m];
      rest[k] += t;
    }
  }
};

// The sums of block b, b0 <= b < b1, are written to partial + b count.
template <class T>
void stencil_correlation(const StencilView& S, int64_t b0, int64_t b1, const T* u, const T* w, T* partial) {
  for (int64_t b = b0; b < b1; ++b) {
    StencilCorrelation<T> f{u, w, partial + b * S.count, {}, {}};
    for_each_piece(S, b, f);
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
