// Tensors in operators, on every device: their memory, their dtypes, and new ones.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <vector>

#include "ops/buffers.h"

// In torch 2.11 and later; null where it is missing, and then no memory is kept.
extern "C" __attribute__((weak)) AOTITorchError
torch_from_blob(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,
                AtenTensorHandle* result, int32_t layout, const uint8_t* opaque_metadata,
                int64_t opaque_metadata_size, void (*deleter)(void* data, void* context), void* context);

namespace learnsolve {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Size = std::vector<int64_t>;

inline Size sizes_of(const Tensor& t) { return {t.sizes().begin(), t.sizes().end()}; }

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

// All on the CPU, or on one CUDA device.
inline void check_device(const char* name, const Tensor& like, std::initializer_list<const Tensor*> others) {
  const bool on_host = like.is_cpu();
  const auto index = on_host ? 0 : like.get_device_index();
  STD_TORCH_CHECK(on_host || like.is_cuda(), name, ": tensors must be on a CPU or a CUDA device");
  for (const Tensor* t : others)
    STD_TORCH_CHECK(on_host ? t->is_cpu() : t->is_cuda() && t->get_device_index() == index, name,
                    ": all tensors must be on one device");
}

inline bool is_complex(const Tensor& t) {
  return t.scalar_type() == ScalarType::ComplexFloat || t.scalar_type() == ScalarType::ComplexDouble;
}

// f.template operator()<T, I>() for the dtype of the values and the type of the indices. T is real: complex
// numbers, which an operator takes with `OrComplex`, are pairs of T.
template <bool OrComplex = false, class F>
void dispatch(const char* name, const Tensor& values, const Tensor& idx, F f) {
  const ScalarType t = values.scalar_type(), i = idx.scalar_type();
  STD_TORCH_CHECK(i == ScalarType::Int || i == ScalarType::Long, name, ": indices must be int32 or int64");
  STD_TORCH_CHECK(t == ScalarType::Float || t == ScalarType::Double || (OrComplex && is_complex(values)),
                  name, ": values must be float32 or float64", OrComplex ? ", complex64 or complex128" : "");
  if (t == ScalarType::Double || t == ScalarType::ComplexDouble) {
    i == ScalarType::Int ? f.template operator()<double, int32_t>()
                         : f.template operator()<double, int64_t>();
  } else {
    i == ScalarType::Int ? f.template operator()<float, int32_t>() : f.template operator()<float, int64_t>();
  }
}

// The same where there are no indices.
template <bool OrComplex = false, class F>
void dispatch_dtype(const char* name, const Tensor& t, F f) {
  const ScalarType type = t.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double || (OrComplex && is_complex(t)),
                  name, ": tensors must be float32 or float64", OrComplex ? ", complex64 or complex128" : "");
  type == ScalarType::Double || type == ScalarType::ComplexDouble ? f.template operator()<double>()
                                                                  : f.template operator()<float>();
}

inline size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.numel()) * t.element_size(); }

// Contiguous, on the device of `like`, and of its dtype unless another one is given (the shim's number). The
// shim's own allocation: torch::stable::new_empty goes through the dispatcher, which costs 1 us more, and the
// adjoint of a solver returns four tensors.
inline Tensor new_empty(const Tensor& like, const Size& size, int32_t dtype = -1) {
  Size strides(size.size());
  int64_t stride = 1, numel = 1;
  bool fits = true;
  for (size_t i = size.size(); i-- > 0;) {
    strides[i] = stride, numel = size[i] == 0 ? 0 : numel;
    fits = !__builtin_mul_overflow(stride, std::max<int64_t>(size[i], 1), &stride) && fits;
  }
  STD_TORCH_CHECK(fits && stride < int64_t(1) << 59, "learnsolve: a tensor must have less than 2^59 numbers");
  numel *= stride;
  if (dtype < 0) TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  const bool on_host = !like.is_cuda();
  const int32_t type = on_host ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  AtenTensorHandle handle = nullptr;
  const auto rank = static_cast<int64_t>(size.size());
  const size_t bytes = static_cast<size_t>(numel) * aoti_torch_dtype_element_size(dtype);
  Buffers& buffers = Buffers::get();
  if (on_host && torch_from_blob && buffers.keeps(bytes)) {
    const size_t taken = Buffers::rounded(bytes);
    if (void* data = buffers.take(taken)) {
      const auto give_back = [](void* memory, void* b) {
        Buffers::get().give_back(memory, reinterpret_cast<size_t>(b));
      };
      const AOTITorchError error =
          torch_from_blob(data, rank, size.data(), strides.data(), 0, dtype, type, -1, &handle,
                          aoti_torch_layout_strided(), nullptr, 0, give_back, reinterpret_cast<void*>(taken));
      if (error != AOTI_TORCH_SUCCESS) buffers.give_back(data, taken);
      TORCH_ERROR_CODE_CHECK(error);
      return Tensor(handle);
    }
  }
  const AOTITorchError failed = aoti_torch_empty_strided(rank, size.data(), strides.data(), dtype, type,
                                                         on_host ? 0 : like.get_device_index(), &handle);
  STD_TORCH_CHECK(failed == AOTI_TORCH_SUCCESS, "learnsolve: not enough memory for a tensor of ", bytes,
                  " bytes on the ", on_host ? "CPU" : "device",
                  "; free some, or use smaller matrices, fewer columns or fewer recorded iterations");
  Tensor t(handle);
  if (on_host && bytes >= Buffers::kHugeUnkept) prefer_huge_pages(t.data_ptr(), bytes);
  return t;
}
// torch::stable::contiguous would not say that memory is missing.
inline Tensor dense(const Tensor& t) {
  if (t.is_contiguous()) return t;
  Tensor copy = new_empty(t, sizes_of(t));
  return torch::stable::copy_(copy, t);
}
inline std::optional<Tensor> dense(const std::optional<Tensor>& t) {
  return t ? std::optional<Tensor>(dense(*t)) : std::nullopt;
}

inline Tensor new_zeros(const Tensor& like, const Size& size) {
  if (like.is_cuda()) return torch::stable::new_zeros(like, size);
  Tensor t = new_empty(like, size);
  if (t.numel() > 0) std::memset(t.data_ptr(), 0, bytes_of(t));
  return t;
}

}  // namespace learnsolve
