// Maximum and softmax over segments (kernels/segment.h), a thread for each column of each segment: threads
// beside one another read numbers beside one another. No atomics; long segments wait for their thread.
#pragma once

#include <cmath>

#include "kernels/csr_view.h"
#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// The segments of a structure, features of k columns for each of its nnz entries, `batch` times.
template <class I>
struct Segments {
  const I* ptr;
  const I* perm;
  int64_t rows, nnz, k, batch;

  // f(q k + c) for the entries q of segment i of member b.
  template <class F>
  LS_DEVICE void each(int64_t b, int64_t i, int64_t c, const F& f) const {
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
      f((b * nnz + (perm ? static_cast<int64_t>(perm[p]) : p)) * k + c);
  }
  LS_DEVICE int64_t of_row(int64_t b, int64_t i, int64_t c) const { return (b * rows + i) * k + c; }
};

// Is x to replace `top`? It is larger, or the first NaN.
template <class T>
LS_DEVICE bool exceeds(T x, T top) {
  return !(x <= top) && top == top;
}

template <class T, class I>
struct SegmentMax {
  Segments<I> S;
  const T* e;
  T* top;
  I* at;
  LS_DEVICE void operator()(int64_t b, int64_t i, int64_t c) const {
    T best = 0;
    int64_t place = -1;
    S.each(b, i, c, [&](int64_t o) {
      if (place < 0 || exceeds(e[o], best)) best = e[o], place = o;
    });
    const int64_t r = S.of_row(b, i, c);
    top[r] = best;
    at[r] = place < 0 ? I(-1) : static_cast<I>(place / S.k - b * S.nnz);
  }
};

template <class T, class I>
struct SegmentPlace {
  Segments<I> S;
  const I* at;
  const T* g;
  T* out;
  LS_DEVICE void operator()(int64_t b, int64_t i, int64_t c) const {
    S.each(b, i, c, [&](int64_t o) { out[o] = 0; });
    const int64_t r = S.of_row(b, i, c);
    if (at[r] >= 0) out[(b * S.nnz + at[r]) * S.k + c] = g[r];
  }
};

template <class T, class I>
struct SegmentSoftmax {
  Segments<I> S;
  const T* e;
  T* y;
  LS_DEVICE void operator()(int64_t b, int64_t i, int64_t c) const {
    T top = -INFINITY, total = 0;
    S.each(b, i, c, [&](int64_t o) {
      if (exceeds(e[o], top)) top = e[o];
    });
    S.each(b, i, c, [&](int64_t o) { total += y[o] = std::exp(e[o] - top); });
    S.each(b, i, c, [&](int64_t o) { y[o] /= total; });
  }
};

template <class T, class I>
struct SegmentSoftmaxBackward {
  Segments<I> S;
  const T* y;
  const T* g;
  T* out;
  LS_DEVICE void operator()(int64_t b, int64_t i, int64_t c) const {
    T sum = 0;
    S.each(b, i, c, [&](int64_t o) { sum += y[o] * g[o]; });
    S.each(b, i, c, [&](int64_t o) { out[o] = y[o] * (g[o] - sum); });
  }
};

}  // namespace learnsolve::cuda
