// Products with short rows, one column: the entries of neighboring rows lie one after another, so a block
// loads them in the order of memory, whatever row each belongs to, and keeps what they contribute in shared
// memory; then each thread adds up one row, entry by entry. Several independent loads of each thread are
// under way at a time (benchmarks.gpu, spmv and pcg: two lanes to a row moved a third of what a copy does).
#pragma once

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

constexpr int kStreamLoads = 8, kStreamEntries = kStreamLoads * kThreads;
constexpr int64_t kSerialEntries = 256;  // the longest row that one thread adds up

// For the contributions of up to kStreamEntries entries at a time, and for what they multiply with.
template <class T, bool Sum, bool Dot>
struct StreamRoom {
  static constexpr int kSlots = kStreamEntries + kStreamEntries / 32;
  T products[Sum ? kSlots : 1], gathered[Dot ? kSlots : 1];
  // Rows of 4, 8 or 16 entries begin in different banks.
  static LS_DEVICE int slot(int e) { return e + e / 32; }
};

// How many rows a block takes at once: about as many as have kStreamEntries, at most one a thread.
inline int stream_rows(int64_t nnz, int64_t rows) {
  const int64_t fit = kStreamEntries / (nnz / std::max<int64_t>(rows, 1) + 1) / 32 * 32;
  return static_cast<int>(std::clamp<int64_t>(fit, 32, kThreads));
}

// For a whole block: rows first <= i < last, one a thread, whose sum it adds to `sum`. `work` has
//
//     load(p, a, x)   the value of entry p (Sum), and what it multiplies with
//     factor()        Dot: of this thread's row
//     put(p, d)       Dot: factor times x, of entry p
//
// Of entries begin <= p < end this thread's own are own <= p < own_end.
template <bool Sum, bool Dot, class T, class Work>
LS_DEVICE void stream_block(int64_t begin, int64_t end, int64_t own, int64_t own_end,
                            StreamRoom<T, Sum, Dot>& room, const Work& work, T& sum) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t tile = begin; tile < end; tile += kStreamEntries) {
    const int count = end - tile < kStreamEntries ? static_cast<int>(end - tile) : kStreamEntries;
    T a[kStreamLoads], x[kStreamLoads];
    LS_UNROLL
    for (int e = 0; e < kStreamLoads; ++e) {
      a[e] = x[e] = 0;
      if (e * kThreads + lane < count) work.load(tile + e * kThreads + lane, a[e], x[e]);
    }
    LS_UNROLL
    for (int e = 0; e < kStreamLoads; ++e) {
      const int slot = room.slot(e * kThreads + lane);
      if (Sum) room.products[slot] = a[e] * x[e];
      if (Dot) room.gathered[slot] = x[e];
    }
    __syncthreads();
    const int from = static_cast<int>((own > tile ? own : tile) - tile);
    const int to = own_end - tile < count ? static_cast<int>(own_end - tile) : count;
    const T factor = Dot && from < to ? work.factor() : T(0);
    for (int e = from; e < to; ++e) {
      if (Sum) sum += room.products[room.slot(e)];
      if (Dot) room.gathered[room.slot(e)] *= factor;
    }
    __syncthreads();
    if (Dot) {
      LS_UNROLL
      for (int e = 0; e < kStreamLoads; ++e)
        if (const int at = e * kThreads + lane; at < count) work.put(tile + at, room.gathered[room.slot(at)]);
      __syncthreads();
    }
  }
}

}  // namespace learnsolve::cuda
