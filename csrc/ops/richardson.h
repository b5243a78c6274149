// What Richardson sweeps and their adjoint share: one sweep on all threads.
#pragma once

#include <cmath>

#include "ops/check.h"
#include "ops/sweep_sizes.h"

namespace learnsolve {

// One sweep and, if requested, the norms of the residual it began with.
template <class T, class I>
struct Sweeper {
  const Structure& S;
  int64_t k;
  CsrView<T, I> A;
  const T* b;
  std::vector<T> squares;

  void operator()(const T* x, const T* old, const T* s, T momentum, T* next, T* norms) {
    squares.resize(S.n_blocks() * k);
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().richardson_sweep(A, S.row_blocks<I>(), b0, b1,
                                             {x, b, s, old, momentum, next, squares.data()}, k);
    });
    if (!norms) return;
    for (int64_t c = 0; c < k; ++c) {
      double sum = 0;
      for (int64_t block = 0; block < S.n_blocks(); ++block) sum += squares[block * k + c];
      norms[c] = static_cast<T>(std::sqrt(sum));
    }
  }
};

}  // namespace learnsolve
