// csr_spmm_backward for CUDA tensors: both gradients of the product, for several columns in one pass over the
// transposed structure; for one column in a pass in the order of the values, whose gradient is then no
// scatter, and a pass by columns, which gathers the products of values and cotangents that the first leaves.
#include <utility>

#include "ops/products.cuh"
#include "ops/products.h"

namespace learnsolve {

std::tuple<Tensor, Tensor> csr_spmm_backward_cuda(const Tensor& ptr, const Tensor& idx, const Tensor& perm,
                                                  const Tensor& blocks, const Tensor& crow, const Tensor& col,
                                                  const Tensor& a_blocks, const Tensor& values,
                                                  const Tensor& g, const Tensor& x) {
  const char* name = "csr_spmm_backward";
  const DeviceStructure S(name, values, ptr, idx, perm, blocks);
  STD_TORCH_CHECK(col.numel() == S.nnz() && crow.numel() > 0, name,
                  ": both structures must hold the same entries");
  const SpmmBackward o(S, crow.numel() - 1, values, g, x);
  const Size values_size = sizes_of(values), x_size = sizes_of(x);
  if (o.nothing()) return {new_zeros(values, values_size), new_zeros(values, x_size)};
  Tensor ga = new_empty(values, values_size), gx = new_empty(values, x_size);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    if (o.k == 1) {
      const bool moved = S.perm.has_value();
      const DeviceStructure rows =
          moved ? DeviceStructure(name, values, crow, col, std::optional<Tensor>(), a_blocks) : S;
      PassOperands<T> dot{data<T>(o.values), data<T>(o.g), data<T>(o.x), nullptr, mutable_data<T>(ga),
                          o.a_step,          o.g_step,     o.x_step,     0,       o.a_step};
      PassOperands<T> sum{data<T>(o.values), data<T>(o.g),
                          nullptr,           mutable_data<T>(gx),
                          nullptr,           o.a_step,
                          o.g_step,          0,
                          o.x_step,          0};
      std::optional<Tensor> w;
      if (moved) {
        std::swap(dot.x, dot.u), std::swap(dot.x_step, dot.u_step);
        // Not if members share values: it would be larger than the gradients.
        if (o.batch == 1 || o.a_step != 0) {
          w = new_empty(values, Size{o.batch, S.nnz()});
          dot.w = mutable_data<T>(*w);
          sum.a = nullptr, sum.a_step = 0, sum.x = dot.w, sum.x_step = S.nnz();
        }
      }
      sddmm_into<T, I>(rows, values, dot, 1, o.batch);
      return spmm_into<T, I>(S, values, sum, 1, o.batch);
    }
    row_pass<true, true, T, I>(S, values,
                               {data<T>(o.values), data<T>(o.g), data<T>(o.x), mutable_data<T>(gx),
                                mutable_data<T>(ga), o.a_step, o.g_step, o.x_step, o.x_step, o.a_step},
                               o.k, o.batch);
  });
  return {ga, gx};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_spmm_backward", TORCH_BOX(&learnsolve::csr_spmm_backward_cuda)); }
