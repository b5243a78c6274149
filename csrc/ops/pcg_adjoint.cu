// csr_pcg_backward for CUDA tensors: checks, results, and the adjoint of all matrices of a batch.
#include "ops/pcg_adjoint.cuh"
#include "ops/pcg_adjoint_sizes.h"

namespace learnsolve {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward_cuda(
    const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& tptr, const Tensor& tidx,
    const Tensor& tperm_, const Tensor& tblocks, const Tensor& values_, int64_t kind,
    const std::optional<Tensor>& m_, const std::vector<Tensor>& factor_, const std::optional<Tensor>& x0_,
    const Tensor& residuals_, const Tensor& directions_, const Tensor& last_,
    const std::optional<Tensor>& before_, const Tensor& scalars_, const Tensor& norms_,
    const std::optional<Tensor>& gx_, const std::optional<Tensor>& gnorms_,
    const std::optional<Tensor>& rbar_, const std::optional<Tensor>& pbar_,
    const std::optional<Tensor>& bars_, const std::optional<Tensor>& ga_, const std::optional<Tensor>& gm_,
    bool need_values, bool need_m, bool need_x0) {
  const char* name = "csr_pcg_backward";
  const PcgAdjointTensors in{dense(values_),
                             dense(m_),
                             dense(x0_),
                             dense(residuals_),
                             dense(directions_),
                             dense(last_),
                             dense(before_),
                             dense(scalars_),
                             dense(norms_),
                             dense(gx_),
                             dense(gnorms_),
                             dense(rbar_),
                             dense(pbar_),
                             dense(bars_),
                             need_values ? dense(ga_) : std::optional<Tensor>(),
                             need_m ? dense(gm_) : std::optional<Tensor>()};
  const Tensor tperm = dense(tperm_);
  const DeviceStructure S(name, in.values, ptr, idx, std::nullopt, blocks);
  check_indices(name, tptr, tidx, tperm, tblocks);
  const DeviceStructure St(name, in.values, tptr, tidx, std::nullopt, tblocks);
  check_device(name, in.values, {&in.residuals, &in.directions, &in.last, &in.scalars, &in.norms, &tperm});
  for (const auto* t :
       {&in.m, &in.x0, &in.before, &in.gx, &in.gnorms, &in.rbar, &in.pbar, &in.bars, &in.ga, &in.gm})
    if (*t) check_device(name, in.values, {&**t});
  const PcgSizes p(name, S, in.values, kind, in.m, in.last);
  const DeviceFactor factor(name, p, in.values, in.m, factor_, S.idx);
  const PcgAdjointSizes out(name, S, St, p, in, need_values, need_m, need_x0);
  const int64_t count = out.count, nk = p.nk();

  const OnDevice device(in.values);
  // What is carried on is copied: an operator must not write to its arguments.
  const auto continued = [&](const std::optional<Tensor>& from, const Size& size) {
    if (!from) return new_zeros(in.values, size);
    Tensor t = new_empty(in.values, size);
    const int64_t bytes = t.numel() * t.element_size();
    copy_blocks(device, static_cast<char*>(t.data_ptr()), bytes, static_cast<const char*>(from->data_ptr()),
                bytes, bytes, 1);
    return t;
  };
  Tensor rbar = continued(in.rbar, out.vector), pbar = continued(in.pbar, out.vector),
         bars = continued(in.bars, out.bars), ga = continued(in.ga, out.values), gm = continued(in.gm, out.m),
         gx0 = new_zeros(in.values, out.x0);
  if (p.batch == 0 || p.k == 0) return {rbar, pbar, bars, ga, gm, gx0};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const Tensor transposed = reordered<T, I>(device, tperm, in.values);
    // Blocks of n and of `width` rows lie one behind another.
    bool packs = (nk % cuda::kPack<T> == 0 && factor.width * p.k % cuda::kPack<T> == 0) ||
                 (p.batch == 1 && count <= 1);
    for (const Tensor* t : {&in.residuals, &in.directions, &in.last})
      packs = packs && cuda::takes_packs(data<T>(*t));
    for (const auto* t : {&in.x0, &in.before, &in.gx})
      if (*t) packs = packs && cuda::takes_packs(data<T>(**t));
    const DevicePcgAdjointOperands<T> operands{
        data<T>(in.x0),
        data<T>(in.residuals),
        data<T>(in.directions),
        data<T>(in.last),
        data<T>(in.before),
        data<T>(in.scalars),
        data<T>(in.norms),
        data<T>(in.gx),
        data<T>(in.gnorms),
        mutable_data<T>(rbar),
        mutable_data<T>(pbar),
        mutable_data<T>(bars),
        need_values ? mutable_data<T>(ga) : nullptr,
        out.gives_m ? mutable_data<T>(gm) : nullptr,
        out.gives_x0 ? mutable_data<T>(gx0) : nullptr,
    };
    DevicePcgAdjoint<T, I>(device, S, St, transposed, factor, p, in.values, in.m, count, packs, operands)
        .run();
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward_cuda)); }
