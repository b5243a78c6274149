// Operands and sizes of sums and combinations of columns, on every device.
#pragma once

#include "ops/shapes.h"

namespace learnsolve {

// u, (k) or (B, k) if `one`, else (n, k) or (B, n, k), and v, (n, k) or (B, n, k).
struct Columns {
  Tensor u, v;
  int64_t batch, n, k, u_step, v_step;
  bool batched;

  Columns(const char* name, const Tensor& u_, const Tensor& v_, bool one) : u(dense(u_)), v(dense(v_)) {
    const int64_t axes = one ? 1 : 2;
    check_device(name, v, {&u});
    STD_TORCH_CHECK((v.dim() == 2 || v.dim() == 3) && (u.dim() == axes || u.dim() == axes + 1), name,
                    ": operands must be ", one ? "(k) or (B, k)" : "(n, k) or (B, n, k)",
                    " and (n, k) or (B, n, k), got ", u.dim(), " and ", v.dim(), " dimensions");
    n = v.size(v.dim() - 2), k = v.size(v.dim() - 1);
    STD_TORCH_CHECK(u.size(u.dim() - 1) == k && (one || u.size(u.dim() - 2) == n), name,
                    ": operands must have the same columns and rows");
    STD_TORCH_CHECK(u.scalar_type() == v.scalar_type(), name, ": operands must have one dtype");
    const int64_t of_u = u.dim() == axes + 1 ? u.size(0) : 1, of_v = v.dim() == 3 ? v.size(0) : 1;
    batch = broadcast_batch(name, of_u, of_v);
    batched = u.dim() == axes + 1 || v.dim() == 3;
    u_step = of_u == 1 ? 0 : (one ? k : n * k);
    v_step = of_v == 1 ? 0 : n * k;
  }
  Size sums(bool sum_batch) const { return batched && !sum_batch ? Size{batch, k} : Size{k}; }
};

}  // namespace learnsolve
