// Combinations of vectors with their squares, and sums of moduli: what the passes of a recorded program are
// made of (ops/program.cpp). Blocks of 1, 2, 4 or 8 columns are worked on as one array, in which the columns
// come again after a period.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

// A sum a number of the period becomes a sum a column.
template <class T>
LS_INLINE void fold(const T* period, int64_t k, T* sum) {
  for (int64_t c = 0; c < k; ++c) sum[c] = 0;
  for (int64_t e = 0; e < kPeriod<T>; ++e) sum[e % k] += period[e];
}

template <int K, bool Square, class T>
LS_FUNCTION void combination(const Combination<T>& c, int64_t size, int64_t k) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>, P = kPeriod<T> / V;
  W a[K][P], sum[P] = {};
  const T* v[K];
#pragma GCC unroll 8
  for (int t = 0; t < K; ++t) {
    v[t] = c.v[t];
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) a[t][s] = get<W>(c.a + t * kPeriod<T> + s * V);
  }
  T* out = c.out;  // which may be one of v
  int64_t o = 0;
  for (; o + kPeriod<T> <= size; o += kPeriod<T>) {
    W y[P];
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) {
      y[s] = a[0][s] * get<W>(v[0] + o + s * V);
#pragma GCC unroll 8
      for (int t = 1; t < K; ++t) y[s] += a[t][s] * get<W>(v[t] + o + s * V);
      if (Square) sum[s] += y[s] * y[s];
    }
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) set<W>(out + o + s * V, y[s]);
  }
  T squares[kPeriod<T>];
  for (int s = 0; s < P; ++s) set<W>(squares + s * V, sum[s]);
  for (int e = 0; o < size; ++o, ++e) {
    T y = c.a[e] * v[0][o];
    for (int t = 1; t < K; ++t) y += c.a[t * kPeriod<T> + e] * v[t][o];
    out[o] = y;
    squares[e] += y * y;
  }
  if (Square) fold(squares, k, c.square);
}

template <class T>
void combine_vectors(const Combination<T>& c, int64_t size, int64_t k) {
  const auto with = [&]<int K>() {
    c.square ? combination<K, true>(c, size, k) : combination<K, false>(c, size, k);
  };
  switch (c.terms) {
    case 1: return with.template operator()<1>();
    case 2: return with.template operator()<2>();
    case 3: return with.template operator()<3>();
    case 4: return with.template operator()<4>();
    case 5: return with.template operator()<5>();
    default: return with.template operator()<6>();
  }
}

// sum_c = sum_i |u_ic v_ic|
template <class T>
LS_FUNCTION void absolute_dots(const T* u, const T* v, int64_t size, int64_t k, T* sum) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>, P = kPeriod<T> / V;
  W sums[P] = {};
  int64_t o = 0;
  for (; o + kPeriod<T> <= size; o += kPeriod<T>)
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) {
      const W product = get<W>(u + o + s * V) * get<W>(v + o + s * V);
      sums[s] += product < 0 ? -product : product;
    }
  T period[kPeriod<T>];
  for (int s = 0; s < P; ++s) set<W>(period + s * V, sums[s]);
  for (int e = 0; o < size; ++o, ++e) {
    const T product = u[o] * v[o];
    period[e] += product < 0 ? -product : product;
  }
  fold(period, k, sum);
}

// out_ic = d_i v_ic
template <class T>
void scale_rows(const T* LS_RESTRICT d, const T* v, int64_t rows, int64_t k, T* LS_RESTRICT out) {
  if (k == 1) {
    for (int64_t i = 0; i < rows; ++i) out[i] = d[i] * v[i];
    return;
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < k; ++c) out[i * k + c] = d[i] * v[i * k + c];
}

}  // namespace learnsolve::LEARNSOLVE_ISA
