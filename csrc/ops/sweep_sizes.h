// Sizes of Richardson sweeps, of what they keep and of their results, for CPU and CUDA operators.
#pragma once

#include "ops/shapes.h"

namespace learnsolve {

// Missing leading batch axes count as 1, and so do missing rows of scale and momentum for each sweep.
struct SweepSizes {
  int64_t bv, bs, bm, batch, n, k, sweeps, scales, momenta;
  bool momentum;

  template <class Structure>
  SweepSizes(const char* name, const Structure& S, const Tensor& values, const Tensor& scale,
             const std::optional<Tensor>& m, const Tensor& b, int64_t iterations) {
    check_dense(name, "b", b, values);
    check_values(name, values, S.nnz());
    STD_TORCH_CHECK(iterations >= 0, name, ": iterations must not be negative, got ", iterations);
    STD_TORCH_CHECK(scale.dim() >= 1 && scale.dim() <= 3 && scale.scalar_type() == values.scalar_type(), name,
                    ": scale must have at most three dimensions and the dtype of values");
    momentum = m.has_value();
    STD_TORCH_CHECK(!m || ((m->dim() == 1 || m->dim() == 2) && m->scalar_type() == values.scalar_type()),
                    name, ": momentum must have one or two dimensions and the dtype of values");
    const Dense d(b);
    bv = values.dim() == 2 ? values.size(0) : 1;
    bs = scale.dim() == 3 ? scale.size(0) : 1;
    bm = m && m->dim() == 2 ? m->size(0) : 1;
    batch = d.batch, n = d.n, k = d.k, sweeps = iterations;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have the rows of the structure");
    STD_TORCH_CHECK((bv == 1 || bv == batch) && (bs == 1 || bs == batch) && (bm == 1 || bm == batch), name,
                    ": values, scale and momentum must have b's batch size or 1");
    STD_TORCH_CHECK(scale.size(scale.dim() - 1) == n, name, ": scale must be (n) or (1 or iterations, n)");
    scales = scale.dim() == 1 ? 1 : scale.size(scale.dim() - 2);
    momenta = m ? m->size(m->dim() - 1) : 1;
    for (const int64_t rows : {scales, momenta})
      STD_TORCH_CHECK(rows == 1 || rows == iterations, name, ": scale and momentum must be for 1 or ",
                      iterations, " sweeps, got ", rows);
  }
  int64_t nk() const { return n * k; }
  int64_t scale_at(int64_t b, int64_t sweep) const {
    return ((bs == 1 ? 0 : b) * scales + (scales > 1 ? sweep : 0)) * n;
  }
  int64_t momentum_at(int64_t b, int64_t sweep) const {
    return (bm == 1 ? 0 : b) * momenta + (momenta > 1 ? sweep : 0);
  }
  // Where every stride-th iterate is kept: how many, and how many vectors that takes. Continuing from one
  // with momentum also needs the iterate before it, which is its neighbor if all are kept.
  int64_t kept(int64_t stride) const { return stride > 0 ? (sweeps + stride - 1) / stride : 0; }
  bool pairs(int64_t stride) const { return momentum && stride > 1; }
  int64_t slots(int64_t stride) const { return kept(stride) * (pairs(stride) ? 2 : 1); }
};

// Results of csr_richardson, for a start that fits.
struct SweepResults {
  bool gives_last;  // the iterate before x, where none is kept
  Size x, norms, iterates, last;

  SweepResults(const char* name, const SweepSizes& p, const Tensor& b, const Tensor& x0,
               const std::optional<Tensor>& before, int64_t stride)
      : gives_last(p.momentum && stride == 0),
        x(sizes_of(b)),
        norms(rows_like(b, {p.sweeps})),
        iterates(rows_like(b, {p.slots(stride), p.n})),
        last(gives_last ? x : Size{0}) {
    for (const Tensor* t : {&x0, before ? &*before : &x0})
      STD_TORCH_CHECK(sizes_of(*t) == x && t->scalar_type() == b.scalar_type(), name,
                      ": x0 and the iterate before it must have the shape and dtype of b");
  }
};

}  // namespace learnsolve
