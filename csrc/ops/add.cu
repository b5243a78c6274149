// csr_add and csr_add_backward for CUDA tensors.
#include "kernels/add.cuh"
#include "ops/add.h"
#include "ops/device.cuh"

namespace learnsolve {
namespace {

// A sum or its adjoint: chunks along the grid, members of the batch aside.
template <class Pass>
LS_KERNEL(cuda::kUnionLanes)
union_kernel(LS_ARGUMENT Pass P) {
  LS_SHARED(scratch, cuda::UnionScratch);
  const cuda::Block<cuda::kUnionLanes> team;
  cuda::for_aside(P.batch, [&](int64_t s) {
    cuda::for_blocks(P.plan.chunks, [&](int64_t n) { P.chunk(team, n, s, scratch); });
  });
}

template <class Pass>
void launch(const Pass& P, const Tensor& like) {
  if (P.plan.nnz == 0 || P.batch == 0) return;
  const OnDevice device(like);
  const dim3 grid(cuda::blocks_for(P.plan.chunks), cuda::blocks_aside(P.batch));
  LS_LAUNCH(grid, cuda::kUnionLanes, device.stream, (P), union_kernel<Pass>);
  STD_CUDA_CHECK(cudaGetLastError());
}

template <class I>
cuda::UnionChunks<I> chunks_of(const UnionPlan& plan) {
  return {data<uint8_t>(plan.codes), data<I>(plan.starts), plan.nnz, union_chunks(plan.nnz)};
}

}  // namespace

Tensor csr_add_cuda(const Tensor& codes, const Tensor& starts, int64_t nnz, const Tensor& a, const Tensor& b,
                    double alpha, double beta) {
  const char* name = "csr_add";
  const Addends o(name, a, b);
  const UnionPlan plan(name, codes, starts, nnz, a);
  Tensor c = new_empty(a, o.size(nnz));
  dispatch(name, a, plan.starts, [&]<class T, class I>() {
    launch(cuda::UnionSum<T, I>{chunks_of<I>(plan), data<T>(o.a), data<T>(o.b), mutable_data<T>(c), o.na,
                                o.nb, o.batch, static_cast<T>(alpha), static_cast<T>(beta)},
           a);
  });
  return c;
}

std::tuple<Tensor, Tensor> csr_add_backward_cuda(const Tensor& codes, const Tensor& starts, int64_t na,
                                                 int64_t nb, const Tensor& g, double alpha, double beta,
                                                 bool need_a, bool need_b) {
  const char* name = "csr_add_backward";
  const UnionCotangent o(name, g, na, nb, need_a, need_b);
  const UnionPlan plan(name, codes, starts, o.nnz, g);
  Tensor ga = new_empty(g, o.a_size), gb = new_empty(g, o.b_size);
  if (!need_a && !need_b) return {ga, gb};
  dispatch(name, g, plan.starts, [&]<class T, class I>() {
    launch(cuda::UnionSplit<T, I>{chunks_of<I>(plan), data<T>(o.g), need_a ? mutable_data<T>(ga) : nullptr,
                                  need_b ? mutable_data<T>(gb) : nullptr, na, nb, o.batch,
                                  static_cast<T>(alpha), static_cast<T>(beta)},
           g);
  });
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add_cuda));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward_cuda));
}
