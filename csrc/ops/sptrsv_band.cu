// The kernels of ops/band_solve.cuh.
#include "ops/band_solve.cuh"

namespace learnsolve::triangular {
namespace {

using namespace cuda;

// A band for every column of every member of a batch.
template <int W, class T, class I>
struct Bands {
  static constexpr int kThreads = scan_threads(W);
  static constexpr int64_t kChunk = kThreads * kScanRows;
  BandSystem<T, I> of;
  Affine<W, T>* maps;  // (batch k, chunks)
  Window<W, T>* ends;  // (batch k, chunks)

  LS_BOTH int64_t count() const { return of.batch * of.v.k; }
  LS_BOTH int64_t chunks() const { return (of.S.rows + kChunk - 1) / kChunk; }
  LS_DEVICE Band<W, T, I> band(int64_t q) const {
    const Sides<T>& v = of.v;
    const int64_t m = q / v.k, c = q % v.k;
    Band<W, T, I> A{of.S, v.b + m * v.b_step + c, v.x + m * v.x_step + c, v.k, of.full ? of.width : 0};
    A.S.values += m * of.S.values_step;
    return A;
  }
};
template <class Bands>
using Team = Block<Bands::kThreads>;
template <int W, class T>
using Room = ScanRoom<scan_threads(W), W, T>;

template <int W, class T, class I>
LS_KERNEL(scan_threads(W))
short_bands_kernel(LS_ARGUMENT Bands<W, T, I> P) {
  LS_SHARED(room, Room<W, T>);
  const Team<Bands<W, T, I>> team;
  for_blocks(P.count(), [&](int64_t q) {
    const Band<W, T, I> A = P.band(q);
    for (int64_t t = 0; t < A.S.rows; t += P.kChunk)
      solve_chunk<kScanRows>(team, A, t, A.results_before(t), room);
  });
}

// Of all chunks but the last, which has none after it.
template <int W, class T, class I>
LS_KERNEL(scan_threads(W))
chunk_maps_kernel(LS_ARGUMENT Bands<W, T, I> P) {
  LS_SHARED(room, Room<W, T>);
  const Team<Bands<W, T, I>> team;
  for_aside(P.count(), [&](int64_t q) {
    const Band<W, T, I> A = P.band(q);
    for_blocks(P.chunks() - 1, [&](int64_t c) {
      chunk_map<kScanRows>(team, A, c * P.kChunk, room, P.maps + q * P.chunks() + c);
    });
  });
}

template <int W, class T, class I>
LS_KERNEL(scan_threads(W))
chunk_ends_kernel(LS_ARGUMENT Bands<W, T, I> P) {
  LS_SHARED(room, Room<W, T>);
  const Team<Bands<W, T, I>> team;
  for_blocks(P.count(), [&](int64_t q) {
    const int64_t first = q * P.chunks();
    chunk_ends<kScanRows>(team, P.band(q), P.chunks() - 1, P.maps + first, room, P.ends + first);
  });
}

template <int W, class T, class I>
LS_KERNEL(scan_threads(W))
chunks_kernel(LS_ARGUMENT Bands<W, T, I> P) {
  LS_SHARED(room, Room<W, T>);
  const Team<Bands<W, T, I>> team;
  for_aside(P.count(), [&](int64_t q) {
    const Band<W, T, I> A = P.band(q);
    for_blocks(P.chunks(), [&](int64_t c) {
      Window<W, T> before{};
      if (c > 0) before = P.ends[q * P.chunks() + c - 1];
      solve_chunk<kScanRows>(team, A, c * P.kChunk, before, room);
    });
  });
}

template <int W, class T, class I>
void solve(const OnDevice& device, const BandSystem<T, I>& system, T* room) {
  Bands<W, T, I> P{system, nullptr, nullptr};
  const int64_t chunks = P.chunks();
  if (chunks <= kBlockChunks) {
    LS_LAUNCH(blocks_for(P.count()), P.kThreads, device.stream, (P), short_bands_kernel<W, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
    return;
  }
  P.maps = reinterpret_cast<Affine<W, T>*>(room);
  P.ends = reinterpret_cast<Window<W, T>*>(P.maps + chunks * P.count());
  const dim3 grid(blocks_for(chunks), blocks_aside(P.count()));
  LS_LAUNCH(grid, P.kThreads, device.stream, (P), chunk_maps_kernel<W, T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
  LS_LAUNCH(blocks_for(P.count()), P.kThreads, device.stream, (P), chunk_ends_kernel<W, T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
  LS_LAUNCH(grid, P.kThreads, device.stream, (P), chunks_kernel<W, T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T, class I>
void solve_band(const OnDevice& device, const BandSystem<T, I>& system, T* room) {
  switch (window(system.width)) {
    case 1: return solve<1>(device, system, room);
    case 2: return solve<2>(device, system, room);
    default: return solve<4>(device, system, room);
  }
}
template void solve_band(const OnDevice&, const BandSystem<float, int32_t>&, float*);
template void solve_band(const OnDevice&, const BandSystem<float, int64_t>&, float*);
template void solve_band(const OnDevice&, const BandSystem<double, int32_t>&, double*);
template void solve_band(const OnDevice&, const BandSystem<double, int64_t>&, double*);

}  // namespace learnsolve::triangular
