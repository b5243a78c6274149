// Passes over blocks of rows of n x k vectors, with sums a block and column: one column is worked on in
// vectors of rows, several row by row.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Vectors as variables, in registers or on the stack: those of lanes.h are for memory of any alignment, which
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

}  // namespace learnsolve::LEARNSOLVE_ISA
