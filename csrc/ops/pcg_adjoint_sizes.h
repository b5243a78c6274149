// Operands and results of the adjoint of preconditioned conjugate gradients, for CPU and CUDA operators.
#pragma once

#include "ops/pcg_sizes.h"

namespace learnsolve {

// What csr_pcg_backward reads beside the structures; what it adds to, from `rbar` on, are results of the call
// for later iterations.
struct PcgAdjointTensors {
  Tensor values;
  std::optional<Tensor> m, x0;
  Tensor residuals, directions, last;
  std::optional<Tensor> before;
  Tensor scalars, norms;
  std::optional<Tensor> gx, gnorms, rbar, pbar, bars, ga, gm;
};

struct PcgAdjointSizes {
  int64_t count, counted;  // iterations, norms
  bool gives_x0, gives_m;
  Size vector, bars, values, m, x0;  // of results

  template <class Structure>
  PcgAdjointSizes(const char* name, const Structure& S, const Structure& St, const PcgSizes& p,
                  const PcgAdjointTensors& in, bool need_values, bool need_m, bool need_x0)
      : gives_x0(need_x0 && !in.before),
        gives_m(need_m && in.m),
        vector(sizes_of(in.last)),
        bars({p.batch, kBars, p.k}),
        values(need_values ? sizes_of(in.values) : Size{0}),
        m(gives_m ? sizes_of(*in.m) : Size{0}),
        x0(gives_x0 ? vector : Size{0}) {
    check_transpose(name, S, St);
    STD_TORCH_CHECK(in.scalars.dim() == 4, name, ": scalars must be (B, iterations, 3, k)");
    count = in.scalars.size(1), counted = count + (in.before ? 0 : 1);
    const int64_t all = p.batch * p.nk();
    const auto check = [&](const char* what, const std::optional<Tensor>& t, int64_t numel) {
      check_of_forward(name, what, t, in.values, numel);
    };
    check("residuals", in.residuals, count * all);
    check("directions", in.directions, count * all);
    check("scalars", in.scalars, p.batch * count * kScalars * p.k);
    check("norms", in.norms, p.batch * counted * p.k);
    check("gnorms", in.gnorms, in.norms.numel());
    check("bars", in.bars, p.batch * kBars * p.k);
    for (const auto* t : {&in.before, &in.gx, &in.rbar, &in.pbar, &in.x0}) check("a vector", *t, all);
    check("ga", in.ga, in.values.numel());
    check("gm", in.gm, in.m ? in.m->numel() : 0);
  }
};

}  // namespace learnsolve
