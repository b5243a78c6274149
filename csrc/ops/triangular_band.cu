// Bidiagonal systems: the launches of kernels/triangular.cuh.
#include "ops/triangular.cuh"

namespace learnsolve::triangular {

namespace {

using namespace cuda;

// A band for every column of every member of a batch; for each, `chunks` maps and ends of chunks.
template <class T, class I>
struct Bands {
  Triangle<T, I> S;
  Sides<T> v;
  int64_t count, chunks;
  Affine<T>* maps;
  T* ends;

  LS_DEVICE Band<T, I> band(int64_t q) const {
    const int64_t m = q / v.k, c = q % v.k;
    Band<T, I> A{S, v.b + m * v.b_step + c, v.x + m * v.x_step + c, v.k};
    A.S.values += m * S.values_step;
    return A;
  }
};

template <class T, class I>
LS_KERNEL(kThreads)
short_bands_kernel(LS_ARGUMENT Bands<T, I> P) {
  LS_SHARED(room, ScanRoom<T>);
  for_blocks(P.count, [&](int64_t q) {
    const Band<T, I> A = P.band(q);
    for (int64_t t = 0; t < A.S.rows; t += kChunk) solve_chunk(A, t, t > 0 ? A.at(t - 1) : T(0), room);
  });
}

// Of all chunks but the last, which has none after it.
template <class T, class I>
LS_KERNEL(kThreads)
chunk_maps_kernel(LS_ARGUMENT Bands<T, I> P) {
  LS_SHARED(room, ScanRoom<T>);
  for_aside(P.count, [&](int64_t q) {
    for_blocks(P.chunks - 1,
               [&](int64_t c) { chunk_map(P.band(q), c * kChunk, room, P.maps + q * P.chunks + c); });
  });
}

template <class T, class I>
LS_KERNEL(kThreads)
chunk_ends_kernel(LS_ARGUMENT Bands<T, I> P) {
  LS_SHARED(room, ScanRoom<T>);
  for_blocks(P.count, [&](int64_t q) {
    chunk_ends(P.band(q), P.chunks - 1, P.maps + q * P.chunks, room, P.ends + q * P.chunks);
  });
}

template <class T, class I>
LS_KERNEL(kThreads)
chunks_kernel(LS_ARGUMENT Bands<T, I> P) {
  LS_SHARED(room, ScanRoom<T>);
  for_aside(P.count, [&](int64_t q) {
    for_blocks(P.chunks, [&](int64_t c) {
      solve_chunk(P.band(q), c * kChunk, c > 0 ? P.ends[q * P.chunks + c - 1] : T(0), room);
    });
  });
}

template <class T, class I>
void launch(const OnDevice& device, const Bands<T, I>& P) {
  if (P.chunks <= kBlockChunks) {
    LS_LAUNCH(blocks_for(P.count), kThreads, device.stream, (P), short_bands_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
    return;
  }
  const dim3 grid(blocks_for(P.chunks), blocks_aside(P.count));
  LS_LAUNCH(grid, kThreads, device.stream, (P), chunk_maps_kernel<T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
  LS_LAUNCH(blocks_for(P.count), kThreads, device.stream, (P), chunk_ends_kernel<T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
  LS_LAUNCH(grid, kThreads, device.stream, (P), chunks_kernel<T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T, class I>
void solve_band(const OnDevice& device, const Triangle<T, I>& S, const Sides<T>& v, int64_t batch, T* room) {
  const int64_t chunks = (S.rows + kChunk - 1) / kChunk, count = batch * v.k, maps = 2 * chunks * count;
  launch<T, I>(device, {S, v, count, chunks, reinterpret_cast<Affine<T>*>(room), room + maps});
}

#define LS_INSTANCE(T, I) \
  template void solve_band(const OnDevice&, const Triangle<T, I>&, const Sides<T>&, int64_t, T*)
LS_INSTANCE(float, int32_t);
LS_INSTANCE(float, int64_t);
LS_INSTANCE(double, int32_t);
LS_INSTANCE(double, int64_t);

}  // namespace learnsolve::triangular
