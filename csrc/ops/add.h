// The values that the operators of a sum take, (nnz) or (B, nnz), on every device.
#pragma once

#include "ops/shapes.h"

namespace learnsolve {

// The operands of c = alpha a + beta b.
struct Addends {
  Tensor a, b;
  int64_t na, nb, batch;

  Addends(const char* name, const Tensor& a_, const Tensor& b_) : a(dense(a_)), b(dense(b_)) {
    STD_TORCH_CHECK((a.dim() == 1 || a.dim() == 2) && a.dim() == b.dim() &&
                        a.scalar_type() == b.scalar_type() && (a.dim() == 1 || a.size(0) == b.size(0)),
                    name, ": a and b must both be (nnz) or (B, nnz), of one dtype");
    check_device(name, a, {&b});
    na = a.size(a.dim() - 1), nb = b.size(b.dim() - 1), batch = a.dim() == 2 ? a.size(0) : 1;
  }
  Size size(int64_t nnz) const { return a.dim() == 2 ? Size{batch, nnz} : Size{nnz}; }
};

// The cotangent g of c, and the sizes of the gradients for a and b: none where one is not needed.
struct UnionCotangent {
  Tensor g;
  int64_t nnz, batch;
  Size a_size, b_size;

  UnionCotangent(const char* name, const Tensor& g_, int64_t na, int64_t nb, bool need_a, bool need_b)
      : g(dense(g_)) {
    STD_TORCH_CHECK(g.dim() == 1 || g.dim() == 2, name, ": g must be (nnz) or (B, nnz)");
    STD_TORCH_CHECK(na >= 0 && nb >= 0, name, ": na and nb must not be negative");
    nnz = g.size(g.dim() - 1), batch = g.dim() == 2 ? g.size(0) : 1;
    const auto size = [&](int64_t n) { return g.dim() == 2 ? Size{batch, n} : Size{n}; };
    a_size = need_a ? size(na) : Size{0}, b_size = need_b ? size(nb) : Size{0};
  }
};

}  // namespace learnsolve
