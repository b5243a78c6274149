// What every CUDA operator does around its kernels: checks, the device and its current stream, allocation by
// torch. Compiled for the host the operators take CPU tensors, and their kernels are plain functions.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include <initializer_list>
#include <vector>

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

inline bool on_same_device(const Tensor& a, const Tensor& b) {
  return a.is_cuda() && b.is_cuda() && a.get_device_index() == b.get_device_index();
}
#else
struct OnDevice {
  cudaStream_t stream = nullptr;
  explicit OnDevice(const Tensor&) {}
};

inline bool on_same_device(const Tensor& a, const Tensor& b) { return !a.is_cuda() && !b.is_cuda(); }
#endif

inline void check_device(const char* name, const Tensor& like, std::initializer_list<const Tensor*> others) {
  for (const Tensor* t : others)
    STD_TORCH_CHECK(on_same_device(like, *t), name, ": all tensors must be on one device");
}

inline Tensor new_empty(const Tensor& like, const std::vector<int64_t>& size) {
  return torch::stable::new_empty(like, size);
}
inline Tensor new_zeros(const Tensor& like, const std::vector<int64_t>& size) {
  return torch::stable::new_zeros(like, size);
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.data_ptr());
}
template <class T>
const T* data(const std::optional<Tensor>& t) {
  return t ? data<T>(*t) : nullptr;
}
template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

}  // namespace learnsolve
