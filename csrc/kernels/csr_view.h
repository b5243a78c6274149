// What a kernel sees of a matrix: raw pointers, no ownership. Nothing here includes torch.
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

// The patterns of C = A B, and its plan if there is one (spgemm.h): positions[f] is the place in C of product
// f, -1 for some if `masked`; starts[e], for the structure of A^T, the number of the first product of entry
// e.
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

}  // namespace learnsolve
