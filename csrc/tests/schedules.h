// Rows of many lengths, how the merge path distributes them, and arrays as a device has them.
#pragma once

#include "kernels/merge_path.cuh"
#include "tests/matrices.h"

namespace learnsolve::test {

constexpr int kWidth = 20;        // items of a stretch: small matrices have many
constexpr int kStretchLanes = 4;  // of a block

// As torch allocates them: aligned to 16 bytes, NaN before a kernel writes. The end of the allocation is the
// end of the array.
template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t n = 0) : n_(n), data_(new (std::align_val_t(16)) T[n]) {
    for (int64_t i = 0; i < n; ++i) data_[i] = std::numeric_limits<T>::quiet_NaN();
  }
  Aligned(const Aligned& other) : Aligned(other.n_) { std::copy_n(other.data_, n_, data_); }
  Aligned& operator=(const Aligned& other) {
    if (this != &other) {
      this->~Aligned();
      new (this) Aligned(other);
    }
    return *this;
  }
  ~Aligned() { ::operator delete[](data_, std::align_val_t(16)); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return n_; }

 private:
  int64_t n_;
  T* data_;
};

template <class T>
Aligned<T> aligned(const Array<T>& a) {
  Aligned<T> out(a.size());
  std::copy_n(a.data(), a.size(), out.data());
  return out;
}
template <class T>
Array<T> unaligned(const Aligned<T>& a) {
  Array<T> out(a.size());
  std::copy_n(a.data(), a.size(), out.data());
  return out;
}
template <class T>
Aligned<T> random_values(Random& random, int64_t n) {
  return aligned(uniform<T>(random, n));
}
template <class T>
bool same_bits(const Aligned<T>& a, const Aligned<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// What learnsolve/matrix/device.py makes.
template <class I>
Aligned<I> schedule_table(const I* ptr, int64_t rows, int64_t width) {
  const int64_t items = rows + ptr[rows], stretches = (items + width - 1) / width;
  Aligned<I> table(2 * (stretches + 1));
  for (int64_t t = 0; t <= stretches; ++t) {
    const int64_t at = std::min(t * width, items), row = cuda::rows_ended(ptr, 0, rows, at);
    table[2 * t] = static_cast<I>(row), table[2 * t + 1] = static_cast<I>(at - row);
  }
  return table;
}

// Row lengths for which equal numbers of rows are unequal work.
inline std::vector<std::vector<int64_t>> row_lengths(Random& random) {
  std::vector<std::vector<int64_t>> all{{}, {0}, {1}, {500}, std::vector<int64_t>(100, 0)};
  all.push_back(std::vector<int64_t>(60, 3));
  for (const int64_t at : {0, 30, 59}) {  // one giant row: first, in the middle, last
    all.push_back(std::vector<int64_t>(60, 0)), all.back()[at] = 700;
    all.push_back(std::vector<int64_t>(60, 2)), all.back()[at] = 190;
  }
  for (int n = 0; n < 12; ++n) {
    std::geometric_distribution<int64_t> few(0.3), many(0.02);
    std::bernoulli_distribution empty(0.4), long_row(0.1);
    all.emplace_back();
    for (int i = 0; i < 50; ++i)
      all.back().push_back(empty(random) ? 0 : long_row(random) ? many(random) : few(random));
  }
  return all;
}

inline Pattern with_lengths(Random& random, const std::vector<int64_t>& lengths, const std::string& name) {
  int64_t cols = 1;
  for (const int64_t n : lengths) cols = std::max(cols, n);
  Pattern p{name, static_cast<int64_t>(lengths.size()), cols, {}};
  std::vector<int64_t> all(cols);
  for (int64_t j = 0; j < cols; ++j) all[j] = j;
  for (const int64_t n : lengths) {
    std::shuffle(all.begin(), all.end(), random);
    p.columns.emplace_back(all.begin(), all.begin() + n);
    std::sort(p.columns.back().begin(), p.columns.back().end());
  }
  return p;
}

inline std::vector<Pattern> device_patterns(Random& random) {
  std::vector<Pattern> all{{"empty 0x5", 0, 5, {}},        {"empty 5x0", 5, 0, {{}, {}, {}, {}, {}}},
                           scattered(random, 30, 30, 0.2), scattered(random, 17, 61, 0.3),
                           banded(23, 30, {0, 2, 5, 6}),   grid(18, 4, 1, 2)};
  const auto lengths = row_lengths(random);
  for (size_t n : {size_t{3}, size_t{7}, size_t{9}, size_t{10}, size_t{13}, size_t{16}}) {
    std::vector<int64_t> some = lengths[n];
    for (int64_t& length : some) length = std::min<int64_t>(length, 190);
    all.push_back(with_lengths(random, some, "lengths " + std::to_string(n)));
  }
  return all;
}

// Every entry lies in one piece, every row ends in one, and the piece that first leaves a row open finds the
// last that does.
template <class I>
void schedule_case(const std::vector<int64_t>& lengths, int width, int parts, const std::string& name) {
  Aligned<I> ptr(static_cast<int64_t>(lengths.size()) + 1);
  ptr[0] = 0;
  for (size_t i = 0; i < lengths.size(); ++i) ptr[i + 1] = static_cast<I>(ptr[i] + lengths[i]);
  const int64_t rows = static_cast<int64_t>(lengths.size()), nnz = ptr[rows];
  if (rows + nnz == 0) return;
  const Aligned<I> table = schedule_table(ptr.data(), rows, width);
  const cuda::Schedule<I> S{ptr.data(), table.data(), rows, nnz, table.size() / 2 - 1, width, parts};
  std::vector<int> seen(nnz), ended(rows), opened(rows), added(S.pieces());
  for (int64_t s = 0; s < S.pieces(); ++s) {
    const cuda::PathPiece piece = S.piece(s);
    const int64_t items = piece.last.row - piece.first.row + piece.last.entry - piece.first.entry;
    require(items >= 0 && items <= width / parts, name + ": a piece is longer than it may be");
    require(piece.first.entry >= ptr[piece.first.row], name + ": a piece begins before its row");
    for (int64_t p = piece.first.entry; p < piece.last.entry; ++p) ++seen[p];
    for (int64_t i = piece.first.row; i < piece.last.row; ++i) ++ended[i];
    if (S.opens(s)) {
      ++opened[piece.last.row];
      for (int64_t t = s; t <= S.last_of(s); ++t) {
        require(S.point(t + 1).row == piece.last.row, name + ": a piece that is not of this row");
        ++added[t];
      }
    }
    for (int64_t p = piece.first.entry; p < piece.last.entry; ++p) {
      const int64_t i = cuda::row_of_entry(ptr.data(), piece.first.row, piece.last.row, p);
      require(ptr[i] <= p && p < ptr[i + 1], name + ": the row of an entry");
    }
  }
  for (const int n : seen) require(n == 1, name + ": an entry lies in another number of pieces than one");
  for (const int n : ended) require(n == 1, name + ": a row ends in another number of pieces than one");
  for (const int n : opened) require(n <= 1, name + ": the parts of a row are added up twice");
  for (int64_t s = 0; s < S.pieces(); ++s)
    require(added[s] == (S.point(s + 1).row < rows ? 1 : 0), name + ": what a piece leaves is added once");
}

inline void test_schedules(Random& random) {
  for (const auto& lengths : row_lengths(random))
    for (const int width : {4, 20, 896})
      for (const int parts : {1, 4}) {
        schedule_case<int32_t>(lengths, width, parts, "schedule");
        schedule_case<int64_t>(lengths, width, parts, "schedule");
      }
}

}  // namespace learnsolve::test
