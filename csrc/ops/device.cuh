// What every CUDA operator does around its kernels: the device and its current stream. For the emulator
// (csrc/emulator) the operators take CPU tensors.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "kernels/launch.cuh"
#include "ops/tensors.h"

#ifdef __CUDACC__
#define LS_OPERATORS(m) STABLE_TORCH_LIBRARY_IMPL(learnsolve, CUDA, m)
#else
#define LS_OPERATORS(m) STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m)
#undef STD_CUDA_CHECK
#define STD_CUDA_CHECK(error) STD_TORCH_CHECK((error) == 0, "a launch failed")
#endif

namespace learnsolve {

#ifdef __CUDACC__
// The device of a tensor is the current one while this lives.
struct OnDevice {
  torch::stable::accelerator::DeviceGuard guard;
  cudaStream_t stream;

  explicit OnDevice(const Tensor& t) : guard(t.get_device_index()), stream(nullptr) {
    void* current = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &current));
    stream = static_cast<cudaStream_t>(current);
  }
};
#else
struct OnDevice {
  cudaStream_t stream = nullptr;
  explicit OnDevice(const Tensor&) {}
};
#endif

template <class T>
cuda::BatchOf<const T> batch_of(const BatchOperand& u) {
  return {data<T>(u.tensor), u.step};
}

// The slots of a sum over a batch (kernels/launch.cuh, which has an example), and their sum.

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

// Totals of partial sums, in order (kernels/launch.cuh).

// cuda::totals_kernel
template <class T>
void add_totals(const OnDevice& device, const T* partials, int64_t results, int64_t batch, int64_t chunks,
                int64_t k, bool roots, T* out, int64_t out_step) {
  LS_LAUNCH(cuda::blocks_for(results * ((k + 31) / 32)), cuda::kThreads, device.stream,
            (partials, results, batch, chunks, k, roots, out, out_step), cuda::totals_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace learnsolve
