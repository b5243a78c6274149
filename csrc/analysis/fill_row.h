// A sparse row in the making: entries are added in any order, those left of the diagonal come out from left
// to right, also those that the elimination fills in on the way.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace learnsolve::analysis {

// Columns 0 <= j < n as bits; a bit of a level says that the word below it is not zero.
class ColumnSet {
 public:
  explicit ColumnSet(int64_t n) {
    do levels_.emplace_back((n = (n + 63) >> 6) + 1, 0);
    while (n > 1);
  }
  bool empty() const { return levels_.back()[0] == 0; }
  void insert(int64_t j) {
    for (auto& words : levels_) {
      uint64_t& word = words[j >> 6];
      const bool known = word != 0;
      word |= uint64_t{1} << (j & 63);
      if (known) return;
      j >>= 6;
    }
  }
  // Takes out the first.
  int64_t take() {
    int64_t j = 0;
    for (size_t l = levels_.size(); l-- > 0;) j = j << 6 | std::countr_zero(levels_[l][j]);
    int64_t at = j;
    for (auto& words : levels_) {
      uint64_t& word = words[at >> 6];
      word &= word - 1;
      if (word) break;
      at >>= 6;
    }
    return j;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// `V` holds what is known of an entry: its value, or its level. Rows come in ascending order.
template <class V>
class FillRow {
 public:
  explicit FillRow(int64_t n) : cells_(n, {V(), -1}), open_(n) {}

  void begin(int64_t i) {
    diagonal_ = i;
    right_.clear();
    while (!open_.empty()) open_.take();
  }
  V& operator[](int64_t j) { return cells_[j].value; }
  bool has(int64_t j) const { return cells_[j].row == diagonal_; }
  void insert(int64_t j, V v) {
    cells_[j] = {v, diagonal_};
    if (j < diagonal_)
      open_.insert(j);
    else if (j > diagonal_)
      right_.push_back(j);
  }
  // The entry in column j, new ones as `v`.
  V& at(int64_t j, V v) {
    if (!has(j)) insert(j, v);
    return cells_[j].value;
  }
  // The next column left of the diagonal, -1 after the last.
  int64_t next() { return open_.empty() ? -1 : open_.take(); }
  // The columns right of the diagonal, in any order; the caller may drop some.
  std::vector<int64_t>& right() { return right_; }

 private:
  struct Cell {
    V value;
    int64_t row;  // that has an entry in this column
  };
  int64_t diagonal_ = 0;
  std::vector<Cell> cells_;
  ColumnSet open_;
  std::vector<int64_t> right_;
};

}  // namespace learnsolve::analysis
