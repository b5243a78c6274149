// The first product of two patterns: C's pattern and values in one pass. It is not an operator, since only
// the pass itself tells how large its results are: a function for learnsolve/ops/core/sparse_product.py.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "analysis/product_blocks.h"
#include "analysis/spgemm.h"
#include "ops/check.h"

namespace learnsolve {
namespace {

// The rows of one part of C, which begins with its own first entry.
template <class T, class I>
class FusedRows {
 public:
  // grid: null, or the factors, many rows of which repeat the one before.
  FusedRows(const ProductView<I>& P, const analysis::FactorPair<I>* grid, int64_t cols, const T* a,
            const T* b, I* c_ptr, I* c_idx, T* c)
      : P_(P),
        grid_(grid),
        cols_(cols),
        a_(a),
        b_(b),
        c_ptr_(c_ptr),
        c_idx_(c_idx),
        c_(c),
        place_(cols, I(-1)) {
    P_.c_ptr = c_ptr, P_.c_idx = c_idx;
  }
  void operator()(int64_t r0, int64_t r1) {
    for (int64_t i = r0, end = 0, last; i < r1; i = last) {
      int64_t row = last = grid_ ? i : r1;  // row + 1, ..., last - 1 repeat this one
      for (; row < r1; row = last) {
        for (last = row + 1; last < r1 && grid_->shifted(last);) ++last;
        if (last - row > analysis::kShortestRun) break;
      }
      end = rows(i, row, end);
      if (row == r1) break;
      const int64_t begin = end;
      end = rows(row, row + 1, begin);
      end = end - begin > analysis::kLongestRow ? rows(row + 1, last, end) : repeat(row, last, begin, end);
    }
  }

 private:
  static constexpr int64_t kLanes = 16;  // a multiple of those of every vector

  int64_t rows(int64_t i, int64_t r1, int64_t end) {
    while (i < r1) {
      const int64_t first = i;
      i = kernels().get<T, I>().spgemm_fused(P_, i, r1, end, a_, b_, place_.data(), c_ptr_, c_idx_, c_);
      if (i == r1) return c_ptr_[r1];
      const int64_t begin = i == first ? end : int64_t{c_ptr_[i]};
      end = c_ptr_[++i];
      if (!sort_) sort_.emplace(cols_);
      values_.assign(c_ + begin, c_ + end);
      (*sort_)(c_idx_ + begin, c_idx_ + end);
      for (int64_t t = begin; t < end; ++t) c_[t] = values_[place_[c_idx_[t]] - begin];
    }
    return end;
  }

  // Those that repeat `row`: the uniform blocks of the other passes, without positions for all of them.
  int64_t repeat(int64_t row, int64_t last, int64_t begin, int64_t end) {
    const int64_t length = end - begin;
    for (int64_t t = begin; t < end; ++t) place_[c_idx_[t]] = static_cast<I>(t);
    offsets_.clear();
    for (int64_t p = P_.a_ptr[row]; p < P_.a_ptr[row + 1]; ++p)
      for (int64_t k = P_.a_idx[p], q = P_.b_ptr[k]; q < P_.b_ptr[k + 1]; ++q)
        offsets_.push_back(static_cast<int32_t>(place_[P_.b_idx[q]] - begin));
    for (int64_t i = row + 1, n; i < last; i += n, end += n * length) {
      n = last - i < kLanes ? last - i : (last - i) / kLanes * kLanes;
      for (int64_t t = end; t < end + n * length; ++t) c_idx_[t] = c_idx_[t - length] + 1;
      positions_.clear();
      for (int64_t r = 0; r < n; ++r) {
        c_ptr_[i + r + 1] = static_cast<I>(end + (r + 1) * length);
        if (r > 0 && n >= kLanes) continue;  // the kernel reads only those of the first row
        for (const int32_t o : offsets_) positions_.push_back(static_cast<int32_t>(end + r * length) + o);
      }
      P_.positions = positions_.data();
      kernels().get<T, I>().spgemm_rows(P_, i, i + n, 0, true, a_, b_, c_, nullptr, false);
    }
    return end;
  }

  ProductView<I> P_;
  const analysis::FactorPair<I>* grid_;
  int64_t cols_;
  const T *a_, *b_;
  I *c_ptr_, *c_idx_;
  T* c_;
  std::vector<I> place_;
  std::optional<analysis::ColumnSorter> sort_;
  std::vector<T> values_;
  std::vector<int32_t> offsets_, positions_;
};

// Does every second one of some rows repeat the row before?
template <class I>
bool repeats_often(const I* ptr, int64_t rows, const I* idx) {
  int64_t found = 0, looks = 0;
  for (int64_t i = 0; i + 1 < rows; i += std::max<int64_t>(1, rows / 64), ++looks)
    found += analysis::repeats(ptr, idx, i);
  return 2 * found > looks;
}

// Parts of about equal numbers of products, each in its place among them; then together.
template <class T, class I>
void fused(const ProductView<I>& P, int64_t rows, int64_t inner, int64_t cols, int64_t products, const T* a,
           const T* b, I* c_ptr, I* c_idx, T* c) {
  constexpr int64_t kPart = int64_t{1} << 16;
  c_ptr[0] = 0;
  const int64_t parts = std::clamp<int64_t>(products / std::max(kPart, 4 * cols), 1, threads_here());
  const bool grid = repeats_often(P.a_ptr, rows, P.a_idx) && repeats_often(P.b_ptr, inner, P.b_idx);
  if (parts == 1 && !grid) return FusedRows<T, I>(P, nullptr, cols, a, b, c_ptr, c_idx, c)(0, rows);
  const analysis::FactorPair<I> F(P.a_ptr, rows, P.a_idx, P.b_ptr, inner, P.b_idx, cols);
  const std::vector<int64_t> first = analysis::even_rows(F.before.data(), rows, parts);
  std::vector<int64_t> entries(parts + 1, 0);
  std::atomic<bool> memory = true;
  parallel_for(0, parts, 1, [&](int64_t k0, int64_t k1) {
    for (int64_t k = k0; k < k1; ++k) {
      const int64_t at = F.before[first[k]];
      try {
        FusedRows<T, I>(P, grid ? &F : nullptr, cols, a, b, c_ptr, c_idx + at, c + at)(first[k],
                                                                                       first[k + 1]);
      } catch (const std::bad_alloc&) {
        memory = false;
      }
    }
  });
  if (!memory) throw std::bad_alloc();
  for (int64_t k = 0; k < parts; ++k) {
    const int64_t at = F.before[first[k]], count = first[k] < first[k + 1] ? int64_t{c_ptr[first[k + 1]]} : 0;
    std::memmove(c_idx + entries[k], c_idx + at, count * sizeof(I));
    std::memmove(c + entries[k], c + at, count * sizeof(T));
    for (int64_t i = first[k]; i < first[k + 1]; ++i) c_ptr[i + 1] += static_cast<I>(entries[k]);
    entries[k + 1] = entries[k] + count;
  }
}

template <class T, class I>
void fused_arrays(int64_t rows, int64_t inner, int64_t cols, int64_t products, void** arrays) {
  const auto index = [&](int i) { return static_cast<I*>(arrays[i]); };
  const auto values = [&](int i) { return static_cast<T*>(arrays[i]); };
  const ProductView<I> P{index(0), index(1), nullptr, index(2), index(3),
                         nullptr,  nullptr,  nullptr, nullptr,  false};
  fused(P, rows, inner, cols, products, values(4), values(5), index(6), index(7), values(8));
}

}  // namespace
}  // namespace learnsolve

// arrays: a_ptr, a_idx, b_ptr, b_idx, the values of A and of B; c_ptr (rows + 1), c_idx and the values of C,
// both with room for an entry per product. False if memory is missing.
extern "C" __attribute__((visibility("default"))) bool learnsolve_spgemm_fused(bool doubles, bool wide,
                                                                               int64_t rows, int64_t inner,
                                                                               int64_t cols, int64_t products,
                                                                               void** arrays) try {
  using namespace learnsolve;
  const auto run = doubles ? (wide ? fused_arrays<double, int64_t> : fused_arrays<double, int32_t>)
                           : (wide ? fused_arrays<float, int64_t> : fused_arrays<float, int32_t>);
  run(rows, inner, cols, products, arrays);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}
