// Sizes of preconditioned conjugate gradients, of their adjoint and of what they give, on every device.
#pragma once

#include <tuple>

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

using PcgResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Sizes of these, for a start that fits.
struct PcgResultSizes {
  bool begins;             // or goes on from x, r = b, p and carry
  int64_t counted, saved;  // norms; iterates that are kept
  Size vector, norms, carry, scalars, trajectory;

  PcgResultSizes(const char* name, const PcgSizes& p, const Tensor& values, const Tensor& r,
                 const std::optional<Tensor>& x, const std::optional<Tensor>& direction,
                 const std::optional<Tensor>& carried, int64_t first, int64_t iterations, bool store)
      : begins(!direction),
        counted(iterations + begins),
        saved(store ? iterations : 0),
        vector(sizes_of(r)),
        norms(rows_like(r, {counted})),
        carry({p.batch, kCarry, p.k}),
        scalars({p.batch, iterations, kScalars, p.k}),
        trajectory({p.batch, saved, p.n, p.k}) {
    STD_TORCH_CHECK(iterations >= 0 && first >= 0, name, ": iterations must not be negative, got ",
                    iterations);
    for (const std::optional<Tensor>* t : {&x, &direction})
      STD_TORCH_CHECK(!*t || ((*t)->scalar_type() == values.scalar_type() && (*t)->numel() == r.numel()),
                      name, ": x and p must have the shape and dtype of b");
    STD_TORCH_CHECK(direction.has_value() == carried.has_value() && (!direction || x) &&
                        (!carried || (carried->scalar_type() == values.scalar_type() &&
                                      carried->numel() == p.batch * kCarry * p.k)),
                    name, ": to go on takes x, p and carry");
  }
};

}  // namespace learnsolve
