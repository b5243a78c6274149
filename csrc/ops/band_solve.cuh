// Triangular systems whose entries lie near the diagonal, by scans (kernels/band_scan.cuh): one block takes a
// short one chunk by chunk, a long one goes in three launches. Chunks depend on the number of rows alone.
#pragma once

#include "kernels/band_scan.cuh"
#include "ops/device.cuh"

namespace learnsolve::triangular {

// Supported windows: 1, 2 and 4; a band of three uses four.
constexpr int64_t window(int64_t width) { return width > 2 ? 4 : width; }

// Lanes of a chunk, and rows of a lane. Maps of four results fill the shared memory.
constexpr int scan_threads(int64_t window) { return window > 2 ? 128 : 256; }
constexpr int kScanRows = 4;
constexpr int64_t kBlockChunks = 4;  // of a system that one block takes

// A band of `width`, of which no entry is missing if `full`; all its right-hand sides.
template <class T, class I>
struct BandSystem {
  cuda::Triangle<T, I> S;
  cuda::Sides<T> v;
  int64_t batch, width;
  bool full;
};

// Numbers that `solve_band` needs room for.
inline int64_t band_room(int64_t rows, int64_t width, int64_t batch, int64_t k) {
  const int64_t w = window(width), chunk = scan_threads(w) * kScanRows, chunks = (rows + chunk - 1) / chunk;
  return chunks > kBlockChunks ? (w + 2) * w * chunks * batch * k : 0;
}

template <class T, class I>
void solve_band(const OnDevice& device, const BandSystem<T, I>& system, T* room);

}  // namespace learnsolve::triangular
