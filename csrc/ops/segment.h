// Operands of the operators on segments, checked, on every device.
#pragma once

#include "ops/tensors.h"

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
  // The same with as many rows as `rows`.
  Size size(int64_t rows) const { return tensor.dim() == 3 ? Size{batch, rows, k} : Size{rows, k}; }
  template <class T>
  const T* at(int64_t b) const {
    return data<T>(tensor) + b * n * k;
  }
};

inline void check_alike(const char* name, const SegmentFeatures& a, const SegmentFeatures& b) {
  STD_TORCH_CHECK(a.tensor.dim() == b.tensor.dim() && a.batch == b.batch && a.k == b.k, name,
                  ": operands must have one batch and one number of columns");
}

// Places in each segment, and what is placed there.
struct SegmentPlaces {
  SegmentFeatures at, g;

  SegmentPlaces(const SparseStructure& S, const Tensor& at_, const Tensor& g_)
      : at(S, "at", at_, false), g(S, "g", g_, false) {
    check_alike(S.name, at, g);
    STD_TORCH_CHECK(at_.scalar_type() == S.idx.scalar_type(), S.name,
                    ": at must be of the structure's index type");
  }
};

// A softmax and a cotangent or tangent of it.
struct SegmentWeights {
  SegmentFeatures y, g;

  SegmentWeights(const SparseStructure& S, const Tensor& y_, const Tensor& g_)
      : y(S, "y", y_, true), g(S, "g", g_, true) {
    check_alike(S.name, y, g);
    STD_TORCH_CHECK(g_.scalar_type() == y_.scalar_type(), S.name, ": y and g must have one dtype");
  }
};

}  // namespace learnsolve
