// What every CUDA operator does around its kernels: checks, the device and its current stream, allocation by
// torch.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include <initializer_list>
#include <vector>

#include "ops/shapes.h"

namespace learnsolve {

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

inline void check_device(const char* name, const Tensor& like, std::initializer_list<const Tensor*> others) {
  STD_TORCH_CHECK(like.is_cuda(), name, ": values must be on a CUDA device");
  for (const Tensor* t : others)
    STD_TORCH_CHECK(t->is_cuda() && t->get_device_index() == like.get_device_index(), name,
                    ": all tensors must be on one CUDA device");
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
