// The slots of a sum over a batch (kernels/groups.cuh, which has an example), and their sum.
#pragma once

#include "kernels/groups.cuh"
#include "ops/device.cuh"

namespace learnsolve {

// out: `size` numbers for each member, out_step apart, or (0) for all of them. What kernels do not write, if
// `written` is false, adds up to zero. What is there is added to, if kernels add to `result`: on the device
// `keeps`.
template <class T>
class BatchSum {
 public:
  cuda::BatchResult<T> result;  // where kernels write

  BatchSum(const Tensor& like, T* out_, int64_t out_step, int64_t size_, const cuda::Groups& groups,
           bool written = true, const OnDevice* keeps = nullptr)
      : result{out_, out_step, groups.batch > 1 && out_step == 0},
        out(out_),
        size(size_),
        count(groups.count) {
    if (!result.adds) return;
    result.step = size;
    if (count == 1) return;
    slots = written && !keeps ? new_empty(like, Size{count, size}) : new_zeros(like, Size{count, size});
    result.p = mutable_data<T>(*slots);
    if (keeps && size > 0)
      STD_CUDA_CHECK(
          cudaMemcpyAsync(result.p, out, size * sizeof(T), cudaMemcpyDeviceToDevice, keeps->stream));
  }
  void finish(const OnDevice& device) const {
    if (!slots || size == 0) return;
    LS_LAUNCH(cuda::blocks_for(size, cuda::kThreads), cuda::kThreads, device.stream,
              (result.p, count, size, out), cuda::add_groups_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

 private:
  T* out;
  int64_t size, count;
  std::optional<Tensor> slots;
};

}  // namespace learnsolve
