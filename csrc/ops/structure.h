// Structures and lists of tensors as operators take them (ops/schema.cpp), on every device.
#pragma once

#include "ops/shapes.h"

namespace learnsolve {

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
// and `levels`. upper: which one, as kernels/csr_view.h describes it; unit: without its diagonal.
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
