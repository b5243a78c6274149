// csr_sptrsv and csr_sptrsv_backward for CUDA tensors.
#include "ops/device.cuh"
#include "ops/triangular.cuh"
#include "ops/triangular.h"

namespace learnsolve {
namespace {

using namespace cuda;

// The gradient of entry p of row i = rows[p], -<u_i, w_j>, by `Lanes` lanes; added up over members that share
// one matrix. u and w are (batch, n, k), members `step` apart.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
gradient_kernel(Groups groups, BatchResult<T> ga, const I* rows, const I* idx, const I* perm, int64_t entries,
                const T* u, const T* w, int64_t step, int64_t k) {
  for_members(groups, [&](const Members& members) {
    for_items<Lanes>(entries, [&](const auto& team, int64_t p) {
      const int64_t i = static_cast<int64_t>(rows[p]) * k, j = static_cast<int64_t>(idx[p]) * k;
      T sum = 0;
      for (int64_t b = members.b0; b < members.b1; ++b)
        for (int64_t c = team.lane; c < k; c += Lanes)
          sum = plus_product(sum, -u[b * step + i + c], w[b * step + j + c]);
      sum = team.sum(sum);
      if (team.first()) ga.of(members)[perm ? static_cast<int64_t>(perm[p]) : p] = sum;
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
    const int64_t nnz = values_size.back();
    const Groups groups(sizes.batch, sizes.values_step == 0 ? nnz : 0);
    const BatchSum<T> sum(values, mutable_data<T>(ga), sizes.values_step, nnz, groups, written);
    const T *xs = data<T>(x), *ys = data<T>(y);
    const auto launch = [&]<int Lanes>() {
      const dim3 grid(blocks_for(S.entries(), kThreads / Lanes), 1, blocks_aside(groups.count));
      LS_LAUNCH(grid, kThreads, device.stream,
                (groups, sum.result, data<I>(A.blocks), data<I>(A.idx), data<I>(A.perm), S.entries(),
                 transpose ? xs : ys, transpose ? ys : xs, sizes.n * sizes.k, sizes.k),
                gradient_kernel<Lanes, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if (sizes.k == 1)
      launch.template operator()<1>();
    else if (sizes.k <= 8)
      launch.template operator()<8>();
    else
      launch.template operator()<32>();
    sum.finish(device);
  });
  return {ga, y};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_sptrsv", TORCH_BOX(&learnsolve::csr_sptrsv_cuda));
  m.impl("csr_sptrsv_backward", TORCH_BOX(&learnsolve::csr_sptrsv_backward_cuda));
}
