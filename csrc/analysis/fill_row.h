// A sparse row in the making: entries are added in any order, those left of the diagonal come out from left
// to right, also those that the elimination fills in on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace learnsolve::analysis {

// `V` holds what is known of an entry: its value, or its level.
template <class V>
class FillRow {
 public:
  explicit FillRow(int64_t n) : value_(n), there_(n, 0) {}

  void begin(int64_t i) { diagonal_ = i; }
  V& operator[](int64_t j) { return value_[j]; }
  bool has(int64_t j) const { return there_[j]; }
  void insert(int64_t j, V v) {
    value_[j] = v;
    there_[j] = 1;
    met_.push_back(j);
    if (j < diagonal_) {
      open_.push_back(j);
      std::push_heap(open_.begin(), open_.end(), std::greater<>());
    } else if (j > diagonal_) {
      right_.push_back(j);
    }
  }
  // The next column left of the diagonal, -1 after the last.
  int64_t next() {
    if (open_.empty()) return -1;
    std::pop_heap(open_.begin(), open_.end(), std::greater<>());
    const int64_t j = open_.back();
    open_.pop_back();
    return j;
  }
  // The columns right of the diagonal, in any order; the caller may drop some.
  std::vector<int64_t>& right() { return right_; }
  void clear() {
    for (const int64_t j : met_) there_[j] = 0;
    met_.clear(), open_.clear(), right_.clear();
  }

 private:
  int64_t diagonal_ = 0;
  std::vector<V> value_;
  std::vector<uint8_t> there_;
  std::vector<int64_t> met_, open_, right_;
};

}  // namespace learnsolve::analysis
