// Sizes of preconditioned conjugate gradients and of their adjoint, on every device.
#pragma once

#include "kernels/pcg_state.h"
#include "ops/shapes.h"

namespace learnsolve {

struct PcgSizes {
  int64_t values_step, m_step, batch, n, k;
  Preconditioning kind;
  bool vector;  // b is (n)

  template <class Structure>
  PcgSizes(const char* name, const Structure& S, const Tensor& values, int64_t kind_,
           const std::optional<Tensor>& m, const Tensor& b) {
    check_dense(name, "b", b, values);
    check_values(name, values, S.nnz());
    STD_TORCH_CHECK(kind_ >= 0 && kind_ <= 3, name, ": kind must be 0 ... 3, got ", kind_);
    kind = static_cast<Preconditioning>(kind_);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k, vector = b.dim() == 1;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? S.nnz() : 0;
    STD_TORCH_CHECK(m.has_value() == (kind != Preconditioning::none), name,
                    ": m must be given for kind 1, 2, 3 and for no other");
    m_step = 0;
    if (!m) return;
    STD_TORCH_CHECK(m->scalar_type() == values.scalar_type(), name, ": m and values must have one dtype");
    STD_TORCH_CHECK(m->dim() == 1 || (m->dim() == 2 && b.dim() == 3 && m->size(0) == batch), name,
                    ": m must be one vector, or (B, ...) with b (B, n, k)");
    if (m->dim() == 2) m_step = m->size(1);
    STD_TORCH_CHECK(kind != Preconditioning::diagonal || m->size(m->dim() - 1) == n, name,
                    ": a diagonal must have ", n, " entries");
  }
  int64_t nk() const { return n * k; }
};

}  // namespace learnsolve
