// Vectors of 32 bytes (16 where the machine has no longer ones), and the two moves between V consecutive rows
// of length L (values in CSR order) and L vectors of V lanes, one a column of the rows: pick (values to
// lanes) and weave (lanes to values).
//
// Both are chains of two-source permutes with constant masks. Measured for nnz = 98k on one thread of a
// Zen 4, float32, L = 5: 9 us with AVX-512's permutes against 22 us for copies of scalars; without them
// (kShuffles false) the scalar form is the faster one.
#pragma once

#include "kernels/csr_view.h"

namespace learnsolve::LEARNSOLVE_ISA {

// A vector longer than the machine's is taken apart by way of the stack: 16 bytes without AVX.
#if defined(__AVX2__)
#define LS_VECTOR_BYTES 32
#else
#define LS_VECTOR_BYTES 16
#endif
typedef double vector_f64 __attribute__((vector_size(LS_VECTOR_BYTES), aligned(8), may_alias));
typedef float vector_f32 __attribute__((vector_size(LS_VECTOR_BYTES), aligned(4), may_alias));
typedef int64_t mask_f64 __attribute__((vector_size(LS_VECTOR_BYTES)));
typedef int32_t mask_f32 __attribute__((vector_size(LS_VECTOR_BYTES)));

template <class T>
struct Lanes;
template <>
struct Lanes<double> {
  using vector = vector_f64;
  using mask = mask_f64;
};
template <>
struct Lanes<float> {
  using vector = vector_f32;
  using mask = mask_f32;
};

template <class T>
inline constexpr int kLanes = LS_VECTOR_BYTES / sizeof(T);

// The maximum number of rows that an epilogue receives at once.
template <class T>
inline constexpr int kRows = 32 / sizeof(T);

template <class T>
LS_INLINE typename Lanes<T>::vector load(const T* p) {
  return *reinterpret_cast<const typename Lanes<T>::vector*>(p);
}
template <class T>
LS_INLINE void store(T* p, typename Lanes<T>::vector v) {
  *reinterpret_cast<typename Lanes<T>::vector*>(p) = v;
}

// Of streams that come from memory: the machine's own prefetch ends with a page, and has few streams. The
// adjoint of conjugate gradients, n = 33,124, takes 102 us an iteration instead of 130; a product with a 1000
// x 1000 grid 1.6 ms instead of 2.7, with one in cache 31 us instead of 29; the solve with L of ILU(0) on
// 100^3 1.7 instead of 3.0 ms. Of a transposed structure, whose entries are streams of their own, only the
// one that is ahead: products and solves that prefetch all of them take longer.
template <bool Write = false, class T>
LS_INLINE void prefetch(const T* p, int64_t dir = 1) {
  const auto ahead = static_cast<uintptr_t>(8192 * dir);
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + ahead), Write);
}

// Sum of the lanes in a fixed order, halves first.
LS_INLINE double sum_lanes(vector_f64 v) {
#if LS_VECTOR_BYTES == 32
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
  return v[0] + v[1];
}
LS_INLINE float sum_lanes(vector_f32 v) {
#if LS_VECTOR_BYTES == 32
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#else
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
  return v[0] + v[1];
}

// Row lengths for which the permutes win.
template <int L, class T>
inline constexpr bool kShuffles =
#if defined(__AVX512VL__)
    L > 1 && L * sizeof(T) <= (sizeof(T) == 8 ? 40 : 28);
#elif defined(__AVX2__)
    L > 1 && L <= (sizeof(T) == 8 ? 5 : 3);
#else
    false;
#endif

template <int L, class T>
struct LanePicker {
  static constexpr int V = kLanes<T>;
  using vector = typename Lanes<T>::vector;
  typename Lanes<T>::mask masks[L][L];
  vector w[L];

  LS_INLINE LanePicker() {
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l)
#pragma GCC unroll 16
      for (int s = 1; s < L; ++s)
#pragma GCC unroll 16
        for (int e = 0; e < V; ++e) {
          const int p = e * L + l, source = p / V;
          if (s == 1)
            masks[l][s][e] = source == 0 ? p : source == 1 ? V + p % V : 0;
          else
            masks[l][s][e] = source == s ? V + p % V : e;
        }
  }
  // Reads L V values.
  LS_INLINE void read(const T* values) {
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) w[l] = load(values + l * V);
  }
  LS_INLINE vector pick(int l) const {
    vector q = w[0];
#pragma GCC unroll 16
    for (int s = 1; s < L; ++s) q = __builtin_shuffle(q, w[s], masks[l][s]);
    return q;
  }
};

template <int L, class T>
struct LaneWeaver {
  static constexpr int V = kLanes<T>;
  using vector = typename Lanes<T>::vector;
  typename Lanes<T>::mask masks[L][L];
  vector lanes[L];

  LS_INLINE LaneWeaver() {
#pragma GCC unroll 16
    for (int s = 0; s < L; ++s)
#pragma GCC unroll 16
      for (int l = 1; l < L; ++l)
#pragma GCC unroll 16
        for (int e = 0; e < V; ++e) {
          const int p = s * V + e, row = p / L, lane = p % L;
          if (l == 1)
            masks[s][l][e] = lane == 0 ? row : lane == 1 ? V + row : 0;
          else
            masks[s][l][e] = lane == l ? V + row : e;
        }
  }
  // Vector s of the L that hold the rows one after another.
  LS_INLINE vector weave(int s) const {
    vector q = lanes[0];
#pragma GCC unroll 16
    for (int l = 1; l < L; ++l) q = __builtin_shuffle(q, lanes[l], masks[s][l]);
    return q;
  }
};

}  // namespace learnsolve::LEARNSOLVE_ISA
