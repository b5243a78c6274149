// Vectors of 32 bytes (16 where the machine has no longer ones), and the two moves between V consecutive rows
// of length L (values in CSR order) and L vectors of V lanes, one a column of the rows: pick (values to
// lanes) and weave (lanes to values).
//
// Both are chains of two-source permutes with constant masks. Measured for nnz = 98k on one thread of a
// Zen 4, float32, L = 5: 9 us with AVX-512's permutes against 22 us for copies of scalars; without them
// (kShuffles false) the scalar form is the faster one.
#pragma once

#include "kernels/views.h"

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

// Lanes of v, or of v and w, in the order of a mask of indices.
#ifdef __clang__  // whose builtin takes constants alone; it makes one permute of these moves
template <class Vector, class Mask>
LS_INLINE Vector shuffled(Vector v, Mask mask) {
  Vector out = v;
#pragma unroll
  for (unsigned e = 0; e < sizeof(v) / sizeof(v[0]); ++e) out[e] = v[mask[e]];
  return out;
}
template <class Vector, class Mask>
LS_INLINE Vector shuffled(Vector v, Vector w, Mask mask) {
  constexpr int n = sizeof(v) / sizeof(v[0]);
  Vector out = v;
#pragma unroll
  for (int e = 0; e < n; ++e) out[e] = mask[e] < n ? v[mask[e]] : w[mask[e] - n];
  return out;
}
#define LS_SHUFFLE shuffled
#else
#define LS_SHUFFLE __builtin_shuffle
#endif

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
    for (int s = 1; s < L; ++s) q = LS_SHUFFLE(q, w[s], masks[l][s]);
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
    for (int l = 1; l < L; ++l) q = LS_SHUFFLE(q, lanes[l], masks[s][l]);
    return q;
  }
};

// Passes over blocks of rows of n x k vectors, with sums a block and column: one column is worked on in
// vectors of rows, several row by row.

// Vectors as variables, in registers or on the stack: those above are for memory of any alignment, which
// a template argument would lose.
template <class T>
struct Wide;
template <>
struct Wide<double> {
  typedef double type __attribute__((vector_size(LS_VECTOR_BYTES)));
};
template <>
struct Wide<float> {
  typedef float type __attribute__((vector_size(LS_VECTOR_BYTES)));
};

// W is T or a vector of T.
template <class W, class T>
LS_INLINE W get(const T* at) {
  if constexpr (sizeof(W) == sizeof(T))
    return *at;
  else
    return load(at);
}
template <class W, class T>
LS_INLINE void set(T* at, W value) {
  if constexpr (sizeof(W) == sizeof(T))
    *at = value;
  else
    store(at, value);
}

// Where a pass is: element o of the vectors, in row i and column c. One column: W consecutive rows.
template <class T>
struct OneColumn {
  int64_t o;
  template <class W>
  LS_INLINE W coefficient(const T* a) const {
    return W{} + a[0];
  }
  template <class W>
  LS_INLINE W of_row(const T* d) const {
    return get<W>(d + o);
  }
};
// Several columns: W consecutive columns of a row.
template <class T>
struct Columns {
  int64_t o, i, c;
  template <class W>
  LS_INLINE W coefficient(const T* a) const {
    return get<W>(a + c);
  }
  template <class W>
  LS_INLINE W of_row(const T* d) const {
    return W{} + d[i];
  }
};

// A pass has sums() pointers to the sums that it makes and `at<W>(place, sums)`, which works on W elements,
// adds to the sums, and returns what is to be added to rows() of the row.
template <class T, class I, class Pass>
LS_INLINE void run_pass(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t k, const Pass& pass) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>, S = Pass::kSums;
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2];
    if (k == 1) {
      W wide[S + 1] = {};
      T single[S + 1] = {};
      int64_t i = r0;
      for (; i + V <= r1; i += V) {
        const W e = pass.template at<W>(OneColumn<T>{i}, wide);
        if constexpr (Pass::kRowSums) set<W>(pass.rows() + i, get<W>(pass.rows() + i) + e);
      }
      for (; i < r1; ++i) {
        const T e = pass.template at<T>(OneColumn<T>{i}, single);
        if constexpr (Pass::kRowSums) pass.rows()[i] += e;
      }
      for (int s = 0; s < S; ++s) pass.sums(s)[b] = sum_lanes(wide[s]) + single[s];
    } else {
      for (int s = 0; s < S; ++s)
        for (int64_t c = 0; c < k; ++c) pass.sums(s)[b * k + c] = 0;
      for (int64_t i = r0; i < r1; ++i) {
        W wide_row{};
        T single_row = 0;
        int64_t c = 0;
        for (; c + V <= k; c += V) {
          W sums[S + 1];
          for (int s = 0; s < S; ++s) sums[s] = get<W>(pass.sums(s) + b * k + c);
          wide_row += pass.template at<W>(Columns<T>{i * k + c, i, c}, sums);
          for (int s = 0; s < S; ++s) set<W>(pass.sums(s) + b * k + c, sums[s]);
        }
        for (; c < k; ++c) {
          T sums[S + 1];
          for (int s = 0; s < S; ++s) sums[s] = pass.sums(s)[b * k + c];
          single_row += pass.template at<T>(Columns<T>{i * k + c, i, c}, sums);
          for (int s = 0; s < S; ++s) pass.sums(s)[b * k + c] = sums[s];
        }
        if constexpr (Pass::kRowSums) pass.rows()[i] += sum_lanes(wide_row) + single_row;
      }
    }
  }
}

// A coefficient of a single column in a variable of its own: no store of the pass can alias it.
template <class T>
struct Pinned {
  T value;
  Pinned(const T*& pointer, int64_t k) {
    if (k != 1 || !pointer) return;
    value = *pointer;
    pointer = &value;
  }
};

// Sums over the rows of a block of what an epilogue of `for_each_row` adds up.
template <class T>
struct BlockSums {
  using W = typename Wide<T>::type;
  T* sum;  // blocks x k
  int64_t k;
  int64_t at = 0;
  W lanes[kRows<T> / kLanes<T>] = {};

  void begin(int64_t block) {
    at = block * k;
    for (W& lane : lanes) lane = W{};
    if (k != 1)
      for (int64_t c = 0; c < k; ++c) sum[at + c] = 0;
  }
  void end() {
    if (k != 1) return;
    T total = 0;
    for (int e = 0; e < kRows<T>; ++e) total += lanes[e / kLanes<T>][e % kLanes<T>];
    sum[at] = total;
  }
  // Row e of those that an epilogue receives at once, or as many from it on as a vector has lanes.
  LS_INLINE void add(int e, T product) { lanes[e / kLanes<T>][e % kLanes<T>] += product; }
  LS_INLINE void add(int e, W product) { lanes[e / kLanes<T>] += product; }
};

// f.template operator()<W>(e) for the n rows that an epilogue receives at once, a vector of them at a time if
// they are complete. GCC takes the elements of an array of sums one by one: an iteration of conjugate
// gradients, n = 33,124, took 57 us, not 50.
template <class T, class F>
LS_INLINE void each_row(int n, const F& f) {
  if (n == kRows<T>) {
    for (int e = 0; e < kRows<T>; e += kLanes<T>) f.template operator()<typename Wide<T>::type>(e);
  } else {
    for (int e = 0; e < n; ++e) f.template operator()<T>(e);
  }
}

// Sums over the rows of n x k vectors, a column each, in an order that depends on n and k alone; and their
// adjoint, combinations of vectors.
//
// Up to kFlat columns are worked on as one array: the columns of its numbers come again after a period of P
// vectors, at least four, so that as many additions run at a time.

inline constexpr int64_t kFlat = 8;

// f.template operator()<P>() with the period of k columns.
template <class F>
LS_INLINE void by_period(int64_t k, const F& f) {
  if (k == 3 || k == 6) return f.template operator()<6>();
  if (k == 5) return f.template operator()<5>();
  if (k == 7) return f.template operator()<7>();
  if (k == 8) return f.template operator()<8>();
  f.template operator()<4>();
}

template <int P, class T>
LS_FUNCTION void flat_dots(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t size, int64_t k,
                           T* LS_RESTRICT sum) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>;
  W wide[P] = {};
  int64_t o = 0;
  for (; o + P * V <= size; o += P * V)
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) wide[s] += get<W>(u + o + s * V) * get<W>(v + o + s * V);
  if (k == 1) {
    W total{};
    T single = 0;
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) total += wide[s];
    for (; o < size; ++o) single += u[o] * v[o];
    sum[0] = sum_lanes(total) + single;
    return;
  }
  for (int64_t c = 0; c < k; ++c) sum[c] = 0;
  for (int64_t c = 0; o < size; ++o, c = c + 1 == k ? 0 : c + 1) sum[c] += u[o] * v[o];
  int64_t c = 0;
  for (int s = 0; s < P; ++s)
    for (int e = 0; e < V; ++e, c = c + 1 == k ? 0 : c + 1) sum[c] += wide[s][e];
}

// sum_c = sum_i u_ic v_ic for 0 <= i < rows
template <class T>
void column_dots(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t rows, int64_t k,
                 T* LS_RESTRICT sum) {
  if (k == 0) return;
  if (k <= kFlat) return by_period(k, [&]<int P>() { flat_dots<P>(u, v, rows * k, k, sum); });
  for (int64_t c = 0; c < k; ++c) sum[c] = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < k; ++c) sum[c] += u[i * k + c] * v[i * k + c];
}

// y_ic = a_c v_ic, added to y if `accumulate`.
template <class T>
void column_combination(const T* LS_RESTRICT a, const T* LS_RESTRICT v, int64_t rows, int64_t k,
                        T* LS_RESTRICT y, bool accumulate) {
  const auto at = [&](T coefficient, int64_t o) {
    y[o] = accumulate ? y[o] + coefficient * v[o] : coefficient * v[o];
  };
  if (k == 0) return;
  if (k > kFlat) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < k; ++c) at(a[c], i * k + c);
    return;
  }
  by_period(k, [&]<int P>() {
    constexpr int L = P * kLanes<T>;
    T repeated[L];
    for (int e = 0; e < L; ++e) repeated[e] = a[e % k];
    int64_t o = 0;
    for (; o + L <= rows * k; o += L)
      for (int e = 0; e < L; ++e) at(repeated[e], o + e);
    for (int e = 0; o < rows * k; ++o, ++e) at(repeated[e], o);
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
