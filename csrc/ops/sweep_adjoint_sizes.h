// Operands and results of the adjoint of Richardson sweeps, for CPU and CUDA operators.
#pragma once

#include "ops/structure.h"
#include "ops/sweep_sizes.h"

namespace learnsolve {

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
