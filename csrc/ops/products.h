// Sizes of the products of a structure with dense operands, (n), (n, k) or (B, n, k), on every device:
// checked operands, and the steps from one member of the batch to the next (0: shared, or added up).
#pragma once

#include "ops/tensors.h"

namespace learnsolve {

// One for values or operands that the batch shares.
inline int64_t step_of(int64_t batch, int64_t size) { return batch == 1 ? 0 : size; }

// y = S x
struct Spmm {
  Tensor values, x;
  int64_t x_rows, k, batch, a_step, x_step, y_step;
  Size size;  // of y (learnsolve/ops/autograd.py says the same for torch.compile)

  Spmm(const SparseStructure& S, const Tensor& values_, const Tensor& x_, bool sum_batch)
      : values(dense(values_)), x(dense(x_)) {
    check_device(S.name, values, {&S.idx, &x});
    check_dense(S.name, "x", x, values);
    check_values(S.name, values, S.nnz());
    const int64_t a_batch = values.dim() == 2 ? values.size(0) : 1;
    const Dense d(x);
    x_rows = d.n, k = d.k;
    batch = broadcast_batch(S.name, a_batch, d.batch);
    a_step = step_of(a_batch, S.nnz());
    x_step = step_of(d.batch, d.n * k);
    y_step = sum_batch ? 0 : step_of(batch, S.rows() * k);
    if (x.dim() == 1 && values.dim() == 1)
      size = {S.rows()};
    else if (sum_batch || (x.dim() < 3 && values.dim() == 1))
      size = {S.rows(), k};
    else
      size = {batch, S.rows(), k};
  }
};

// out_p = <u_i, v_j>
struct Sddmm {
  Tensor u, v;
  int64_t v_rows, k, batch, u_step, v_step, out_step;
  Size size;

  Sddmm(const SparseStructure& S, const Tensor& u_, const Tensor& v_, bool sum_batch)
      : u(dense(u_)), v(dense(v_)) {
    check_device(S.name, u, {&S.idx, &v});
    check_dense(S.name, "v", v, u);
    check_dense(S.name, "u", u, u);
    const Dense du(u), dv(v);
    STD_TORCH_CHECK(du.n == S.rows() && du.k == dv.k, S.name, ": u must have ", S.rows(),
                    " rows and as many columns as v");
    v_rows = dv.n, k = du.k;
    batch = broadcast_batch(S.name, du.batch, dv.batch);
    u_step = step_of(du.batch, du.n * k);
    v_step = step_of(dv.batch, dv.n * k);
    const bool batched = !sum_batch && (u.dim() == 3 || v.dim() == 3);
    out_step = batched ? S.nnz() : 0;
    size = batched ? Size{batch, S.nnz()} : Size{S.nnz()};
  }
};

// Both gradients of a product, in the shapes of values and x, by the structure S whose rows are x's; `rows`:
// those of the matrix.
struct SpmmBackward {
  Tensor values, g, x;
  int64_t g_rows, k, batch, a_step, g_step, x_step;

  SpmmBackward(const SparseStructure& S, int64_t rows, const Tensor& values_, const Tensor& g_,
               const Tensor& x_)
      : values(dense(values_)), g(dense(g_)), x(dense(x_)) {
    check_device(S.name, values, {&S.idx, &g, &x});
    check_dense(S.name, "x", x, values);
    check_dense(S.name, "g", g, values);
    check_values(S.name, values, S.nnz());
    const int64_t a_batch = values.dim() == 2 ? values.size(0) : 1;
    const Dense dx(x), dg(g);
    STD_TORCH_CHECK(dx.n == S.rows() && dx.k == dg.k && (!S.perm || dg.n == rows), S.name,
                    ": x and g do not match the structure");
    g_rows = dg.n, k = dx.k;
    batch = broadcast_batch(S.name, a_batch, broadcast_batch(S.name, dx.batch, dg.batch));
    a_step = step_of(a_batch, S.nnz());
    g_step = step_of(dg.batch, dg.n * k);
    x_step = step_of(dx.batch, dx.n * k);
  }
  // Then no kernel would write the results.
  bool nothing() const { return batch == 0 || k == 0; }
};

// Operands and sizes of sums and combinations of columns, on every device.

// u, (k) or (B, k) if `one`, else (n, k) or (B, n, k), and v, (n, k) or (B, n, k).
struct Columns {
  Tensor u, v;
  int64_t batch, n, k, u_step, v_step;
  bool batched;

  Columns(const char* name, const Tensor& u_, const Tensor& v_, bool one) : u(dense(u_)), v(dense(v_)) {
    const int64_t axes = one ? 1 : 2;
    check_device(name, v, {&u});
    STD_TORCH_CHECK((v.dim() == 2 || v.dim() == 3) && (u.dim() == axes || u.dim() == axes + 1), name,
                    ": operands must be ", one ? "(k) or (B, k)" : "(n, k) or (B, n, k)",
                    " and (n, k) or (B, n, k), got ", u.dim(), " and ", v.dim(), " dimensions");
    n = v.size(v.dim() - 2), k = v.size(v.dim() - 1);
    STD_TORCH_CHECK(u.size(u.dim() - 1) == k && (one || u.size(u.dim() - 2) == n), name,
                    ": operands must have the same columns and rows");
    STD_TORCH_CHECK(u.scalar_type() == v.scalar_type(), name, ": operands must have one dtype");
    const int64_t of_u = u.dim() == axes + 1 ? u.size(0) : 1, of_v = v.dim() == 3 ? v.size(0) : 1;
    batch = broadcast_batch(name, of_u, of_v);
    batched = u.dim() == axes + 1 || v.dim() == 3;
    u_step = of_u == 1 ? 0 : (one ? k : n * k);
    v_step = of_v == 1 ? 0 : n * k;
  }
  Size sums(bool sum_batch) const { return batched && !sum_batch ? Size{batch, k} : Size{k}; }
};

}  // namespace learnsolve
