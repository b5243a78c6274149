// The structures of a preconditioner that is made of a factor L, checked: for CPU and CUDA operators.
#pragma once

#include "ops/pcg_sizes.h"

namespace learnsolve {

// M holds the values of L, the structure of L, and for a product that of L^T; for triangular solves the lower
// triangle and its transpose, each ptr, idx, perm, blocks, order, levels. An empty perm: none.
template <class Structure, class Triangle>
struct FactorStructures {
  // place: what structures of a device take after their name.
  template <class... Place>
  FactorStructures(const char* name, const PcgSizes& p, const std::vector<Tensor>& M, const Tensor& idx,
                   const Place&... place) {
    if (M.size() < 2) return;
    const auto part = [&](size_t from, size_t count) {
      return std::vector<Tensor>(M.begin() + from, M.begin() + from + count);
    };
    rows.emplace(name, place..., part(1, 4));
    STD_TORCH_CHECK(rows->rows() == p.n && rows->nnz() == p.m->size(p.m->dim() - 1) &&
                        rows->idx.scalar_type() == idx.scalar_type(),
                    name, ": the factor must have ", p.n, " rows, m its values, and the index type of A");
    if (p.kind == Preconditioning::triangular) {
      lower.emplace(name, place..., part(5, 6), false, false);
      upper.emplace(name, place..., part(11, 6), true, false);
      STD_TORCH_CHECK(lower->rows() == p.n && upper->rows() == p.n &&
                          (lower->perm ? lower->entries() <= rows->nnz() : lower->entries() == rows->nnz()) &&
                          upper->entries() == lower->entries() && upper->perm &&
                          lower->idx.scalar_type() == idx.scalar_type() &&
                          upper->idx.scalar_type() == idx.scalar_type(),
                      name, ": the triangles must be those of the factor");
      width = p.n;
    } else {
      columns.emplace(name, place..., part(5, 4));
      STD_TORCH_CHECK(columns->nnz() == rows->nnz() && columns->idx.scalar_type() == idx.scalar_type() &&
                          (columns->perm || columns->nnz() == 0),
                      name, ": both structures must hold the same entries");
      width = columns->rows();
    }
  }
  std::optional<Structure> rows, columns;
  std::optional<Triangle> lower, upper;
  int64_t width = 0;  // columns of L
};

}  // namespace learnsolve
