// csr_spmm for CUDA tensors, and the same product for loops.
#include "ops/products.cuh"
#include "ops/products.h"

namespace learnsolve {

template <class T, class I>
void spmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
               int64_t batch) {
  row_pass<true, false, T, I>(S, like, operands, k, batch);
}
template void spmm_into<float, int32_t>(const DeviceStructure&, const Tensor&, const PassOperands<float>&,
                                        int64_t, int64_t);
template void spmm_into<float, int64_t>(const DeviceStructure&, const Tensor&, const PassOperands<float>&,
                                        int64_t, int64_t);
template void spmm_into<double, int32_t>(const DeviceStructure&, const Tensor&, const PassOperands<double>&,
                                         int64_t, int64_t);
template void spmm_into<double, int64_t>(const DeviceStructure&, const Tensor&, const PassOperands<double>&,
                                         int64_t, int64_t);

Tensor csr_spmm_cuda(const Tensor& ptr, const Tensor& idx, const Tensor& perm, const Tensor& blocks,
                     const Tensor& values, const Tensor& x, bool sum_batch, bool) {
  const DeviceStructure S("csr_spmm", values, ptr, idx, perm, blocks);
  const Spmm o(S, values, x, sum_batch);
  if (o.batch == 0) return new_zeros(values, o.size);
  Tensor y = new_empty(values, o.size);
  dispatch(S.name, values, S.idx, [&]<class T, class I>() {
    spmm_into<T, I>(S, values,
                    {data<T>(o.values), data<T>(o.x), nullptr, mutable_data<T>(y), nullptr, o.a_step,
                     o.x_step, 0, o.y_step, 0},
                    o.k, o.batch);
  });
  return y;
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_spmm", TORCH_BOX(&learnsolve::csr_spmm_cuda)); }
