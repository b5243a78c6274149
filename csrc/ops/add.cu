// csr_add and csr_add_backward for CUDA tensors.
#include "kernels/add.cuh"
#include "ops/device.cuh"

namespace learnsolve {
namespace {

// A sum or its adjoint: chunks along the grid, members of the batch aside.
template <class Pass>
LS_KERNEL(cuda::kUnionLanes)
union_kernel(LS_ARGUMENT Pass P) {
  LS_SHARED cuda::UnionScratch scratch;
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

void check_plan(const char* name, const Tensor& like, const Tensor& codes, const Tensor& starts,
                int64_t nnz) {
  check_device(name, like, {&codes, &starts});
  STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == (nnz + 3) / 4, name,
                  ": codes must be uint8, one for four of the ", nnz, " entries");
  STD_TORCH_CHECK(starts.dim() == 2 && starts.size(0) == union_chunks(nnz) + 1 && starts.size(1) == 2, name,
                  ": starts must be (number of chunks + 1, 2)");
}

std::vector<int64_t> with_last(const Tensor& t, int64_t n) {
  return t.dim() == 2 ? std::vector<int64_t>{t.size(0), n} : std::vector<int64_t>{n};
}

}  // namespace

Tensor csr_add_cuda(const Tensor& codes_, const Tensor& starts_, int64_t nnz, const Tensor& a_,
                    const Tensor& b_, double alpha, double beta) {
  const char* name = "csr_add";
  const Tensor codes = dense(codes_), starts = dense(starts_), a = dense(a_), b = dense(b_);
  STD_TORCH_CHECK((a.dim() == 1 || a.dim() == 2) && a.dim() == b.dim() &&
                      a.scalar_type() == b.scalar_type() && (a.dim() == 1 || a.size(0) == b.size(0)),
                  name, ": a and b must both be (nnz) or (B, nnz), of one dtype");
  STD_TORCH_CHECK(nnz >= 0, name, ": nnz must not be negative");
  check_plan(name, a, codes, starts, nnz);
  check_device(name, a, {&b});
  Tensor c = new_empty(a, with_last(a, nnz));
  dispatch(name, a, starts, [&]<class T, class I>() {
    launch(cuda::UnionSum<T, I>{{data<uint8_t>(codes), data<I>(starts), nnz, union_chunks(nnz)},
                                data<T>(a),
                                data<T>(b),
                                mutable_data<T>(c),
                                a.size(a.dim() - 1),
                                b.size(b.dim() - 1),
                                a.dim() == 2 ? a.size(0) : 1,
                                static_cast<T>(alpha),
                                static_cast<T>(beta)},
           a);
  });
  return c;
}

std::tuple<Tensor, Tensor> csr_add_backward_cuda(const Tensor& codes_, const Tensor& starts_, int64_t na,
                                                 int64_t nb, const Tensor& g_, double alpha, double beta,
                                                 bool need_a, bool need_b) {
  const char* name = "csr_add_backward";
  const Tensor codes = dense(codes_), starts = dense(starts_), g = dense(g_);
  STD_TORCH_CHECK(g.dim() == 1 || g.dim() == 2, name, ": g must be (nnz) or (B, nnz)");
  STD_TORCH_CHECK(na >= 0 && nb >= 0, name, ": na and nb must not be negative");
  const int64_t nnz = g.size(g.dim() - 1);
  check_plan(name, g, codes, starts, nnz);
  Tensor ga = new_empty(g, need_a ? with_last(g, na) : std::vector<int64_t>{0});
  Tensor gb = new_empty(g, need_b ? with_last(g, nb) : std::vector<int64_t>{0});
  if (!need_a && !need_b) return {ga, gb};
  dispatch(name, g, starts, [&]<class T, class I>() {
    launch(cuda::UnionSplit<T, I>{{data<uint8_t>(codes), data<I>(starts), nnz, union_chunks(nnz)},
                                  data<T>(g),
                                  need_a ? mutable_data<T>(ga) : nullptr,
                                  need_b ? mutable_data<T>(gb) : nullptr,
                                  na,
                                  nb,
                                  g.dim() == 2 ? g.size(0) : 1,
                                  static_cast<T>(alpha),
                                  static_cast<T>(beta)},
           g);
  });
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add_cuda));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward_cuda));
}
