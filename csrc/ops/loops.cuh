// Pairs of vectors of several iterations of a loop on a CUDA device, kept until the gradient on a pattern is
// added up for all of them.
#pragma once

#include "kernels/loops.cuh"
#include "ops/device.cuh"
#include "ops/products.cuh"

namespace learnsolve {

template <class T>
using In = cuda::Vectors<const T>;

// out_p += <u_i, v_j> on the pattern of S for pairs (u, v), which stay where they are until flush. finish
// comes last.
template <class T, class I>
class DevicePairs {
 public:
  static constexpr int64_t kMost = cuda::EntryPairs<T, I>::kMost;

  DevicePairs(const OnDevice& device_, const Tensor& like, const DeviceStructure& S, int64_t k, int64_t batch,
              T* out, int64_t out_step, const In<T>& acts = {})
      : device(device_),
        row(new_empty(S.idx, Size{S.nnz()})),
        groups(batch, out_step == 0 ? S.nnz() : 0),
        sum(like, out, out_step, S.nnz(), groups, true, &device_),
        pairs{data<I>(row), data<I>(S.idx), S.nnz(), k, groups, sum.result, acts, {}, {}, 0} {
    if (S.nnz() == 0) return;
    LS_LAUNCH(cuda::blocks_for(S.rows(), cuda::kThreads / 32), cuda::kThreads, device.stream,
              (data<I>(S.ptr), S.rows(), mutable_data<I>(row)), cuda::rows_of_entries_kernel<I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  void add(const In<T>& u, const In<T>& v) {
    pairs.u[pairs.count] = u, pairs.v[pairs.count] = v;
    if (++pairs.count == kMost) flush();
  }
  void flush() {
    if (pairs.count > 0 && pairs.entries > 0) pairs.k == 1 ? launch<1>() : launch<8>();
    pairs.count = 0;
  }
  void finish() {
    flush();
    sum.finish(device);
  }

 private:
  const OnDevice& device;
  const Tensor row;
  const cuda::Groups groups;
  const BatchSum<T> sum;
  cuda::EntryPairs<T, I> pairs;

  template <int Lanes>
  void launch() const {
    const dim3 grid(cuda::blocks_for(pairs.entries, cuda::kThreads / Lanes), 1,
                    cuda::blocks_aside(groups.count));
    LS_LAUNCH(grid, cuda::kThreads, device.stream, (pairs), cuda::entry_pairs_kernel<Lanes, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

// Launches of passes over chunks of rows, of products that end in one, and of sums of rows: what loops on a
// CUDA device are made of.
template <class T>
using Out = cuda::Vectors<T>;

// `count` blocks of `size` numbers, each `step` numbers after the one before.
template <class T>
void copy_blocks(const OnDevice& device, T* to, int64_t to_step, const T* from, int64_t from_step,
                 int64_t size, int64_t count) {
  if (size == 0 || count == 0) return;
  // The largest distance between rows that a two-dimensional copy allows.
  constexpr int64_t kPitch = 0x7fffffff / static_cast<int64_t>(sizeof(T));
  if (to_step == size && from_step == size) size *= count, count = 1;
  if (count > 1 && std::max(to_step, from_step) <= kPitch) {
    STD_CUDA_CHECK(cudaMemcpy2DAsync(to, to_step * sizeof(T), from, from_step * sizeof(T), size * sizeof(T),
                                     count, cudaMemcpyDeviceToDevice, device.stream));
    return;
  }
  for (int64_t b = 0; b < count; ++b)
    STD_CUDA_CHECK(cudaMemcpyAsync(to + b * to_step, from + b * from_step, size * sizeof(T),
                                   cudaMemcpyDeviceToDevice, device.stream));
}

// A matrix that multiplies in every iteration of a loop. Its values are brought into the order of its rows.
template <class T, class I>
struct LoopMatrix {
  DeviceStructure S;
  Tensor values;
  cuda::RowsOf<T, I> rows;

  // step: from the values of one member to those of the next, or 0.
  LoopMatrix(const OnDevice& device, const DeviceStructure& S_, const Tensor& values_, int64_t step)
      : S(S_), values(values_) {
    if (S.perm) {
      values = new_empty(values_, sizes_of(values_));
      const int64_t count = S.nnz(), batch = values.numel() / count;
      LS_LAUNCH(dim3(cuda::blocks_for(count, cuda::kThreads), cuda::blocks_aside(batch)), cuda::kThreads,
                device.stream, (data<I>(S.perm), data<T>(values_), count, batch, mutable_data<T>(values)),
                cuda::reorder_kernel<T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
      S.perm.reset();
    }
    rows = {S.tile_table<I>(), data<I>(S.idx), {data<T>(values), step}};
  }
  bool ends_in_pass() const { return S.further() == 0 && S.nnz() < cuda::kManyEntries * S.rows(); }
};

// For blocks of vectors with k columns, for all members of a batch.
template <class T>
struct ChunkLaunch {
  const OnDevice& device;
  int64_t k, batch;

  static constexpr int kV = cuda::kPack<T>;

  // Kernels are instances for one column, columns by packs, and columns one by one.
  template <class Pass>
  void pass(const Pass& pass, const cuda::Chunks& chunks, const cuda::Partials<T>& partials = {}) const {
    const unsigned grid = cuda::blocks_for(chunks.count * batch);
    const auto launch = [&]<bool One, int V>() {
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (pass, chunks, batch, k, partials),
                cuda::chunk_pass_kernel<One, V, T, Pass>);
    };
    bool done = false;
    if constexpr (!requires { pass.A; })  // a product of one column has a kernel of its own
      if ((done = k == 1)) launch.template operator()<true, kV>();
    if (!done) k % kV == 0 ? launch.template operator()<false, kV>() : launch.template operator()<false, 1>();
    STD_CUDA_CHECK(cudaGetLastError());
  }
  // An end of a product without one: it is given zeros, or what has been written to `product`.
  template <class End>
  void after(const In<T>& product, const End& end, const cuda::Chunks& chunks,
             const cuda::Partials<T>& partials = {}) const {
    pass(cuda::AfterProduct<T, End>{{end}, product}, chunks, partials);
  }
  // The product A x and its end. `made` is where the results may go in between.
  template <class I, class End>
  void product(const LoopMatrix<T, I>& A, const In<T>& x, const End& end, const Out<T>& made,
               const cuda::Chunks& chunks, const cuda::Partials<T>& partials = {}) const {
    if (!A.ends_in_pass()) {
      spmm_into<T, I>(
          A.S, A.values,
          {A.rows.values.p, x.p, nullptr, made.p, nullptr, A.rows.values.step, x.step, 0, made.step, 0}, k,
          batch);
      return after(made, end, chunks, partials);
    }
    const cuda::RowProduct<T, I, End> P{{end}, A.rows, x, k};
    if (k > 1) return pass(P, chunks, partials);
    LS_LAUNCH(cuda::blocks_for(chunks.count * batch), cuda::kThreads, device.stream,
              (P, chunks, batch, partials), cuda::tile_product_kernel<T, I, End>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

// Sums of rows that several launches add to (kernels/loops.cuh): n of them at out, for each member or
// (step 0) for all, or at places that `add` names. finish comes last.
template <class T>
class RowSums {
 public:
  RowSums(const OnDevice& device_, const Tensor& like, T* out, int64_t step, int64_t size, int64_t n_,
          int64_t k_, int64_t batch)
      : device(device_),
        n(n_),
        k(k_),
        groups(batch, step == 0 ? size : 0),
        sum(like, out, step, size, groups, true, &device_) {}

  void add(const In<T>& acts, const In<T>& a, const In<T>& u, const In<T>& w, int64_t at = 0) const {
    cuda::RowDots<T> rows{acts, a, u, w, n, k, groups, sum.result};
    rows.out.p += at;
    const dim3 grid(cuda::blocks_for(n, cuda::kThreads / (k > 1 ? 8 : 1)), 1,
                    cuda::blocks_aside(groups.count));
    if (k > 1)
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (rows), cuda::row_dots_kernel<8, T>);
    else
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (rows), cuda::row_dots_kernel<1, T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  void finish() const { sum.finish(device); }

 private:
  const OnDevice& device;
  int64_t n, k;
  cuda::Groups groups;
  BatchSum<T> sum;
};

}  // namespace learnsolve
