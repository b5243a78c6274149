// csr_pcg_backward: checks, results, and the adjoint of each matrix of a batch.
#include "ops/pcg_adjoint.h"

#include "ops/pcg_adjoint_sizes.h"

namespace learnsolve {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward(
    const std::vector<Tensor>& A, const std::vector<Tensor>& transpose, const Tensor& values, int64_t kind,
    const std::vector<Tensor>& M, const std::optional<Tensor>& x0, const std::vector<Tensor>& forward,
    const std::optional<Tensor>& gx, const std::optional<Tensor>& gnorms, const std::vector<Tensor>& sums,
    const std::vector<int64_t>& needs) {
  const char* name = "csr_pcg_backward";
  const Structure S(name, A), St(name, transpose);
  const PcgAdjointTensors in(name, values, x0, forward, gx, gnorms, sums, needs);
  const PcgSizes p(name, S, in.values, kind, M, in.last);
  check_device(name, in.values, {&S.idx, &St.idx});
  const Factor factor(name, p, M, S);
  St.check_columns(p.n);
  const PcgAdjointSizes out(name, S, St, p, in, needs);
  const int64_t count = out.count, counted = out.counted, nk = p.nk();

  // What is carried on is copied: an operator must not write to its arguments.
  const auto continued = [&](const std::optional<Tensor>& from, const Size& size) {
    if (!from) return new_zeros(in.values, size);
    Tensor t = new_empty(in.values, size);
    if (t.numel() > 0) std::memcpy(t.data_ptr(), from->data_ptr(), t.numel() * t.element_size());
    return t;
  };
  Tensor rbar = continued(in.rbar, out.vector), pbar = continued(in.pbar, out.vector),
         bars = continued(in.bars, out.bars), ga = continued(in.ga, out.values), gm = continued(in.gm, out.m),
         gx0 = new_zeros(in.values, out.x0);
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const auto at = [](const std::optional<Tensor>& t, int64_t offset) {
      return t ? data<T>(*t) + offset : nullptr;
    };
    for (int64_t b = 0; b < p.batch; ++b) {
      const PcgAdjointOperands<T> operands{
          data<T>(in.values) + b * p.values_step,
          at(p.m, b * p.m_step),
          at(in.x0, b * nk),
          data<T>(in.residuals) + b * count * nk,
          data<T>(in.directions) + b * count * nk,
          data<T>(in.last) + b * nk,
          at(in.before, b * nk),
          data<T>(in.scalars) + b * count * kScalars * p.k,
          data<T>(in.norms) + b * counted * p.k,
          at(in.gx, b * nk),
          at(in.gnorms, b * counted * p.k),
          mutable_data<T>(rbar) + b * nk,
          mutable_data<T>(pbar) + b * nk,
          mutable_data<T>(bars) + b * kBars * p.k,
          out.gives_values ? mutable_data<T>(ga) + b * p.values_step : nullptr,
          out.gives_m ? mutable_data<T>(gm) + b * p.m_step : nullptr,
          out.gives_x0 ? mutable_data<T>(gx0) + b * nk : nullptr,
          !in.before,
      };
      PcgAdjoint<T, I>(S, St, p, factor, count, operands).run();
    }
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward));
}
