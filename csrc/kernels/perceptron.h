// A perceptron with at most one hidden layer, applied to rows z_p that may be edges of a graph:
//
//   h_p = W1 z_p + b1 (+ u_row(p) + v_col(p)),   y_p = W2 max(h_p, 0) + b2;   y_p = h_p with a single layer
//
//   perceptron            y
//   perceptron_backward   for the cotangent g of y those of z, of h, and of W1, b1, W2 and b2, the last
//   summed
//                         over the rows of a call; h is computed again instead of kept
//
// Libraries for matrices multiply many rows by few columns slowly: (24,000, 8) by (8, 8), float32, takes MKL
// 280 us, and this layer with both its maps, gathers and activation 90. Tiles of rows stay in the first cache
// from the first map to the last gradient. A row is one sequence of operations wherever a tile begins.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

inline constexpr int64_t kTileRows = 32;

// Rows of a tile: `step` from one to the next.
template <class T>
struct TileRows {
  T* at;
  int64_t step;
};

// end(p, j, begin(p, j) + sum_i x_pi w_i) for R rows from p on, a vector from column j on at a time; w_i:
// `width` numbers.
template <int R, class T, class Begin, class End>
LS_INLINE void some_products(TileRows<const T> x, int64_t p, int64_t k, const T* w, int64_t width,
                             const Begin& begin, const End& end) {
  using W = typename Wide<T>::type;
  const T* from = x.at + p * x.step;
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    W sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = begin(p + r, j);
    for (int64_t i = 0; i < k; ++i) {
      const W v = get<W>(w + i * width + j);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] += v * from[r * x.step + i];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) end(p + r, j, sum[r]);
  }
}
template <class T, class Begin, class End>
LS_INLINE void products(TileRows<const T> x, int64_t n, int64_t k, const T* w, int64_t width,
                        const Begin& begin, const End& end) {
  int64_t p = 0;
  for (; p + 8 <= n; p += 8) some_products<8>(x, p, k, w, width, begin, end);
  for (; p < n; ++p) some_products<1>(x, p, k, w, width, begin, end);
}

// c_i += sum_p a_pi b_p for R rows of c, `width` numbers each.
template <int R, class T>
LS_INLINE void some_outer(const T* a, int64_t a_step, TileRows<const T> b, int64_t n, int64_t width, T* c) {
  using W = typename Wide<T>::type;
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    W sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = get<W>(c + r * width + j);
    for (int64_t p = 0; p < n; ++p) {
      const W v = get<W>(b.at + p * b.step + j);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] += v * a[p * a_step + r];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) set<W>(c + r * width + j, sum[r]);
  }
}
template <class T>
LS_INLINE void outer(TileRows<const T> a, int64_t m, TileRows<const T> b, int64_t n, int64_t width, T* c) {
  int64_t i = 0;
  for (; i + 8 <= m; i += 8) some_outer<8>(a.at + i, a.step, b, n, width, c + i * width);
  for (; i < m; ++i) some_outer<1>(a.at + i, a.step, b, n, width, c + i * width);
}

// c += sum_p b_p, in four sums that do not wait for one another.
template <class T>
LS_INLINE void column_sums(TileRows<const T> b, int64_t n, int64_t width, T* c) {
  using W = typename Wide<T>::type;
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    W sum[4] = {};
    int64_t p = 0;
    for (; p + 4 <= n; p += 4)
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sum[r] += get<W>(b.at + (p + r) * b.step + j);
    for (; p < n; ++p) sum[0] += get<W>(b.at + p * b.step + j);
    set<W>(c + j, get<W>(c + j) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
}

// The rows x (n, k) filled up: where they lie, or a copy in `room`, whose other numbers are zeros.
template <class T>
LS_INLINE TileRows<const T> filled(const T* x, int64_t n, int64_t k, int64_t width, T* room) {
  if (k == width) return {x, k};
  for (int64_t p = 0; p < n; ++p)
    for (int64_t i = 0; i < k; ++i) room[p * width + i] = x[p * k + i];
  return {room, width};
}
// Where rows of k numbers are computed: in y, or in room if they are filled up, from where `deliver` takes
// them.
template <class T>
LS_INLINE TileRows<T> place(T* y, int64_t k, int64_t width, T* room) {
  return {k == width ? y : room, width};
}
template <class T>
LS_INLINE void deliver(TileRows<T> from, int64_t n, int64_t k, T* y) {
  if (from.at == y) return;
  for (int64_t p = 0; p < n; ++p)
    for (int64_t i = 0; i < k; ++i) y[p * k + i] = from.at[p * from.step + i];
}

// h of the n rows from p0 on; the activation too where there are two layers.
template <class T, class I>
LS_INLINE void hidden(const PerceptronView<T>& M, const PerceptronRows<T, I>& rows, int64_t p0, int64_t n,
                      TileRows<T> h) {
  using W = typename Wide<T>::type;
  const bool rectified = M.layers_are_two, whole = M.f == M.fp;
  const auto bias = [&](int64_t, int64_t j) { return get<W>(M.bias + j); };
  const auto with_ends = [&](int64_t p, int64_t j) {
    const T* u = rows.ends + 2 * static_cast<int64_t>(rows.row[p0 + p]) * M.f + j;
    const T* v = rows.ends + (2 * static_cast<int64_t>(rows.col[p0 + p]) + 1) * M.f + j;
    if (whole) return get<W>(M.bias + j) + (get<W>(u) + get<W>(v));
    T sum[kLanes<T>] = {};
    for (int64_t l = 0; l < kLanes<T> && j + l < M.f; ++l) sum[l] = u[l] + v[l];
    return get<W>(M.bias + j) + get<W>(sum);
  };
  const auto keep = [&](int64_t p, int64_t j, W x) {
    set<W>(h.at + p * h.step + j, rectified ? (x < T(0) ? W{} : x) : x);  // NaN stays
  };
  const TileRows<const T> z{rows.z + p0 * M.k, M.k};
  if (rows.ends)
    products(z, n, M.k, M.from_input, M.fp, with_ends, keep);
  else
    products(z, n, M.k, M.from_input, M.fp, bias, keep);
}

// Rows r0 <= p < r1; work: kTileRows (fp + op) numbers.
template <class T, class I>
void perceptron(const PerceptronView<T>& M, const PerceptronRows<T, I>& rows, int64_t r0, int64_t r1, T* work,
                T* y) {
  using W = typename Wide<T>::type;
  for (int64_t p0 = r0; p0 < r1; p0 += kTileRows) {
    const int64_t n = r1 - p0 < kTileRows ? r1 - p0 : kTileRows;
    T* to = y + p0 * M.o;
    T* room = work + kTileRows * M.fp;
    TileRows<T> out = place(to, M.o, M.op, room);
    if (M.layers_are_two) {
      const TileRows<T> h{work, M.fp};
      hidden(M, rows, p0, n, h);
      products(
          TileRows<const T>{h.at, h.step}, n, M.f, M.from_hidden, M.op,
          [&](int64_t, int64_t j) { return get<W>(M.out_bias + j); },
          [&](int64_t p, int64_t j, W x) { set<W>(out.at + p * out.step + j, x); });
    } else {
      hidden(M, rows, p0, n, out);
    }
    deliver(out, n, M.o, to);
  }
}

// Rows r0 <= p < r1; work: kTileRows (2 fp + 2 kp + op) zeros. gz and gh may be null. sums, to which is
// added: W1 (f, kp), b1 (fp), W2 (o, fp), b2 (op).
template <class T, class I>
void perceptron_backward(const PerceptronView<T>& M, const PerceptronRows<T, I>& rows, int64_t r0, int64_t r1,
                         const T* g, T* work, T* gz, T* gh, T* sums) {
  using W = typename Wide<T>::type;
  T* of_bias = sums + M.f * M.kp;
  T* of_hidden = of_bias + M.fp;
  T* of_out_bias = of_hidden + M.o * M.fp;
  T* hidden_room = work;
  T* gh_room = hidden_room + kTileRows * M.fp;
  T* z_room = gh_room + kTileRows * M.fp;
  T* gz_room = z_room + kTileRows * M.kp;
  T* g_room = gz_room + kTileRows * M.kp;
  const auto zero = [](int64_t, int64_t) { return W{}; };
  for (int64_t p0 = r0; p0 < r1; p0 += kTileRows) {
    const int64_t n = r1 - p0 < kTileRows ? r1 - p0 : kTileRows;
    const TileRows<const T> by_output = filled(g + p0 * M.o, n, M.o, M.op, g_room);
    TileRows<const T> by_hidden = by_output;
    if (M.layers_are_two) {
      const TileRows<T> h{hidden_room, M.fp},
          to = gh ? place(gh + p0 * M.f, M.f, M.fp, gh_room) : TileRows<T>{gh_room, M.fp};
      hidden(M, rows, p0, n, h);
      products(by_output, n, M.o, M.from_output, M.fp, zero, [&](int64_t p, int64_t j, W x) {
        set<W>(to.at + p * to.step + j, get<W>(h.at + p * h.step + j) <= T(0) ? W{} : x);
      });
      outer<T>(by_output, M.o, {h.at, h.step}, n, M.fp, of_hidden);
      column_sums<T>(by_output, n, M.op, of_out_bias);
      if (gh) deliver(to, n, M.f, gh + p0 * M.f);
      by_hidden = {to.at, to.step};
    }
    outer<T>(by_hidden, M.f, filled(rows.z + p0 * M.k, n, M.k, M.kp, z_room), n, M.kp, sums);
    column_sums<T>(by_hidden, n, M.fp, of_bias);
    if (gz) {
      const TileRows<T> to = place(gz + p0 * M.k, M.k, M.kp, gz_room);
      products(by_hidden, n, M.f, M.from_preactivation, M.kp, zero,
               [&](int64_t p, int64_t j, W x) { set<W>(to.at + p * to.step + j, x); });
      deliver(to, n, M.k, gz + p0 * M.k);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
