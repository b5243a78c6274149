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
  // c = alpha a + beta b on the union of two patterns, whose nnz entries codes and starts describe
  // (kernels/union_plan.h); a, b (nnz) or (B, nnz), each with the nnz of its own pattern.
  m.def(
      "csr_add(Tensor codes, Tensor starts, int nnz, Tensor a, Tensor b, float alpha, float beta) -> Tensor");
  // Its adjoint: gradients for a and b, with na and nb entries. Where one is not needed, its tensor is empty.
  m.def(
      "csr_add_backward(Tensor codes, Tensor starts, int na, int nb, Tensor g, float alpha, float beta, "
      "bool need_a, bool need_b) -> (Tensor, Tensor)");
}
