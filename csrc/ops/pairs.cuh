// Pairs of vectors of several iterations of a loop on a CUDA device, kept until the gradient on a pattern is
// added up for all of them.
#pragma once

#include "kernels/sddmm_pairs.cuh"
#include "ops/row_pass.cuh"

namespace learnsolve {

template <class T>
using In = cuda::Vectors<const T>;

template <class T>
In<T> read(const cuda::Vectors<T>& v) {
  return {v.p, v.step};
}

// out_p += <u_i, v_j> on the pattern of S for pairs (u, v) that stay where they are until flush.
template <class T, class I>
class DevicePairs {
 public:
  static constexpr int64_t kMost = cuda::EntryPairs<T, I>::kMost;

  DevicePairs(const OnDevice& device_, const DeviceStructure& S, int64_t k, int64_t batch, T* out,
              int64_t out_step)
      : device(device_), row(new_empty(S.idx, std::vector<int64_t>{S.nnz()})) {
    sums = {data<I>(row), data<I>(S.idx), S.nnz(), k, batch, out_step, out, {}, {}, 0};
    if (S.nnz() == 0) return;
    LS_LAUNCH(cuda::blocks_for(S.rows(), cuda::kThreads / 32), cuda::kThreads, device.stream,
              (data<I>(S.ptr), S.rows(), mutable_data<I>(row)), cuda::rows_of_entries_kernel<I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  void add(const In<T>& u, const In<T>& v) {
    sums.u[sums.count] = u, sums.v[sums.count] = v;
    if (++sums.count == kMost) flush();
  }
  void flush() {
    if (sums.count > 0 && sums.entries > 0) sums.k == 1 ? launch<1>() : launch<8>();
    sums.count = 0;
  }

 private:
  const OnDevice& device;
  const Tensor row;
  cuda::EntryPairs<T, I> sums;

  template <int Lanes>
  void launch() const {
    const dim3 grid(cuda::blocks_for(sums.entries, cuda::kThreads / Lanes), 1,
                    cuda::blocks_aside(sums.adds_up() ? 1 : sums.batch));
    LS_LAUNCH(grid, cuda::kThreads, device.stream, (sums), cuda::entry_pairs_kernel<Lanes, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

}  // namespace learnsolve
