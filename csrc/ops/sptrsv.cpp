// Triangular solve and its fused backward.
#include <sstream>

#include "ops/triangular.h"

namespace learnsolve {

namespace {

// Sizes shared by both operators.
struct System {
  int64_t values_step, batch, n, k;
  System(const char* name, const TriangularStructure& S, const Tensor& values, const Tensor& b) {
    check_dense(name, "b", b, values);
    STD_TORCH_CHECK(values.dim() == 1 || values.dim() == 2, name, ": values must be (nnz) or (B, nnz)");
    const int64_t nnz = values.size(values.dim() - 1);
    STD_TORCH_CHECK(S.perm ? nnz >= S.entries() : nnz == S.entries(), name, ": values must hold ",
                    S.entries(), " entries, got ", nnz);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? nnz : 0;
  }
};

template <class T, class I>
void refuse(const char* name, const TriangularStructure& S, const T* values, const System& system) {
  const int64_t matrices = system.values_step == 0 ? 1 : system.batch;
  for (int64_t s = 0; s < matrices; ++s) {
    T value = 0;
    const int64_t row = zero_on_diagonal<T, I>(S, values + s * system.values_step, value);
    if (row < 0) continue;
    std::ostringstream text;
    text << value;
    STD_TORCH_CHECK(false, name, ": cannot divide by the diagonal: row ", row, " has ", text.str());
  }
}

// A batch that is expanded from one tensor is read where it is.
Tensor dense_or_shared(const Tensor& b, bool& shared) {
  shared = b.dim() == 3 && b.size(0) > 1 && b.stride(0) == 0 && b.stride(2) == 1 && b.stride(1) == b.size(2);
  return shared ? b : dense(b);
}

}  // namespace

Tensor csr_sptrsv(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                  const Tensor& blocks, const Tensor& order, const Tensor& levels, bool upper, bool unit,
                  const Tensor& values_, const Tensor& b_) {
  const char* name = "csr_sptrsv";
  const TriangularStructure S(name, ptr, idx, perm, blocks, order, levels, upper, unit);
  bool shared = false;
  const Tensor values = dense(values_), b = dense_or_shared(b_, shared);
  const System system(name, S, values, b);
  const std::vector<int64_t> size(b.sizes().begin(), b.sizes().end());
  Tensor x = new_empty(values, size);
  if (system.batch == 0 || system.k == 0) return x;
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    if (!triangular_solve<T, I>(S, data<T>(values), system.values_step, data<T>(b),
                                shared ? 0 : system.n * system.k, mutable_data<T>(x), system.batch, system.k))
      refuse<T, I>(name, S, data<T>(values), system);
  });
  return x;
}

std::tuple<Tensor, Tensor> csr_sptrsv_backward(const Tensor& ptr, const Tensor& idx,
                                               const std::optional<Tensor>& perm, const Tensor& blocks,
                                               const Tensor& order, const Tensor& levels, bool upper,
                                               bool unit, const Tensor& row_ptr, const Tensor& row_idx,
                                               const std::optional<Tensor>& row_perm,
                                               const Tensor& row_blocks, bool transpose,
                                               const Tensor& values_, const Tensor& g_, const Tensor& x_) {
  const char* name = "csr_sptrsv_backward";
  const TriangularStructure S(name, ptr, idx, perm, blocks, order, levels, upper, unit);
  const TriangularStructure A(name, row_ptr, row_idx, row_perm, row_blocks, order, levels, upper == transpose,
                              unit);
  STD_TORCH_CHECK(A.rows() == S.rows() && A.entries() == S.entries(), name,
                  ": both structures must hold the same entries");
  const Tensor values = dense(values_), g = dense(g_), x = dense(x_);
  const System system(name, S, values, g);
  STD_TORCH_CHECK(std::equal(x.sizes().begin(), x.sizes().end(), g.sizes().begin(), g.sizes().end()) &&
                      x.scalar_type() == values.scalar_type(),
                  name, ": x must have the shape and dtype of g");
  const std::vector<int64_t> values_size(values.sizes().begin(), values.sizes().end());
  const std::vector<int64_t> size(g.sizes().begin(), g.sizes().end());
  const bool written = S.entries() == values_size.back() && system.batch > 0 && system.k > 0;
  Tensor y = new_empty(values, size);
  Tensor ga = written ? new_empty(values, values_size) : new_zeros(values, values_size);
  if (system.batch == 0 || system.k == 0) return {ga, y};
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    if (!triangular_solve<T, I>(S, data<T>(values), system.values_step, data<T>(g), system.n * system.k,
                                mutable_data<T>(y), system.batch, system.k))
      refuse<T, I>(name, S, data<T>(values), system);
    triangular_gradient<T, I>(A, system.values_step, data<T>(transpose ? x : y), data<T>(transpose ? y : x),
                              system.batch, system.k, mutable_data<T>(ga));
  });
  return {ga, y};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_sptrsv", TORCH_BOX(&learnsolve::csr_sptrsv));
  m.impl("csr_sptrsv_backward", TORCH_BOX(&learnsolve::csr_sptrsv_backward));
}
