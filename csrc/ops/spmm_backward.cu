// csr_spmm_backward for CUDA tensors: both gradients of the product in one pass over the transposed
// structure.
#include "ops/row_pass.cuh"

namespace learnsolve {

std::tuple<Tensor, Tensor> csr_spmm_backward_cuda(const Tensor& ptr, const Tensor& idx, const Tensor& perm,
                                                  const Tensor& blocks, const Tensor& crow, const Tensor& col,
                                                  const Tensor&, const Tensor& values_, const Tensor& g_,
                                                  const Tensor& x_) {
  const char* name = "csr_spmm_backward";
  const Tensor values = dense(values_), g = dense(g_), x = dense(x_);
  const DeviceStructure S(name, values, ptr, idx, perm, blocks);
  STD_TORCH_CHECK(col.numel() == S.nnz() && crow.numel() > 0, name,
                  ": both structures must hold the same entries");
  check_device(name, values, {&g, &x});
  check_dense(name, "x", x, values);
  check_dense(name, "g", g, values);
  check_values(name, values, S.nnz());
  const int64_t bv = values.dim() == 2 ? values.size(0) : 1;
  const Dense dx(x), dg(g);
  STD_TORCH_CHECK(dx.n == S.rows() && dx.k == dg.k && (!S.perm || dg.n == crow.numel() - 1), name,
                  ": x and g do not match the structure");
  const int64_t batch = broadcast_batch(name, bv, broadcast_batch(name, dx.batch, dg.batch));
  const Size values_size = sizes_of(values);
  const Size x_size = sizes_of(x);
  // Without a batch or a column no kernel would write the outputs.
  if (batch == 0 || dx.k == 0) return {new_zeros(values, values_size), new_zeros(values, x_size)};
  Tensor ga = new_empty(values, values_size), gx = new_empty(values, x_size);
  const int64_t a_step = bv == 1 ? 0 : S.nnz(), x_step = dx.batch == 1 ? 0 : dx.n * dx.k;
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    row_pass<true, true, T, I>(
        S, values,
        {data<T>(values), data<T>(g), data<T>(x), mutable_data<T>(gx), mutable_data<T>(ga), a_step,
         dg.batch == 1 ? 0 : dg.n * dg.k, x_step, x_step, a_step},
        dx.k, batch);
  });
  return {ga, gx};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_spmm_backward", TORCH_BOX(&learnsolve::csr_spmm_backward_cuda)); }
