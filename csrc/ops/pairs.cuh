// Pairs of vectors of several iterations of a loop on a CUDA device, kept until the gradient on a pattern is
// added up for all of them.
#pragma once

#include "kernels/sddmm_pairs.cuh"
#include "ops/batch_sum.cuh"
#include "ops/row_pass.cuh"

namespace learnsolve {

template <class T>
using In = cuda::Vectors<const T>;

// out_p += <u_i, v_j> on the pattern of S for pairs (u, v), which stay where they are until flush. finish
// comes last.
template <class T, class I>
class DevicePairs {
 public:
  static constexpr int64_t kMost = cuda::EntryPairs<T, I>::kMost;

  DevicePairs(const OnDevice& device_, const Tensor& like, const DeviceStructure& S, int64_t k, int64_t batch,
              T* out, int64_t out_step, const In<T>& acts = {})
      : device(device_),
        row(new_empty(S.idx, Size{S.nnz()})),
        groups(batch, out_step == 0 ? S.nnz() : 0),
        sum(like, out, out_step, S.nnz(), groups, true, &device_),
        pairs{data<I>(row), data<I>(S.idx), S.nnz(), k, groups, sum.result, acts, {}, {}, 0} {
    if (S.nnz() == 0) return;
    LS_LAUNCH(cuda::blocks_for(S.rows(), cuda::kThreads / 32), cuda::kThreads, device.stream,
              (data<I>(S.ptr), S.rows(), mutable_data<I>(row)), cuda::rows_of_entries_kernel<I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  void add(const In<T>& u, const In<T>& v) {
    pairs.u[pairs.count] = u, pairs.v[pairs.count] = v;
    if (++pairs.count == kMost) flush();
  }
  void flush() {
    if (pairs.count > 0 && pairs.entries > 0) pairs.k == 1 ? launch<1>() : launch<8>();
    pairs.count = 0;
  }
  void finish() {
    flush();
    sum.finish(device);
  }

 private:
  const OnDevice& device;
  const Tensor row;
  const cuda::Groups groups;
  const BatchSum<T> sum;
  cuda::EntryPairs<T, I> pairs;

  template <int Lanes>
  void launch() const {
    const dim3 grid(cuda::blocks_for(pairs.entries, cuda::kThreads / Lanes), 1,
                    cuda::blocks_aside(groups.count));
    LS_LAUNCH(grid, cuda::kThreads, device.stream, (pairs), cuda::entry_pairs_kernel<Lanes, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

}  // namespace learnsolve
