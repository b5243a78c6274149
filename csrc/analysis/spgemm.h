// The pattern of a product C = A B and the place in C of each of its products, in one pass.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "analysis/growing.h"
#include "analysis/pattern.h"
#include "analysis/pieces.h"

namespace learnsolve::analysis {

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

// c_ptr (rows + 1) and c_idx, sorted, of rows first <= i < last of C = A B on its full symbolic pattern;
// positions (a place for each of their products) if it is not null. Counted from these rows on. False if they
// may have more than `most` entries.
//
// The columns of a row are collected by an array over all columns that holds the position of each: each
// product is visited once. A row of A that repeats the one before, shifted, with rows of B that do so too
// (grids: nearly all) makes a shifted copy of a row of C: repeated[i] is then 1, else 0.
template <class I>
bool rows_of_product(const I* a_ptr, int64_t first, int64_t last, const I* a_idx, const I* b_ptr,
                     const I* b_idx, int64_t cols, const uint8_t* next_repeats, I* c_ptr, Growing<I>& c_idx,
                     int64_t most, int32_t* positions, uint8_t* repeated) {
  ColumnSorter sort(cols);
  std::vector<I> place(cols, I(-1));  // of a column; not less than c_ptr[i]: it has been met in row i
  std::vector<int32_t> moved;         // by sorting a row, from a place in it
  Pulse pulse;
  int64_t end = 0;
  for (int64_t i = first; i < last; ++i) {
    const int64_t begin = end, p0 = a_ptr[i], p1 = a_ptr[i + 1];
    int64_t products = 0;
    for (int64_t p = p0; p < p1; ++p) products += b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]];
    const int64_t longest = std::min(products, cols);
    if (begin > most - longest) return false;
    c_idx.reserve(begin + longest + 1);
    I* const idx = c_idx.data();

    bool shifted = i > first && p1 > p0 && repeats(a_ptr, a_idx, i - 1);
    for (int64_t p = a_ptr[i > first ? i - 1 : i]; shifted && p < p0; ++p) shifted = next_repeats[a_idx[p]];
    repeated[i] = shifted;
    if (shifted) {
      const int64_t length = i - 1 > first ? begin - c_ptr[i - 1] : begin;
      for (int64_t l = 0; l < length; ++l) idx[begin + l] = idx[begin - length + l] + 1;
      pulse(products + 1);
      if (positions) {
        for (int64_t f = 0; f < products; ++f)
          positions[f] = positions[f - products] + static_cast<int32_t>(length);
        positions += products;
      }
      end = begin + length;
      c_ptr[i + 1] = static_cast<I>(end);
      continue;
    }

    bool sorted = true;
    I previous = -1;
    for (int64_t p = p0, f = 0; p < p1; ++p) {
      const int64_t k = a_idx[p];
      pulse(b_ptr[k + 1] - b_ptr[k] + 1);
      for (int64_t q = b_ptr[k]; q < b_ptr[k + 1]; ++q, ++f) {
        const I j = b_idx[q];
        const bool fresh = place[j] < begin;
        const I at = fresh ? static_cast<I>(end) : place[j];
        place[j] = at;
        idx[end] = j;  // kept only if it is fresh
        sorted &= !fresh | (j > previous);
        previous = fresh ? j : previous;
        end += fresh;
        if (positions) positions[f] = static_cast<int32_t>(at);
      }
    }
    if (!sorted) {
      sort(idx + begin, idx + end);
      if (static_cast<int64_t>(moved.size()) < end - begin) moved.resize(end - begin);
      for (int64_t t = begin; t < end; ++t) moved[place[idx[t]] - begin] = static_cast<int32_t>(t);
      for (int64_t f = 0; positions && f < products; ++f) positions[f] = moved[positions[f] - begin];
    }
    if (positions) positions += products;
    c_ptr[i + 1] = static_cast<I>(end);
  }
  return true;
}

// All rows, in pieces for `threads`.
template <class I>
bool product_pattern(const I* a_ptr, int64_t rows, const I* a_idx, const I* b_ptr, int64_t inner,
                     const I* b_idx, int64_t cols, I* c_ptr, Growing<I>& c_idx, int64_t most,
                     int32_t* positions, uint8_t* repeated, int64_t threads) {
  std::vector<uint8_t> next_repeats(inner, 0);
  Pulse pulse;
  for (int64_t k = 0; k + 1 < inner; ++k) {
    pulse(b_ptr[k + 1] - b_ptr[k] + 1);
    next_repeats[k] = repeats(b_ptr, b_idx, k);
  }
  std::vector<int64_t> before(rows + 1, 0);  // products before each row
  for (int64_t i = 0; i < rows; ++i) {
    before[i + 1] = before[i];
    for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p) before[i + 1] += b_ptr[a_idx[p] + 1] - b_ptr[a_idx[p]];
  }
  // Each piece has an array over the columns.
  constexpr int64_t kPiece = int64_t{1} << 18, kMost = 16;
  const int64_t count = std::clamp<int64_t>(before[rows] / std::max(kPiece, 4 * cols), 1, kMost);
  const std::vector<int64_t> first = even_rows(before.data(), rows, count);
  std::vector<Growing<I>> parts(count);
  std::atomic<bool> fits = true;
  c_ptr[0] = 0;
  in_pieces(count, threads, [&](int64_t k) {
    if (positions) parts[k].reserve((before[first[k + 1]] - before[first[k]]) + 1);
    if (!rows_of_product(a_ptr, first[k], first[k + 1], a_idx, b_ptr, b_idx, cols, next_repeats.data(), c_ptr,
                         parts[k], most, positions ? positions + before[first[k]] : nullptr, repeated))
      fits = false;
  });
  if (!fits) return false;
  std::vector<int64_t> entries{0};
  for (int64_t k = 0; k < count; ++k)
    entries.push_back(entries.back() + (first[k] < first[k + 1] ? int64_t{c_ptr[first[k + 1]]} : 0));
  if (entries[count] > most) return false;
  if (count == 1) return c_idx.swap(parts[0]), true;
  c_idx.reserve(entries[count] + 1);
  in_pieces(count, threads, [&](int64_t k) {
    std::copy_n(parts[k].data(), entries[k + 1] - entries[k], c_idx.data() + entries[k]);
    if (k == 0) return;
    for (int64_t i = first[k]; i < first[k + 1]; ++i) c_ptr[i + 1] += static_cast<I>(entries[k]);
    if (positions)
      for (int64_t f = before[first[k]]; f < before[first[k + 1]]; ++f)
        positions[f] += static_cast<int32_t>(entries[k]);
  });
  return true;
}

// The place of each product in a pattern C that is given, -1 where it has no such entry.
template <class I>
void masked_positions(const I* a_ptr, int64_t rows, const I* a_idx, const I* b_ptr, const I* b_idx,
                      int64_t cols, const I* c_ptr, const I* c_idx, int32_t* positions) {
  std::vector<int32_t> place(cols, -1);
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(c_ptr[i + 1] - c_ptr[i] + 1);
    for (int64_t t = c_ptr[i]; t < c_ptr[i + 1]; ++t) place[c_idx[t]] = static_cast<int32_t>(t);
    for (int64_t p = a_ptr[i]; p < a_ptr[i + 1]; ++p) {
      const int64_t k = a_idx[p];
      pulse(b_ptr[k + 1] - b_ptr[k]);
      for (int64_t q = b_ptr[k]; q < b_ptr[k + 1]; ++q) *positions++ = place[b_idx[q]];
    }
    for (int64_t t = c_ptr[i]; t < c_ptr[i + 1]; ++t) place[c_idx[t]] = -1;
  }
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

}  // namespace learnsolve::analysis
