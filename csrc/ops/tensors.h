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

// Shapes and dtypes of operands, checked, on every device.

// Numbers of a pattern or a plan, (size) or (B, size). Those that the batch shares (expanded) are not copied.
struct BatchOperand {
  Tensor tensor;
  int64_t batch, step;  // step: from one member of the batch to the next
  bool batched;

  BatchOperand(const char* name, const char* arg, const Tensor& t, int64_t size, const Tensor& like)
      : tensor(t), batched(t.dim() == 2) {
    STD_TORCH_CHECK((t.dim() == 1 || batched) && t.size(t.dim() - 1) == size, name, ": ", arg, " must be (",
                    size, ") or (B, ", size, ")");
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": operands must have one dtype");
    check_device(name, like, {&t});
    batch = batched ? t.size(0) : 1;
    const bool shared = batch > 1 && t.stride(0) == 0 && t.stride(1) == 1;
    if (!shared) tensor = dense(t);
    step = shared || batch == 1 ? 0 : size;
  }
  template <class T>
  const T* at(int64_t b) const {
    return data<T>(tensor) + b * step;
  }
  Size size(int64_t n) const { return batched ? Size{batch, n} : Size{n}; }
};

// Shape of a dense operand: batch x n x k, with missing axes taken as 1.
struct Dense {
  int64_t batch, n, k;
  explicit Dense(const Tensor& x)
      : batch(x.dim() == 3 ? x.size(0) : 1),
        n(x.dim() == 3 ? x.size(1) : x.size(0)),
        k(x.dim() == 1 ? 1 : x.size(x.dim() - 1)) {}
};

inline void check_dense(const char* name, const char* arg, const Tensor& x, const Tensor& values) {
  STD_TORCH_CHECK(x.dim() >= 1 && x.dim() <= 3, name, ": ", arg, " must be (n), (n, k) or (B, n, k), got ",
                  x.dim(), " dimensions");
  STD_TORCH_CHECK(x.scalar_type() == values.scalar_type(), name, ": ", arg,
                  " and values must have one dtype");
}

inline void check_values(const char* name, const Tensor& values, int64_t nnz) {
  STD_TORCH_CHECK((values.dim() == 1 || values.dim() == 2) && values.size(values.dim() - 1) == nnz, name,
                  ": values must be (nnz) or (B, nnz) with nnz = ", nnz);
}

inline void check_index(const char* name, const Tensor& t) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Int || t.scalar_type() == ScalarType::Long, name,
                  ": indices must be int32 or int64");
}

inline void check_indices(const char* name, const Tensor& ptr, const Tensor& idx,
                          const std::optional<Tensor>& perm, const Tensor& blocks) {
  check_index(name, idx);
  STD_TORCH_CHECK(ptr.numel() > 0, name, ": ptr must hold rows + 1 entries, got none");
  STD_TORCH_CHECK(ptr.scalar_type() == idx.scalar_type() && blocks.scalar_type() == idx.scalar_type() &&
                      (!perm || perm->scalar_type() == idx.scalar_type()),
                  name, ": ptr, idx, perm and blocks must have one index type");
  STD_TORCH_CHECK(!perm || perm->numel() == idx.numel(), name, ": perm must have one entry a nonzero");
}

// S and St: a pattern and its transpose.
template <class Structure>
void check_transpose(const char* name, const Structure& S, const Structure& St) {
  STD_TORCH_CHECK(St.nnz() == S.nnz() && St.rows() == S.rows() && St.idx.scalar_type() == S.idx.scalar_type(),
                  name, ": both structures must hold the same entries");
}

// How many numbers an array of this size has; -1 if more than can be counted.
inline int64_t numbers(std::initializer_list<int64_t> size) {
  int64_t all = 1;
  for (const int64_t n : size)
    if (__builtin_mul_overflow(all, n, &all)) return -1;
  return all;
}

// What an adjoint gets from its forward, or adds to; a tensor may be none.
inline void check_of_forward(const char* name, const char* what, const std::optional<Tensor>& t,
                             const Tensor& values, int64_t numel) {
  if (!t) return;
  STD_TORCH_CHECK(t->scalar_type() == values.scalar_type() && t->numel() == numel, name, ": ", what,
                  " must be that of the forward, got ", t->numel(), " numbers for ", numel);
}

inline int64_t broadcast_batch(const char* name, int64_t a, int64_t b) {
  STD_TORCH_CHECK(a == b || a == 1 || b == 1, name, ": batch sizes ", a, " and ", b, " do not match");
  return a == 1 ? b : a;
}

// `rows`, with the axes for a batch and for columns that b, (n), (n, k) or (B, n, k), has.
inline Size rows_like(const Tensor& b, Size rows) {
  if (b.dim() >= 2) rows.push_back(b.size(b.dim() - 1));
  if (b.dim() == 3) rows.insert(rows.begin(), b.size(0));
  return rows;
}

// Structures and lists of tensors as operators take them (ops/schema.cpp), on every device.

// The tensors of one argument, of which there must be `count`.
inline const std::vector<Tensor>& listed(const char* name, const char* what, const std::vector<Tensor>& list,
                                         size_t count) {
  STD_TORCH_CHECK(list.size() == count, name, ": ", what, " must hold ", count, " tensors, got ",
                  list.size());
  return list;
}

// In a list an empty tensor stands for none.
inline std::optional<Tensor> unless_empty(const Tensor& t) {
  return t.numel() > 0 ? std::optional<Tensor>(dense(t)) : std::nullopt;
}

// ptr (rows + 1), idx (nnz), perm (nnz) or empty, and blocks, each device's own; contiguous, of one index
// type and on one device. It holds the tensors: pointers stay valid.
struct SparseStructure {
  const char* name;  // of the operator
  Tensor ptr, idx;
  std::optional<Tensor> perm;
  Tensor blocks;

  SparseStructure(const char* name_, const Tensor& ptr_, const Tensor& idx_,
                  const std::optional<Tensor>& perm_, const Tensor& blocks_)
      : name(name_), ptr(dense(ptr_)), idx(dense(idx_)), blocks(dense(blocks_)) {
    if (perm_) perm = unless_empty(*perm_);
    check_device(name, idx, {&ptr, &blocks, perm ? &*perm : &idx});
    check_indices(name, ptr, idx, perm, blocks);
  }
  SparseStructure(const char* name_, const std::vector<Tensor>& S)
      : SparseStructure{name_, listed(name_, "a structure", S, 4)[0], S[1], S[2], S[3]} {}

  int64_t rows() const { return ptr.numel() - 1; }
  int64_t nnz() const { return idx.numel(); }
};

// The entries of a triangle that are read, as a structure, and the rows by level: `order` of the index type,
// and `levels`. upper: which one, as kernels/views.h describes it; unit: without its diagonal.
struct SparseTriangle : SparseStructure {
  Tensor order, levels;
  bool upper, unit;

  SparseTriangle(const char* name_, const Tensor& ptr_, const Tensor& idx_,
                 const std::optional<Tensor>& perm_, const Tensor& blocks_, const Tensor& order_,
                 const Tensor& levels_, bool upper_, bool unit_)
      : SparseStructure(name_, ptr_, idx_, perm_, blocks_),
        order(dense(order_)),
        levels(dense(levels_)),
        upper(upper_),
        unit(unit_) {
    check_device(name, idx, {&order});
  }
  SparseTriangle(const char* name_, const std::vector<Tensor>& T, bool upper_, bool unit_)
      : SparseTriangle{name_, listed(name_, "a triangle", T, 6)[0], T[1], T[2], T[3], T[4], T[5], upper_,
                       unit_} {}

  int64_t entries() const { return nnz(); }
};

}  // namespace learnsolve
