// csr_sddmm for CUDA tensors.
#include "ops/products.cuh"
#include "ops/products.h"

namespace learnsolve {

template <class T, class I>
void sddmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
                int64_t batch) {
  row_pass<false, true, T, I>(S, like, operands, k, batch);
}
template void sddmm_into<float, int32_t>(const DeviceStructure&, const Tensor&, const PassOperands<float>&,
                                         int64_t, int64_t);
template void sddmm_into<float, int64_t>(const DeviceStructure&, const Tensor&, const PassOperands<float>&,
                                         int64_t, int64_t);
template void sddmm_into<double, int32_t>(const DeviceStructure&, const Tensor&, const PassOperands<double>&,
                                          int64_t, int64_t);
template void sddmm_into<double, int64_t>(const DeviceStructure&, const Tensor&, const PassOperands<double>&,
                                          int64_t, int64_t);

Tensor csr_sddmm_cuda(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u,
                      const Tensor& v, bool sum_batch, int64_t) {
  const DeviceStructure S("csr_sddmm", u, ptr, idx, std::nullopt, blocks);
  const Sddmm o(S, u, v, sum_batch);
  if (o.batch == 0 || o.k == 0) return new_zeros(u, o.size);
  Tensor out = new_empty(u, o.size);
  dispatch(S.name, u, S.idx, [&]<class T, class I>() {
    sddmm_into<T, I>(S, u,
                     {nullptr, data<T>(o.v), data<T>(o.u), nullptr, mutable_data<T>(out), 0, o.v_step,
                      o.u_step, 0, o.out_step},
                     o.k, o.batch);
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm_cuda)); }
