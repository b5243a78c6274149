// Triangular systems on a CUDA device: what csr_sptrsv and its backward are made of, and what preconditioners
// that apply a factor in a loop call without any tensor in between. Every call launches and does no more:
// no allocation, no query of the device.
//
// The shape of the pattern decides (learnsolve/ops/triangular.py plans). A bidiagonal system is a scan
// (kernels/triangular.cuh): one block takes a short one chunk by chunk, a long one goes in three launches. It
// would have a level a row otherwise. In others rows wait for earlier levels alone (kernels/triangular.cuh).
// Where levels are narrow, a block goes through them in shared memory; where they are wide, many blocks hand
// results to one another. One launch either way.
#pragma once

#include "kernels/triangular.cuh"
#include "ops/device.cuh"
#include "ops/tensors.h"

namespace learnsolve {
namespace triangular {

// Rows are solved by `lanes` lanes: 1, 8 or 32. Without chunks, blocks draw tickets.
template <class I>
struct SweepPlan {
  int64_t lanes, levels;
  cuda::ChunkTable<I> table;
  unsigned* tickets;
};

template <class T, class I>
void solve_sweep(const OnDevice& device, const cuda::Triangle<T, I>& S, const cuda::Sides<T>& v,
                 int64_t systems, const SweepPlan<I>& plan);

// Numbers that a scan needs room for. Chunks depend on the number of rows alone.
inline int64_t band_room(int64_t rows, int64_t systems) {
  const int64_t chunks = (rows + cuda::kChunk - 1) / cuda::kChunk;
  return chunks > cuda::kBlockChunks ? 3 * chunks * systems : 0;
}
template <class T, class I>
void solve_band(const OnDevice& device, const cuda::Triangle<T, I>& S, const cuda::Sides<T>& v, int64_t batch,
                T* room);

}  // namespace triangular

// One triangular system: `arguments` are its tensors, or a list of them, and two bools. On a device the plan
// is `levels`, int64 and on the host: the lanes that solve a row, the number of levels, and the rows of a
// chunk, 0 where levels are wide. `order` is that of cuda::Triangle, and `blocks` a cuda::ChunkTable or
// empty. For a bidiagonal system `levels` is 0 alone, and the other two are empty.
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
    STD_TORCH_CHECK(levels.numel() == 3 && (lanes() == 1 || lanes() == 8 || lanes() == 32) &&
                        order.numel() == 2 * rows() && (rows() == 0 || n_levels() > 0),
                    name, ": levels must say how rows are solved, and order hold all rows and their places");
    STD_TORCH_CHECK(chunk_rows() == 0
                        ? blocks.numel() == 0
                        : chunk_rows() > 0 && chunk_rows() <= cuda::kChunkRows && lanes() == 1 &&
                              blocks.numel() >= 2 * table<int64_t>().chunks() + 2,
                    name, ": blocks must hold the pieces of all chunks, whose rows have one lane");
  }

  // What `solve` needs room for, in numbers of the dtype of `like`: once for any number of calls, which must
  // not overlap.
  Tensor scratch(const Tensor& like, int64_t batch, int64_t k) const {
    const std::vector<int64_t> size{is_band() ? triangular::band_room(rows(), batch * k) : chunk_rows() == 0};
    return is_band() ? new_empty(like, size) : new_zeros(like, size);
  }

  // T x_s = b_s for `batch` systems of k right-hand sides each, row-major. values advance by values_step from
  // one system to the next (0: one matrix), b by b_step; x must not be b. Same bits for every batch.
  template <class T, class I>
  void solve(const OnDevice& device, const T* values, int64_t values_step, const T* b, int64_t b_step, T* x,
             int64_t batch, int64_t k, const Tensor& room) const {
    if (rows() == 0 || batch == 0 || k == 0) return;
    const cuda::Triangle<T, I> S{
        data<I>(ptr), data<I>(idx), data<I>(perm), data<I>(order), values, values_step, rows(), upper, unit};
    const cuda::Sides<T> v{b, x, b_step, rows() * k, k};
    if (is_band()) return triangular::solve_band<T, I>(device, S, v, batch, mutable_data<T>(room));
    triangular::solve_sweep<T, I>(
        device, S, v, batch * k,
        {lanes(), n_levels(), table<I>(), reinterpret_cast<unsigned*>(mutable_data<T>(room))});
  }

 private:
  template <class I>
  cuda::ChunkTable<I> table() const {
    return {data<I>(blocks), chunk_rows(), rows()};
  }
  int64_t said(int64_t n) const { return data<int64_t>(levels)[n]; }
  int64_t lanes() const { return said(0); }
  int64_t n_levels() const { return said(1); }
  int64_t chunk_rows() const { return said(2); }
  bool is_band() const { return lanes() == 0; }
};

}  // namespace learnsolve
