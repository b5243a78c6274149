// c = alpha a + beta b on the union of two patterns, and its adjoint: entry t of the union is entry in_a[t]
// of A and entry in_b[t] of B, -1 where one has none. A thread for each.
#pragma once

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

template <class I>
struct UnionPlaces {
  const I *in_a, *in_b;
  int64_t nnz, na, nb, batch;
};

// f(member of the batch, entry) for those of this thread.
template <class I, class F>
LS_DEVICE void for_union(const UnionPlaces<I>& P, const F& f) {
  for_aside(P.batch, [&](int64_t s) { for_items<1>(P.nnz, [&](const auto&, int64_t t) { f(s, t); }); });
}

// An absent entry is not multiplied: an infinite factor meets no zero.
template <class T, class I>
LS_KERNEL(kThreads)
union_sum_kernel(LS_ARGUMENT UnionPlaces<I> P, const T* a, const T* b, T alpha, T beta, T* c) {
  for_union(P, [&](int64_t s, int64_t t) {
    const I p = P.in_a[t], q = P.in_b[t];
    T sum = 0;
    if (p >= 0) sum = alpha * a[s * P.na + p];
    if (q >= 0) sum += beta * b[s * P.nb + q];
    c[s * P.nnz + t] = sum;
  });
}

// Either of ga and gb may be null.
template <class T, class I>
LS_KERNEL(kThreads)
union_split_kernel(LS_ARGUMENT UnionPlaces<I> P, const T* g, T alpha, T beta, T* ga, T* gb) {
  for_union(P, [&](int64_t s, int64_t t) {
    const I p = P.in_a[t], q = P.in_b[t];
    const T value = g[s * P.nnz + t];
    if (ga && p >= 0) ga[s * P.na + p] = alpha * value;
    if (gb && q >= 0) gb[s * P.nb + q] = beta * value;
  });
}

}  // namespace learnsolve::cuda
