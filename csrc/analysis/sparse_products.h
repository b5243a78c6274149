// Sparse products and sums: blocks of rows, patterns, and the places of products and summands.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "analysis/memory.h"
#include "analysis/pattern.h"
#include "analysis/pieces.h"
#include "kernels/views.h"

namespace learnsolve::analysis {

// Tables of blocks for the kernels of a sparse product (kernels/sparse_products.h): rows of about equal work,
// with rows that repeat one another in blocks of their own.

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

// The pattern of a product C = A B, and the place in C of each of its products.

// The number of products of A B.
template <class I>
int64_t count_products(const I* a_idx, int64_t a_nnz, const I* b_ptr) {
  int64_t products = 0;
  Pulse pulse;
  for (int64_t p = 0; p < a_nnz; ++p) pulse(1), products += b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]];
  return products;
}

// Does row i + 1 repeat row i, with its columns shifted by one?
template <class I>
bool repeats(const I* ptr, const I* idx, int64_t i) {
  const int64_t a = ptr[i], b = ptr[i + 1], length = b - a;
  if (ptr[i + 2] - b != length) return false;
  bool same = true;
  for (int64_t l = 0; l < length; ++l) same &= idx[b + l] == idx[a + l] + 1;
  return same;
}

// Sorts distinct columns: few by insertion, many by setting bits, with a summary of the words that are not
// zero. A comparison sort took three times as long as everything else for 64 columns a row in random order.
class ColumnSorter {
 public:
  explicit ColumnSorter(int64_t cols) : words_(cols / 64 + 1, 0), summary_(cols / 4096 + 1, 0) {}
  template <class I>
  void operator()(I* begin, I* end) {
    if (end - begin <= 12) return insert(begin, end);
    int64_t lo = summary_.size(), hi = -1;
    for (const I* at = begin; at < end; ++at) {
      const int64_t j = *at;
      words_[j >> 6] |= uint64_t{1} << (j & 63);
      summary_[j >> 12] |= uint64_t{1} << ((j >> 6) & 63);
      lo = std::min(lo, j >> 12), hi = std::max(hi, j >> 12);
    }
    for (int64_t s = lo; s <= hi; ++s)
      for (uint64_t& bits = summary_[s]; bits; bits &= bits - 1) {
        const int64_t w = s * 64 + std::countr_zero(bits);
        for (uint64_t& word = words_[w]; word; word &= word - 1)
          *begin++ = static_cast<I>(w * 64 + std::countr_zero(word));
      }
  }

 private:
  template <class I>
  static void insert(I* begin, I* end) {
    for (I* next = begin + 1; next < end; ++next) {
      const I j = *next;
      I* at = next;
      for (; at > begin && at[-1] > j; --at) *at = at[-1];
      *at = j;
    }
  }
  std::vector<uint64_t> words_, summary_;
};

// The number of products of row i.
template <class I>
int64_t products_of_row(const I* a_ptr, int64_t i, const I* a_idx, const I* b_ptr) {
  int64_t products = 0;
  for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p) products += b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]];
  return products;
}

// A and B, and where the passes over their products are cut. A row of A that repeats the one before, shifted,
// with rows of B that do so too (grids: nearly all), is a copy of that row, shifted.
template <class I>
struct FactorPair {
  const I *a_ptr, *a_idx, *b_ptr, *b_idx;
  int64_t rows, cols;
  std::vector<uint8_t> next_repeats;   // of each row of B
  std::vector<int64_t> before, first;  // products before each row; the first row of each piece

  FactorPair(const I* a_ptr_, int64_t rows_, const I* a_idx_, const I* b_ptr_, int64_t inner, const I* b_idx_,
             int64_t cols_)
      : a_ptr(a_ptr_),
        a_idx(a_idx_),
        b_ptr(b_ptr_),
        b_idx(b_idx_),
        rows(rows_),
        cols(cols_),
        next_repeats(inner, 0),
        before(rows + 1, 0) {
    Pulse pulse;
    for (int64_t k = 0; k + 1 < inner; ++k) {
      pulse(b_ptr[k + 1] - b_ptr[k] + 1);
      next_repeats[k] = repeats(b_ptr, b_idx, k);
    }
    for (int64_t i = 0; i < rows; ++i) {
      pulse(a_ptr[i + 1] - a_ptr[i] + 1);
      before[i + 1] = before[i] + products_of_row(a_ptr, i, a_idx, b_ptr);
    }
    // Each piece has an array over the columns.
    constexpr int64_t kPiece = int64_t{1} << 18, kMost = 16;
    first = even_rows(before.data(), rows,
                      std::clamp<int64_t>(before[rows] / std::max(kPiece, 4 * cols), 1, kMost));
  }
  int64_t pieces() const { return static_cast<int64_t>(first.size()) - 1; }
  int64_t products(int64_t i) const { return before[i + 1] - before[i]; }
  // Does row i > 0 repeat the row before?
  bool shifted(int64_t i) const {
    bool same = a_ptr[i + 1] > a_ptr[i] && repeats(a_ptr, a_idx, i - 1);
    for (int64_t p = a_ptr[i - 1]; same && p < a_ptr[i]; ++p) same = next_repeats[a_idx[p]];
    return same;
  }
};

// c_ptr (rows + 1) and c_idx, sorted, of piece k of C = A B on its full symbolic pattern, counted from this
// piece on. False if it may have more than `most` entries.
//
// The columns of a row are collected by an array over all columns that holds the position of each: each
// product is visited once.
template <class I>
bool rows_of_product(const FactorPair<I>& F, int64_t k, I* c_ptr, Growing<I>& c_idx, int64_t most) {
  ColumnSorter sort(F.cols);
  std::vector<I> row(F.cols, I(-1));  // the last row in which a column was met
  Pulse pulse;
  int64_t end = 0;
  for (int64_t i = F.first[k]; i < F.first[k + 1]; ++i) {
    const int64_t begin = end, longest = std::min(F.products(i), F.cols);
    if (begin > most - longest) return false;
    c_idx.reserve(begin + longest + 1);
    I* const idx = c_idx.data();
    if (i > F.first[k] && F.shifted(i)) {
      const int64_t length = i - 1 > F.first[k] ? begin - c_ptr[i - 1] : begin;
      for (int64_t l = 0; l < length; ++l) idx[begin + l] = idx[begin - length + l] + 1;
      pulse(length + 1);
      end = begin + length;
      c_ptr[i + 1] = static_cast<I>(end);
      continue;
    }
    bool sorted = true;
    I previous = -1;
    for (int64_t p = F.a_ptr[i]; p < F.a_ptr[i + 1]; ++p) {
      const int64_t r = F.a_idx[p];
      pulse(F.b_ptr[r + 1] - F.b_ptr[r] + 1);
      for (int64_t q = F.b_ptr[r]; q < F.b_ptr[r + 1]; ++q) {
        const I j = F.b_idx[q];
        const bool fresh = row[j] != i;
        row[j] = static_cast<I>(i);
        idx[end] = j;  // kept only if it is fresh
        sorted &= !fresh | (j > previous);
        previous = fresh ? j : previous;
        end += fresh;
      }
    }
    if (!sorted) sort(idx + begin, idx + end);
    c_ptr[i + 1] = static_cast<I>(end);
  }
  return true;
}

// All rows, in pieces for `threads`.
template <class I>
bool product_pattern(const I* a_ptr, int64_t rows, const I* a_idx, const I* b_ptr, int64_t inner,
                     const I* b_idx, int64_t cols, I* c_ptr, Growing<I>& c_idx, int64_t most,
                     int64_t threads) {
  const FactorPair<I> F(a_ptr, rows, a_idx, b_ptr, inner, b_idx, cols);
  const int64_t count = F.pieces();
  std::vector<Growing<I>> parts(count);
  std::atomic<bool> fits = true;
  c_ptr[0] = 0;
  in_pieces(count, threads, [&](int64_t k) {
    if (!rows_of_product(F, k, c_ptr, parts[k], most)) fits = false;
  });
  if (!fits) return false;
  std::vector<int64_t> entries{0};
  for (int64_t k = 0; k < count; ++k)
    entries.push_back(entries.back() + (F.first[k] < F.first[k + 1] ? int64_t{c_ptr[F.first[k + 1]]} : 0));
  if (entries[count] > most) return false;
  if (count == 1) return c_idx.swap(parts[0]), true;
  c_idx.reserve(entries[count] + 1);
  in_pieces(count, threads, [&](int64_t k) {
    std::copy_n(parts[k].data(), entries[k + 1] - entries[k], c_idx.data() + entries[k]);
    for (int64_t i = F.first[k]; i < F.first[k + 1]; ++i) c_ptr[i + 1] += static_cast<I>(entries[k]);
  });
  return true;
}

// The place of each product in a pattern C that is given, -1 where it has no such entry. repeated[i] = 1:
// those of row i are those of the row before, with C's rows of equal length, all in the next row.
template <class I>
void positions_of_products(const I* a_ptr, int64_t rows, const I* a_idx, const I* b_ptr, int64_t inner,
                           const I* b_idx, int64_t cols, const I* c_ptr, const I* c_idx, int32_t* positions,
                           uint8_t* repeated, int64_t threads) {
  const FactorPair<I> F(a_ptr, rows, a_idx, b_ptr, inner, b_idx, cols);
  in_pieces(F.pieces(), threads, [&](int64_t k) {
    std::vector<int32_t> place(cols, -1);
    Pulse pulse;
    for (int64_t i = F.first[k]; i < F.first[k + 1]; ++i) {
      const int64_t products = F.products(i), length = c_ptr[i + 1] - c_ptr[i];
      int32_t* at = positions + F.before[i];
      repeated[i] = i > F.first[k] && F.shifted(i) && repeats(c_ptr, c_idx, i - 1);
      pulse(length + products + 1);
      if (repeated[i]) {
        for (const int32_t* end = at + products; at < end; ++at)
          *at = at[-products] < 0 ? -1 : at[-products] + static_cast<int32_t>(length);
        continue;
      }
      for (int64_t t = c_ptr[i]; t < c_ptr[i + 1]; ++t) place[c_idx[t]] = static_cast<int32_t>(t);
      for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p)
        for (int64_t q = b_ptr[a_idx[p]]; q < b_ptr[a_idx[p] + 1]; ++q) *at++ = place[b_idx[q]];
      for (int64_t t = c_ptr[i]; t < c_ptr[i + 1]; ++t) place[c_idx[t]] = -1;
    }
  });
}

// starts[e], for each entry e of A^T, the number of the first product of that entry of A.
template <class I>
void product_starts(const I* a_idx, int64_t a_nnz, const I* b_ptr, const I* perm, int32_t* starts) {
  std::vector<int32_t> first(a_nnz);
  int32_t f = 0;
  Pulse pulse;
  for (int64_t p = 0; p < a_nnz; ++p) {
    pulse(2);
    first[p] = f;
    f += static_cast<int32_t>(b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]]);
  }
  for (int64_t e = 0; e < a_nnz; ++e) starts[e] = first[perm[e]];
}

// The union of two CSR patterns, and where the entries of each stand in it (kernels/views.h).
template <class I>
struct Union {
  std::vector<I> ptr, idx, starts;
  std::vector<uint8_t> codes;
};

// Columns are sorted and unique in every row of both. O(rows + nnz of both).
template <class I>
Union<I> merge_patterns(const I* a_ptr, const I* a_idx, const I* b_ptr, const I* b_idx, int64_t rows) {
  Union<I> u;
  u.ptr.reserve(rows + 1);
  u.ptr.push_back(0);
  u.idx.reserve(a_ptr[rows] > b_ptr[rows] ? a_ptr[rows] : b_ptr[rows]);
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(a_ptr[i + 1] - a_ptr[i] + b_ptr[i + 1] - b_ptr[i] + 1);
    I p = a_ptr[i], q = b_ptr[i];
    while (p < a_ptr[i + 1] || q < b_ptr[i + 1]) {
      const int64_t at = static_cast<int64_t>(u.idx.size());
      if (at % kUnionChunk == 0) u.starts.push_back(p), u.starts.push_back(q);
      if (at % 4 == 0) u.codes.push_back(0);
      const bool more_a = p < a_ptr[i + 1], more_b = q < b_ptr[i + 1];
      const bool in_a = more_a && (!more_b || a_idx[p] <= b_idx[q]);
      const bool in_b = more_b && (!more_a || b_idx[q] <= a_idx[p]);
      u.codes.back() |= static_cast<uint8_t>((in_a | in_b << 4) << at % 4);
      u.idx.push_back(in_a ? a_idx[p] : b_idx[q]);
      p += in_a, q += in_b;
    }
    u.ptr.push_back(static_cast<I>(u.idx.size()));
  }
  u.starts.push_back(a_ptr[rows]), u.starts.push_back(b_ptr[rows]);
  return u;
}

// Places in a and in b of the entries that both have. Columns are sorted and unique in every row of both.
struct Common {
  std::vector<int64_t> a, b;
};

template <class I>
Common common_positions(const I* a_ptr, const I* a_idx, const I* b_ptr, const I* b_idx, int64_t rows) {
  Common common;
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(a_ptr[i + 1] - a_ptr[i] + b_ptr[i + 1] - b_ptr[i] + 1);
    for (int64_t p = a_ptr[i], q = b_ptr[i]; p < a_ptr[i + 1] && q < b_ptr[i + 1];) {
      const I in_a = a_idx[p], in_b = b_idx[q];
      if (in_a == in_b) common.a.push_back(p), common.b.push_back(q);
      p += in_a <= in_b, q += in_b <= in_a;
    }
  }
  return common;
}

}  // namespace learnsolve::analysis
