// What CPU operators do around their kernels: views of a structure, and the distribution of row blocks over
// threads.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"
#include "ops/contents.h"
#include "ops/threads.h"

namespace learnsolve {

// A structure on the CPU: `arrays` are its tensors, or a list of them.
struct Structure : SparseStructure {
  template <class... Arrays>
  explicit Structure(const char* name, const Arrays&... arrays) : SparseStructure(name, arrays...) {
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 2, name,
                    ": blocks must be (number of blocks + 1, 2)");
    STD_TORCH_CHECK(entry(ptr, 0) == 0 && entry(ptr, rows()) == nnz() && entry(blocks, 0) == 0 &&
                        entry(blocks, 2 * n_blocks()) == rows(),
                    name, ": ptr must end at nnz and blocks must cover all rows");
    if (contents_checked) check_contents();
  }
  static int64_t entry(const Tensor& t, int64_t i) {
    return t.scalar_type() == ScalarType::Int ? data<int32_t>(t)[i] : data<int64_t>(t)[i];
  }
  int64_t n_blocks() const { return blocks.numel() / 2 - 1; }

  // Does an operand with this many rows have one for each column?
  void check_columns(int64_t columns) const {
    STD_TORCH_CHECK(columns > 0 || nnz() == 0, name,
                    ": an operand has no rows, and the structure has entries");
    check_range(name, "columns", idx, 0, columns);
  }

  // Do most rows lie in uniform blocks?
  template <class I>
  bool mostly_uniform() const {
    const I* table = data<I>(blocks);
    int64_t uniform = 0;
    for (int64_t b = 0; b < n_blocks(); ++b)
      if (table[2 * b + 1] > 0) uniform += table[2 * b + 2] - table[2 * b];
    return 2 * uniform > rows();
  }

  template <class T, class I>
  CsrView<T, I> view(const T* values) const {
    return {data<I>(ptr), data<I>(idx), data<I>(perm), values};
  }
  template <class I>
  RowBlocks<I> row_blocks() const {
    return {data<I>(blocks)};
  }

 private:
  void check_contents() const {
    check_bounds(name, "ptr", ptr, nnz());
    check_bounds(name, "blocks", blocks, rows(), 2);
    check_range(name, "perm", perm, 0, nnz());
    const Entries table(blocks);
    for (int64_t b = 0; b < n_blocks(); ++b)
      if (const int64_t length = table[2 * b + 1]; length > 0)
        check_uniform(*this, table[2 * b], table[2 * b + 2], length, length);
  }
};

// First block of part c of `parts` that hold about equal numbers of entries and rows.
template <class I>
int64_t block_bound(const Structure& S, int64_t c, int64_t parts) {
  if (c == parts) return S.n_blocks();
  const I* ptr = data<I>(S.ptr);
  const I* table = data<I>(S.blocks);
  const auto weight = [&](int64_t b) { return static_cast<int64_t>(ptr[table[2 * b]]) + table[2 * b]; };
  const int64_t target = weight(S.n_blocks()) / parts * c;
  int64_t lo = 0, hi = S.n_blocks();
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    weight(mid) < target ? lo = mid + 1 : hi = mid;
  }
  return lo;
}

// f(b0, b1) over ranges of blocks, k columns each.
template <class I, class F>
void parallel_blocks(const Structure& S, int64_t k, const F& f) {
  const int64_t n_blocks = S.n_blocks();
  const int64_t work = (S.nnz() + S.rows()) * std::max<int64_t>(k, 1);
  const int64_t parts = work < 2 * kGrain ? 1 : std::min<int64_t>({n_blocks, work / kGrain, threads_here()});
  if (parts <= 1) return f(0, n_blocks);
  parallel_for(0, parts, 1, [&](int64_t c0, int64_t c1) {
    f(block_bound<I>(S, c0, parts), block_bound<I>(S, c1, parts));
  });
}

// gx = S g and the gradient for the values, where A (the structure in the order of the values, without perm)
// and S (that whose rows are gx's) are the transposes of one another or, for y = A^T x, the same.
template <class T, class I>
void both_gradients(const Structure& A, const Structure& S, const T* values, const T* g, const T* x,
                    int64_t k, T* gx, T* ga, bool accumulate_gx, bool accumulate_ga) {
  const auto& table = kernels().get<T, I>();
  const CsrView<T, I> view = S.view<T, I>(values);
  if (k == 1 && S.mostly_uniform<I>()) {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      table.spmm(view, S.row_blocks<I>(), b0, b1, g, k, gx, accumulate_gx);
    });
    parallel_blocks<I>(A, k, [&](int64_t b0, int64_t b1) {
      table.sddmm(data<I>(A.ptr), data<I>(A.idx), A.row_blocks<I>(), b0, b1, S.perm ? g : x, S.perm ? x : g,
                  k, ga, accumulate_ga);
    });
  } else {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      table.spmm_backward(view, S.row_blocks<I>(), b0, b1, g, x, k, gx, ga, accumulate_gx, accumulate_ga);
    });
  }
}

}  // namespace learnsolve
