// Triangular systems on a CUDA device: what csr_sptrsv and its backward are made of, and what preconditioners
// that apply a factor in a loop call without any tensor in between. Every call launches and does no more:
// no allocation, no look at the device.
//
// The shape of the pattern decides (learnsolve/ops/_triangular.py plans). A narrow band is a scan
// (ops/band_solve.cuh). All else goes by levels: a launch for each wide one, one block for all narrow ones
// between, with a barrier after each.
#pragma once

#include "kernels/triangular.cuh"
#include "ops/band_solve.cuh"

namespace learnsolve {
namespace triangular {

using namespace cuda;

constexpr int64_t kTile = 32;  // columns that a block takes through narrow levels
#ifdef __CUDACC__
constexpr int kFewThreads = 64, kLevelThreads = 256;
constexpr int64_t kNarrow = 4 * kLevelThreads;  // results of one tile
#else
// Tests have all of them.
constexpr int kFewThreads = 2, kLevelThreads = 4;
constexpr int64_t kNarrow = 8;
#endif

constexpr int kTicketThreads = 128;
constexpr int64_t kTicketBlocks = 2048;  // any number would do: blocks in flight that wait burden the memory

// Rows by level; on the device, where each level begins and where each part of one does.
template <class T, class I>
struct LevelSystem {
  Triangle<T, I> S;
  Sides<T> v;
  const I* order;
  const I* bounds;
  const I* parts;
  int64_t n_parts, batch;

  LS_DEVICE int64_t tiles() const { return (v.k + kTile - 1) / kTile; }
  // Columns of tile number c.
  LS_DEVICE int columns(int64_t c) const {
    return static_cast<int>(v.k - c * kTile < kTile ? v.k - c * kTile : kTile);
  }
};

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
level_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t begin, int64_t end) {
  const int64_t k = P.v.k;
  for_aside(P.batch, [&](int64_t m) {
    for_items<Lanes>((end - begin) * k, [&](const auto& team, int64_t item) {
      const int64_t t = k == 1 ? item : item / k;
      solve_row(team, P.S, P.v, P.order[begin + t], item - t * k, m, NoFlags{});
    });
  });
}

// f(team, item) for the items of a block that fall to this thread's team.
template <int Lanes, class F>
LS_DEVICE void for_items_of_block(int items, const F& f) {
#ifdef __CUDACC__
  const WarpTeam<Lanes> team;
  for (int item = threadIdx.x / Lanes; item < items; item += blockDim.x / Lanes) f(team, item);
#else
  for_items<Lanes>(items, f);
#endif
}

// f(member, first column, columns, bound) for the tiles of a block; bound(n, end) is where the n-th of the
// levels begins or ends.
template <class T, class I, class F>
LS_DEVICE void for_tiles(const LevelSystem<T, I>& P, int64_t from, int64_t to, const F& f) {
  const auto bound = [&](int64_t n, bool end) {
    return static_cast<int64_t>(P.bounds[(P.S.upper ? to - 1 - n : from + n) + end]);
  };
  for_blocks(P.batch * P.tiles(), [&](int64_t b) {
    const int64_t tile = b % P.tiles();
    f(b / P.tiles(), tile * kTile, P.columns(tile), bound);
  });
}

// Levels from <= l < to, a row a lane. One block to a processor: registers hold the rows that are read ahead.
template <int Threads, class T, class I>
LS_KERNEL(Threads, 1)
sweep_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t from, int64_t to) {
  const Block<Threads> block;
  for_tiles(P, from, to, [&](int64_t m, int64_t c0, int columns, const auto& bound) {
    sweep_levels(block, P.S, P.v, P.order, to - from, bound, c0, columns, m);
  });
}

// The same, several lanes a row.
template <int Lanes, class T, class I>
LS_KERNEL(kLevelThreads)
narrow_levels_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t from, int64_t to) {
  const Block<kLevelThreads> block;
  for_tiles(P, from, to, [&](int64_t m, int64_t c0, int columns, const auto& bound) {
    for (int64_t n = 0; n < to - from; ++n) {
      const int64_t begin = bound(n, false), end = bound(n, true);
      for_items_of_block<Lanes>(static_cast<int>(end - begin) * columns, [&](const auto& team, int item) {
        solve_row(team, P.S, P.v, P.order[begin + item / columns], c0 + item % columns, m, NoFlags{});
      });
      block.sync();
    }
  });
}

template <class T>
LS_KERNEL(kThreads)
zero_kernel(T* p, int64_t count) {
  for_items<1>(count, [&](const auto& team, int64_t i) { team.first([&] { p[i] = 0; }); });
}

// The number of times that this was asked before, for a block: counted where all blocks do.
LS_DEVICE int64_t next_ticket(unsigned long long* tickets) {
#ifdef __CUDACC__
  __shared__ unsigned long long ticket;
  __syncthreads();  // nobody reads the last one any more
  if (threadIdx.x == 0) ticket = atomicAdd(tickets, 1ull);
  __syncthreads();
  return static_cast<int64_t>(ticket);
#else
  return static_cast<int64_t>((*tickets)++);
#endif
}

// A part lies within one level, so what its rows wait for has lower tickets, which blocks that run already
// have taken: the lowest ticket that is not done waits for nothing, and no block waits for ever.
template <int Lanes, class T, class I>
LS_KERNEL(kTicketThreads)
tickets_kernel(LS_ARGUMENT LevelSystem<T, I> P, unsigned long long* tickets, Flags flags) {
  const int64_t tiles = P.tiles(), copies = P.batch * tiles;
  for (int64_t ticket; (ticket = next_ticket(tickets)) < P.n_parts * copies;) {
    const int64_t at = ticket / copies, copy = ticket % copies, m = copy / tiles, tile = copy % tiles;
    const int64_t part = P.S.upper ? P.n_parts - 1 - at : at;
    const int64_t begin = P.parts[part], end = P.parts[part + 1];
    const int columns = P.columns(tile);
    for_items_of_block<Lanes>(static_cast<int>(end - begin) * columns, [&](const auto& team, int item) {
      const int64_t i = P.order[begin + item / columns];
      solve_row(team, P.S, P.v, i, tile * kTile + item % columns, m, flags);
    });
  }
}

}  // namespace triangular

// One triangular system, its arrays contiguous. It holds the tensors: pointers stay valid. On a device a plan
// is, in the places that csr_sptrsv has for them: `levels`, int64 and on the host, the lanes that solve a row
// (1, 8 or 32) and where each level begins in `order`; `blocks`, the same bounds on the device; `order`, the
// rows by level, last level first if `upper`. For a band that is scanned `levels` is a single number, minus
// how far from the diagonal its entries are at most, and the other two are empty.
class DeviceTriangle {
 public:
  DeviceTriangle(const char* name, const Tensor& like, const Tensor& ptr_, const Tensor& idx_,
                 const std::optional<Tensor>& perm_, const Tensor& blocks_, const Tensor& order_,
                 const Tensor& levels_, bool upper_, bool unit_)
      : ptr(dense(ptr_)),
        idx(dense(idx_)),
        blocks(dense(blocks_)),
        order(dense(order_)),
        levels(dense(levels_)),
        upper(upper_),
        unit(unit_) {
    if (perm_) perm = dense(*perm_);
    check_device(name, like, {&ptr, &idx, &blocks, &order});
    if (perm) check_device(name, like, {&*perm});
    check_indices(name, ptr, idx, perm, blocks);
    STD_TORCH_CHECK(order.scalar_type() == idx.scalar_type(), name,
                    ": order must have the index type of idx");
    STD_TORCH_CHECK(!levels.is_cuda() && levels.scalar_type() == ScalarType::Long && levels.numel() > 0, name,
                    ": on a CUDA device levels must be int64, on the host, and not empty");
    STD_TORCH_CHECK(unit || entries() >= rows(), name, ": a row has no diagonal entry");
    if (is_band()) {
      STD_TORCH_CHECK(levels.numel() == 1 && width() <= cuda::kWidestBand && rows() > 0, name,
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
  int64_t rows() const { return ptr.numel() - 1; }
  int64_t entries() const { return idx.numel(); }
  bool is_band() const { return lanes() < 0; }

  // What `solve` needs room for, in numbers of the dtype of `like`: once for any number of calls, which must
  // not overlap. Empty for most systems.
  Tensor scratch(const Tensor& like, int64_t batch, int64_t k) const {
    int64_t size = is_band() ? triangular::band_room(rows(), width(), batch, k) : 0;
    if (n_parts() > 0) size = (counters(batch, k) * 8 + like.element_size() - 1) / like.element_size();
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
    const triangular::LevelSystem<T, I> P{S,         v,    data<I>(order), bounds, bounds + n_levels() + 1,
                                          n_parts(), batch};
    if (lanes() == 1)
      solve_levels<1>(device, P, room);
    else if (lanes() == 8)
      solve_levels<8>(device, P, room);
    else
      solve_levels<32>(device, P, room);
  }

  const Tensor ptr, idx;
  std::optional<Tensor> perm;
  const Tensor blocks, order, levels;
  const bool upper, unit;

 private:
  int64_t lanes() const { return data<int64_t>(levels)[0]; }
  int64_t n_levels() const { return levels.numel() - 2; }
  int64_t bound(int64_t level) const { return data<int64_t>(levels)[1 + level]; }
  int64_t n_parts() const {
    const int64_t left = blocks.numel() - n_levels() - 1;  // one more than there are parts
    return is_band() || left == 0 ? 0 : left - 1;
  }
  // Numbers of eight bytes: that of tickets, and those that hold the flags.
  int64_t counters(int64_t batch, int64_t k) const { return 1 + (batch * rows() * k + 1) / 2; }
  int64_t width() const { return -lanes(); }
  int64_t beside() const { return entries() - (unit ? 0 : rows()); }  // the diagonal

  template <int Lanes, class T, class I>
  void solve_by_ticket(const OnDevice& device, const triangular::LevelSystem<T, I>& P,
                       const Tensor& room) const {
    using namespace triangular;
    auto* const tickets = mutable_data<unsigned long long>(room);
    const int64_t count = counters(P.batch, P.v.k);
    LS_LAUNCH(blocks_for(count, kThreads), kThreads, device.stream, (tickets, count),
              zero_kernel<unsigned long long>);
    STD_CUDA_CHECK(cudaGetLastError());
    // A part has 32 rows: one warp, if that is all it has to do.
    const int threads = Lanes == 1 && P.v.k == 1 ? 32 : kTicketThreads;
    const int64_t all = P.n_parts * P.batch * ((P.v.k + kTile - 1) / kTile);
    LS_LAUNCH(blocks_for(all, 1, kTicketBlocks), threads, device.stream,
              (P, tickets, Flags{reinterpret_cast<int32_t*>(tickets + 1)}), tickets_kernel<Lanes, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  template <int Lanes, class T, class I>
  void solve_levels(const OnDevice& device, const triangular::LevelSystem<T, I>& P,
                    const Tensor& room) const {
    using namespace triangular;
    if (P.n_parts > 0) return solve_by_ticket<Lanes>(device, P, room);
    const int64_t count = n_levels(), k = P.v.k, columns = std::min(k, kTile);
    const auto level = [&](int64_t n) { return upper ? count - 1 - n : n; };
    const auto length = [&](int64_t n) { return bound(level(n) + 1) - bound(level(n)); };
    for (int64_t n = 0; n < count;) {
      int64_t end = n, widest = 0;
      for (; end < count && length(end) * columns < kNarrow; ++end)
        widest = std::max(widest, length(end) * columns);
      if (end == n) {
        const dim3 grid(blocks_for(length(n) * k, kThreads / Lanes), blocks_aside(P.batch));
        LS_LAUNCH(grid, kThreads, device.stream, (P, bound(level(n)), bound(level(n) + 1)),
                  level_kernel<Lanes, T, I>);
        ++n;
      } else {
        const int64_t from = upper ? level(end - 1) : n, to = from + end - n;
        const unsigned blocks = blocks_for(P.batch * ((k + kTile - 1) / kTile));
        if constexpr (Lanes > 1) {
          LS_LAUNCH(blocks, kLevelThreads, device.stream, (P, from, to), narrow_levels_kernel<Lanes, T, I>);
        } else if (widest <= kFewThreads) {  // a barrier of few threads, which have nothing else to do
          LS_LAUNCH(blocks, kFewThreads, device.stream, (P, from, to), sweep_kernel<kFewThreads, T, I>);
        } else {
          LS_LAUNCH(blocks, kLevelThreads, device.stream, (P, from, to), sweep_kernel<kLevelThreads, T, I>);
        }
        n = end;
      }
      STD_CUDA_CHECK(cudaGetLastError());
    }
  }
};

}  // namespace learnsolve
