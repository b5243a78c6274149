// What the operators of a sparse product take, on every device: a plan, and values of two or three matrices.
#pragma once

#include "ops/structure.h"

namespace learnsolve {

// The plan of a product C = A B, its arrays contiguous: the three patterns, the places of the products and
// the blocks in which they are processed. For a pass by columns A's arrays are those of its transpose, with
// perm and starts. It holds the tensors: pointers stay valid.
struct ProductPlan {
  const char* name;
  Tensor a_ptr, a_idx, b_ptr, b_idx, c_ptr, c_idx, blocks;
  std::optional<Tensor> perm, positions, starts;

  ProductPlan(const char* name_, const std::vector<Tensor>& list, bool by_columns, const Tensor& like)
      : name(name_),
        a_ptr(dense(listed(name, "a plan", list, 10)[0])),
        a_idx(dense(list[1])),
        b_ptr(dense(list[3])),
        b_idx(dense(list[4])),
        c_ptr(dense(list[5])),
        c_idx(dense(list[6])),
        blocks(dense(list[9])),
        perm(unless_empty(list[2])),
        positions(unless_empty(list[7])) {
    if (by_columns && positions) starts = unless_empty(list[8]);
    const ScalarType type = a_idx.scalar_type();
    check_index(name, a_idx);
    for (const Tensor* t : {&a_ptr, &b_ptr, &c_ptr})
      STD_TORCH_CHECK(t->numel() > 0 && t->scalar_type() == type, name,
                      ": every pattern needs ptr with rows + 1 entries and idx of the same type");
    STD_TORCH_CHECK(b_idx.scalar_type() == type && c_idx.scalar_type() == type &&
                        (!perm || perm->scalar_type() == type) &&
                        (!by_columns || (perm ? perm->numel() : 0) == a_nnz()),
                    name, ": all patterns must have one index type, and perm the entries of A");
    for (const std::optional<Tensor>* t : {&positions, &starts})
      STD_TORCH_CHECK(!*t || (*t)->scalar_type() == ScalarType::Int, name, ": a plan must be int32");
    STD_TORCH_CHECK(by_columns || a_rows() == c_ptr.numel() - 1, name, ": C must have the rows of A");
    STD_TORCH_CHECK(
        !by_columns || (a_rows() == b_rows() && (!positions || (starts && starts->numel() == a_nnz()))), name,
        ": starts must have the entries of A, and B a row for each column of A");
    STD_TORCH_CHECK(blocks.scalar_type() == ScalarType::Long, name, ": blocks must be int64");
    check_device(name, like, {&a_ptr, &a_idx, &b_ptr, &b_idx, &c_ptr, &c_idx, &blocks});
    for (const std::optional<Tensor>* t : {&perm, &positions, &starts})
      if (*t) check_device(name, like, {&**t});
  }
  int64_t a_rows() const { return a_ptr.numel() - 1; }
  int64_t b_rows() const { return b_ptr.numel() - 1; }
  int64_t a_nnz() const { return a_idx.numel(); }
  int64_t b_nnz() const { return b_idx.numel(); }
  int64_t c_nnz() const { return c_idx.numel(); }
};

// Two operands of a contraction, and the size of its result: (nnz), or (B, nnz) unless the batch is added up.
struct Operands {
  BatchOperand u, v;
  int64_t batch;
  bool batched;  // is the result?

  Operands(const BatchOperand& u_, const BatchOperand& v_, const char* name, bool sum_batch)
      : u(u_),
        v(v_),
        batch(broadcast_batch(name, u.batch, v.batch)),
        batched(!sum_batch && (u.batched || v.batched)) {}
  Size size(int64_t nnz) const { return batched ? Size{batch, nnz} : Size{nnz}; }
  // From one member of the result to the next.
  int64_t step(int64_t nnz) const { return batched && batch > 1 ? nnz : 0; }
};

}  // namespace learnsolve
