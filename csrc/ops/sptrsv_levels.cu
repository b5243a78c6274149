// The kernels of ops/level_solve.cuh.
#include "ops/level_solve.cuh"

namespace learnsolve::triangular {
namespace {

using namespace cuda;

constexpr int64_t kTile = 32;  // columns that a block takes through narrow levels
constexpr int kFewThreads = 64, kLevelThreads = 256;
constexpr int64_t kNarrow = 4 * kLevelThreads;  // results of one tile

// What a block takes at a time: some columns of one member.
struct Tile {
  int64_t m, c0;
  int columns;
};
template <class P>
LS_BOTH int64_t tiles(const P& system) {
  return system.batch * ((system.v.k + kTile - 1) / kTile);
}
template <class P>
LS_DEVICE Tile tile(const P& system, int64_t number) {
  const int64_t of_member = (system.v.k + kTile - 1) / kTile, c0 = number % of_member * kTile;
  const int64_t left = system.v.k - c0;
  return {number / of_member, c0, static_cast<int>(left < kTile ? left : kTile)};
}

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

// Rows order[begin] to order[end], which do not depend on one another, by the teams of a block.
template <int Lanes, class T, class I, class F>
LS_DEVICE void solve_rows(const LevelSystem<T, I>& P, int64_t begin, int64_t end, const Tile& at,
                          const F& flags) {
  const int items = static_cast<int>(end - begin) * at.columns;
  const auto solve = [&](const auto& team, int64_t n) {
    const int item = static_cast<int>(n);
    solve_row(team, P.S, P.v, P.order[begin + item / at.columns], at.c0 + item % at.columns, at.m, flags);
  };
  const Team<Lanes> team;
  for (int item = threadIdx.x / Lanes; item < items; item += blockDim.x / Lanes) solve(team, item);
}

// f(tile, bound) for the tiles of a block; bound(n, end) is where the n-th of the levels begins or ends.
template <class T, class I, class F>
LS_DEVICE void for_tiles(const LevelSystem<T, I>& P, int64_t from, int64_t to, const F& f) {
  const auto bound = [&](int64_t n, bool end) {
    return static_cast<int64_t>(P.bounds[(P.S.upper ? to - 1 - n : from + n) + end]);
  };
  for_blocks(tiles(P), [&](int64_t b) { f(tile(P, b), bound); });
}

// Levels from <= l < to, a row a lane. One block to a processor: registers hold the rows that are read ahead.
template <int Threads, class T, class I>
LS_KERNEL(Threads, 1)
sweep_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t from, int64_t to) {
  const Block<Threads> block;
  for_tiles(P, from, to, [&](const Tile& at, const auto& bound) {
    sweep_levels(block, P.S, P.v, P.order, to - from, bound, at.c0, at.columns, at.m);
  });
}

// The same, several lanes a row.
template <int Lanes, class T, class I>
LS_KERNEL(kLevelThreads)
narrow_levels_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t from, int64_t to) {
  const Block<kLevelThreads> block;
  for_tiles(P, from, to, [&](const Tile& at, const auto& bound) {
    for (int64_t n = 0; n < to - from; ++n) {
      solve_rows<Lanes>(P, bound(n, false), bound(n, true), at, NoFlags{});
      block.sync();
    }
  });
}

template <int Lanes, class T, class I>
void solve(const OnDevice& device, const LevelSystem<T, I>& P, const LevelsOnHost& levels,
           unsigned long long* room) {
  const bool upper = P.S.upper;
  const int64_t count = levels.count, k = P.v.k, columns = std::min(k, kTile);
  const auto level = [&](int64_t n) { return upper ? count - 1 - n : n; };
  const auto length = [&](int64_t n) { return levels.at[level(n) + 1] - levels.at[level(n)]; };
  for (int64_t n = 0; n < count;) {
    int64_t end = n, widest = 0;
    for (; end < count && length(end) * columns < kNarrow; ++end)
      widest = std::max(widest, length(end) * columns);
    if (end == n) {
      const dim3 grid(blocks_for(length(n) * k, kThreads / Lanes), blocks_aside(P.batch));
      LS_LAUNCH(grid, kThreads, device.stream, (P, levels.at[level(n)], levels.at[level(n) + 1]),
                level_kernel<Lanes, T, I>);
      ++n;
    } else {
      const int64_t from = upper ? level(end - 1) : n, to = from + end - n;
      const unsigned blocks = blocks_for(tiles(P));
      if constexpr (Lanes > 1) {
        LS_LAUNCH(blocks, kLevelThreads, device.stream, (P, from, to), narrow_levels_kernel<Lanes, T, I>);
      } else if (widest <= kFewThreads) {  // few threads are enough, and their barrier is cheap
        LS_LAUNCH(blocks, kFewThreads, device.stream, (P, from, to), sweep_kernel<kFewThreads, T, I>);
      } else {
        LS_LAUNCH(blocks, kLevelThreads, device.stream, (P, from, to), sweep_kernel<kLevelThreads, T, I>);
      }
      n = end;
    }
    STD_CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace

template <class T, class I>
void solve_levels(const OnDevice& device, const LevelSystem<T, I>& system, const LevelsOnHost& levels,
                  unsigned long long* room) {
  switch (levels.lanes) {
    case 1: return solve<1>(device, system, levels, room);
    case 8: return solve<8>(device, system, levels, room);
    default: return solve<32>(device, system, levels, room);
  }
}
using Counters = unsigned long long*;
template void solve_levels(const OnDevice&, const LevelSystem<float, int32_t>&, const LevelsOnHost&,
                           Counters);
template void solve_levels(const OnDevice&, const LevelSystem<float, int64_t>&, const LevelsOnHost&,
                           Counters);
template void solve_levels(const OnDevice&, const LevelSystem<double, int32_t>&, const LevelsOnHost&,
                           Counters);
template void solve_levels(const OnDevice&, const LevelSystem<double, int64_t>&, const LevelsOnHost&,
                           Counters);

}  // namespace learnsolve::triangular
