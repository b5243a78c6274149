// Operands of preconditioned conjugate gradients and of their adjoint, and the sizes of their results, on
// every device.
#pragma once

#include <tuple>

#include "kernels/pcg_state.h"
#include "ops/structure.h"

namespace learnsolve {

// Place `at` of a list, and a list without it: none.
inline std::optional<Tensor> listed_at(const std::vector<Tensor>& list, size_t at) {
  return at < list.size() ? std::optional<Tensor>(dense(list[at])) : std::nullopt;
}

struct PcgSizes {
  int64_t values_step, m_step, batch, n, k;
  Preconditioning kind;
  std::optional<Tensor> m;  // the numbers of M

  template <class Structure>
  PcgSizes(const char* name, const Structure& S, const Tensor& values, int64_t kind_,
           const std::vector<Tensor>& M, const Tensor& b)
      : m(listed_at(M, 0)) {
    check_dense(name, "b", b, values);
    check_values(name, values, S.nnz());
    STD_TORCH_CHECK(kind_ >= 0 && kind_ <= 3, name, ": kind must be 0 ... 3, got ", kind_);
    kind = static_cast<Preconditioning>(kind_);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? S.nnz() : 0;
    constexpr size_t lengths[] = {0, 1, 9, 17};
    STD_TORCH_CHECK(M.size() == lengths[kind_], name, ": M must hold ", lengths[kind_], " tensors for kind ",
                    kind_, ", got ", M.size());
    m_step = 0;
    if (!m) return;
    check_device(name, values, {&*m});
    STD_TORCH_CHECK(m->scalar_type() == values.scalar_type(), name, ": m and values must have one dtype");
    STD_TORCH_CHECK(m->dim() == 1 || (m->dim() == 2 && b.dim() == 3 && m->size(0) == batch), name,
                    ": m must be one vector, or (B, ...) with b (B, n, k)");
    if (m->dim() == 2) m_step = m->size(1);
    STD_TORCH_CHECK(kind != Preconditioning::diagonal || m->size(m->dim() - 1) == n, name,
                    ": a diagonal must have ", n, " entries");
  }
  int64_t nk() const { return n * k; }
  // Multiply-adds of a product.
  template <class Structure>
  int64_t work(const Structure& S) const {
    return (S.nnz() + n) * k;
  }
};

// What csr_pcg reads beside the structures; `state`: p and carry, or nothing to begin.
struct PcgTensors {
  Tensor values;
  std::optional<Tensor> x;
  Tensor r;
  std::optional<Tensor> p, carry, target;

  PcgTensors(const char* name, const Tensor& values_, const std::optional<Tensor>& x_, const Tensor& r_,
             const std::vector<Tensor>& state, const std::optional<Tensor>& target_)
      : values(dense(values_)),
        x(dense(x_)),
        r(dense(r_)),
        p(listed_at(state, 0)),
        carry(listed_at(state, 1)),
        target(dense(target_)) {
    check_device(name, values, {&r});
    for (const auto* t : {&x, &p, &carry, &target})
      if (*t) check_device(name, values, {&**t});
  }
};

using PcgResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Sizes of these, for a start that fits.
struct PcgResultSizes {
  bool begins;             // or continues from x, r = b, p and carry
  int64_t counted, saved;  // norms; iterates that are kept
  Size vector, norms, carry, scalars, trajectory;

  PcgResultSizes(const char* name, const PcgSizes& p, const PcgTensors& in, int64_t first, int64_t iterations,
                 bool store)
      : begins(!in.p),
        counted(iterations + begins),
        saved(store ? iterations : 0),
        vector(sizes_of(in.r)),
        norms(rows_like(in.r, {counted})),
        carry({p.batch, kCarry, p.k}),
        scalars({p.batch, iterations, kScalars, p.k}),
        trajectory({p.batch, saved, p.n, p.k}) {
    STD_TORCH_CHECK(iterations >= 0 && first >= 0 && !(begins && first > 0), name,
                    ": iterations must not be negative, and begin with number 0, got ", iterations, " from ",
                    first);
    const auto check = [&](const std::optional<Tensor>& t, int64_t numel, const char* rule) {
      STD_TORCH_CHECK(!t || (t->scalar_type() == in.values.scalar_type() && t->numel() == numel), name, rule);
    };
    check(in.x, in.r.numel(), ": x and p must have the shape and dtype of b");
    check(in.p, in.r.numel(), ": x and p must have the shape and dtype of b");
    check(in.carry, p.batch * kCarry * p.k, ": to go on takes x, p and carry");
    check(in.target, p.batch * p.k, ": target must have one number a column");
    STD_TORCH_CHECK(begins || (in.x && in.carry), name, ": to go on takes x, p and carry");
  }
};

}  // namespace learnsolve
