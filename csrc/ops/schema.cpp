// Every operator of the library: its table of contents. S stands for a structure, four tensors
//     ptr (rows + 1), idx (nnz), perm (nnz) or none, blocks (number of blocks + 1, 2)
// as kernels/csr_view.h describes them. The structure of A is (crow, col, none, blocks), that of A^T
// the transposed pattern with perm, the place of each of its entries in A's values.
// Shapes: values (nnz) or (B, nnz); dense operands (n), (n, k) or (B, n, k).
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(learnsolve, m) {
  // y = S x. sum_batch adds the results of the batch up.
  m.def(
      "csr_spmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor blocks, Tensor values, Tensor x, "
      "bool sum_batch=False) -> Tensor");
  // out_p = <u_i, v_j>
  m.def(
      "csr_sddmm(Tensor ptr, Tensor idx, Tensor blocks, Tensor u, Tensor v, bool sum_batch=False) -> "
      "Tensor");
  // For y = A x and S = A^T: (gradient for the values, gradient for x), for the cotangent g of y. crow, col
  // and row_blocks are the structure of A.
  m.def(
      "csr_spmm_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor blocks, Tensor crow, Tensor col, "
      "Tensor row_blocks, Tensor values, Tensor g, Tensor x) -> (Tensor, Tensor)");
  // The same for y = A x with one vector, (values, x), without the transposed structure: for matrices that no
  // cache holds, with few columns. Either can be left out (an empty tensor).
  m.def(
      "csr_spmv_scatter_backward(Tensor ptr, Tensor idx, Tensor blocks, Tensor values, Tensor g, Tensor x, "
      "bool need_values, bool need_x) -> (Tensor, Tensor)");
  // `iterations` sweeps x <- x + scale_k o (b - A x), scale (n), (1 or iterations, n) or (B, ..., n):
  // (x, norms of b - A x before each sweep, every stride-th iterate; none of them if stride = 0).
  m.def(
      "csr_richardson(Tensor ptr, Tensor idx, Tensor blocks, Tensor values, Tensor scale, Tensor b, "
      "Tensor x0, int iterations, int stride) -> (Tensor, Tensor, Tensor)");
  // Its adjoint: gradients for (values, scale, b, x0); where one is not needed, its tensor is
  // empty (that for x0: of no meaning).
  m.def(
      "csr_richardson_backward(Tensor ptr, Tensor idx, Tensor blocks, Tensor tptr, Tensor tidx, "
      "Tensor tperm, Tensor tblocks, Tensor values, Tensor scale, Tensor b, Tensor iterates, Tensor norms, "
      "Tensor gx, Tensor? gnorms, int iterations, int stride, bool need_values, bool need_scale, "
      "bool need_b, bool need_x0) -> (Tensor, Tensor, Tensor, Tensor)");
  // x = T^-1 b for the triangular T of kernels/csr_view.h (TriangleView) with the entries (ptr, idx, perm),
  // blocks (number of blocks + 1, 3); rows by level in `order`, level l from levels[l] on (both empty: row
  // by row), last level first if `upper`. b (B, n, k) where values are (B, nnz).
  m.def(
      "csr_sptrsv(Tensor ptr, Tensor idx, Tensor? perm, Tensor blocks, Tensor order, Tensor levels, "
      "bool upper, bool unit, Tensor values, Tensor b) -> Tensor");
  // For x = T^-1 b with T's transpose as the system: (gradient for the values, y = T^-T g). row_ptr to
  // row_blocks hold the same entries by rows of the matrix: T's if not `transpose`, else those of T^T.
  m.def(
      "csr_sptrsv_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor blocks, Tensor order, Tensor levels, "
      "bool upper, bool unit, Tensor row_ptr, Tensor row_idx, Tensor? row_perm, Tensor row_blocks, "
      "bool transpose, Tensor values, Tensor g, Tensor x) -> (Tensor, Tensor)");
  // `iterations` of preconditioned conjugate gradients from number `first` on. M by `kind`: 0 none, 1 diag(m),
  // 2 L L^T, 3 (L L^T)^-1 for L with values m; `factor` are the structures of L (ops/pcg.h). Without p they
  // begin: r is b, x the first iterate, zero if there is none. Else (x, r, p, carry) continue.
  // Returns x, r, p, the p before, carry (what is known of each column), norms (iterations, and the first one if
  // they begin), and with `store` for the adjoint scalars, all r and all p. B = 1 where b has no batch:
  // carry (B, 6, k), scalars (B, iterations, 3, k), r and p (B, iterations, n, k).
  m.def(
      "csr_pcg(Tensor ptr, Tensor idx, Tensor blocks, Tensor values, int kind, Tensor? m, Tensor[] factor, "
      "Tensor? x, Tensor r, Tensor? p, Tensor? carry, int first, int iterations, bool store) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The adjoint of one such call, from the last to the first: (rbar, pbar, bars) are the state that the call for
  // the iterations after this one returned, (ga, gm) the sums for values and m so far; none: zero. `last` is the
  // r after the iterations, `before` the p before them (none: they begin), then rbar is the gradient of b.
  // Returns rbar, pbar, bars (B, 3, k), ga, gm and, where they begin, the gradient of x0. Of L: that of its whole
  // pattern, for kind 3 with the opposite sign.
  m.def(
      "csr_pcg_backward(Tensor ptr, Tensor idx, Tensor blocks, Tensor tptr, Tensor tidx, Tensor tperm, "
      "Tensor tblocks, Tensor values, int kind, Tensor? m, Tensor[] factor, Tensor? x0, Tensor residuals, "
      "Tensor directions, Tensor last, Tensor? before, Tensor scalars, Tensor norms, Tensor? gx, Tensor? gnorms, "
      "Tensor? rbar, Tensor? pbar, Tensor? bars, Tensor? ga, Tensor? gm, bool need_values, bool need_m, "
      "bool need_x0) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
