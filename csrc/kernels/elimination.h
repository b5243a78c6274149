// The plan of an incomplete factorization (analysis/incomplete.h makes it), as kernels see it.
#pragma once

#include <cstdint>

namespace learnsolve {

// Step t computes the entry order[t] of the factors from A's value source[t] and the products of the entries
// pairs[2 u], pairs[2 u + 1] for ptr[t] <= u < ptr[t + 1], all computed before. pivot[t] is the entry's own
// place if it is a pivot, that of the pivot it is divided by below the diagonal, -1 above that of U.
template <class I>
struct Elimination {
  int64_t steps;
  const I* order;
  const I* source;
  const I* pivot;
  const I* ptr;
  const I* pairs;
  bool cholesky;
};

}  // namespace learnsolve
