// Triangular systems by levels.
#include "ops/level_runs.cuh"
#include "ops/triangular.cuh"

namespace learnsolve::triangular {
namespace {

using namespace cuda;

constexpr int64_t kTile = 32;              // columns of one member that a block takes through narrow levels
constexpr int64_t kNarrow = 4 * kThreads;  // results of a tile in a level

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
level_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t begin, int64_t end) {
  const int64_t k = P.v.k;
  for_aside(P.batch, [&](int64_t m) {
    for_items<Lanes>((end - begin) * k, [&](const auto& team, int64_t item) {
      solve_row(team, P.S, P.v, P.order[begin + item / k], item % k, m);
    });
  });
}

// Levels from <= l < to, one after another.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
narrow_levels_kernel(LS_ARGUMENT LevelSystem<T, I> P, int64_t from, int64_t to) {
  const int64_t k = P.v.k, tiles = (k + kTile - 1) / kTile;
  const Team<Lanes> team;
  for_blocks(P.batch * tiles, [&](int64_t tile) {
    const int64_t m = tile / tiles, c0 = tile % tiles * kTile, columns = k - c0 < kTile ? k - c0 : kTile;
    for (int64_t n = from; n < to; ++n) {
      const int64_t level = P.S.upper ? from + to - 1 - n : n, begin = P.bounds[level];
      const int items = static_cast<int>((P.bounds[level + 1] - begin) * columns);
      const int width = static_cast<int>(columns);
      for (int item = threadIdx.x / Lanes; item < items; item += kThreads / Lanes)
        solve_row(team, P.S, P.v, P.order[begin + item / width], c0 + item % width, m);
      __syncthreads();
    }
  });
}

template <int Lanes, class T, class I>
void solve(const OnDevice& device, const LevelSystem<T, I>& P, const LevelsOnHost& levels) {
  const int64_t k = P.v.k, tiles = (k + kTile - 1) / kTile;
  const auto length = [&](int64_t l) { return levels.at[l + 1] - levels.at[l]; };
  for_level_runs(
      levels.count, P.S.upper, [&](int64_t l) { return length(l) * std::min(k, kTile) < kNarrow; },
      [&](int64_t from, int64_t to) {
        LS_LAUNCH(blocks_for(P.batch * tiles), kThreads, device.stream, (P, from, to),
                  narrow_levels_kernel<Lanes, T, I>);
        STD_CUDA_CHECK(cudaGetLastError());
      },
      [&](int64_t l) {
        const dim3 grid(blocks_for(length(l) * k, kThreads / Lanes), blocks_aside(P.batch));
        LS_LAUNCH(grid, kThreads, device.stream, (P, levels.at[l], levels.at[l + 1]),
                  level_kernel<Lanes, T, I>);
        STD_CUDA_CHECK(cudaGetLastError());
      });
}

}  // namespace

template <class T, class I>
void solve_levels(const OnDevice& device, const LevelSystem<T, I>& system, const LevelsOnHost& levels) {
  switch (levels.lanes) {
    case 1: return solve<1>(device, system, levels);
    case 8: return solve<8>(device, system, levels);
    default: return solve<32>(device, system, levels);
  }
}

#define LS_INSTANCE(T, I) \
  template void solve_levels(const OnDevice&, const LevelSystem<T, I>&, const LevelsOnHost&)
LS_INSTANCE(float, int32_t);
LS_INSTANCE(float, int64_t);
LS_INSTANCE(double, int32_t);
LS_INSTANCE(double, int64_t);

}  // namespace learnsolve::triangular
