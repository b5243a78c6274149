// What kernels see of structures, plans, stencils, perceptrons and the operands of loops: raw pointers and
// sizes, no ownership. Nothing here includes torch.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define LS_RESTRICT __restrict__
#define LS_INLINE inline __attribute__((always_inline))
#define LS_LAMBDA __attribute__((always_inline))
#define LS_FUNCTION __attribute__((noinline))
#else
#define LS_RESTRICT
#define LS_INLINE inline
#define LS_LAMBDA
#define LS_FUNCTION
#endif

// Kernels are compiled once per instruction set. Each copy lives in a namespace of its own, so that
// the linker can never replace a baseline function by its AVX-512 twin.
#ifndef LEARNSOLVE_ISA
#define LEARNSOLVE_ISA baseline
#endif

#ifdef __CUDACC__
#define LS_DEVICE __device__ __forceinline__
// What a kernel does once, and whose registers would leave its loop with too few.
#define LS_DEVICE_APART __device__ __noinline__
#define LS_BOTH __host__ __device__ __forceinline__
#define LS_UNROLL _Pragma("unroll")
#define LS_UNROLL_NONE _Pragma("unroll 1")
#else
#define LS_DEVICE inline
#define LS_DEVICE_APART inline
#define LS_BOTH inline
#define LS_UNROLL
#define LS_UNROLL_NONE
#endif

namespace learnsolve {

// Row i holds the entries ptr[i] <= p < ptr[i + 1]: column idx[p], value values[perm ? perm[p] : p].
// With `perm` the same values are read in the order of another structure: the transpose of a matrix
// is its column structure, and the values stay where they are.
template <class T, class I>
struct CsrView {
  const I* ptr;
  const I* idx;
  const I* perm;
  const T* values;
};

// Consecutive rows that are worked on together: block b holds the rows table[2b] <= i < table[2b + 2].
// table[2b + 1] = L > 0 says that the block is uniform: every row has L entries, the columns of row
// i + 1 are those of row i plus one, and so is perm plus L where there is one. Then the kernel needs
// no index but those of the first row. Grid problems consist of such blocks nearly everywhere.
template <class I>
struct RowBlocks {
  const I* table;
};

// The patterns of C = A B, and its plan if there is one (sparse_products.h): positions[f] is the place in C
// of product f, -1 for some if `masked`; starts[e], for the structure of A^T, the number of the first product
// of entry e.
template <class I>
struct ProductView {
  const I* a_ptr;
  const I* a_idx;
  const I* perm;
  const I* b_ptr;
  const I* b_idx;
  const I* c_ptr;
  const I* c_idx;
  const int32_t* positions;
  const int32_t* starts;
  bool masked;
};

// A triangular system: rows hold the entries that are read and no others, sorted; the diagonal entry is the
// last (lower) or the first (upper) of each, and absent if `unit`. Row t of the table of blocks is (first
// row, length, stride): if length > 0, every row up to the next block has this number of entries, columns
// advance by one from row to row and places in the values by stride. The last line is (rows, 0, 0).
template <class T, class I>
struct TriangleView {
  CsrView<T, I> A;
  const I* blocks;
  int64_t n_blocks;
  int64_t rows;
  bool upper;
  bool unit;
};

// Operands of T x = b where rows of T are divided by their diagonal entries. With p: T x = u and q = d u for
// u = b + c p + (T - 1) p, where c stands in the places of the diagonal.
template <class T>
struct ScaledSweep {
  const T* b;
  T* x;
  const T* p = nullptr;
  const T* d = nullptr;
  T* q = nullptr;
};

// How the union of two patterns is written down, for the kernels that add and the analysis that plans.
//
// The entries of C = A + B stand in the order of CSR, and those of A and of B are found among them in their
// own order. So one bit per entry and operand suffices: codes[q] describes the entries 4q to 4q + 3 of C, bit
// l set where A has entry 4q + l, bit 4 + l where B has. Entries are worked on in chunks, and starts[2c],
// starts[2c + 1] are the first entries of A and of B in chunk c: chunks + 1 lines, the last (nnz of A, nnz of
// B). Two bits instead of two positions: the plan is read at no cost beside the values.

constexpr int64_t kUnionChunk = 8192;  // a multiple of 4

constexpr int64_t union_chunks(int64_t nnz) { return (nnz + kUnionChunk - 1) / kUnionChunk; }

// The plan of an incomplete factorization (analysis/factors.h makes it). Step t computes the entry order[t]
// of the factors from A's value source[t] and the products of the entries pairs[2 u], pairs[2 u + 1] for
// ptr[t] <= u < ptr[t + 1], all computed before. pivot[t] is the entry's own place if it is a pivot, that of
// the pivot it is divided by below the diagonal, -1 above that of U.
template <class I>
struct Elimination {
  int64_t steps;
  const I* order;
  const I* source;
  const I* pivot;
  const I* ptr;
  const I* pairs;
  bool cholesky;
};

// The rows and the columns of L, n x n, on its complete fill: what l_ik and l_jk, i > j, have in common is an
// entry (i, j). So column k, from row j on, has its entries where column j has some, and row j has all
// columns of a supernode before j, or none. U, if not `cholesky`, has the transposed pattern, so that L's
// columns are U's rows.
template <class I>
struct CompleteFill {
  int64_t n;
  const I* row_ptr;  // rows of L, the diagonal last: columns `col`
  const I* col;
  const I* at;   // place of each of these entries among those by columns
  const I* ptr;  // columns of L, the diagonal first: rows `row`
  const I* row;
  const I* next;  // of each column: the first behind its supernode, columns with the same rows below them
  bool cholesky;
};

// Operands of a Richardson sweep and of its adjoint (kernels/sweeps.h). Vectors are n x k, row-major.

// next = x + s o (b - A x) + momentum (x - old),  squares: of the residual b - A x, blocks x k.
template <class T>
struct Sweep {
  const T* x;
  const T* b;
  const T* s;
  const T* old;  // or null: no momentum
  T momentum;
  T* next;
  T* squares;
};

// With lambda the cotangent of next, and later that of the iterate after it:
// rho = s o lambda + c r,  g = -rho,  bbar += rho,  sbar += <r, lambda> of each row,
// later = (1 + momentum) lambda + factor later,  sum = <lambda, x - old>, blocks x k. For c and sbar g is A x
// on entry.
template <class T>
struct SweepAdjoint {
  const T* x;
  const T* b;
  const T* s;
  const T* lambda;
  const T* c;  // k cotangents of the norms over the norms, or null
  T* g;
  T* bbar;  // or null
  T* sbar;  // or null
  T momentum;
  T factor;
  T* later;      // or null: no momentum
  const T* old;  // or null: no sum
  T* sum;
};

// Operands of the passes over vectors that preconditioned conjugate gradients and their adjoint consist of
// (kernels/pcg.h). All vectors are n x k, row-major; coefficients have one entry a column; sums are blocks x
// k, one a block and column: added up in order by the caller, they do not depend on how blocks are
// distributed.

// out = r - alpha q,  squares = <out, out>,  rho = <out, d o out> where there is a d.
template <class T>
struct PcgResidual {
  const T* alpha;
  const T* r;
  const T* q;
  const T* d;  // or null
  T* out;
  T* squares;
  T* rho;
};

// x += alpha p,  next = z + beta p, or d o z + beta p. A column with keep = 0 has stopped: next = 0.
template <class T>
struct PcgUpdate {
  const T* alpha;
  const T* beta;
  const T* keep;
  const T* z;
  const T* d;  // or null
  const T* p;
  T* x;  // or null
  T* next;
};

// out = a u + b w
template <class T>
struct PcgCombine {
  const T* a;
  const T* u;
  const T* b;
  const T* w;
  T* out;
};

// out = sum_t a_t o v_t of up to kTerms vectors, and the square of each column of out if it is asked for. The
// coefficients a_t of the columns are repeated up to kPeriod numbers each.
inline constexpr int64_t kTerms = 6;
template <class T>
inline constexpr int64_t kPeriod = 64 / sizeof(T);
template <class T>
struct Combination {
  T* out;
  int64_t terms;
  const T* v[kTerms];
  const T* a;
  T* square;  // or null
};

// sum = <u, w>
template <class T>
struct PcgDot {
  const T* u;
  const T* w;
  T* sum;
};

// rbar += M^T zbar + rhobar z' + c r',  zbar = pbar + rhobar r',  z' = M r',  r' = next,
// dbar += zbar o r' summed over the columns, for M = diag(d),
// sum = <xbar, p> - <rbar, q>,  q = A p = (r - r') / alpha.
// This q is as accurate as the product: r and r' are orthogonal (in the inner product of M), so nothing
// cancels.
template <class T>
struct PcgAdjointResidual {
  const T* rhobar;
  const T* c;
  const T* inverse_alpha;
  const T* pbar;
  const T* v;  // M^T zbar + rhobar z' for another M than the identity or a diagonal, or null
  const T* d;  // or null
  const T* next;
  const T* r;     // or null: no sum
  const T* xbar;  // or null: zero
  const T* p;
  T* rbar;
  T* dbar;  // or null
  T* sum;
};

// pbar = beta pbar + alpha xbar + pibar q + A^T qbar,  sum = <pbar, before>
template <class T>
struct PcgAdjointDirection {
  const T* beta;
  const T* alpha;
  const T* pibar_over_alpha;
  const T* qbar;
  const T* xbar;  // or null: zero
  const T* r;
  const T* next;
  const T* before;  // or null: no sum
  T* pbar;
  T* sum;
};

// What preconditioned conjugate gradients store for each column, and their adjoint: the same on every device.
enum class Preconditioning : int64_t { none, diagonal, product, triangular };

// Why a column has stopped (pcg_column.cuh has the rules). It keeps x and r, and adds nothing to any gradient
// from there on.
enum class Stop : int { running, rounding, curvature, preconditioner, non_finite, diverged };

// Rows of `carry`, one entry a column each: rho, the norm of r, where it stops (low, high), and why and when.
enum Carry { kRho, kNorm, kLow, kHigh, kStop, kWhen, kCarry };
// Rows of `work`: alpha, beta, 1 if p goes on, 1 if p or r is not finite and becomes zero, ||b||.
enum Work { kCurrentAlpha, kCurrentBeta, kContinues, kClearP, kClearR, kRhsNorm, kWork };
// Rows of `scalars`, for each iteration. alpha = 0: the column stood still.
enum Scalar { kScalarRho, kAlpha, kBeta, kScalars };

// Rows of `bars`: cotangent of rho, <pbar, p> with the p before, and the cotangents of the norms of a column
// that stands still, which all belong to the norm it stopped with.
enum Bar { kRhobar, kBetabar, kHeld, kBars };

// Iterations whose contributions to the gradient on a pattern are added at once. For N = 32768 tridiagonal 2
// to 16 are within 5 % on a CPU, 32 take 1.7 times as long: the vectors that wait no longer fit the cache.
constexpr int64_t kPairs = 8;

// Points i = (i0, i1, i2), the last axis fastest; a grid of fewer dimensions has ones in front. Offset k is
// offsets[3k .. 3k + 2]; |offset| <= size along an axis with zeros outside, < size along a periodic one.
//
// A line is a row of points along the last axis. There it is cut into pieces, bounds[p] <= i2 < bounds[p +
// 1]: from one piece to the next an offset goes over the border of the grid, within a piece none does. So
// within a piece every neighbor is at a fixed distance or nowhere, for offsets of any size and either
// boundary.
//
// A block is what one thread works on at once: `lines` lines or, of long lines, a segment of one line.
struct StencilView {
  int64_t grid[3];
  bool periodic[3];
  const int64_t* offsets;
  int64_t count;
  const int64_t* bounds;
  int64_t pieces;
  int64_t lines;     // of a block
  int64_t segment;   // points of a line that a block holds, at most
  int64_t segments;  // of a line; lines = 1 if there are more than one

  int64_t points() const { return grid[0] * grid[1] * grid[2]; }
  int64_t blocks() const { return (grid[0] * grid[1] + lines - 1) / lines * segments; }
};

// What c_k(i) is: a number for each offset; a grid of numbers for each offset, of which point i takes its
// own; or that of its neighbor i + o_k.
enum class Coefficients { constant, variable, of_neighbor };

// Numbers in a row are filled up with zeros to a multiple of the longest vector.
template <class T>
inline constexpr int64_t kRowLanes = 32 / sizeof(T);
template <class T>
constexpr int64_t filled_up(int64_t n) {
  return (n + kRowLanes<T> - 1) / kRowLanes<T> * kRowLanes<T>;
}

// k inputs, f hidden numbers, o outputs; o = f and no w2 for a single layer. A matrix in `from_...` has a row
// for each number that it is applied to, and those rows are filled up (kp, fp, op).
template <class T>
struct PerceptronView {
  int64_t k, f, o, kp, fp, op;
  const T* from_input;          // W1^T (k, fp)
  const T* bias;                // b1 (fp)
  const T* from_hidden;         // W2^T (f, op)
  const T* out_bias;            // b2 (op)
  const T* from_output;         // W2 (o, fp)
  const T* from_preactivation;  // W1 (f, kp)
  bool layers_are_two;
};

// Rows z (n, k); row p also gets ends[2 row_p] + ends[2 col_p + 1], (f) each, unless ends is null.
template <class T, class I>
struct PerceptronRows {
  const T* z;
  const T* ends;
  const I* row;
  const I* col;
};

// W x + b for k numbers x: W^T (k, width), its rows filled up, and b (width).
template <class T>
struct LayerView {
  const T* from;
  const T* bias;
  int64_t k, width;
};

// A factor L predicted from the rows of A by `layers` layers (kernels/pointwise.h), which compute with T and
// give lower + 2 numbers a row; values are V. a_slot, l_slot: on which of the diagonals with entries each
// entry is, of A, whose main one is number `main`, and of L, whose k-th one is number of_a[k] of A or, if A
// lacks it, the number of A's. They are null where the features are the largest entries of a row.
template <class T, class V, class I>
struct PointwiseView {
  const LayerView<T>* layer;
  int64_t layers, widest, lower, main;
  T omega, unit;
  const I *a_ptr, *a_idx, *a_slot, *l_ptr, *l_idx, *l_slot, *of_a;
  const V *values, *scale, *inverse;  // inverse: 1 / scale
  T* column;                          // (n), what the columns of L are multiplied by
  V* out;
};

template <class V>
struct IntegerOf;
template <>
struct IntegerOf<float> {
  using type = int32_t;
};
template <>
struct IntegerOf<double> {
  using type = int64_t;
};
// For the `most` largest of some numbers: largest_room numbers, as many places and keys, and most + 1 of each
// that is sorted.
template <class V>
struct LargestRoom {
  using Key = typename IntegerOf<V>::type;
  V *v, *sorted;
  int32_t *place, *sorted_place;
  Key* key;
};
template <class V>
constexpr int64_t largest_room(int64_t most) {
  return filled_up<V>(2 * most + 32);
}
// Memory of a thread: kTileRows (features + 1 + 2 widest) numbers, kTileRows lower places.
template <class T, class V>
struct PointwiseRoom {
  T* numbers;
  int32_t* place;
  LargestRoom<V> largest;
};

}  // namespace learnsolve
