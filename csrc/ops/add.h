// What the operators of a sum take, on every device: the plan of a union of patterns (kernels/union_plan.h),
// and values (nnz) or (B, nnz).
#pragma once

#include "kernels/union_plan.h"
#include "ops/shapes.h"

namespace learnsolve {

struct UnionPlan {
  const char* name;
  Tensor codes, starts;
  int64_t nnz;  // of the union

  UnionPlan(const char* name_, const Tensor& codes_, const Tensor& starts_, int64_t nnz_, const Tensor& like)
      : name(name_), codes(dense(codes_)), starts(dense(starts_)), nnz(nnz_) {
    STD_TORCH_CHECK(nnz >= 0, name, ": nnz must not be negative");
    check_device(name, like, {&codes, &starts});
    STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == (nnz + 3) / 4, name,
                    ": codes must be uint8, one for four of the ", nnz, " entries");
    STD_TORCH_CHECK(starts.dim() == 2 && starts.size(0) == union_chunks(nnz) + 1 && starts.size(1) == 2, name,
                    ": starts must be (number of chunks + 1, 2)");
  }
};

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
