// What preconditioned conjugate gradients and their adjoint share: the preconditioner, sums.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/pcg_column.cuh"
#include "ops/pcg_factor.h"
#include "ops/triangular.h"

namespace learnsolve {

// Sums a block and column, and their totals.
template <class T>
struct Sums {
  std::vector<T> parts;
  T* room(int64_t blocks, int64_t k) {
    parts.resize(blocks * k);
    return parts.data();
  }
  double total(int64_t blocks, int64_t k, int64_t c) const {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += parts[b * k + c];
    return sum;
  }
};

// The values of a transpose in its own order: a loop reads them often, and through `perm` that takes twice as
// long.
template <class T, class I>
std::vector<T> transposed_values(const Structure& St, const T* values) {
  std::vector<T> own(St.nnz());
  const I* perm = data<I>(St.perm);
  parallel_for(0, St.nnz(), kGrain, [&](int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; ++p) own[p] = values[perm[p]];
  });
  return own;
}

// With the contents of all structures checked for products with n x n matrices.
struct Factor : FactorStructures<Structure, TriangularStructure> {
  Factor(const char* name, const PcgSizes& p, const std::vector<Tensor>& M, const Structure& S)
      : FactorStructures(name, p, M, S.idx) {
    S.check_columns(p.n);
    if (rows) rows->check_columns(width);
    if (columns) columns->check_columns(p.n);
    if (lower) lower->check_places(rows->nnz()), upper->check_places(rows->nnz());
  }
};

// A factor with values.
template <class T, class I>
class AppliedFactor {
 public:
  AppliedFactor(const Factor& factor, const T* values_) : of(factor), values(values_) {
    if (of.columns) transposed = transposed_values<T, I>(*of.columns, values);
  }
  // y = L^T x or L^-1 x
  void first(const T* x, int64_t k, T* y) const {
    if (of.lower) return solve(*of.lower, x, k, y);
    const Structure& S = *of.columns;
    multiply(S, {data<I>(S.ptr), data<I>(S.idx), nullptr, transposed.data()}, x, k, y);
  }
  // y = L x or L^-T x
  void second(const T* x, int64_t k, T* y) const {
    if (of.upper) return solve(*of.upper, x, k, y);
    multiply(*of.rows, of.rows->view<T, I>(values), x, k, y);
  }

 private:
  const Factor& of;
  const T* values;
  std::vector<T> transposed;

  static void multiply(const Structure& S, const CsrView<T, I>& view, const T* x, int64_t k, T* y) {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().spmm(view, S.row_blocks<I>(), b0, b1, x, k, y, false);
    });
  }
  void solve(const TriangularStructure& S, const T* x, int64_t k, T* y) const {
    if (S.rows() * k == 0 || triangular_solve<T, I>(S, values, 0, x, 0, y, 1, k)) return;
    T value = 0;
    const int64_t row = zero_on_diagonal<T, I>(S, values, value);
    STD_TORCH_CHECK(false, "csr_pcg: cannot divide by the diagonal of the factor: row ", row, " has ", value);
  }
};

}  // namespace learnsolve
