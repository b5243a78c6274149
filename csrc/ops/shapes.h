// Shapes and dtypes of operands, checked, on every device.
#pragma once

#include "ops/tensors.h"

namespace learnsolve {

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

}  // namespace learnsolve
