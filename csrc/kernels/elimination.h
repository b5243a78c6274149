// The plan of an incomplete factorization (analysis/incomplete.h makes it), and that of a complete one, as
// kernels see them.
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

// The rows and the columns of L, n x n, on its complete fill: what l_ik and l_jk, i > j, have in common is an
// entry (i, j). So column k, from row j on, has its entries where column j has some, and row j has all
// columns of a supernode before j, or none. U, if not `cholesky`, has the transposed pattern, so that L's
// columns are U's rows.
template <class I>
struct CompleteFill {
  int64_t n;
  const I* row_ptr;  // rows of L, the diagonal last: columns `col`
  const I* col;
  const I* at;   // place of each of these entries among those by columns
  const I* ptr;  // columns of L, the diagonal first: rows `row`
  const I* row;
  const I* next;  // of each column: the first behind its supernode, columns with the same rows below them
  bool cholesky;
};

}  // namespace learnsolve
