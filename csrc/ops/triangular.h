// Sizes of a triangular solve and of its backward, on every device.
#pragma once

#include <sstream>

#include "ops/tensors.h"

namespace learnsolve {

// Is this a batch that is expanded from one dense tensor?
inline bool expanded(const Tensor& b) {
  return b.dim() == 3 && b.size(0) > 1 && b.stride(0) == 0 && b.stride(2) == 1 && b.stride(1) == b.size(2);
}
// Such a batch is read where it is.
inline Tensor dense_or_expanded(const Tensor& b) { return expanded(b) ? b : dense(b); }

struct SolveSizes {
  int64_t values_step, b_step, batch, n, k;

  template <class Triangle>
  SolveSizes(const char* name, const Triangle& S, const Tensor& values, const Tensor& b) {
    check_dense(name, "b", b, values);
    STD_TORCH_CHECK(values.dim() == 1 || values.dim() == 2, name, ": values must be (nnz) or (B, nnz)");
    const int64_t nnz = values.size(values.dim() - 1);
    // Without entries, perm is empty and cannot show that the values hold other entries, which are not read.
    STD_TORCH_CHECK(S.perm || S.entries() == 0 ? nnz >= S.entries() : nnz == S.entries(), name,
                    ": values must hold ", S.entries(), " entries, got ", nnz);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? nnz : 0;
    b_step = expanded(b) ? 0 : n * k;
  }
  int64_t matrices() const { return values_step == 0 ? 1 : batch; }
  bool empty() const { return batch == 0 || n == 0 || k == 0; }
};

inline void check_solution(const char* name, const Tensor& x, const Tensor& g, const Tensor& values) {
  STD_TORCH_CHECK(std::equal(x.sizes().begin(), x.sizes().end(), g.sizes().begin(), g.sizes().end()) &&
                      x.scalar_type() == values.scalar_type(),
                  name, ": x must have the shape and dtype of g");
}

template <class T>
void refuse_diagonal(const char* name, int64_t row, T value) {
  std::ostringstream text;
  text << value;
  STD_TORCH_CHECK(false, name, ": cannot divide by the diagonal: row ", row, " has ", text.str());
}

}  // namespace learnsolve
