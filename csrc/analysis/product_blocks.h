// Tables of blocks for the kernels of a sparse product (kernels/spgemm.h): rows of about equal work, with
// rows that repeat one another in blocks of their own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// Does row i + 1 of A repeat row i for the kernels (uniform_product_rows)? f: the first product of row i.
template <class I>
bool rows_repeat(const I* a_ptr, const I* a_idx, const I* b_ptr, const I* c_ptr, const int32_t* positions,
                 int64_t i, int64_t f) {
  const int64_t length = a_ptr[i + 1] - a_ptr[i], c_length = c_ptr[i + 1] - c_ptr[i];
  if (length == 0 || a_ptr[i + 2] - a_ptr[i + 1] != length || c_ptr[i + 2] - c_ptr[i + 1] != c_length)
    return false;
  int64_t products = 0;
  for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p) {
    const int64_t k = a_idx[p], next = a_idx[p + length], m = b_ptr[k + 1] - b_ptr[k];
    if (b_ptr[next + 1] - b_ptr[next] != m || b_ptr[next] - b_ptr[k] != m) return false;
    products += m;
  }
  bool same = true;
  for (const int32_t *t = positions + f, *end = t + products; t < end; ++t)
    same &= t[products] == (*t < 0 ? -1 : *t + c_length);
  return same;
}

// Does column k + 1 of A, with row k + 1 of B, repeat column k (uniform_columns)? And does k + 2, by the same
// strides?
template <class I>
bool columns_repeat(const I* t_ptr, const I* perm, const I* b_ptr, const int32_t* positions,
                    const int32_t* starts, int64_t k) {
  const int64_t length = t_ptr[k + 1] - t_ptr[k], m = b_ptr[k + 1] - b_ptr[k];
  if (length == 0 || t_ptr[k + 2] - t_ptr[k + 1] != length || b_ptr[k + 2] - b_ptr[k + 1] != m) return false;
  if (t_ptr[k + 3] - t_ptr[k + 2] != length || b_ptr[k + 3] - b_ptr[k + 2] != m) return false;
  for (int64_t e = t_ptr[k]; e < t_ptr[k + 1]; ++e) {
    if (perm[e + 2 * length] - perm[e + length] != perm[e + length] - perm[e]) return false;
    const int32_t *x = positions + starts[e], *y = positions + starts[e + length],
                  *z = positions + starts[e + 2 * length];
    for (int64_t j = 0; j < m; ++j)
      if (x[j] < 0 ? y[j] >= 0 || z[j] >= 0 : y[j] < 0 || z[j] < 0 || z[j] - y[j] != y[j] - x[j])
        return false;
  }
  return true;
}

// Gathers rows into blocks of about `target` products and entries: (first row, number of its first product,
// 1 if the block is uniform), a last line (rows, number of products, 0).
class BlockTable {
 public:
  explicit BlockTable(int64_t target) : target_(target) {}
  // Rows first .. last - 1, each of this many products and this weight.
  void add(int64_t first, int64_t last, int64_t products, int64_t weight, bool uniform) {
    if (uniform) weight_ = 0;  // a block of its own
    for (int64_t i = first; i < last; ++i) {
      if (weight_ == 0 || weight_ + weight > target_) {
        table_.insert(table_.end(), {i, products_, uniform ? 1 : 0});
        weight_ = 0;
      }
      weight_ += weight;
      products_ += products;
    }
    if (uniform) weight_ = 0;
  }
  std::vector<int64_t> end(int64_t rows) {
    table_.insert(table_.end(), {rows, products_, 0});
    return std::move(table_);
  }

 private:
  int64_t target_, weight_ = 0, products_ = 0;
  std::vector<int64_t> table_;
};

// The minimum number of rows of a uniform block, and the maximum number of entries of one of its rows
// (kUniformLength of the kernels).
inline constexpr int64_t kShortestRun = 16, kLongestRow = 128;

// For the passes over the rows of A. `repeated` as positions_of_products gives it; null without positions:
// no block is uniform.
template <class I>
std::vector<int64_t> row_product_blocks(const I* a_ptr, int64_t rows, const I* a_idx, const I* b_ptr,
                                        const I* c_ptr, const uint8_t* repeated, int64_t target) {
  BlockTable table(target);
  Pulse pulse;
  for (int64_t i = 0, last; i < rows; i = last) {
    int64_t products = 0;
    for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p) products += b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]];
    const int64_t weight = products + a_ptr[i + 1] - a_ptr[i] + 1;
    last = i + 1;
    if (repeated && c_ptr[i + 1] - c_ptr[i] <= kLongestRow)
      while (last < rows && repeated[last]) pulse(weight), ++last;
    pulse(weight);
    table.add(i, last, products, weight, last - i >= kShortestRun);
  }
  return table.end(rows);
}

// For the passes over the columns of A and rows of B.
template <class I>
std::vector<int64_t> column_product_blocks(const I* t_ptr, int64_t columns, const I* perm, const I* b_ptr,
                                           const int32_t* positions, const int32_t* starts, int64_t target) {
  BlockTable table(target);
  Pulse pulse;
  for (int64_t k = 0, last; k < columns; k = last) {
    const int64_t length = t_ptr[k + 1] - t_ptr[k], m = b_ptr[k + 1] - b_ptr[k];
    const int64_t weight = length * m + length + m + 1;
    pulse(weight);
    last = k + 1;
    if (positions && m <= kLongestRow) {
      while (last + 1 < columns && columns_repeat(t_ptr, perm, b_ptr, positions, starts, last - 1))
        pulse(weight), ++last;
      if (last > k + 1) ++last;
    }
    table.add(k, last, length * m, weight, last - k >= kShortestRun);
  }
  return table.end(columns);
}

}  // namespace learnsolve::analysis
