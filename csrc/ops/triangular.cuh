// Triangular systems on a CUDA device: what csr_sptrsv and its backward are made of, and what preconditioners
// that apply a factor in a loop call without any tensor in between. Every call launches and does no more:
// no allocation, no query of the device.
//
// The shape of the pattern decides (learnsolve/ops/core/triangular.py plans). A narrow band is a scan
// (ops/band_solve.cuh), all others are solved by levels (ops/level_solve.cuh).
#pragma once

#include "ops/band_solve.cuh"
#include "ops/level_solve.cuh"
#include "ops/structure.h"

namespace learnsolve {

// One triangular system: `arguments` are its tensors, or a list of them, and two bools. On a device a plan
// is, in the places that csr_sptrsv has for them: `levels`, int64 and on the host, the lanes that solve a row
// (1, 8 or 32) and where each level begins in `order`; `blocks`, the same bounds on the device; `order`, the
// rows by level, last level first if `upper`. For a band that is scanned `levels` is a single number, minus
// how far from the diagonal its entries are at most, and the other two are empty.
class DeviceTriangle : public SparseTriangle {
 public:
  template <class... Arguments>
  DeviceTriangle(const char* name, const Tensor& like, const Arguments&... arguments)
      : SparseTriangle(name, arguments...) {
    check_device(name, like, {&idx});
    STD_TORCH_CHECK(order.scalar_type() == idx.scalar_type(), name,
                    ": order must have the index type of idx");
    STD_TORCH_CHECK(!levels.is_cuda() && levels.scalar_type() == ScalarType::Long && levels.numel() > 0, name,
                    ": on a CUDA device levels must be int64, on the host, and not empty");
    STD_TORCH_CHECK(unit || entries() >= rows(), name, ": a row has no diagonal entry");
    if (is_band()) {
      STD_TORCH_CHECK(levels.numel() == 1 && lanes() >= -cuda::kWidestBand && rows() > 0, name,
                      ": for a band levels must be one number, minus its width, -1 ... -", cuda::kWidestBand);
      STD_TORCH_CHECK(beside() <= cuda::beside_before(rows(), width()), name, ": a band of ", width(),
                      " must have no more entries than that beside the diagonal in any row");
    } else {
      STD_TORCH_CHECK((lanes() == 1 || lanes() == 8 || lanes() == 32) && levels.numel() > 1 &&
                          n_parts() >= 0 && order.numel() == rows() && bound(0) == 0 &&
                          bound(n_levels()) == rows(),
                      name, ": order, blocks and levels must cover all rows");
    }
  }
  bool is_band() const { return lanes() < 0; }

  // What `solve` needs room for, in numbers of the dtype of `like`: once for any number of calls, which must
  // not overlap. Empty for most systems.
  Tensor scratch(const Tensor& like, int64_t batch, int64_t k) const {
    int64_t size = is_band() ? triangular::band_room(rows(), width(), batch, k) : 0;
    if (n_parts() > 0) size = triangular::level_room(rows(), batch, k) * 8 / like.element_size();
    return new_empty(like, std::vector<int64_t>{size});
  }

  // T x_s = b_s for `batch` systems of k right-hand sides each, row-major. values advance by values_step from
  // one system to the next (0: one matrix), b by b_step; x may be b. Same bits for every batch.
  template <class T, class I>
  void solve(const OnDevice& device, const T* values, int64_t values_step, const T* b, int64_t b_step, T* x,
             int64_t batch, int64_t k, const Tensor& room) const {
    if (rows() == 0 || batch == 0 || k == 0) return;
    const cuda::Triangle<T, I> S{data<I>(ptr), data<I>(idx), data<I>(perm), values,
                                 values_step,  rows(),       upper,         unit};
    const cuda::Sides<T> v{b, x, b_step, rows() * k, k};
    if (is_band()) {
      const bool full = beside() == cuda::beside_before(rows(), width());
      return triangular::solve_band<T, I>(device, {S, v, batch, width(), full}, mutable_data<T>(room));
    }
    const I* bounds = data<I>(blocks);
    triangular::solve_levels<T, I>(
        device, {S, v, data<I>(order), bounds, bounds + n_levels() + 1, n_parts(), batch},
        {data<int64_t>(levels) + 1, n_levels(), lanes()}, mutable_data<unsigned long long>(room));
  }

 private:
  int64_t lanes() const { return data<int64_t>(levels)[0]; }
  int64_t n_levels() const { return levels.numel() - 2; }
  int64_t bound(int64_t level) const { return data<int64_t>(levels)[1 + level]; }
  int64_t n_parts() const {
    const int64_t left = blocks.numel() - n_levels() - 1;  // one more than there are parts
    return is_band() || left == 0 ? 0 : left - 1;
  }
  int64_t width() const { return -lanes(); }
  int64_t beside() const { return entries() - (unit ? 0 : rows()); }  // entries that are not on the diagonal
};

}  // namespace learnsolve
