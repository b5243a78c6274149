// What the operators of a sparse product take, on every device: a plan, and values of two or three matrices.
#pragma once

#include "ops/tensors.h"

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

// The values that the operators of a sum take, (nnz) or (B, nnz), on every device.

// The operands of c = alpha a + beta b.
struct Addends {
  Tensor a, b;
  int64_t na, nb, batch;

  Addends(const char* name, const Tensor& a_, const Tensor& b_) : a(dense(a_)), b(dense(b_)) {
    STD_TORCH_CHECK((a.dim() == 1 || a.dim() == 2) && a.dim() == b.dim() &&
                        a.scalar_type() == b.scalar_type() && (a.dim() == 1 || a.size(0) == b.size(0)),
                    name, ": a and b must both be (nnz) or (B, nnz), of one dtype");
    check_device(name, a, {&b});
    na = a.size(a.dim() - 1), nb = b.size(b.dim() - 1), batch = a.dim() == 2 ? a.size(0) : 1;
  }
  Size size(int64_t nnz) const { return a.dim() == 2 ? Size{batch, nnz} : Size{nnz}; }
};

// The cotangent g of c, and the sizes of the gradients for a and b: none where one is not needed.
struct UnionCotangent {
  Tensor g;
  int64_t nnz, batch;
  Size a_size, b_size;

  UnionCotangent(const char* name, const Tensor& g_, int64_t na, int64_t nb, bool need_a, bool need_b)
      : g(dense(g_)) {
    STD_TORCH_CHECK(g.dim() == 1 || g.dim() == 2, name, ": g must be (nnz) or (B, nnz)");
    STD_TORCH_CHECK(na >= 0 && nb >= 0, name, ": na and nb must not be negative");
    nnz = g.size(g.dim() - 1), batch = g.dim() == 2 ? g.size(0) : 1;
    const auto size = [&](int64_t n) { return g.dim() == 2 ? Size{batch, n} : Size{n}; };
    a_size = need_a ? size(na) : Size{0}, b_size = need_b ? size(nb) : Size{0};
  }
};

}  // namespace learnsolve
