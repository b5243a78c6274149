// The structures of a preconditioner that is made of a factor L, checked: for CPU and CUDA operators.
#pragma once

#include "ops/pcg_sizes.h"

namespace learnsolve {

// `factor`: for a product L's ptr, idx, blocks and L^T's ptr, idx, perm, blocks; for triangular solves L's
// ptr, idx, blocks, then ptr, idx, perm (empty: none), blocks, order, levels of the lower triangle and of its
// transpose.
template <class Structure, class Triangle>
struct FactorStructures {
  // place: what structures of a device take after their name.
  template <class... Place>
  FactorStructures(const char* name, const PcgSizes& p, const std::optional<Tensor>& m,
                   const std::vector<Tensor>& factor, const Tensor& idx, const Place&... place) {
    const bool triangular = p.kind == Preconditioning::triangular;
    const size_t size = triangular ? 15 : p.kind == Preconditioning::product ? 7 : 0;
    STD_TORCH_CHECK(factor.size() == size, name, ": factor must hold ", size, " tensors, got ",
                    factor.size());
    if (size == 0) return;
    rows.emplace(name, place..., factor[0], factor[1], std::nullopt, factor[2]);
    STD_TORCH_CHECK(rows->rows() == p.n && rows->nnz() == m->size(m->dim() - 1) &&
                        rows->idx.scalar_type() == idx.scalar_type(),
                    name, ": the factor must have ", p.n, " rows, m its values, and the index type of A");
    if (triangular) {
      const auto side = [&](size_t at, bool upper) {
        const std::optional<Tensor> perm =
            factor[at + 2].numel() > 0 ? std::optional(factor[at + 2]) : std::nullopt;
        return Triangle(name, place..., factor[at], factor[at + 1], perm, factor[at + 3], factor[at + 4],
                        factor[at + 5], upper, false);
      };
      lower.emplace(side(3, false)), upper.emplace(side(9, true));
      STD_TORCH_CHECK(lower->rows() == p.n && upper->rows() == p.n &&
                          (lower->perm ? lower->entries() <= rows->nnz() : lower->entries() == rows->nnz()) &&
                          upper->entries() == lower->entries() && upper->perm &&
                          lower->idx.scalar_type() == idx.scalar_type() &&
                          upper->idx.scalar_type() == idx.scalar_type(),
                      name, ": the triangles must be those of the factor");
      width = p.n;
    } else {
      columns.emplace(name, place..., factor[3], factor[4], factor[5], factor[6]);
      STD_TORCH_CHECK(columns->nnz() == rows->nnz() && columns->idx.scalar_type() == idx.scalar_type(), name,
                      ": both structures must hold the same entries");
      width = columns->rows();
    }
  }
  std::optional<Structure> rows, columns;
  std::optional<Triangle> lower, upper;
  int64_t width = 0;  // columns of L
};

}  // namespace learnsolve
