// Before the adjoint of Richardson sweeps: which columns have a cotangent, and the cotangents of the norms
// over the norms. After it: the gradients of A's values and of the momentum. The g = -rho of several sweeps
// are kept, and the gradient of A's values for all of them is one pass over the entries: pattern and gradient
// are read once, not once a sweep.
#pragma once

#include "kernels/richardson_adjoint.cuh"

namespace learnsolve::cuda {

// learns[b, j] = 1 where a number of column j of v (batch, rows, k) is not 0; every thread that finds one
// writes the same value.
template <class T>
LS_KERNEL(kThreads)
learns_kernel(const T* v, int64_t rows, int64_t k, int64_t batch, T* learns) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(rows * k, [&](const auto& team, int64_t o) {
      T* const to = learns + b * k + o % k;
      team.first([&] {
        if (v[b * rows * k + o] != 0 && *to == 0) *to = 1;
      });
    });
  });
}

// c = gnorms / norms; at zero, where a norm has no derivative, its subgradient of least norm. any: 1 for each
// sweep of which one is not 0.
template <class T>
LS_KERNEL(kThreads)
norm_cotangents_kernel(const T* norms, const T* gnorms, int64_t sums, int64_t k, T* c, T* any) {
  for_items<1>(sums * k, [&](const auto& team, int64_t o) {
    team.first([&] {
      const T value = norms[o] == 0 || gnorms[o] == 0 ? T(0) : gnorms[o] / norms[o];
      c[o] = value;
      if (value != 0 && any[o / k] == 0) any[o / k] = 1;
    });
  });
}

// The gradient of entry p of A, for the members b0 <= b < b1, with what the sweeps first <= it < last add to
// it: one after another, so that it does not depend on how sweeps are grouped.
template <class T, class I>
LS_DEVICE T entry_gradient(const SweepsAdjoint<T, I>& P, int64_t p, int64_t first, int64_t last,
                           Members members, T gradient) {
  const int64_t k = P.A.k, nk = P.rows.rows * k;
  const int64_t i = row_of_entry(P.A.rows.ptr, 0, P.rows.rows - 1, p), j = P.A.idx[p];
  for (int64_t it = last - 1; it >= first; --it)
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T* learns = P.learns + b * k;
      const T* g = P.g_of(it) + b * nk + i * k;
      const T* x = P.iterate(it, b) + j * k;
      for (int64_t c = 0; c < k; ++c)
        if (learns[c] != 0) gradient += g[c] * x[c];
    }
  return gradient;
}

// ga += what some sweeps add to it.
template <class T, class I>
LS_KERNEL(kThreads)
entries_kernel(LS_ARGUMENT SweepsAdjoint<T, I> P, int64_t first, int64_t last, T* ga) {
  const bool own = P.A.a_step != 0;
  for_aside(own ? P.A.batch : 1, [&](int64_t b) {
    const Members members = own ? Members{b, b + 1} : Members{0, P.A.batch};
    for_items<1>(P.A.rows.nnz, [&](const auto& team, int64_t p) {
      T* const to = ga + b * P.A.rows.nnz + p;
      team.first([&] { *to = entry_gradient(P, p, first, last, members, *to); });
    });
  });
}

// out (members, rows): the sum of parts (batch, sweeps) over what they share.
template <class T>
LS_KERNEL(kThreads)
shared_sums_kernel(const T* parts, int64_t batch, int64_t sweeps, int64_t members, int64_t rows, T* out) {
  for_items<1>(members * rows, [&](const auto& team, int64_t item) {
    const int64_t m = item / rows, row = item % rows;
    const int64_t b0 = members > 1 ? m : 0, b1 = members > 1 ? m + 1 : batch;
    const int64_t it0 = rows > 1 ? row : 0, it1 = rows > 1 ? row + 1 : sweeps;
    T sum = 0;
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t it = it1 - 1; it >= it0; --it) sum += parts[b * sweeps + it];
    team.first([&] { out[item] = sum; });
  });
}

}  // namespace learnsolve::cuda
