// csr_pcg_backward for CUDA tensors: checks, results, and the adjoint of all matrices of a batch.
#include "ops/pcg_adjoint.cuh"
#include "ops/pcg_adjoint_sizes.h"

namespace learnsolve {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward_cuda(
    const std::vector<Tensor>& A, const std::vector<Tensor>& transpose, const Tensor& values, int64_t kind,
    const std::vector<Tensor>& M, const std::optional<Tensor>& x0, const std::vector<Tensor>& forward,
    const std::optional<Tensor>& gx, const std::optional<Tensor>& gnorms, const std::vector<Tensor>& sums,
    const std::vector<int64_t>& needs) {
  const char* name = "csr_pcg_backward";
  const PcgAdjointTensors in(name, values, x0, forward, gx, gnorms, sums, needs);
  const DeviceStructure S(name, in.values, A);
  const DeviceStructure St(name, in.values, transpose);
  const PcgSizes p(name, S, in.values, kind, M, in.last);
  const DeviceFactor factor(name, p, M, S.idx, in.values);
  const PcgAdjointSizes out(name, S, St, p, in, needs);
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
        out.gives_values ? mutable_data<T>(ga) : nullptr,
        out.gives_m ? mutable_data<T>(gm) : nullptr,
        out.gives_x0 ? mutable_data<T>(gx0) : nullptr,
        !in.before,
    };
    DevicePcgAdjoint<T, I>(device, S, St, factor, p, in.values, out.count, operands).run();
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward_cuda)); }
