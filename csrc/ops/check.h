// What every CPU operator does before and around its kernel: allocation, views of the tensors, and the deal
// of row blocks to threads.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "ops/shapes.h"

namespace learnsolve {

// Results of this size come fresh from the system in every call (glibc keeps up to 32 MiB for itself), and
// writing them for the first time costs a page fault for each 4 KiB: more than the product that writes them.
// Huge pages are 512 times fewer: both gradients of a 1000 x 1000 grid, float64, take 12 ms instead of 30. A
// hint: where the system has none, nothing happens.
inline void prefer_huge_pages(void* data, size_t bytes, size_t large = size_t{32} << 20) {
#ifdef MADV_HUGEPAGE
  constexpr size_t page = size_t{2} << 20;
  if (bytes < large) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes, (void)large;
#endif
}

// Contiguous, on the CPU. The shim's own allocation: torch::stable::new_empty goes through the dispatcher,
// which costs 1 us more, and the adjoint of a solver returns four tensors.
inline Tensor new_empty(const Tensor& like, const std::vector<int64_t>& size) {
  std::vector<int64_t> strides(size.size());
  int64_t stride = 1;
  for (size_t i = size.size(); i-- > 0; stride *= std::max<int64_t>(size[i], 1)) strides[i] = stride;
  int32_t dtype = 0;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(size.size()), size.data(),
                                                  strides.data(), dtype, aoti_torch_device_type_cpu(), 0,
                                                  &handle));
  Tensor t(handle);
  prefer_huge_pages(t.data_ptr(), static_cast<size_t>(t.numel()) * t.element_size());
  return t;
}
inline Tensor new_zeros(const Tensor& like, const std::vector<int64_t>& size) {
  Tensor t = new_empty(like, size);
  const size_t bytes = static_cast<size_t>(t.numel()) * t.element_size();
  if (bytes > 0) std::memset(t.data_ptr(), 0, bytes);
  return t;
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.data_ptr());
}
template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

// A structure on the CPU, its arrays contiguous. It holds the tensors: pointers stay valid.
struct Structure {
  Tensor ptr, idx, blocks;
  std::optional<Tensor> perm;

  Structure(const char* name, const Tensor& ptr_, const Tensor& idx_, const std::optional<Tensor>& perm_,
            const Tensor& blocks_)
      : ptr(dense(ptr_)), idx(dense(idx_)), blocks(dense(blocks_)) {
    if (perm_) perm = dense(*perm_);
    check_indices(name, ptr, idx, perm, blocks);
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 2, name,
                    ": blocks must be (number of blocks + 1, 2)");
    STD_TORCH_CHECK(entry(ptr, 0) == 0 && entry(ptr, rows()) == nnz() && entry(blocks, 0) == 0 &&
                        entry(blocks, 2 * n_blocks()) == rows(),
                    name, ": ptr must end at nnz and blocks must cover all rows");
  }
  static int64_t entry(const Tensor& t, int64_t i) {
    return t.scalar_type() == ScalarType::Int ? data<int32_t>(t)[i] : data<int64_t>(t)[i];
  }
  int64_t rows() const { return ptr.numel() - 1; }
  int64_t nnz() const { return idx.numel(); }
  int64_t n_blocks() const { return blocks.numel() / 2 - 1; }

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
    return {data<I>(ptr), data<I>(idx), perm ? data<I>(*perm) : nullptr, values};
  }
  template <class I>
  RowBlocks<I> row_blocks() const {
    return {data<I>(blocks)};
  }
};

// Fewer multiply-adds than this are not worth a second thread: waking one costs about 5 us.
constexpr int64_t kGrain = 24576;

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
  const int64_t parts =
      work < 2 * kGrain ? 1 : std::min<int64_t>({n_blocks, work / kGrain, torch::stable::get_num_threads()});
  if (parts <= 1) return f(0, n_blocks);
  torch::stable::parallel_for(0, parts, 1, [&](int64_t c0, int64_t c1) {
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
