// Every operator of the library: its table of contents.
//
// A structure is one argument, `Tensor[]`: ptr (rows + 1), idx (nnz), perm (nnz) or empty, and blocks (number
// of blocks + 1, 2), as kernels/views.h describes them. That of A is (crow, col, empty, blocks), that of
// A^T the transposed pattern with perm, the place of each of its entries in A's values. A plan is one
// argument too, whose places the comment of its operator names; the numbers and choices of a plan are
// arguments of their own. An empty tensor in a list stands for none. C++ reads a list through a struct that
// names its places and checks them for every device (ops/tensors.h: `SparseStructure`, `SparseTriangle`);
// Python keeps it as a tuple (`SparsityPattern._structure`), so that a call assembles nothing.
//
// A list costs a call 0.4 us, its tensors one by one nothing that can be measured, so the smallest operators
// (csr_spmm, csr_sddmm and their backwards, csr_add) take them one by one. No operator has more than twelve
// arguments.
//
// Checked in every call: devices, dtypes, sizes, lengths of lists, numbers, and the ends of ptr and blocks.
// With LEARNSOLVE_CHECK=1 when learnsolve is imported, on the CPU also the contents of index arrays and plans
// (ops/host.h): set it when you pass arrays that do not come from a pattern, because a wrong index makes
// a kernel read or write foreign memory. That includes an operand with fewer rows than its matrix has
// columns: a structure does not say how many it has.
//
// Plans are for the device that they are made for: on a CUDA device blocks are those of
// kernels/products.cuh. Shapes: values (nnz) or (B, nnz); dense operands (n), (n, k) or (B, n, k).
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(learnsolve, m) {
  // y = S x, or conj(S) x; on the CPU also complex. sum_batch adds the results of the batch up.
  m.def(
      "csr_spmm(Tensor ptr, Tensor idx, Tensor perm, Tensor blocks, Tensor values, Tensor x, "
      "bool sum_batch=False, bool conjugate=False) -> Tensor");
  // out_p = u_i . v_j, with the conjugate of u (conjugate = 1), of v (2) or none (0); on the CPU also
  // complex.
  m.def(
      "csr_sddmm(Tensor ptr, Tensor idx, Tensor blocks, Tensor u, Tensor v, bool sum_batch=False, int "
      "conjugate=0) -> Tensor");
  // For y = A x and S = A^T: (gradient for the values, gradient for x), for the cotangent g of y. crow, col
  // and row_blocks are the structure of A.
  m.def(
      "csr_spmm_backward(Tensor ptr, Tensor idx, Tensor perm, Tensor blocks, Tensor crow, Tensor col, "
      "Tensor row_blocks, Tensor values, Tensor g, Tensor x) -> (Tensor, Tensor)");
  // The same for y = A x with one vector, (values, x), without the transposed structure: for matrices that no
  // cache holds, with few columns. Either can be left out (an empty tensor).
  m.def(
      "csr_spmv_scatter_backward(Tensor ptr, Tensor idx, Tensor blocks, Tensor values, Tensor g, Tensor x, "
      "bool need_values, bool need_x) -> (Tensor, Tensor)");
  // `iterations` sweeps x <- x + scale_k o (b - A x) + momentum_k (x - before), scale (n), (1 or iterations,
  // n) or (B, ..., n), momentum (1 or iterations) or (B, ...), `before` the iterate before x0 (none: x0): (x,
  // norms of b - A x before each sweep, every stride-th iterate, the iterate before x). None are kept if
  // stride = 0; with momentum and stride > 1 each comes with the one before it, which goes first. The last
  // result is empty unless stride = 0 and there is momentum.
  m.def(
      "csr_richardson(Tensor[] A, Tensor values, Tensor scale, Tensor? momentum, Tensor b, Tensor x0, "
      "Tensor? before, int iterations, int stride) -> (Tensor, Tensor, Tensor, Tensor)");
  // Its adjoint: gradients for (values, scale, momentum, b, x0, before). kept: the iterates and norms of the
  // forward. cotangents: those of x, the norms (or empty) and the iterate before x (or empty). needs: which
  // of the first five gradients are computed; the others are empty (that for x0: without meaning).
  m.def(
      "csr_richardson_backward(Tensor[] A, Tensor[] At, Tensor values, Tensor scale, Tensor? momentum, "
      "Tensor b, Tensor? before, Tensor[] kept, Tensor[] cotangents, int iterations, int stride, bool[] "
      "needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // A linear function of b, (n, k), in steps of five numbers: kind, operand, transpose, registers x and y, as
  // ops/linear_steps.cpp has them. Register 0 is b, register i the result of step i. operands: the values of
  // the matrices, each with the structures of A and A^T in `structures`, then vectors and dense matrices. All
  // registers but b if `keep`, or the last one.
  m.def("linear_steps(Tensor[] structures, Tensor[] operands, Tensor b, int[] steps, bool keep) -> Tensor[]");
  // Its gradients for b and the operands; those that `needs` does not ask for are empty. registers: b and
  // those of the forward.
  m.def(
      "linear_steps_backward(Tensor[] structures, Tensor[] operands, Tensor[] registers, Tensor g, int[] "
      "steps, bool[] needs) -> Tensor[]");
  // Incomplete factors of A's values, L and, for LU, U behind it, by a plan (kernels/views.h): order,
  // source, pivot, ptr, pairs, units, the places of L's ones, and sizes, the numbers of entries of the
  // factors and of values, on the host; on a CUDA device also where the levels of the steps begin, on the
  // host and there, and the uses of each entry, uses_ptr and uses (kernels/factors.cuh). With the factors
  // a double (row, pivot) for each matrix, row -1 if all went well; `check` throws instead (on the CPU).
  // Values, factors: (size) or (B, size).
  m.def(
      "csr_incomplete_factor(Tensor[] plan, bool cholesky, Tensor crow, Tensor values, bool check) -> "
      "(Tensor, Tensor)");
  // What derivatives of the factors are made of, as kernels/factors.h defines them: J(f)^-1 v, J(f)^-T g,
  // B(x, z) and C(x, w). v, w and the results of the second and third are in the places of A's nnz values. Of
  // a complete fill g may have no entries: that of log |det A|, whose adjoint is the entries of the inverse.
  m.def("csr_incomplete_tangent(Tensor[] plan, bool cholesky, Tensor factor, Tensor v) -> Tensor");
  m.def("csr_incomplete_adjoint(Tensor[] plan, bool cholesky, Tensor factor, Tensor g, int nnz) -> Tensor");
  m.def("csr_incomplete_product(Tensor[] plan, bool cholesky, Tensor x, Tensor z, int nnz) -> Tensor");
  m.def("csr_incomplete_product_adjoint(Tensor[] plan, bool cholesky, Tensor x, Tensor w) -> Tensor");
  // C = A B on the pattern C, for values a and b, (nnz) or (B, nnz): kernels/sparse_products.h. plan: a_ptr,
  // a_idx, perm, b_ptr, b_idx, c_ptr, c_idx, positions, starts, blocks. `positions` (int32, an entry a
  // product) says where the products fall; without it they are searched, for which `columns` is the number of
  // C's columns. blocks: (number of blocks + 1, 3), first row, first product, uniform or not, int64. perm and
  // starts: empty. `masked`: some products have no place in C. On a CUDA device four arrays take the places
  // from `positions` on, for this derivative: a structure with a row for each entry of the result and an
  // entry for each product, whose idx and perm are its factors (perm: in the first of a, b, g that is given).
  // There the first seven are never read but for their sizes, those of A always by rows.
  m.def(
      "csr_spgemm(Tensor[] plan, bool masked, int columns, Tensor a, Tensor b, bool sum_batch=False) -> "
      "Tensor");
  // Its gradient for a, for the cotangent g of C.
  m.def(
      "csr_spgemm_left(Tensor[] plan, bool masked, int columns, Tensor g, Tensor b, bool sum_batch=False) -> "
      "Tensor");
  // That for b. The plan has the structure of A^T in the first three places; starts goes with positions;
  // blocks: of rows of B.
  m.def("csr_spgemm_right(Tensor[] plan, bool masked, Tensor a, Tensor g, bool sum_batch=False) -> Tensor");
  // Both in one pass, in the shapes of a and b.
  m.def("csr_spgemm_backward(Tensor[] plan, bool masked, Tensor a, Tensor b, Tensor g) -> (Tensor, Tensor)");
  // y_i = sum_k c_k(i) x_{i + o_k} on a grid of d = len(periodic) dimensions, without indices; the transpose
  // of that. offsets: K d numbers. coefficients ([B,] K, *grid) or ([B,] K, 1, ..., 1), x ([B,] *grid).
  m.def(
      "stencil(Tensor coefficients, Tensor x, int[] offsets, int[] periodic, bool transpose=False, "
      "bool sum_batch=False) -> Tensor");
  // q_k(i) = u_i w_{i + o_k}, ([B,] K, *grid); its sum over the grid if constant, ([B,] K, 1, ..., 1).
  m.def(
      "stencil_products(Tensor u, Tensor w, int[] offsets, int[] periodic, bool constant, "
      "bool sum_batch=False) -> Tensor");
  // x = T^-1 b for the triangular T of kernels/views.h (TriangleView). triangle: the structure of its
  // entries, with blocks (number of blocks + 1, 3), then order, the rows by level, and levels, where each
  // level begins in it (both empty: row by row), last level first if `upper`. On a CUDA device blocks, order
  // and levels are those of ops/triangular.cuh. b (B, n, k) where values are (B, nnz).
  m.def("csr_sptrsv(Tensor[] triangle, bool upper, bool unit, Tensor values, Tensor b) -> Tensor");
  // For x = T^-1 b with T's transpose as the system: (gradient for the values, y = T^-T g). rows: the same
  // entries by rows of the matrix: T's if not `transpose`, else those of T^T; on a CUDA device its blocks are
  // the row of each entry.
  m.def(
      "csr_sptrsv_backward(Tensor[] triangle, bool upper, bool unit, Tensor[] rows, bool transpose, "
      "Tensor values, Tensor g, Tensor x) -> (Tensor, Tensor)");
  // c = alpha a + beta b on the union of two patterns, whose nnz entries codes and starts describe
  // (kernels/views.h); a, b (nnz) or (B, nnz), each with the nnz of its own pattern. On a CUDA device
  // codes (2, nnz) are the places of these entries in a and in b, -1 where there is none; starts is empty.
  m.def(
      "csr_add(Tensor codes, Tensor starts, int nnz, Tensor a, Tensor b, float alpha, float beta) -> Tensor");
  // Its adjoint: gradients for a and b, with na and nb entries. Where one is not needed, its tensor is empty.
  m.def(
      "csr_add_backward(Tensor codes, Tensor starts, int na, int nb, Tensor g, float alpha, float beta, "
      "bool need_a, bool need_b) -> (Tensor, Tensor)");
  // <u, v> of each column, (k) or (B, k), for u and v (n, k) or (B, n, k); sum_batch adds the batch up.
  m.def("column_dots(Tensor u, Tensor v, bool sum_batch=False) -> Tensor");
  // sum_b a_b o v_b, (n, k), for a (k) or (B, k), v (n, k) or (B, n, k)
  m.def("column_combination(Tensor a, Tensor v) -> Tensor");
  // Over the segments of a structure, the entries of a row or (A^T) of a column, for e (nnz, k) or (B, nnz,
  // k): (the largest entry of each, its place), (rows, k), 0 and -1 where there is none; kernels/segment.h.
  m.def("csr_segment_max(Tensor[] S, Tensor e) -> (Tensor, Tensor)");
  // The adjoint of taking the entries at these places: g there, among zeros, (nnz, k).
  m.def("csr_segment_place(Tensor[] S, Tensor at, Tensor g) -> Tensor");
  // The softmax of each segment; y (g - sum y g), its adjoint and its derivative.
  m.def("csr_segment_softmax(Tensor[] S, Tensor e) -> Tensor");
  m.def("csr_segment_softmax_backward(Tensor[] S, Tensor y, Tensor g) -> Tensor");
  // y = W2 max(h, 0) + b2 with h = W1 z + b1 for the rows of z (B, n, k); y = h where w2 is empty. places:
  // (row, col), the two ends of each of the n rows, each below m, to whose h ends[2 row] + ends[2 col + 1] is
  // added, for ends (B, 2m, f); or an empty list. On the CPU alone: elsewhere matrix products are quick.
  m.def(
      "perceptron(Tensor[] places, Tensor z, Tensor ends, Tensor w1, Tensor b1, Tensor w2, Tensor b2) -> "
      "Tensor");
  // For the cotangent g of y those of z, of h (both empty if not needed), w1, b1, w2 and b2.
  m.def(
      "perceptron_backward(Tensor[] places, Tensor z, Tensor ends, Tensor w1, Tensor b1, Tensor w2, Tensor "
      "b2, "
      "Tensor g, bool need_z, bool need_h) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The values (B, nnz) of a factor L, lower triangular with its diagonal the last of each row, that layers
  // W1, b1, ... with SiLU between them predict from the rows of A, values (B, nnz); scale (B, n) is sqrt(diag
  // A). A: (crow, col), L: (crow, col), or on a grid (crow, col, slots) and (crow, col, slots, of_a), as
  // kernels/pointwise.h describes them. The diagonal is exp(h) / omega before columns are multiplied by
  // exp(h) unit. Weights have a dtype of their own. On the CPU alone.
  m.def(
      "pointwise_factor(Tensor[] A, Tensor[] L, Tensor values, Tensor scale, Tensor[] weights, float omega, "
      "float unit) -> Tensor");
  // `iterations` of preconditioned conjugate gradients from number `first` on. A: a structure. M by `kind`: 0
  // none, 1 diag(m), 2 L L^T, 3 (L L^T)^-1 for L with values m, (n, any) for 2; it holds m and its structures
  // (ops/pcg.h). state: (p, carry), and (x, r) with it continue; with none they begin: r is b, x the
  // first iterate, zero if there is none. target: the norm of the residual that each column stops at,
  // (columns) of all members; none: the rounding level (kernels/pcg_column.cuh). Returns x, r, p, the p
  // before, carry (what is known of each column), norms (iterations, and the first one if they begin), and
  // with `store` for the adjoint scalars, all r and all p. B = 1 where b has no batch: carry (B, 6, k),
  // scalars (B, iterations, 3, k), r and p (B, iterations, n, k).
  m.def(
      "csr_pcg(Tensor[] A, Tensor values, int kind, Tensor[] M, Tensor? x, Tensor r, Tensor[] state, "
      "Tensor? target, int first, int iterations, bool store) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // The adjoint of one such call, from the last to the first. forward: all r, all p, the r after the
  // iterations, scalars, norms, and the p before them unless they begin; then rbar is the gradient of b.
  // sums: what the call for the iterations after this one returned but the last, or nothing. needs: 1 where
  // values, m, x0 need a gradient. Returns rbar, pbar, bars (B, 3, k), the gradients of values and m so far
  // and, where they begin, that of x0. Of L: that of its whole pattern, for kind 3 with the opposite sign.
  m.def(
      "csr_pcg_backward(Tensor[] A, Tensor[] transpose, Tensor values, int kind, Tensor[] M, Tensor? x0, "
      "Tensor[] forward, Tensor? gx, Tensor? gnorms, Tensor[] sums, int[] needs) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // Iterations of a recorded program (learnsolve/ops/program.py, csrc/ops/program.cpp): `code` says what it
  // does with the vectors (n, k), k = 1, 2, 4 or 8, those of the state and b, and with the numbers,
  // (registers, k) in float64. forms: of each operand, whose tensors follow one another with its values last,
  // 0 a matrix (A is the first), 1 ... 4 a triangle (lower, upper, both with a unit diagonal), 5 numbers of
  // rows. tape: what the adjoint of a program reads, which begins with iteration number `first`, or nothing.
  // Returns the vectors of the state, (states, n, k), the numbers, the norms, as int64 how many iterations
  // ran, and with `keep` a tape: vectors (any, n, k) and the numbers of every iteration.
  m.def(
      "csr_program(Tensor[] operands, int[] forms, Tensor code, Tensor[] vectors, Tensor numbers, Tensor[] "
      "tape, int first, int iterations, bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // Up to `iterations` of gmres for one column, on the CPU, from its state, vectors and scalars in the order
  // of learnsolve/solvers/core/advance.py. M: diag(diagonal), or none; one iteration may have M times its
  // last vector as one more vector. They end after a norm of the residual at or below `level` or above
  // `limit`, and before an iteration that breaks down or leaves the finite numbers. Returns the vectors (for
  // that one iteration x, r and those that are new), the scalars, the norms, and as int64 how many iterations
  // ran and how many since the last restart: as many vectors are used of the room.
  m.def(
      "csr_gmres(Tensor[] A, Tensor values, Tensor? diagonal, Tensor b, Tensor[] vectors, Tensor[] scalars, "
      "float level, float limit, int iterations, int restart) -> (Tensor, Tensor, Tensor, Tensor)");
}
