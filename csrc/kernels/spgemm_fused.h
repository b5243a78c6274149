// C = A B before anything is planned: columns and values of a row of C in one pass over its products
// (Gustavson). Source: Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted
// Transposition", ACM TOMS 4 (1978).
#pragma once

#include "kernels/csr_view.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Sorts columns [begin, end) of C together with their values, by insertion.
template <class T, class I>
LS_INLINE void insert_columns(int64_t begin, int64_t end, I* LS_RESTRICT c_idx, T* LS_RESTRICT c) {
  for (int64_t next = begin + 1; next < end; ++next) {
    const I j = c_idx[next];
    const T value = c[next];
    int64_t t = next;
    for (; t > begin && c_idx[t - 1] > j; --t) c_idx[t] = c_idx[t - 1], c[t] = c[t - 1];
    c_idx[t] = j, c[t] = value;
  }
}

// Rows from i on, entries from `end` on, until one that is too long to be sorted here: returns its number, or
// r1 when all rows are done. place[j], for the columns of that row, is where j is; before, it must be less
// than `end` for every column. C must have room for an entry per product.
//
// Each sum has the order that it has in product_rows (kernels/spgemm.h), and so the same bits.
template <class T, class I>
int64_t spgemm_fused(const ProductView<I>& P, int64_t i, int64_t r1, int64_t end, const T* LS_RESTRICT a,
                     const T* LS_RESTRICT b, I* LS_RESTRICT place, I* LS_RESTRICT c_ptr, I* LS_RESTRICT c_idx,
                     T* LS_RESTRICT c) {
  constexpr int64_t kInserted = 16;
  for (; i < r1; ++i) {
    const int64_t begin = end;
    bool sorted = true;
    I last = -1;
    for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
      const int64_t k = P.a_idx[p], q1 = P.b_ptr[k + 1];
      const T ap = a[p];
      for (int64_t q = P.b_ptr[k]; q < q1; ++q) {
        const I j = P.b_idx[q];
        const bool fresh = place[j] < begin;
        const I t = fresh ? static_cast<I>(end) : place[j];
        place[j] = t;
        c_idx[end] = j;  // kept only if it is fresh
        sorted &= !fresh | (j > last);
        last = fresh ? j : last;
        end += fresh;
        const T sum = c[t];
        c[t] = (fresh ? T(0) : sum) + ap * b[q];
      }
    }
    c_ptr[i + 1] = static_cast<I>(end);
    if (sorted) continue;
    if (end - begin > kInserted) return i;
    insert_columns(begin, end, c_idx, c);
  }
  return r1;
}

}  // namespace learnsolve::LEARNSOLVE_ISA
