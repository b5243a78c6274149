// A triangular factor L whose rows a perceptron predicts from the rows of A: in units of sqrt(a_ii), with the
// outputs h of row i and e the scaled entries of A,
//
//   l_ij = (e_ij + h_k(i,j)) u_j for i > j,   l_ii = exp(h_lower) / omega u_i,   u_i = exp(h_(lower+1)) unit
//
//   pointwise_rows      L without u, and u
//   pointwise_columns   L: its columns belong to rows that other threads may compute
//
// Features of a row: its entries off the diagonal, each in its place a_slot, and k(i, j) = l_slot, where
// lower stands for none and lower + 1 for the diagonal. Without slots: the `lower` largest entries below the
// diagonal and above it, both sums, and k(i, j) is the rank of an entry below the diagonal, if it is one of
// these.
//
// Tiles of rows stay in the first cache from the features to the row of L. A row is one sequence of
// operations wherever a tile begins.
#pragma once

#include "kernels/exponential.h"
#include "kernels/perceptron.h"

namespace learnsolve::LEARNSOLVE_ISA {

// to = W from + b
template <class T>
LS_INLINE void affine(const LayerView<T>& layer, TileRows<const T> from, int64_t n, T* to) {
  using W = typename Wide<T>::type;
  products(
      from, n, layer.k, layer.from, layer.width, [&](int64_t, int64_t j) { return get<W>(layer.bias + j); },
      [&](int64_t p, int64_t j, W x) { set<W>(to + p * layer.width + j, x); });
}
// x / (1 + exp(-x)) of `count` numbers, whole vectors: a pass of its own, since in that of the products its
// constants leave their sums without registers (2,048 tiles of 32 x 32: 2.9 instead of 6.0 ms).
template <class T>
LS_INLINE void silu(T* x, int64_t count) {
  using W = typename Wide<T>::type;
  for (int64_t o = 0; o < count; o += kLanes<T>) {
    const W v = get<W>(x + o);
    set<W>(x + o, v / (T(1) + exponential<T>(-v)));
  }
}

// The `most` largest of the numbers that are put in, by magnitude: NaN before all others, equal ones in the
// order in which they come. When the room is full, and at last, `sort` counts for each number how many come
// before it: an insertion has branches that nothing predicts (64,000 rows of 27: 40 ms instead of 20).
template <class V>
struct Largest {
  const LargestRoom<V>& room;
  int64_t most, count = 0;

  LS_INLINE void put(V v, int32_t place) {
    if (count == largest_room<V>(most)) sort();
    room.v[count] = v, room.place[count] = place, ++count;
  }
  LS_INLINE void sort() {
    using M = typename Lanes<V>::mask;
    using Key = typename LargestRoom<V>::Key;
    constexpr int64_t L = kLanes<V>;
    M lane{};
    for (int64_t l = 0; l < L; ++l) lane[l] = l;
    for (int64_t i = 0; i < count; i += L) {  // bits without the sign have the order of magnitudes
      const M key = move<M>(room.v + i) & (static_cast<M>(M{} - 1) ^ (M{} + 1) << (8 * sizeof(V) - 1));
      __builtin_memcpy(room.key + i, &key, sizeof key);
    }
    for (int64_t i = 0; i < count; i += L) {
      const M own = move<M>(room.key + i);
      M rank{};
      int64_t j = 0;
      for (; j < i; ++j) rank -= room.key[j] > own - 1;
      for (; j < count && j < i + L; ++j) rank -= room.key[j] > own + (static_cast<Key>(j - i) < lane);
      for (; j < count; ++j) rank -= room.key[j] > own;
      for (int64_t l = 0; l < L && i + l < count; ++l) {
        const int64_t r = rank[l] < most ? rank[l] : most;
        room.sorted[r] = room.v[i + l], room.sorted_place[r] = room.place[i + l];
      }
    }
    if (count > most) count = most;
    for (int64_t r = 0; r < count; ++r) room.v[r] = room.sorted[r], room.place[r] = room.sorted_place[r];
  }

 private:
  template <class M, class N>
  static LS_INLINE M move(const N* from) {
    M m;
    __builtin_memcpy(&m, from, sizeof m);
    return m;
  }
};

// The features x of row i, with a zero for the diagonal and behind them. A row with all of them has them in
// order.
template <class T, class V, class I>
LS_INLINE void stencil_features(const PointwiseView<T, V, I>& M, int64_t i, T* x) {
  const int64_t first = M.a_ptr[i], length = M.a_ptr[i + 1] - first, features = M.layer[0].k;
  const V own = M.inverse[i];
  const auto scaled = [&](int64_t p) { return static_cast<T>(M.values[p] * own * M.inverse[M.a_idx[p]]); };
  if (length == features) {
    for (int64_t r = 0; r < features; ++r) x[r] = scaled(first + r);
  } else {
    for (int64_t r = 0; r < features; ++r) x[r] = 0;
    for (int64_t p = first; p < first + length; ++p) x[M.a_slot[p]] = scaled(p);
  }
  x[M.main] = x[features] = 0;
}
// The features x of row i; its scaled entries below the diagonal in L, and the places there of the largest
// ones, -1 where there are fewer.
template <class T, class V, class I>
LS_INLINE void sorted_features(const PointwiseView<T, V, I>& M, int64_t i, T* x, const LargestRoom<V>& room,
                               int32_t* place) {
  int64_t q = M.l_ptr[i], p = M.a_ptr[i];
  const int64_t first = q, last = M.l_ptr[i + 1] - 1, end = M.a_ptr[i + 1];
  const V own = M.inverse[i];
  for (int side = 0; side < 2; ++side) {
    Largest<V> largest{room, M.lower};
    V sum = 0;
    for (; p < end && (side || M.a_idx[p] < i); ++p) {
      const I j = M.a_idx[p];
      if (j == i) continue;
      const V v = M.values[p] * own * M.inverse[j];
      sum += v;
      largest.put(v, static_cast<int32_t>(q - first));
      if (side == 0 && q < last) M.out[q++] = static_cast<T>(v);
    }
    largest.sort();
    for (int64_t r = 0; r < M.lower; ++r) {
      x[side * M.lower + r] = r < largest.count ? static_cast<T>(room.v[r]) : T(0);
      if (side == 0) place[r] = r < largest.count ? room.place[r] : -1;
    }
    x[2 * M.lower + side] = static_cast<T>(sum);
  }
}

// Rows r0 <= i < r1.
template <class T, class V, class I>
void pointwise_rows(const PointwiseView<T, V, I>& M, int64_t r0, int64_t r1, PointwiseRoom<T, V> room) {
  using W = typename Wide<T>::type;
  const int64_t step = M.layer[0].k + 1, lower = M.lower;
  T* x = room.numbers;
  T* h[] = {x + kTileRows * step, x + kTileRows * (step + M.widest)};
  for (int64_t i0 = r0; i0 < r1; i0 += kTileRows) {
    const int64_t n = r1 - i0 < kTileRows ? r1 - i0 : kTileRows;
    for (int64_t p = 0; p < n; ++p)
      if (M.a_slot)
        stencil_features(M, i0 + p, x + p * step);
      else
        sorted_features(M, i0 + p, x + p * step, room.largest, room.place + p * lower);

    TileRows<const T> from{x, step};
    for (int64_t l = 0; l + 1 < M.layers; ++l) {
      affine(M.layer[l], from, n, h[l % 2]);
      silu(h[l % 2], n * M.layer[l].width);
      from = {h[l % 2], M.layer[l].width};
    }
    const LayerView<T>& layer = M.layer[M.layers - 1];
    T* y = h[(M.layers - 1) % 2];
    affine(layer, from, n, y);

    T own[kTileRows] = {}, column[kTileRows] = {};
    for (int64_t p = 0; p < n; ++p)
      own[p] = y[p * layer.width + lower], column[p] = y[p * layer.width + lower + 1];
    for (int64_t p = 0; p < kTileRows; p += kLanes<T>) {
      set<W>(own + p, exponential<T>(get<W>(own + p)) / M.omega);
      set<W>(column + p, exponential<T>(get<W>(column + p)) * M.unit);
    }
    for (int64_t p = 0; p < n; ++p) {
      const int64_t i = i0 + p, first = M.l_ptr[i], end = M.l_ptr[i + 1];
      M.column[i] = column[p];
      const T *row = y + p * layer.width, *e = x + p * step;
      if (M.a_slot) {
        const auto below = [&](int64_t k) { return e[M.of_a[k]] + row[k]; };
        if (end - first == lower + 1) {
          for (int64_t k = 0; k < lower; ++k) M.out[first + k] = below(k);
          M.out[first + lower] = own[p];
        } else {
          for (int64_t q = first; q < end; ++q) M.out[q] = M.l_slot[q] < lower ? below(M.l_slot[q]) : own[p];
        }
      } else {
        const int32_t* place = room.place + p * lower;
        for (int64_t r = 0; r < lower && place[r] >= 0; ++r)
          if (const int64_t q = first + place[r]; q < end - 1) M.out[q] = static_cast<T>(M.out[q]) + row[r];
        if (first < end) M.out[end - 1] = own[p];
      }
    }
  }
}

template <class T, class V, class I>
void pointwise_columns(const PointwiseView<T, V, I>& M, int64_t r0, int64_t r1) {
  for (int64_t i = r0; i < r1; ++i)
    for (int64_t q = M.l_ptr[i]; q < M.l_ptr[i + 1]; ++q)
      M.out[q] = static_cast<T>(static_cast<T>(M.out[q]) * M.column[M.l_idx[q]]) * M.scale[i];
}

}  // namespace learnsolve::LEARNSOLVE_ISA
