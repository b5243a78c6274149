// Triangular systems on a CUDA device: what csr_sptrsv and its backward are made of, and what preconditioners
// that apply a factor in a loop call without any tensor in between. Every call launches and does no more:
// no allocation, no query of the device.
//
// The shape of the pattern decides (learnsolve/ops/core/triangular.py plans). A bidiagonal system is a scan
// (kernels/band.cuh): one block takes a short one chunk by chunk, a long one goes in three launches. Others
// go by levels, whose rows depend on earlier levels alone: a launch for each wide one, and one for all narrow
// ones between, in which a block puts a barrier after each.
#pragma once

#include "kernels/band.cuh"
#include "ops/device.cuh"
#include "ops/structure.h"

namespace learnsolve {
namespace triangular {

// Level number l holds order[at[l]] to order[at[l + 1]], each row solved by `lanes` lanes: 1, 8 or 32.
struct LevelsOnHost {
  const int64_t* at;
  int64_t count, lanes;
};

// bounds: `at`, on the device.
template <class T, class I>
struct LevelSystem {
  cuda::Triangle<T, I> S;
  cuda::Sides<T> v;
  const I* order;
  const I* bounds;
  int64_t batch;
};

template <class T, class I>
void solve_levels(const OnDevice& device, const LevelSystem<T, I>& system, const LevelsOnHost& levels);

// Numbers that a scan needs room for. Chunks depend on the number of rows alone.
constexpr int64_t kBlockChunks = 4;  // of a system that one block takes
inline int64_t band_room(int64_t rows, int64_t systems) {
  const int64_t chunks = (rows + cuda::kChunk - 1) / cuda::kChunk;
  return chunks > kBlockChunks ? 3 * chunks * systems : 0;
}
template <class T, class I>
void solve_band(const OnDevice& device, const cuda::Triangle<T, I>& S, const cuda::Sides<T>& v, int64_t batch,
                T* room);

}  // namespace triangular

// One triangular system: `arguments` are its tensors, or a list of them, and two bools. On a device a plan
// is, in the places that csr_sptrsv has for them: `levels`, int64 and on the host, the lanes that solve a row
// (1, 8 or 32) and where each level begins in `order`; `blocks`, the same bounds on the device; `order`, the
// rows by level, last level first if `upper`. For a bidiagonal system `levels` is 0 alone, and the other two
// are empty.
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
      STD_TORCH_CHECK(levels.numel() == 1 && rows() > 0 && entries() == (unit ? 1 : 2) * rows() - 1, name,
                      ": with levels 0, every row must have an entry next to its diagonal and no other");
      return;
    }
    STD_TORCH_CHECK((lanes() == 1 || lanes() == 8 || lanes() == 32) && levels.numel() > 1 &&
                        blocks.numel() == n_levels() + 1 && order.numel() == rows() && bound(0) == 0 &&
                        bound(n_levels()) == rows(),
                    name, ": order, blocks and levels must cover all rows");
  }

  // What `solve` needs room for, in numbers of the dtype of `like`: once for any number of calls, which must
  // not overlap. Empty for most systems.
  Tensor scratch(const Tensor& like, int64_t batch, int64_t k) const {
    return new_empty(like, std::vector<int64_t>{is_band() ? triangular::band_room(rows(), batch * k) : 0});
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
    if (is_band()) return triangular::solve_band<T, I>(device, S, v, batch, mutable_data<T>(room));
    triangular::solve_levels<T, I>(device, {S, v, data<I>(order), data<I>(blocks), batch},
                                   {data<int64_t>(levels) + 1, n_levels(), lanes()});
  }

 private:
  int64_t lanes() const { return data<int64_t>(levels)[0]; }
  bool is_band() const { return lanes() == 0; }
  int64_t n_levels() const { return levels.numel() - 2; }
  int64_t bound(int64_t level) const { return data<int64_t>(levels)[1 + level]; }
};

}  // namespace learnsolve
