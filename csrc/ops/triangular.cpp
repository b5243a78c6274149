// Triangular solve and its fused backward.
#include "ops/triangular.h"

#include "ops/solves.h"

namespace learnsolve {
namespace {

template <class T, class I>
void refuse(const char* name, const TriangularStructure& S, const T* values, const SolveSizes& sizes) {
  for (int64_t s = 0; s < sizes.matrices(); ++s) {
    T value = 0;
    const int64_t row = zero_on_diagonal<T, I>(S, values + s * sizes.values_step, value);
    if (row >= 0) refuse_diagonal(name, row, value);
  }
}

}  // namespace

Tensor csr_sptrsv(const std::vector<Tensor>& triangle, bool upper, bool unit, const Tensor& values_,
                  const Tensor& b_) {
  const char* name = "csr_sptrsv";
  const TriangularStructure S(name, triangle, upper, unit);
  const Tensor values = dense(values_), b = dense_or_expanded(b_);
  const SolveSizes sizes(name, S, values, b);
  check_device(name, values, {&S.idx, &b});
  S.check_places(values.size(values.dim() - 1));
  Tensor x = new_empty(values, sizes_of(b));
  if (sizes.empty()) return x;
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    if (!triangular_solve<T, I>(S, data<T>(values), sizes.values_step, data<T>(b), sizes.b_step,
                                mutable_data<T>(x), sizes.batch, sizes.k))
      refuse<T, I>(name, S, data<T>(values), sizes);
  });
  return x;
}

std::tuple<Tensor, Tensor> csr_sptrsv_backward(const std::vector<Tensor>& triangle, bool upper, bool unit,
                                               const std::vector<Tensor>& rows, bool transpose,
                                               const Tensor& values_, const Tensor& g_, const Tensor& x_) {
  const char* name = "csr_sptrsv_backward";
  const TriangularStructure S(name, triangle, upper, unit);
  const SparseStructure R(name, rows);
  const TriangularStructure A(name, R.ptr, R.idx, R.perm, R.blocks, S.order, S.levels, upper == transpose,
                              unit);
  STD_TORCH_CHECK(A.rows() == S.rows() && A.entries() == S.entries(), name,
                  ": both structures must hold the same entries");
  const Tensor values = dense(values_), g = dense_or_expanded(g_), x = dense(x_);
  const SolveSizes sizes(name, S, values, g);
  check_device(name, values, {&S.idx, &A.idx, &g, &x});
  for (const TriangularStructure* T : {&S, &A}) T->check_places(values.size(values.dim() - 1));
  check_solution(name, x, g, values);
  const Size values_size = sizes_of(values);
  const bool written = S.entries() == values_size.back() && !sizes.empty();
  Tensor y = new_empty(values, sizes_of(g));
  Tensor ga = written ? new_empty(values, values_size) : new_zeros(values, values_size);
  if (sizes.empty()) return {ga, y};
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    if (!triangular_solve<T, I>(S, data<T>(values), sizes.values_step, data<T>(g), sizes.b_step,
                                mutable_data<T>(y), sizes.batch, sizes.k))
      refuse<T, I>(name, S, data<T>(values), sizes);
    triangular_gradient<T, I>(A, sizes.values_step, data<T>(transpose ? x : y), data<T>(transpose ? y : x),
                              sizes.batch, sizes.k, mutable_data<T>(ga));
  });
  return {ga, y};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_sptrsv", TORCH_BOX(&learnsolve::csr_sptrsv));
  m.impl("csr_sptrsv_backward", TORCH_BOX(&learnsolve::csr_sptrsv_backward));
}
