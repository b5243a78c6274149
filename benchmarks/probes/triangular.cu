// Probe: triangular solves by levels, a launch or a barrier each, as the library had them; by blocks that
// hand results to one another; by one block in shared memory.
#include <numeric>
#include <string>

#include "analysis/levels.h"
#include "kernels/triangular.cuh"
#include "probe.h"

namespace probe {

// Rows of the lower triangle, each with its diagonal last.
struct Lower {
  std::string name;
  std::vector<int> ptr{0}, idx;
  int n() const { return static_cast<int>(ptr.size()) - 1; }
  void end_row() {
    idx.push_back(n());
    ptr.push_back(static_cast<int>(idx.size()));
  }
};

Lower grid_factor(const char* name, int nz, int ny, int nx) {
  Lower L{name};
  for (int z = 0; z < nz; ++z)
    for (int y = 0; y < ny; ++y)
      for (int x = 0; x < nx; ++x) {
        if (z > 0) L.idx.push_back(L.n() - ny * nx);
        if (y > 0) L.idx.push_back(L.n() - nx);
        if (x > 0) L.idx.push_back(L.n() - 1);
        L.end_row();
      }
  return L;
}
Lower band_factor(const char* name, int n, int width) {
  Lower L{name};
  for (int i = 0; i < n; ++i) {
    for (int j = std::max(i - width, 0); j < i; ++j) L.idx.push_back(j);
    L.end_row();
  }
  return L;
}
// Up to 24 columns of the last 4,000, those far away more often.
Lower irregular_factor(const char* name, int n) {
  Lower L{name};
  for (int i = 0; i < n; ++i) {
    const int width = std::min(i, 4000), length = std::min<int>(mix(i) % 24, width);
    for (int e = 0; e < length; ++e) {
      const int lo = e * width / length, hi = (e + 1) * width / length;
      L.idx.push_back(i - width + lo + static_cast<int>(mix(i * 977 + e) % (hi - lo)));
    }
    L.end_row();
  }
  return L;
}

// What learnsolve/ops/triangular.py plans.
struct Planned {
  std::vector<int> order, levels, table;
  int size = kChunkRows;  // rows of a chunk

  explicit Planned(const Lower& L) {
    auto schedule = learnsolve::analysis::level_schedule<int>(L.ptr.data(), L.n(), L.idx.data(), false);
    order = schedule.order, levels = schedule.levels;
    const int n = L.n();
    order.resize(2 * n);
    for (int t = 0; t < n; ++t) order[n + order[t]] = t;
    for (int i = 0; i < n; ++i) size = std::min(size, kChunkEntries / (L.ptr[i + 1] - L.ptr[i]));
    std::vector<int> cuts, pieces(levels);
    for (int t = 0; t < n + size; t += size) cuts.push_back(std::min(t, n));
    pieces.insert(pieces.end(), cuts.begin(), cuts.end());
    std::sort(pieces.begin(), pieces.end());
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    for (const int cut : cuts)
      table.push_back(static_cast<int>(std::lower_bound(pieces.begin(), pieces.end(), cut) - pieces.begin()));
    table.insert(table.end(), pieces.begin(), pieces.end());
  }
  int depth() const { return static_cast<int>(levels.size()) - 1; }
};

// As it was: the rows of some levels by one block with a barrier after each, or those of one by many.
template <class T>
LS_DEVICE void row_by_level(const Triangle<T, int>& S, const Sides<T>& v, int i) {
  const int first = S.ptr[i], last = S.ptr[i + 1] - 1;
  const T r = reciprocal(S.values[last]);
  T sum = times(v.b[i], r);
  for (int p = first; p < last; ++p) sum = plus_product(sum, -times(S.values[p], r), v.x[S.idx[p]]);
  v.x[i] = sum;
}
template <class T>
LS_KERNEL(kThreads)
levels_kernel(LS_ARGUMENT Triangle<T, int> S, LS_ARGUMENT Sides<T> v, const int* bounds, int from, int to,
              bool one_block) {
  for (int l = from; l < to; ++l) {
    const int step = one_block ? kThreads : static_cast<int>(gridDim.x) * kThreads;
    for (int t = bounds[l] + static_cast<int>(blockIdx.x * kThreads + threadIdx.x); t < bounds[l + 1];
         t += step)
      row_by_level(S, v, S.order[t]);
    __syncthreads();
  }
}

template <class T>
void measure_factor(const Lower& L) {
  const int n = L.n();
  const Planned plan(L);
  std::vector<T> values(L.idx.size()), wanted(n);
  for (int i = 0; i < n; ++i)
    for (int p = L.ptr[i]; p < L.ptr[i + 1]; ++p)
      values[p] = static_cast<T>(p + 1 < L.ptr[i + 1] ? static_cast<double>(mix(p) >> 40) / (1 << 27) : 1.25);
  const Buffer<int> ptr(L.ptr), idx(L.idx), order(plan.order), bounds(plan.levels), table(plan.table);
  const Buffer<T> a(values), b(n), x(n);
  const Buffer<unsigned> tickets(std::vector<unsigned>{0});
  fill(b, 1);
  const std::vector<T> side = b.host();
  for (int i = 0; i < n; ++i) {
    const int last = L.ptr[i + 1] - 1;
    const T r = T(1) / values[last];
    T sum = side[i] * r;
    for (int p = L.ptr[i]; p < last; ++p) sum = std::fma(-(values[p] * r), wanted[L.idx[p]], sum);
    wanted[i] = sum;
  }
  const Sides<T> v{b.p, x.p, n, n, 1};
  const Triangle<T, int> S{ptr.p, idx.p, nullptr, order.p, a.p, 0, n, false, false};
  const ChunkTable<int> chunks{table.p, plan.size, n};
  const int depth = plan.depth();
  const auto row = [&](const std::string& variant, double predicted, const auto& launch) {
    poison(x.p, n * sizeof(T));
    launch(0);
    finish("solve");
    const bool right = std::memcmp(x.host().data(), wanted.data(), n * sizeof(T)) == 0;
    const double us = microseconds(launch, 2);
    std::printf("| %-14s | f%d | %-22s | %6d | %9.1f | %9.1f | %7.3f | %s |\n", L.name.c_str(),
                static_cast<int>(8 * sizeof(T)), variant.c_str(), depth, us, predicted, us / depth,
                right ? "right" : "WRONG");
    std::fflush(stdout);
  };
  int wide = 0;
  for (int l = 0; l < depth; ++l) wide += plan.levels[l + 1] - plan.levels[l] >= 4 * kThreads;
  row("levels", 2.4 * (depth - wide) + 7.2 * wide, [&](int) {
    const auto launch = [&](int from, int to, bool one) {
      const unsigned blocks = one ? 1 : blocks_for(plan.levels[to] - plan.levels[from], kThreads);
      LS_LAUNCH(blocks, kThreads, stream(), (S, v, bounds.p, from, to, one), levels_kernel<T>);
    };
    for (int l = 0, end = 0; l < depth; l = end) {
      while (end < depth && plan.levels[end + 1] - plan.levels[end] < 4 * kThreads) ++end;
      if (end > l)
        launch(l, end, true);
      else
        launch(l, l + 1, false), ++end;
    }
  });
  for (const int ahead : {2, 8, 32, depth})
    row(ahead == depth ? "handed over, all" : "handed over, " + std::to_string(ahead), 0.7 * depth, [&](int) {
      cudaMemsetAsync(x.p, 0xff, n * sizeof(T), stream());
      const int64_t under_way = int64_t{n} * ahead / depth;
      LS_LAUNCH(blocks_for(std::min<int64_t>(n, under_way), kThreads), kThreads, stream(),
                (S, v, int64_t{1}, tickets.p), handed_rows_kernel<1, T, int>);
    });
  row("one block", 0.08 * depth + 2.0 * static_cast<double>(chunks.chunks()), [&](int) {
    LS_LAUNCH(1, kThreads, stream(), (S, v, int64_t{1}, chunks), chunks_of_rows_kernel<T, int>);
  });
}

}  // namespace probe

int main() {
  const bool e = probe::kEmulated;
  std::printf(
      "Predicted: a level of one block 2.4 us, a launch 7.2, a result that is polled 0.7, a level in\n"
      "shared memory 0.08 and a chunk there 2. Handed over: so many levels are under way.\n");
  std::printf(
      "| case | type | variant | levels | us | predicted us | us a level | state |\n"
      "|---|---|---|---|---|---|---|---|\n");
  const int n = e ? 1500 : 32768;
  for (const probe::Lower& L : {probe::grid_factor("2D 500^2", 1, e ? 30 : 500, e ? 30 : 500),
                                probe::grid_factor("2D 1000 x 32", 1, e ? 60 : 1000, e ? 8 : 32),
                                probe::grid_factor("2D 2000 x 128", 1, e ? 30 : 2000, e ? 20 : 128),
                                probe::grid_factor("3D 100^3", e ? 9 : 100, e ? 9 : 100, e ? 9 : 100),
                                probe::band_factor("band of 2", n, 2), probe::band_factor("band of 4", n, 4),
                                probe::irregular_factor("irregular", e ? 900 : 200000)}) {
    probe::measure_factor<float>(L);
    probe::measure_factor<double>(L);
  }
}
