// csr_spgemm and its gradients for CUDA tensors. Places are searched: of a plan they read the patterns.
#include "kernels/spgemm.cuh"
#include "ops/batch_sum.cuh"
#include "ops/spgemm.h"

namespace learnsolve {
namespace {

using namespace cuda;

// Into out, its values out_step apart from one member of the batch to the next, or (0) added up.
template <Derivative Of>
void launch(const ProductPlan& P, const BatchOperand& u, const BatchOperand& v, int64_t batch,
            const Tensor& out, int64_t out_step) {
  const int64_t nnz = Of == Derivative::product ? P.c_nnz() : Of == Derivative::left ? P.a_nnz() : P.b_nnz();
  if (nnz == 0 || batch == 0) return;
  const int64_t items = Of == Derivative::product ? P.a_rows() : nnz;
  const int64_t terms = Of == Derivative::right ? P.a_nnz() : P.b_nnz();
  const OnDevice device(out);
  dispatch(P.name, out, P.a_idx, [&]<class T, class I>() {
    const Groups groups(batch, out_step == 0 ? nnz : 0);
    const BatchSum<T> sum(out, mutable_data<T>(out), out_step, nnz, groups);
    const auto with_lanes = [&]<int Lanes>() {
      const SparseProduct<T, I> pass{data<I>(P.a_ptr), data<I>(P.a_idx),
                                     data<I>(P.perm),  data<I>(P.b_ptr),
                                     data<I>(P.b_idx), data<I>(P.c_ptr),
                                     data<I>(P.c_idx), P.a_rows(),
                                     P.b_rows(),       items,
                                     batch_of<T>(u),   batch_of<T>(v),
                                     sum.result,       groups};
      const dim3 grid(blocks_for(items, kThreads / Lanes), 1, blocks_aside(groups.count));
      LS_LAUNCH(grid, kThreads, device.stream, (pass), sparse_product_kernel<Of, Lanes, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    // A search costs more than an idle lane.
    if (terms < 12 * P.b_rows())
      with_lanes.template operator()<8>();
    else
      with_lanes.template operator()<32>();
    sum.finish(device);
  });
}

template <Derivative Of>
Tensor contraction(const ProductPlan& P, const BatchOperand& u, const BatchOperand& v, int64_t nnz,
                   bool sum_batch) {
  const Operands o(u, v, P.name, sum_batch);
  if (o.batch == 0) return new_zeros(u.tensor, o.size(nnz));
  Tensor out = new_empty(u.tensor, o.size(nnz));
  launch<Of>(P, o.u, o.v, o.batch, out, o.step(nnz));
  return out;
}

}  // namespace

Tensor csr_spgemm_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& a, const Tensor& b,
                       bool sum_batch) {
  const ProductPlan P("csr_spgemm", plan, false, a);
  return contraction<Derivative::product>(P, BatchOperand(P.name, "a", a, P.a_nnz(), a),
                                          BatchOperand(P.name, "b", b, P.b_nnz(), a), P.c_nnz(), sum_batch);
}

Tensor csr_spgemm_left_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& g, const Tensor& b,
                            bool sum_batch) {
  const ProductPlan P("csr_spgemm_left", plan, false, g);
  return contraction<Derivative::left>(P, BatchOperand(P.name, "g", g, P.c_nnz(), g),
                                       BatchOperand(P.name, "b", b, P.b_nnz(), g), P.a_nnz(), sum_batch);
}

Tensor csr_spgemm_right_cuda(const std::vector<Tensor>& plan, bool, const Tensor& a, const Tensor& g,
                             bool sum_batch) {
  const ProductPlan P("csr_spgemm_right", plan, true, a);
  return contraction<Derivative::right>(P, BatchOperand(P.name, "a", a, P.a_nnz(), a),
                                        BatchOperand(P.name, "g", g, P.c_nnz(), a), P.b_nnz(), sum_batch);
}

std::tuple<Tensor, Tensor> csr_spgemm_backward_cuda(const std::vector<Tensor>& plan, bool, const Tensor& a_,
                                                    const Tensor& b_, const Tensor& g_) {
  const ProductPlan P("csr_spgemm_backward", plan, true, a_);
  const BatchOperand a(P.name, "a", a_, P.a_nnz(), a_), b(P.name, "b", b_, P.b_nnz(), a_),
      g(P.name, "g", g_, P.c_nnz(), a_);
  const int64_t batch = broadcast_batch(P.name, g.batch, broadcast_batch(P.name, a.batch, b.batch));
  const Size a_size = sizes_of(a_), b_size = sizes_of(b_);
  if (batch == 0) return {new_zeros(a_, a_size), new_zeros(a_, b_size)};
  Tensor ga = new_empty(a_, a_size), gb = new_empty(a_, b_size);
  launch<Derivative::left>(P, g, b, batch, ga, a.batch == 1 ? 0 : P.a_nnz());
  launch<Derivative::right>(P, a, g, batch, gb, b.batch == 1 ? 0 : P.b_nnz());
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm_cuda));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left_cuda));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right_cuda));
  m.impl("csr_spgemm_backward", TORCH_BOX(&learnsolve::csr_spgemm_backward_cuda));
}
