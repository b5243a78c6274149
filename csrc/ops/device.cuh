// What every CUDA operator does around its kernels: the device and its current stream. For the emulator
// (csrc/emulator) the operators take CPU tensors.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "kernels/launch.cuh"
#include "ops/shapes.h"

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

}  // namespace learnsolve
