// Operands of the operators on segments, checked, on every device.
#pragma once

#include "ops/structure.h"

namespace learnsolve {

// Features of the entries of S (of_entries) or of its segments, (n, k) or (B, n, k), contiguous.
struct SegmentFeatures {
  Tensor tensor;
  int64_t batch, n, k;

  SegmentFeatures(const SparseStructure& S, const char* arg, const Tensor& t, bool of_entries)
      : tensor(dense(t)), batch(1), n(of_entries ? S.nnz() : S.rows()), k(0) {
    STD_TORCH_CHECK((t.dim() == 2 || t.dim() == 3) && t.size(t.dim() - 2) == n, S.name, ": ", arg,
                    " must be (", n, ", k) or (B, ", n, ", k)");
    check_device(S.name, S.idx, {&tensor});
    if (t.dim() == 3) batch = t.size(0);
    k = t.size(t.dim() - 1);
  }
  void check_like(const SparseStructure& S, const SegmentFeatures& o) const {
    STD_TORCH_CHECK(tensor.dim() == o.tensor.dim() && batch == o.batch && k == o.k, S.name,
                    ": operands must have one batch and one number of columns");
  }
  // The same with as many rows as `rows`.
  Size size(int64_t rows) const { return tensor.dim() == 3 ? Size{batch, rows, k} : Size{rows, k}; }
  template <class T>
  const T* at(int64_t b) const {
    return data<T>(tensor) + b * n * k;
  }
};

inline int32_t dtype_of(const Tensor& t) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
  return dtype;
}

}  // namespace learnsolve
