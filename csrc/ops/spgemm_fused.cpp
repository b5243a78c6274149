// The first product of two patterns: C's pattern and values in one pass. It is not an operator, since only
// the pass itself tells how large its results are: a function for learnsolve/ops/core/sparse_product.py.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "analysis/spgemm.h"
#include "ops/check.h"

namespace learnsolve {
namespace {

// Rows r0 <= i < r1, entries from 0 on.
template <class T, class I>
void fused_rows(const ProductView<I>& P, int64_t r0, int64_t r1, int64_t cols, const T* a, const T* b,
                I* c_ptr, I* c_idx, T* c) {
  std::vector<I> place(cols, I(-1));
  std::optional<analysis::ColumnSorter> sort;
  std::vector<T> values;
  int64_t begin = 0, end = 0;
  for (int64_t i = r0;
       (i = kernels().get<T, I>().spgemm_fused(P, i, r1, end, a, b, place.data(), c_ptr, c_idx, c)) < r1;
       ++i) {
    begin = i == r0 ? 0 : int64_t{c_ptr[i]}, end = c_ptr[i + 1];
    if (!sort) sort.emplace(cols);
    values.assign(c + begin, c + end);
    (*sort)(c_idx + begin, c_idx + end);
    for (int64_t t = begin; t < end; ++t) c[t] = values[place[c_idx[t]] - begin];
  }
}

// Parts of about equal numbers of products, each in its place among them; then together.
template <class T, class I>
void fused(const ProductView<I>& P, int64_t rows, int64_t cols, int64_t products, const T* a, const T* b,
           I* c_ptr, I* c_idx, T* c) {
  constexpr int64_t kPart = int64_t{1} << 16;
  c_ptr[0] = 0;
  const int64_t parts =
      std::clamp<int64_t>(products / std::max(kPart, 4 * cols), 1, torch::stable::get_num_threads());
  if (parts == 1) return fused_rows(P, 0, rows, cols, a, b, c_ptr, c_idx, c);
  std::vector<int64_t> before(rows + 1, 0), entries(parts + 1, 0);
  for (int64_t i = 0; i < rows; ++i)
    before[i + 1] = before[i] + analysis::products_of_row(P.a_ptr, i, P.a_idx, P.b_ptr);
  const std::vector<int64_t> first = analysis::even_rows(before.data(), rows, parts);
  std::atomic<bool> memory = true;
  torch::stable::parallel_for(0, parts, 1, [&](int64_t k0, int64_t k1) {
    for (int64_t k = k0; k < k1; ++k) {
      const int64_t at = before[first[k]];
      try {
        fused_rows(P, first[k], first[k + 1], cols, a, b, c_ptr, c_idx + at, c + at);
      } catch (const std::bad_alloc&) {
        memory = false;
      }
    }
  });
  if (!memory) throw std::bad_alloc();
  for (int64_t k = 0; k < parts; ++k) {
    const int64_t at = before[first[k]], count = first[k] < first[k + 1] ? int64_t{c_ptr[first[k + 1]]} : 0;
    std::memmove(c_idx + entries[k], c_idx + at, count * sizeof(I));
    std::memmove(c + entries[k], c + at, count * sizeof(T));
    for (int64_t i = first[k]; i < first[k + 1]; ++i) c_ptr[i + 1] += static_cast<I>(entries[k]);
    entries[k + 1] = entries[k] + count;
  }
}

template <class T, class I>
void fused_arrays(int64_t rows, int64_t cols, int64_t products, void** arrays) {
  const auto index = [&](int i) { return static_cast<I*>(arrays[i]); };
  const auto values = [&](int i) { return static_cast<T*>(arrays[i]); };
  const ProductView<I> P{index(0), index(1), nullptr, index(2), index(3),
                         nullptr,  nullptr,  nullptr, nullptr,  false};
  fused(P, rows, cols, products, values(4), values(5), index(6), index(7), values(8));
}

}  // namespace
}  // namespace learnsolve

// arrays: a_ptr, a_idx, b_ptr, b_idx, the values of A and of B; c_ptr (rows + 1), c_idx and the values of C,
// both with room for an entry per product. False if memory is missing.
extern "C" __attribute__((visibility("default"))) bool learnsolve_spgemm_fused(bool doubles, bool wide,
                                                                               int64_t rows, int64_t cols,
                                                                               int64_t products,
                                                                               void** arrays) try {
  using namespace learnsolve;
  const auto run = doubles ? (wide ? fused_arrays<double, int64_t> : fused_arrays<double, int32_t>)
                           : (wide ? fused_arrays<float, int64_t> : fused_arrays<float, int32_t>);
  run(rows, cols, products, arrays);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}
