// Sizes of Richardson sweeps and of their adjoint, of what they keep and of their results, on every device.
#pragma once

#include "ops/tensors.h"

namespace learnsolve {

// Sizes of Richardson sweeps, of what they keep and of their results, for CPU and CUDA operators.

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

// What csr_richardson_backward reads beside the structures.
struct SweepAdjointTensors {
  Tensor values, scale;
  std::optional<Tensor> momentum;
  Tensor b;
  std::optional<Tensor> before;
  Tensor iterates, norms, gx;
  std::optional<Tensor> gnorms, gbefore;

  SweepAdjointTensors(const char* name, const Tensor& values_, const Tensor& scale_,
                      const std::optional<Tensor>& momentum_, const Tensor& b_,
                      const std::optional<Tensor>& before_, const std::vector<Tensor>& kept,
                      const std::vector<Tensor>& cotangents)
      : values(dense(values_)),
        scale(dense(scale_)),
        momentum(dense(momentum_)),
        b(dense(b_)),
        before(dense(before_)),
        iterates(dense(listed(name, "kept", kept, 2)[0])),
        norms(dense(kept[1])),
        gx(dense(listed(name, "cotangents", cotangents, 3)[0])),
        gnorms(unless_empty(cotangents[1])),
        gbefore(unless_empty(cotangents[2])) {}
};

// Which gradients are needed.
struct SweepNeeds {
  bool values, scale, momentum, b, x0;

  SweepNeeds(const char* name, const std::vector<bool>& all) {
    STD_TORCH_CHECK(all.size() == 5, name, ": needs must hold 5 flags, got ", all.size());
    values = all[0], scale = all[1], momentum = all[2], b = all[3], x0 = all[4];
  }
};

struct SweepAdjointSizes {
  int64_t slots;      // vectors that the forward has kept
  bool has_before;    // the iterate before x0 matters
  bool gives_before;  // and has a gradient
  bool gives_momentum;
  Size values, scale, momentum, b, x0, before;  // of the gradients

  template <class Structure>
  SweepAdjointSizes(const char* name, const Structure& S, const Structure& St, const SweepSizes& p,
                    const SweepAdjointTensors& in, int64_t stride, const SweepNeeds& needs)
      : slots(p.slots(stride)),
        has_before(in.momentum && in.before),
        gives_before(needs.x0 && has_before),
        gives_momentum(needs.momentum && in.momentum),
        values(sizes_if(needs.values, in.values)),
        scale(sizes_if(needs.scale, in.scale)),
        momentum(gives_momentum ? sizes_of(*in.momentum) : Size{0}),
        b(sizes_if(needs.b, in.b)),
        x0(sizes_of(in.b)),
        before(sizes_if(gives_before, in.b)) {
    STD_TORCH_CHECK(stride > 0, name, ": the forward must have saved iterates (stride > 0)");
    check_transpose(name, S, St);
    const auto check = [&](const char* what, const std::optional<Tensor>& t, int64_t numel) {
      check_of_forward(name, what, t, in.values, numel);
    };
    check("gx", in.gx, in.b.numel());
    check("iterates", in.iterates, numbers({p.batch, slots, p.nk()}));
    check("norms", in.norms, numbers({p.batch, p.sweeps, p.k}));
    check("gnorms", in.gnorms, in.norms.numel());
    check("before", in.before, in.b.numel());
    check("gbefore", in.gbefore, in.b.numel());
  }

 private:
  static Size sizes_if(bool needed, const Tensor& t) { return needed ? sizes_of(t) : Size{0}; }
};

}  // namespace learnsolve
