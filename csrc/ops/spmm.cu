// csr_spmm for CUDA tensors, and the same product for loops.
#include "ops/spmm.cuh"

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
                     const Tensor& values_, const Tensor& x_, bool sum_batch) {
  const char* name = "csr_spmm";
  const Tensor values = dense(values_), x = dense(x_);
  const DeviceStructure S(name, values, ptr, idx, perm, blocks);
  check_device(name, values, {&x});
  check_values(name, values, S.nnz());
  check_dense(name, "x", x, values);
  const int64_t bv = values.dim() == 2 ? values.size(0) : 1, m = S.rows();
  const Dense d(x);
  const int64_t batch = broadcast_batch(name, bv, d.batch);
  const std::vector<int64_t> size = product_size(values, x, batch, m, d.k, sum_batch);
  if (batch == 0) return new_zeros(values, size);
  Tensor y = new_empty(values, size);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    spmm_into<T, I>(S, values,
                    {data<T>(values), data<T>(x), nullptr, mutable_data<T>(y), nullptr, bv == 1 ? 0 : S.nnz(),
                     d.batch == 1 ? 0 : d.n * d.k, 0, sum_batch || batch == 1 ? 0 : m * d.k, 0},
                    d.k, batch);
  });
  return y;
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_spmm", TORCH_BOX(&learnsolve::csr_spmm_cuda)); }
