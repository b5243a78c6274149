// Operands and results of the adjoint of preconditioned conjugate gradients, for CPU and CUDA operators.
#pragma once

#include "ops/pcg_sizes.h"

namespace learnsolve {

// What csr_pcg_backward reads beside the structures, in the order of its lists: `forward` is what the call
// returned and, if it continued others, the p before; `sums` is what the calls for later iterations returned.
struct PcgAdjointTensors {
  Tensor values;
  std::optional<Tensor> x0;
  Tensor residuals, directions, last, scalars, norms;
  std::optional<Tensor> before, gx, gnorms, rbar, pbar, bars, ga, gm;

  PcgAdjointTensors(const char* name, const Tensor& values_, const std::optional<Tensor>& x0_,
                    const std::vector<Tensor>& forward, const std::optional<Tensor>& gx_,
                    const std::optional<Tensor>& gnorms_, const std::vector<Tensor>& sums,
                    const std::vector<int64_t>& needs)
      : values(dense(values_)), x0(dense(x0_)), gx(dense(gx_)), gnorms(dense(gnorms_)) {
    STD_TORCH_CHECK(needs.size() == 3, name, ": needs must say whether values, m and x0 need a gradient");
    STD_TORCH_CHECK(forward.size() == 5 || forward.size() == 6, name,
                    ": forward must hold 5 tensors, and the p before where the call went on");
    STD_TORCH_CHECK(sums.empty() || sums.size() == 5, name, ": sums must hold 0 or 5 tensors");
    residuals = dense(forward[0]), directions = dense(forward[1]), last = dense(forward[2]);
    scalars = dense(forward[3]), norms = dense(forward[4]), before = listed_at(forward, 5);
    rbar = listed_at(sums, 0), pbar = listed_at(sums, 1), bars = listed_at(sums, 2);
    if (needs[0]) ga = listed_at(sums, 3);
    if (needs[1]) gm = listed_at(sums, 4);
    check_device(name, values, {&residuals, &directions, &last, &scalars, &norms});
    for (const auto* t : {&x0, &before, &gx, &gnorms, &rbar, &pbar, &bars, &ga, &gm})
      if (*t) check_device(name, values, {&**t});
  }
};

struct PcgAdjointSizes {
  int64_t count, counted;  // iterations, norms
  bool gives_values, gives_m, gives_x0;
  Size vector, bars, values, m, x0;  // of results

  template <class Structure>
  PcgAdjointSizes(const char* name, const Structure& S, const Structure& St, const PcgSizes& p,
                  const PcgAdjointTensors& in, const std::vector<int64_t>& needs)
      : gives_values(needs[0]),
        gives_m(needs[1] && p.m),
        gives_x0(needs[2] && !in.before),
        vector(sizes_of(in.last)),
        bars({p.batch, kBars, p.k}),
        values(gives_values ? sizes_of(in.values) : Size{0}),
        m(gives_m ? sizes_of(*p.m) : Size{0}),
        x0(gives_x0 ? vector : Size{0}) {
    check_transpose(name, S, St);
    STD_TORCH_CHECK(St.perm || St.nnz() == 0, name, ": the structure of the transpose must have perm");
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
    check("gm", in.gm, p.m ? p.m->numel() : 0);
  }
};

}  // namespace learnsolve
