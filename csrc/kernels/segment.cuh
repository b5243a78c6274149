// Maximum and softmax over segments (kernels/segment.h): reductions, and passes over all entries. A team has
// a piece of a segment (products.cuh) and some columns, and its lanes read numbers beside one another. What
// the further pieces of a long segment give is combined by one more kernel, in an order of the pattern's.
#pragma once

#include <cmath>

#include "kernels/products.cuh"

namespace learnsolve::cuda {

// The segments of a structure, features of k columns for each of its entries, `batch` times.
template <class I>
struct Segments {
  Schedule<I> rows;
  const I* perm;
  int64_t k, batch;
  int width;  // columns of a team: a power of two

  LS_BOTH int64_t tiles() const { return (k + width - 1) / width; }
  LS_DEVICE int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
  LS_DEVICE int64_t of_row(int64_t b, int64_t i, int64_t c) const { return (b * rows.rows + i) * k + c; }
};

// f(team, b, s, piece s, c) for the pieces and columns of this thread; c may be k or more.
template <int N, class I, class F>
LS_DEVICE void for_pieces(const Segments<I>& S, const F& f) {
  for_aside(S.batch, [&](int64_t b) {
    for_items<N>(S.rows.pieces() * S.tiles(), [&](const auto& team, int64_t item) {
      const int64_t s = item / S.tiles(), c = item % S.tiles() * S.width + team.lane % S.width;
      f(team, b, s, S.rows.piece(s), c);
    });
  });
}
// f(number of e, p) for the entries p of the piece, in column c, that are this lane's.
template <class Team, class I, class F>
LS_DEVICE void for_entries(const Team& team, const Segments<I>& S, int64_t b, const Piece& piece, int64_t c,
                           const F& f) {
  if (c >= S.k) return;
  for (int64_t p = piece.begin + team.lane / S.width; p < piece.end; p += Team::size / S.width)
    f((b * S.rows.nnz + S.place(p)) * S.k + c, p);
}

// The largest number, the first NaN if there is one, and its entry; of equal ones the first.
template <class T>
struct Largest {
  T value = 0;
  int64_t p = -1;
  LS_DEVICE void add(const Largest& x) {
    const bool larger = !(x.value <= value), earlier = x.p < p, nan = value != value;
    if (x.p < 0) return;
    if (p < 0 || (nan ? x.value != x.value && earlier : larger || (x.value == value && earlier))) *this = x;
  }
  template <class Team>
  LS_DEVICE Largest of_lane(const Team& team, int at) const {
    return {team.of_lane(value, at), team.of_lane(p, at)};
  }
};
template <class T>
struct Total {
  T value = 0;
  LS_DEVICE void add(const Total& x) { value += x.value; }
  template <class Team>
  LS_DEVICE Total of_lane(const Team& team, int at) const {
    return {team.of_lane(value, at)};
  }
};

// Of all lanes with the same column, in a fixed tree.
template <class Team, class Part>
LS_DEVICE Part combined(const Team& team, Part part, int width) {
  for (int h = Team::size / 2; h >= width; h /= 2) part.add(part.of_lane(team, team.lane ^ h));
  return part;
}

// A reduction has a type Part, which begins with nothing; entry(o, r, p), that of number o, in segment and
// column r; put(r, part), the result of a first piece; and add(r, part), to which further ones are added.
template <int N, class Op>
LS_KERNEL(kThreads)
segment_reduce_kernel(LS_ARGUMENT Op op, typename Op::Part* further) {
  const auto& S = op.S;
  for_pieces<N>(S, [&](const auto& team, int64_t b, int64_t s, const Piece& piece, int64_t c) {
    const int64_t r = S.of_row(b, piece.i, c);
    typename Op::Part part;
    for_entries(team, S, b, piece, c, [&](int64_t o, int64_t p) { part.add(op.entry(o, r, p)); });
    part = combined(team, part, S.width);
    if (team.lane >= S.width || c >= S.k) return;
    if (s < S.rows.rows)
      op.put(r, part);
    else
      further[(b * S.rows.further + s - S.rows.rows) * S.k + c] = part;
  });
}
template <class Op>
LS_KERNEL(kThreads)
segment_further_kernel(LS_ARGUMENT Op op, const typename Op::Part* further) {
  const auto& S = op.S;
  for_aside(S.batch, [&](int64_t b) {
    for_items<32>(S.rows.further * S.k, [&](const auto& team, int64_t item) {
      const int64_t t = item / S.k, c = item % S.k, count = S.rows.opens(t);
      if (count == 0) return;
      typename Op::Part part;
      for (int64_t n = team.lane; n < count; n += 32)
        part.add(further[(b * S.rows.further + t + n) * S.k + c]);
      part = combined(team, part, 1);
      if (team.first()) op.add(S.of_row(b, S.rows.table[2 * t], c), part);
    });
  });
}
// op.entry(o, r) for all numbers.
template <int N, class Op>
LS_KERNEL(kThreads)
segment_map_kernel(LS_ARGUMENT Op op) {
  for_pieces<N>(op.S, [&](const auto& team, int64_t b, int64_t, const Piece& piece, int64_t c) {
    const int64_t r = op.S.of_row(b, piece.i, c);
    for_entries(team, op.S, b, piece, c, [&](int64_t o, int64_t) { op.entry(o, r); });
  });
}

template <class T, class I>
struct SegmentMax {
  using Part = Largest<T>;
  Segments<I> S;
  const T* e;
  T* top;
  I* at;
  LS_DEVICE Part entry(int64_t o, int64_t, int64_t p) const { return {e[o], p}; }
  LS_DEVICE void put(int64_t r, const Part& part) const {
    top[r] = part.value;
    at[r] = part.p < 0 ? I(-1) : static_cast<I>(S.place(part.p));
  }
  LS_DEVICE void add(int64_t r, const Part& part) const {
    Part first{top[r], 0};
    first.add(part);
    if (first.p > 0) put(r, part);
  }
};

// Where sums of segments go.
template <class T>
struct Totals {
  using Part = Total<T>;
  T* total;
  LS_DEVICE void put(int64_t r, const Part& part) const { total[r] = part.value; }
  LS_DEVICE void add(int64_t r, const Part& part) const { total[r] += part.value; }
};

// Sums of exp(e - top), and the softmax that they make.
template <class T, class I>
struct Exponentials : Totals<T> {
  Segments<I> S;
  const T *e, *top;
  LS_DEVICE Total<T> entry(int64_t o, int64_t r, int64_t) const { return {std::exp(e[o] - top[r])}; }
};
template <class T, class I>
struct Softmax {
  Segments<I> S;
  const T *e, *top, *total;
  T* y;
  LS_DEVICE void entry(int64_t o, int64_t r) const { y[o] = std::exp(e[o] - top[r]) / total[r]; }
};

// Sums of y g, and y (g - sum).
template <class T, class I>
struct WeightedSums : Totals<T> {
  Segments<I> S;
  const T *y, *g;
  LS_DEVICE Total<T> entry(int64_t o, int64_t, int64_t) const { return {y[o] * g[o]}; }
};
template <class T, class I>
struct SoftmaxBackward {
  Segments<I> S;
  const T *y, *g, *sum;
  T* out;
  LS_DEVICE void entry(int64_t o, int64_t r) const { out[o] = y[o] * (g[o] - sum[r]); }
};

// g where it belongs, in zeros.
template <class T, class I>
LS_KERNEL(kThreads)
segment_place_kernel(LS_ARGUMENT Segments<I> S, const I* at, const T* g, T* out) {
  for_aside(S.batch, [&](int64_t b) {
    for_items<1>(S.rows.rows * S.k, [&](const auto&, int64_t t) {
      const int64_t r = S.of_row(b, 0, t), q = at[r];
      if (q >= 0) out[(b * S.rows.nnz + q) * S.k + t % S.k] = g[r];
    });
  });
}

}  // namespace learnsolve::cuda
