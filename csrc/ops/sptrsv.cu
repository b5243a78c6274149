// csr_sptrsv and csr_sptrsv_backward for CUDA tensors.
#include "ops/sptrsv_sizes.h"
#include "ops/triangular.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

// -<u_i, w_j> for every entry, by `Lanes` lanes each.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
gradient_kernel(const I* rows, const I* idx, const I* perm, int64_t entries, const T* u, const T* w,
                int64_t step, int64_t k, int64_t batch, T* ga, int64_t ga_step) {
  for_aside(ga_step ? batch : 1, [&](int64_t m) {
    for_items<Lanes>(entries, [&](const auto& team, int64_t p) {
      entry_gradient(team, rows, idx, perm, p, u + m * step, w + m * step, step, k, ga_step ? 1 : batch,
                     ga + m * ga_step);
    });
  });
}

// T x = b for all members.
template <class T, class I>
void solve(const DeviceTriangle& S, const OnDevice& device, const SolveSizes& sizes, const Tensor& values,
           const Tensor& b, const Tensor& x) {
  S.solve<T, I>(device, data<T>(values), sizes.values_step, data<T>(b), sizes.b_step, mutable_data<T>(x),
                sizes.batch, sizes.k, S.scratch(values, sizes.batch, sizes.k));
}

}  // namespace

Tensor csr_sptrsv_cuda(const std::vector<Tensor>& triangle, bool upper, bool unit, const Tensor& values_,
                       const Tensor& b_) {
  const char* name = "csr_sptrsv";
  const Tensor values = dense(values_), b = dense_or_expanded(b_);
  const DeviceTriangle S(name, values, triangle, upper, unit);
  check_device(name, values, {&b});
  const SolveSizes sizes(name, S, values, b);
  Tensor x = new_empty(values, sizes_of(b));
  if (sizes.empty()) return x;
  const OnDevice device(values);
  dispatch(name, values, S.idx, [&]<class T, class I>() { solve<T, I>(S, device, sizes, values, b, x); });
  return x;
}

std::tuple<Tensor, Tensor> csr_sptrsv_backward_cuda(const std::vector<Tensor>& triangle, bool upper,
                                                    bool unit, const std::vector<Tensor>& rows,
                                                    bool transpose, const Tensor& values_, const Tensor& g_,
                                                    const Tensor& x_) {
  const char* name = "csr_sptrsv_backward";
  const Tensor values = dense(values_), g = dense_or_expanded(g_), x = dense(x_);
  const DeviceTriangle S(name, values, triangle, upper, unit);
  const SparseStructure A(name, rows);
  check_device(name, values, {&A.idx, &g, &x});
  STD_TORCH_CHECK(
      A.rows() == S.rows() && A.nnz() == S.entries() && A.idx.scalar_type() == S.idx.scalar_type(), name,
      ": both structures must hold the same entries");
  STD_TORCH_CHECK(A.blocks.numel() == S.entries(), name,
                  ": on a CUDA device the blocks of `rows` must hold the row of each entry");
  const SolveSizes sizes(name, S, values, g);
  check_solution(name, x, g, values);
  const Size values_size = sizes_of(values);
  const bool written = S.entries() == values_size.back() && !sizes.empty();
  Tensor y = new_empty(values, sizes_of(g));
  Tensor ga = written ? new_empty(values, values_size) : new_zeros(values, values_size);
  if (sizes.empty()) return {ga, y};
  const OnDevice device(values);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    solve<T, I>(S, device, sizes, values, g, y);
    if (S.entries() == 0) return;
    const auto launch = [&]<int Lanes>() {
      const dim3 grid(blocks_for(S.entries(), kThreads / Lanes), blocks_aside(sizes.matrices()));
      LS_LAUNCH(grid, kThreads, device.stream,
                (data<I>(A.blocks), data<I>(A.idx), data<I>(A.perm), S.entries(), data<T>(transpose ? x : y),
                 data<T>(transpose ? y : x), sizes.n * sizes.k, sizes.k, sizes.batch, mutable_data<T>(ga),
                 sizes.values_step),
                gradient_kernel<Lanes, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if (sizes.k == 1)
      launch.template operator()<1>();
    else if (sizes.k <= 8)
      launch.template operator()<8>();
    else
      launch.template operator()<32>();
  });
  return {ga, y};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_sptrsv", TORCH_BOX(&learnsolve::csr_sptrsv_cuda));
  m.impl("csr_sptrsv_backward", TORCH_BOX(&learnsolve::csr_sptrsv_backward_cuda));
}
